"""What the devices of a replica achieve in every kernel, and the cost of one operator in a step with its roofline floors, so that its bottleneck can be named."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from capplan.numbers import Number
from capplan.operators.device_rates import SharedRates
from capplan.operators.expert_exchange import GATHERED, ExchangeRates
from capplan.operators.experts import ExpertRates
from capplan.operators.latent_attention import UNTILED, SparsePrefill
from capplan.operators.matmul import MatmulRates

Bound: TypeAlias = Literal["compute", "memory", "network", "latency"]


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """One operator summed over the layers that have it, on one device."""

    operator: str
    seconds: Number
    flop: Number = 0.0
    moved_bytes: Number = 0.0
    sent_bytes: Number = 0.0
    compute_s: Number = 0.0
    """Floor at the datasheet rate."""
    memory_s: Number = 0.0
    """Floor at the datasheet bandwidth."""
    overlaps: bool = False
    """Whether neighbours in a CUDA graph hide part of its time: see `unsaved_s`."""

    def times(self, count: Number) -> "OperatorCost":
        """Return the cost of the operator in `count` layers."""
        return OperatorCost(
            self.operator,
            self.seconds * count,
            self.flop * count,
            self.moved_bytes * count,
            self.sent_bytes * count,
            self.compute_s * count,
            self.memory_s * count,
            self.overlaps,
        )

    def plus(self, other: "OperatorCost") -> "OperatorCost":
        """Return the sum of two costs under this operator's name."""
        return OperatorCost(
            self.operator,
            self.seconds + other.seconds,
            self.flop + other.flop,
            self.moved_bytes + other.moved_bytes,
            self.sent_bytes + other.sent_bytes,
            self.compute_s + other.compute_s,
            self.memory_s + other.memory_s,
            self.overlaps,
        )

    def named(self, operator: str) -> "OperatorCost":
        """Return the same cost under another name."""
        return replace(self, operator=operator)


def summed(costs: Iterable[OperatorCost]) -> list[OperatorCost]:
    """Return one cost for each operator name, in order of first occurrence.

    Examples
    --------
    >>> [(cost.operator, cost.seconds) for cost in summed([OperatorCost("a", 1.0), OperatorCost("b", 2.0), OperatorCost("a", 3.0)])]
    [('a', 4.0), ('b', 2.0)]
    """
    by_name: dict[str, OperatorCost] = {}
    for cost in costs:
        known = by_name.get(cost.operator)
        by_name[cost.operator] = known.plus(cost) if known else cost
    return list(by_name.values())


def total_s(costs: Iterable[OperatorCost]) -> Number:
    """Return the time of operators run in sequence.

        t = sum_i t_i

    Parameters
    ----------
    costs : the operators of a step

    Returns
    -------
    [s]
        t, broadcast over the costs

    Examples
    --------
    >>> total_s([OperatorCost("a", 1.0), OperatorCost("b", 2.0)])
    3.0

    References
    ----------
    One CUDA stream runs its kernels in order: NVIDIA, CUDA C++ Programming Guide, "Streams".
    """
    time: Number = 0.0
    for cost in costs:
        time = time + cost.seconds
    return time


def floor_s(costs: Iterable[OperatorCost]) -> Number:
    """Return the minimum time of operators run in sequence at datasheet rates; collectives count in full.

        t = sum_i max(F_i / P, Q_i / B)

    Parameters
    ----------
    costs : the operators of a step

    Returns
    -------
    [s]
        t, never above `total_s` of the same operators

    Examples
    --------
    The larger floor of the first operator, and the collective as it is:

    >>> float(floor_s([OperatorCost("a", 3.0, compute_s=1.0, memory_s=2.0), OperatorCost("b", 1.0, sent_bytes=8.0)]))
    3.0

    References
    ----------
    Williams, Waterman, Patterson 2009, "Roofline", doi:10.1145/1498765.1498785.
    """
    time: Number = 0.0
    for cost in costs:
        sends = bool(np.any(np.asarray(cost.sent_bytes) > 0))
        least = cost.seconds if sends else np.maximum(cost.compute_s, cost.memory_s)
        time = time + np.minimum(least, cost.seconds)
    return time


