"""Vision and audio models that wrap a text model: a table of towers and projectors, one line for each kind.

The text part is read by the family of its own `model_type`. A tower that is not in the table is not counted, and a remark says so.
"""

from collections.abc import Callable
from dataclasses import dataclass

from capplan.families.config import Config
from capplan.families.parts import projectors, towers
from capplan.families.parts.blocks import with_vision
from capplan.families.registry import family
from capplan.model.network import Network

Tower = Callable[[Config], int]
"""Parameters of the section of a tower."""
Projector = Callable[[Config, Config, int], int]
"""Parameters of what joins tower and text: the file, the section of the tower, hidden size of the text."""

_TOWERS: dict[str, Tower] = {
    "clip_vision_model": towers.clip,
    "siglip_vision_model": towers.siglip,
    "siglip2_vision_model": towers.siglip2,
    "idefics3_vision": towers.idefics3,
    "smolvlm_vision": towers.idefics3,
    "internvl_vision": towers.internvl,
}


_COPIES = (
    "dynamic_image_size", "force_image_size", "max_dynamic_patch", "min_dynamic_patch", "pad2square", "ps_version",
    "select_layer", "template", "use_backbone_lora", "use_llm_lora", "use_thumbnail", "downsample_ratio", "hidden_size", "vocab_size",
    "window_size", "num_image_tokens",
)  # fmt: skip
"""Keys at the top level of some files that repeat a section or say how many tokens an image has."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """How a file wraps its text model."""

    projector: Projector | None = None
    """None: neither tower nor projector is counted."""
    text: tuple[str, ...] = ("text_config",)
    """Sections that lead to the text model."""
    tower: str = "vision_config"
    others: tuple[str, ...] = ()
    """Further sections that are not counted."""


_WRAPPERS = {
    "llava": Wrapper(projectors.two_layers),
    "llava_next": Wrapper(projectors.two_layers_and_newline),
    "paligemma": Wrapper(projectors.one_layer),
    "idefics3": Wrapper(projectors.shuffled_one_layer),
    "smolvlm": Wrapper(projectors.shuffled_one_layer),
    "internvl": Wrapper(projectors.internvl),
    "internvl_chat": Wrapper(text=("llm_config",)),
    "lfm2_vl": Wrapper(projectors.lfm2_vl),
    "cohere2_vision": Wrapper(projectors.cohere2_vision),
    "aya_vision": Wrapper(projectors.aya_vision),
    "qwen2_audio": Wrapper(tower="audio_config"),
    "qwen2_5_omni": Wrapper(
        text=("thinker_config", "text_config"), others=("talker_config", "token2wav_config")
    ),
    "qwen2_5_omni_thinker": Wrapper(others=("audio_config",)),
    "qwen3_omni_moe": Wrapper(
        text=("thinker_config", "text_config"), others=("talker_config", "code2wav_config")
    ),
    "qwen3_omni_moe_thinker": Wrapper(others=("audio_config",)),
    "glm4v": Wrapper(),
    "glm46v": Wrapper(),
    "exaone4_5": Wrapper(),
    "granite_speech": Wrapper(tower="encoder_config", others=("projector_config",)),
    "voxtral": Wrapper(tower="audio_config"),
    "llava_onevision": Wrapper(),
    "llava_next_video": Wrapper(),
    "video_llava": Wrapper(),
    "vipllava": Wrapper(),
    "ovis2": Wrapper(),
    "got_ocr2": Wrapper(),
    "lighton_ocr": Wrapper(),
    "perception_lm": Wrapper(),
    "video_llama_3": Wrapper(),
    "granite4_vision": Wrapper(),
    "idefics2": Wrapper(others=("perceiver_config",)),
    "deepseek_vl": Wrapper(),
    "glm_ocr": Wrapper(),
    "nemotron_h_omni": Wrapper(others=("audio_config", "sound_config")),
}


def read_wrapped(config: Config, name: str) -> Network:
    """Return the text model of a file, with the tower where its kind is known."""
    wrapper = _WRAPPERS[config.model_type]
    text = config
    for key in wrapper.text:
        text = text.needed_section(key)
    text.unused("num_image_tokens")
    network = _text_network(text, name)
    config.unused(*wrapper.others, *wrapper.text[:1], *_COPIES)
    for key in wrapper.others:
        if config.values.get(key):
            config.uncounted(f"{key} is not counted")
    tower = config.section(wrapper.tower) if len(wrapper.text) == 1 else None
    if wrapper.projector is None or tower is None or tower.model_type not in _TOWERS:
        config.unused(wrapper.tower)
        _ignore(tower)
        config.uncounted(f"the tower of {wrapper.tower} is not counted")
        return with_vision(network, config, 0)
    tower.unused("num_attention_heads", "num_heads")
    size = _TOWERS[tower.model_type](tower) + wrapper.projector(config, tower, network.hidden_size)
    return with_vision(network, config, size)


def _text_network(text: Config, name: str) -> Network:
    kind = text.model_type
    read = family(kind)
    if read is None or read is read_wrapped:
        raise text.error("model_type", f"{kind!r} is not modelled")
    return read(text, name)


def _ignore(tower: Config | None) -> None:
    if tower is not None:
        tower.unused(*tower.values)
