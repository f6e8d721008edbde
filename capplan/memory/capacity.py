"""Capacity of the KV cache: the pipeline stages of a network, and what one sequence reserves."""

from dataclasses import dataclass, replace

import numpy as np

from capplan.engine.profile import EngineProfile, MemoryRules
from capplan.errors import Reason, Refusal
from capplan.memory.launch import Launch
from capplan.memory.layer_groups import CacheKind, cache_kinds
from capplan.memory.pool import (
    block_capacity,
    compressed_layers,
    grouped_layout,
    packed_capacity,
    packed_layout,
    shares_entries,
    split_capacity,
    summed_capacity,
)
from capplan.model.network import Mixer, Network, layer_counts
from capplan.model.weight_format import FORMATS
from capplan.numbers import Array, Number


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage: its layers, with the embedding on the first and the LM head on the last."""

    network: Network
    first: bool
    last: bool
    layer_share: float
    """Its layers / all layers."""

    @property
    def alone(self) -> bool:
        """The whole network is one stage."""
        return self.first and self.last


def stages_of(network: Network, stages: int) -> list[Stage]:
    """Return the stages of a network; equal middle stages appear once.

    Parameters
    ----------
    network : the model
    stages : [-]
        pipeline ranks

    Examples
    --------
    >>> from capplan.model.network import Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> network = Network("n", "t", 8, 10, (Layer((), ()),) * 8, head, True, 80)
    >>> [(len(stage.network.layers), stage.first, stage.last) for stage in stages_of(network, 4)]
    [(2, True, False), (2, False, False), (2, False, True)]
    """
    if stages == 1:
        return [Stage(network, first=True, last=True, layer_share=1.0)]
    distinct: list[Stage] = []
    edges = stage_edges(len(network.layers), stages)
    for index, (start, end) in enumerate(edges):
        first, last = index == 0, index == len(edges) - 1
        part = part_of(network, start, end, first=first, last=last)
        stage = Stage(part, first, last, (end - start) / len(network.layers))
        if stage not in distinct:
            distinct.append(stage)
    return distinct


def part_of(network: Network, start: int, end: int, *, first: bool, last: bool) -> Network:
    """Return some layers of a network by themselves, with the embedding on the first part and the LM head on the last."""
    part = replace(network, layers=network.layers[start:end], tied_embeddings=False)
    if not first:
        part = replace(part, embedding_parameters=0, vision_parameters=0, other_parameters=0)
    if last:
        head_format = network.embedding_format if network.tied_embeddings else network.lm_head.weight_format
        return replace(part, lm_head=replace(network.lm_head, weight_format=head_format))
    no_head = replace(network.lm_head, outputs=0, bias=0)
    return replace(part, lm_head=no_head, pooler=None, final_norm_parameters=0)


def stage_edges(layers: int, stages: int) -> list[tuple[int, int]]:
    """Return first and one-past-last layer of each pipeline stage.

    Layers left over go to the stages before the last, from the back: the last stage already holds the LM head.

    Parameters
    ----------
    layers : [-]
    stages : [-]

    Returns
    -------
    pairs of layer indices

    Examples
    --------
    >>> stage_edges(126, 4)
    [(0, 31), (31, 63), (63, 95), (95, 126)]

    References
    ----------
    vLLM, vllm/distributed/utils.py, `get_pp_indices`.
    """
    sizes = [layers // stages] * stages
    for i in range(layers % stages):
        sizes[(stages - 2 - i) % stages] += 1
    ends = np.cumsum(sizes).tolist()
    return [(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def stage_shares(network: Network, stages: Array) -> tuple[Array, Array]:
    """Return the layers of the fullest stage and of the last one over all layers, by plan.

    Examples
    --------
    Ten layers in one, two and four stages (2, 3, 3 and 2 layers):

    >>> from capplan.model.network import Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 64, 1000, "columns")
    >>> network = Network("n", "t", 64, 1000, (Layer((), ()),) * 10, head, True, 64000)
    >>> [shares.tolist() for shares in stage_shares(network, np.array([1.0, 2.0, 4.0]))]
    [[1.0, 0.5, 0.3], [1.0, 0.5, 0.2]]
    """
    layers = len(network.layers)
    shares = {}
    for count in set(np.ravel(stages).tolist()):
        sizes = [end - start for start, end in stage_edges(layers, int(count))]
        shares[count] = max(sizes) / layers, sizes[-1] / layers
    largest, last = np.array([shares[count] for count in np.ravel(stages).tolist()]).T
    return largest, last


def cache_capacity(
    kv_bytes_available: Number, network: Network, launch: Launch, profile: EngineProfile, layer_share: Number
) -> tuple[Number, Number, Number]:
    """Return the capacity of the pool of one device, in the layout of its engine.

    Parameters
    ----------
    kv_bytes_available : [B]
        of the device; negative values hold nothing
    network : the whole model
    launch : block size, context and token budget; fields that broadcast
    profile : of the engine version
    layer_share : [-]
        layers of the device's pipeline stage over all layers

    Returns
    -------
    tokens, sequences of the maximum context, bytes [B] of one; the bytes do not depend on the available memory

    Examples
    --------
    One layer of 2 x 4 heads of 16 in 16 bit: 4,096 bytes for a block of 16 tokens, seven blocks for 100 tokens.

    >>> from capplan.engine.lookup import profile
    >>> from capplan.model.network import Attention, Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 64, 1000, "columns")
    >>> network = Network("n", "t", 64, 1000, (Layer((Attention(4, 4, 16, 16),), ()),), head, True, 64000)
    >>> launch = Launch(1.0, 1.0, 1.0, 1.0, 8e9, 2.0, 100.0, 64.0, 2048.0, 0.9, 16.0)
    >>> tokens, _, size = cache_capacity(81920.0, network, launch, profile("vllm", "0.19.0"), 1.0)
    >>> float(tokens), float(size)
    (320.0, 28672.0)

    References
    ----------
    vLLM documentation, "Hybrid KV Cache Manager": https://docs.vllm.ai/en/latest/design/hybrid_kv_cache_manager.html.
    """
    rules = profile.memory
    element = FORMATS[network.activation_format].bytes_per_element
    kinds = cache_kinds(network, launch.tensor, launch.kv_bytes_per_element, element, rules.recurrent_format)
    context, step = launch.max_model_len, launch.max_num_batched_tokens
    compressed = compressed_layers(network)
    if compressed:
        return _compressed_capacity(kv_bytes_available, compressed, launch, rules, layer_share)
    if not kinds:
        free = np.maximum(kv_bytes_available, 0.0)
        endless = np.where(free > 0, launch.max_num_seqs, 0.0)
        return endless * context, endless, 0.0 * free
    if rules.whole_windows or (rules.budget == "utilisation" and not rules.layer_groups):
        kinds = [replace(kind, kind="full") if kind.kind == "window" else kind for kind in kinds]
    if rules.budget != "utilisation":
        held = _held_kinds(kinds, network, layer_share)
        return split_capacity(kv_bytes_available, held, launch.block_tokens, context, step, rules)
    layout = grouped_layout(kinds, launch.block_tokens, context, step, layer_share)
    tokens, sequences = block_capacity(kv_bytes_available, layout, context, rules)
    return tokens, sequences, layout.sequence_blocks * layout.block_bytes


def _held_kinds(kinds: list[CacheKind], network: Network, layer_share: Number) -> list[CacheKind]:
    """Return the caches of a pipeline stage that has a share of the layers, those of an encoder too."""
    layers = network.encoder.tower.layers if network.encoder is not None else 0
    sources = [replace(kind, layers=layers) for kind in kinds if kind.kind == "source" and layers]
    return [
        replace(kind, token_bytes=kind.token_bytes * layer_share, state_bytes=kind.state_bytes * layer_share)
        for kind in (*kinds, *sources)
    ]


def starts_with_states(network: Network, profile: EngineProfile) -> bool:
    """Return whether an engine starts a model only with as many sequences as its pool has blocks for their states; see `state_blocks`."""
    if not profile.memory.blocks_bound_sequences or compressed_layers(network):
        return False
    mixers = (mixer for layer, _ in layer_counts(network) for mixer in layer.mixers)
    return any(mixer.description.state_parts for mixer in mixers)


def state_blocks(
    kv_bytes_available: Number, network: Network, launch: Launch, profile: EngineProfile, layer_share: Number
) -> Number:
    """Return the blocks of a device's pool; every running sequence of a hybrid model needs one for its state.

        n = floor(A / b)

    Parameters
    ----------
    kv_bytes_available : [B]
        A, of the device
    network, launch, profile : as for `cache_capacity`
    layer_share : [-]
        layers of the device's pipeline stage over all layers

    Returns
    -------
    [-]
        n of b bytes; infinite where no state is kept, or where the engine starts with any number of sequences

    Examples
    --------
    A model without states:

    >>> from capplan.engine.lookup import profile
    >>> from capplan.model.network import Attention, Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 64, 1000, "columns")
    >>> network = Network("n", "t", 64, 1000, (Layer((Attention(4, 4, 16, 16),), ()),), head, True, 64000)
    >>> launch = Launch(1.0, 1.0, 1.0, 1.0, 8e9, 2.0, 100.0, 64.0, 2048.0, 0.9, 16.0)
    >>> state_blocks(81920.0, network, launch, profile("vllm"), 1.0)
    inf

    References
    ----------
    vLLM pull request 38270: https://github.com/vllm-project/vllm/pull/38270.
    """
    if not starts_with_states(network, profile):
        return np.inf
    rules, element = profile.memory, FORMATS[network.activation_format].bytes_per_element
    kinds = cache_kinds(network, launch.tensor, launch.kv_bytes_per_element, element, rules.recurrent_format)
    layout = grouped_layout(
        kinds, launch.block_tokens, launch.max_model_len, launch.max_num_batched_tokens, layer_share
    )
    blocks: Number = np.floor(np.maximum(kv_bytes_available, 0.0) / layout.block_bytes)
    return blocks


def encoder_reason(network: Network, profile: EngineProfile) -> Reason | None:
    """Return why an engine's cache of an encoder-decoder is not modelled, or None if it is."""
    if network.encoder is None or profile.memory.budget != "free_fraction":
        return None
    words = f"{network.name} is an encoder-decoder, and how {profile.engine} divides the cache (cross_kv_cache_fraction) is not modelled; vllm and sglang are"
    return Reason(Refusal.MEMORY, words)


