"""Vision towers, counted only: their parameters are held beside the text model, their time is not modelled."""

from math import prod

from capplan.families.config import Config


def _linear(inputs: int, outputs: int, *, bias: bool = True) -> int:
    return inputs * outputs + (outputs if bias else 0)


def _block(hidden: int, intermediate: int) -> int:
    """Return the parameters of a transformer block with biases and two layer norms."""
    return (
        4 * _linear(hidden, hidden)
        + _linear(hidden, intermediate)
        + _linear(intermediate, hidden)
        + 4 * hidden
    )


def siglip(vision: Config, text_hidden: int) -> int:
    """Return the parameters of SigLIP and the Gemma 3 projector."""
    hidden = vision.dimension("hidden_size", default=768)
    intermediate = vision.dimension("intermediate_size", default=3072)
    layers = vision.layers()
    patch = vision.dimension("patch_size", default=16)
    side = vision.dimension("image_size", default=224) // patch
    channels = vision.dimension("num_channels", default=3)
    tower = (
        _linear(channels * patch * patch, hidden)
        + side * side * hidden
        + layers * _block(hidden, intermediate)
    )
    pooled = 0
    if vision.flag("vision_use_head", default=True):
        pooled = hidden + 4 * _linear(hidden, hidden) + 2 * hidden
        pooled += _linear(hidden, intermediate) + _linear(intermediate, hidden)
    return tower + 2 * hidden + pooled + hidden * text_hidden + hidden


def pixtral(vision: Config, text_hidden: int, outer: Config) -> int:
    """Return the parameters of Pixtral and the Mistral 3 projector."""
    hidden = vision.dimension("hidden_size", default=1024)
    intermediate = vision.dimension("intermediate_size", default=4096)
    patch = vision.dimension("patch_size", default=16)
    channels = vision.dimension("num_channels", default=3)
    block = 4 * hidden * hidden + 3 * hidden * intermediate + 2 * hidden
    tower = channels * patch * patch * hidden + hidden + vision.layers() * block
    merge = outer.dimension("spatial_merge_size", default=2) ** 2
    bias = outer.flag("multimodal_projector_bias", default=False)
    projector = hidden + merge * hidden * hidden
    projector += _linear(hidden, text_hidden, bias=bias) + _linear(text_hidden, text_hidden, bias=bias)
    return tower + projector


def qwen2_vision(vision: Config, text_hidden: int) -> int:
    """Return the parameters of the Qwen 2-VL tower with its merger."""
    hidden = vision.dimension("embed_dim", default=1280)
    patch = vision.dimension("patch_size", default=14)
    frames = vision.dimension("temporal_patch_size", default=2)
    channels = vision.dimension("in_channels", "in_chans", default=3)
    intermediate = int(hidden * vision.ratio("mlp_ratio", default=4.0))
    merged = hidden * vision.dimension("spatial_merge_size", default=2) ** 2
    out = vision.dimension("hidden_size", default=text_hidden)
    tower = channels * frames * patch * patch * hidden
    tower += vision.dimension("depth", default=32) * _block(hidden, intermediate)
    return tower + 2 * hidden + _linear(merged, merged) + _linear(merged, out)


def qwen2_5_vision(vision: Config, text_hidden: int) -> int:
    """Return the parameters of the Qwen 2.5-VL tower with its merger: RMS norms and a gated feed-forward with biases."""
    hidden = vision.dimension("hidden_size", default=1280)
    intermediate = vision.dimension("intermediate_size", default=3420)
    patch = vision.dimension("patch_size", default=14)
    frames = vision.dimension("temporal_patch_size", default=2)
    channels = vision.dimension("in_channels", "in_chans", default=3)
    merged = hidden * vision.dimension("spatial_merge_size", default=2) ** 2
    out = vision.dimension("out_hidden_size", default=text_hidden)
    block = 4 * _linear(hidden, hidden) + 2 * _linear(hidden, intermediate) + _linear(intermediate, hidden)
    tower = channels * frames * patch * patch * hidden
    tower += vision.dimension("depth", default=32) * (block + 2 * hidden)
    return tower + hidden + _linear(merged, merged) + _linear(merged, out)


def glm4v_vision(vision: Config) -> int:
    """Return the parameters of the GLM-4.5V tower with its merger."""
    hidden = vision.dimension("hidden_size", default=1536)
    out = vision.dimension("out_hidden_size", default=4096)
    wide = vision.dimension("intermediate_size", default=13696)
    patch = vision.dimension("patch_size", default=14)
    frames = vision.dimension("temporal_patch_size", default=2)
    channels = vision.dimension("in_channels", default=3)
    side = vision.dimension("image_size", default=336) // patch
    merge = vision.dimension("spatial_merge_size", default=2) ** 2
    attention = 4 * hidden * hidden + (4 * hidden if vision.flag("attention_bias", default=False) else 0)
    block = attention + 3 * hidden * out + 2 * hidden
    tower = side * side * hidden + _linear(channels * frames * patch * patch, hidden) + 2 * hidden
    tower += vision.dimension("depth", default=24) * block + _linear(merge * hidden, out)
    return tower + out * out + 2 * out + 3 * out * wide


