"""The recommended plan of a fleet, and what its machines really cost: by its commitments, for a month or for a job."""

from dataclasses import dataclass
from datetime import date

from capplan.assumption import Assumption
from capplan.errors import InputError, TargetError
from capplan.fleet.plan import FleetAnswer, Plan
from capplan.fleet.price import HOURS_PER_MONTH, usd_per_month
from capplan.money.commitments import Mix
from capplan.money.total_cost import CostLine, total_usd
from capplan.questions.fleet import AskedFleet, replicas_by_group
from capplan.questions.money.commitments import AskedMix, asked_mix
from capplan.questions.money.price_check import rent_warnings
from capplan.questions.money.total_cost import asked_other_lines
from capplan.scenario.money_terms import memory_usd_per_month
from capplan.scenario.scenario_file import Scenario
from capplan.scenario.traffic import rate_line


@dataclass(frozen=True, slots=True)
class PaidPlan:
    """A plan with what its machines cost, and what that rests on."""

    plan: Plan
    machines_usd: float
    """Cost of a month, or of one job, with the host memory of offload tiers; without people and overhead."""
    group_fractions: tuple[float, ...]
    """Fraction of that cost for each group of replicas: all of them, or prefill and decode."""
    hours: float
    """Hours that the plan is paid for: a month, or until the job is done."""
    of_job: bool
    mix: Mix | None
    """Commitments that pay for the machines; None: rented at one price."""
    other: tuple[CostLine, ...]
    """What the service takes in addition to GPUs and people, in the same time."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]

    @property
    def other_usd(self) -> float:
        """What all of that costs [$]."""
        return total_usd(self.other)

    @property
    def by_mix(self) -> bool:
        """Whether a mix of commitments pays for the machines."""
        return self.mix is not None


def paid_plan(
    asked: AskedFleet, answer: FleetAnswer, otherwise: str, today: date, hours: float = HOURS_PER_MONTH
) -> PaidPlan:
    """Return the recommended plan and what its machines cost.

    Parameters
    ----------
    asked : the scenario
    answer : with a plan
    otherwise : what cannot be said where there is none, for people
    today : that prices are judged old by
    hours : [h]
        of the month, the mean one or a stated one

    Raises
    ------
    TargetError
        no plan meets the targets
    InputError
        the price of the plan is not known
    """
    scenario, plan = asked.scenario, answer.chosen
    if plan is None:
        raise TargetError(
            f"{scenario.path}: no plan meets the targets, so {otherwise}\n  capplan fleet says why"
        )
    if plan.usd_per_month is None:
        raise InputError(
            f"{scenario.path}: the price of {plan.hardware} is not known; give prices.per_gpu_hour"
        )
    line = rate_line(scenario, plan.responses_s)
    mix = asked_mix(scenario, plan, line, replicas_by_group(asked, plan))
    monthly = plan.usd_per_month if mix is None else float(usd_per_month(mix.mix.usd_per_hour))
    job = plan.money.usd_per_job if plan.money else None
    hours = (plan.money.job_hours if plan.money else None) or hours
    months = hours / HOURS_PER_MONTH
    rented = monthly * months if job is None else job
    machines_usd = rented + memory_usd_per_month(scenario, plan) * months
    return PaidPlan(
        plan,
        machines_usd,
        _group_fractions(plan, mix),
        hours,
        job is not None,
        mix.mix if mix else None,
        asked_other_lines(asked, plan, machines_usd, hours),
        mix.assumptions if mix else (),
        (*(mix.warnings if mix else ()), *rent_warnings(plan, today)),
    )


def _group_fractions(plan: Plan, mix: AskedMix | None) -> tuple[float, ...]:
    """Return how the cost of the machines is shared by the groups of a plan; owned machines share their people alike."""
    if mix is None:
        usd = [group.usd_per_hour or 0.0 for group in plan.groups]
    else:
        usd = [
            sum(part.usd_per_hour for part in mix.mix.parts if part.group == place)
            for place in range(len(plan.groups))
        ]
    total = sum(usd)
    return tuple(one / total if total else 1.0 / len(usd) for one in usd)


def own_assumptions(scenario: Scenario) -> list[Assumption]:
    """Return the assumptions about costs other than machines."""
    stated = []
    if not scenario.own.people_usd_per_month:
        stated.append(Assumption("nobody is paid for running the self-hosted fleet", "prices.people"))
    if not scenario.own.overhead_fraction:
        stated.append(Assumption("no overhead on the price of the machines", "prices.overhead"))
    return stated
