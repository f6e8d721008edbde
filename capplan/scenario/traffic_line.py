"""What multiplies or adds to the work of a line of traffic: samples and retries, images, sessions, pooling, time outside the GPUs."""

from dataclasses import replace
from functools import partial

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.families.parts.blocks import FAMILIES
from capplan.model.images import ImageRule, image_tokens, image_work
from capplan.model.network import Network
from capplan.readers.yaml_file import KeyPath
from capplan.scenario.exclusions import OF_OUTPUTS
from capplan.scenario.reading import Reading
from capplan.scenario.replica import ANSWERED, UNMEASURED
from capplan.scenario.scenario_file import LengthFields, Scenario, ScenarioFile, Traffic, lengths
from capplan.workload.length import Lengths, fixed
from capplan.workload.multiples import batch_arrival_cv, longest_of, mean_attempts, padding_fraction, sum_of
from capplan.workload.request_class import Images, Outside, RequestClass
from capplan.workload.sessions import Sessions


def with_multiples(reading: Reading, item: Traffic, index: int, described: RequestClass) -> RequestClass:
    """Return the class of all sequences of a line of traffic, from that of its requests.

    Parameters
    ----------
    reading : of the file
    item : line of traffic
    index : [-]
        of the line
    described : requests, each of a single sequence
    """
    at = f"traffic[{index}]"
    if item.reasoning_tokens is not None:
        refuse = partial(reading.refuse, ("traffic", index, "reasoning_tokens"))
        thought = lengths(item.reasoning_tokens, refuse)
        described = replace(described, output_tokens=sum_of(thought, described.output_tokens))
        words = "reasoning is independent of the answer after it; TTFT is that of the first reasoning token"
        reading.assume(f"{item.name}: {words}", f"{at}.reasoning_tokens")
    if item.padded_batch is not None:
        described = _padded(reading, item.padded_batch, at, described)
    samples, documents = item.samples or 1, item.documents or 1
    retries = item.retries
    attempts = float(mean_attempts(retries.invalid, retries.attempts)) if retries else 1.0
    of_prompt = samples * attempts
    sequences = documents * of_prompt
    if sequences == 1.0:
        return described
    if of_prompt > 1.0:
        reading.assume(
            f"{item.name}: a {'document' if documents > 1 else 'request'} is {of_prompt:.4g} sequences ({samples} samples x {attempts:.4g} attempts); samples arrive together, all but the "
            "first find its prompt in the cache; latencies and rates are those of a sequence",
            f"{at}.samples, {at}.retries",
        )
    if documents > 1:
        reading.assume(
            f"{item.name}: the {documents} documents of a request arrive together, each a prompt of its own; latencies and rates are those of one",
            f"{at}.documents",
        )
    rate, jobs = described.request_rate_per_s, described.job_requests
    return replace(
        described,
        request_rate_per_s=None if rate is None else rate * sequences,
        job_requests=None if jobs is None else jobs * sequences,
        arrival_cv=float(batch_arrival_cv(described.arrival_cv, samples * documents)),
        sequences_per_request=sequences,
        samples=float(samples),
        repeated_fraction=1.0 - 1.0 / of_prompt,
    )


def _padded(reading: Reading, batch: int, at: str, described: RequestClass) -> RequestClass:
    inputs, outputs = longest_of(described.input_tokens, batch), longest_of(described.output_tokens, batch)
    shares = [
        float(padding_fraction(item.mean_tokens, padded.mean_tokens))
        for item, padded in ((described.input_tokens, inputs), (described.output_tokens, outputs))
    ]
    reading.assume(
        f"{described.name}: prompts and outputs are padded to the longest of {batch}: {shares[0]:.1%} and {shares[1]:.1%} of their tokens",
        f"{at}.padded_batch",
    )
    return replace(described, input_tokens=inputs, output_tokens=outputs)


MOST_RATIO = 200
"""Largest ratio of the sides of an image that processors accept."""


def prompt_images(reading: Reading, item: Traffic, at: KeyPath) -> Images | None:
    """Return the images of a line of traffic; None where it has none."""
    images = item.images
    if images is None:
        return None
    if max(images.width, images.height) > MOST_RATIO * min(images.width, images.height):
        raise reading.refuse(
            (*at, "images"),
            f"{images.width} x {images.height} is over {MOST_RATIO} times as long as wide; were width and height of one image meant?",
        )
    return images


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
        if images.max_pixels is not None and rule.kind != "resized":
            raise InputError(
                f"{scenario.path}: traffic[{index}].images.max_pixels: {network.name} scales images to {rule.side_pixels} pixels, whatever their area\n"
                "  leave it out"
            )
        tokens = image_tokens(rule, images.width, images.height, images.max_pixels)
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
            item.images.max_pixels,
            item.images.count * (1.0 - item.repeated_fraction) * rate / sum(rates) / prompt_tokens,
        )
        for item, rate in zip(classes, rates, strict=True)
        if item.images is not None
    )
    return replace(network, image_work=work)


