"""The formats that weights and cached keys and values are stored in, scales included, and a network with the format of each matrix chosen.

Mixtures such as q4_k_m are those that llama-quantize writes. Source: `llama_tensor_get_type` and `tensor_allows_quantization` in
src/llama-quant.cpp of https://github.com/ggml-org/llama.cpp, read 2026-11-22, without an importance matrix. Checked against the bits per weight that its tools/quantize/README.md states for Llama 3.1 8B.

A format is a name; `FORMATS[name]` gives its size. Names such as `w4a16-g128` are parsed, not listed:
4-bit weights, 16-bit activations, one scale per 128 weights.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from capplan.assumption import Assumption
from capplan.errors import InputError, unknown
from capplan.model.network import Attention, Experts, LatentAttention, Layer, Network, Projection
from capplan.model.stored_tensor import (
    BLOCK_DTYPES,
    BLOCKS,
    CODEBOOKS,
    MIXTURE,
    SCALES_OF_INT2,
    blend_name,
    blend_shares,
    block_bits,
    coded_bits,
)
from capplan.numbers import Number

_WHOLE = frozenset({"bf16", "fp16", "fp32"})
"""Formats that are not quantised."""


def with_formats(
    network: Network,
    projection_format: Callable[[int, Projection], str],
    experts_format: Callable[[int, Experts], str | tuple[str, str]],
) -> Network:
    """Return the network with the format of each layer's matrices chosen by two functions.

    Parameters
    ----------
    network : the model
    projection_format : format of a projection, given the index of its layer
    experts_format : format of the routed experts, given the index of their layer; two where the matrix that writes the hidden
        state has its own

    Returns
    -------
    the same network, formats replaced; equal layers stay one object

    Raises
    ------
    InputError
        An encoder-decoder would be quantised.

    Examples
    --------
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layer = Layer((), (Projection("up", "ffn", 8, 16, "columns"),))
    >>> network = Network("n", "t", 8, 10, (layer,), head, True, 80)
    >>> changed = with_formats(network, lambda index, matrix: "fp8", lambda index, experts: "fp8")
    >>> changed.layers[0].projections[0].weight_format
    'fp8'
    """
    seen: dict[tuple[Layer, tuple[str, ...], str | tuple[str, str]], Layer] = {}
    layers = []
    for index, layer in enumerate(network.layers):
        names = tuple(projection_format(index, projection) for projection in layer.projections)
        if network.encoder is not None and not _WHOLE.issuperset(names):
            raise InputError(
                f"{network.name}: quantised weights of an encoder-decoder are not modelled, since engines quantise its encoder too\n"
                "  leave the weight dtype out, and the section of quantisation: its figures are then those of 16 bits"
            )
        key = (layer, names, experts_format(index, layer.experts) if layer.experts else "")
        if key not in seen:
            seen[key] = _layer_in(*key)
        layers.append(seen[key])
    return replace(network, layers=tuple(layers))


def _layer_in(layer: Layer, names: tuple[str, ...], of_experts: str | tuple[str, str]) -> Layer:
    projections = tuple(
        replace(projection, weight_format=name)
        for projection, name in zip(layer.projections, names, strict=True)
    )
    experts = experts_in(layer.experts, of_experts) if layer.experts else None
    return replace(layer, projections=projections, experts=experts)


def experts_in(experts: Experts, name: str | tuple[str, str]) -> Experts:
    """Return experts in one format, or in one for the matrices that read the hidden state and one for the matrix that writes it.

    Examples
    --------
    >>> experts_in(Experts(4, 2, 8, 16), ("fp8", "bf16")).matrices
    (('fp8', 256, 32), ('bf16', 128, 8))
    """
    into, out_of = (name, name) if isinstance(name, str) else name
    return replace(experts, weight_format=into, down_format=None if out_of == into else out_of)


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


QUANTISED_CLASSES = frozenset({"attention", "ffn", "expert", "shared_expert"})
"""Tensor classes that a quantiser converts; embedding, LM head, router, norms and states stay in 16 bits."""

WHOLE_FORMATS = frozenset({"fp32", "bf16", "fp16"})
"""Formats that apply to every tensor, because no scale is stored with them."""

SCALES_OF_INT4 = Assumption(
    "int4 means one fp16 scale per 128 weights and no zero points, 4.125 bits per weight",
    "--weight-dtype w4a16-g64, w4a16-g128-zp, ...",
    "weight_dtype",
)
"""Assumption behind the bare name int4."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How one weight matrix is stored, and in which format the device multiplies it."""

    name: str
    dtype: str
    """Name of the dtype on the command line: fp32 bf16 fp16 fp8 int8 int4 nvfp4 mxfp4."""
    bits: float
    """Bits of one element without scales."""
    compute_format: str
    """Format of the matmul on a device that supports it; weight-only formats multiply in bf16."""
    group_elements: int = 0
    """Elements that share a scale; 0 where scales are per channel or per tensor."""
    scale_bytes: float = 0.0
    """Bytes of scale (and zero point) of one group."""
    channel_bytes: float = 0.0
    """Bytes of scale (and zero point) of one output; 0 where a scale covers a group, or a whole tensor and is not counted."""

    @property
    def bytes_per_element(self) -> float:
        """Bytes of one element, its share of the scale of a group included."""
        scale = self.scale_bytes / self.group_elements if self.group_elements else 0.0
        return self.bits / 8.0 + scale

    def matrix_bytes(self, elements: Number, outputs: Number) -> Number:
        """Return the bytes of matrices with this many elements and outputs, all scales included."""
        return elements * self.bytes_per_element + outputs * self.channel_bytes

    @property
    def quantised(self) -> bool:
        """Whether the format is narrower than 16 bits."""
        return self.bits < 16


