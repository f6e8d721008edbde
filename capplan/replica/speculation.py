"""Speculative decoding on one replica: what drafts bring at every batch, how many pay, and what memory they leave."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from capplan.assumption import Assumption, Label
from capplan.errors import DoesNotFitError
from capplan.model.sharding import Sharding
from capplan.model.weight_format import kv_bytes_per_element
from capplan.numbers import Array, Number
from capplan.phases.cost import total_s, unsaved_s
from capplan.phases.speculation import expected_tokens_per_round, round_time_s, speculative_speedup_ratio
from capplan.phases.step import decode_step_costs
from capplan.replica.plans import plans_of, sequence_cache_bytes
from capplan.replica.rates import step_rates
from capplan.replica.replica import Replica, memory_of
from capplan.replica.spec import ReplicaSpec, served_context_tokens

DRAFT_TOKENS = tuple(range(1, 9))
"""Draft lengths that are tried where none is asked for."""

BATCHES = tuple(2**power for power in range(9))
"""Batches that are tried where none is asked for."""


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft with a config of its own, on the same devices as the target."""

    spec: ReplicaSpec
    """In the dtype it is held in and with its own parallelism; everything else is the target's."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What a round is made of; arrays over (batch, draft tokens)."""

    draft_step_s: Number
    verify_s: Number
    target_step_s: Number


@dataclass(frozen=True, slots=True)
class SpeculationRow:
    """One batch with one draft length."""

    batch: int
    draft_tokens: int
    acceptance: float
    expected_tokens_per_round: float
    draft_step_s: float
    draft_s: float
    """All drafts of a round."""
    verify_s: float
    round_s: float
    target_step_s: float
    speedup: float
    fits: bool | None
    """Whether so many sequences of the context fit beside both models; None where no model is known."""


