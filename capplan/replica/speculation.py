"""Speculative decoding on one replica: sources of drafts, speedup by batch and draft length, and the replica for the simulator."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from capplan.assumption import Assumption, Label
from capplan.engine.lookup import graph_max_sequences, tier
from capplan.errors import DoesNotFitError, InputError
from capplan.hardware.device import engine_memory_bytes
from capplan.memory.capacity import waiting_ring_bytes
from capplan.model.network import Layer, Network
from capplan.model.parameters import draft_layer, draft_layers_per_layer
from capplan.model.sharding import Sharding, weight_bytes_per_rank
from capplan.model.weight_format import kv_bytes_per_element
from capplan.numbers import Array, Number, distinct
from capplan.phases.cost import total_s, unsaved_s
from capplan.phases.step import (
    decode_step_costs,
    round_time_s,
    round_tokens,
    round_tokens_variance,
    speculative_speedup_ratio,
)
from capplan.replica.plans import (
    graph_sequences,
    plans_of,
    rates_of,
    sequence_cache_bytes,
    started_scheduling,
)
from capplan.replica.replica import Replica, memory_of
from capplan.replica.spec import ReplicaSpec, served_context_tokens
from capplan.serving.step_table import StepTable, launching_s, piecewise_linear

DRAFT_TOKENS = tuple(range(1, 9))
"""Default draft lengths to try."""

NO_LIMIT = 10**9
"""Sequences that no limit of a graph reaches."""

BATCHES = tuple(2**power for power in range(9))
"""Default batches to try."""


@cache
def measured_pairs() -> list[dict[str, Any]]:
    """Return all pairs of published runs that differ only in drafts, and the throughput with drafts over that without; no row is fitted to."""
    rows = json.loads(Path(__file__).with_name("measured_pairs.json").read_text(encoding="utf-8"))
    return [{**row, "ratio": row["with_tokens_per_s"] / row["without_tokens_per_s"]} for row in rows]


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A separate draft model, on the same devices as the target."""

    spec: ReplicaSpec
    """Replica with the weight dtype and parallelism of the draft; everything else is as for the target."""
    weight_bytes: float | None = None
    """Weights of the draft on one device, next to the target; None: all weights of the network."""
    caches: bool = True
    """Whether it has a separate KV cache."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speedup by batch and draft length."""

    rows: tuple[Mapping[str, Any], ...]
    """Rounds of one batch with one draft length each; the acceptance is that of the last position, `draft_s` the time of all draft steps, and `fits`
    says whether so many sequences fit in memory next to both models, None without a model."""
    best_draft_tokens: int
    """Best length at the smallest batch."""
    best: tuple[Mapping[str, Any], ...]
    """The best draft length of every batch."""
    breakeven_batch: int | None
    """Smallest batch from which on no draft length is faster than plain decoding; None if the largest batch still gains."""
    largest_batch: int
    """Largest batch that was tried and fits in memory."""
    memory: Mapping[str, float] | None
    label: Label
    assumptions: tuple[Assumption, ...]
    """Assumptions of the step times of both models."""


def _micro_batch(sharding: Sharding, batch: Array) -> Array:
    """Return the sequences of one micro-batch: a pipeline keeps one in flight per stage."""
    sequences: Array = np.maximum(batch / sharding.pipeline, 1.0)
    return sequences


def step_time_s(spec: ReplicaSpec, batch: Array, context_tokens: Number, query_tokens: Array) -> Array:
    """Return the time of one step in which every sequence computes `query_tokens` tokens, without the time of the host around it.

    The tokens of one sequence share one read of its KV cache. What a CUDA graph saves of the kernels is as in `with_host`; a step of more
    tokens than the largest graph saves nothing, and takes at least as long as its kernels take to launch.
    """
    rates = rates_of(spec)
    sequences = _micro_batch(spec.sharding, batch)
    kv_bytes = kv_bytes_per_element(spec.kv_format)
    costs = decode_step_costs(
        spec.network, sequences, context_tokens, spec.sharding, kv_bytes, rates.rates, query_tokens
    )
    unsaved = unsaved_s(costs)
    captured = unsaved + spec.profile.host.decode_excess_ratio * (total_s(costs) - unsaved)
    tokens, graph = batch * query_tokens, largest_graph_tokens(spec, query_tokens)
    least = _launch_s(spec)
    timed: Array = np.where(tokens > graph, np.maximum(np.maximum(captured, total_s(costs)), least), captured)
    return timed


