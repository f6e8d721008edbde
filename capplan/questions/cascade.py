"""A cascade of two models -> its two fleets, the fleet of the large model only, what they cost, and what users wait for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, get_args

from capplan.accuracy.bounded import BoundedSpread
from capplan.assumption import Assumption
from capplan.fleet.money_terms import OwnTerms
from capplan.fleet.plan import Plan
from capplan.fleet.scenario import CascadePart, CascadeTerms
from capplan.fleet.unit_costs import mean_requests_per_s
from capplan.money.cascade import CascadeFleets, Wait, breakeven_fraction, wait_of_stages
from capplan.money.comparison import OwnFleet, own_fleet
from capplan.money.growth import Growth
from capplan.questions.fleet import AskedFleet, fleet_for
from capplan.questions.money.paid_plan import PaidPlan, paid_plan
from capplan.questions.outlook import asked_growth, growth_assumptions
from capplan.questions.part_fleets import PartsAsked, assumptions_and_warnings
from capplan.scenario.scenario_file import Scenario
from capplan.scenario.traffic import rate_line

SECONDS_PER_HOUR = 3600.0
Stages: TypeAlias = tuple[BoundedSpread, ...]


@dataclass(frozen=True, slots=True)
class PartFleet:
    """One fleet of a cascade, or that of the large model only."""

    part: CascadePart
    asked: AskedFleet
    paid: PaidPlan
    growth: Growth | None
    """The fleet of each month, as all traffic grows alike; None where the scenario states no growth."""

    @property
    def plan(self) -> Plan:
        """The recommended plan."""
        return self.paid.plan

    @property
    def model(self) -> str:
        """Name of its network."""
        return next(iter(self.asked.question.networks.values())).name

    @property
    def request_rate(self) -> float:
        """Return the request rate at the peak [req/s]."""
        return sum(item.request_rate_at() for item in self.asked.question.demand.classes)

    @property
    def own(self) -> OwnFleet:
        """The plan as it is paid for at any traffic."""
        return own_fleet(
            self.plan, OwnTerms(), self.paid.machines_usd, self.paid.group_fractions, self.paid.hours
        )


@dataclass(frozen=True, slots=True)
class UserWait:
    """What users wait for whose requests take the same way."""

    who: str
    fraction: float
    """Fraction of all requests."""
    first_token: Wait
    """Wait until something is seen."""
    answer: Wait
    """Wait until the whole answer is seen."""


@dataclass(frozen=True, slots=True)
class CascadeAnswer:
    """The fleets of a cascade, and the large model only."""

    scenario: Scenario
    terms: CascadeTerms
    parts: tuple[PartFleet, ...]
    """Fleets of the cascade; a fleet that no request reaches is left out."""
    alone: PartFleet
    requests: float
    """Requests in the time that is paid for: a month, or a job."""
    breakeven_fraction: float | None
    """Share of escalated requests up to which the cascade never costs more; None where one is too many, or a fleet is not known."""
    waits: tuple[UserWait, ...]
    """Waits on each way through the cascade, and with only the large model."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]

    @property
    def usd(self) -> float:
        """Cost of the cascade: of a month, or of the job."""
        return sum(part.paid.machines_usd for part in self.parts)

    @property
    def mean_waits_s(self) -> tuple[float, float]:
        """Mean over all requests of the cascade, until something is seen and until the answer is whole."""
        ways = [wait for wait in self.waits if wait.who != ALONE]
        return (
            sum(wait.fraction * wait.first_token.mean_s for wait in ways),
            sum(wait.fraction * wait.answer.mean_s for wait in ways),
        )


ACCEPTED, ESCALATED, ALONE = "answered by the small model", "escalated", "large model only"


