"""What `capplan.plan` and `capplan.simulate` return: plans and simulations as tables of pandas."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.fleet.load.routed import Operation, most_replicas, run_fleet, run_mix
from capplan.fleet.plan import FleetAnswer
from capplan.fleet.scenario import SharingTerms
from capplan.fleet.simulation import FleetOutcome
from capplan.questions import simulation as inputs
from capplan.questions.fleet import AskedFleet, asked_fleet, fleet_for
from capplan.questions.money.price_check import current_day
from capplan.questions.outlook import outlook_of
from capplan.questions.several_models import PartsAsked, cascade_for, sharing_for
from capplan.replica.replica import replica_of
from capplan.report.answer import Answer
from capplan.report.answers.fleet import fleet_answer
from capplan.report.answers.several_models import cascade_answer, sharing_answer
from capplan.report.answers.simulate import simulate_answer, warn_of_overload
from capplan.report.charts.of_answers import fleet_charts
from capplan.report.charts.records import Chart
from capplan.scenario.engine_use import engine_use_of
from capplan.scenario.flags import (
    EngineFlags,
    OperationFlags,
    PlanFlags,
    RequestFlags,
    SpeculationFlags,
)
from capplan.scenario.scenario import read_scenario


def planned(
    path: str | os.PathLike[str],
    settings: Sequence[str],
    progress: Callable[[int, int], None] | None = None,
    *,
    pictured: bool,
    offline: bool,
) -> tuple[Answer, list[Chart]]:
    """Return the fleets that serve a scenario, and their charts.

    Parameters
    ----------
    path : of the scenario
    settings : keys that are overridden, each KEY=VALUE
    progress : of each search; called with the plans that are done, and all of them
    pictured : whether charts are asked for, which only one fleet has
    offline : never open a connection
    """
    scenario = read_scenario(path, settings)
    if scenario.several is not None:
        if pictured:
            raise InputError(f"--plot: draws one fleet, and {scenario.path} has several")
        parts = PartsAsked(path, tuple(settings), current_day(), progress, offline)
        if isinstance(scenario.several, SharingTerms):
            return sharing_answer(sharing_for(parts)), []
        return cascade_answer(cascade_for(parts)), []
    asked = asked_fleet(scenario, offline=offline)
    answer = fleet_for(asked, progress)
    outlook = outlook_of(asked, answer, current_day())
    return fleet_answer(asked, answer, outlook, settings), fleet_charts(answer, outlook)


@dataclass(frozen=True, slots=True)
class SimulationRecords:
    """What is simulated, and how; defaults are those of the command."""

    requests: RequestFlags = field(default_factory=RequestFlags)
    plan: PlanFlags = field(default_factory=PlanFlags)
    running: OperationFlags = field(default_factory=OperationFlags)
    engine: EngineFlags = field(default_factory=EngineFlags)
    speculation: SpeculationFlags = field(default_factory=SpeculationFlags)


@dataclass(frozen=True, slots=True)
class Simulation:
    """A run of a fleet, and what was asked."""

    chosen: inputs.Chosen
    stream: inputs.AskedStream
    outcome: FleetOutcome
    seed: int
    utilisation: float
    stated: Sequence[Assumption]
    operation: Operation | None

    @property
    def answer(self) -> Answer:
        """Return what the run comes to."""
        return simulate_answer(
            self.chosen, self.stream, self.outcome, self.seed, self.utilisation, self.stated, self.operation
        )


def simulated(
    asked: AskedFleet,
    answer: FleetAnswer | None,
    given: SimulationRecords,
    progress: Callable[[int, int], None] | None = None,
    *,
    offline: bool,
) -> Answer:
    """Return what a simulation of a scenario's fleet comes to; the parameters are those of `simulation`."""
    return simulation(asked, answer, given, progress, offline=offline).answer


def simulation(
    asked: AskedFleet,
    answer: FleetAnswer | None,
    given: SimulationRecords,
    progress: Callable[[int, int], None] | None = None,
    *,
    offline: bool,
) -> Simulation:
    """Simulate a scenario's fleet.

    Parameters
    ----------
    asked : the question of the scenario
    answer : its plans; None: they are searched, unless `given.plan` names one
    given : requests, plan, operation, engine and speculation
    progress : of the search; called with the plans that are done, and all of them
    offline : never open a connection
    """
    chosen = inputs.chosen_plan(asked, given.plan, progress, answer)
    operation = inputs.operation_of_plan(chosen, given.running, given.plan.replicas)
    stream = inputs.asked_stream(chosen, given.requests)
    replica, scenario = replica_of(stream.spec), asked.scenario
    use, stated = engine_use_of(
        scenario,
        stream.spec,
        given.engine,
        given.speculation,
        planned_drafts=chosen.draft_tokens,
        offline=offline,
    )
    groups = inputs.mixed_groups(chosen, operation, stream.stream)
    if given.speculation.draft_tokens is not None:
        groups = tuple(replace(group, draft_tokens=None) for group in groups)
    most = most_replicas(operation, chosen.replicas)
    utilisation = (
        inputs.utilisation_of_mix(groups, stream, use)
        if groups
        else inputs.utilisation_of(replica, stream, most, use, operation)
    )
    warn_of_overload(stream, utilisation)
    limits = (given.running.queue_limit, given.running.deadline_s)
    until_s = given.requests.until_s
    run = (
        partial(run_mix, groups, stream.stream)
        if groups
        else partial(run_fleet, replica, stream.stream, operation, replicas=chosen.replicas)
    )
    outcome = run(
        slo=scenario.slo, use=use,
        until_s=float("inf") if until_s is None else stream.stream.warm_up_s + until_s,
        admission=inputs.admission_of(stream.stream, *limits, scenario.classes),
    )  # fmt: skip
    return Simulation(chosen, stream, outcome, given.requests.seed, utilisation, stated, operation)