def _launch_s(spec: ReplicaSpec) -> Number:
    """Return the least time of a step whose kernels are launched one by one [s]."""
    network = spec.network
    return spec.profile.host.launch_s(
        np.inf, len(network.layers), network.routed_layers, network.latent_layers, network.scaled_products
    )


def drafting_s(
    draft: DraftModel | float, batch: Array, context_tokens: Number, draft_tokens: Array | float
) -> Array:
    """Return the time of all draft steps of a round.

        t = t_1 + (g - 1) t_d

    A drafter with a KV cache first computes the g + 1 tokens that were just verified, and draws a draft
    from the last. Each further step drafts one token. What the host does between draft steps was not
    measured and is left out.

    Parameters
    ----------
    draft : the drafter, or the time of one of its steps [s]
    batch : [-]
        sequences
    context_tokens : [tokens]
        of each sequence
    draft_tokens : [tokens]
        g, 0 is no round

    Returns
    -------
    [s]
        t, on the device

    References
    ----------
    vLLM, `SpecDecodeBaseProposer.propose` in vllm/v1/spec_decode/llm_base_proposer.py: one pass over the tokens of the verification, then
    one pass for each further draft.
    """
    drafts = np.asarray(draft_tokens, dtype=np.float64)
    if isinstance(draft, float):
        return np.asarray(draft * drafts + np.zeros(np.broadcast_shapes(np.shape(batch), drafts.shape)))
    spec, one = draft.spec, np.ones(np.broadcast_shapes(np.shape(batch), drafts.shape))
    if draft.caches:
        each = np.stack((one, drafts + one))
        later, verified = step_time_s(spec, batch, context_tokens, each)
        drawn, every = step_time_s(_with_layers(spec, ()), batch, context_tokens, each)
        first = np.maximum(later, verified - np.maximum(every - drawn, 0.0))
    else:
        first = later = step_time_s(spec, batch, context_tokens, one)
    return np.asarray(np.where(drafts > 0.0, first + (drafts - 1.0) * later, 0.0))


def rejection_s(spec: ReplicaSpec, draft_rows: Number) -> Number:
    """Return the time in which the sampler reads the probabilities of drafts, which a plain step does not have [s].

        t = r V s / B

    Parameters
    ----------
    spec : the target; V its vocabulary, s the bytes that its sampler works on for each entry, B the bandwidth of memory
    draft_rows : [-]
        r, drafts of all sequences

    Returns
    -------
    [s]
        t, at the bandwidth of the datasheet: a lower bound

    References
    ----------
    vLLM, `RejectionSampler` in vllm/v1/sample/rejection_sampler.py: logits of all drafts in fp32, their softmax, and the draws.
    """
    moved = spec.network.vocabulary_size * spec.profile.memory.sampler_bytes / spec.sharding.data
    return draft_rows * moved / spec.device.memory_bytes_per_s


def step_times(
    target: ReplicaSpec | float,
    draft: DraftModel | float,
    batch: Array,
    draft_tokens: Array,
    context_tokens: float,
) -> tuple[Number, Number, Number]:
    """Return the mean time of a draft step, the times of a verification and of a plain step, arrays over (batch, draft tokens).

    A given time of the target is used for a plain step and for a verification alike, at every batch. The time of the host around a step
    counts once per target step.
    """
    one = np.ones(np.broadcast_shapes(batch.shape, draft_tokens.shape))
    if isinstance(target, float):
        plain = verify = target * one
    else:
        host = (
            target.profile.host.each_step_s(target.ranks)
            + target.profile.host.token_s(offline=target.offline) * batch
        )
        each = np.stack((one, draft_tokens + one))
        plain, verify = step_time_s(target, batch, context_tokens, each) + host
        verify = verify + rejection_s(target, draft_tokens * batch)
    return drafting_s(draft, batch, context_tokens, draft_tokens) / draft_tokens, verify, plain


