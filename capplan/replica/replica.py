"""One running replica: memory, scheduling and step times. Every simulation starts from this record."""

from dataclasses import dataclass
from functools import cached_property

from capplan.assumption import Label
from capplan.engine.profile import Scheduling
from capplan.errors import DoesNotFitError
from capplan.memory.plan import NO_ROOM, TOO_MANY_SEQUENCES, MemoryPlan
from capplan.replica.plans import LabelledRates, plans_cache_tokens, plans_memory, plans_of, plans_tables
from capplan.replica.spec import ReplicaSpec, served_context_tokens
from capplan.replica.tables import DeviceTables, table_of_plan
from capplan.serving.step_table import StepClock, StepTable
from capplan.serving.terms import EngineSetup


@dataclass(frozen=True)
class Replica:
    """A running replica: step times, scheduling, KV cache."""

    spec: ReplicaSpec
    memory: MemoryPlan
    scheduling: Scheduling
    table: StepTable
    device_tables: DeviceTables
    """Device time only, with a leading axis of one plan: the input for fitting host times."""
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
    def clock(self) -> StepClock:
        """Step times one number at a time, which all simulations of the replica share."""
        return StepClock(self.table)

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
    plans = plans_of([spec])
    (scheduling,) = plans.schedulings
    memory = plans_memory(plans)
    (tokens,) = plans_cache_tokens(plans, memory, typical_context_tokens(spec)).tolist()
    alone = memory.at(0)
    blocks = int(tokens) // scheduling.block_tokens
    if blocks < 1 or int(alone.limit_codes) == TOO_MANY_SEQUENCES:
        reasons = "; ".join(alone.limits) or "no room for the KV cache"
        raise DoesNotFitError(
            f"{spec.network.name} does not fit on {spec.devices} x {spec.device.name}: {reasons}{_steps(alone, scheduling, spec)}\n"
            "  capplan fit with the same options says what would make it fit"
        )
    steps = plans_tables(plans)
    return Replica(
        spec, alone, scheduling, table_of_plan(steps.table, 0), steps.device, blocks, steps.rates[0]
    )