def with_outside(reading: Reading, item: Traffic, index: int, described: RequestClass) -> RequestClass:
    """Return the class of a line of traffic with what its requests take outside.

    Users and sessions come back later by as much; nothing of it is on a device.

    Parameters
    ----------
    reading : of the file
    item : line of traffic
    index : [-]
        of the line
    described : its requests, or the turns of its sessions
    """
    said = item.outside
    if said is None:
        return described
    calls = said.tool_calls or 0.0
    wait_s = said.time or 0.0
    if described.sessions is None:
        wait_s += calls * (said.tool_time or 0.0)
    else:
        turns = described.sessions.turns.mean_tokens
        calls *= (turns - 1.0) / turns
    outside = Outside(wait_s, said.usd_per_request or 0.0, calls, said.usd_per_tool_call or 0.0)
    key = f"traffic[{index}].outside"
    if described.sessions is not None:
        words = "between turns a session holds no slot and no KV of its own: its blocks stay in the prefix cache until they are evicted"
        reading.assume(f"{item.name}: {words}", key)
    if wait_s:
        reading.assume(
            f"{item.name}: every request waits {wait_s:g} s before its prompt is sent, always as long", key
        )
    think_s, sessions = described.think_time_s, described.sessions
    return replace(
        described,
        outside=outside,
        think_time_s=None if think_s is None else think_s + wait_s,
        sessions=sessions and replace(sessions, think_time_s=sessions.think_time_s + wait_s),
    )


def pooled_traffic(reading: Reading, file: ScenarioFile) -> list[Traffic]:
    """Return the lines of traffic, of a pooled model with the one step that answers a prompt in place of an output."""
    if file.runner != "pooling":
        return file.traffic
    reading.assume(ANSWERED, "runner")
    reading.assume(UNMEASURED, "slo.confidence")
    answered = dict.fromkeys(OF_OUTPUTS) | {"output_tokens": LengthFields(fixed=1)}
    return [item.model_copy(update=answered) for item in file.traffic]


MOST_TURNS = 1000
"""Mean turns of a session; with more, a draw of sessions no longer fits in memory."""


def sessions_of(
    reading: Reading, item: Traffic, index: int, first: Lengths, outputs: Lengths
) -> Sessions | None:
    """Return the sessions of a line of traffic; None where it has no turns.

    Parameters
    ----------
    reading : of the file
    item : line of traffic
    index : [-]
        of the line
    first, outputs : [tokens]
        prompt of the first turn, response of every turn
    """
    at: KeyPath = ("traffic", index)
    prefix = item.shared_prefix
    if prefix and (prefix.hit_fraction is None) == (item.turns is None):
        key = (*at, "shared_prefix", "hit_fraction")
        why = "follows from the turns; leave it out" if item.turns else "is missing, e.g. hit_fraction: 85 %"
        raise reading.refuse(key, why)
    if item.turns is None or item.added_tokens is None or item.think_time is None:
        return None
    turns = lengths(item.turns, partial(reading.refuse, (*at, "turns")))
    if turns.mean_tokens > MOST_TURNS:
        raise reading.refuse((*at, "turns"), f"a mean of {turns.mean_tokens:g} is above {MOST_TURNS}")
    if turns.kind == "fixed" and turns.mean_tokens != round(turns.mean_tokens):
        raise reading.refuse((*at, "turns"), f"{turns.mean_tokens:g} is not a whole number; give min and max")
    added = lengths(item.added_tokens, partial(reading.refuse, (*at, "added_tokens")))
    shared = int(prefix.tokens) if prefix else 0
    reading.assume(
        f"{item.name}: think times between turns are exponential, sessions start as a Poisson process, and a session "
        "sends all that was said before again",
        f"traffic[{index}].turns",
    )
    return Sessions(turns, first, added, outputs, item.think_time, shared)


def with_one_turn(sessions: Sessions) -> bool:
    """Return whether every session is a single request with nothing in common with others."""
    return float(sessions.turns.quantile(1.0)) <= 1.0 and not sessions.shared_tokens
