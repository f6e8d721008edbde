"""Vision and audio models that wrap a text model: a table of towers and projectors, one line for each kind.

The text part is read by the family of its own `model_type`. A tower that is not in the table is not counted, and a remark says so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from capplan.families import speech
from capplan.families.config import Config
from capplan.families.parts import audio, projectors, towers, vision
from capplan.families.parts.blocks import with_vision
from capplan.families.registry import family
from capplan.model.network import Network

Tower = Callable[[Config], int]
"""Parameters of the section of a tower."""
Projector = Callable[[Config, Config, int], int]
"""Parameters of what joins tower and text: the file, the section of the tower, hidden size of the text."""

_TOWERS: dict[str, Tower] = {
    "blip_2_qformer": audio.query_transformer,
    "clip_vision_model": towers.clip,
    "exaone4_5_vision": vision.qwen2_5_vision,
    "glm4v_moe_vision": vision.glm4v_vision,
    "glm_ocr_vision": vision.glm_ocr_vision,
    "glm4v_vision": vision.glm4v_vision,
    "granite_speech_encoder": audio.granite_speech,
    "hunyuan_vl_vision": towers.hunyuan,
    "idefics3_vision": towers.idefics3,
    "dots_vit": towers.dots_vit,
    "intern_vit_6b": towers.intern_vit,
    "minicpmv4_6_vision": towers.minicpm_vision,
    "interns1_vision": towers.internvl,
    "internvl_vision": towers.internvl,
    "parakeet": audio.parakeet,
    "parakeet_encoder": audio.parakeet,
    "phi4_multimodal_audio": audio.phi4,
    "pixtral": towers.pixtral,
    "phi4_multimodal_vision": towers.phi4,
    "qwen2_5_omni_audio_encoder": audio.qwen2_5_omni,
    "qwen2_5_omni_talker": speech.talker,
    "qwen2_5_omni_token2wav": speech.token_to_wave,
    "qwen2_5_omni_vision_encoder": vision.qwen2_5_vision,
    "qwen2_audio_encoder": audio.whisper,
    "qwen3_omni_moe_audio_encoder": audio.qwen3_omni,
    "qwen3_omni_moe_vision_encoder": vision.qwen3_vision,
    "qwen3_asr_audio_encoder": audio.qwen3_omni,
    "qwen3_asr_encoder": audio.qwen3_omni,
    "radio": vision.radio,
    "siglip2_vision_model": towers.siglip2,
    "siglip_vision_model": towers.siglip,
    "smolvlm_vision": towers.idefics3,
    "voxtral_encoder": audio.whisper,
    "voxtral_realtime_encoder": audio.voxtral_realtime,
}


_COPIES = (
    "dynamic_image_size", "force_image_size", "max_dynamic_patch", "min_dynamic_patch", "pad2square", "ps_version",
    "select_layer", "template", "use_backbone_lora", "use_llm_lora", "use_thumbnail", "downsample_ratio", "hidden_size", "vocab_size",
    "window_size", "num_image_tokens", "patch_size", "norm_mean", "norm_std", "image_tag_type", "video_pruning_rate",
)  # fmt: skip
"""Keys at the top level of some files that repeat a section or say how many tokens an image has."""


_OLDER_NAMES = {"audio_config": ("sound_config",)}
"""Section of a tower -> other names of it."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """How a file wraps its text model."""

    towers: Mapping[str, Projector | None]
    """Section of a tower -> what joins it to the text; None where the tower is not counted."""
    text: tuple[str, ...] = ("text_config",)
    """Names of the section of the text model; none where its keys are those of the file."""
    text_type: str = ""
    """Its model_type, where it has no section."""
    tower_type: str = ""
    """Kind of its towers where neither their sections nor a class say it."""


def _image(projector: Projector | None) -> Wrapper:
    return Wrapper({"vision_config": projector})


_WRAPPERS = {
    **dict.fromkeys(("llava", "llava_llama", "llava_mistral"), _image(projectors.two_layers)),
    "llava_next": _image(projectors.two_layers_and_newline),
    "paligemma": _image(projectors.one_layer),
    "idefics3": _image(projectors.shuffled_one_layer),
    "smolvlm": _image(projectors.shuffled_one_layer),
    "internvl": _image(projectors.internvl),
    "internvl_chat": Wrapper({"vision_config": projectors.internvl}, text=("llm_config",)),
    "minicpmv4_6": _image(projectors.minicpm_merger),
    "minicpmv4_7": _image(None),
    "interns1": _image(projectors.internvl),
    "dots_ocr": Wrapper({"vision_config": projectors.nothing}, text=(), text_type="qwen2", tower_type="dots_vit"),
    "Llama_Nemotron_Nano_VL": Wrapper({"vision_config": None}, text=("llm_config",), text_type="llama"),
    "NemotronH_Nano_VL_V2": Wrapper({"vision_config": projectors.nemotron}, text=("llm_config",), tower_type="radio"),
    "hunyuan_vl": Wrapper({"vision_config": projectors.hunyuan}, text_type="hunyuan_vl_text", tower_type="hunyuan_vl_vision"),
    "voxtral_realtime": Wrapper({"audio_config": projectors.voxtral_realtime}),
    "lfm2_vl": _image(projectors.lfm2_vl),
    "cohere2_vision": _image(projectors.cohere2_vision),
    "aya_vision": _image(projectors.aya_vision),
    "glm4v": _image(projectors.nothing),
    "glm_ocr": _image(projectors.nothing),
    "glm46v": _image(projectors.nothing),
    "glm4v_moe": _image(projectors.nothing),
    "exaone4_5": _image(projectors.nothing),
    "qwen2_audio": Wrapper({"audio_config": projectors.one_matrix}),
    "voxtral": Wrapper({"audio_config": projectors.voxtral}),
    "granite_speech": Wrapper(
        {"encoder_config": projectors.nothing, "projector_config": projectors.granite_speech}
    ),
    "phi4_multimodal": Wrapper(
        {"vision_config": projectors.phi4_vision, "audio_config": projectors.phi4_audio}, text=(), text_type="phi3"
    ),
    "nemotron_h_omni": Wrapper(
        {"vision_config": projectors.nemotron_vision, "audio_config": projectors.nemotron_audio},
        text=("text_config", "llm_config"),
    ),
    "qwen3_asr": Wrapper({"audio_config": projectors.nothing}, text=("text_config", "thinker_config")),
    "qwen3_asr_thinker": Wrapper({"audio_config": projectors.nothing}),
    "qwen2_5_omni_thinker": Wrapper(
        {"vision_config": projectors.nothing, "audio_config": projectors.nothing}
    ),
    "qwen3_omni_moe_thinker": Wrapper(
        {"vision_config": projectors.nothing, "audio_config": projectors.nothing}
    ),
    "qwen2_5_omni": Wrapper(
        {"talker_config": projectors.nothing, "token2wav_config": projectors.nothing}, text=("thinker_config",)
    ),
    "qwen3_omni_moe": Wrapper({"talker_config": None, "code2wav_config": None}, text=("thinker_config",)),
    "idefics2": Wrapper({"vision_config": None, "perceiver_config": None}),
    **dict.fromkeys(
        (
            "deepseek_vl", "got_ocr2", "granite4_vision", "lighton_ocr", "llava_next_video", "llava_onevision",
            "ovis2", "paddleocr_vl", "perception_lm", "video_llama_3", "video_llava", "vipllava",
        ),
        _image(None),
    ),
}  # fmt: skip


def read_wrapped(config: Config, name: str) -> Network:
    """Return the text model of a file, with the towers whose kind is known."""
    wrapper = _WRAPPERS[config.model_type]
    if config.model_type in _ORIGINALS and config.stated("mm_vision_tower"):
        return _original_llava(config, name)
    text = _text_of(config, wrapper)
    text.unused("num_image_tokens")
    network = _text_network(config, text, wrapper.text_type or text.model_type, name)
    config.unused(*wrapper.text, *_COPIES)
    size = network.vision_parameters
    if text.model_type == f"{config.model_type}_thinker" and "thinker_config" in wrapper.text[1:]:
        return with_vision(network, config, size)
    for key, projector in wrapper.towers.items():
        size += _tower(config, key, projector, network.hidden_size, wrapper.tower_type)
    return with_vision(network, config, size)


def _text_of(config: Config, wrapper: Wrapper) -> Config:
    """Return the section of the text model; a file without one has its keys at the top level, where that is known of its type."""
    section = config.section(*wrapper.text) if wrapper.text else config
    if section is not None:
        return section
    if not wrapper.text_type:
        return config.needed_section(*wrapper.text)
    return replace(config, values={**config.values, "model_type": wrapper.text_type}, stated_class=None)


_ORIGINALS = {"llava": "llama", "llava_llama": "llama", "llava_mistral": "mistral"}
"""Types of LLaVA's own code, whose text keys stand at the top level -> that of the text."""


