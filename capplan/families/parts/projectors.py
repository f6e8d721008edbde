"""What joins a vision tower to a text model, counted only: parameters by file, section of the tower and hidden size of the text."""

import re

from capplan.families.config import Config
from capplan.families.parts.towers import linear


def two_layers(config: Config, tower: Config, text: int) -> int:
    """Return LLaVA's projector: two matrices; the first reads one layer of the tower or several."""
    key, layers = config.first_present("vision_feature_layer")
    if layers is not None and not isinstance(layers, int | list):
        raise config.error(key, f"{layers!r} is not a layer or a list of layers")
    read = len(layers) if isinstance(layers, list) else 1
    bias = config.flag("multimodal_projector_bias", default=True)
    width = tower.dimension("hidden_size")
    return linear(read * width, text, bias=bias) + linear(text, text, bias=bias)


def two_layers_and_newline(config: Config, tower: Config, text: int) -> int:
    """Return the projector of LLaVA-NeXT, with the embedding of a line break."""
    return two_layers(config, tower, text) + text


def one_layer(config: Config, tower: Config, text: int) -> int:
    """Return PaliGemma's projector: one matrix."""
    return linear(tower.dimension("hidden_size"), config.dimension("projection_dim", default=text))


def shuffled_one_layer(config: Config, tower: Config, text: int) -> int:
    """Return the connector of Idefics 3: one matrix that reads a square of patches."""
    return tower.dimension("hidden_size") * config.dimension("scale_factor", default=2) ** 2 * text


def internvl(config: Config, tower: Config, text: int) -> int:
    """Return InternVL's projector: a norm and two matrices."""
    inputs = tower.dimension("hidden_size") * int(1 / config.ratio("downsample_ratio", default=0.5)) ** 2
    return 2 * inputs + linear(inputs, text) + linear(text, text)


def lfm2_vl(config: Config, tower: Config, text: int) -> int:
    """Return the projector of LFM2-VL: perhaps a norm, then two matrices."""
    inputs = tower.dimension("hidden_size") * config.dimension("downsample_factor", default=2) ** 2
    wide = config.dimension("projector_hidden_size", default=2560)
    bias = config.flag("projector_bias", default=True)
    norm = 2 * inputs if config.flag("projector_use_layernorm", default=True) else 0
    return norm + linear(inputs, wide, bias=bias) + linear(wide, text, bias=bias)


