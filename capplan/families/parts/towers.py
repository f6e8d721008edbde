"""Vision towers that many models share, counted only, under the keys of their own classes."""

from itertools import pairwise
from math import prod

from capplan.families.config import Config


def linear(inputs: int, outputs: int, *, bias: bool = True) -> int:
    """Return the parameters of a matrix and its bias."""
    return inputs * outputs + (outputs if bias else 0)


def encoder_block(hidden: int, intermediate: int, *, biased: int = 4, heads: int = 1) -> int:
    """Return the parameters of a transformer block with two layer norms.

    `biased` of its four attention matrices have a bias, the output last. Heads are of whole width.
    """
    inner = hidden // heads * heads
    attended = 4 * hidden * inner + min(biased, 3) * inner + (hidden if biased == 4 else 0)
    return attended + linear(hidden, intermediate) + linear(intermediate, hidden) + 4 * hidden


def _sizes(vision: Config) -> tuple[int, int, int, int]:
    """Return hidden size, inputs of a patch, patches, and the parameters of all blocks."""
    hidden = vision.dimension("hidden_size", default=768)
    patch = vision.dimension("patch_size", default=16)
    inputs = vision.dimension("num_channels") * patch * patch
    side = vision.dimension("image_size", default=224) // patch
    vision.unused("projection_dim", "vocab_size")
    blocks = vision.layers() * encoder_block(hidden, vision.dimension("intermediate_size", default=3072))
    return hidden, inputs, side * side, blocks


def clip(vision: Config) -> int:
    """Return the parameters of CLIP: a class token, a norm before and after."""
    hidden, inputs, patches, blocks = _sizes(vision)
    return inputs * hidden + hidden + (patches + 1) * hidden + blocks + 4 * hidden


def siglip(vision: Config) -> int:
    """Return the parameters of SigLIP, with its pooling head where the file has it."""
    hidden, inputs, patches, blocks = _sizes(vision)
    return linear(inputs, hidden) + patches * hidden + blocks + 2 * hidden + _pooling_head(vision, hidden)


def siglip2(vision: Config) -> int:
    """Return the parameters of SigLIP 2, whose number of patches is a key."""
    vision.unused("image_size")
    hidden, inputs, _, blocks = _sizes(vision)
    patches = vision.dimension("num_patches")
    return linear(inputs, hidden) + patches * hidden + blocks + 2 * hidden + _pooling_head(vision, hidden)


def _pooling_head(vision: Config, hidden: int) -> int:
    if not vision.flag("vision_use_head", default=True):
        return 0
    query = hidden
    return query + encoder_block(hidden, vision.dimension("intermediate_size", default=3072)) - 2 * hidden


def phi4(vision: Config) -> int:
    """Return the parameters of the Phi-4 Multimodal tower: SigLIP, and one row each that separates images and lines."""
    vision.unused("crop_size", "feature_layer")
    return siglip(vision) + 2 * vision.dimension("hidden_size")


def idefics3(vision: Config) -> int:
    """Return the parameters of the tower of Idefics 3 and SmolVLM: SigLIP without a head."""
    hidden, inputs, patches, blocks = _sizes(vision)
    return linear(inputs, hidden) + patches * hidden + blocks + 2 * hidden


