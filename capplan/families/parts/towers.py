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
    hidden, wide = vision.dimension("hidden_size"), vision.dimension("intermediate_size")
    patch = vision.dimension("patch_size")
    positions = (vision.dimension("max_image_size") // patch) ** 2 + 1
    vision.unused(
        "num_key_value_heads", "out_hidden_size", "text_hidden_size", "max_vit_seq_len", "img_max_token_num"
    )
    blocks = vision.layers() * encoder_block(hidden, wide, heads=vision.dimension("num_attention_heads"))
    embedded = linear(vision.dimension("num_channels") * patch * patch, hidden)
    return embedded + positions * hidden + blocks


def hy4(vision: Config) -> int:
    """Return the parameters of the tower of Hy 4 with its merger: convolutions over squares of patches, a norm before them and a line break."""
    hidden, out = vision.dimension("hidden_size"), vision.dimension("out_hidden_size")
    vision.unused("num_key_value_heads")
    merge = vision.dimension("spatial_merge_size") ** 2
    patch = vision.dimension("patch_size")
    positions = (vision.dimension("max_image_size") // patch) ** 2 + 1
    heads, wide = vision.dimension("num_attention_heads"), vision.dimension("intermediate_size")
    blocks = vision.layers() * encoder_block(hidden, wide, heads=heads)
    embedded = linear(vision.dimension("num_channels") * patch * patch, hidden) + positions * hidden
    merger = linear(merge * hidden, merge * hidden) + linear(merge * hidden, out) + out + hidden
    return embedded + blocks + merger


def inkling2(vision: Config) -> int:
    """Return the parameters of the tower of Inkling 2 with its merger: scaled residuals, a class token, a grid of positions."""
    hidden, patch = vision.dimension("hidden_size"), vision.dimension("patch_size")
    wide = vision.optional("intermediate_size") or int(hidden * vision.ratio("mlp_ratio"))
    vision.unused("mlp_ratio")
    out, inner = vision.dimension("text_hidden_size"), vision.dimension("projection_hidden_dim")
    bias, merge = vision.flag("projector_bias"), vision.dimension("spatial_merge_size")
    embedded = vision.dimension("num_channels") * patch * patch * hidden + 4 * hidden
    embedded += vision.dimension("posemb_grid_size") ** 2 * hidden
    merger = linear(merge * merge * hidden, inner, bias=bias) + linear(inner, out, bias=bias)
    return embedded + vision.layers() * (encoder_block(hidden, wide) + 2 * hidden) + merger


def apertus(vision: Config) -> int:
    """Return the parameters of the image tokenizer of Apertus 1.5: convolutions in stages, each half as large, and a codebook."""
    base, steps = vision.dimension("base_channels"), vision.whole_numbers("channel_multiplier")
    vision.unused("spatial_scale_factor")
    widths = [base * step for step in steps or (1, 1, 2, 2, 4)]
    attended, side = vision.whole_numbers("attn_resolutions") or (), vision.dimension("resolution")
    count, latent = vision.dimension("num_res_blocks"), vision.dimension("latent_channels")
    tower = linear(9 * vision.dimension("in_channels"), base)
    for stage, (before, width) in enumerate(pairwise((base, *widths))):
        tower += _residual_block(before, width) + (count - 1) * _residual_block(width, width)
        tower += count * _attention_map(width) if side // 2**stage in attended else 0
        tower += linear(9 * width, width) if stage + 1 < len(widths) else 0
    last, code = widths[-1], vision.dimension("embed_dim")
    tower += 2 * _residual_block(last, last) + _attention_map(last) + 2 * last + linear(9 * last, latent)
    return tower + code * vision.dimension("codebook_size") + linear(latent, code)


def _residual_block(before: int, after: int) -> int:
    """Return the parameters of two convolutions of 3 x 3 with their norms, and of the matrix around them where the width changes."""
    changed = linear(before, after) if before != after else 0
    return 2 * before + linear(9 * before, after) + 2 * after + linear(9 * after, after) + changed


def _attention_map(width: int) -> int:
    return 2 * width + 4 * linear(width, width)


_PERCEPTION = {"pe_core_large_patch14": (4096 / 1024, True), "pe_core_gigantic_patch14": (8960 / 1536, False)}
"""Perception Encoder of timm -> width of its feed-forward per hidden size, and whether it has a class token."""


def perception(vision: Config) -> int:
    """Return the parameters of the Perception Encoder as timm 1.0 builds it without its pooling head: CLIP with rotary positions too.

    Source: `vit_pe_core_large_patch14_336` and its kin, https://github.com/huggingface/pytorch-image-models.
    """
    named, stated = vision.text("architecture"), vision.section("model_args")
    known = next((one for part, one in _PERCEPTION.items() if part in named), None)
    vision.unused("do_pooling", "hidden_size", "label_names", "num_features", "pretrained_cfg")
    if known is None or stated is None or stated.text("global_pool", default="map"):
        vision.unused("model_args")
        vision.uncounted(f"the tower {named or 'of vision_config'} of timm is not counted")
        return 0
    wider, marked = known
    hidden, sides = stated.dimension("embed_dim"), stated.whole_numbers("img_size") or (448,)
    stated.unused("ref_feat_shape")
    patches = (sides[0] // 14) * (sides[-1] // 14)
    scaled = 2 * hidden if stated.first_present("init_values")[1] else 0
    block = encoder_block(hidden, int(hidden * wider)) + scaled
    norms = 4 * hidden if stated.flag("use_post_transformer_norm", default=True) else 2 * hidden
    embedded = 3 * 14 * 14 * hidden + (patches + 2 * marked) * hidden
    return embedded + stated.dimension("depth", most=1000) * block + norms


def dots3(vision: Config) -> int:
    """Return the parameters of the tower of dots3-note with its merger: RMS norms, and more experts in each of its later layers."""
    hidden, layers = vision.dimension("hidden_size", "embed_dim"), vision.layers()
    counts = _dots3_experts(vision, layers)
    bias, mlp_bias = vision.flag("attention_bias", "use_bias"), vision.flag("mlp_bias")
    wide, narrow = vision.dimension("intermediate_size"), vision.dimension("moe_intermediate_size")
    patch, head = (
        vision.dimension("patch_size"),
        hidden // vision.dimension("num_attention_heads", "num_heads"),
    )
    block = linear(hidden, 3 * hidden, bias=bias) + linear(hidden, hidden, bias=bias) + 2 * head + 2 * hidden
    dense = 2 * linear(hidden, wide, bias=mlp_bias) + linear(wide, hidden, bias=mlp_bias)
    fed = sum(count * (3 * hidden * narrow + hidden) if count else dense for count in counts)
    merged, out = hidden * vision.dimension("spatial_merge_size") ** 2, vision.dimension("adapter_out_dim")
    vision.unused("adapter_in_dim")
    tower = (
        linear(vision.dimension("num_channels") * patch * patch, hidden) + 2 * hidden + layers * block + fed
    )
    return tower + 2 * hidden + linear(merged, merged) + linear(merged, out)


def _dots3_experts(vision: Config, layers: int) -> list[int]:
    """Return the experts of each layer; none where its feed-forward is dense."""
    steps = vision.first_present("pyramid_num_routed")[1]
    kinds = vision.items("mlp_layer_types", length=layers)
    if not isinstance(steps, list):
        steps = [-1] * 25 + [*range(4, 65, 4), 64]
    if kinds is None:
        return [max(int(step), 0) for step in steps[:layers]]
    own, usual = vision.first_present("per_layer_config")[1], vision.dimension("num_local_experts")
    stated = {int(at): one for at, one in own.items()} if isinstance(own, dict) else {}
    return [
        int(stated.get(at, {}).get("num_local_experts", usual)) if kind == "sparse" else 0
        for at, kind in enumerate(kinds[:layers])
    ]


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
