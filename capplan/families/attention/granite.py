"""Granite with experts, and Granite Vision (LLaVA-NeXT); the dense Granite is a Llama with scalar multipliers."""

from capplan.families.config import Config
from capplan.families.parts.blocks import heads, with_vision
from capplan.families.parts.stacks import Traits, block_decoder, mixture
from capplan.families.parts.vision import siglip
from capplan.families.registry import family
from capplan.model.network import Network


def read_granite_moe(config: Config, name: str) -> Network:
    """Return a Granite with experts in every layer; the shared variant has a dense part beside them."""
    bias = config.flag("attention_bias", default=False)
    shape = heads(config)
    part = mixture(
        config,
        shape.hidden_size,
        experts=config.dimension("num_local_experts"),
        per_token=config.dimension("num_experts_per_tok", default=2),
        intermediate=config.dimension("intermediate_size"),
        shared=config.count("shared_intermediate_size"),
    )
    return block_decoder(
        config, name, Traits(qkv_bias=bias, output_bias=bias), [part] * config.layers(), shape=shape
    )


def read_llava_next(config: Config, name: str) -> Network:
    """Return the text model, with tower and projector counted; the projector reads several layers of the tower."""
    text = config.needed_section("text_config")
    read = family(text.model_type)
    if read is None or text.model_type == "llava_next":
        raise text.error("model_type", f"{text.model_type!r} is not modelled")
    network = read(text, name)
    vision = config.section("vision_config")
    if vision is None or vision.model_type != "siglip_vision_model":
        vision_type = vision.model_type if vision else None
        raise config.error(
            "vision_config", f"a tower of type {vision_type!r} is not modelled", "known: siglip_vision_model"
        )
    return with_vision(network, config, _tower_parameters(config, vision, network.hidden_size))


def _tower_parameters(config: Config, vision: Config, text_hidden: int) -> int:
    width = vision.dimension("hidden_size")
    tower = siglip(vision, 0) - width  # without the Gemma projector, except for its norm
    key, layers = config.first_present("vision_feature_layer")
    if layers is not None and not isinstance(layers, int | list):
        raise config.error(key, f"{layers!r} is not a layer or a list of layers")
    read = len(layers) if isinstance(layers, list) else 1
    projector = (read * width + 1) * text_hidden + (text_hidden + 1) * text_hidden
    return tower + projector + text_hidden
