"""What moves the number of a plan: traffic, lengths, prices and efficiency, each turned by itself, and the plans at other traffic."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from capplan.errors import Reason
from capplan.fleet.demand import demand_of
from capplan.fleet.one_layout import trial_of
from capplan.fleet.plan import FleetAnswer, FleetPlan
from capplan.fleet.search_cache import SearchCache
from capplan.fleet.sensitivity import Swing, Turn, WhatIf, resized, speed_swing, turned, what_if
from capplan.questions.fleet import AskedFleet, terms_of, wanted_context
from capplan.workload.length import Lengths
from capplan.workload.request_class import RequestClass

CHANGE = 0.2
"""Traffic and lengths are taken this much lower and higher."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What moves the number."""

    swings: tuple[Swing, ...] = ()
    """Of the chosen plan, the widest first."""
    what_if: tuple[tuple[FleetPlan, tuple[WhatIf, ...]], ...] = ()
    """Every plan at other traffic."""


def sensitivity_of(asked: AskedFleet, answer: FleetAnswer) -> Sensitivity:
    """Return what moves the number of a fleet; nothing where there is no plan.

    The layout of the plan stays; its replicas are counted by the simulation that sized it, under the changed question.
    """
    plan = answer.chosen
    if plan is None:
        return Sensitivity()
    headroom, terms = asked.scenario.fleet.headroom_fraction, terms_of(asked)
    others = tuple((each, what_if(each, headroom, terms.hourly(each.hardware))) for each in answer.plans)
    return Sensitivity(tuple(sorted(_swings(asked, plan), key=lambda swing: -swing.width)), others)


def _swings(asked: AskedFleet, plan: FleetPlan) -> list[Swing]:
    terms, cache = terms_of(asked), SearchCache()
    hourly = terms.hourly(plan.hardware)

    def both(change: Callable[[RequestClass, float], RequestClass]) -> tuple[Turn, Turn]:
        low, high = (
            turned(f"{ratio - 1.0:+.0%}", plan, _busy(asked, plan, change, ratio, cache), hourly)
            for ratio in (1.0 - CHANGE, 1.0 + CHANGE)
        )
        return low, high

    swings = [Swing("traffic", *both(busier))]
    if not asked.question.demand.has_sessions:  # their lengths follow from turns and what each adds
        swings.append(Swing("input length", *both(longer_input)))
        swings.append(Swing("output length", *both(longer_output)))
    if plan.price is not None and plan.price.low_usd_per_hour < plan.price.high_usd_per_hour:
        energy = plan.price.energy_usd_per_hour or 0.0
        offers = (plan.price.low_usd_per_hour, plan.price.high_usd_per_hour)
        low, high = (turned(f"${usd:.4g} an hour", plan, plan.busy_replicas, usd + energy) for usd in offers)
        swings.append(Swing("price of a GPU", low, high))
    trial = trial_of(asked.question, plan.layout, plan.weight_dtype, terms, cache)
    return swings if isinstance(trial, Reason) else [*swings, speed_swing(trial, plan, terms)]


def _busy(
    asked: AskedFleet,
    plan: FleetPlan,
    change: Callable[[RequestClass, float], RequestClass],
    ratio: float,
    cache: SearchCache,
) -> int | None:
    """Return the replicas of the plan's layout for changed traffic; None where none are enough, or a mean request is too long."""
    classes = tuple(change(item, ratio) for item in asked.scenario.classes)
    demand = demand_of(replace(asked.scenario, classes=classes))
    network = asked.question.networks[plan.weight_dtype]
    context = wanted_context(asked.scenario, network, demand.longest_tokens)[0]
    tokens = max(context, asked.question.max_model_len)
    if demand.lengths.input_tokens + demand.lengths.output_tokens > tokens:
        return None
    question = replace(asked.question, demand=demand, max_model_len=tokens)
    return resized(question, plan, terms_of(asked), cache)


def busier(item: RequestClass, ratio: float) -> RequestClass:
    """Return a class with some times its traffic."""
    rate, users, job = item.request_rate_per_s, item.users, item.job_requests
    return replace(
        item,
        request_rate_per_s=None if rate is None else ratio * rate,
        users=None if users is None else ratio * users,
        job_requests=None if job is None else ratio * job,
    )


def longer_input(item: RequestClass, ratio: float) -> RequestClass:
    """Return a class with inputs of some times the length; a shared prefix stays as long, what a trace repeats grows alike."""
    reuse = item.reuse
    if reuse is not None:
        reuse = replace(reuse, curve=tuple((round(ratio * size), share) for size, share in reuse.curve))
    return replace(item, input_tokens=scaled_lengths(item.input_tokens, ratio), reuse=reuse)


def longer_output(item: RequestClass, ratio: float) -> RequestClass:
    """Return a class with outputs of some times the length."""
    return replace(item, output_tokens=scaled_lengths(item.output_tokens, ratio))


def scaled_lengths(lengths: Lengths, ratio: float) -> Lengths:
    """Return a distribution of which every length is multiplied.

    Examples
    --------
    >>> from capplan.workload.length import uniform
    >>> scaled_lengths(uniform(100.0, 300.0), 1.5).mean_tokens
    300.0
    """
    return replace(
        lengths,
        mean_tokens=ratio * lengths.mean_tokens,
        unclipped_mean_tokens=ratio * lengths.unclipped_mean_tokens,
        low_tokens=ratio * lengths.low_tokens,
        high_tokens=ratio * lengths.high_tokens,
        values=tuple(ratio * value for value in lengths.values),
    )