def cascade_for(parts_asked: PartsAsked) -> CascadeAnswer:
    """Return the fleets of the cascade in a scenario, each searched like any other.

    Raises
    ------
    TargetError
        no plan meets the targets of one of the models
    InputError
        the price of a plan is not known
    """
    scenario = parts_asked.scenario()
    terms = scenario.several
    assert isinstance(terms, CascadeTerms)
    reached = {"first": terms.first_fraction, "second": terms.escalated_fraction, "alone": 1.0}
    found: dict[CascadePart, PartFleet] = {}
    for part in get_args(CascadePart):
        if reached[part]:
            asked = parts_asked.part(f"cascade.part={part}")
            lacking = f"the cascade has no {part} fleet; with --set cascade.part={part}"
            answer = fleet_for(asked, parts_asked.progress)
            paid = paid_plan(asked, answer, lacking, parts_asked.today)
            line = rate_line(asked.scenario, paid.plan.responses_s)
            found[part] = PartFleet(part, asked, paid, asked_growth(asked, paid.plan, line))
    alone = found.pop("alone")
    parts = tuple(found.values())
    stated = _stated(terms)
    if alone.growth is not None:
        stated += growth_assumptions(scenario, alone.growth)
        stated.append(Assumption("the escalated share of requests stays as traffic grows", "growth.rates"))
    assumptions, warnings = assumptions_and_warnings(
        scenario, [(part.asked, part.paid) for part in (*parts, alone)], stated
    )
    waits = _waits(terms, found, alone)
    return CascadeAnswer(
        scenario,
        terms,
        parts,
        alone,
        _requests(alone),
        _breakeven(terms, found, alone),
        waits,
        assumptions,
        (*warnings, *_late(scenario, waits)),
    )


def _late(scenario: Scenario, waits: Sequence[UserWait]) -> list[str]:
    """Return what users wait for longer than a target of the fleets says, where already the mean does."""
    limits = {"ttft": "a first token", "e2e": "the whole answer"}
    late = []
    for target in scenario.slo.targets:
        for wait in waits:
            end = wait.first_token if target.metric == "ttft" else wait.answer
            if target.metric in limits and wait.who != ALONE and end.mean_s > target.limit_s:
                late.append(
                    f"requests {wait.who} wait {end.mean_s:.3g} s for {limits[target.metric]} in the mean, beyond the {target.limit_s:g} s "
                    f"of slo.{target.key}, which each fleet meets for itself"
                )
    return late


def _stated(terms: CascadeTerms) -> list[Assumption]:
    who = "judge" if terms.after == "answer" else "router"
    return [
        Assumption(f"the {who} costs nothing, and runs on other machines", "cascade.verdict_time"),
        Assumption("targets are those of each fleet for itself", "cascade.changes"),
        Assumption(
            "at another escalated share each fleet has one of the layouts shown, and as many replicas as the rule of its plan asks for",
            "cascade.escalated",
        ),
    ]


def _requests(alone: PartFleet) -> float:
    """Return all requests of a month, or of the jobs."""
    demand = alone.asked.question.demand
    if alone.paid.of_job:
        return sum(item.job_requests or 0.0 for item in demand.classes)
    return mean_requests_per_s(demand, alone.plan.responses_s) * SECONDS_PER_HOUR * alone.paid.hours


def _breakeven(terms: CascadeTerms, found: dict[CascadePart, PartFleet], alone: PartFleet) -> float | None:
    """Return the break-even share, the large model in the layout of its share or in that of all requests."""
    if "first" not in found:
        return None
    seconds = tuple(part.own for part in (found.get("second"), alone) if part is not None)
    fleets = CascadeFleets(found["first"].own, seconds, terms.after, alone.request_rate)
    return breakeven_fraction(fleets, alone.paid.machines_usd)


def _waits(
    terms: CascadeTerms, found: dict[CascadePart, PartFleet], alone: PartFleet
) -> tuple[UserWait, ...]:
    """Return what users wait for on each way that requests take."""
    judged = terms.after == "answer"
    waits = []
    if "first" in found and terms.escalated_fraction < 1.0:
        plan = found["first"].plan
        seen = plan.e2e_s if judged else plan.ttft_s
        waits.append(_way(ACCEPTED, 1.0 - terms.escalated_fraction, terms.verdict_s, (seen,), (plan.e2e_s,)))
    if "second" in found:
        before = (found["first"].plan.e2e_s,) if judged else ()
        plan = found["second"].plan
        ends = (*before, plan.ttft_s), (*before, plan.e2e_s)
        waits.append(_way(ESCALATED, terms.escalated_fraction, terms.verdict_s, *ends))
    waits.append(_way(ALONE, 1.0, 0.0, (alone.plan.ttft_s,), (alone.plan.e2e_s,)))
    return tuple(waits)


def _way(who: str, fraction: float, verdict_s: float, seen: Stages, whole: Stages) -> UserWait:
    """Return the waits of requests that pass the stages up to the first token, and up to the whole answer."""
    first_token, answer = (
        wait_of_stages(
            [verdict_s, *(stage.mean for stage in stages)],
            [verdict_s, *(stage.p90 if len(stages) == 1 else stage.p95 for stage in stages)],
        )
        for stages in (seen, whole)
    )
    return UserWait(who, fraction, first_token, answer)