def speculation(
    target: Replica | float,
    draft: DraftModel | float,
    acceptance_fraction: float | Sequence[float],
    *,
    draft_tokens: Sequence[int] = DRAFT_TOKENS,
    batches: Sequence[int] = BATCHES,
    context_tokens: float = 1152.0,
) -> Speculation:
    """Return the speedup of speculative decoding.

    Parameters
    ----------
    target, draft : the replica and the draft model, or the time of one of their steps [s]
    acceptance_fraction : [-]
        probability that a draft token is accepted if all before it were; or one for each position
    draft_tokens, batches : lengths to try, of which those beyond the positions are left out, and decoding sequences
    context_tokens : [tokens]
        mean context of a sequence
    """
    spec = target if isinstance(target, float) else target.spec
    fractions = [acceptance_fraction] if isinstance(acceptance_fraction, float) else acceptance_fraction
    positions = len(fractions)
    tried = sorted({g for g in draft_tokens if positions == 1 or g <= positions})
    if not tried:
        known = f"acceptances are known for {positions} drafts\n  state your own: --acceptance 0.7"
        raise InputError(f"--draft-tokens {min(draft_tokens)}: {known}")
    lengths = np.array(tried, dtype=np.float64)
    asked = sorted(set(batches))
    of_length = {}
    if isinstance(target, Replica):
        of_length = {g: target_and_draft_memory(target, draft, context_tokens, g) for g in tried}
    both = of_length.get(tried[0])
    every = _tried_batches(asked, target, both)
    grid, drafts = every[:, None], lengths[None, :]
    expected = np.array([[round_tokens(fractions, g) for g in tried]])
    columns = _round_columns(step_times(spec, draft, grid, drafts, context_tokens), expected, drafts)
    speedup = columns["speedup"]

    def row(batch: int, at: int) -> dict[str, Any]:
        place = int(np.searchsorted(every, batch))
        length = int(lengths[at])
        return {
            "batch": batch,
            "draft_tokens": length,
            "acceptance": fractions[0 if positions == 1 else length - 1],
            **{name: float(column[place, at]) for name, column in columns.items()},
            "fits": batch <= of_length[length]["max_concurrency"] if of_length else None,
        }

    best = tuple(row(b, int(speedup[np.searchsorted(every, b)].argmax())) for b in asked)
    return Speculation(
        rows=tuple(row(b, i) for b in asked for i in range(lengths.size)),
        best_draft_tokens=best[0]["draft_tokens"],
        best=best,
        breakeven_batch=breakeven_batch(every, speedup.max(axis=1)),
        largest_batch=int(every[-1] if both is None else max(1.0, min(every[-1], both["max_concurrency"]))),
        memory=of_length.get(best[0]["draft_tokens"]),
        label="assumed" if isinstance(target, float) else target.label,
        assumptions=() if isinstance(target, float) else target.rates.assumptions,
    )


def _round_columns(
    times: tuple[Number, Number, Number], expected: Array, draft_tokens: Array
) -> dict[str, Array]:
    """Return the figures of a round by name, arrays over (batch, draft tokens)."""
    draft_step_s, verify_s, target_step_s = times
    whole = round_time_s(draft_tokens, draft_step_s, verify_s)
    columns = {
        "expected_tokens_per_round": expected,
        "draft_step_s": draft_step_s,
        "draft_s": draft_tokens * draft_step_s,
        "verify_s": verify_s,
        "round_s": whole,
        "target_step_s": target_step_s,
        "speedup": speculative_speedup_ratio(expected, whole, target_step_s),
    }
    return dict(zip(columns, np.broadcast_arrays(*columns.values()), strict=True))


def _tried_batches(asked: Sequence[int], target: Replica | float, both: Mapping[str, float] | None) -> Array:
    """Return the batches to try: those asked for, and all that scheduler and memory admit."""
    if isinstance(target, float) or both is None:
        return np.array(asked, dtype=np.float64)
    most = min(float(target.scheduling.max_num_seqs), both["max_concurrency"])
    admitted = np.arange(1, max(1, int(most)) + 1)
    return distinct(np.concatenate([admitted, asked])).astype(np.float64)


