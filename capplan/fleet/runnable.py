"""What runs on the machine at hand: of every model the best quantisation of GGUF files that fits, and its longest context."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from capplan.errors import InputError
from capplan.hardware.device import Device, engine_memory_bytes
from capplan.memory.layer_groups import held_state_bytes
from capplan.model.kv_cache import kv_bytes_per_sequence
from capplan.model.network import Network
from capplan.model.parameters import parameters, weight_bytes
from capplan.model.weight_format import in_weight_format, kv_bytes_per_element, stored_formats

BY_QUALITY = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k")
"""Quantisations of GGUF files, nearest to the model first."""
TRAINED_IN_GGUF = frozenset({"bf16", "fp16", "fp32", "mxfp4"})
"""Formats of checkpoints that GGUF files have too."""
STEP_TOKENS = 512
"""Tokens of a step, llama.cpp's `--ubatch-size`."""
LEAST_CONTEXT = 4096
"""A model counts as running where a request of so many tokens fits."""
UNKNOWN_CONTEXT = 131_072
"""Longest context that is tried of a model that states none."""


@dataclass(frozen=True, slots=True)
class Runnable:
    """A model in one quantisation, on one device."""

    model: str
    parameters: float
    weight_dtype: str
    quality: int
    """Place of the quantisation among those by quality, 0 the best."""
    weight_bytes: float
    longest_context_tokens: int
    memory_bytes: float
    """Memory that it takes at its longest context."""


def step_bytes(network: Network) -> float:
    """Return the buffers of one step: scores over the vocabulary and hidden states of its tokens, in fp32.

        B = 4 u (V + h)

    with u tokens, V words and h hidden elements; attention keeps no scores with flash attention.

    Returns
    -------
    [B]

    References
    ----------
    llama.cpp, `graph_reserve` in src/llama-context.cpp, which reserves a step whose tokens are all outputs:
    258.5 MiB for Llama 3.1 8B. https://github.com/ggml-org/llama.cpp.
    """
    return 4.0 * STEP_TOKENS * (network.vocabulary_size + network.hidden_size)


def memory_bytes(network: Network, context_tokens: int, kv_dtype: str) -> float:
    """Return the memory of a model with one sequence, all of it on the device [B]."""
    cache = float(kv_bytes_per_sequence(network, float(context_tokens), kv_bytes_per_element(kv_dtype)))
    state = float(held_state_bytes(network, context_tokens=float(context_tokens)))
    return weight_bytes(network) + cache + state + step_bytes(network)


def longest_context(network: Network, available_bytes: float, kv_dtype: str) -> int:
    """Return the longest context of one sequence that fits [tokens]; 0 if none does."""
    most = network.max_context_tokens or UNKNOWN_CONTEXT
    if memory_bytes(network, most, kv_dtype) <= available_bytes:
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        if memory_bytes(network, middle, kv_dtype) <= available_bytes:
            low = middle
        else:
            high = middle
    return low


def as_stored(
    network: Network, device: Device, kv_dtype: str, least_context: int, dtype: str = "", quality: int = 0
) -> Runnable | None:
    """Return a model that runs on a device in the formats that it is stored in; None where it does not fit.

    Parameters
    ----------
    network : the model
    device : all of whose memory is free
    kv_dtype : of the cache
    least_context : [tokens]
        that have to fit; a model with a shorter maximum needs its maximum
    dtype : name of the quantisation; empty: the formats of the matrices
    quality : its place among those by quality
    """
    context = longest_context(network, engine_memory_bytes(device), kv_dtype)
    if context < min(least_context, network.max_context_tokens or least_context):
        return None
    named = dtype or "+".join(sorted(set(stored_formats(network)) - {"fp32"}))
    used, size = memory_bytes(network, context, kv_dtype), float(parameters(network))
    return Runnable(network.name, size, named, quality, weight_bytes(network), context, used)


def best_runnable(
    network: Network, device: Device, kv_dtype: str, dtypes: Sequence[str], least_context: int
) -> Runnable | None:
    """Return the best quantisation of a model that runs on a device; None where none fits, and where llama-quantize writes none.

    A model whose experts were trained in mxfp4 stays as it is.
    """
    formats = set(stored_formats(network))
    if "mxfp4" in formats and formats <= TRAINED_IN_GGUF:
        return as_stored(network, device, kv_dtype, least_context)
    for quality, dtype in enumerate(dtypes):
        try:
            quantised = in_weight_format(network, dtype)
        except InputError:
            return None
        if (runs := as_stored(quantised, device, kv_dtype, least_context, dtype, quality)) is not None:
            return runs
    return None


def runnable_models(
    networks: Iterable[Network], device: Device, kv_dtype: str, dtypes: Sequence[str], least_context: int
) -> list[Runnable]:
    """Return the models that run on a device: best quantisation first, then the most parameters."""
    found = (best_runnable(network, device, kv_dtype, dtypes, least_context) for network in networks)
    runs = [row for row in found if row is not None]
    return sorted(runs, key=lambda row: (row.quality, -row.parameters, row.model))
