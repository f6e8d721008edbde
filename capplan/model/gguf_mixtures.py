"""A network in a mixture of formats such as q4_k_m, as llama-quantize writes it without an importance matrix.

Source: `llama_tensor_get_type` and `tensor_allows_quantization` in src/llama-quant.cpp of https://github.com/ggml-org/llama.cpp,
read 2026-11-22. Checked against the bits per weight that its tools/quantize/README.md states for Llama 3.1 8B.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from capplan.errors import InputError
from capplan.model.network import (
    Attention,
    Experts,
    LatentAttention,
    Layer,
    Network,
    Projection,
    with_formats,
)
from capplan.model.stored_tensor import (
    BLOCKS,
    blend_name,
)

Rule = Callable[["_Place"], str | None]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a matrix stands."""

    index: int
    layers: int
    queries_per_kv_head: int

    @property
    def more_bits(self) -> bool:
        """The first and last eighth of the layers, and every third between them."""
        eighth = self.layers // 8
        return self.index < eighth or self.index >= 7 * self.layers // 8 or (self.index - eighth) % 3 == 2

    def first(self, part: int) -> bool:
        """Whether the layer is in the first part-th of all."""
        return self.index < self.layers // part


def _always(name: str) -> Rule:
    return lambda _: name


def _more_bits(name: str) -> Rule:
    return lambda place: name if place.more_bits else None


def _shared_keys(name: str, otherwise: str | None = None) -> Rule:
    return lambda place: name if place.queries_per_kv_head >= 4 else otherwise


def _first(part: int, name: str, otherwise: str | None = None) -> Rule:
    return lambda place: name if place.first(part) else otherwise


@dataclass(frozen=True, slots=True)
class Recipe:
    """One mixture: a format for every matrix, and others for those that lose most by it."""

    base: str
    value: Rule | None = None
    """Rule of the values of attention."""
    down: Rule | None = None
    """Rule of the matrix that leads out of a feed-forward."""
    output: Rule | None = None
    """Rule of the matrix that leads out of attention."""
    fused: str | None = None
    """Format of queries, keys and values in one tensor, as in published files; the newest quantiser treats it as values."""


RECIPES: dict[str, Recipe] = {
    "q4_0": Recipe("q4_0"),
    "q4_1": Recipe("q4_1"),
    "q5_0": Recipe("q5_0"),
    "q5_1": Recipe("q5_1"),
    "q8_0": Recipe("q8_0"),
    "q2_k": Recipe("q2_k", _shared_keys("q4_k", "q3_k"), _always("q3_k"), _always("q3_k")),
    "q3_k_s": Recipe("q3_k"),
    "q3_k_m": Recipe(
        "q3_k",
        lambda place: "q5_k" if place.index < 2 else "q4_k",
        _first(16, "q5_k", "q4_k"),
        _always("q4_k"),
        "q4_k",
    ),
    "q3_k_l": Recipe("q3_k", _always("q5_k"), _always("q5_k"), _always("q5_k"), "q4_k"),
    "q4_k_s": Recipe("q4_k", lambda place: "q5_k" if place.index < 4 else None, _first(8, "q5_k")),
    "q4_k_m": Recipe("q4_k", _more_bits("q6_k"), _more_bits("q6_k"), fused="q5_k"),
    "q5_k_s": Recipe("q5_k"),
    "q5_k_m": Recipe("q5_k", _more_bits("q6_k"), _more_bits("q6_k"), fused="q6_k"),
    "q6_k": Recipe("q6_k"),
    "iq4_nl": Recipe("iq4_nl", _shared_keys("q5_k"), _first(8, "q5_k")),
    "iq4_xs": Recipe("iq4_xs", _shared_keys("q5_k"), _first(8, "q5_k")),
}
"""Mixtures by the name of their files."""
RECIPES |= {name: RECIPES[f"{name}_m"] for name in ("q3_k", "q4_k", "q5_k")}


_WHEN_ROWS_ARE_ODD = {
    "q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0", "iq4_xs": "iq4_nl",
}  # fmt: skip
"""Format of rows that are not whole blocks of 256."""

_KEPT = frozenset({"router", "norm", "state", "other", "vision", "mtp"})
_NARROW = frozenset({"q2_k", "q3_k", "q4_k", "iq4_nl", "iq4_xs"})
_EIGHT_EXPERTS = 8
"""Experts of the models whose attention the quantiser holds in more bits."""
_FUSED = frozenset(
    {"phi", "phi3", "gpt2", "gpt_bigcode", "gpt_neox", "falcon", "bloom", "mpt", "dbrx", "chatglm"}
)
"""Model types whose files hold queries, keys and values as one tensor."""
_OTHERWISE = frozenset({"falcon", "RefinedWeb", "RefinedWebModel"})
"""Model types that llama-quantize gives other mixtures."""


