"""What a rank holds besides weights, cache and activations: lookup tables, absorbed matrices, graphs, buffers."""

import numpy as np

from capplan.numbers import Number


def rotary_table_bytes(
    max_position_tokens: Number, rotary_elements: Number, element_bytes: Number = 2.0
) -> Number:
    """Return the table of sines and cosines that an engine loads with the weights.

        R = l r b

    Parameters
    ----------
    max_position_tokens : [tokens]
        l, from the model's config, not from the launch
    rotary_elements : [-]
        r, rotated elements of a head: a cosine and a sine for each pair
    element_bytes : [B]
        b

    Returns
    -------
    [B]
        R, once per rank

    Examples
    --------
    Llama 3.1: 131,072 positions, heads of 128, bf16: 32 MiB.

    >>> rotary_table_bytes(131072.0, 128.0) / 2**20
    32.0

    References
    ----------
    Su et al. 2021, "RoFormer", arXiv:2104.09864, section 3.4; vLLM `RotaryEmbedding._compute_cos_sin_cache`.
    """
    return max_position_tokens * rotary_elements * element_bytes


def absorbed_latent_bytes(
    kv_lora_rank: Number, heads: Number, expanded_head_dim: Number, element_bytes: Number = 2.0
) -> Number:
    """Return the second copy of the key and value up-projection that MLA absorbs into its queries in decode.

        W = r h x b

    Parameters
    ----------
    kv_lora_rank : [-]
        r
    heads : [-]
        h, on one rank
    expanded_head_dim : [-]
        x, key without its rotary part plus value
    element_bytes : [B]
        b, 16 bits whatever the format of the checkpoint

    Returns
    -------
    [B]
        W, per layer

    Examples
    --------
    >>> absorbed_latent_bytes(512.0, 16.0, 256.0)
    4194304.0

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V2", arXiv:2405.04434, section 2.1.2 (absorption).
    """
    return kv_lora_rank * heads * expanded_head_dim * element_bytes


def captured_sizes(max_sequences: Number) -> Number:
    """Return how many batch sizes are captured as CUDA graphs up to a limit.

        1, 2, 4, then every 8 up to 256, then every 16

    Parameters
    ----------
    max_sequences : [-]
        largest captured batch

    Returns
    -------
    [-]

    Examples
    --------
    >>> captured_sizes(512.0)
    np.float64(51.0)

    References
    ----------
    vLLM, `CompilationConfig.cudagraph_capture_sizes`: https://docs.vllm.ai/en/latest/api/vllm/config/compilation.
    """
    small = np.minimum(np.floor(np.log2(np.maximum(max_sequences, 1.0))) + 1.0, 3.0)
    middle = np.floor(np.minimum(max_sequences, 256.0) / 8.0)
    large = np.floor(np.maximum(max_sequences - 256.0, 0.0) / 16.0)
    sizes: Number = small + middle + large
    return sizes


def graph_bytes(
    layers: Number, sizes: Number, bytes_per_layer_and_size: Number, base_bytes: Number
) -> Number:
    """Return the memory of CUDA graphs.

        G = g_0 + g l n

    Parameters
    ----------
    layers : [-]
        l, on the rank
    sizes : [-]
        n, captured batch sizes, whole and piecewise graphs together
    bytes_per_layer_and_size : [B]
        g
    base_bytes : [B]
        g_0

    Returns
    -------
    [B]
        G

    Examples
    --------
    >>> graph_bytes(10.0, 100.0, 5.0, 50.0)
    5050.0

    References
    ----------
    PyTorch documentation, "CUDA Graphs", graph-private memory pools: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
    """
    return base_bytes + bytes_per_layer_and_size * layers * sizes