def internvl(vision: Config) -> int:
    """Return the parameters of the InternVL tower: scaled residuals, optional biases and head norms."""
    hidden = vision.dimension("hidden_size")
    wide = vision.dimension("intermediate_size")
    patch_rows, patch_columns = _pair(vision, "patch_size", 14)
    rows, columns = _pair(vision, "image_size", 448)
    patches = (rows // patch_rows) * (columns // patch_columns)
    tower = linear(vision.dimension("num_channels", default=3) * patch_rows * patch_columns, hidden) + hidden
    if vision.flag("use_absolute_position_embeddings", default=True):
        tower += (patches + 1) * hidden
    if vision.flag("use_mask_token"):
        tower += hidden
    norm = hidden if vision.text("norm_type", default="layer_norm") == "rms_norm" else 2 * hidden
    block = 3 * linear(hidden, hidden, bias=vision.flag("attention_bias")) + linear(hidden, hidden)
    block += linear(hidden, wide) + linear(wide, hidden) + 2 * norm + 2 * hidden
    if vision.flag("use_qk_norm"):
        block += 2 * hidden
    final = 0 if vision.flag("use_mean_pooling", default=True) else 2 * hidden
    return tower + vision.layers() * block + final


def intern_vit(vision: Config) -> int:
    """Return the parameters of InternViT under the keys of its own code: scaled residuals, no norm at the end."""
    hidden, wide = vision.dimension("hidden_size"), vision.dimension("intermediate_size")
    patch = vision.dimension("patch_size", default=14)
    patches = (vision.dimension("image_size", default=448) // patch) ** 2
    norm = hidden if vision.text("norm_type", default="rms_norm") == "rms_norm" else 2 * hidden
    block = linear(hidden, 3 * hidden, bias=vision.flag("qkv_bias")) + linear(hidden, hidden)
    block += linear(hidden, wide) + linear(wide, hidden) + 2 * norm + 2 * hidden
    if vision.flag("qk_normalization", default=True):
        block += 2 * hidden
    inputs = vision.dimension("num_channels", default=3) * patch * patch
    return linear(inputs, hidden) + hidden + (patches + 1) * hidden + vision.layers() * block


def pixtral(vision: Config) -> int:
    """Return the parameters of Pixtral: no biases, gated feed-forward, RMS norms."""
    vision.unused("image_size", "head_dim")
    hidden = vision.dimension("hidden_size")
    intermediate = vision.dimension("intermediate_size")
    patch = vision.dimension("patch_size")
    block = 4 * hidden * hidden + 3 * hidden * intermediate + 2 * hidden
    return vision.dimension("num_channels") * patch * patch * hidden + hidden + vision.layers() * block


def aimv2(vision: Config) -> int:
    """Return the parameters of the tower of Ovis 2: AIMv2, whose patches become shares of a visual vocabulary."""
    hidden, inputs, patches, _ = _sizes(vision)
    wide, bias = vision.dimension("intermediate_size"), vision.flag("mlp_bias")
    block = 4 * linear(hidden, hidden, bias=vision.flag("qkv_bias")) + 2 * hidden
    block += 2 * linear(hidden, wide, bias=bias) + linear(wide, hidden, bias=bias)
    scores = vision.dimension("vocab_size") - vision.dimension("num_visual_indicator_tokens")
    merged = hidden * vision.dimension("hidden_stride") ** 2
    tower = linear(inputs, hidden) + patches * hidden + 2 * hidden + vision.layers() * block
    return tower + merged * scores + 2 * scores


def got_ocr(vision: Config) -> int:
    """Return the parameters of the tower of GOT-OCR 2: Segment Anything, four of whose blocks see the whole map."""
    hidden, out = vision.dimension("hidden_size"), vision.dimension("output_channels")
    patch = vision.dimension("patch_size")
    side = vision.dimension("image_size") // patch
    layers, window = vision.layers(), vision.count("window_size") or side
    whole = set(vision.whole_numbers("global_attn_indexes") or ())
    table = 2 * (hidden // vision.dimension("num_attention_heads")) if vision.flag("use_rel_pos") else 0
    positions = sum(2 * (side if i in whole else window) - 1 for i in range(layers)) * table
    positions += side * side * hidden if vision.flag("use_abs_pos") else 0
    block = linear(hidden, 3 * hidden, bias=vision.flag("qkv_bias")) + linear(hidden, hidden) + 4 * hidden
    wide = vision.dimension("mlp_dim")
    block += linear(hidden, wide) + linear(wide, hidden)
    embedded = linear(vision.dimension("num_channels") * patch * patch, hidden)
    return embedded + positions + layers * block + hidden * out + 9 * out * out + 4 * out


def without_positions(vision: Config) -> int:
    """Return the parameters of a SigLIP whose positions are rotary, without its pooling head."""
    vision.unused("image_size")
    hidden, inputs, _, blocks = _sizes(vision)
    return linear(inputs, hidden) + blocks + 2 * hidden


def lfm3_vision(vision: Config) -> int:
    """Return the parameters of the tower of LFM3-VL: gated convolutions over the map, attention in some layers, gated feed-forward."""
    hidden, wide, layers = (
        vision.dimension("hidden_size"),
        vision.dimension("intermediate_size"),
        vision.layers(),
    )
    heads, kv_heads = vision.dimension("num_attention_heads"), vision.dimension("num_key_value_heads")
    kinds = vision.items("layer_types", length=layers)
    attends = [i > 1 and i % 2 == 0 for i in range(layers)]
    if kinds is not None:
        attends = [kind == "full_attention" for kind in kinds[:layers]]
    head = hidden // heads
    attention = 2 * hidden * head * (heads + kv_heads) + 2 * head
    convolution = 4 * hidden * hidden + hidden * vision.dimension("conv_kernel_size") ** 2
    mixers = sum(attention if one else convolution for one in attends)
    patch = vision.dimension("patch_size")
    inputs = vision.dimension("in_channels") * vision.dimension("temporal_patch_size") * patch * patch
    return inputs * hidden + hidden + mixers + layers * (3 * hidden * wide + 2 * hidden)


def granite_docling(vision: Config) -> int:
    """Return the parameters of the tower of Granite Docling with its connector: a coarse path and a fine one, each with mergers of inner layers."""
    hidden, out = vision.dimension("hidden_size"), vision.dimension("out_hidden_size")
    listed, scale = vision.items("deepstack_visual_indexes"), vision.dimension("scale_factor")
    deep = 3 if listed is None else len(listed)
    paths = [scale] + ([scale // 2] if vision.flag("use_fine_route", default=True) else [])
    tower = idefics3(vision) + 2 * hidden + 4 * out + out * out
    for side in paths:
        merged = hidden * side * side
        tower += merged * out + deep * (2 * merged + linear(merged, out) + linear(out, out))
    return tower


def minicpm_vision(vision: Config) -> int:
    """Return the parameters of the tower of MiniCPM-V 4.6: SigLIP without its pooling, with a window of patches merged in its middle."""
    vision.unused("insert_layer_id")
    hidden, inputs, patches, blocks = _sizes(vision)
    wide = vision.dimension("intermediate_size")
    window = prod(vision.whole_numbers("window_kernel_size") or (2, 2))
    merging = 4 * linear(hidden, hidden) + 2 * hidden + 2 * window * hidden
    merging += linear(window * hidden, window * wide) + linear(window * wide, hidden)
    return linear(inputs, hidden) + patches * hidden + blocks + 2 * hidden + merging


def hunyuan(vision: Config) -> int:
    """Return the parameters of the tower of Hunyuan OCR: biases everywhere, positions of its largest image and one more."""
    hidden, wide = (
        vision.dimension("hidden_size"),
        vision.dimension("intermediate_size"),
    )
    patch = vision.dimension("patch_size")
    positions = (vision.dimension("max_image_size") // patch) ** 2 + 1
    vision.unused(
        "num_key_value_heads", "out_hidden_size", "text_hidden_size", "max_vit_seq_len", "img_max_token_num"
    )
    blocks = vision.layers() * encoder_block(hidden, wide, heads=vision.dimension("num_attention_heads"))
    embedded = linear(vision.dimension("num_channels") * patch * patch, hidden)
    return embedded + positions * hidden + blocks


def dots_vit(vision: Config) -> int:
    """Return the parameters of the tower of dots.ocr with its merger: RMS norms, gated feed-forward."""
    hidden, wide = vision.dimension("embed_dim"), vision.dimension("intermediate_size")
    bias = vision.flag("use_bias")
    patch, frames = vision.dimension("patch_size"), vision.dimension("temporal_patch_size", default=1)
    block = linear(hidden, 3 * hidden, bias=bias) + linear(hidden, hidden, bias=bias)
    block += 2 * linear(hidden, wide, bias=bias) + linear(wide, hidden, bias=bias) + 2 * hidden
    tower = linear(vision.dimension("num_channels", default=3) * frames * patch * patch, hidden) + hidden
    tower += vision.layers() * block + (hidden if vision.flag("post_norm", default=True) else 0)
    merged = hidden * vision.dimension("spatial_merge_size", default=2) ** 2
    return tower + 2 * hidden + linear(merged, merged) + linear(merged, vision.dimension("hidden_size"))


def segment_anything(layers: int, hidden: int, heads: int, output: int, downsampled: tuple[int, ...]) -> int:
    """Return the parameters of the encoder of Segment Anything at 1024 pixels, with convolutions that halve its map.

    Four of its blocks see the whole map of 64 x 64 patches, the others windows of 14 x 14; each has a table of
    relative positions for both directions. Convolutions are of 3 x 3 without a bias.
    """
    side, window, whole, patch = 64, 14, 4, 16
    head = hidden // heads
    positions = 2 * head * ((layers - whole) * (2 * window - 1) + whole * (2 * side - 1))
    tower = linear(3 * patch * patch, hidden) + side * side * hidden
    tower += layers * encoder_block(hidden, 4 * hidden) + positions
    tower += hidden * output + 9 * output * output + 4 * output
    widths = (output, *downsampled)
    return tower + sum(9 * a * b for a, b in pairwise(widths))


def clip_of_ocr(layers: int, hidden: int, patch: int, image: int) -> int:
    """Return the parameters of CLIP without the norm behind its last block."""
    patches = (image // patch) ** 2
    embedded = 3 * patch * patch * hidden + hidden + (patches + 1) * hidden + 2 * hidden
    return embedded + layers * encoder_block(hidden, 4 * hidden)


def _pair(vision: Config, key: str, default: int) -> tuple[int, int]:
    sizes = vision.whole_numbers(key) if isinstance(vision.first_present(key)[1], list) else None
    if sizes is None:
        size = vision.dimension(key, default=default)
        return size, size
    if len(sizes) != 2 or 0 in sizes:
        raise vision.error(key, f"{list(sizes)} is not a height and a width")
    return sizes[0], sizes[1]
