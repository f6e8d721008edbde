"""What a rank holds besides weights and cache: peak working memory of one step, lookup tables, absorbed matrices, graphs, buffers."""

import numpy as np

from capplan.numbers import Number


def sampler_peak_bytes(
    max_num_seqs: Number,
    vocabulary_size: Number,
    logit_bytes: Number,
    sampler_bytes: Number,
    base_bytes: Number = 0.0,
) -> Number:
    """Return the working memory for sampling one token of every sequence that may run.

        A_s = s v (b + w) + a_0

    Parameters
    ----------
    max_num_seqs : [-]
        s, the limit of the scheduler: engines run the full batch at start-up
    vocabulary_size : [-]
        v; every rank gathers all logits, so tensor parallelism does not divide it
    logit_bytes : [B]
        b, of one logit in the activation dtype
    sampler_bytes : [B]
        w, copies, sorts and probabilities per logit, by engine and version
    base_bytes : [B]
        a_0

    Returns
    -------
    [B]
        A_s, without hidden states

    Examples
    --------
    10,000 logits of 2 bytes with 12 bytes of copies each, and 500 bytes:

    >>> sampler_peak_bytes(10.0, 1000.0, 2.0, 12.0, 500.0)
    140500.0

    References
    ----------
    vLLM, `GPUModelRunner._dummy_sampler_run`: https://docs.vllm.ai/en/latest/api/vllm/v1/worker/gpu_model_runner.
    """
    return max_num_seqs * vocabulary_size * (logit_bytes + sampler_bytes) + base_bytes


def layer_peak_bytes(
    tokens: Number, hidden_size: Number, intermediate_elements: Number, element_bytes: Number, copies: Number
) -> Number:
    """Return the working memory of the widest layer for one step of the full token budget.

        A_l = t b (i + c d)

    Parameters
    ----------
    tokens : [tokens]
        t, token budget of a step
    hidden_size : [-]
        d
    intermediate_elements : [-]
        i, elements per token on one rank that the widest pair of operators holds at once; with a gated
        feed-forward three times its width: gate, up and their product
    element_bytes : [B]
        b, of the activations
    copies : [-]
        c, hidden-state tensors alive at that point, by engine

    Returns
    -------
    [B]
        A_l

    Examples
    --------
    Ten tokens of 24 intermediate elements and four hidden states of 4, in 2 bytes:

    >>> layer_peak_bytes(10.0, 4.0, 24.0, 2.0, 4.0)
    800.0

    References
    ----------
    Korthikanti et al. 2022, "Reducing Activation Recomputation", arXiv:2205.05198, section 4 (without what training keeps).
    """
    return tokens * element_bytes * (intermediate_elements + copies * hidden_size)


def expert_workspace_bytes(
    tokens: Number,
    experts_per_token: Number,
    gate_up_elements: Number,
    inputs: Number,
    element_bytes: Number = 2.0,
) -> Number:
    """Return the two buffers of a grouped matmul over routed experts.

        W_e = t k (max(n, d) + max(n / 2, d)) b

    Parameters
    ----------
    tokens : [tokens]
        t, routed in the expert group of the rank
    experts_per_token : [-]
        k
    gate_up_elements : [-]
        n, outputs of gate and up on one rank
    inputs : [-]
        d, width that an expert reads and writes
    element_bytes : [B]
        b

    Returns
    -------
    [B]
        W_e

    Examples
    --------
    Eight tokens to two experts each of gate and up 6 wide and inputs of 4:

    >>> expert_workspace_bytes(8.0, 2.0, 6.0, 4.0)
    np.float64(320.0)

    References
    ----------
    vLLM documentation, "Fused MoE Modular Kernel": https://docs.vllm.ai/en/latest/design/fused_moe_modular_kernel.html.
    """
    first = np.maximum(gate_up_elements, inputs)
    second = np.maximum(gate_up_elements / 2.0, inputs)
    buffers: Number = tokens * experts_per_token * (first + second) * element_bytes
    return buffers


def latent_workspace_bytes(
    max_model_len: Number,
    max_num_seqs: Number,
    heads: Number,
    expanded_head_dim: Number,
    latent_elements: Number,
    block_tokens: Number = 16.0,
    element_bytes: Number = 2.0,
) -> Number:
    """Return the workspace into which MLA prefill expands the cached context.

        t = min(max(8 l, 4 s p), 131072);   W_l = t (e + h x) b

    Parameters
    ----------
    max_model_len : [tokens]
        l
    max_num_seqs : [-]
        s
    heads : [-]
        h, query heads on one rank
    expanded_head_dim : [-]
        x, key without its rotary part plus value of one head
    latent_elements : [-]
        e, latent and rotary key, which are gathered first
    block_tokens : [tokens]
        p
    element_bytes : [B]
        b

    Returns
    -------
    [B]
        W_l

    Examples
    --------
    800 tokens, eight times the context, of 4 + 2 x 3 elements in 2 bytes:

    >>> latent_workspace_bytes(100.0, 1.0, 2.0, 3.0, 4.0)
    np.float64(16000.0)

    References
    ----------
    vLLM, `MLACommonMetadataBuilder.determine_chunked_prefill_workspace_size`:
    https://docs.vllm.ai/en/latest/api/vllm/v1/attention/backends/mla.
    """
    tokens = np.minimum(np.maximum(8.0 * max_model_len, 4.0 * max_num_seqs * block_tokens), 131072.0)
    workspace: Number = tokens * (latent_elements + heads * expanded_head_dim) * element_bytes
    return workspace


def gathered_entries_bytes(
    max_model_len: Number,
    entry_tokens: Number,
    window_tokens: Number,
    step_tokens: Number,
    head_dim: Number,
    element_bytes: Number = 2.0,
) -> Number:
    """Return the workspace into which compressed attention gathers cached context in prefill, for four prompts at a time.

        W = 4 (ceil(l / c) + w + t) d b

    Parameters
    ----------
    max_model_len : [tokens]
        l
    entry_tokens : [tokens]
        c, tokens compressed into one entry; 0 without entries
    window_tokens : [tokens]
        w
    step_tokens : [tokens]
        t, token budget of a step
    head_dim : [elements]
        d, of one vector
    element_bytes : [B]
        b

    Returns
    -------
    [B]
        W

    Examples
    --------
    256 entries, a window and a step of 128 tokens each, 512 elements in 2 bytes, four prompts:

    >>> gathered_entries_bytes(1024.0, 4.0, 128.0, 128.0, 512.0)
    np.float64(2097152.0)

    References
    ----------
    vLLM, `DeepseekSparseSWAMetadata.get_prefill_chunk_plan`: https://github.com/vllm-project/vllm.
    """
    entries = np.ceil(max_model_len / entry_tokens) if entry_tokens else np.zeros(())
    workspace: Number = 4.0 * (entries + window_tokens + step_tokens) * head_dim * element_bytes
    return workspace


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