def _compressed_capacity(
    available: Number, mixers: list[Mixer], launch: Launch, rules: MemoryRules, share: Number
) -> tuple[Number, Number, Number]:
    """Return the capacity for compressed attention, whose vectors have several widths and compression rates."""
    step, context, element = launch.max_num_batched_tokens, launch.max_model_len, launch.kv_bytes_per_element
    # Caches of all stages are laid out alike: a stage holds its share of every block.
    whole = available / share
    if rules.budget == "utilisation" and not shares_entries(mixers):
        tokens, sequences, size = packed_capacity(whole, packed_layout(mixers, element), context, step)
        return tokens, sequences, size * share
    if rules.compressed_window_ratio is not None and not shares_entries(mixers):
        from capplan.memory.ring_pools import pooled_capacity

        ratio = rules.compressed_window_ratio
        tokens, sequences, size = pooled_capacity(whole, mixers, element, context, step, ratio)
        return tokens, sequences, size * share
    tokens, sequences, size = summed_capacity(whole, mixers, element, context, step, launch.block_tokens)
    return tokens, sequences, size * share


def waiting_ring_bytes(
    network: Network, launch: Launch, rules: MemoryRules, *, drafts: bool = False
) -> Number:
    """Return what a device keeps for waiting tokens of the sequences that may run, whatever runs; see `ring_bytes`.

    Examples
    --------
    None without compressed attention:

    >>> from capplan.engine.lookup import profile
    >>> from capplan.model.network import Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> network = Network("n", "t", 8, 10, (Layer((), ()),), head, True, 80)
    >>> launch = Launch(1.0, 1.0, 1.0, 1.0, 8e9, 2.0, 100.0, 64.0, 2048.0, 0.9, 16.0)
    >>> waiting_ring_bytes(network, launch, profile("sglang").memory)
    0.0
    """
    mixers = compressed_layers(network) if rules.compressed_window_ratio is not None else []
    if not mixers or shares_entries(mixers):
        return 0.0
    from capplan.memory.ring_pools import ring_bytes

    return ring_bytes(mixers, launch.max_num_seqs, drafts=drafts)