def breakeven_batch(batches: Array, best_speedup: Array) -> int | None:
    """Return the smallest batch from which on nothing is gained, or None if the largest one still gains.

    Tile and wave quantisation makes the speedup a sawtooth: a batch counts only if no larger one gains again.

    Parameters
    ----------
    batches : [-]
        ascending
    best_speedup : [-]
        of the best draft length at each batch

    Examples
    --------
    >>> breakeven_batch(np.array([1.0, 2.0, 4.0, 8.0]), np.array([1.4, 0.9, 1.1, 0.8]))
    8
    """
    gains = np.flatnonzero(best_speedup > 1.0)
    first = int(gains[-1]) + 1 if gains.size else 0
    return int(batches[first]) if first < batches.size else None


def target_and_draft_memory(
    target: Replica, draft: DraftModel | float, context_tokens: float, draft_tokens: int
) -> dict[str, float]:
    """Return the memory of one device with the draft, and how many sequences fit next to both models, in the whole replica, each of the context.

    A recurrent state cannot be rolled back, so engines keep one for every draft token that may be accepted, and one more.

    References
    ----------
    vLLM, `MambaSpec.num_speculative_blocks`; SGLang, `MambaPool.SpeculativeState`.

    Raises
    ------
    DoesNotFitError
        both models leave nothing for the KV cache
    """
    plan, spec = target.memory, target.spec
    alone = float(plan.kv_bytes_available)
    held, per_draft = 0.0, 0.0
    if isinstance(draft, DraftModel):
        served = _as_served(draft.spec, spec)
        held = float(memory_of(served).weight_bytes) if draft.weight_bytes is None else draft.weight_bytes
        per_draft = _per_sequence_bytes(served, context_tokens) if draft.caches else 0.0
    per_target = _per_sequence_bytes(spec, context_tokens)
    with_drafts = per_target + draft_tokens * _recurrent_bytes(spec)
    left = alone - held - _more_rings_bytes(spec)
    if left <= 0.0 and isinstance(draft, DraftModel):
        raise DoesNotFitError(
            f"{spec.network.name} with the draft {draft.spec.network.name} does not fit on {spec.devices} x "
            f"{spec.device.name}: the target leaves {alone / 1e9:.3g} GB, the draft needs {held / 1e9:.3g} GB\n"
            "  try a smaller draft, --weight-dtype fp8, or a larger --tensor-parallel"
        )
    groups = float(spec.sharding.data)
    return {
        "target_weight_bytes_per_gpu": float(plan.weight_bytes),
        "draft_weight_bytes_per_gpu": held,
        "kv_bytes_available_alone_per_gpu": alone,
        "kv_bytes_available_per_gpu": left,
        "target_kv_bytes_per_sequence_per_gpu": with_drafts,
        "draft_kv_bytes_per_sequence_per_gpu": per_draft,
        "context_tokens": int(context_tokens),
        "max_concurrency_alone": groups * alone / per_target if per_target else np.inf,
        "max_concurrency": groups * left / (with_drafts + per_draft) if with_drafts + per_draft else np.inf,
    }


def _as_served(draft: ReplicaSpec, target: ReplicaSpec) -> ReplicaSpec:
    """Return the draft with the maximum context of the target."""
    return replace(draft, max_model_len=served_context_tokens(target))


def _per_sequence_bytes(spec: ReplicaSpec, context_tokens: float) -> float:
    """Return the KV-cache bytes of one sequence on one device."""
    return float(sequence_cache_bytes(plans_of([spec]), context_tokens)[0])


def _recurrent_bytes(spec: ReplicaSpec) -> float:
    """Return the bytes of the states of one sequence on one device, as blocks of its cache; 0 where nothing is recurrent."""
    mixers = (mixer for layer, _ in spec.network.distinct_layers for mixer in layer.mixers)
    recurrent = any(part.recurrent for mixer in mixers for part in mixer.description.state_parts)
    return _per_sequence_bytes(spec, 0.0) if recurrent else 0.0


