"""Images of the traffic -> tokens of its prompts and work of the vision tower, by the rule of the model."""

from dataclasses import replace

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.families.parts.images import FAMILIES
from capplan.fleet.scenario import Scenario
from capplan.model.images import ImageRule, image_tokens, image_work
from capplan.model.network import Network
from capplan.readers.yaml_file import KeyPath
from capplan.scenario.reading import Reading
from capplan.scenario.scenario_file import Traffic
from capplan.workload.length import fixed
from capplan.workload.multiples import sum_of
from capplan.workload.request_class import PromptImages, RequestClass

MOST_RATIO = 200
"""Of the sides of an image, as processors accept it."""


def prompt_images(reading: Reading, item: Traffic, at: KeyPath) -> PromptImages | None:
    """Return the images of a line of traffic; None where it has none."""
    images = item.images
    if images is None:
        return None
    other = next((key for key in ("turns", "trace") if getattr(item, key) is not None), None)
    if other:
        raise reading.refuse(
            (*at, "images"), f"is for requests of one prompt, and {other} is given; leave one of them out"
        )
    if max(images.width, images.height) > MOST_RATIO * min(images.width, images.height):
        raise reading.refuse(
            (*at, "images"),
            f"{images.width} x {images.height} is over {MOST_RATIO} times as long as wide; were width and height of one image meant?",
        )
    return PromptImages(images.count, images.width, images.height, images.max_pixels)


def with_image_tokens(scenario: Scenario, network: Network) -> tuple[Scenario, tuple[Assumption, ...]]:
    """Return a scenario whose prompts include the tokens of their images, and how that was counted.

    Raises
    ------
    InputError
        the images of the model are not modelled, or its processor has no such limit
    """
    if all(item.images is None for item in scenario.classes):
        return scenario, ()
    rule = network.images
    if rule is None:
        why = (
            "has no vision tower"
            if not network.vision_parameters
            else "turns images into tokens by a rule that is not modelled"
        )
        raise InputError(
            f"{scenario.path}: traffic: images: {network.name} ({network.model_type}) {why}\n"
            f"  modelled: {', '.join(FAMILIES)}\n  else add the tokens of the images to input_tokens, and leave images out"
        )
    said: list[Assumption] = []
    classes = []
    for index, item in enumerate(scenario.classes):
        images = item.images
        if images is None:
            classes.append(item)
            continue
        if images.most_pixels is not None and rule.kind != "resized":
            raise InputError(
                f"{scenario.path}: traffic[{index}].images.max_pixels: {network.name} scales images to {rule.side_pixels} pixels, whatever their area\n"
                "  leave it out"
            )
        tokens = image_tokens(rule, images.width, images.height, images.most_pixels)
        prompts = sum_of(item.input_tokens, fixed(float(images.count * tokens)))
        classes.append(replace(item, input_tokens=prompts))
        said.append(
            Assumption(
                f"{item.name}: an image of {images.width} x {images.height} is {tokens:,} tokens; the words around it are part of input_tokens; hosted APIs count images otherwise",
                f"traffic[{index}].images",
            )
        )
    said.append(
        Assumption(
            "the vision tower reads every image, in the time of plain products and of attention both ways, spread over the tokens of all prompts; not measured",
            "traffic[0].images",
        )
    )
    return replace(scenario, classes=tuple(classes)), tuple(said)


def with_image_work(network: Network, classes: tuple[RequestClass, ...], prompt_tokens: float) -> Network:
    """Return a network with the images that its tower reads for each token of a prompt that is computed; those of repeated prompts are kept.

    Parameters
    ----------
    network : the model
    classes : of the traffic
    prompt_tokens : [tokens]
        computed in the mean for a request
    """
    rule: ImageRule | None = network.images
    rates = [item.request_rate_at() for item in classes]
    if rule is None:
        return network
    work = tuple(
        image_work(
            rule,
            item.images.width,
            item.images.height,
            item.images.most_pixels,
            item.images.count * (1.0 - item.repeated_fraction) * rate / sum(rates) / prompt_tokens,
        )
        for item, rate in zip(classes, rates, strict=True)
        if item.images is not None
    )
    return replace(network, image_work=work)