def reserved_bytes_per_sequence(network: Network, launch: Launch, profile: EngineProfile) -> Number:
    """Return the cache that an engine reserves on one device for a sequence of `launch.max_model_len` tokens.

        vLLM: blocks of every layer group, padded groups and the chunk in flight of sliding layers included

    Parameters
    ----------
    network : the model
    launch : context, cache dtype, token budget and parallelism; the memory of the device is ignored
    profile : of the engine version

    Returns
    -------
    [B]
        of the pipeline stage with the most layers

    Examples
    --------
    One layer of 2 x 4 heads of 16 in 16 bit, 100 tokens in seven blocks of 16:

    >>> from capplan.engine.lookup import profile
    >>> from capplan.model.network import Attention, Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 64, 1000, "columns")
    >>> network = Network("n", "t", 64, 1000, (Layer((Attention(4, 4, 16, 16),), ()),), head, True, 64000)
    >>> launch = Launch(1.0, 1.0, 1.0, 1.0, 8e9, 2.0, 100.0, 64.0, 2048.0, 0.9, 16.0)
    >>> float(reserved_bytes_per_sequence(network, launch, profile("vllm", "0.19.0")))
    28672.0

    References
    ----------
    vLLM documentation, "Hybrid KV Cache Manager": https://docs.vllm.ai/en/latest/design/hybrid_kv_cache_manager.html.
    """
    columns = launch.as_columns()
    share, _ = stage_shares(network, np.asarray(columns.pipeline))
    _, _, size = cache_capacity(0.0, network, columns, profile, share)
    return np.broadcast_to(size, share.shape).reshape(launch.shape)


def token_capacity(
    kv_bytes_available: Number, reserved_bytes_per_sequence: Number, context_tokens: Number
) -> Number:
    """Return how many tokens the cache of a device holds if all sequences have the same length.

        n = A / r l

    With layers of one kind, this is the figure that the engine prints. For hybrid
    models it depends on the length, and the printed figure holds for the maximum context at most.

    Parameters
    ----------
    kv_bytes_available : [B]
        A, of one device
    reserved_bytes_per_sequence : [B]
        r, of a sequence of that length on the same device
    context_tokens : [tokens]
        l, input and output

    Returns
    -------
    [tokens]
        n

    Examples
    --------
    Ten sequences of 64 tokens:

    >>> token_capacity(1000.0, 100.0, 64.0)
    np.float64(640.0)

    References
    ----------
    Kwon et al. 2023, "PagedAttention", arXiv:2309.06180, section 4.
    """
    held: Number = np.maximum(kv_bytes_available, 0.0) / reserved_bytes_per_sequence * context_tokens
    return held
