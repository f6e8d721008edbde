"""One running replica: memory, scheduling and step times. Every simulation starts from this record."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from capplan.assumption import Label
from capplan.engine.profile import Scheduling
from capplan.errors import DoesNotFitError
from capplan.memory.plan import NO_ROOM, TOO_MANY_SEQUENCES, MemoryPlan
from capplan.replica.plans import (
    LabelledRates,
    StepTimes,
    plans_cache_tokens,
    plans_memory,
    plans_of,
    plans_tables,
)
from capplan.replica.spec import ReplicaSpec, served_context_tokens
from capplan.replica.tables import DeviceTables
from capplan.serving.step_table import StepClock, StepTable
from capplan.serving.terms import EngineSetup


@dataclass(frozen=True)
class Replica:
    """A running replica: step times, scheduling, KV cache."""

    spec: ReplicaSpec
    memory: MemoryPlan
    scheduling: Scheduling
    table: StepTable
    kv_blocks: int
    """Blocks of `scheduling.block_tokens` tokens in the KV cache of the whole replica."""
    rates: LabelledRates
    tokens_per_step: float = 1.0
    """Mean tokens that a sequence gains in a decode step: above 1 if the replica speculates, whose steps are rounds."""
    tokens_variance: float = 0.0
    """Variance of these tokens from round to round: whether drafts are accepted is a matter of chance."""
    query_tokens: int = 1
    """Tokens that a decode step computes for each sequence: the drafts plus one, or more if drafts form a tree."""
    draft_tokens: int | None = None
    """Tokens that are drafted in a round; None without speculation."""
    draft: ReplicaSpec | None = None
    """The draft model, if the replica speculates with one that has a KV cache."""

    @property
    def label(self) -> Label:
        """Return `measured` if every kernel rate was measured on this device, else `assumed`."""
        return self.rates.label

    @cached_property
    def device_tables(self) -> DeviceTables:
        """Device time only, with a leading axis of one plan: the input for fitting host times."""
        return plans_tables(plans_of([self.spec])).device

    @property
    def clock(self) -> StepClock:
        """Step times one number at a time, which all simulations of replicas with these step times share."""
        return self.table.clock

    @property
    def engine(self) -> EngineSetup:
        """Return the replica as the simulator sees it."""
        return EngineSetup(
            self.clock,
            self.scheduling,
            self.kv_blocks,
            tokens_per_step=self.tokens_per_step,
            tokens_variance=self.tokens_variance,
            query_tokens=self.query_tokens,
        )


def memory_of(spec: ReplicaSpec) -> MemoryPlan:
    """Return the memory plan of one device of the replica as it is launched, as numbers."""
    return plans_memory(plans_of([spec], lowered=False)).at(0)


def typical_context_tokens(spec: ReplicaSpec) -> float:
    """Return the sequence length for which the cache capacity is counted."""
    longest = served_context_tokens(spec)
    return float(min(spec.typical_context_tokens or longest, longest))


def _steps(memory: MemoryPlan, scheduling: Scheduling, spec: ReplicaSpec) -> str:
    """Return the tokens of a step as the way out where its activations take what the cache would have; nothing otherwise."""
    tokens = scheduling.max_num_batched_tokens // int(spec.sharding.data * spec.batching.pipeline)
    if int(memory.limit_codes) != NO_ROOM or not scheduling.chunked:
        return ""
    return f"; a step has {tokens:,} tokens (--max-num-batched-tokens)"


def replica_of(spec: ReplicaSpec) -> Replica:
    """Return the running replica; DoesNotFitError says why if it does not fit."""
    return replicas_of([spec])[0]


def replicas_of(specs: Sequence[ReplicaSpec], times: StepTimes | None = None) -> list[Replica]:
    """Return running replicas of one network, engine, KV dtype and context; DoesNotFitError says why if one does not fit.

    Each has the step times that it has by itself: those at equal knots are computed together, or taken from `times`.
    """
    plans = plans_of(specs)
    memory = plans_memory(plans)
    tokens = plans_cache_tokens(plans, memory, typical_context_tokens(specs[0])).tolist()
    blocks = [
        int(held) // scheduling.block_tokens
        for held, scheduling in zip(tokens, plans.schedulings, strict=True)
    ]
    for row, spec in enumerate(specs):
        alone = memory.at(row)
        if blocks[row] < 1 or int(alone.limit_codes) == TOO_MANY_SEQUENCES:
            reasons = "; ".join(alone.limits) or "no room for the KV cache"
            raise DoesNotFitError(
                f"{spec.network.name} does not fit on {spec.devices} x {spec.device.name}: {reasons}{_steps(alone, plans.schedulings[row], spec)}\n"
                "  capplan fit with the same options says what would make it fit"
            )
    return [
        Replica(spec, memory.at(row), plans.schedulings[row], each.table, blocks[row], each.rates)
        for row, (spec, each) in enumerate(
            zip(specs, (StepTimes() if times is None else times).of_each(plans), strict=True)
        )
    ]
