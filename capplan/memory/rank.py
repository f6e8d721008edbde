"""Memory of one rank, part by part: weights, and the peak of a step, lookup tables, absorbed matrices, graphs and buffers besides."""

from dataclasses import replace

import numpy as np

from capplan.engine.profile import LOW_LATENCY_STEP_TOKENS, EngineProfile, MemoryRules
from capplan.hardware.exchange_kernel import DEEPEP_NORMAL
from capplan.memory.capacity import Stage
from capplan.memory.launch import Launch
from capplan.model.network import Experts, Layer, Network, layer_counts
from capplan.model.parameters import weight_bytes_per_rank
from capplan.model.sharding import Sharding, expert_bytes_per_rank, expert_slots, rank_outputs
from capplan.model.weight_format import FORMATS
from capplan.numbers import GIB, Number


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
        i, elements per token on one rank that the widest pair of operators holds at once
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
    most_tokens: Number = 131072.0,
) -> Number:
    """Return the workspace into which MLA prefill expands the cached context.

        t = min(max(8 l, 4 s p), m);   W_l = t (e + h x) b

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
    most_tokens : [tokens]
        m, by engine version

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
    tokens = np.minimum(np.maximum(8.0 * max_model_len, 4.0 * max_num_seqs * block_tokens), most_tokens)
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


def low_latency_buffer_bytes(tokens: Number, slots: Number, inputs: Number) -> Number:
    """Return the four buffers of DeepEP's low-latency kernels, with a place for every token at every expert.

        W = 4 S t (2 d + 4 d / 128)

    Parameters
    ----------
    tokens : [tokens]
        t, of a rank, for which there is room
    slots : [-]
        S, experts of a layer, redundant ones included
    inputs : [-]
        d, width of a token

    Returns
    -------
    [B]
        W, without signals; the width of a group does not matter

    Examples
    --------
    >>> round(low_latency_buffer_bytes(1536.0, 448.0, 5120.0) / 2**30, 1)
    26.7

    References
    ----------
    DeepEP, `get_low_latency_rdma_size_hint`: https://github.com/deepseek-ai/DeepEP/blob/main/csrc/legacy/config.hpp.
    """
    return 4.0 * slots * tokens * (2.0 * inputs + 4.0 * inputs / 128.0)


def exchange_buffer_bytes(stage: Stage, launch: Launch, profile: EngineProfile) -> Number:
    """Return the buffers of the all-to-all kernels of one rank; 0 where ranks gather all tokens.

    DeepEP has buffers for normal kernels, for low-latency ones, or for both (`EngineProfile.one_exchange`). The one-sided kernel has a place
    for every token of every rank, as dispatched and as combined.

    Parameters
    ----------
    stage : the layers
    launch : parallelism and tokens of a step
    profile : of the engine version

    Returns
    -------
    [B]
    """
    largest: Number = 0.0
    for layer, _ in layer_counts(stage.network):
        if (experts := layer.experts) is None:
            continue
        slots = expert_slots(experts.experts, launch.expert)
        tokens = np.minimum(launch.max_num_batched_tokens, profile.low_latency_tokens)
        low_latency = low_latency_buffer_bytes(tokens, slots, experts.inputs)
        only = starts_low_latency(launch, profile) > 0
        normal = NORMAL_BUFFER_BYTES + (0.0 if profile.one_exchange else low_latency)
        tokens = launch.max_num_batched_tokens * launch.data
        one_sided = tokens * experts.inputs * (dispatched_element_bytes(experts) + 2.0)
        of_layer = np.where(np.asarray(launch.one_sided) > 0, one_sided, np.where(only, low_latency, normal))
        largest = np.maximum(largest, of_layer)
    return largest * launch.sent


def dispatched_element_bytes(experts: Experts) -> float:
    """Return the bytes of one element of a token as it is sent to these experts."""
    return DEEPEP_NORMAL.dispatched_bytes.get(experts.weight_format, 2.0)


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


def absorbed_latent_bytes(kv_lora_rank: Number, heads: Number, expanded_head_dim: Number) -> Number:
    """Return the second copy of the key and value up-projection that MLA absorbs into its queries in decode.

        W = 2 r h x, 16 bits whatever the format of the checkpoint

    Parameters
    ----------
    kv_lora_rank : [-]
        r
    heads : [-]
        h, on one rank
    expanded_head_dim : [-]
        x, key without its rotary part plus value

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
    return 2.0 * kv_lora_rank * heads * expanded_head_dim


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


