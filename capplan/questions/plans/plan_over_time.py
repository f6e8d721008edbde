"""The replicas of a plan over the load curve of a scenario."""

from capplan.fleet.over_time import OverTime, RateLine, ReplicasAt, fleet_over_time
from capplan.fleet.plan import Group
from capplan.scenario.scenario_file import Scenario


def group_over_time(
    scenario: Scenario, group: Group, line: RateLine | None, replicas_at: ReplicasAt
) -> OverTime | None:
    """Return the replicas of a plan, or of one pool of it, over a load curve; None without one."""
    if line is None:
        return None
    limits = scenario.fleet
    return fleet_over_time(
        group, line, replicas_at, start_up_s=limits.start_up_s, burst_ratio=limits.burst_ratio
    )  # fmt: skip