@dataclass(frozen=True, slots=True)
class TargetAndDraftMemory:
    """One device with the target and its draft."""

    target_weight_bytes: float
    draft_weight_bytes: float
    kv_bytes_alone: float
    """Left for the cache without a draft."""
    kv_bytes_left: float
    """Left for the caches of both."""
    target_bytes_per_sequence: float
    draft_bytes_per_sequence: float
    context_tokens: int
    max_sequences_alone: float
    max_sequences: float
    """Of the context, at once, in the whole replica."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """What drafts bring."""

    rows: tuple[SpeculationRow, ...]
    best_draft_tokens: int
    """At the smallest batch."""
    best: tuple[SpeculationRow, ...]
    """The best draft length of every batch."""
    breakeven_batch: int | None
    """Smallest batch from which on no draft length is faster than none; None where the largest one still gains."""
    largest_batch: int
    """That was looked at and fits in memory."""
    memory: TargetAndDraftMemory | None = None
    label: Label = "assumed"
    assumptions: tuple[Assumption, ...] = ()
    """Behind the step times of the models."""


def _split(sharding: Sharding, batch: Array) -> Array:
    """Return the sequences of one micro-batch: a pipeline carries one for each stage."""
    sequences: Array = np.maximum(batch / sharding.pipeline, 1.0)
    return sequences


def step_time_s(spec: ReplicaSpec, batch: Array, context_tokens: float, query_tokens: Array) -> Number:
    """Return the device time of one step in which every sequence computes `query_tokens` tokens, in a CUDA graph.

    Tokens of one sequence share the read of its cache; what a graph saves of the kernels is as in `with_host`.
    """
    rates = step_rates(
        spec.network, spec.device, spec.efficiency, profile=spec.profile, kv_format=spec.kv_format
    )
    sequences = _split(spec.sharding, batch)
    kv_bytes = kv_bytes_per_element(spec.kv_format)
    costs = decode_step_costs(
        spec.network, sequences, context_tokens, spec.sharding, kv_bytes, rates.rates, query_tokens
    )
    unsaved = unsaved_s(costs)
    return unsaved + spec.profile.host.decode_excess_ratio * (total_s(costs) - unsaved)


def step_times(
    target: ReplicaSpec | float,
    draft: DraftModel | float,
    batch: Array,
    draft_tokens: Array,
    context_tokens: float,
) -> StepTimes:
    """Return drafting, verification and a plain step.

    A stated time of the target is that of a step and of a verification alike, at every batch. The host works once
    for every step of the target; the steps of a draft are launched one behind the other.
    """
    one = np.ones_like(batch)
    if isinstance(target, float):
        plain: Number = target * one
        verify: Number = target * np.ones(np.broadcast_shapes(batch.shape, draft_tokens.shape))
    else:
        host = target.profile.host.step_s + target.profile.host.token_s(offline=target.offline) * batch
        plain = step_time_s(target, batch, context_tokens, one) + host
        verify = step_time_s(target, batch, context_tokens, draft_tokens + 1.0) + host
    drafting = draft if isinstance(draft, float) else step_time_s(draft.spec, batch, context_tokens, one)
    return StepTimes(drafting * one, verify, plain)


def speculation(
    target: Replica | float,
    draft: DraftModel | float,
    acceptance_fraction: float,
    *,
    draft_tokens: Sequence[int] = DRAFT_TOKENS,
    batches: Sequence[int] = BATCHES,
    context_tokens: float = 1152.0,
) -> Speculation:
    """Return what speculative decoding brings.

    Parameters
    ----------
    target : the replica, or the time of one of its decode steps [s]
    draft : the draft model, or the time of one of its steps [s]
    acceptance_fraction : [-]
        chance that a draft token is accepted given that all before it were
    draft_tokens : [tokens]
        lengths to try
    batches : [-]
        sequences that decode at once
    context_tokens : [tokens]
        in the cache of each sequence, mean

    Returns
    -------
    a row for every batch and draft length, the best length, and the batch where it stops paying
    """
    spec = target if isinstance(target, float) else target.spec
    both = target_and_draft_memory(target, draft, context_tokens) if isinstance(target, Replica) else None
    lengths = np.array(sorted(set(draft_tokens)), dtype=np.float64)
    asked = sorted(set(batches))
    every = _looked_at(asked, target, both)
    grid, drafts = every[:, None], lengths[None, :]
    times = step_times(spec, draft, grid, drafts, context_tokens)
    expected = expected_tokens_per_round(acceptance_fraction, drafts)
    whole = np.broadcast_to(
        round_time_s(drafts, times.draft_step_s, times.verify_s), (every.size, lengths.size)
    )
    speedup = np.asarray(speculative_speedup_ratio(expected, whole, times.target_step_s))
    shape = speedup.shape
    columns = [
        np.broadcast_to(value, shape)
        for value in (expected, times.draft_step_s, times.verify_s, whole, times.target_step_s, speedup)
    ]

    def row(batch: int, at: int) -> SpeculationRow:
        place = int(np.searchsorted(every, batch))
        tokens, step_s, verify_s, round_s, plain_s, ratio = (float(c[place, at]) for c in columns)
        length = int(lengths[at])
        fits = None if both is None else batch <= both.max_sequences
        return SpeculationRow(
            batch, length, acceptance_fraction, tokens, step_s, length * step_s, verify_s, round_s, plain_s,
            ratio, fits,
        )  # fmt: skip

    best = tuple(row(b, int(speedup[np.searchsorted(every, b)].argmax())) for b in asked)
    return Speculation(
        rows=tuple(row(b, i) for b in asked for i in range(lengths.size)),
        best_draft_tokens=best[0].draft_tokens,
        best=best,
        breakeven_batch=breakeven_batch(every, speedup.max(axis=1)),
        largest_batch=int(every[-1] if both is None else max(1.0, min(every[-1], both.max_sequences))),
        memory=both,
        label="assumed" if isinstance(target, float) else target.label,
        assumptions=() if isinstance(target, float) else target.rates.assumptions,
    )


def _looked_at(asked: Sequence[int], target: Replica | float, both: TargetAndDraftMemory | None) -> Array:
    """Return the batches that are worked out: the asked ones, and all that scheduler and memory admit."""
    if isinstance(target, float) or both is None:
        return np.array(asked, dtype=np.float64)
    most = min(float(target.scheduling.max_num_seqs), both.max_sequences)
    admitted = np.arange(1, max(1, int(most)) + 1)
    batches: Array = np.unique(np.concatenate([admitted, asked])).astype(np.float64)
    return batches


def breakeven_batch(batches: Array, best_speedup: Array) -> int | None:
    """Return the smallest batch from which on nothing is gained, or None where the largest still gains.

    Tiles and waves make the speedup a saw: a batch counts only if no larger one gains again.

    Parameters
    ----------
    batches : [-]
        ascending
    best_speedup : [-]
        of the best draft length at each batch

    Returns
    -------
    a batch, or None

    Examples
    --------
    >>> breakeven_batch(np.array([1.0, 2.0, 4.0, 8.0]), np.array([1.4, 0.9, 1.1, 0.8]))
    8
    """
    gains = np.flatnonzero(best_speedup > 1.0)
    first = int(gains[-1]) + 1 if gains.size else 0
    return int(batches[first]) if first < batches.size else None


def target_and_draft_memory(
    target: Replica, draft: DraftModel | float, context_tokens: float
) -> TargetAndDraftMemory:
    """Return what one device holds with the draft, and how many sequences the rest is for.

    Raises
    ------
    DoesNotFitError
        Both models leave nothing for the cache.
    """
    plan, spec = target.memory, target.spec
    alone = float(plan.kv_bytes_available)
    held, per_draft = 0.0, 0.0
    if isinstance(draft, DraftModel):
        served = _as_served(draft.spec, spec)
        held = float(memory_of(served).weight_bytes)
        per_draft = _per_sequence_bytes(served, context_tokens)
    per_target = _per_sequence_bytes(spec, context_tokens)
    left = alone - held
    if left <= 0.0 and isinstance(draft, DraftModel):
        raise DoesNotFitError(
            f"{spec.network.name} with the draft {draft.spec.network.name} does not fit on {spec.devices} x "
            f"{spec.device.name}: {alone / 1e9:.3g} GB are left beside the target, the draft weighs {held / 1e9:.3g} GB\n"
            "  try a smaller draft, --draft-weight-dtype fp8, --weight-dtype fp8, or a larger --tensor-parallel"
        )
    groups = float(spec.sharding.data)
    return TargetAndDraftMemory(
        target_weight_bytes=float(plan.weight_bytes),
        draft_weight_bytes=held,
        kv_bytes_alone=alone,
        kv_bytes_left=left,
        target_bytes_per_sequence=per_target,
        draft_bytes_per_sequence=per_draft,
        context_tokens=int(context_tokens),
        max_sequences_alone=groups * alone / per_target if per_target else np.inf,
        max_sequences=groups * left / (per_target + per_draft) if per_target + per_draft else np.inf,
    )


def _as_served(draft: ReplicaSpec, target: ReplicaSpec) -> ReplicaSpec:
    """Return the draft as it is served: no longer contexts than the target's."""
    return replace(draft, max_model_len=served_context_tokens(target))


def _per_sequence_bytes(spec: ReplicaSpec, context_tokens: float) -> float:
    """Return what a sequence takes out of the cache of one device."""
    return float(sequence_cache_bytes(plans_of([spec]), context_tokens)[0])