_GROUPED = re.compile(r"w(?P<bits>[2-8])a(?P<activation>16|8|4)(?:-g(?P<group>\d+))?(?P<zero>-zp(?:16)?)?")
_BLOCK = re.compile(r"fp8_block-(?P<rows>[1-9]\d{0,4})x(?P<columns>[1-9]\d{0,4})")
_SPARSE = "-2of4"


def grouped_format(name: str) -> WeightFormat | None:
    """Return the format that a name such as `w4a16-g128` or `w4a16-g128-zp` describes, or None.

    Each group stores an fp16 scale; with `-zp` also a zero point as wide as a weight, with `-zp16` one of 16 bits. Without
    `-g` every output stores them, the scale in fp32 where activations are quantised too.

    Parameters
    ----------
    name : weight bits, activation bits, group size, zero points

    Returns
    -------
    the format; None for any other name

    Examples
    --------
    Half a byte and two bytes of scale per 128 weights:

    >>> grouped_format("w4a16-g128").bytes_per_element
    0.515625
    >>> grouped_format("w4a16-zp").channel_bytes, grouped_format("bf16")
    (2.5, None)
    """
    match = _GROUPED.fullmatch(name)
    if match is None:
        return None
    bits, activation, group = int(match["bits"]), int(match["activation"]), int(match["group"] or 0)
    if match["group"] and not 8 <= group <= 65536:
        return None
    compute = {16: "bf16", 8: "int8" if bits == 8 else "fp8", 4: "int4"}[activation]
    zero_bytes = {None: 0.0, "-zp": bits / 8.0, "-zp16": 2.0}[match["zero"]]
    if not group:
        channel_bytes = (2.0 if activation == 16 else 4.0) + zero_bytes
        return WeightFormat(name, f"int{bits}", float(bits), compute, channel_bytes=channel_bytes)
    return WeightFormat(name, f"int{bits}", float(bits), compute, group, 2.0 + zero_bytes)


