"""LLaVA-NeXT over any text model we read, with a SigLIP tower (Granite Vision)."""

from capplan.families.config import Config
from capplan.families.parts.blocks import with_vision
from capplan.families.parts.vision import siglip
from capplan.families.registry import Family, families
from capplan.model.network import Network


def read_llava_next(config: Config, name: str) -> Network:
    """Return the text model with tower and projector counted; the projector reads several layers of the tower."""
    text = config.section("text_config")
    if text is None:
        raise config.missing("text_config")
    if text.model_type not in families() or text.model_type == "llava_next":
        raise text.error("model_type", f"{text.model_type!r} is not modelled")
    network = families()[text.model_type](text, name)
    vision = config.section("vision_config")
    if vision is None or vision.model_type != "siglip_vision_model":
        found = vision.model_type if vision else None
        raise config.error(
            "vision_config", f"a tower of type {found!r} is not modelled", "known: siglip_vision_model"
        )
    return with_vision(network, config, _tower_parameters(config, vision, network.hidden_size))


def _tower_parameters(config: Config, vision: Config, text_hidden: int) -> int:
    width = vision.dimension("hidden_size")
    tower = siglip(vision, 0) - width  # without the Gemma projector, of which only its norm is left
    key, layers = config.found("vision_feature_layer")
    if layers is not None and not isinstance(layers, int | list):
        raise config.error(key, f"{layers!r} is not a layer or a list of layers")
    read = len(layers) if isinstance(layers, list) else 1
    projector = (read * width + 1) * text_hidden + (text_hidden + 1) * text_hidden
    return tower + projector + text_hidden


FAMILIES: dict[str, Family] = {"llava_next": read_llava_next}