def _original_llava(config: Config, name: str) -> Network:
    """Return a LLaVA 1.5 or 1.6 as its own code saves it: the file names its tower and has no section."""
    network = _text_network(config, config, _ORIGINALS[config.model_type], name)
    config.unused(
        *(key for key in config.values if key.startswith(("mm_", "tune_", "image_", "freeze_", "use_mm_")))
    )
    config.unused("unfreeze_mm_vision_tower", "tokenizer_padding_side", "tokenizer_model_max_length")
    config.uncounted(
        f"{config.text('mm_vision_tower', default='')}: the tower that the file names is not counted"
    )
    size = projectors.original_llava(config, config, network.hidden_size)
    if "unpad" in config.text("mm_patch_merge_type", default="flat"):
        size += network.hidden_size  # a line break
    return with_vision(network, config, size)


def _text_network(config: Config, text: Config, kind: str, name: str) -> Network:
    read = family(kind)
    if read is None or (read is read_wrapped and kind != f"{config.model_type}_thinker"):
        raise text.error("model_type", f"{kind!r} is not modelled")
    return read(text, name)


def _tower(config: Config, key: str, projector: Projector | None, text: int, stated_kind: str) -> int:
    """Return the parameters of a tower and of what joins it to a text of that hidden size; 0 with a remark for an unknown one."""
    section = config.section(key, *_OLDER_NAMES.get(key, ()))
    config.unused(key, *_OLDER_NAMES.get(key, ()))
    usual = None if config.stated_class is None else config.stated_class.sections.get(key)
    if section is None:
        if usual or projector is None:
            config.uncounted(f"{key} is missing: its tower is not counted")
        return 0
    # some files repeat the model_type of the whole in their sections
    kind = (section.model_type if section.model_type != config.model_type else usual) or stated_kind
    if projector is None or kind not in _TOWERS:
        section.unused(*section.values)
        config.uncounted(f"the tower of {key} is not counted")
        return 0
    section.unused("num_attention_heads", "num_heads")
    return _TOWERS[kind](section) + projector(config, section, text)
