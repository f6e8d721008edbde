"""What the simulator is told of an engine, and of the events and mechanisms of a running fleet."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import ceil, inf, isnan
from typing import Literal, NamedTuple, TypeVar, get_args

from capplan.engine.profile import Policy, Scheduling
from capplan.errors import InputError
from capplan.numbers import Array
from capplan.serving.block_cache import PrefixCaching, check_prefix_caching
from capplan.serving.requests import InFlight
from capplan.serving.step_table import StepClock, StepTable

MIXED: frozenset[Policy] = frozenset({"mixed", "slots"})
"""Policies whose steps hold prompts and decoding sequences together."""


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
    tokens_variance: float = 0.0
    """Variance of the tokens per sequence and decode step: by it requests of the same length need different numbers of rounds."""
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
        return self.table if isinstance(self.table, StepClock) else self.table.clock


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTerms(Scheduling):
    """Limits and scheduling of one engine, checked, with what its cache and speculation add."""

    mixed: bool
    """Prompts and decoding sequences share a step."""
    kv_blocks: int
    tokens_per_step: float
    """Tokens that a sequence gains per decode step: 1, or the mean yield of speculation."""
    query_tokens: int
    """Tokens of a step's budget that a decoding sequence takes: 1, or the verified drafts plus one."""
    caching: PrefixCaching | None
    """Prompts with block ids share their blocks; None: only given cached tokens are shared."""

    @property
    def sequence_blocks(self) -> int:
        """Return the most blocks that one sequence may take."""
        return self.kv_blocks // self.max_num_seqs if self.policy == "slots" else self.kv_blocks

    @property
    def id_tokens(self) -> int:
        """Return the tokens per block id."""
        return self.caching.id_tokens if self.caching else self.block_tokens

    @property
    def id_blocks(self) -> int:
        """Return the engine blocks per block id."""
        return self.id_tokens // self.block_tokens

    @property
    def hold(self) -> tuple[int, int, int, int, int, int, int]:
        """Return the limits of a PromptHold."""
        limits = (self.hold_steps, self.hold_tokens, self.hold_prompts, self.gather_steps, self.poll_steps)
        return (*limits, self.hold_seats, self.max_num_batched_tokens // max(self.hold_seats, 1))

    def stage_tokens(self, stages: int) -> float:
        """Return the token budget of a micro-batch; infinite without chunked prefill."""
        return self.max_num_batched_tokens / stages if self.chunked else inf

    def shared_tokens(self, flight: InFlight) -> int:
        """Return the prompt tokens in full blocks that a request shares through the prefix cache; slots share nothing."""
        if self.policy == "slots":
            return 0
        if self.caching and flight.block_ids:
            return len(flight.block_ids) * self.caching.id_tokens
        return flight.cached_tokens // self.block_tokens * self.block_tokens

    def too_long(self, flight: InFlight) -> bool:
        """Return whether a request cannot run even by itself."""
        flight.cached_tokens = min(flight.cached_tokens, flight.prompt_tokens - 1)
        overshoot = 0 if self.tokens_per_step == 1.0 else ceil(self.tokens_per_step)
        shared = 0 if flight.block_ids else self.shared_tokens(flight)
        tokens = (
            flight.prompt_tokens - shared + flight.remaining_tokens - 1 + overshoot + flight.kv_transferred_in
        )
        if -(-tokens // self.block_tokens) > self.sequence_blocks:
            return True
        if flight.kv_transferred_in or not isnan(flight.first_token_s):
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
    if not 0.0 <= engine.tokens_variance < inf:
        raise InputError(f"tokens_variance is {engine.tokens_variance}; it must be at least 0")
    if query_tokens < 1 or 1 < query_tokens < tokens_per_step:
        raise InputError(
            f"query_tokens is {query_tokens}; it must be at least 1, and at least tokens_per_step ({tokens_per_step:g}) if above 1"
        )
    if (
        scheduling.policy in MIXED
        and scheduling.max_num_batched_tokens < scheduling.max_num_seqs * query_tokens
    ):
        each = f" of {query_tokens} tokens each" if query_tokens > 1 else ""
        raise InputError(
            f"max_num_batched_tokens ({scheduling.max_num_batched_tokens}) is less than max_num_seqs "
            f"({scheduling.max_num_seqs}){each}: the decoding sequences would not fit in a step"
        )
    if scheduling.policy == "slots" and engine.kv_blocks < scheduling.max_num_seqs:
        raise InputError(
            f"kv_blocks is {engine.kv_blocks}: too few for a part of the cache for each of the {scheduling.max_num_seqs} slots"
        )
    if scheduling.policy == "slots" and scheduling.asynchronous:
        raise InputError(
            "asynchronous scheduling is not modelled with slots: llama.cpp plans a step when the one before it has ended"
        )
    if not 0.0 <= reserved <= 1.0:
        raise InputError(f"reserved_output_fraction is {reserved}; it must be from 0 to 1")
    if engine.caching is not None:
        check_prefix_caching(engine.caching, scheduling.block_tokens)
    return EngineTerms(
        **{field.name: getattr(scheduling, field.name) for field in fields(scheduling)},
        mixed=scheduling.policy in MIXED,
        kv_blocks=engine.kv_blocks,
        tokens_per_step=tokens_per_step,
        query_tokens=query_tokens,
        caching=engine.caching,
    )


Routing = Literal[
    "round_robin", "random", "least_loaded", "reported_load", "prefix_aware", "gpu_prefix_aware"
]
ROUTINGS: tuple[Routing, ...] = get_args(Routing)
"""round_robin takes replicas in turn; least_loaded the one with the fewest requests, waiting or running (the first one of a
tie); reported_load the one that had the fewest when its last step ended (any one of a tie), as gateways choose that read the metrics
of engines and do not count what they send; prefix_aware the one that caches most leading blocks of the prompt, among those that are not much more loaded than the
least loaded one; gpu_prefix_aware the same, by blocks in GPU memory only: it does not see offload tiers."""
BY_PREFIX: frozenset[Routing] = frozenset({"prefix_aware", "gpu_prefix_aware"})
"""Rules that look for the replica that caches a prompt."""
BY_LOAD: frozenset[Routing] = BY_PREFIX | {"least_loaded", "reported_load"}
"""Rules that need the load of each replica."""


class Failure(NamedTuple):
    """A replica that fails: its running step completes, then its requests are rerouted and recomputed."""

    time_s: float
    replica: int
    repair_s: float = inf
    """Time until it serves again, with an empty cache; infinite: never."""


SCALING_WINDOW_S = 120.0
"""Time over which an autoscaler counts the requests that finish, as exported scalers do."""
SCALE_DOWN_HOLD_S = 300.0
"""Time for which an autoscaler keeps a replica after it was last needed: Kubernetes' default stabilisation window."""


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """When replicas are added and removed, decided at fixed intervals by the rate of requests that finish."""

    min_replicas: int
    max_replicas: int
    start_s: float
    """Time from the decision until a new replica serves: provisioning, loading of weights, warm-up."""
    rate_per_s: float
    """Largest rate of finished requests that one replica counts with: the threshold of an exported scaler."""
    interval_s: float = 15.0
    window_s: float = SCALING_WINDOW_S
    """Time over which finished requests are counted."""
    hold_s: float = SCALE_DOWN_HOLD_S
    """A replica that is not needed is kept for this long: the largest wish of so long counts."""


@dataclass(frozen=True, slots=True)
class Hedging:
    """A request that still waits for its first token is copied to another replica; the faster copy wins."""

    after_s: float
    """Time from dispatch to the first replica until the copy is sent."""
    settled_by: Literal["finish", "first_token"] = "finish"
    """What a copy must do first to win; the other is cancelled at the end of its step."""


@dataclass(frozen=True, slots=True)
class KvLink:
    """The link that carries KV caches from prefill to decode replicas, one prompt at a time."""

    bytes_per_token: float
    bytes_per_s: float
    """Rate of one prefill replica."""
    latency_s: float = 0.0


Tokens = TypeVar("Tokens", float, Array)


def transfer_s(tokens: Tokens, bytes_per_token: float, bytes_per_s: float, latency_s: float) -> Tokens:
    """Return the time to transfer the KV cache of a prompt.

        t = L + n b / B

    Parameters
    ----------
    tokens : [tokens]
        n, prompt.
    bytes_per_token : [B]
        b, KV cache of all layers.
    bytes_per_s : [B/s]
        B, may be infinite.
    latency_s : [s]
        L.

    Returns
    -------
    [s]
        t, without waiting for other transfers.

    Examples
    --------
    >>> transfer_s(tokens=1000.0, bytes_per_token=100.0, bytes_per_s=1e6, latency_s=0.25)
    0.35

    References
    ----------
    Patel et al. 2024, "Splitwise", section IV-C (transfer of the cache between machines), arXiv:2311.18677.
    """
    return latency_s + tokens * bytes_per_token / bytes_per_s


def link_load_fraction(
    tokens_per_s: float, bytes_per_token: float, replicas: float, bytes_per_s: float
) -> float:
    """Return the fraction of time for which the links of a pool send KV caches.

        u = x b / (n B)

    Parameters
    ----------
    tokens_per_s : [tokens/s]
        x, prompt tokens of the whole fleet, cached ones included: the decode engine has none of them.
    bytes_per_token : [B]
        b, KV cache of all layers.
    replicas : [-]
        n, of the pool.
    bytes_per_s : [B/s]
        B, of one replica.

    Returns
    -------
    [-]
        u; at 1 and beyond transfers pile up.

    Examples
    --------
    20 prompts a second of 1,000 tokens, 100 kB each, over two links of 4 GB/s:

    >>> link_load_fraction(tokens_per_s=20e3, bytes_per_token=100e3, replicas=2.0, bytes_per_s=4e9)
    0.25

    References
    ----------
    Kleinrock 1975, "Queueing Systems" vol. 1, equation 2.25 (utilisation: arrival rate times mean service time per server).
    """
    return tokens_per_s * bytes_per_token / (replicas * bytes_per_s)


def wanted_replicas(autoscaling: Autoscaling, finished_per_s: float) -> int:
    """Return how many replicas an autoscaler asks for, as Kubernetes does for a metric of which each replica has its part.

        n = ceil(r / c)   within the limits

    Parameters
    ----------
    autoscaling : limits, and c
    finished_per_s : [1/s]
        r, requests that the fleet finishes.

    Returns
    -------
    [-]
        n

    Examples
    --------
    A replica counts with 4 requests per second:

    >>> rule = Autoscaling(1, 8, start_s=60.0, rate_per_s=4.0)
    >>> wanted_replicas(rule, 9.0), wanted_replicas(rule, 8.0), wanted_replicas(rule, 90.0), wanted_replicas(rule, 0.0)
    (3, 2, 8, 1)

    References
    ----------
    Kubernetes, "Horizontal Pod Autoscaling", algorithm details,
    https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/.
    """
    wanted = ceil(finished_per_s / autoscaling.rate_per_s)
    return min(max(wanted, autoscaling.min_replicas), autoscaling.max_replicas)


def check_fleet(replicas: int, routing: str, *, caching: bool) -> None:
    """Refuse an invalid number of replicas or routing.

    Raises
    ------
    InputError
        names it, and what is allowed
    """
    if replicas < 1:
        raise InputError(f"replicas is {replicas}; it must be at least 1")
    if routing not in ROUTINGS:
        raise InputError(f"routing is '{routing}'\n  known: {', '.join(ROUTINGS)}")
    if routing in BY_PREFIX and not caching:
        raise InputError(
            f"routing is '{routing}', but the requests have no block ids\n"
            "  use a trace with block ids, or routing least_loaded"
        )


def check_events(
    failures: Sequence[Failure], autoscaling: Autoscaling | None, hedging: Hedging | None, replicas: int
) -> None:
    """Refuse invalid failures, autoscaling or hedging of a fleet with this many replicas.

    Raises
    ------
    InputError
        names the value
    """
    most = replicas if autoscaling is None else max(replicas, autoscaling.max_replicas)
    for failure in failures:
        if not 0 <= failure.replica < most:
            raise InputError(
                f"failure of replica {failure.replica}: replicas are numbered from 0 to {most - 1}"
            )
        if not 0.0 <= failure.time_s < inf or not failure.repair_s > 0.0:
            raise InputError(
                f"a failure needs a time of at least 0 s and a positive repair time, but is {failure}"
            )
    if hedging is not None and not hedging.after_s >= 0.0:
        raise InputError(f"hedging.after_s is {hedging.after_s}; it must be at least 0")
    if autoscaling is None:
        return
    if not 1 <= autoscaling.min_replicas <= replicas <= autoscaling.max_replicas:
        raise InputError(
            f"autoscaling between {autoscaling.min_replicas} and {autoscaling.max_replicas} replicas cannot start with "
            f"{replicas}"
        )
    if not autoscaling.start_s >= 0.0 or not 0.0 < autoscaling.interval_s < inf:
        raise InputError(
            f"autoscaling needs start_s of at least 0 and a positive interval_s, but is {autoscaling}"
        )
    if not 0.0 < autoscaling.rate_per_s < inf:
        raise InputError(
            f"autoscaling: rate_per_s is {autoscaling.rate_per_s}; a replica must count with a rate above 0"
        )
    if not autoscaling.window_s > 0.0 or not autoscaling.hold_s >= 0.0:
        raise InputError(
            f"autoscaling needs a positive window_s and hold_s of at least 0, but is {autoscaling}"
        )


def check_link(link: KvLink) -> None:
    """Refuse a link with an invalid size, rate or latency.

    Raises
    ------
    InputError
        names the value
    """
    if not 0.0 <= link.bytes_per_token < inf or not link.bytes_per_s > 0.0:
        raise InputError(
            f"a link needs bytes_per_token of at least 0 and a positive bytes_per_s, but is {link}"
        )
    if not 0.0 <= link.latency_s < inf:
        raise InputError(f"the latency of a link must be finite and at least 0 s, but is {link.latency_s}")
