"""What is worked out for fleets of identical replicas alone: where a plan has separate pools, it is refused."""

from capplan.errors import InputError
from capplan.fleet.plan import FleetAnswer
from capplan.fleet.scenario import Scenario


def for_identical_replicas(scenario: Scenario, what: str) -> InputError:
    """Return the error for something that is worked out for identical replicas alone."""
    return InputError(
        f"{scenario.path}: {what} is worked out for identical replicas, and this fleet has separate prefill and decode pools\n"
        "  --set fleet.disaggregation=off, or capplan fleet for what the pools cost"
    )


def refuse_pools(scenario: Scenario, answer: FleetAnswer, what: str) -> None:
    """Raise the error where the recommended plan has separate pools."""
    if answer.chosen_pools is not None or (scenario.fleet.pools is not None and scenario.fleet.pools.only):
        raise for_identical_replicas(scenario, what)