def in_recipe(network: Network, name: str) -> Network:
    """Return the network as llama-quantize writes it in a mixture.

    Parameters
    ----------
    network : the model
    name : key of RECIPES

    Returns
    -------
    the same network, formats replaced; embedding and LM head are quantised too

    Raises
    ------
    InputError
        Models of this type have mixtures of their own.

    Examples
    --------
    >>> head = Projection("lm_head", "lm_head", 256, 10, "columns")
    >>> layer = Layer((Attention(8, 2, 32, 32),), (Projection("qkv", "attention", 256, 384, "columns", kv_outputs=128),))
    >>> held = in_recipe(Network("n", "t", 256, 10, (layer,) * 8, head, True, 2560), "q4_k_m")
    >>> held.layers[0].projections[0].weight_format, held.layers[1].projections[0].weight_format, held.embedding_format
    ('q4_k*5+q6_k*1', 'q4_k', 'q6_k')

    References
    ----------
    llama.cpp, src/llama-quant.cpp: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-quant.cpp.
    """
    _refuse_other_mixtures(network, name)
    recipe = RECIPES[name]
    count = len(network.layers)
    places = [_Place(i, count, _queries_per_kv_head(layer)) for i, layer in enumerate(network.layers)]
    eight = any(layer.experts and layer.experts.experts == _EIGHT_EXPERTS for layer in network.layers)
    large = count == 80 and network.model_type in ("llama", "qwen2")

    def matrix(index: int, projection: Projection) -> str:
        if projection.tensor_class in _KEPT or projection.name == "shared_gate":
            return "fp32"
        if projection.name == "qkv" and network.model_type in _FUSED:
            return _fitting(recipe.fused or recipe.base, projection.inputs)
        if projection.name == "qkv":
            value = _value(recipe, places[index], eight=eight, large=large)
            return _of_attention(recipe.base, value, projection, eight=eight)
        if projection.name == "kv_b":
            return _of_latents(recipe.base, projection, network.layers[index])
        return _format(recipe, projection, places[index], eight=eight)

    def experts(index: int, held: Experts) -> str:
        return _of_experts(recipe, held, places[index])

    formatted = with_formats(network, matrix, experts)
    ends = "q8_0" if recipe.base == "q8_0" else "q6_k"
    width = network.hidden_size
    return replace(
        formatted,
        lm_head=replace(network.lm_head, weight_format=_fitting(ends, width)),
        embedding_format=_fitting(ends if network.tied_embeddings else recipe.base, width),
        vector_format="fp32",
    )


def _refuse_other_mixtures(network: Network, name: str) -> None:
    if network.model_type in _OTHERWISE:
        raise InputError(
            f"weight dtype {name}: {network.name}: llama-quantize mixes formats of {network.model_type} models in a way that is not modelled\n"
            "  give the GGUF file itself as MODEL, or a format for every matrix, such as int4"
        )


def _of_experts(recipe: Recipe, held: Experts, place: _Place) -> str:
    down = recipe.down(place) if recipe.down else None
    parts = {_fitting(recipe.base, held.inputs): 2 if held.gated else 1}
    last = _fitting(down or recipe.base, held.intermediate_size)
    return blend_name({**parts, last: parts.get(last, 0) + 1})


def _queries_per_kv_head(layer: Layer) -> int:
    return next(
        (mixer.query_heads // mixer.kv_heads for mixer in layer.mixers if isinstance(mixer, Attention)), 1
    )


def _fitting(name: str, columns: int) -> str:
    """Return the format, or the one that takes its place where rows are not whole blocks."""
    if columns % BLOCKS[name].elements == 0:
        return name
    instead = _WHEN_ROWS_ARE_ODD.get(name, "fp16")
    return instead if columns % BLOCKS[instead].elements == 0 else "fp16"


def _value(recipe: Recipe, place: _Place, *, eight: bool, large: bool) -> str:
    """Return the format of the values of attention."""
    value = (recipe.value(place) if recipe.value else None) or recipe.base
    if large and value in ("q3_k", "q4_k"):
        value = "q5_k"
    return "q8_0" if eight else value


def _of_attention(base: str, value: str, projection: Projection, *, eight: bool) -> str:
    """Return the format of queries, keys and values together."""
    columns, half = projection.inputs, projection.kv_outputs // 2
    parts: dict[str, int] = {}
    for name, rows in (
        (base, projection.outputs - 2 * half),
        ("q8_0" if eight else base, half),
        (value, half),
    ):
        held = _fitting(name, columns)
        parts[held] = parts.get(held, 0) + rows
    return blend_name(parts)


def _of_latents(base: str, projection: Projection, layer: Layer) -> str:
    """Return the format of the matrices that lead from a latent to keys, whose rows are short, and to values."""
    mixer = next((mixer for mixer in layer.mixers if isinstance(mixer, LatentAttention)), None)
    if mixer is None:
        return _fitting(base, projection.inputs)
    parts = {_fitting(base, mixer.nope_head_dim): mixer.nope_head_dim}
    held = _fitting(base, projection.inputs)
    return blend_name({**parts, held: parts.get(held, 0) + mixer.value_head_dim})


def _format(recipe: Recipe, projection: Projection, place: _Place, *, eight: bool) -> str:
    """Return the format of a matrix outside of attention, or of the one that leads out of it."""
    chosen = None
    if projection.name == "down" or projection.name.endswith("_down"):
        chosen = recipe.down(place) if recipe.down else None
    elif projection.name == "o":
        chosen = recipe.output(place) if recipe.output else None
        chosen = "q5_k" if eight and recipe.base in _NARROW else chosen
    return _fitting(chosen or recipe.base, projection.inputs)
