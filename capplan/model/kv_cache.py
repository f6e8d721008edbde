"""What one sequence keeps between steps: keys and values that grow, states that do not.

These are the needs of the architecture. What an engine reserves on top (blocks, padding of layer
groups, packed MLA layouts such as the 656 bytes per token of vLLM's fp8_ds_mla) is counted in `memory`.
"""

import numpy as np

from capplan.model.cache_parts import (
    attention_cache_elements,
    cache_elements_per_token,
    cache_parts,
    cached_tokens,
    index_bytes_per_element,
)
from capplan.model.network import (
    CompressedAttention,
    LinearAttention,
    Mixer,
    Network,
    ShortConvolution,
    StateSpace,
    layer_counts,
)
from capplan.model.weight_format import FORMATS
from capplan.numbers import Number

__all__ = [
    "attention_cache_elements",
    "cache_elements_per_token",
    "cache_parts",
    "cached_tokens",
    "index_bytes_per_element",
    "kv_bytes_per_sequence",
    "kv_bytes_per_token",
    "state_bytes",
    "state_bytes_per_sequence",
]


def kv_bytes_per_sequence(
    network: Network,
    context_tokens: Number,
    kv_bytes_per_element: Number,
    tensor_parallel: Number = 1.0,
    index_bytes: Number | None = None,
) -> Number:
    """Return the bytes of keys and values of one sequence, on one rank of one pipeline stage holding all layers.

        B = b * sum over layers of e * floor(min(n, w) / c)

    Parameters
    ----------
    network : the model
    context_tokens : [tokens]
        n, prompt and output so far
    kv_bytes_per_element : [B]
        b, of the cache dtype, which does not follow from the weight dtype
    tensor_parallel : [-]
        ranks; one gives the whole sequence
    index_bytes : [B]
        of one element of index keys; None prices them in the cache dtype too, as reference implementations cache them

    Returns
    -------
    [B]
        B without the fixed state

    Examples
    --------
    One layer of eight heads of 128 and a window of 4 tokens:

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
    for layer, count in layer_counts(network):
        for mixer in layer.mixers:
            for part in cache_parts(mixer, tensor_parallel):
                kept = cached_tokens(context_tokens, part.window_tokens)
                if part.entry_tokens > 1:
                    kept = np.floor(kept / part.entry_tokens)
                size = index_bytes if part.index and index_bytes is not None else kv_bytes_per_element
                total = total + count * part.elements * kept * size
    return total


def kv_bytes_per_token(
    network: Network, context_tokens: Number, kv_bytes_per_element: Number, tensor_parallel: Number = 1.0
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

    Returns
    -------
    [B/token]
        g; the mean where one entry stands for c tokens

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
    for layer, count in layer_counts(network):
        for mixer in layer.mixers:
            for part in cache_parts(mixer, tensor_parallel):
                grows = np.where(
                    np.asarray(context_tokens) < part.window_tokens, 1.0 / part.entry_tokens, 0.0
                )
                total = total + count * part.elements * grows * kv_bytes_per_element
    return total


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
        b_a, of the model dtype, in which convolution columns are kept; recurrent states have their own dtype

    Returns
    -------
    [B]
        S; zero for a network of attention alone

    Examples
    --------
    >>> from capplan.model.network import Attention, Layer, Projection
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

        linear attention: channels K b_a / tp + state b_s / tp
        state space:      (inner + 2 ceil(g / tp) tp s) K b_a / tp + inner s b_s / tp
        compressed:       2 c d b_s, or 6 c (d + index_head_dim) b_s where entries overlap, on every rank

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
        K columns of each convolved channel and the recurrent state (s wide, g groups); value and gate of the c
        tokens that wait to become an entry (and of the ones before); zero for other attention

    Examples
    --------
    Mamba-1 with 128 channels, state 8, kernel 4: 512 columns in bf16 and 1024 elements in fp32.

    >>> state_bytes(StateSpace(1, 128, 1, 128, 8, 1, 128, 4))
    5120.0

    References
    ----------
    Dao, Gu 2024, "Transformers are SSMs", arXiv:2405.21060, section 8.2 (tensor parallelism);
    Hugging Face transformers 5.23, `DeepseekV4HCACache.store_compression_weights` and `update_overlap_state`.
    """
    if isinstance(mixer, ShortConvolution):
        return mixer.channels * mixer.kernel * activation_bytes / tensor_parallel
    if isinstance(mixer, LinearAttention):
        columns = mixer.conv_channels * mixer.conv_kernel * activation_bytes
        recurrent = mixer.state_elements * FORMATS[mixer.state_format].bytes_per_element
        return (columns + recurrent) / tensor_parallel
    if isinstance(mixer, StateSpace):
        channels: Number = mixer.conv_channels / tensor_parallel
        if mixer.version == 2:
            own = mixer.conv_channels - 2 * mixer.groups * mixer.state_size
            shared = 2 * np.ceil(mixer.groups / tensor_parallel) * mixer.state_size
            channels = own / tensor_parallel + shared
        convolved = channels * mixer.conv_kernel * activation_bytes
        state = mixer.inner_size * mixer.state_size * FORMATS[mixer.state_format].bytes_per_element
        return convolved + state / tensor_parallel
    if isinstance(mixer, CompressedAttention):
        # Overlapping entries keep two series of the tokens at hand, and one of the entry before.
        vectors = (6 if mixer.overlapping else 2) * mixer.entry_tokens
        width = mixer.head_dim + mixer.index_head_dim
        return vectors * width * FORMATS[mixer.state_format].bytes_per_element + 0.0 * tensor_parallel
    return 0.0 * tensor_parallel