PADDED_EXPERTS = {"mxfp4": 256.0}
"""Expert formats whose kernels need the intermediate width as a multiple of this, so that weights are padded."""

GROUPED_ROWS = 127.0
"""Rows by which the tokens of one expert are filled up, at most, to a whole tile of DeepGEMM (vLLM, `compute_aligned_M`)."""

NORMAL_BUFFER_BYTES = 2.0 * GIB
"""Buffers of DeepEP's normal kernels: 1 GiB for links, 1 GiB for the network (vLLM, VLLM_DEEPEP_BUFFER_SIZE_MB)."""

_STATE_INPUTS = {"in_proj": 4.0, "in_proj_qkvz": 4.0}
"""Inputs of recurrent layers: as projected, as convolved, as split or normalised, and as passed on by the scan."""

FUSED_EXPERT_FORMATS = frozenset({"mxfp4"})
"""Expert formats whose kernels gather and scatter inside the matmul and need no intermediate buffers."""


def padded_rows(rows: int, multiple: int, tensor_parallel: Number) -> Number:
    """Return the rows of an embedding or LM head as an engine splits it over the ranks.

        r = ceil(ceil(v / m) m / tp) tp

    Parameters
    ----------
    rows : v, of the vocabulary [-]
    multiple : m, that the engine pads to [-]
    tensor_parallel : [-]
        tp, ranks

    Returns
    -------
    [-]
        r, over all ranks

    Examples
    --------
    GPT-2, on one and on eight ranks:

    >>> float(padded_rows(50257, 64, 1.0)), float(padded_rows(50257, 1, 8.0))
    (50304.0, 50264.0)

    References
    ----------
    vLLM, `pad_vocab_size`: https://docs.vllm.ai/en/latest/api/vllm/model_executor/layers/vocab_parallel_embedding.
    """
    whole = np.ceil(rows / multiple) * multiple
    padded: Number = np.ceil(whole / tensor_parallel) * tensor_parallel
    return padded


def _vocabulary_padding_bytes(stage: Stage, network: Network, tensor: Number, multiple: int) -> Number:
    """Return the bytes that padding of the vocabulary adds to the embedding and the LM head of one rank."""
    rows = network.vocabulary_size
    added = (padded_rows(rows, multiple, tensor) - rows) / tensor
    size: Number = 0.0 * added
    part = stage.network
    if stage.first:
        size = size + FORMATS[part.embedding_format].matrix_bytes(added * network.hidden_size, added)
    head = part.lm_head
    if stage.last and head.outputs == rows and not part.tied_embeddings:
        size = size + FORMATS[head.weight_format].matrix_bytes(added * head.inputs, added)
    return size


