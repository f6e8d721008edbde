"""What the host memory of offload tiers costs, where a scenario has a price for it."""

from capplan.fleet.plan import AnyPlan
from capplan.fleet.scenario import Scenario

HOST = "host"
"""The tier that is main memory of the servers; others are disks or other machines."""


def host_bytes(scenario: Scenario) -> float:
    """Return the host memory that offload tiers add to every replica [B]."""
    return sum(tier.capacity_bytes for tier in scenario.kv_offload if tier.name == HOST)


def memory_usd_per_month(scenario: Scenario, plan: AnyPlan) -> float:
    """Return the cost of that memory for all replicas of a plan, spares included [$]; 0 without a price."""
    price = scenario.own.host_usd_per_gb_month or 0.0
    return price * host_bytes(scenario) * 1e-9 * plan.replicas
