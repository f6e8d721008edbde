"""How an engine lays out the caches of different layers in one pool of equal blocks."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from capplan.assumption import Assumption
from capplan.engine.profile import MemoryRules
from capplan.model.kv_cache import state_bytes_per_sequence
from capplan.model.mixers import CachePart, StatePart, held_vector_bytes, state_elements_on_rank
from capplan.model.network import Network, layer_counts
from capplan.model.weight_format import FORMATS
from capplan.numbers import Number


@dataclass(frozen=True, slots=True)
class CacheKind:
    """Layers whose caches have the same shape, on one rank."""

    kind: Literal["full", "window", "state", "source"]
    """`source`: the positions of an encoder, whatever the context."""
    layers: int
    token_bytes: Number
    """Bytes per token and layer; 0 for states."""
    state_bytes: Number
    """Bytes per sequence and layer; 0 for caches that grow."""
    window_tokens: float = np.inf
    """Most recent tokens that are kept, or the positions of an encoder."""
    chunked: bool = False


def held_format(
    part: StatePart, activation_format: str | None, recurrent_format: str | None = None
) -> str | None:
    """Return the format in which an engine stores a state, or None for the dtype of the model.

    Parameters
    ----------
    part : the state
    activation_format : dtype of the model
    recurrent_format : of the engine (`MemoryRules.recurrent_format`); None: the dtype of the model

    Examples
    --------
    >>> held_format(StatePart(8, 8, "fp32", recurrent=True), "bf16"), held_format(StatePart(8, 8, "fp32"), "bf16")
    ('bf16', 'fp32')

    References
    ----------
    vLLM, `MambaStateDtypeCalculator` in vllm/model_executor/layers/mamba/mamba_utils.py, and `NemotronHForCausalLMConfig` in
    vllm/model_executor/models/config.py, which stores fp32 where the config states nothing; KDA is always in fp32.
    """
    if part.recurrent and not part.stated:
        return recurrent_format or activation_format
    return part.state_format


def narrow_states(network: Network, rules: MemoryRules, engine: str) -> tuple[Assumption, ...]:
    """Return what is assumed where an engine stores recurrent states in fewer bits than the reference computes them in.

    Returns
    -------
    one assumption, or none

    Examples
    --------
    >>> from capplan.engine.lookup import profile
    >>> from capplan.model.network import Layer, Projection, StateSpace
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> network = Network("n", "t", 8, 10, (Layer((StateSpace(1, 128, 1, 128, 8, 1, 128, 4),), ()),), head, True, 80)
    >>> [len(narrow_states(network, profile(name).memory, name)) for name in ("vllm", "sglang")]
    [1, 0]
    """
    pairs = {
        (part.state_format, held_format(part, network.activation_format, rules.recurrent_format))
        for layer, _ in layer_counts(network)
        for mixer in layer.mixers
        for part in mixer.description.state_parts
        if part.recurrent
    }
    wider = {name: kept for name, kept in pairs if name and kept and FORMATS[name].bits > FORMATS[kept].bits}
    if not wider:
        return ()
    held = next(iter(wider.values()))
    what = (
        f"recurrent states in {held}, the dtype of the model, as {engine} holds them by default; the reference "
        f"implementation keeps them in {', '.join(sorted(wider))}"
    )
    return (Assumption(what, "mamba_ssm_cache_dtype or mamba_ssm_dtype in config.json"),)


def cache_kinds(
    network: Network,
    tensor_parallel: Number,
    kv_bytes_per_element: Number,
    activation_bytes: Number = 2.0,
    recurrent_format: str | None = None,
) -> list[CacheKind]:
    """Return the kinds of cache in a network, each with its number of layers.

    Parameters
    ----------
    network : the model, or the layers of one pipeline stage
    tensor_parallel : [-]
        ranks
    kv_bytes_per_element : [B]
        of the cache dtype
    activation_bytes : [B]
        of the model dtype, in which convolution states are stored
    recurrent_format : in which the engine stores recurrent states; None: the dtype of the model

    Returns
    -------
    kinds in order of first occurrence; layers that cache nothing are left out

    Examples
    --------
    >>> from capplan.model.network import Attention, Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layers = (Layer((Attention(8, 8, 64, 64),), ()), Layer((Attention(8, 8, 64, 64, window_tokens=128),), ()))
    >>> kinds = cache_kinds(Network("n", "t", 8, 10, layers * 3, head, True, 80), 1.0, 2.0)
    >>> [(kind.kind, kind.layers, float(kind.token_bytes)) for kind in kinds]
    [('full', 3, 2048.0), ('window', 3, 2048.0)]
    """
    layers: Counter[tuple[tuple[CachePart, ...], tuple[StatePart, ...]]] = Counter()
    for layer, count in layer_counts(network):
        for description in (mixer.description for mixer in layer.mixers):
            layers[description.cache_parts, description.state_parts] += count
    kinds = []
    for (cache_parts, state_parts), count in layers.items():
        growing: dict[tuple[float, bool], Number] = {}
        for part in cache_parts:
            vector = held_vector_bytes(part, kv_bytes_per_element, tensor_parallel)
            if part.source_tokens:
                kinds.append(CacheKind("source", count, vector, 0.0, float(part.source_tokens)))
                continue
            window = part.window_tokens, part.chunked
            growing[window] = growing.get(window, 0.0) + vector / part.entry_tokens
        for (window_tokens, chunked), size in growing.items():
            kind: Literal["full", "window"] = "full" if window_tokens == np.inf else "window"
            kinds.append(CacheKind(kind, count, size, 0.0, window_tokens, chunked))
        if state_parts:
            held = state_bytes_held(
                state_parts, tensor_parallel, activation_bytes, network.activation_format, recurrent_format
            )
            kinds.append(CacheKind("state", count, 0.0, held))
    return _merged(kinds)


def state_bytes_held(
    parts: tuple[StatePart, ...],
    tensor_parallel: Number = 1.0,
    activation_bytes: Number = 2.0,
    activation_format: str | None = None,
    recurrent_format: str | None = None,
) -> Number:
    """Return the fixed state of one sequence in one layer as engines store it.

        S = sum over its parts of e_rank b

    Parameters
    ----------
    parts : declared by the mixer of the layer
    tensor_parallel : [-]
        ranks
    activation_bytes : [B]
        of the model dtype
    activation_format : dtype of the model; None: every state in the format that the mixer states
    recurrent_format : in which the engine stores recurrent states that nothing else states; None: the dtype of the model

    Returns
    -------
    [B]
        S; of a convolution, engines keep one input fewer than the kernel has taps

    Examples
    --------
    >>> from capplan.model.network import ShortConvolution
    >>> state_bytes_held(ShortConvolution(64, 3).description.state_parts)
    256.0

    References
    ----------
    vLLM, `MambaStateShapeCalculator`: https://docs.vllm.ai/en/latest/api/vllm/model_executor/layers/mamba/mamba_utils.
    """
    size: Number = 0.0 * tensor_parallel * activation_bytes
    for part in parts:
        name = held_format(part, activation_format, recurrent_format) or part.state_format
        each = activation_bytes if name is None else FORMATS[name].bytes_per_element
        size = size + state_elements_on_rank(part.allocated_elements, part.pieces, tensor_parallel) * each
    return size


def held_state_bytes(
    network: Network,
    tensor_parallel: Number = 1.0,
    recurrent_format: str | None = None,
    context_tokens: Number = np.inf,
) -> Number:
    """Return the fixed state of one sequence as an engine stores it, in all layers, on one rank.

        S = min(sum over layers of states in the engine's format, state of the reference) - U, heads divided by tp
        U = sum over parts that w tokens fill of (1 - n / w) of them, where n < w

    Entries that compressed attention has not filled yet share pages with those that it has, so the reference bounds them.

    Parameters
    ----------
    network : the model
    tensor_parallel : [-]
        tp, ranks; pieces that several heads share are replicated once ranks outnumber them
    recurrent_format : in which the engine stores recurrent states; None: the dtype of the model
    context_tokens : [tokens]
        n, prompt and output so far

    Returns
    -------
    [B]
        S; zero for a network of attention layers only

    Examples
    --------
    >>> from capplan.model.network import Layer, Projection, ShortConvolution
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layer = Layer((ShortConvolution(64, 3),), ())
    >>> float(held_state_bytes(Network("n", "t", 8, 10, (layer,), head, True, 80)))
    256.0

    References
    ----------
    vLLM, `MambaStateShapeCalculator`: https://docs.vllm.ai/en/latest/api/vllm/model_executor/layers/mamba/mamba_utils.
    """
    element = FORMATS[network.activation_format].bytes_per_element
    kinds = cache_kinds(network, tensor_parallel, element, element, recurrent_format)
    held: Number = sum((kind.layers * kind.state_bytes for kind in kinds), 0.0 * tensor_parallel)
    least: Number = np.minimum(held, state_bytes_per_sequence(network, tensor_parallel, element))
    waiting = [
        (count, part)
        for layer, count in layer_counts(network)
        for mixer in layer.mixers
        for part in mixer.description.state_parts
        if part.filled_by_tokens
    ]
    for count, part in waiting:
        whole = FORMATS[part.state_format or network.activation_format].bytes_per_element * (
            state_elements_on_rank(min(part.elements, part.allocated_elements), part.pieces, tensor_parallel)
        )
        unfilled = np.maximum(1.0 - context_tokens / part.filled_by_tokens, 0.0)
        least = least - count * whole * unfilled
    return least


def _merged(kinds: list[CacheKind]) -> list[CacheKind]:
    """Return the kinds, merging those that an engine does not distinguish."""
    merged: list[CacheKind] = []
    for kind in kinds:
        for index, other in enumerate(merged):
            same = (kind.kind, kind.window_tokens, kind.chunked) == (
                other.kind, other.window_tokens, other.chunked,
            )  # fmt: skip
            grows = np.array_equal(kind.token_bytes, other.token_bytes)
            if same and grows and np.array_equal(kind.state_bytes, other.state_bytes):
                merged[index] = replace(other, layers=other.layers + kind.layers)
                break
        else:
            merged.append(kind)
    return merged


def group_layers(kinds: list[CacheKind]) -> int:
    """Return the layers per group; every layer of a group has a slot in each block.

        g = layers of the rarest kind, or of the commonest where that has fewer than 1.5 x as many

    Parameters
    ----------
    kinds : the kinds of caches

    Returns
    -------
    [-]
        g; the last group of each kind is padded to it

    Examples
    --------
    52 sliding and 10 full layers make groups of ten: six and one, 70 slots for 62 layers.

    >>> kinds = [CacheKind("window", 52, 1.0, 0.0), CacheKind("full", 10, 1.0, 0.0)]
    >>> group_layers(kinds)
    10

    References
    ----------
    vLLM documentation, "Hybrid KV Cache Manager": https://docs.vllm.ai/en/latest/design/hybrid_kv_cache_manager.html.
    """
    counts = [kind.layers for kind in kinds]
    smallest, largest = min(counts), max(counts)
    return largest if largest < 1.5 * smallest else smallest
