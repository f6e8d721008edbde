"""What one sequence keeps between steps: keys and values that grow, states that do not.

This is what the architecture needs. What an engine reserves on top (blocks, padding of layer
groups, packed MLA layouts such as the 656 bytes per token of vLLM's fp8_ds_mla) is counted in `memory`.
"""

from collections.abc import Iterator

import numpy as np

from capplan.model.mixers import (
    CachePart,
    cache_elements_on_rank,
    state_elements_on_rank,
)
from capplan.model.network import Mixer, Network, layer_counts
from capplan.model.weight_format import FORMATS
from capplan.numbers import Number


def cached_tokens(context_tokens: Number, window_tokens: Number) -> Number:
    """Return how many tokens of a context a layer with a window has to keep.

        c = min(n, w)

    Parameters
    ----------
    context_tokens : [tokens]
        n
    window_tokens : [tokens]
        w, the current position included; for chunked attention a full chunk

    Returns
    -------
    [tokens]
        c, what the architecture needs; engines keep more

    Examples
    --------
    >>> cached_tokens(8192.0, 4096.0)
    np.float64(4096.0)

    References
    ----------
    Jiang et al. 2023, "Mistral 7B", arXiv:2310.06825, section 2 (rolling buffer cache).
    """
    tokens: Number = np.minimum(context_tokens, window_tokens)
    return tokens


def kv_bytes_per_sequence(
    network: Network,
    context_tokens: Number,
    kv_bytes_per_element: Number,
    tensor_parallel: Number = 1.0,
    *,
    stored: bool = False,
) -> Number:
    """Return the bytes of keys and values of one sequence in all layers, on one rank.

        B = b * sum over layers of e * floor(min(n, w) / c), and of e * s where a layer reads an encoder

    Parameters
    ----------
    network : the model
    context_tokens : [tokens]
        n, prompt and output so far; s positions of an encoder are kept whatever it is
    kv_bytes_per_element : [B]
        b, of the cache dtype, which does not follow from the weight dtype
    tensor_parallel : [-]
        ranks; 1 gives the whole sequence
    stored : whether index keys are as engines store them; else in the cache dtype, as in reference implementations

    Returns
    -------
    [B]
        B, without the fixed state

    Examples
    --------
    One layer of eight heads of 128 and a window of 4 tokens, 4096 bytes a token:

    >>> from capplan.model.network import Attention, Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layer = Layer((Attention(8, 8, 128, 128, window_tokens=4),), ())
    >>> network = Network("n", "t", 8, 10, (layer,), head, True, 80)
    >>> kv_bytes_per_sequence(network, np.array([2.0, 100.0]), 2.0)
    array([ 8192., 16384.])

    References
    ----------
    Kwon et al. 2023, "PagedAttention", arXiv:2309.06180, section 1; Ainslie et al. 2023, arXiv:2305.13245.
    """
    total: Number = np.zeros(()) * context_tokens * kv_bytes_per_element * tensor_parallel
    for part, count in _cache_parts(network):
        kept = part.source_tokens or cached_tokens(context_tokens, part.window_tokens)
        if part.entry_tokens > 1:
            kept = np.floor(kept / part.entry_tokens)
        size = stored_element_bytes(part, kv_bytes_per_element) if stored else kv_bytes_per_element
        held = cache_elements_on_rank(part.elements, part.heads, tensor_parallel)
        total = total + count * held * kept * size
    return total


def kv_bytes_per_token(
    network: Network,
    context_tokens: Number,
    kv_bytes_per_element: Number,
    tensor_parallel: Number = 1.0,
    *,
    stored: bool = False,
) -> Number:
    """Return the bytes by which the cache of a sequence grows with its next token.

        g = b * sum of e / c over the layers whose window is not full yet (n < w)

    Parameters
    ----------
    network : the model
    context_tokens : [tokens]
        n, tokens already cached
    kv_bytes_per_element : [B]
        b
    tensor_parallel : [-]
        ranks
    stored : whether index keys are as engines store them; else in the cache dtype, as in reference implementations

    Returns
    -------
    [B/token]
        g; the average where one entry compresses c tokens

    Examples
    --------
    >>> from capplan.model.network import Attention, Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layer = Layer((Attention(8, 8, 128, 128, window_tokens=4),), ())
    >>> network = Network("n", "t", 8, 10, (layer,), head, True, 80)
    >>> kv_bytes_per_token(network, np.array([2.0, 100.0]), 2.0)
    array([4096.,    0.])

    References
    ----------
    Jiang et al. 2023, "Mistral 7B", arXiv:2310.06825, section 2 (rolling buffer cache).
    """
    total: Number = np.zeros(()) * context_tokens * kv_bytes_per_element * tensor_parallel
    for part, count in _cache_parts(network):
        growing = (np.asarray(context_tokens) < part.window_tokens) & (part.source_tokens == 0)
        grows = np.where(growing, 1.0 / part.entry_tokens, 0.0)
        held = cache_elements_on_rank(part.elements, part.heads, tensor_parallel)
        size = stored_element_bytes(part, kv_bytes_per_element) if stored else kv_bytes_per_element
        total = total + count * held * grows * size
    return total


