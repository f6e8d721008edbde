"""Vision towers and projectors: their parameters, held next to the text model; images.py says what they read and how long that takes."""

import re
from math import prod

from capplan.families.config import Config
from capplan.families.parts import towers
from capplan.families.parts.towers import encoder_block, linear, siglip


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
    return tower.dimension("hidden_size") * config.dimension("scale_factor") ** 2 * text


def internvl(config: Config, tower: Config, text: int) -> int:
    """Return InternVL's projector: a norm and two matrices."""
    inputs = tower.dimension("hidden_size") * int(1 / config.ratio("downsample_ratio", default=0.5)) ** 2
    return 2 * inputs + linear(inputs, text) + linear(text, text)


def lfm2_vl(config: Config, tower: Config, text: int) -> int:
    """Return the projector of LFM2-VL: perhaps a norm, then two matrices."""
    inputs = tower.dimension("hidden_size") * config.dimension("downsample_factor") ** 2
    wide = config.dimension("projector_hidden_size")
    bias = config.flag("projector_bias", default=True)
    norm = 2 * inputs if config.flag("projector_use_layernorm", default=True) else 0
    return norm + linear(inputs, wide, bias=bias) + linear(wide, text, bias=bias)


def cohere2_vision(config: Config, tower: Config, text: int) -> int:
    """Return the projector of Command A Vision: two matrices around a gate."""
    inputs = tower.dimension("hidden_size") * config.dimension("downsample_factor") ** 2
    wide = config.dimension("alignment_intermediate_size")
    return linear(inputs, wide) + linear(wide // 2, text)


def aya_vision(config: Config, tower: Config, text: int) -> int:
    """Return the projector of Aya Vision: a norm, then two matrices around a gate."""
    inputs = tower.dimension("hidden_size") * config.dimension("downsample_factor") ** 2
    wide = config.dimension("alignment_intermediate_size", default=text)
    return 2 * inputs + linear(inputs, wide) + linear(wide // 2, text)


def video_llava(config: Config, tower: Config, text: int) -> int:
    """Return Video-LLaVA's projector, and its second tower: images and videos have one each."""
    return two_layers(config, tower, text) + towers.clip(tower)


def vip_llava(config: Config, tower: Config, text: int) -> int:
    """Return ViP-LLaVA's projector: a norm over several layers of the tower, then two matrices."""
    read = config.items("vision_feature_layer") if config.has("vision_feature_layer") else [0]
    inputs = len(read or [0]) * tower.dimension("hidden_size")
    return 2 * inputs + linear(inputs, text) + linear(text, text)


def idefics2(config: Config, tower: Config, text: int) -> int:
    """Return what brings the tower of Idefics 2 to the width of its text: a gated feed-forward of the text's shape."""
    wide = config.needed_section("text_config").dimension("intermediate_size")
    return 2 * tower.dimension("hidden_size") * wide + wide * text


def idefics2_perceiver(_config: Config, perceiver: Config, text: int) -> int:
    """Return the resampler of Idefics 2: latents that attend to the patches, as wide as the text."""
    perceiver.unused("hidden_size")
    head, queries = perceiver.dimension("resampler_head_dim"), perceiver.dimension("resampler_n_heads")
    kv_heads = perceiver.dimension("num_key_value_heads")
    block = 2 * text * head * (queries + kv_heads) + 3 * 4 * text * text + 3 * text
    latents = perceiver.dimension("resampler_n_latents")
    return latents * text + perceiver.layers("resampler_depth") * block + text


def got_ocr(_config: Config, tower: Config, text: int) -> int:
    """Return the projector of GOT-OCR 2: two convolutions and a matrix."""
    channels = tower.dimension("output_channels")
    return 9 * channels * 2 * channels + 9 * 2 * channels * text + linear(text, text)


def ovis2(config: Config, tower: Config, text: int) -> int:
    """Return the visual vocabulary of Ovis 2, as wide as the text."""
    return tower.dimension("vocab_size") * config.dimension("hidden_size", default=text)


def lighton_ocr(config: Config, tower: Config, text: int) -> int:
    """Return the projector of LightOn OCR: a norm, a merger of patches and two matrices, without biases."""
    hidden = tower.dimension("hidden_size")
    merged = hidden * config.dimension("spatial_merge_size") ** 2
    return hidden + merged * hidden + hidden * text + text * text


def paddle_ocr(_config: Config, tower: Config, text: int) -> int:
    """Return the projector of PaddleOCR-VL: a norm of each patch, then two matrices over a square of them."""
    hidden = tower.dimension("hidden_size")
    merged = hidden * tower.dimension("spatial_merge_size") ** 2
    return 2 * hidden + linear(merged, merged) + linear(merged, text)


def hyperclovax(_config: Config, tower: Config, text: int) -> int:
    """Return the projector of HyperCLOVA X Vision: one matrix behind the merger of the tower."""
    return linear(tower.dimension("out_hidden_size"), text)


def lfm3_vl(config: Config, tower: Config, text: int) -> int:
    """Return the projector of LFM3-VL: a norm of each patch, then two matrices over a square of them."""
    hidden, wide = tower.dimension("hidden_size"), config.dimension("projector_hidden_size")
    bias = config.flag("projector_bias", default=True)
    merged = hidden * tower.dimension("spatial_merge_size") ** 2
    return 2 * hidden + linear(merged, wide, bias=bias) + linear(wide, text, bias=bias)


def granite_docling(config: Config, tower: Config, _text: int) -> int:
    """Return the router of Granite Docling that chooses between the paths of its connector, where the file has one."""
    wide, hidden = config.optional("density_router_hidden_size", least=0), tower.dimension("hidden_size")
    return linear(hidden, 1) + 2 * hidden + linear(hidden, wide) + linear(wide, 1) if wide else 0


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
    frames = config.dimension("downsample_factor")
    return frames * tower.dimension("hidden_size") * text + text * text


def granite_speech(config: Config, queries: Config, text: int) -> int:
    """Return the queries of Granite Speech's Q-Former and the matrix behind it; the adapter of the text is a separate file."""
    config.unused("has_lora_adapter")
    hidden = queries.dimension("hidden_size")
    return config.dimension("window_size") // config.dimension("downsample_rate") * hidden + linear(
        hidden, text
    )


def phi4_vision(_config: Config, tower: Config, text: int) -> int:
    """Return the projector of Phi-4 Multimodal, DeepSeek-VL and VideoLLaMA 3: two matrices."""
    return linear(tower.dimension("hidden_size"), text) + linear(text, text)


def phi4_audio(_config: Config, tower: Config, text: int) -> int:
    """Return the projectors of Phi-4 Multimodal's sound: two matrices for sound only and two next to an image."""
    frames = tower.dimension("downsample_rate")
    return 2 * (linear(frames * tower.dimension("hidden_size"), text) + linear(text, text))


def perception(_config: Config, tower: Config, text: int) -> int:
    """Return the projector of Perception LM: two matrices, the first as wide as the tower that timm builds."""
    stated = tower.section("model_args")
    width = stated.optional("embed_dim") if stated is not None else None
    return linear(width, text) + linear(text, text) if width else 0


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
    hidden, merge = tower.dimension("hidden_size"), tower.dimension("spatial_merge_size")
    merger = (
        linear(merge * merge * hidden, 2 * hidden) + linear(2 * hidden, 4 * hidden) + linear(4 * hidden, text)
    )
    return merger + hidden + text + 4 * hidden + 3 * text


def nemotron_audio(_config: Config, tower: Config, text: int) -> int:
    """Return the projector of Nemotron Omni's sound: a norm and two matrices."""
    hidden = tower.dimension("hidden_size", default=1024)
    wide = tower.dimension("projection_hidden_size")
    bias = tower.flag("projection_bias")
    return hidden + linear(hidden, wide, bias=bias) + linear(wide, text, bias=bias)


def minicpm_merger(config: Config, tower: Config, text: int) -> int:
    """Return the merger of MiniCPM-V 4.6: each time four patches into one, the last time into the text."""
    config.unused(
        "insert_layer_id", "drop_vision_last_layer", "merge_kernel_size", "image_size", "patch_size"
    )
    hidden = tower.dimension("hidden_size")
    four = 4 * hidden
    each = 2 * four + linear(four, four)
    times = config.dimension("merger_times")
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


_TILE_SHAPES = 8
"""Shapes of up to four tiles in which Llama 3.2 Vision lays out an image where the file does not list them."""


def gemma3_vision(vision: Config, text_hidden: int) -> int:
    """Return the parameters of SigLIP and the Gemma 3 projector."""
    hidden = vision.dimension("hidden_size")
    return siglip(vision) + hidden * text_hidden + hidden


def pixtral(vision: Config, text_hidden: int, outer: Config) -> int:
    """Return the parameters of Pixtral and the Mistral 3 projector."""
    hidden = vision.dimension("hidden_size")
    merge = outer.dimension("spatial_merge_size") ** 2
    bias = outer.flag("multimodal_projector_bias")
    projector = hidden + merge * hidden * hidden
    projector += linear(hidden, text_hidden, bias=bias) + linear(text_hidden, text_hidden, bias=bias)
    return towers.pixtral(vision) + projector


def qwen2_vision(vision: Config, text_hidden: int) -> int:
    """Return the parameters of the Qwen 2-VL tower with its merger."""
    hidden = vision.dimension("embed_dim", default=1280)
    patch = vision.dimension("patch_size")
    frames = vision.dimension("temporal_patch_size")
    channels = vision.dimension("in_channels", "in_chans")
    intermediate = int(hidden * vision.ratio("mlp_ratio", default=4.0))
    merged = hidden * vision.dimension("spatial_merge_size") ** 2
    out = vision.dimension("hidden_size", default=text_hidden)
    tower = channels * frames * patch * patch * hidden
    tower += vision.dimension("depth") * encoder_block(hidden, intermediate)
    return tower + 2 * hidden + linear(merged, merged) + linear(merged, out)


def qwen2_5_vision(vision: Config, text_hidden: int | None = None) -> int:
    """Return the parameters of the Qwen 2.5-VL tower with its merger: RMS norms, a gated feed-forward, biases.

    EXAONE 4.5 has grouped queries in it.
    """
    vision.unused("window_size")
    hidden = vision.dimension("hidden_size", default=1280)
    intermediate = vision.dimension("intermediate_size", default=3420)
    patch = vision.dimension("patch_size")
    frames = vision.dimension("temporal_patch_size")
    channels = vision.dimension("in_channels", "in_chans")
    merged = hidden * vision.dimension("spatial_merge_size") ** 2
    out = vision.dimension("out_hidden_size", default=text_hidden)
    block = 4 * linear(hidden, hidden) + 2 * linear(hidden, intermediate) + linear(intermediate, hidden)
    if (kv_heads := vision.optional("num_key_value_heads")) is not None:
        heads = vision.dimension("num_heads")
        block += linear(hidden, (heads + 2 * kv_heads) * (hidden // heads)) - 3 * linear(hidden, hidden)
    tower = channels * frames * patch * patch * hidden
    tower += vision.dimension("depth") * (block + 2 * hidden)
    return tower + hidden + linear(merged, merged) + linear(merged, out)


def glm4v_vision(vision: Config) -> int:
    """Return the parameters of the GLM-4.5V tower with its merger."""
    hidden = vision.dimension("hidden_size")
    out = vision.dimension("out_hidden_size")
    wide = vision.dimension("intermediate_size")
    patch = vision.dimension("patch_size")
    frames = vision.dimension("temporal_patch_size")
    channels = vision.dimension("in_channels")
    side = vision.dimension("image_size") // patch
    merge = vision.dimension("spatial_merge_size") ** 2
    attention = 4 * hidden * hidden + (3 * hidden if vision.flag("attention_bias") else 0)
    block = attention + 3 * hidden * out + 2 * hidden
    tower = side * side * hidden + linear(channels * frames * patch * patch, hidden) + 2 * hidden
    tower += vision.dimension("depth") * block + linear(merge * hidden, out)
    return tower + out * out + 2 * out + 3 * out * wide


def glm_ocr_vision(vision: Config) -> int:
    """Return the parameters of the tower of GLM-OCR and GLM-5.3 with its merger: RMS norms, head norms, a gated feed-forward."""
    vision.unused("image_size")
    hidden, heads = vision.dimension("hidden_size"), vision.dimension("num_heads")
    wide, out = vision.dimension("intermediate_size"), vision.dimension("out_hidden_size")
    patch, frames = vision.dimension("patch_size"), vision.dimension("temporal_patch_size")
    channels, merge = vision.dimension("in_channels"), vision.dimension("spatial_merge_size")
    merger = vision.optional("projection_intermediate_size") or out * channels
    bias = vision.flag("attention_bias", default=True)
    block = linear(hidden, 3 * hidden, bias=bias) + linear(hidden, hidden, bias=bias) + 2 * (hidden // heads)
    block += 2 * linear(hidden, wide, bias=bias) + linear(wide, hidden, bias=bias) + 2 * hidden
    tower = linear(channels * frames * patch * patch, hidden) + vision.layers("depth") * block + hidden
    return tower + linear(merge * merge * hidden, out) + out * out + 2 * out + 3 * out * merger


def muse_vision(vision: Config, text_hidden: int, outer: Config) -> int:
    """Return the parameters of the tower of Muse Glimmer, with its adapter and projection."""
    hidden, wide = vision.dimension("hidden_size"), vision.dimension("intermediate_size")
    patch, frames = vision.dimension("patch_size"), vision.dimension("patch_temporal")
    rows = vision.dimension("pos_emb_height") * vision.dimension("pos_emb_width")
    vision.unused("merge_size", "layer_types", "max_position_embeddings")
    merged = outer.dimension("out_hidden_size")
    out = outer.dimension("projector_hidden_size")
    tower = 3 * frames * patch * patch * hidden + rows * hidden + 4 * hidden
    tower += vision.layers() * encoder_block(hidden, wide)
    return tower + merged * out + out * out + out * text_hidden


def qwen3_vision(vision: Config) -> int:
    """Return the parameters of the Qwen 3-VL tower with its mergers."""
    hidden = vision.dimension("hidden_size")
    intermediate = vision.dimension("intermediate_size")
    patch = vision.dimension("patch_size")
    frames = vision.dimension("temporal_patch_size", default=2)
    channels = vision.dimension("in_channels", default=3)
    merged = hidden * vision.dimension("spatial_merge_size", default=2) ** 2
    out = vision.dimension("out_hidden_size")
    tower = linear(channels * frames * patch * patch, hidden)
    tower += vision.dimension("num_position_embeddings") * hidden
    tower += vision.layers("depth") * encoder_block(hidden, intermediate)
    merger = linear(merged, merged) + linear(merged, out)
    deep = len(vision.items("deepstack_visual_indexes") or ())
    return tower + 2 * hidden + merger + deep * (2 * merged + merger)


def moonvit(vision: Config, outer: Config, text_hidden: int) -> int:
    """Return the parameters of MoonViT and the Kimi K2.5 projector."""
    hidden = vision.dimension("vt_hidden_size", "hidden_size")
    intermediate = vision.dimension("vt_intermediate_size", "intermediate_size")
    layers = vision.layers("vt_num_hidden_layers", "num_hidden_layers")
    patch = vision.dimension("patch_size")
    rows = vision.dimension("init_pos_emb_height", "pos_emb_height")
    columns = vision.dimension("init_pos_emb_width", "pos_emb_width")
    tower = linear(3 * patch * patch, hidden) + rows * columns * hidden
    tower += layers * encoder_block(hidden, intermediate) + 2 * hidden
    merged = hidden * prod(vision.whole_numbers("merge_kernel_size") or (2, 2))
    normed = outer.optional("projection_hidden_size") or hidden
    return tower + 2 * normed + linear(merged, merged) + linear(merged, text_hidden)


def llama4_vision(vision: Config, text_hidden: int) -> int:
    """Return the parameters of the Llama 4 tower, its pixel-shuffle adapter and projector."""
    hidden = vision.dimension("hidden_size")
    intermediate = vision.dimension("intermediate_size")
    patch = vision.dimension("patch_size")
    side = vision.dimension("image_size") // patch
    vision.unused("pixel_shuffle_ratio")
    wide = vision.dimension("projector_input_dim")
    out = vision.dimension("projector_output_dim")
    tower = (
        vision.dimension("num_channels") * patch * patch * hidden
        + hidden
        + (side * side + 1) * hidden
        + 4 * hidden
    )
    heads = vision.dimension("num_attention_heads")
    tower += vision.layers() * encoder_block(hidden, intermediate, heads=heads)
    adapter = intermediate * wide + out * out
    return tower + adapter + vision.dimension("vision_output_dim") * text_hidden


def gemma4_vision(vision: Config, text_hidden: int) -> int:
    """Return the parameters of the Gemma 4 tower and projector."""
    hidden = vision.dimension("hidden_size", default=768)
    intermediate = vision.dimension("intermediate_size", default=3072)
    heads = vision.dimension("num_attention_heads", default=12)
    kv_heads = vision.dimension("num_key_value_heads", default=heads)
    head_dim = vision.dimension("head_dim", default=64)
    patch = vision.dimension("patch_size", default=16)
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim + 2 * head_dim
    block = attention + 3 * hidden * intermediate + 4 * hidden
    tower = (
        3 * patch * patch * hidden + 2 * vision.dimension("position_embedding_size", default=10240) * hidden
    )
    tower += vision.layers() * block
    return tower + hidden * text_hidden


def gemma4_unified_vision(vision: Config, text_hidden: int) -> int:
    """Return the parameters of the patches of a Gemma 4 without a tower: norms, a matrix, a table for both directions, a projector."""
    width = vision.dimension("mm_embed_dim")
    inputs = 3 * (vision.dimension("patch_size") * vision.dimension("pooling_kernel_size")) ** 2
    embedded = 2 * inputs + linear(inputs, width) + 4 * width
    table = 2 * vision.dimension("mm_posemb_size") * width
    return embedded + table + vision.dimension("output_proj_dims") * text_hidden


def _cross_attention(section: Config, inputs: int) -> int:
    """Return the parameters of attention whose queries, keys and values read another width than it gives out."""
    head, hidden = section.dimension("head_dim"), section.dimension("hidden_size")
    heads, kv_heads = section.dimension("num_attention_heads"), section.dimension("num_key_value_heads")
    bias = section.flag("attention_bias", default=True)
    return linear(inputs, (heads + 2 * kv_heads) * head, bias=bias) + linear(heads * head, hidden, bias=bias)


def molmo2_vision(vision: Config, layers: int) -> int:
    """Return the parameters of the tower of Molmo 2: positions that are trained, no norm at the end."""
    hidden, wide = vision.dimension("hidden_size"), vision.dimension("intermediate_size")
    patch = vision.dimension("patch_size", "image_patch_size")
    sides = vision.whole_numbers("image_size", "image_default_input_size") or (378, 378)
    patches = vision.optional("num_position_embeddings", "image_num_pos") or prod(
        side // patch for side in sides
    )
    block = _cross_attention(vision, hidden) + linear(hidden, wide) + linear(wide, hidden) + 4 * hidden
    return (
        patches * hidden + linear(patch * patch * vision.dimension("num_channels"), hidden) + layers * block
    )


def molmo2_adapter(adapter: Config, layers: int, text: int) -> int:
    """Return the parameters of what pools the patches of Molmo 2 and brings them into the text: attention and a gated feed-forward."""
    hidden, wide = adapter.dimension("hidden_size"), adapter.dimension("intermediate_size")
    out = adapter.dimension("text_hidden_size", default=text)
    gates = 2 * linear(hidden, wide, bias=adapter.flag("mlp_bias"))
    return _cross_attention(adapter, layers * hidden) + gates + wide * out


def step_vision(vision: Config, text_hidden: int) -> int:
    """Return the parameters of the Step 3.7 tower, its two down-samplers and projector."""
    hidden = vision.dimension("width", "hidden_size", default=1536)
    intermediate = int(hidden * vision.ratio("mlp_ratio", default=8960 / 1536))
    vision.unused("intermediate_size", "heads", "ls_init_value", "pool_type")
    patch = vision.dimension("patch_size", default=14)
    side = vision.dimension("image_size", default=728) // patch
    channels = vision.dimension("num_channels", default=3)
    tower = channels * patch * patch * hidden + side * side * hidden + 2 * hidden
    tower += vision.dimension("layers", "num_hidden_layers", default=47) * (
        encoder_block(hidden, intermediate) + 2 * hidden
    )
    down = linear(9 * hidden, 2 * hidden) + linear(9 * 2 * hidden, 4 * hidden)
    return tower + down + 4 * hidden * text_hidden


def minimax_vision(vision: Config, outer: Config, text_hidden: int) -> int:
    """Return the parameters of the MiniMax M3 tower and its two-stage projector."""
    hidden = vision.dimension("hidden_size", default=1280)
    intermediate = vision.dimension("intermediate_size", default=5120)
    patch = vision.dimension("patch_size", default=14)
    compression = vision.section("img_token_compression_config")
    frames = compression.dimension("temporal_patch_size", default=2) if compression else 2
    merge = compression.dimension("spatial_merge_size", default=2) if compression else 2
    wide = outer.dimension("projector_hidden_size", default=text_hidden)
    channels = vision.dimension("num_channels")
    tower = (
        channels * frames * patch * patch * hidden
        + 2 * hidden
        + vision.layers() * encoder_block(hidden, intermediate)
    )
    projector = linear(hidden, wide) + linear(wide, text_hidden)
    projector += linear(merge * merge * text_hidden, wide) + linear(wide, text_hidden)
    return tower + projector


def ernie_vision(vision: Config, text_hidden: int) -> int:
    """Return the parameters of the ERNIE 4.5 VL tower and of the resampler that joins patches and frames."""
    hidden = vision.dimension("hidden_size")
    patch = vision.dimension("patch_size")
    channels = vision.dimension("in_channels")
    tower = channels * patch * patch * hidden + 2 * hidden
    tower += vision.dimension("depth") * encoder_block(hidden, vision.dimension("intermediate_size"))
    merged = hidden * vision.dimension("spatial_merge_size") ** 2
    frames = merged * vision.dimension("temporal_merge_size")
    resampler = linear(merged, merged) + linear(frames, merged) + 2 * linear(merged, merged) + 4 * merged
    return tower + resampler + linear(merged, text_hidden) + text_hidden


def mllama_vision(vision: Config) -> int:
    """Return the parameters of the Llama 3.2 Vision tower: blocks by tile, gated blocks over all tiles, tables of tile positions."""
    hidden = vision.dimension("hidden_size")
    patch = vision.dimension("patch_size")
    positions = image_positions(vision)
    tiles = vision.dimension("max_num_tiles")
    listed = vision.items("supported_aspect_ratios")
    shapes = 1 + (_TILE_SHAPES if listed is None else len(listed))
    vision.unused("intermediate_layers_indices")
    tower = vision.dimension("num_channels") * patch * patch * hidden + 5 * hidden
    tower += positions * hidden + shapes * tiles * positions * hidden + 2 * shapes * tiles * hidden + 3
    heads = vision.dimension("attention_heads", "num_attention_heads")
    block = encoder_block(hidden, vision.dimension("intermediate_size"), biased=0, heads=heads)
    return tower + vision.layers() * block + vision.count("num_global_layers") * (block + 2)


def image_positions(vision: Config) -> int:
    """Return the positions of one tile of Llama 3.2 Vision: its patches and the class token."""
    return (vision.dimension("image_size") // vision.dimension("patch_size")) ** 2 + 1


_NAMED_TOWERS = {
    "vit_small_patch16_224": (384, 12, 1536),
    "vit_base_patch16_224": (768, 12, 3072),
    "vit_large_patch16_224": (1024, 24, 4096),
    "vit_huge_patch16_224": (1280, 32, 5120),
    "vit_so400m_patch16_224": (1152, 27, 4304),
}
"""Name of a tower -> hidden size, layers, width of the feed-forward: VIT_TIMM_DIM_BY_NAME, vllm/transformers_utils/configs/radio.py."""


def _named_radio(vision: Config, args: Config) -> int:
    """Return the parameters of a RADIO whose file names its shape, as vLLM allocates it: with a scale behind each half of a block."""
    name = args.text("model")
    if name not in _NAMED_TOWERS:
        raise args.error("model", f"{name!r} is not modelled", f"allowed: {', '.join(_NAMED_TOWERS)}")
    hidden, layers, wide = _NAMED_TOWERS[name]
    patch = vision.dimension("patch_size", default=16)
    side = round(args.dimension("cpe_max_size", default=2048) / patch)
    named = [
        str(teacher.get("name")) for teacher in args.items("teachers") or () if isinstance(teacher, dict)
    ]
    tokens = len(set(named)) if args.flag("cls_token_per_teacher") else 1
    multiple = args.optional("register_multiple")
    prefix = tokens + (multiple - tokens % multiple if multiple else 0)
    frames = vision.dimension("video_temporal_patch_size", default=1)
    embedded = (3 * patch * patch * (1 + frames if frames > 1 else 1) + side * side + prefix) * hidden
    vision.unused(*vision.values)
    args.unused(*args.values)
    return embedded + layers * (encoder_block(hidden, wide) + 2 * hidden)


def radio(vision: Config) -> int:
    """Return the parameters of RADIO, without the projection of video frames, whose number the file of the whole model says."""
    if (args := vision.section("args")) is not None:
        return _named_radio(vision, args)
    hidden = vision.dimension("hidden_size")
    patch = vision.dimension("patch_size")
    inputs = vision.dimension("num_channels") * patch * patch
    side = vision.dimension("max_img_size") // patch
    vision.unused("image_size", "patch_dim", "video_patch_dim", "summary_idxs", "norm_mean", "norm_std", "layerscale_value",
                  "drop_path_rate")  # fmt: skip
    prefix = vision.count("num_cls_tokens") + vision.count("num_registers")
    tower = (inputs + side * side + prefix) * hidden
    heads = vision.dimension("num_attention_heads")
    inner = heads * (hidden // heads)
    bias = vision.flag("qkv_bias", default=True)
    block = 3 * linear(hidden, inner, bias=bias) + linear(inner, hidden) + 6 * hidden
    wide = int(hidden * vision.ratio("mlp_ratio"))
    if vision.flag("use_swiglu_ffn"):
        wide = (wide * 2 // 3 + 7) // 8 * 8
        block += linear(hidden, wide)
    return tower + vision.layers() * (block + linear(hidden, wide) + linear(wide, hidden))
