"""Vision, audio and speech models that wrap a language model: a table of towers and projectors, one line for each kind.

The text part is read by the family of its own `model_type`. A tower that is not in the table is not counted, and a remark says so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from capplan.families.config import Config
from capplan.families.parts import audio, towers, vision
from capplan.families.parts.blocks import with_vision
from capplan.families.parts.towers import linear
from capplan.families.registry import family
from capplan.model.network import Network
from capplan.model.parameters import parameters


def _speaks(section: Config) -> bool:
    """Return whether the file switches speech on; without it none of its keys count."""
    on = section.outer is None or section.outer.flag("enable_audio_output", default=True)
    if not on:
        section.unused(*section.values)
    return on


def talker(section: Config) -> int:
    """Return the parameters of the talker: a Qwen 2 that reads embeddings of the thinker and ends in codes."""
    read = family("qwen2")
    if read is None or not _speaks(section):
        return 0
    section.unused("position_id_per_seconds", "seconds_per_chunk", "spatial_merge_size")
    network = read(section, "talker")
    wide = section.dimension("embedding_size")
    embedded = (wide - network.hidden_size) * network.vocabulary_size
    return parameters(network) + embedded + linear(wide, network.hidden_size)


def token_to_wave(section: Config) -> int:
    """Return the parameters of the diffusion transformer from codes to spectra, and of the vocoder from there to sound."""
    if not _speaks(section):
        return 0
    return _diffusion(section.needed_section("dit_config")) + _vocoder(
        section.needed_section("bigvgan_config")
    )


def _diffusion(dit: Config) -> int:
    hidden = dit.dimension("hidden_size")
    spectrum = dit.dimension("mel_dim")
    code = dit.dimension("emb_dim")
    inner = dit.dimension("head_dim") * dit.dimension("num_attention_heads")
    wide = int(hidden * dit.ratio("ff_mult"))
    time = linear(256, hidden) + linear(hidden, hidden)
    speaker = dit.dimension("enc_dim")
    joined = linear(spectrum + speaker + dit.dimension("enc_emb_dim") + code, hidden)
    block = linear(hidden, 6 * hidden) + 3 * linear(hidden, inner) + linear(inner, hidden)
    block += linear(hidden, wide) + linear(wide, hidden)
    tower = time + (dit.dimension("num_embeds") + 1) * code + joined + dit.layers() * block
    return (
        tower
        + _speaker_encoder(dit, spectrum, speaker)
        + linear(hidden, 2 * hidden)
        + linear(hidden, spectrum)
    )


def _speaker_encoder(dit: Config, spectrum: int, outputs: int) -> int:
    """Return the parameters of ECAPA-TDNN, which tells voices apart."""
    channels = dit.whole_numbers("enc_channels") or ()
    kernels = dit.whole_numbers("enc_kernel_sizes") or ()
    if len(channels) < 2 or len(channels) != len(kernels):
        raise dit.error("enc_channels", "must have as many entries as enc_kernel_sizes, two at least")
    parts = dit.dimension("enc_res2net_scale")
    squeezed = dit.dimension("enc_se_channels")
    attended = dit.dimension("enc_attention_channels")
    total = linear(spectrum * kernels[0], channels[0])
    for (before, wide), kernel in zip(pairwise(channels[:-1]), kernels[1:-1], strict=True):
        part = wide // parts
        total += linear(before, wide) + (parts - 1) * linear(part * kernel, part) + linear(wide, wide)
        total += linear(wide, squeezed) + linear(squeezed, wide)
    last = channels[-1]
    total += linear(last * kernels[-1], last) + linear(3 * last, attended) + linear(attended, last)
    return total + linear(2 * last, outputs)


def _vocoder(vocoder: Config) -> int:
    """Return the parameters of BigVGAN: every step doubles the rate and halves the channels."""
    channels = vocoder.dimension("upsample_initial_channel")
    kernels = vocoder.whole_numbers("resblock_kernel_sizes") or ()
    upsampling = vocoder.whole_numbers("upsample_kernel_sizes") or ()
    for key, others in (("upsample_rates", upsampling), ("resblock_dilation_sizes", kernels)):
        if len(vocoder.items(key) or ()) != len(others):
            raise vocoder.error(key, f"has not {len(others)} entries, as the list of its kernel sizes")
    total = linear(7 * vocoder.dimension("mel_dim"), channels)
    for kernel in upsampling:
        before, channels = channels, channels // 2
        total += linear(before * kernel, channels)
        total += sum(6 * (linear(channels * one, channels) + 2 * channels) for one in kernels)
    return total + 2 * channels + 7 * channels


Tower = Callable[[Config], int]
"""Parameters of the section of a tower."""
Projector = Callable[[Config, Config, int], int]
"""Parameters of what joins tower and text: the file, the section of the tower, hidden size of the text."""

_TOWERS: dict[str, Tower] = {
    "apertus1p5_vision_tokenizer": towers.apertus,
    "dots3_note_audio_encoder": audio.dots3,
    "dots3_note_vision_encoder": towers.dots3,
    "hy_v4_vl_vision": towers.hy4,
    "inkling2_vision": towers.inkling2,
    "timm_wrapper": towers.perception,
    "wavtokenizer_encoder": audio.wav_tokenizer,
    "blip_2_qformer": audio.query_transformer,
    "clip_vision_model": towers.clip,
    "exaone4_5_vision": vision.qwen2_5_vision,
    "glm4v_moe_vision": vision.glm4v_vision,
    "glm_ocr_vision": vision.glm_ocr_vision,
    "glm4v_vision": vision.glm4v_vision,
    "granite_docling_vision": towers.granite_docling,
    "granite_speech_encoder": audio.granite_speech,
    "hunyuan_vl_vision": towers.hunyuan,
    "got_ocr2_vision": towers.got_ocr,
    "idefics2_perceiver": lambda _: 0,
    "idefics2_vision": towers.idefics3,
    "idefics3_vision": towers.idefics3,
    "dots_vit": towers.dots_vit,
    "intern_vit_6b": towers.intern_vit,
    "lfm3_vl_vision": towers.lfm3_vision,
    "minicpmv4_6_vision": towers.minicpm_vision,
    "minicpmv4_7_vision": towers.minicpm_vision,
    "ovis2_vision": towers.aimv2,
    "paddleocr_vl_vision": towers.idefics3,
    "interns1_vision": towers.internvl,
    "internvl_vision": towers.internvl,
    "parakeet": audio.parakeet,
    "parakeet_encoder": audio.parakeet,
    "phi4_multimodal_audio": audio.phi4,
    "pixtral": towers.pixtral,
    "phi4_multimodal_vision": towers.phi4,
    "qwen2_5_omni_audio_encoder": audio.qwen2_5_omni,
    "qwen2_5_omni_talker": talker,
    "qwen2_5_omni_token2wav": token_to_wave,
    "qwen2_5_vl_vision": vision.qwen2_5_vision,
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
    "video_llama_3_vision": towers.without_positions,
    "voxtral_encoder": audio.whisper,
    "voxtral_realtime_encoder": audio.voxtral_realtime,
}


_COPIES = (
    "dynamic_image_size", "force_image_size", "max_dynamic_patch", "min_dynamic_patch", "pad2square", "ps_version",
    "select_layer", "template", "use_backbone_lora", "use_llm_lora", "use_thumbnail", "downsample_ratio", "hidden_size", "vocab_size",
    "window_size", "num_image_tokens", "patch_size", "norm_mean", "norm_std", "image_tag_type", "video_pruning_rate",
    "image_token_offset", "audio_token_offset",
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
    **dict.fromkeys(("llava", "llava_llama", "llava_mistral"), _image(vision.two_layers)),
    **dict.fromkeys(("llava_next", "llava_next_video", "llava_onevision"), _image(vision.two_layers_and_newline)),
    "video_llava": _image(vision.video_llava),
    "vipllava": _image(vision.vip_llava),
    **dict.fromkeys(("deepseek_vl", "video_llama_3"), _image(vision.phi4_vision)),
    "got_ocr2": _image(vision.got_ocr),
    "ovis2": _image(vision.ovis2),
    "lighton_ocr": _image(vision.lighton_ocr),
    "paddleocr_vl": _image(vision.paddle_ocr),
    "paligemma": _image(vision.one_layer),
    "idefics3": _image(vision.shuffled_one_layer),
    "smolvlm": _image(vision.shuffled_one_layer),
    "internvl": _image(vision.internvl),
    "internvl_chat": Wrapper({"vision_config": vision.internvl}, text=("llm_config",)),
    **dict.fromkeys(("minicpmv4_6", "minicpmv4_7"), _image(vision.minicpm_merger)),
    "interns1": _image(vision.internvl),
    "dots_ocr": Wrapper({"vision_config": vision.nothing}, text=(), text_type="qwen2", tower_type="dots_vit"),
    "Llama_Nemotron_Nano_VL": Wrapper({"vision_config": None}, text=("llm_config",), text_type="llama"),
    "NemotronH_Nano_VL_V2": Wrapper({"vision_config": vision.nemotron}, text=("llm_config",), tower_type="radio"),
    "hunyuan_vl": Wrapper({"vision_config": vision.hunyuan}, text_type="hunyuan_vl_text", tower_type="hunyuan_vl_vision"),
    "voxtral_realtime": Wrapper({"audio_config": vision.voxtral_realtime}),
    "granite_docling": _image(vision.granite_docling),
    "hyperclovax_vision_v2": _image(vision.hyperclovax),
    "lfm2_vl": _image(vision.lfm2_vl),
    "lfm3_vl": _image(vision.lfm3_vl),
    "cohere2_vision": _image(vision.cohere2_vision),
    "aya_vision": _image(vision.aya_vision),
    "glm4v": _image(vision.nothing),
    "glm_ocr": _image(vision.nothing),
    "glm46v": _image(vision.nothing),
    "glm4v_moe": _image(vision.nothing),
    "exaone4_5": _image(vision.nothing),
    "qwen2_audio": Wrapper({"audio_config": vision.one_matrix}),
    "voxtral": Wrapper({"audio_config": vision.voxtral}),
    "granite_speech": Wrapper(
        {"encoder_config": vision.nothing, "projector_config": vision.granite_speech}
    ),
    "phi4_multimodal": Wrapper(
        {"vision_config": vision.phi4_vision, "audio_config": vision.phi4_audio}, text=(), text_type="phi3"
    ),
    "nemotron_h_omni": Wrapper(
        {"vision_config": vision.nemotron_vision, "audio_config": vision.nemotron_audio},
        text=("text_config", "llm_config"),
    ),
    "qwen3_asr": Wrapper({"audio_config": vision.nothing}, text=("text_config", "thinker_config")),
    "qwen3_asr_thinker": Wrapper({"audio_config": vision.nothing}),
    "qwen2_5_omni_thinker": Wrapper(
        {"vision_config": vision.nothing, "audio_config": vision.nothing}
    ),
    "qwen3_omni_moe_thinker": Wrapper(
        {"vision_config": vision.nothing, "audio_config": vision.nothing}
    ),
    "qwen2_5_omni": Wrapper(
        {"talker_config": vision.nothing, "token2wav_config": vision.nothing}, text=("thinker_config",)
    ),
    "qwen3_omni_moe": Wrapper({"talker_config": None, "code2wav_config": None}, text=("thinker_config",)),
    "idefics2": Wrapper(
        {"vision_config": vision.idefics2, "perceiver_config": vision.idefics2_perceiver}
    ),
    "granite4_vision": _image(None),
    "perception_lm": _image(vision.perception),
    **dict.fromkeys(("hy_v4_vl", "inkling2"), _image(vision.nothing)),
    "apertus1p5": Wrapper({"vision_config": vision.nothing, "audio_config": vision.nothing}),
    "dots3_note": Wrapper(
        {"vision_config": vision.nothing, "audio_config": vision.nothing}, text_type="dots3_note_text"
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
    config.uncounted(f"{config.text('mm_vision_tower')}: the tower that the file names is not counted")
    size = vision.original_llava(config, config, network.hidden_size)
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