def stored_element_bytes(part: CachePart, kv_bytes_per_element: Number) -> Number:
    """Return the bytes of one element of a part as engines store it: index keys are packed, whatever the cache dtype is.

        b_i = min(b, q / e)

    Parameters
    ----------
    part : of the cache of a layer, of e elements, packed into q bytes if it is an index
    kv_bytes_per_element : [B]
        b, of the cache dtype

    Returns
    -------
    [B]
        b_i of an index key, b of every other part

    References
    ----------
    DeepSeek-AI 2025, "DeepSeek-V3.2-Exp", inference/model.py, `Indexer` (fp8 with an fp32 scale for 128 elements):
    https://github.com/deepseek-ai/DeepSeek-V3.2-Exp.
    """
    if not part.index or part.packed_bytes is None:
        return kv_bytes_per_element
    size: Number = np.minimum(kv_bytes_per_element, part.packed_bytes / part.elements)
    return size


def _cache_parts(network: Network) -> Iterator[tuple[CachePart, int]]:
    """Yield every part that layers cache, with the number of layers."""
    for layer, count in layer_counts(network):
        for mixer in layer.mixers:
            for part in mixer.description.cache_parts:
                yield part, count


def state_bytes_per_sequence(
    network: Network, tensor_parallel: Number = 1.0, activation_bytes: Number = 2.0
) -> Number:
    """Return the bytes of the fixed state of one sequence, on one rank.

        S = sum over layers of conv channels * kernel * b_a + recurrent elements * b_s, heads divided by tp

    Parameters
    ----------
    network : the model
    tensor_parallel : [-]
        tp, ranks; state groups that several heads share are replicated once ranks outnumber them
    activation_bytes : [B]
        b_a, of the model dtype, in which convolution states are stored; recurrent states have a separate dtype

    Returns
    -------
    [B]
        S; zero for a network of attention layers only

    Examples
    --------
    >>> from capplan.model.network import Layer, Projection, ShortConvolution
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layer = Layer((ShortConvolution(64, 3),), ())
    >>> state_bytes_per_sequence(Network("n", "t", 8, 10, (layer,), head, True, 80))
    384.0

    References
    ----------
    Gu, Dao 2023, "Mamba", arXiv:2312.00752, section 3; Dao, Gu 2024, arXiv:2405.21060, section 8.
    """
    total: Number = 0.0
    total = total * tensor_parallel * activation_bytes
    for layer, count in layer_counts(network):
        for mixer in layer.mixers:
            total = total + count * state_bytes(mixer, tensor_parallel, activation_bytes)
    return total


def state_bytes(mixer: Mixer, tensor_parallel: Number = 1.0, activation_bytes: Number = 2.0) -> Number:
    """Return the bytes of the fixed state of one sequence in one layer, on one rank.

        S = sum over its parts of e_rank b

    Parameters
    ----------
    mixer : the mixer of the layer
    tensor_parallel : [-]
        tp
    activation_bytes : [B]
        b_a

    Returns
    -------
    [B]
        S; b is b_a for convolution states and that of the stated format for recurrent ones; zero for attention over a cache

    Examples
    --------
    Mamba-1 with 128 channels, state 8, kernel 4: 512 convolution inputs in bf16 and 1024 state elements in fp32.

    >>> from capplan.model.network import StateSpace
    >>> state_bytes(StateSpace(1, 128, 1, 128, 8, 1, 128, 4))
    5120.0

    References
    ----------
    Dao, Gu 2024, "Transformers are SSMs", arXiv:2405.21060, section 8.2 (tensor parallelism).
    """
    size: Number = 0.0 * tensor_parallel * activation_bytes
    for part in mixer.description.state_parts:
        stated = part.state_format
        each = activation_bytes if stated is None else FORMATS[stated].bytes_per_element
        size = size + state_elements_on_rank(part.elements, part.pieces, tensor_parallel) * each
    return size
