"""DeepSeek-VL2 and DeepSeek-OCR: a DeepSeek V2 with experts behind towers of their own code.

Towers as vLLM builds them (`deepseek_vl2.py`, `deepseek_ocr.py`): https://github.com/vllm-project/vllm.
"""

from capplan.families.attention.deepseek import read_deepseek_v2
from capplan.families.config import Config
from capplan.families.parts.blocks import with_vision
from capplan.families.parts.towers import clip_of_ocr, encoder_block, linear, segment_anything
from capplan.model.network import Network


def read_deepseek_vl2(config: Config, name: str) -> Network:
    """Return a DeepSeek-VL2 or a DeepSeek-OCR, whose files have the same model_type and other towers."""
    text = config.needed_section("language_config", "text_config")
    text.unused("lm_head", "rm_head")
    network = read_deepseek_v2(text, name)
    config.unused(
        *(key for key in config.values if key in text.values),
        "candidate_resolutions",
        "tile_tag",
        "global_view_pos",
    )
    named = config.items("architectures") or ()
    marks = 2 * network.hidden_size  # a line break and what separates an image from its tiles
    if "DeepseekOCR2ForCausalLM" in named:
        config.unused("vision_config", "projector_config")
        config.uncounted("the towers of vision_config are not counted")
        return with_vision(network, config, 0)
    vision = config.needed_section("vision_config")
    vision.unused(*vision.values)
    widths = vision.values.get("width")
    tower = _ocr(vision.needed_section("width")) if isinstance(widths, dict) else _siglip(vision)
    return with_vision(network, config, tower + _projector(config) + marks)


def _siglip(vision: Config) -> int:
    """Return the parameters of SigLIP with its pooling, as timm's `vit_so400m_patch14_siglip_384` has it."""
    hidden = vision.dimension("width", default=1152)
    wide = int(hidden * vision.ratio("mlp_ratio", default=3.7362))
    patch = vision.dimension("patch_size", default=14)
    patches = (vision.dimension("image_size", default=384) // patch) ** 2
    block = encoder_block(hidden, wide)
    tower = linear(3 * patch * patch, hidden) + patches * hidden + 2 * hidden
    pooling = hidden + block - 2 * hidden
    return tower + vision.layers("layers") * block + pooling


def _ocr(widths: Config) -> int:
    """Return the parameters of the two towers of DeepSeek-OCR, one behind the other."""
    clip = widths.needed_section("clip-l-14-224")
    whole = widths.needed_section("sam_vit_b")
    widths.unused(*widths.values)
    for section in (clip, whole):
        section.unused(*section.values)
    downsampled = whole.whole_numbers("downsample_channels") or (512, 1024)
    map_encoder = segment_anything(
        whole.layers("layers"), whole.dimension("width"), whole.dimension("heads"), 256, downsampled
    )
    return map_encoder + clip_of_ocr(
        clip.layers("layers"),
        clip.dimension("width"),
        clip.dimension("patch_size"),
        clip.dimension("image_size"),
    )


def _projector(config: Config) -> int:
    """Return the parameters of what joins tower and text: one matrix, or several around pixels that were merged."""
    section = config.needed_section("projector_config")
    section.unused(*section.values)
    inputs, outputs = section.dimension("input_dim"), section.dimension("n_embed")
    kind = section.text("projector_type", default="downsample_mlp_gelu")
    if kind == "linear":
        return linear(inputs, outputs)
    if kind != "downsample_mlp_gelu":
        raise section.error(
            "projector_type", f"{kind!r} is not modelled", "allowed: linear, downsample_mlp_gelu"
        )
    inner = outputs * section.dimension("mlp_ratio", default=1)
    first = linear(inputs * section.dimension("downsample_ratio", default=2) ** 2, inner)
    between = (section.dimension("depth", default=2) - 2) * linear(inner, inner)
    return first + between + linear(inner, outputs)
