"""Images in a prompt: how many tokens and patches an image of a size becomes, and the tower that reads the patches."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Tower:
    """A transformer over the patches of one image; every patch sees the whole image, or its window of it."""

    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    gated: bool
    """Two input matrices of the feed-forward (gate, up) instead of one."""
    patch_inputs: int
    """Colours, frames and pixels of a patch."""
    merger: tuple[tuple[int, int], ...]
    """Inputs and outputs of the matrices that make the tokens of the text model; each multiplies every token once."""
    window_patches: int = 0
    """Patches of a window; 0: all layers see the whole image."""
    whole_layers: int = 0
    """Layers that see the whole image, where the others have windows."""


@dataclass(frozen=True, slots=True)
class ImageRule:
    """How a family turns an image into tokens."""

    kind: Literal["fixed", "resized", "rows"]
    """Every image alike; as many pixels as it has, between limits; a row of tokens and a break for every row of the image."""
    token_pixels: int
    """Side of the square that becomes one token."""
    patch_pixels: int
    """Side of a patch of the tower."""
    tower: Tower
    side_pixels: int = 0
    """Side to which every image is scaled (fixed), or its longest edge at most (rows)."""
    fixed_tokens: int = 0
    least_pixels: int = 0
    most_pixels: int = 0
    """Most pixels of the scaled image (resized)."""


@dataclass(frozen=True, slots=True)
class ImageWork:
    """Images of one size in the traffic."""

    patches: int
    merged_tokens: int
    """Tokens that the tower hands over, without those that mark rows."""
    per_prompt_token: float
    """Images for each token of a prompt that is computed, mean over the traffic."""


def scaled_pixels(width: int, height: int, side: int, least_pixels: int, most_pixels: int) -> tuple[int, int]:
    """Return width and height of an image scaled to whole squares, within a smallest and a largest number of pixels.

        w' = s round(w / s);  above the limit M: w' = s floor(w / (b s)), b = sqrt(w h / M);  below m: w' = s ceil(w b / s), b = sqrt(m / (w h))

    Parameters
    ----------
    width, height : [px]
        w and h.
    side : [px]
        s, of a square.
    least_pixels, most_pixels : [px]
        m and M, areas.

    Returns
    -------
    [px]
        w', h'.

    Examples
    --------
    >>> scaled_pixels(1000, 500, 28, 3136, 12845056), scaled_pixels(1000, 500, 28, 3136, 100000)
    ((1008, 504), (420, 196))

    References
    ----------
    Wang et al. 2024, "Qwen2-VL", section 2.1, arXiv:2409.12191; `smart_resize` of its processor in transformers.
    """
    across, down = (side * round(length / side) for length in (width, height))
    if across * down > most_pixels:
        ratio = math.sqrt(width * height / most_pixels)
        across, down = (max(side, math.floor(length / ratio / side) * side) for length in (width, height))
    elif across * down < least_pixels:
        ratio = math.sqrt(least_pixels / (width * height))
        across, down = (math.ceil(length * ratio / side) * side for length in (width, height))
    return across, down


def fitted_pixels(width: int, height: int, longest: int) -> tuple[int, int]:
    """Return width and height of an image scaled down, if need be, to a longest edge.

    Examples
    --------
    >>> fitted_pixels(3080, 1000, 1540), fitted_pixels(800, 600, 1540)
    ((1540, 500), (800, 600))
    """
    ratio = max(width / longest, height / longest)
    return (math.floor(width / ratio), math.floor(height / ratio)) if ratio > 1.0 else (width, height)


def image_shape(rule: ImageRule, width: int, height: int, most_pixels: int | None = None) -> tuple[int, int]:
    """Return the tokens of an image, across and down, as its tower merges them; for a fixed number of tokens it and one.

    Parameters
    ----------
    rule : of the family
    width, height : [px]
        of the image
    most_pixels : [px]
        limit of the processor instead of the family's

    Examples
    --------
    >>> tower = Tower(1, 8, 8, 1, False, 3, ())
    >>> image_shape(ImageRule("rows", 28, 14, tower, side_pixels=1540), 100, 50)
    (4, 2)
    """
    if rule.kind == "fixed":
        return rule.fixed_tokens, 1
    if rule.kind == "rows":
        across, down = fitted_pixels(width, height, rule.side_pixels)
        return math.ceil(across / rule.token_pixels), math.ceil(down / rule.token_pixels)
    limits = rule.least_pixels, most_pixels or rule.most_pixels
    across, down = scaled_pixels(width, height, rule.token_pixels, *limits)
    return across // rule.token_pixels, down // rule.token_pixels


def image_tokens(rule: ImageRule, width: int, height: int, most_pixels: int | None = None) -> int:
    """Return the tokens that an image adds to a prompt, without the words around it.

    Parameters
    ----------
    rule : of the family
    width, height : [px]
        of the image
    most_pixels : [px]
        limit of the processor instead of the family's

    Returns
    -------
    [token]

    Examples
    --------
    Four by two squares of 28 pixels, with a break after each of the two rows:

    >>> tower = Tower(1, 8, 8, 1, False, 3, ())
    >>> image_tokens(ImageRule("rows", 28, 14, tower, side_pixels=1540), 100, 50)
    10
    """
    across, down = image_shape(rule, width, height, most_pixels)
    return across * down + (down if rule.kind == "rows" else 0)


def image_work(
    rule: ImageRule, width: int, height: int, most_pixels: int | None, per_prompt_token: float
) -> ImageWork:
    """Return the patches that an image is for the tower, and the tokens that it hands over.

    Examples
    --------
    >>> tower = Tower(1, 8, 8, 1, False, 3, ())
    >>> image_work(ImageRule("rows", 28, 14, tower, side_pixels=1540), 100, 50, None, 0.5).patches
    32
    """
    across, down = image_shape(rule, width, height, most_pixels)
    patches = across * down * (rule.token_pixels // rule.patch_pixels) ** 2
    if rule.kind == "fixed":
        patches = (rule.side_pixels // rule.patch_pixels) ** 2
    return ImageWork(patches, across * down, per_prompt_token)
