"""The set-up of an engine, as the simulator needs it."""

from dataclasses import dataclass
from math import ceil, inf, isnan

from capplan.engine.profile import Scheduling
from capplan.errors import InputError
from capplan.serving.block_cache import PrefixCaching, check_prefix_caching
from capplan.serving.requests import InFlight
from capplan.serving.step_table import StepClock, StepTable


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """One engine, ready to serve: step times, scheduling and KV cache."""

    table: StepTable | StepClock
    """A StepClock saves set-up time if one table serves many runs."""
    scheduling: Scheduling
    kv_blocks: int
    """Blocks of `scheduling.block_tokens` tokens in the KV cache of the replica."""
    tokens_per_step: float = 1.0
    """Mean tokens per sequence and decode step; above 1 under speculative decoding, where the steps of the table are whole
    speculative rounds."""
    query_tokens: int = 1
    """Tokens of a step's budget that a decoding sequence takes: 1, or the verified drafts plus one."""
    batch_timeout_s: float = inf
    """Static policy: how long the oldest request waits for the batch to fill; infinite: until it is full."""
    caching: PrefixCaching | None = None
    """Prefix cache by block ids, in the free blocks of the engine and in its offload tiers; a request waits for its loads
    while others run. None: block ids are not used."""

    @property
    def clock(self) -> StepClock:
        """Step times, one number at a time."""
        return self.table if isinstance(self.table, StepClock) else StepClock(self.table)


