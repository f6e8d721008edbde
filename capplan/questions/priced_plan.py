"""The recommended plan of a fleet, where it has a price."""

from capplan.errors import InputError, TargetError
from capplan.fleet.plan import FleetAnswer, FleetPlan
from capplan.fleet.scenario import Scenario


def priced_plan(scenario: Scenario, answer: FleetAnswer, otherwise: str) -> FleetPlan:
    """Return the recommended plan.

    Raises
    ------
    TargetError
        no plan meets the targets, so `otherwise`
    InputError
        its price is not known
    """
    plan = answer.chosen
    if plan is None:
        raise TargetError(
            f"{scenario.path}: no plan meets the targets, so {otherwise}\n  capplan fleet says why"
        )
    if plan.usd_per_month is None:
        raise InputError(
            f"{scenario.path}: the price of {plan.layout.device.name} is not known; give prices.per_gpu_hour"
        )
    return plan