def qwen3_vision(vision: Config) -> int:
    """Return the parameters of the Qwen 3-VL tower with its mergers."""
    hidden = vision.dimension("hidden_size")
    intermediate = vision.dimension("intermediate_size")
    patch = vision.dimension("patch_size")
    frames = vision.dimension("temporal_patch_size", default=2)
    channels = vision.dimension("in_channels", default=3)
    merged = hidden * vision.dimension("spatial_merge_size", default=2) ** 2
    out = vision.dimension("out_hidden_size")
    tower = _linear(channels * frames * patch * patch, hidden)
    tower += vision.dimension("num_position_embeddings") * hidden
    tower += vision.layers("depth") * _block(hidden, intermediate)
    merger = _linear(merged, merged) + _linear(merged, out)
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
    tower = _linear(3 * patch * patch, hidden) + rows * columns * hidden
    tower += layers * _block(hidden, intermediate) + 2 * hidden
    merged = hidden * prod(vision.whole_numbers("merge_kernel_size") or (2, 2))
    normed = outer.optional("projection_hidden_size") or hidden
    return tower + 2 * normed + _linear(merged, merged) + _linear(merged, text_hidden)


def llama4_vision(vision: Config, text_hidden: int) -> int:
    """Return the parameters of the Llama 4 tower, its pixel-shuffle adapter and projector."""
    hidden = vision.dimension("hidden_size", default=768)
    intermediate = vision.dimension("intermediate_size", default=5632)
    patch = vision.dimension("patch_size", default=14)
    side = vision.dimension("image_size", default=448) // patch
    vision.unused("pixel_shuffle_ratio")
    wide = vision.dimension("projector_input_dim", default=4096)
    out = vision.dimension("projector_output_dim", default=4096)
    tower = (
        vision.dimension("num_channels", default=3) * patch * patch * hidden
        + hidden
        + (side * side + 1) * hidden
        + 4 * hidden
    )
    tower += vision.layers() * _block(hidden, intermediate)
    adapter = intermediate * wide + out * out
    return tower + adapter + vision.dimension("vision_output_dim", default=7680) * text_hidden


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


def step_vision(vision: Config, text_hidden: int) -> int:
    """Return the parameters of the Step 3.7 tower, its two down-samplers and projector."""
    hidden = vision.dimension("width", "hidden_size", default=1536)
    intermediate = int(hidden * vision.ratio("mlp_ratio", default=8960 / 1536))
    vision.unused("intermediate_size")
    patch = vision.dimension("patch_size", default=14)
    side = vision.dimension("image_size", default=728) // patch
    channels = vision.dimension("num_channels", default=3)
    tower = channels * patch * patch * hidden + side * side * hidden + 2 * hidden
    tower += vision.dimension("layers", "num_hidden_layers", default=47) * (
        _block(hidden, intermediate) + 2 * hidden
    )
    down = _linear(9 * hidden, 2 * hidden) + _linear(9 * 2 * hidden, 4 * hidden)
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
    channels = vision.dimension("num_channels", default=3)
    tower = (
        channels * frames * patch * patch * hidden
        + 2 * hidden
        + vision.layers() * _block(hidden, intermediate)
    )
    projector = _linear(hidden, wide) + _linear(wide, text_hidden)
    projector += _linear(merge * merge * text_hidden, wide) + _linear(wide, text_hidden)
    return tower + projector


def ernie_vision(vision: Config, text_hidden: int) -> int:
    """Return the parameters of the ERNIE 4.5 VL tower and of the resampler that joins patches and frames."""
    hidden = vision.dimension("hidden_size", default=1280)
    patch = vision.dimension("patch_size", default=14)
    channels = vision.dimension("in_channels", default=3)
    tower = channels * patch * patch * hidden + 2 * hidden
    tower += vision.dimension("depth", default=32) * _block(
        hidden, vision.dimension("intermediate_size", default=5120)
    )
    merged = hidden * vision.dimension("spatial_merge_size", default=2) ** 2
    frames = merged * vision.dimension("temporal_merge_size", default=2)
    resampler = _linear(merged, merged) + _linear(frames, merged) + 2 * _linear(merged, merged) + 4 * merged
    return tower + resampler + _linear(merged, text_hidden) + text_hidden
