"""What one sequence keeps between steps: keys and values that grow, states that do not.

These are the needs of the architecture. What an engine reserves on top (blocks, padding of layer
groups, packed MLA layouts such as the 656 bytes per token of vLLM's fp8_ds_mla) is counted in `memory`.
"""

import numpy as np

from capplan.model.network import (
    Attention,
    LatentAttention,
    LinearAttention,
    Mixer,
    Network,
    ShortConvolution,
    StateSpace,
    layer_counts,
)
from capplan.model.weight_format import FORMATS
from capplan.numbers import Number


def attention_cache_elements(
    kv_heads: Number, head_dim: Number, value_head_dim: Number, tensor_parallel: Number = 1.0
) -> Number:
    """Return the elements that one token leaves in the cache of one attention layer, on one rank.

        e = ceil(h / tp) (d_k + d_v)

    Parameters
    ----------
    kv_heads : [-]
        h, key-value heads, not query heads
    head_dim : [elements]
        d_k, a key of its own in config.json, often not hidden size / heads
    value_head_dim : [elements]
        d_v
    tensor_parallel : [-]
        tp, ranks; each holds at least one head

    Returns
    -------
    [elements]
        e

    Examples
    --------
    Llama-3: eight heads of 128, a key and a value each; sixteen ranks hold one head each.

    >>> attention_cache_elements(8.0, 128.0, 128.0)
    np.float64(2048.0)
    >>> attention_cache_elements(8.0, 128.0, 128.0, tensor_parallel=16.0)
    np.float64(256.0)

    References
    ----------
    Ainslie et al. 2023, "GQA", arXiv:2305.13245, section 2.2.
    """
    elements: Number = np.ceil(kv_heads / tensor_parallel) * (head_dim + value_head_dim)
    return elements


def cached_tokens(context_tokens: Number, window_tokens: Number) -> Number:
    """Return how many tokens of a context a layer with a window has to keep.

        c = min(n, w)

    Parameters
    ----------
    context_tokens : [tokens]
        n
    window_tokens : [tokens]
        w, the position itself included; for chunked attention the chunk, its fullest state

    Returns
    -------
    [tokens]
        c, the minimum of the architecture; engines keep more

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


def cache_elements_per_token(mixer: Mixer, tensor_parallel: Number = 1.0) -> Number:
    """Return the elements that one token leaves in the cache of one layer, on one rank.

        GQA:  e = ceil(h / tp) (d_k + d_v) (+ index_head_dim)
        MLA:  e = kv_lora_rank + rope_head_dim (+ index_head_dim), the same on every rank

    Parameters
    ----------
    mixer : the mixer of the layer
    tensor_parallel : [-]
        ranks; the MLA latent is replicated, not divided

    Returns
    -------
    [elements]
        zero for states and for layers that read another layer's cache

    Examples
    --------
    >>> cache_elements_per_token(LatentAttention(128, 512, 64, 128, 128), tensor_parallel=8.0)
    576.0

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V2", arXiv:2405.04434, table 1; DeepSeek-V3.2-Exp report, section 2 (indexer).
    """
    if isinstance(mixer, Attention) and mixer.cached:
        own = attention_cache_elements(mixer.kv_heads, mixer.head_dim, mixer.value_head_dim, tensor_parallel)
        return own + mixer.index_head_dim
    if isinstance(mixer, LatentAttention):
        index = mixer.index_head_dim if mixer.index_cached else 0
        return float(mixer.kv_lora_rank + mixer.rope_head_dim + index)
    return 0.0


def _window(mixer: Mixer) -> float:
    if isinstance(mixer, Attention) and mixer.window_tokens is not None:
        return float(mixer.window_tokens)
    return float("inf")


def kv_bytes_per_sequence(
    network: Network, context_tokens: Number, kv_bytes_per_element: Number, tensor_parallel: Number = 1.0
) -> Number:
    """Return the bytes of keys and values of one sequence, on one rank of one pipeline stage holding all layers.

        B = b * sum over layers of e * min(n, w)

    Parameters
    ----------
    network : the model
    context_tokens : [tokens]
        n, prompt and output so far
    kv_bytes_per_element : [B]
        b, of the cache dtype, which does not follow from the weight dtype
    tensor_parallel : [-]
        ranks; one gives the whole sequence

    Returns
    -------
    [B]
        B without the fixed state

    Examples
    --------
    One layer of eight heads of 128 and a window of 4 tokens:

    >>> from capplan.model.network import Layer, Projection
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
            elements = cache_elements_per_token(mixer, tensor_parallel)
            kept = cached_tokens(context_tokens, _window(mixer))
            total = total + count * elements * kept * kv_bytes_per_element
    return total


def kv_bytes_per_token(
    network: Network, context_tokens: Number, kv_bytes_per_element: Number, tensor_parallel: Number = 1.0
) -> Number:
    """Return the bytes by which the cache of a sequence grows with its next token.

        g = b * sum of e over the layers whose window is not full yet (n < w)

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
        g

    Examples
    --------
    >>> from capplan.model.network import Layer, Projection
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
            grows = np.where(np.asarray(context_tokens) < _window(mixer), 1.0, 0.0)
            elements = cache_elements_per_token(mixer, tensor_parallel)
            total = total + count * elements * grows * kv_bytes_per_element
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
    >>> from capplan.model.network import Layer, Projection
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
        K columns of each convolved channel and the recurrent state (s wide, g groups); zero for attention

    Examples
    --------
    Mamba-1 with 128 channels, state 8, kernel 4: 512 columns in bf16 and 1024 elements in fp32.

    >>> state_bytes(StateSpace(1, 128, 1, 128, 8, 1, 128, 4))
    5120.0

    References
    ----------
    Dao, Gu 2024, "Transformers are SSMs", arXiv:2405.21060, section 8.2 (tensor parallelism).
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
    return 0.0 * tensor_parallel