def _more_rings_bytes(spec: ReplicaSpec) -> float:
    """Return what the rings of waiting tokens of one device take more with drafts: see `memory.ring_pools`."""
    launch, rules = plans_of([spec]).launch, spec.profile.memory
    of_drafts, alone = (
        waiting_ring_bytes(spec.network, launch, rules, drafts=drafts) for drafts in (True, False)
    )
    return float(np.max(of_drafts - alone))


def speculating_replica(
    replica: Replica,
    draft: DraftModel | float,
    acceptance_fraction: float | Sequence[float],
    draft_tokens: int,
    context_tokens: float,
    *,
    verified_tokens: int | None = None,
) -> Replica:
    """Return a replica whose decode steps are rounds, and whose KV cache is what the draft model leaves.

    Parameters
    ----------
    replica : without speculation
    draft : the draft model, or the time of one of its steps [s]
    acceptance_fraction : [-]
        probability that a draft token is accepted if all before it were; or one for each position
    draft_tokens : [tokens]
        drafted in one round
    context_tokens : [tokens]
        of a typical sequence, for which the KV cache is divided between both models
    verified_tokens : [tokens]
        in one round, where drafts form a tree; None: the drafts and one more

    Returns
    -------
    the replica with rounds for steps

    Raises
    ------
    InputError
        a pipelined replica
    """
    refuse_stages(replica.spec)
    query = max(draft_tokens + 1, verified_tokens or 0)
    accepted = [acceptance_fraction] if isinstance(acceptance_fraction, float) else acceptance_fraction
    blocks = replica.kv_blocks
    scheduling = replica.scheduling
    seats = min(scheduling.max_num_seqs, max(scheduling.max_num_batched_tokens // query, 1))
    if isinstance(draft, DraftModel) or _recurrent_bytes(replica.spec):
        both = target_and_draft_memory(replica, draft, context_tokens, draft_tokens)
        left = both["max_concurrency"] / both["max_concurrency_alone"]
        blocks = max(int(blocks * left), 1)
        if replica.memory.state_blocks < np.inf:  # a sequence has a state for each draft token too
            seats = min(
                seats, max(int(replica.memory.state_blocks * left), 1) * int(replica.spec.sharding.data)
            )
    return replace(
        replica,
        table=round_table(replica, draft, draft_tokens, query),
        scheduling=replace(scheduling, max_num_seqs=seats),
        kv_blocks=blocks,
        tokens_per_step=round_tokens(accepted, draft_tokens),
        tokens_variance=round_tokens_variance(accepted, draft_tokens),
        query_tokens=query,
        draft_tokens=draft_tokens,
        draft=draft.spec if isinstance(draft, DraftModel) and draft.caches else None,
    )


def refuse_stages(spec: ReplicaSpec) -> None:
    """Raise the error for a pipelined replica, whose rounds are not modelled."""
    if spec.batching.pipeline > 1:
        raise InputError(
            "speculation with pipeline stages is not simulated\n  use --tensor-parallel only, or drop the speculation"
        )


def round_table(
    replica: Replica, draft: DraftModel | float, draft_tokens: int, query_tokens: int | None = None
) -> StepTable:
    """Return the step times of a replica whose decode steps are rounds.

    The time of a round is that of a plain decode step, plus the extra device time of verifying all drafts instead of one
    token, plus the draft steps in sequence and the draws. In a mixed step, drafting and the longer attention are added; the verified
    tokens count among the tokens of the step. A verification larger than the biggest CUDA graph runs eagerly: it takes at
    least as long as a prefill of that size.
    """
    table, spec = replica.table, replica.spec
    batch = np.maximum(table.sequence_knots, 1.0)
    query = float(query_tokens or draft_tokens + 1)

    sequences, contexts = batch[:, None], table.context_knots[None, :]
    drafts = drafting_s(draft, sequences, contexts, float(draft_tokens))
    each = np.array([1.0, query]).reshape(2, 1, 1)
    plain, verifying = step_time_s(spec, sequences, contexts, each)
    more = np.maximum(verifying - plain, 0.0)
    longer = (drafts - drafts[:, :1]) + (more - more[:, :1])
    drawn_s = drafts[:, 0] + rejection_s(spec, draft_tokens * batch)
    verified_tokens = batch * query
    working = piecewise_linear(table.token_knots, table.mixed_s, verified_tokens) + table.head_s
    eager = np.maximum(working, launching_s(table, verified_tokens))
    graph = largest_graph_tokens(spec, query)
    least = np.where(verified_tokens > graph, eager, 0.0) if draft_tokens else 0.0
    return replace(
        table,
        decode_s=np.maximum(table.decode_s + more[:, 0], least) + drawn_s,
        head_s=table.head_s + drawn_s,
        decode_attention_s=table.decode_attention_s + np.maximum(longer, 0.0),
    )


def largest_graph_tokens(spec: ReplicaSpec, query_tokens: Number) -> Number:
    """Return the tokens of the largest decode step that runs as a CUDA graph, summed over the attention-data-parallel groups.

    vLLM captures up to min(2 B q, limit) tokens, where B sequences of q tokens may run; SGLang and TensorRT-LLM capture batches up to a limit of
    sequences, each with its q tokens.

    Parameters
    ----------
    spec : the replica
    query_tokens : [tokens]
        q, which a step computes for each sequence

    References
    ----------
    vLLM, `VllmConfig._set_cudagraph_sizes` in vllm/config/vllm.py (`decode_query_len`); SGLang, `CudaGraphRunner` in
    srt/model_executor/cuda_graph_runner.py (`num_tokens_per_bs`).
    """
    if graph_sequences(spec) == 0.0:
        return 0.0
    entry = tier(spec.profile, engine_memory_bytes(spec.device), spec.device.architecture)
    limit = graph_max_sequences(spec.profile, entry, NO_LIMIT, int(spec.sharding.tensor))
    if not spec.profile.doubles_graph_sequences:
        return spec.sharding.data * limit * query_tokens
    seats = started_scheduling(spec).max_num_seqs
    return spec.sharding.data * np.minimum(2.0 * seats * query_tokens, limit)


Method = Literal["draft-model", "eagle", "mtp", "dspark", "medusa", "ngram"]


CACHING: frozenset[str] = frozenset({"draft-model", "eagle", "mtp", "dspark"})
"""Methods whose drafter has a KV cache, which holds the prompt before the first draft."""


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """Speculative decoding of any replica of a target."""

    method: Method
    acceptance_fractions: tuple[float, ...]
    """One for all positions, or one for each: the chance that a draft is accepted given that all before it were."""
    draft_tokens: int | None = None
    """Draft tokens of one round; None: as many as are best at the load."""
    verified_tokens: int | None = None
    """Tokens verified in one round, where drafts form a tree; None: the drafts and one more."""
    network: Network | None = None
    """Network of a draft model."""
    step_s: float | None = None
    """Time of one draft, where it is stated; the drafter is then taken to need no memory."""


def draft_of(plan: DraftPlan, target: ReplicaSpec) -> DraftModel | float:
    """Return the drafter of a target: a model, or the time of one draft [s].

    An EAGLE, MTP or DSpark head is one more layer of the target, with its embedding and its LM head; that of MTP is its last caching layer, with
    the matrix that joins hidden state and embedding, and takes the memory of all layers of the kind that the checkpoint has. A Medusa head is
    one more LM head; drafts from the prompt take no time on the device.
    """
    if plan.step_s is not None:
        return plan.step_s
    if plan.method == "ngram":
        return 0.0
    if plan.method == "draft-model":
        assert plan.network is not None
        tensor, data = target.sharding.tensor, target.sharding.data
        return DraftModel(replace(target, network=plan.network, sharding=Sharding(tensor, 1.0, 1.0, data)))
    if plan.method == "medusa":
        heads = plan.draft_tokens or len(plan.acceptance_fractions)
        return DraftModel(_with_layers(target, ()), weight_bytes=heads * _lm_head_bytes(target), caches=False)
    predicting = draft_layer(target.network) if plan.method == "mtp" else None
    if predicting is not None:
        one = _with_layers(target, (predicting,))
        return DraftModel(
            one, weight_bytes=_layer_bytes(one) * draft_layers_per_layer(target.network, predicting)
        )
    one = _with_layers(target, target.network.layers[-1:])
    return DraftModel(one, weight_bytes=_layer_bytes(one))


def drafting_of_prompts(plan: DraftPlan | None) -> DraftPlan | None:
    """Return how replicas that only prefill draft: once a prompt, which makes the draft's part of the KV cache; None where no draft has a cache.

    References
    ----------
    vLLM pull requests 34529 (the draft runs where the prompt is prefilled, and its cache is sent too) and 49230 (draft models, EAGLE
    and MTP heads are set up in both pools, prompt lookup in the decode pool only), https://github.com/vllm-project/vllm/pull/49230.
    """
    if plan is None or plan.step_s is not None or plan.method not in CACHING:
        return None
    return replace(plan, draft_tokens=1, verified_tokens=None)


def _with_layers(target: ReplicaSpec, layers: tuple[Layer, ...]) -> ReplicaSpec:
    """Return the target cut to some of its layers, with the same parallelism."""
    return replace(target, network=replace(target.network, layers=layers))


def _layer_bytes(one: ReplicaSpec) -> float:
    """Return the weight bytes of the layers of a network, without its embedding and its LM head, on one device."""
    without = replace(one.network, layers=())
    held = weight_bytes_per_rank(one.network, one.sharding) - weight_bytes_per_rank(without, one.sharding)
    return float(held)


def _lm_head_bytes(target: ReplicaSpec) -> float:
    """Return the weight bytes of one more LM head on one device."""
    network = target.network
    elements = network.hidden_size * network.vocabulary_size / float(target.sharding.tensor)
    return 2.0 * elements


def best_draft_tokens(plan: DraftPlan, target: ReplicaSpec, batch: float, context_tokens: float) -> int:
    """Return the draft length with the most tokens per second at a batch; the shortest of equally good ones.

    Parameters
    ----------
    plan : DraftPlan
    target : the replica
    batch : [-]
        decoding sequences
    context_tokens : [tokens]
        mean context of a sequence

    Returns
    -------
    [tokens]
        at most as many as acceptances are stated by position
    """
    if plan.draft_tokens is not None:
        return plan.draft_tokens
    most = len(plan.acceptance_fractions)
    lengths = np.array([g for g in DRAFT_TOKENS if most == 1 or g <= most], dtype=np.float64)
    sequences = np.array([[max(batch, 1.0)]])
    draft_step_s, verify_s, _ = step_times(
        target, draft_of(plan, target), sequences, lengths[None, :], context_tokens
    )
    yields: Array = np.array([round_tokens(plan.acceptance_fractions, int(g)) for g in lengths])
    rounds_s = np.broadcast_to(round_time_s(lengths, draft_step_s, verify_s), (1, lengths.size))[0]
    rates = yields / rounds_s
    return int(lengths[int(np.argmax(rates))])


def best_speculating_replica(
    replica: Replica, plan: DraftPlan, batch: float, context_tokens: float
) -> Replica:
    """Return a replica that speculates, with the draft length that is best at a batch.

    Raises
    ------
    InputError, DoesNotFitError
        a pipelined replica; target and draft leave no room for the KV cache
    """
    return drafting_replica(replica, best_plan(plan, replica.spec, batch, context_tokens), context_tokens)


def best_plan(plan: DraftPlan, target: ReplicaSpec, batch: float, context_tokens: float) -> DraftPlan:
    """Return a plan with the draft length that is best at a batch."""
    refuse_stages(target)
    return replace(plan, draft_tokens=best_draft_tokens(plan, target, batch, context_tokens))


def drafting_replica(replica: Replica, plan: DraftPlan, context_tokens: float) -> Replica:
    """Return a replica that speculates as planned, with a number of drafts that is known.

    Raises
    ------
    InputError, DoesNotFitError
        a pipelined replica; target and draft leave no room for the KV cache
    """
    assert plan.draft_tokens is not None
    return speculating_replica(
        replica,
        draft_of(plan, replica.spec),
        plan.acceptance_fractions,
        plan.draft_tokens,
        context_tokens,
        verified_tokens=plan.verified_tokens,
    )
