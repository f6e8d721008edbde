"""A single layout simulated under a scenario, to check or explain a plan that was chosen earlier."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isclose

import numpy as np

from capplan.errors import Reason
from capplan.fleet.group import Group
from capplan.fleet.over_time import ReplicasAt
from capplan.fleet.review import Question
from capplan.fleet.search.candidates import Layout
from capplan.fleet.search.cheapest import Search, Terms, busy_replicas
from capplan.fleet.search.layouts import ScreenedLayout, search
from capplan.fleet.search.search_cache import SearchCache
from capplan.fleet.search.trial import Trial
from capplan.serving.steady_state import replicas_over_time
from capplan.workload.request_class import Target

ANY_LATENCY_S = 1e9
"""A latency limit so loose that the closed form keeps every layout that can serve requests at all."""


def at_any_latency(question: Question) -> Question:
    """Return a question whose targets every layout meets that serves the model at all."""
    loose = tuple(replace(target, limit_s=ANY_LATENCY_S) for target in question.slo.targets)
    return replace(question, slo=replace(question.slo, targets=loose))


def trial_of(
    question: Question,
    layout: Layout,
    terms: Terms,
    cache: SearchCache | None = None,
) -> Trial | Reason:
    """Return the trial of one layout under the traffic and the targets of a question.

    Parameters
    ----------
    question : the traffic, the targets and the engine
    layout : of one replica, on a device and in dtypes of the question
    terms : headroom, spares and prices
    cache : replicas and runs of questions before

    Returns
    -------
    the trial, also of a layout that misses the targets; the reason where it cannot serve the model at all
    """
    screened = _screened(question, layout, terms, cache)
    if isinstance(screened, Reason):
        return screened
    found, candidate = screened
    return found.trial(candidate)


def replicas_of_layout(
    question: Question, layout: Layout, terms: Terms, cache: SearchCache | None = None
) -> int | None:
    """Return the fewest replicas of one layout that meet the targets of a question, spares left out; None if no number does."""
    screened = _screened(question, layout, terms, cache)
    if isinstance(screened, Reason):
        return None
    found, candidate = screened
    sized = found.sized(candidate, question.slo.confidence)
    return None if sized is None else sized.busy


def _screened(
    question: Question, layout: Layout, terms: Terms, cache: SearchCache | None
) -> tuple[Search, ScreenedLayout] | Reason:
    """Return the search among one layout only, whatever its latencies, or the reason why it cannot serve the model at all."""
    degrees = layout.sharding
    alone = replace(
        question,
        networks={layout.weight_format: question.networks[layout.weight_format]},
        devices=(layout.device,),
        kv_formats=(layout.kv_format,),
        max_num_batched_tokens=layout.max_num_batched_tokens or question.max_num_batched_tokens,
        ranges=replace(
            question.ranges,
            tensor_parallel=(int(degrees.tensor),),
            pipeline_parallel=(int(degrees.pipeline),),
            expert_parallel=(int(degrees.expert),),
            data_parallel=(int(degrees.data),),
        ),
    )
    result = search(at_any_latency(alone))
    if not result.candidates:
        return max(result.rejected.items(), key=lambda entry: entry[1])[0][1]
    return Search(alone, result.candidates, terms, cache), result.candidates[0]


def replicas_at_rates(
    question: Question, group: Group, peak_per_s: float, terms: Terms, cache: SearchCache
) -> ReplicasAt:
    """Return what finds the replicas of a group that meet the targets at another rate of the service, by the test that sized the group.

    At the peak it has the replicas of the plan, below it never more, above it never fewer. Nothing is simulated before a rate is asked about.

    Parameters
    ----------
    question : of the requests that the group gets
    group : with its replicas at the peak
    peak_per_s : [1/s]
        rate of the service that the group is sized for
    terms : headroom
    cache : replicas and runs of the search that sized the group

    Returns
    -------
    rate -> replicas in service; as many as the planned rate of a replica asks for, if it is the same in a fleet of any size
    """

    @lru_cache
    def trial() -> Trial | Reason:
        return trial_of(question, group.layout, terms, cache)

    def searched(ratio: float) -> int | None:
        if ratio == 0.0 or not group.is_searched_at_other_rates(question.demand.classes):
            return None
        simulated = trial()
        if isinstance(simulated, Reason):
            return None
        confidence = question.slo.confidence
        return busy_replicas(simulated, simulated.limits, confidence, terms, traffic_ratio=ratio)

    def replicas_at(rate_per_s: float) -> int:
        busy, ratio = group.busy_replicas, rate_per_s / peak_per_s
        if isclose(ratio, 1.0):
            return busy
        needed = searched(ratio)
        if needed is None:
            needed = int(replicas_over_time(np.array([rate_per_s]), group.total_rate_per_replica)[0])
        return min(needed, busy) if ratio < 1.0 else max(needed, busy)

    return replicas_at


@dataclass(frozen=True, slots=True)
class Standing:
    """How a plan that was chosen before stands under the traffic and the targets of now."""

    values_s: Mapping[Target, float]
    """Latency at the peak that each target limits, as stated [s]."""
    probability: float
    """Probability that all targets hold."""
    needed: tuple[int | None, ...]
    """Replicas of each group that carry the peak with headroom, as predicted; None if no number does, and for a pool that is too small."""


def standing_of(trial: Trial, busy: int, headroom_fraction: float) -> Standing:
    """Return how some replicas of a layout stand, spares left out, with a part of their capacity unused at the peak."""
    latencies, peak = trial.fleet(busy), trial.total_rate / (1.0 - headroom_fraction)
    needed = trial.replicas_for(peak, 1.0, trial.limits, most=busy)
    if needed is None:
        needed = trial.replicas_for(peak, 1.0, trial.limits)
    values = {target: latencies.value(target) + target.outside_s for target in trial.limits}
    return Standing(values, trial.probability(busy), (needed,))
