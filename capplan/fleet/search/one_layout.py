"""A single layout simulated under a scenario, to check or explain a plan that was chosen earlier."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from capplan.errors import Reason
from capplan.fleet.question import Question
from capplan.fleet.search.candidates import Layout
from capplan.fleet.search.cheapest import Search, Terms
from capplan.fleet.search.layouts import ScreenedLayout, search
from capplan.fleet.search.recommended import met_probability
from capplan.fleet.search.search_cache import SearchCache
from capplan.fleet.search.trial import Trial
from capplan.workload.request_class import Target

_ANY_LATENCY_S = 1e9
"""A latency limit so loose that the closed form keeps every layout that can serve requests at all."""


def trial_of(
    question: Question,
    layout: Layout,
    weight_dtype: str,
    terms: Terms,
    cache: SearchCache | None = None,
) -> Trial | Reason:
    """Return the trial of one layout under the traffic and the targets of a question.

    Parameters
    ----------
    question : the traffic, the targets and the engine
    layout : of one replica, on a device and in dtypes of the question
    weight_dtype : one of the question's networks
    terms : headroom, spares and prices
    cache : replicas and runs of questions before

    Returns
    -------
    the trial, also of a layout that misses the targets; the reason where it cannot serve the model at all
    """
    screened = _screened(question, layout, weight_dtype, terms, cache)
    if isinstance(screened, Reason):
        return screened
    found, candidate = screened
    return found.trial(candidate)


def replicas_of_layout(
    question: Question, layout: Layout, weight_dtype: str, terms: Terms, cache: SearchCache | None = None
) -> int | None:
    """Return the fewest replicas of one layout that meet the targets of a question, spares left out; None if no number does."""
    screened = _screened(question, layout, weight_dtype, terms, cache)
    if isinstance(screened, Reason):
        return None
    found, candidate = screened
    sized = found.sized(candidate, question.slo.confidence)
    return None if sized is None else sized.busy


def _screened(
    question: Question, layout: Layout, weight_dtype: str, terms: Terms, cache: SearchCache | None
) -> tuple[Search, ScreenedLayout] | Reason:
    """Return the search among one layout only, whatever its latencies, or the reason why it cannot serve the model at all."""
    degrees = layout.sharding
    loose = tuple(replace(target, limit_s=_ANY_LATENCY_S) for target in question.slo.targets)
    alone = replace(
        question,
        networks={weight_dtype: question.networks[weight_dtype]},
        devices=(layout.device,),
        kv_formats=(layout.kv_format,),
        ranges=replace(
            question.ranges,
            tensor_parallel=(int(degrees.tensor),),
            pipeline_parallel=(int(degrees.pipeline),),
            expert_parallel=(int(degrees.expert),),
            data_parallel=(int(degrees.data),),
        ),
    )
    result = search(replace(alone, slo=replace(question.slo, targets=loose)))
    if not result.candidates:
        return max(result.rejected.items(), key=lambda entry: entry[1])[0][1]
    return Search(alone, result.candidates, terms, cache), result.candidates[0]


@dataclass(frozen=True, slots=True)
class Adequacy:
    """Whether a number of replicas is enough for the traffic and the targets."""

    values_s: Mapping[Target, float]
    """Latency at the peak that each target limits, as stated [s]."""
    probability: float
    """Probability that all targets hold."""
    needed: float
    """Replicas that carry the peak with headroom, as predicted; infinite if no number does."""


def adequacy(trial: Trial, busy: int, headroom_fraction: float) -> Adequacy:
    """Return whether replicas of a layout are enough for the traffic and the targets of their trial.

    Parameters
    ----------
    trial : of their layout
    busy : replicas without spares
    headroom_fraction : [-]
        of the capacity that stays unused at the peak

    Returns
    -------
    Adequacy
    """
    latencies = trial.fleet(busy)
    peak = trial.total_rate / (1.0 - headroom_fraction)
    needed = trial.replicas_for(peak, 1.0, trial.limits, most=busy)
    if needed is None:
        needed = trial.replicas_for(peak, 1.0, trial.limits)
    values = {target: latencies.value(target) + target.outside_s for target in trial.limits}
    return Adequacy(values, met_probability(trial, busy), inf if needed is None else float(needed))