def cohere2_vision(config: Config, tower: Config, text: int) -> int:
    """Return the projector of Command A Vision: two matrices around a gate."""
    inputs = tower.dimension("hidden_size") * config.dimension("downsample_factor", default=2) ** 2
    wide = config.dimension("alignment_intermediate_size", default=36864)
    return linear(inputs, wide) + linear(wide // 2, text)


def aya_vision(config: Config, tower: Config, text: int) -> int:
    """Return the projector of Aya Vision: a norm, then two matrices around a gate."""
    inputs = tower.dimension("hidden_size") * config.dimension("downsample_factor", default=2) ** 2
    wide = config.dimension("alignment_intermediate_size", default=text)
    return 2 * inputs + linear(inputs, wide) + linear(wide // 2, text)


def nothing(_config: Config, _tower: Config, _text: int) -> int:
    """Return 0: the tower ends in what joins it to the text."""
    return 0


def one_matrix(_config: Config, tower: Config, text: int) -> int:
    """Return the projector of Qwen 2 Audio: one matrix."""
    return linear(tower.dimension("hidden_size"), text)


def voxtral(_config: Config, tower: Config, text: int) -> int:
    """Return the projector of Voxtral: two matrices without biases; the first reads as many frames as the feed-forward is wide."""
    return tower.dimension("intermediate_size") * text + text * text


def voxtral_realtime(config: Config, tower: Config, text: int) -> int:
    """Return the projector of Voxtral Realtime: two matrices without biases; the first reads several frames."""
    frames = config.dimension("downsample_factor", default=4)
    return frames * tower.dimension("hidden_size") * text + text * text


def granite_speech(config: Config, queries: Config, text: int) -> int:
    """Return the queries of Granite Speech's Q-Former and the matrix behind it; the adapter of the text is a separate file."""
    config.unused("has_lora_adapter")
    hidden = queries.dimension("hidden_size")
    return config.dimension("window_size") // config.dimension("downsample_rate") * hidden + linear(
        hidden, text
    )


def phi4_vision(_config: Config, tower: Config, text: int) -> int:
    """Return the projector of Phi-4 Multimodal's images: two matrices."""
    return linear(tower.dimension("hidden_size"), text) + linear(text, text)


def phi4_audio(_config: Config, tower: Config, text: int) -> int:
    """Return the projectors of Phi-4 Multimodal's sound: two matrices for sound only and two next to an image."""
    frames = tower.dimension("downsample_rate", default=1)
    return 2 * (linear(frames * tower.dimension("hidden_size"), text) + linear(text, text))


def nemotron_vision(config: Config, tower: Config, text: int) -> int:
    """Return what joins Nemotron Omni's tower to the text: frames of video into it, a norm and two matrices out of it."""
    tower.unused("video_temporal_patch_size")
    frames = tower.dimension("num_channels") * tower.dimension("patch_size") ** 2
    frames *= config.count("video_temporal_patch_size")
    return frames * tower.dimension("hidden_size") + nemotron(config, tower, text)


def nemotron(config: Config, _tower: Config, text: int) -> int:
    """Return the projector of Nemotron's images: a norm and two matrices.

    Another norm stands before them where the text predicts several tokens.
    """
    hidden = config.dimension("vision_hidden_size", "vit_hidden_size")
    inputs = hidden * int(1 / config.ratio("downsample_ratio", default=0.5)) ** 2
    wide = config.dimension("projector_hidden_size")
    several = config.needed_section("text_config", "llm_config").count("num_nextn_predict_layers")
    return inputs + inputs * wide + wide * text + (2 * hidden if several else 0)


def hunyuan(_config: Config, tower: Config, text: int) -> int:
    """Return the merger of Hunyuan OCR: a convolution over squares of patches, two matrices, two norms, four marks of an image."""
    hidden, merge = (
        tower.dimension("hidden_size", default=1152),
        tower.dimension("spatial_merge_size", default=2),
    )
    merger = (
        linear(merge * merge * hidden, 2 * hidden) + linear(2 * hidden, 4 * hidden) + linear(4 * hidden, text)
    )
    return merger + hidden + text + 4 * hidden + 3 * text


def nemotron_audio(_config: Config, tower: Config, text: int) -> int:
    """Return the projector of Nemotron Omni's sound: a norm and two matrices."""
    hidden = tower.dimension("hidden_size", default=1024)
    wide = tower.dimension("projection_hidden_size")
    bias = tower.flag("projection_bias", default=False)
    return hidden + linear(hidden, wide, bias=bias) + linear(wide, text, bias=bias)


def minicpm_merger(config: Config, tower: Config, text: int) -> int:
    """Return the merger of MiniCPM-V 4.6: each time four patches into one, the last time into the text."""
    config.unused(
        "insert_layer_id", "drop_vision_last_layer", "merge_kernel_size", "image_size", "patch_size"
    )
    hidden = tower.dimension("hidden_size", default=768)
    four = 4 * hidden
    each = 2 * four + linear(four, four)
    times = config.dimension("merger_times", default=1)
    return times * each + (times - 1) * linear(four, hidden) + linear(four, text)


def original_llava(config: Config, _tower: Config, text: int) -> int:
    """Return the projector of LLaVA's own code: as many matrices as `mm_projector_type` says."""
    kind = config.text("mm_projector_type", default="linear")
    inputs = config.dimension("mm_hidden_size")
    if kind == "linear":
        return linear(inputs, text)
    depth = re.fullmatch(r"mlp(\d)x_gelu", kind)
    if depth is None:
        raise config.error("mm_projector_type", f"{kind!r} is not modelled", "allowed: linear, mlp2x_gelu")
    return linear(inputs, text) + (int(depth[1]) - 1) * linear(text, text)


def resampler(config: Config, tower: Config, text: int) -> int:
    """Return the resampler of MiniCPM-V: learned queries attend to what the tower gives out."""
    inputs = tower.dimension("hidden_size")
    into = 0 if inputs == text else inputs * text
    return (
        config.dimension("query_num", default=64) * text
        + text * text
        + 6 * text
        + into
        + 4 * linear(text, text)
    )


def minicpmo_audio(_config: Config, tower: Config, text: int) -> int:
    """Return the projector of MiniCPM-o's sound: two matrices; the first reads a quarter of the width of the feed-forward."""
    inputs = tower.dimension("encoder_ffn_dim", "intermediate_size") // 4
    return linear(inputs, text) + linear(text, text)