def rank_weight_bytes(
    stage: Stage,
    network: Network,
    sharding: Sharding,
    padded_inputs: Number = 128.0,
    vocabulary_multiple: int = 64,
    *,
    mixed: bool = True,
) -> Number:
    """Return the weight bytes of one rank of a stage, including the tables that are loaded with them.

    Parameters
    ----------
    stage : the layers
    network : the whole model
    sharding : [-]
        parallelism within the stage
    padded_inputs : [elements]
        multiple to which the inputs of mxfp4 experts are padded
    vocabulary_multiple : [-]
        multiple to which the engine pads the rows of embedding and LM head
    mixed : whether mxfp4 experts are padded where other matrices are in fp8 (`MemoryRules.pads_mixed_experts`)

    Returns
    -------
    [B]

    Examples
    --------
    >>> from capplan.model.network import Attention, Projection
    >>> from capplan.memory.capacity import stages_of
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> network = Network("n", "t", 8, 10, (Layer((Attention(2, 2, 4, 4),), ()),), head, True, 80, max_context_tokens=64)
    >>> float(rank_weight_bytes(stages_of(network, 1)[0], network, Sharding()))
    1536.0
    """
    element = FORMATS[network.activation_format].bytes_per_element
    size = weight_bytes_per_rank(stage.network, sharding) + _expert_padding_bytes(
        stage.network, sharding, padded_inputs, mixed=mixed
    )
    size = size + _vocabulary_padding_bytes(stage, network, sharding.tensor, vocabulary_multiple)
    rotary = 0
    for layer, count in layer_counts(stage.network):
        for description in (mixer.description for mixer in layer.mixers):
            rotary = max(rotary, description.rotary_elements)
            if (expansion := description.expansion) is not None:
                heads = expansion.heads / sharding.tensor
                absorbed = absorbed_latent_bytes(expansion.latent_elements, heads, expansion.head_elements)
                size = size + count * absorbed
    return size + rotary_table_bytes(
        float((network.max_context_tokens or 0) + network.scaled_rotary_tokens), float(rotary), element
    )


def _expert_padding_bytes(
    network: Network, sharding: Sharding, padded_inputs: Number, *, mixed: bool
) -> Number:
    """Return the bytes that padding adds to the expert matrices of one rank."""
    plain = FORMATS[network.plain_format].bytes_per_element
    added: Number = 0.0
    for layer, count in layer_counts(network):
        experts = layer.experts
        if experts is None or experts.weight_format not in PADDED_EXPERTS:
            continue
        if not mixed and any(p.weight_format.startswith("fp8") for p in layer.projections):
            continue
        of_width = PADDED_EXPERTS[experts.weight_format]
        inputs = np.ceil(experts.inputs / padded_inputs) * padded_inputs
        ranks = sharding.tensor * sharding.data
        width = experts.intermediate_size * sharding.expert / ranks
        padded = np.ceil(width / of_width) * of_width * inputs
        held = expert_bytes_per_rank(experts, ranks, sharding.expert, plain)
        added = added + count * held * (padded / (width * experts.inputs) - 1.0)
    return added


def intermediate_elements(layer: Layer, tensor_parallel: Number) -> Number:
    """Return the elements per token that the widest pair of operators of a layer holds on one rank.

        gated: gate, up and their product, 1.5 x outputs of the fused matrix; else input and output of the
        activation, 2 x; inputs of a recurrent layer 4 x

    Parameters
    ----------
    layer : one block
    tensor_parallel : [-]
        ranks

    Returns
    -------
    [-]

    Examples
    --------
    >>> from capplan.model.network import Projection
    >>> float(intermediate_elements(Layer((), (Projection("gate_up", "ffn", 8, 64, "columns"),)), 2.0))
    48.0
    """
    widest: Number = 0.0 * np.asarray(tensor_parallel)
    for projection in layer.projections:
        outputs = rank_outputs(projection, tensor_parallel)
        fmt = FORMATS[projection.weight_format]
        narrow = 0.0
        if projection.name == "gate_up":
            # Eight-bit activations are a second, narrower copy of the product.
            narrow = 0.25 if fmt.compute_format in {"fp8", "int8"} else 0.0
        factor = {"gate_up": 1.5 + narrow, "up": 2.0, **_STATE_INPUTS}.get(projection.name, 1.0)
        widest = np.maximum(widest, factor * outputs)
    return widest


