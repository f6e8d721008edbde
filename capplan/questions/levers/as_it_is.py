"""The scenario as it is, as levers see it."""

from dataclasses import dataclass, replace

from capplan.engine.profile import Scheduling
from capplan.fleet.plan import AnyPlan
from capplan.fleet.question import spec_of_layout
from capplan.questions.fleet import AskedFleet
from capplan.questions.levers.lever import Lever
from capplan.replica.plans import engine_scheduling
from capplan.scenario.host_memory import memory_usd_per_month
from capplan.scenario.scenario_file import ScenarioFile


@dataclass(frozen=True, slots=True)
class Base:
    """The scenario, its question and its plan."""

    file: ScenarioFile
    asked: AskedFleet
    plan: AnyPlan | None
    """The one that `fleet` recommends."""
    cheapest: AnyPlan | None
    missing: str = ""
    """Why there is no plan; empty where there is one."""

    @property
    def scheduling(self) -> Scheduling | None:
        """Return the scheduling of one engine of the plan, of one that prefills in separate pools; None without a plan."""
        if self.plan is None:
            return None
        group = self.plan.groups[0]
        return engine_scheduling(spec_of_layout(group.layout, group.weight_dtype, self.asked.question))

    @property
    def memory_usd_per_month(self) -> float:
        """Return the cost of the host memory of the plan's offload tiers, where it has a price of its own."""
        return 0.0 if self.plan is None else memory_usd_per_month(self.asked.scenario, self.plan)

    @property
    def apart(self) -> bool:
        """Return whether the plan has separate pools for prefill and decode."""
        return self.plan is not None and len(self.plan.groups) > 1


def idle(name: str, change: str, reason: str) -> Lever:
    """Return a lever that is not applicable."""
    return Lever(name, change, reason=reason)


def put_off(lever: Lever) -> Lever:
    """Return a slow lever as one that is tried where it is named; others as they are."""
    if not lever.slow or lever.reason:
        return lever
    return replace(lever, reason=f"takes a separate search; to try it: --lever {lever.name}")


def first_line(error: Exception) -> str:
    """Return the first line of an error: why a change cannot be made."""
    return str(error).partition("\n")[0]
