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
        its price is not known, or it has pools of its own for prefill and decode
    """
    refuse_pools(scenario, answer, "what it costs")
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


def for_identical_replicas(scenario: Scenario, what: str) -> InputError:
    """Return the error for something that is worked out for identical replicas alone."""
    return InputError(
        f"{scenario.path}: {what} is worked out for identical replicas, and this fleet has pools of its own for prefill and decode\n"
        "  --set fleet.disaggregation=off, or capplan fleet for what the pools cost"
    )


def refuse_pools(scenario: Scenario, answer: FleetAnswer, what: str) -> None:
    """Raise the error where the recommended plan has pools of its own."""
    if answer.chosen_pools is not None or (scenario.fleet.pools is not None and scenario.fleet.pools.only):
        raise for_identical_replicas(scenario, what)