def rank_activation_bytes(stage: Stage, network: Network, launch: Launch, profile: EngineProfile) -> Number:
    """Return the activation peak of one rank: in the widest layer or in the sampler, whichever is larger.

        A = max(layer + buffers, sampler + hidden states + resident buffers) + images + stage input and output

    Parameters
    ----------
    stage : the layers
    network : the whole model
    launch : sizes and parallelism
    profile : of the engine version

    Returns
    -------
    [B]

    Examples
    --------
    >>> from capplan.engine.lookup import profile
    >>> from capplan.memory.launch import Launch
    >>> from capplan.memory.capacity import stages_of
    >>> from capplan.model.network import Projection
    >>> head = Projection("lm_head", "lm_head", 64, 1000, "columns")
    >>> network = Network("n", "t", 64, 1000, (Layer((), ()),), head, True, 64000)
    >>> launch = Launch(1.0, 1.0, 1.0, 1.0, 8e9, 2.0, 4096.0, 1000.0, 0.0, 0.9, 16.0)
    >>> vllm = profile("vllm", "0.19.0")
    >>> peak = rank_activation_bytes(stages_of(network, 1)[0], network, launch, vllm)
    >>> round(float(peak - vllm.memory.activation_base_bytes) / 1e6, 2)
    14.49
    """
    rules = profile.memory
    element = FORMATS[network.activation_format].bytes_per_element
    tokens = np.minimum(launch.max_num_batched_tokens, profile.ubatch_tokens)
    launch = replace(launch, max_num_batched_tokens=tokens)
    width = float(network.hidden_size)
    layer_peak: Number = 0.0 * np.asarray(tokens)
    buffers: Number = 0.0 * np.asarray(tokens)
    for layer, _ in layer_counts(stage.network):
        peak = layer_peak_bytes(
            tokens, width, intermediate_elements(layer, launch.tensor), element, rules.hidden_copies
        )
        layer_peak = np.maximum(layer_peak, peak + _workspace_of_cached(layer, launch, element, rules))
        buffers = np.maximum(buffers, _expert_buffers(layer, launch, element, profile))
    states = tokens * width * element
    peak = layer_peak + buffers
    if stage.last:
        sampler = sampler_peak_bytes(
            launch.max_num_seqs,
            network.logits,
            element,
            rules.sampler_bytes,
            rules.activation_base_bytes,
        )
        resident = buffers if rules.expert_workspace_resident else 0.0
        images = tokens * rules.vision_bytes_per_token + states if network.vision_parameters else 0.0
        peak = np.maximum(peak, sampler + rules.resident_copies * states + resident + images)
    return peak if stage.alone else peak + 2.0 * states


def starts_low_latency(launch: Launch, profile: EngineProfile) -> Number:
    """Return 1 where low-latency all-to-all kernels are all that a replica is started with (`EngineProfile.one_exchange`)."""
    small = np.asarray(launch.max_num_batched_tokens) <= LOW_LATENCY_STEP_TOKENS
    deepep = np.asarray(launch.sent) > np.asarray(launch.one_sided)
    return np.where(small & deepep & profile.one_exchange, 1.0, 0.0)


def _expert_buffers(layer: Layer, launch: Launch, element: float, profile: EngineProfile) -> Number:
    """Return the buffers of the grouped matmul: of all tokens of the group, or of those that are sent to this rank."""
    experts = layer.experts
    if experts is None or experts.weight_format in FUSED_EXPERT_FORMATS:
        return 0.0
    ranks = launch.tensor * launch.data
    width = (2.0 if experts.gated else 1.0) * experts.intermediate_size * launch.expert / ranks
    tokens, chosen = launch.max_num_batched_tokens * launch.data, float(experts.experts_per_token)
    size = (width, experts.inputs, element)
    gathered = expert_workspace_bytes(tokens, chosen, *size)
    slots = expert_slots(experts.experts, launch.expert)
    pairs = tokens * chosen / launch.expert + GROUPED_ROWS * slots / launch.expert
    reached = tokens * (1.0 - (1.0 - 1.0 / launch.expert) ** chosen) * experts.inputs
    routed = expert_workspace_bytes(pairs, 1.0, *size) + reached * dispatched_element_bytes(experts)
    places = np.minimum(launch.max_num_batched_tokens, profile.low_latency_tokens) * slots
    batched = np.where(
        starts_low_latency(launch, profile) > 0, expert_workspace_bytes(places, 1.0, *size), routed
    )
    return np.where(np.asarray(launch.sent) > 0, batched, gathered)