def _parsed(name: str) -> WeightFormat | None:
    """Return the format that a name describes: groups or blocks with scales, codebooks, 2:4 sparsity, or parts in several formats."""
    bits, shares = coded_bits(name), blend_shares(name)
    if bits is not None:
        return WeightFormat(name, name.partition("-")[0], bits, "bf16")
    if shares is not None:
        return _blend(name, shares)
    if name.endswith(_SPARSE):
        return _sparse(name)
    if block := _BLOCK.fullmatch(name):
        return WeightFormat(name, "fp8", 8, "fp8", int(block["rows"]) * int(block["columns"]), 4.0)
    return grouped_format(name)


def _blend(name: str, shares: Mapping[str, int]) -> WeightFormat | None:
    parts = [(FORMATS.get(part) or _parsed(part), count) for part, count in shares.items()]
    bits = channel = 0.0
    for part, count in parts:
        if part is None:
            return None
        bits += 8.0 * part.bytes_per_element * count
        channel += part.channel_bytes * count
    every = sum(shares.values())
    largest = max(shares, key=shares.__getitem__)
    return WeightFormat(name, FORMATS[largest].dtype, bits / every, "bf16", channel_bytes=channel / every)


def _sparse(name: str) -> WeightFormat | None:
    """Return a format with two of four weights: half of the weights and one bit for each, which of them they are."""
    base = name.removesuffix(_SPARSE)
    dense = FORMATS.get(base) or _parsed(base)
    return None if dense is None else replace(dense, name=name, bits=dense.bits / 2.0 + 1.0)


class _Formats(dict[str, WeightFormat]):
    """The named formats; grouped names are parsed on first use."""

    def __missing__(self, name: str) -> WeightFormat:
        parsed = _parsed(name)
        if parsed is None:
            raise unknown(
                "weight format",
                name,
                self,
                hint="or one with its group size, such as w4a16-g128, w8a16, w4a16-g64-zp",
            )
        self[name] = parsed
        return parsed


FORMATS: dict[str, WeightFormat] = _Formats(
    {
        entry.name: entry
        for entry in (
            WeightFormat("fp32", "fp32", 32, "fp32"),
            WeightFormat("bf16", "bf16", 16, "bf16"),
            WeightFormat("fp16", "fp16", 16, "fp16"),
            WeightFormat("fp8", "fp8", 8, "fp8"),
            WeightFormat("fp8_channel", "fp8", 8, "fp8", channel_bytes=4.0),
            WeightFormat("fp8_block", "fp8", 8, "fp8", 128 * 128, 4.0),
            WeightFormat("fp8_w8a16", "fp8", 8, "bf16"),
            WeightFormat("fp8_channel_w8a16", "fp8", 8, "bf16", channel_bytes=4.0),
            WeightFormat("mxfp8", "fp8", 8, "fp8", 32, 1.0),
            WeightFormat("int8", "int8", 8, "int8", channel_bytes=4.0),
            WeightFormat("int8_tensor", "int8", 8, "int8"),
            WeightFormat("int4", "int4", 4, "bf16", 128, 2.0),
            WeightFormat("nvfp4", "nvfp4", 4, "nvfp4", 16, 1.0),
            WeightFormat("nvfp4_w4a16", "nvfp4", 4, "bf16", 16, 1.0),
            WeightFormat("mxfp4", "mxfp4", 4, "mxfp4", 32, 1.0),
            WeightFormat("nf4", "int4", 4, "bf16", 64, 4.0),
            WeightFormat("nf4_double", "int4", 4, "bf16", 64, 1.0 + 4.0 / 256.0),
            WeightFormat("int2", "int2", 2, "bf16", 128, 2.0),
            *(WeightFormat(name, name, block_bits(name), "bf16") for name in BLOCK_DTYPES),
        )
    }
)
"""Weight formats by name. fp8, int8_tensor: one scale per tensor; fp8_channel, int8: an fp32 scale per output, as engines
hold it (checkpoints of compressed-tensors store it in 16 bits); fp8_block: an fp32 scale per 128 x 128;
nvfp4: an fp8 scale per 16; mxfp4, mxfp8: an 8-bit exponent per 32; nf4: an fp32 scale per 64 (bitsandbytes),
nf4_double: that scale in 8 bits, with an fp32 one per 256 scales."""

