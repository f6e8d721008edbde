"""Which families turn an image into how many tokens, by the keys of their files; limits in pixels are those of the published processors."""

from collections.abc import Callable

from capplan.families.config import Config
from capplan.model.images import ImageRule, Tower

_QWEN2_LIMITS = (3136, 12_845_056)
"""Pixels of Qwen 2-VL and 2.5-VL: preprocessor_config.json of Qwen/Qwen2.5-VL-7B-Instruct."""
_QWEN3_LIMITS = (65_536, 16_777_216)
"""Pixels of Qwen 3-VL: preprocessor_config.json of Qwen/Qwen3-VL-8B-Instruct."""
_GEMMA3_TOKENS = 256
_PIXTRAL_EDGE = 1540
_QWEN2_5_WINDOW, _QWEN2_5_WHOLE = 112, 4
"""Side of a window in pixels, and layers without one, where the file does not say."""

Rule = Callable[[Config, Config, int], ImageRule]
"""The file, its vision section, hidden size of the text -> rule."""


def _stated(config: Config, key: str, otherwise: int) -> int:
    """Return a key that changes no parameter, if it is a size."""
    value = config.values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else otherwise


def _qwen2(_config: Config, vision: Config, text: int) -> ImageRule:
    hidden = vision.dimension("embed_dim", default=1280)
    wide = int(hidden * vision.ratio("mlp_ratio", default=4.0))
    return _resized(vision, text, (hidden, wide, vision.dimension("depth", default=32)), _QWEN2_LIMITS)


def _qwen2_5(_config: Config, vision: Config, text: int) -> ImageRule:
    sizes = (
        vision.dimension("hidden_size", default=1280),
        vision.dimension("intermediate_size", default=3420),
        vision.dimension("depth", default=32),
    )
    listed = vision.values.get("fullatt_block_indexes")
    side = _stated(vision, "window_size", _QWEN2_5_WINDOW) // vision.dimension("patch_size", default=14)
    whole = len(listed) if isinstance(listed, list) else _QWEN2_5_WHOLE
    return _resized(vision, text, sizes, _QWEN2_LIMITS, gated=True, windows=(side * side, whole))


def _qwen3(_config: Config, vision: Config, _text: int) -> ImageRule:
    sizes = (
        vision.dimension("hidden_size"),
        vision.dimension("intermediate_size"),
        vision.layers("depth"),
    )
    mergers = 1 + len(vision.items("deepstack_visual_indexes") or ())
    return _resized(
        vision, vision.dimension("out_hidden_size"), sizes, _QWEN3_LIMITS, patch_size=16, mergers=mergers
    )


def _resized(
    vision: Config,
    out: int,
    sizes: tuple[int, int, int],
    limits: tuple[int, int],
    *,
    gated: bool = False,
    windows: tuple[int, int] = (0, 0),
    patch_size: int = 14,
    mergers: int = 1,
) -> ImageRule:
    """Return the rule of Qwen's towers, which keep the shape of an image: hidden size, width of the feed-forward, layers."""
    hidden, wide, layers = sizes
    patch = vision.dimension("patch_size", default=patch_size)
    merge = vision.dimension("spatial_merge_size", default=2)
    frames = vision.dimension("temporal_patch_size", default=2)
    channels = vision.dimension("in_channels", "in_chans", default=3)
    merged = hidden * merge * merge
    tower = Tower(
        layers,
        hidden,
        wide,
        _stated(vision, "num_heads", 16),
        gated,
        channels * frames * patch * patch,
        ((merged, merged), (merged, out)) * mergers,
        *windows,
    )
    return ImageRule("resized", patch * merge, patch, tower, least_pixels=limits[0], most_pixels=limits[1])


def _gemma3(config: Config, vision: Config, text: int) -> ImageRule:
    hidden = vision.dimension("hidden_size", default=768)
    patch = vision.dimension("patch_size", default=16)
    wide = vision.dimension("intermediate_size", default=3072)
    tower = Tower(vision.layers(), hidden, wide, _stated(vision, "num_attention_heads", 12), False, 3 * patch * patch, ((hidden, text),))  # fmt: skip
    tokens = _stated(config, "mm_tokens_per_image", _GEMMA3_TOKENS)
    side = vision.dimension("image_size", default=224)
    return ImageRule("fixed", patch, patch, tower, side_pixels=side, fixed_tokens=tokens)


def _pixtral(config: Config, vision: Config, text: int) -> ImageRule:
    hidden = vision.dimension("hidden_size", default=1024)
    patch = vision.dimension("patch_size", default=16)
    merge = config.dimension("spatial_merge_size", default=2)
    wide = vision.dimension("intermediate_size", default=4096)
    merger = ((merge * merge * hidden, hidden), (hidden, text), (text, text))
    tower = Tower(
        vision.layers(), hidden, wide, _stated(vision, "num_attention_heads", 16), True, 3 * patch * patch, merger
    )  # fmt: skip
    edge = _stated(vision, "image_size", _PIXTRAL_EDGE)
    return ImageRule("rows", patch * merge, patch, tower, side_pixels=edge)


_RULES: dict[str, Rule] = {
    "gemma3": _gemma3,
    "mistral3": _pixtral,
    "qwen2_vl": _qwen2,
    "qwen2_5_vl": _qwen2_5,
    "qwen3_vl": _qwen3,
    "qwen3_vl_moe": _qwen3,
}
FAMILIES = tuple(_RULES)
"""`model_type` of the families whose images are modelled."""


def image_rule(config: Config, vision: Config, text_hidden_size: int) -> ImageRule | None:
    """Return how a file's images become tokens; None for a family that is not modelled.

    Parameters
    ----------
    config : the file
    vision : its section of the tower
    text_hidden_size : [-]
        width of the tokens of the text model
    """
    rule = _RULES.get(config.model_type)
    return None if rule is None else rule(config, vision, text_hidden_size)