def _workspace_of_cached(layer: Layer, launch: Launch, element: float, rules: MemoryRules) -> Number:
    """Return the workspace into which prefill gathers cached context: latents to expand, entries of mixed pages."""
    size: Number = 0.0
    for description in (mixer.description for mixer in layer.mixers):
        if (expansion := description.expansion) is not None:
            expanded = latent_workspace_bytes(
                launch.max_model_len, launch.max_num_seqs, expansion.heads / launch.tensor,
                expansion.head_elements, expansion.gathered_elements, launch.block_tokens, element,
                rules.latent_workspace_tokens,
            )  # fmt: skip
            size = np.maximum(size, expanded)
        if description.mixed_pages:
            window, *further = description.cache_parts
            entry_tokens = float(further[0].entry_tokens) if further else 0.0
            gathered = gathered_entries_bytes(
                launch.max_model_len, entry_tokens, window.window_tokens,
                launch.max_num_batched_tokens, window.elements, element,
            )  # fmt: skip
            size = np.maximum(size, gathered)
    return size


def rank_graph_bytes(stage: Stage, network: Network, launch: Launch, profile: EngineProfile) -> Number:
    """Return the memory of the CUDA graphs of one rank of a stage.

    Returns
    -------
    [B]

    Examples
    --------
    >>> from capplan.engine.lookup import profile
    >>> from capplan.memory.launch import Launch
    >>> from capplan.memory.capacity import stages_of
    >>> from capplan.model.network import Projection
    >>> head = Projection("lm_head", "lm_head", 64, 1000, "columns")
    >>> network = Network("n", "t", 64, 1000, (Layer((), ()),) * 32, head, True, 64000)
    >>> launch = Launch(1.0, 1.0, 1.0, 1.0, 8e9, 2.0, 4096.0, 1024.0, 8192.0, 0.9, 16.0)
    >>> round(rank_graph_bytes(stages_of(network, 1)[0], network, launch, profile("vllm", "0.19.0")) / 2**30, 2)
    np.float64(0.88)
    """
    rules = profile.memory
    limit = float(profile.tiers[0].wide_graph_max_sequences)
    whole = np.minimum(launch.max_num_seqs, limit)
    piecewise = np.minimum(2.0 * launch.max_num_seqs, limit) if profile.doubles_graph_sequences else whole
    sizes = captured_sizes(whole) + (0.0 if network.encoder else captured_sizes(piecewise))
    base = rules.graph_base_bytes + (rules.graph_expert_bytes * sizes if _has_experts(network) else 0.0)
    return graph_bytes(float(len(stage.network.layers)), sizes, rules.graph_bytes_per_layer, base)


def warmup_bytes(network: Network, launch: Launch, profile: EngineProfile) -> Number:
    """Return what must be left free for the sampler to warm up once cache and graphs are in place.

        F = s (w v + e)

    Parameters
    ----------
    network : the whole model, v its vocabulary (or its scores, if it generates no text)
    launch : s sequences that may run
    profile : of the engine version: w bytes for each entry of the vocabulary, and e bytes for routed experts, 0 without any

    Returns
    -------
    [B]
        F

    Examples
    --------
    >>> from capplan.engine.lookup import profile
    >>> from capplan.memory.launch import Launch
    >>> from capplan.model.network import Projection
    >>> head = Projection("lm_head", "lm_head", 64, 1000, "columns")
    >>> launch = Launch(1.0, 1.0, 1.0, 1.0, 8e9, 2.0, 4096.0, 10.0, 8192.0, 0.9, 16.0)
    >>> warmup_bytes(Network("n", "t", 64, 1000, (), head, True, 64000), launch, profile("vllm", "0.19.0"))
    220000.0
    """
    rules = profile.memory
    extra = rules.warmup_expert_bytes if _has_experts(network) else 0.0
    return launch.max_num_seqs * (rules.warmup_sampler_bytes * network.logits + extra)


def _has_experts(network: Network) -> bool:
    return any(layer.experts is not None for layer, _ in layer_counts(network))