KV_FORMATS: dict[str, float] = {
    "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5, "nvfp4": 0.5625,
    **{name: block_bits(name) / 8.0 for name in ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")},
}  # fmt: skip
"""Bytes of one cached element; the scales of int8 and int4 caches are per head and not counted, those of llama.cpp's blocks of 32 are."""

WEIGHT_DTYPES = ("fp32", "bf16", "fp16", "fp8", "int8", "int4", "nvfp4", "mxfp4", "int2")
"""Weight dtypes of the command line, besides grouped names such as w4a16-g128 and the mixtures of GGUF files."""

KV_DTYPES = ("fp32", "bf16", "fp16", "fp8", "int8", "int4")
"""Cache dtypes of the command line."""


def kv_bytes_per_element(dtype: str) -> float:
    """Return the bytes of one cached element.

    Parameters
    ----------
    dtype : name of a cache format

    Returns
    -------
    [B]

    Examples
    --------
    >>> kv_bytes_per_element("fp8")
    1.0
    """
    if dtype not in KV_FORMATS:
        raise unknown("KV dtype", dtype, KV_DTYPES)
    return KV_FORMATS[dtype]


def named_weight_format(dtype: str) -> WeightFormat:
    """Return the format of a weight dtype of the command line.

    Parameters
    ----------
    dtype : one of `WEIGHT_DTYPES`, or a grouped name such as w4a16-g128

    Returns
    -------
    the format; of a mixture of GGUF files that of most matrices

    Examples
    --------
    >>> named_weight_format("w8a16").bytes_per_element
    1.0
    """
    weight_format = FORMATS.get(RECIPES[dtype].base if dtype in RECIPES else dtype) or _parsed(dtype)
    if weight_format is None:
        raise unknown(
            "weight dtype",
            dtype,
            (*WEIGHT_DTYPES, *RECIPES),
            hint="or one with its group size, such as w4a16-g128, or stated bits: aqlm-1x16-g8, quip-2",
        )
    return weight_format


def in_weight_format(network: Network, dtype: str) -> Network:
    """Return the network with its matrices in another weight dtype.

    fp32, bf16 and fp16 apply to every tensor, and undo a quantised checkpoint. A smaller dtype applies to
    attention, feed-forward and expert matrices; what is already stored in that dtype keeps its own form
    (a block-scaled fp8 checkpoint stays block-scaled), and everything else is in 16 bits. A mixture of GGUF files
    (q4_k_m) applies to embedding and LM head too.

    Parameters
    ----------
    network : the model
    dtype : one of `WEIGHT_DTYPES`, or a grouped name such as w4a16-g128

    Examples
    --------
    >>> from capplan.model.network import Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layer = Layer((), (Projection("up", "ffn", 8, 16, "columns"), Projection("router", "router", 8, 4, "none")))
    >>> network = in_weight_format(Network("n", "t", 8, 10, (layer,), head, True, 80), "fp8")
    >>> [projection.weight_format for projection in network.layers[0].projections]
    ['fp8', 'bf16']
    """
    if dtype in RECIPES:
        return in_recipe(network, dtype)
    wanted = named_weight_format(dtype)
    if network.vector_format is not None:
        network = replace(
            network,
            vector_format=None,
            embedding_format="fp16",
            lm_head=replace(network.lm_head, weight_format="fp16"),
        )
    if wanted.name in WHOLE_FORMATS:
        changed = with_formats(network, lambda _, __: wanted.name, lambda _, __: wanted.name)
        return replace(
            changed,
            lm_head=replace(network.lm_head, weight_format=wanted.name),
            pooler=replace(network.pooler, weight_format=wanted.name) if network.pooler else None,
            embedding_format=wanted.name,
            vision_format=wanted.name,
            activation_format=wanted.name,
            mtp_experts=_experts_in(network.mtp_experts, wanted.name),
        )
    rest = network.activation_format if network.activation_format != "fp32" else "bf16"

    def matrix(tensor_class: str, current: str) -> str:
        if tensor_class not in QUANTISED_CLASSES:
            return rest if FORMATS[current].quantised else current
        keep = FORMATS[current].dtype == wanted.dtype and wanted.name == wanted.dtype
        return current if keep else wanted.name

    changed = with_formats(
        network,
        lambda _, projection: matrix(projection.tensor_class, projection.weight_format),
        lambda _, experts: (
            matrix("expert", experts.matrices[0][0]),
            matrix("expert", experts.matrices[1][0]),
        ),
    )
    return replace(changed, mtp_experts=_experts_in(network.mtp_experts, wanted.name))


def _experts_in(experts: Experts | None, name: str) -> Experts | None:
    return experts_in(experts, name) if experts else None


def weight_format_assumptions(network: Network, dtype: str) -> tuple[Assumption, ...]:
    """Return what is assumed about the network in a weight dtype that its checkpoint may not have.

    Parameters
    ----------
    network : the model as its config says
    dtype : the requested weight dtype

    Returns
    -------
    assumptions; none where the checkpoint already has that dtype, or the dtype is a 16-bit or 32-bit one

    Examples
    --------
    >>> from capplan.model.network import Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layer = Layer((), (Projection("up", "ffn", 8, 16, "columns"),))
    >>> len(weight_format_assumptions(Network("n", "t", 8, 10, (layer,), head, True, 80), "int4"))
    2
    """
    if dtype in RECIPES:
        return (replace(MIXTURE, what=MIXTURE.what.format(dtype=dtype)),)
    wanted = named_weight_format(dtype)
    if wanted.name in WHOLE_FORMATS or wanted.dtype in stored_dtypes(network):
        return ()
    rest = Assumption(
        f"weight dtype {dtype}: attention, feed-forward and expert matrices are stored in it; embedding, LM head, "
        "router, norms and recurrent-state tensors stay in 16 bits",
        "a quantised checkpoint's own config",
    )
    named = {"int4": SCALES_OF_INT4, "int2": SCALES_OF_INT2, "aqlm": CODEBOOKS, "quip": CODEBOOKS}
    stated = named.get(wanted.name if wanted.group_elements else wanted.dtype)
    return (rest, stated) if stated else (rest,)


def stored_formats(network: Network) -> tuple[str, ...]:
    """Return the weight formats of the layers' matrices, most elements first.

    Returns
    -------
    names of formats

    Examples
    --------
    >>> from capplan.model.network import Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layer = Layer((), (Projection("up", "ffn", 8, 16, "columns", weight_format="fp8"),))
    >>> stored_formats(Network("n", "t", 8, 10, (layer,), head, True, 80))
    ('fp8',)
    """
    elements: dict[str, int] = {}
    for layer, count in network.distinct_layers:
        for projection in layer.projections:
            name = projection.weight_format
            elements[name] = elements.get(name, 0) + count * projection.parameters
        if layer.experts:
            for name, of_expert, _ in layer.experts.matrices:
                elements[name] = elements.get(name, 0) + count * layer.experts.experts * of_expert
    return tuple(sorted(elements, key=lambda name: -elements[name]))


def stored_dtypes(network: Network) -> frozenset[str]:
    """Return the dtypes of the layers' matrices.

    Returns
    -------
    names of dtypes, as on the command line

    Examples
    --------
    >>> from capplan.model.network import Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layer = Layer((), (Projection("up", "ffn", 8, 16, "columns", weight_format="fp8_block"),))
    >>> stored_dtypes(Network("n", "t", 8, 10, (layer,), head, True, 80))
    frozenset({'fp8'})
    """
    return frozenset(FORMATS[name].dtype for name in stored_formats(network))
