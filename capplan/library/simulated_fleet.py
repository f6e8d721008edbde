"""A scenario's fleet, simulated: what `capplan simulate`, `capplan.simulate` and the explanation of a simulation run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from capplan.assumption import Assumption
from capplan.fleet.answer import FleetAnswer
from capplan.fleet.load.routed import Operation, most_replicas, run_fleet, run_mix
from capplan.fleet.simulation import FleetOutcome
from capplan.questions import simulation as inputs
from capplan.questions.fleet import AskedFleet
from capplan.replica.replica import replica_of
from capplan.report.answer import Answer
from capplan.report.answers.simulate import simulate_answer, warn_of_overload
from capplan.scenario.command_flags import (
    EngineFlags,
    OperationFlags,
    PlanFlags,
    RequestFlags,
    SpeculationFlags,
)
from capplan.scenario.engine_use import engine_use_of


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