@dataclass(frozen=True, slots=True)
class EngineTerms:
    """Limits and scheduling of one engine."""

    mixed: bool
    """Prompts and decoding sequences share a step."""
    chunked: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    block_tokens: int
    kv_blocks: int
    growth: float
    """Tokens that a sequence gains per decode step: 1, or the mean yield of speculation."""
    query_tokens: int
    """Tokens of a step's budget that a decoding sequence takes: 1, or the verified drafts plus one."""
    reserved_output_fraction: float
    """Fraction of its output for which blocks must be free before a request is admitted: 0 (vLLM), 1 (never preempt)."""
    hold_steps: int
    """Most steps of a running batch for which new prompts are held back ..."""
    hold_tokens: int
    """... or until the step would have this many tokens ..."""
    hold_prompts: int
    """... or, instead of tokens, until this many prompts wait ..."""
    gather_steps: int
    """... and then for this many more steps."""
    poll_steps: int
    """Steps of a running batch between two polls of the queue; 0: every step."""

    asynchronous: bool
    """A step is planned when the one before it begins."""
    caching: PrefixCaching | None
    """Prompts with block ids share their blocks; None: only given cached tokens are shared."""

    @property
    def id_tokens(self) -> int:
        """Return the tokens per block id."""
        return self.caching.id_tokens if self.caching else self.block_tokens

    @property
    def id_blocks(self) -> int:
        """Return the engine blocks per block id."""
        return self.id_tokens // self.block_tokens

    def stage_tokens(self, stages: int) -> float:
        """Return the token budget of a micro-batch; infinite without chunked prefill."""
        return self.max_num_batched_tokens / stages if self.chunked else inf

    def decode_steps(self, tokens: int) -> int:
        """Return the steps that produce this many tokens."""
        return tokens if self.growth == 1.0 else ceil(tokens / self.growth - 1e-9)

    def shared_tokens(self, flight: InFlight) -> int:
        """Return the prompt tokens in full blocks that a request shares through the prefix cache."""
        if self.caching and flight.block_ids:
            return len(flight.block_ids) * self.caching.id_tokens
        return flight.cached_tokens // self.block_tokens * self.block_tokens

    def blocks_of(self, flight: InFlight) -> tuple[int, int]:
        """Return the blocks that a prompt takes when admitted, and those reserved for prompt and output."""
        private_tokens = flight.prompt_tokens - flight.shared_tokens
        blocks = -(-private_tokens // self.block_tokens)
        if not self.reserved_output_fraction:
            return blocks, 0
        reserved = private_tokens + self.reserved_output_fraction * (flight.remaining_tokens - 1)
        return blocks, ceil(reserved / self.block_tokens)

    def piece_blocks(self, flight: InFlight, tokens: int, whole: int) -> int:
        """Return the blocks of the first `tokens` tokens of a prompt; engines with separate prefill steps take all `whole` at once."""
        if not self.mixed:
            return whole
        return min(-(-max(tokens - flight.shared_tokens, 0) // self.block_tokens), whole)

    def too_long(self, flight: InFlight) -> bool:
        """Return whether a request cannot run even alone."""
        flight.cached_tokens = min(flight.cached_tokens, flight.prompt_tokens - 1)
        overshoot = 0 if self.growth == 1.0 else ceil(self.growth)
        shared = 0 if flight.block_ids else self.shared_tokens(flight)
        tokens = flight.prompt_tokens - shared + flight.remaining_tokens - 1 + overshoot + flight.received
        if -(-tokens // self.block_tokens) > self.kv_blocks:
            return True
        if flight.received or not isnan(flight.first_token_s):
            return False
        return not self.chunked and flight.prompt_tokens - flight.cached_tokens > self.max_num_batched_tokens


def engine_terms(engine: EngineSetup) -> EngineTerms:
    """Return the terms of an engine, checked.

    Raises
    ------
    InputError
        names the invalid limit
    """
    scheduling, query_tokens, tokens_per_step = engine.scheduling, engine.query_tokens, engine.tokens_per_step
    reserved = scheduling.reserved_output_fraction
    for name in ("max_num_seqs", "max_num_batched_tokens", "block_tokens"):
        if getattr(scheduling, name) < 1:
            raise InputError(f"{name} is {getattr(scheduling, name)}; it must be at least 1")
    if engine.kv_blocks < 1:
        raise InputError(f"kv_blocks is {engine.kv_blocks}; the KV cache must hold at least one block")
    if not tokens_per_step >= 1.0:
        raise InputError(f"tokens_per_step is {tokens_per_step}; it must be at least 1")
    if query_tokens < 1 or 1 < query_tokens < tokens_per_step:
        raise InputError(
            f"query_tokens is {query_tokens}; it must be at least 1, and at least tokens_per_step ({tokens_per_step:g}) if above 1"
        )
    if (
        scheduling.policy == "mixed"
        and scheduling.max_num_batched_tokens < scheduling.max_num_seqs * query_tokens
    ):
        each = f" of {query_tokens} tokens each" if query_tokens > 1 else ""
        raise InputError(
            f"max_num_batched_tokens ({scheduling.max_num_batched_tokens}) is less than max_num_seqs "
            f"({scheduling.max_num_seqs}){each}: the decoding sequences would not fit in a step"
        )
    if not 0.0 <= reserved <= 1.0:
        raise InputError(f"reserved_output_fraction is {reserved}; it must be from 0 to 1")
    if engine.caching is not None:
        check_prefix_caching(engine.caching, scheduling.block_tokens)
    return EngineTerms(
        mixed=scheduling.policy == "mixed",
        chunked=scheduling.chunked,
        max_num_seqs=scheduling.max_num_seqs,
        max_num_batched_tokens=scheduling.max_num_batched_tokens,
        block_tokens=scheduling.block_tokens,
        kv_blocks=engine.kv_blocks,
        hold_steps=scheduling.hold_steps,
        hold_tokens=scheduling.hold_tokens,
        hold_prompts=scheduling.hold_prompts,
        gather_steps=scheduling.gather_steps,
        poll_steps=scheduling.poll_steps,
        asynchronous=scheduling.asynchronous,
        growth=tokens_per_step,
        query_tokens=query_tokens,
        reserved_output_fraction=reserved,
        caching=engine.caching,
    )