def unsaved_s(costs: Iterable[OperatorCost]) -> Number:
    """Return the time of operators in a CUDA graph if everything that can overlap does.

    Matrix products and elementwise kernels follow one another without a gap. Of their time above the floor,
    arithmetic below peak remains and waiting for memory and launches goes. Attention, recurrences, routed
    experts and collectives keep all of their time:

        t = sum_i f_i + c_i (1 - f_i / t_i) of those that overlap, t_i of the others,   f_i = max(c_i, m_i)

    Parameters
    ----------
    costs : the operators of a step, with floors c (arithmetic) and m (memory)

    Returns
    -------
    [s]
        t, between `floor_s` and `total_s`

    Examples
    --------
    A memory-bound operator shrinks to its floor; one that computes for 1.5 of its 3 s keeps half of that on top; one that does
    not overlap keeps its time.

    >>> float(unsaved_s([OperatorCost("a", 3.0, compute_s=0.0, memory_s=2.0, overlaps=True)]))
    2.0
    >>> float(unsaved_s([OperatorCost("a", 3.0, compute_s=1.5, memory_s=1.0, overlaps=True)]))
    2.25
    >>> float(unsaved_s([OperatorCost("a", 3.0, compute_s=0.0, memory_s=2.0)]))
    3.0

    References
    ----------
    NVIDIA, CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
    """
    time: Number = 0.0
    for cost in costs:
        if not cost.overlaps:
            time = time + cost.seconds
            continue
        compute_s = np.minimum(cost.compute_s, cost.seconds)
        least = np.minimum(np.maximum(compute_s, cost.memory_s), cost.seconds)
        time = time + least + compute_s * (1.0 - least / np.maximum(cost.seconds, 1e-30))
    return time


def bound(cost: OperatorCost) -> Bound:
    """Return what limits an operator: the larger floor, or latency where the time is over three times both.

    Examples
    --------
    >>> bound(OperatorCost("a", 3.0, compute_s=1.0, memory_s=2.0)), bound(OperatorCost("a", 7.0, memory_s=2.0))
    ('memory', 'latency')
    """
    if np.sum(cost.sent_bytes) > 0:
        return "network"
    compute_s, memory_s, seconds = (float(np.mean(x)) for x in (cost.compute_s, cost.memory_s, cost.seconds))
    if seconds > 3.0 * max(compute_s, memory_s):
        return "latency"
    return "compute" if compute_s > memory_s else "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRates(SharedRates):
    """Rates by kernel; matmuls and experts by the weight format that they read."""

    matmul: Mapping[str, MatmulRates]
    experts: Mapping[str, ExpertRates]
    activation_bytes: Mapping[str, Number]
    """Bytes per element of the activations that a dense kernel reads, by weight format."""
    expert_activation_bytes: Mapping[str, Number]
    """Bytes per element of the activations that an expert kernel reads, by weight format."""
    gathered_bytes: Mapping[str, Number]
    """Bytes per element in which the tokens of all groups are gathered for experts, by weight format of the experts."""
    decode_exchange: ExchangeRates = GATHERED
    """All-to-all of decode steps."""
    prefill_exchange: ExchangeRates = GATHERED
    """All-to-all of steps with prompts."""
    dispatched_bytes: Mapping[str, Number] = field(default_factory=dict)
    """Bytes per element in which tokens are sent to their experts, by weight format of the experts."""
    sparse_prefill: SparsePrefill = UNTILED
    """The kernels for prompts of sparse attention."""
    ubatch_tokens: float = np.inf
    """Most tokens that are multiplied at once (`EngineProfile.ubatch_tokens`)."""
