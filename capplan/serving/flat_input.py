"""What an engine on flat arrays is given: its set-up, and its requests as columns."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from capplan.numbers import Counts
    from capplan.serving.terms import EngineTerms

Doubles: TypeAlias = "array[float]"
Integers: TypeAlias = "array[int]"


class FlatLimits(NamedTuple):
    """The set-up of an engine."""

    terms: EngineTerms
    delay_s: float
    """A request reaches the queue so long after it is sent, and the delay of a token longer for each token of its prompt."""
    token_delay_s: float
    begin_s: float
    """Time between the first requests of two users."""
    stages: int
    stage_fraction: float
    data_groups: int
    """Groups of data-parallel attention, each with prompts of its own."""
    separate_prefill_pass: bool
    """A step with prompts computes them and then its decoding sequences, each by themselves."""
    classes: int
    """Number of traffic classes."""
    queue_limit: int
    """A request that arrives when this many are waiting is shed."""
    deadline_s: Doubles
    """Longest wait of each class; empty: no deadlines."""
    level: Integers
    """Place of each class in the order of priorities; empty: first come, first served."""
    is_ranked: bool
    """Requests are queued by rank, since they come in another order."""
    batch_timeout_s: float
    gauged: bool
    """Batches, blocks, gaps between tokens and admitted tokens are recorded, not only the times of requests and of all steps."""
    judged_from: int
    """First request that counts, and when the last one arrives, where a run ends with the first limit that it has surely missed; see EarlyEnd."""
    judged_until_s: float
    judged_metrics: Integers
    """Latency that each limit is for: 0 for TTFT, 1 for TPOT, 2 for E2E."""
    judged_limits_s: Doubles
    judged_most: Integers
    """Requests that may exceed each limit."""
    luck: Doubles
    """Tokens that a request needs rounds for beyond its own, over the root of its own, in turn for each request; empty where every step yields as much."""


class FlatRequests(NamedTuple):
    """Requests as arrays: open-loop arrivals first, then those of closed-loop users, group after group."""

    columns: tuple[Doubles, Integers, Integers, Integers, Integers]
    """Arrival times, then think times; prompt, output and cached tokens; class."""
    arrivals: int
    turns: Integers
    """Group of each user, in the order in which they begin."""
    group_requests: Integers
    """Number of requests of each group."""
    most_asked: int
    """Requests that users of all groups send in a run."""
    visits: int
    """Groups of one user each, who begins at time zero; they come first."""
    block_ids: list[Counts]
    """Blocks of each prompt, and blocks that its response fills; empty without prefix cache."""
    output_ids: list[Counts]
