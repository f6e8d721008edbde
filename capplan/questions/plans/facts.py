"""What follows from a plan and its question by the search that found it, computed once for all that print or explain it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from capplan.accuracy.bounded import Interval
from capplan.accuracy.slowness import JointSlowness, Latency, Slowness
from capplan.errors import InputError, Reason
from capplan.fleet.answer import Certainty
from capplan.fleet.load.demand import Demand, planned_demand
from capplan.fleet.plan import Plan
from capplan.fleet.pools.joint import AS_PREDICTED, Condition
from capplan.fleet.pools.sizing import pools_sizing
from capplan.fleet.review import PlanDetail, plan_details
from capplan.fleet.search.latencies import Latencies
from capplan.fleet.search.one_layout import trial_of
from capplan.fleet.search.recommended import latency_interval, plan_of
from capplan.fleet.search.trial import Trial
from capplan.fleet.unit_costs import mean_requests_per_s, mean_tokens_per_s
from capplan.questions.fleet import AskedFleet, parts_of, terms_of
from capplan.questions.plans.plan_file import layout_of
from capplan.replica.estimate import OperatorRow, breakdown_of, front_end_of
from capplan.replica.load import Load
from capplan.replica.replica import Replica
from capplan.workload.request_class import Target


def details_of(asked: AskedFleet, plan: Plan) -> tuple[PlanDetail, ...]:
    """Return memory and operators of one replica of each group of a plan, with the mean lengths and hits that its requests have there."""
    questions = [
        (
            part.question,
            part.question.demand.of_plan(alone.responses_s, alone.class_prefix_hit_fractions),
        )
        for part, alone in parts_of(asked, plan)
    ]
    return plan_details(plan, questions)


@dataclass(frozen=True)
class ReplicaFacts:
    """The replicas of a plan of one group under its question, as the search simulates them."""

    trial: Trial
    busy: int

    @property
    def replica(self) -> Replica:
        """The replica with its engine and step times."""
        return self.trial.replica

    @property
    def demand(self) -> Demand:
        """The traffic, with the hits of the caches of the replicas."""
        return self.trial.demand

    @property
    def slowness(self) -> JointSlowness:
        """How slow the replicas may be."""
        return self.trial.candidate.slowness

    def slowness_of(self, target: Target) -> Slowness:
        """Return how slow the replicas may be, as it matters for one target."""
        return self.trial.slowness_of(target)

    @cached_property
    def limits(self) -> Mapping[Target, float]:
        """Limits of the engine by target [s]."""
        return self.trial.limits

    @cached_property
    def latencies(self) -> Latencies:
        """What requests see at the peak."""
        return self.trial.fleet(self.busy)

    @cached_property
    def peak_requests_per_s(self) -> float:
        """Request rate of the service at the peak [1/s]."""
        return planned_demand(self.demand, self.latencies.responses_s).peak_requests_per_s

    @cached_property
    def peak_tokens_per_s(self) -> tuple[float, float]:
        """Input and output tokens per second at the peak."""
        demand, rate = self.at_peak, self.latencies.requests_per_s * self.busy
        return rate * float(demand.lengths.input_tokens), rate * demand.generated_tokens

    @cached_property
    def mean_tokens_per_s(self) -> tuple[float, float]:
        """Input and output tokens per second, mean over the time that is paid for."""
        return mean_tokens_per_s(self.demand, self.latencies.responses_s)

    @cached_property
    def mean_requests_per_s(self) -> float:
        """Requests per second, mean over the time that is paid for."""
        return mean_requests_per_s(self.demand, self.latencies.responses_s)

    @cached_property
    def at_peak(self) -> Demand:
        """The traffic with the mean lengths that its requests have at the peak."""
        return self.demand.at_responses(self.latencies.responses_s)

    @cached_property
    def operators(self) -> tuple[OperatorRow, ...]:
        """Operators of one prefill with its front end, and of one decode step at the mean load."""
        now, lengths = self.latencies, self.at_peak.lengths
        load = Load(int(lengths.input_tokens), int(lengths.output_tokens), request_rate=now.requests_per_s)
        in_flight = now.requests_per_s * now.e2e_s.mean
        return (*breakdown_of(self.replica, load, in_flight), front_end_of(self.replica, load))

    def interval(self, quantity: str) -> Interval:
        """Return the interval of the mean of a latency."""
        return latency_interval(self.trial, quantity, self.latencies.concurrency)

    @property
    def sure_slowness(self) -> Mapping[Latency, float]:
        """How slow the replicas may be with the required confidence, by latency."""
        return self.trial.sure_slowness(self.busy)

    def slowest(self, targets: Mapping[Target, float]) -> float:
        """Return the largest factor by which all steps may be slower than predicted while some targets are met."""
        return self.trial.slowest(self.busy, targets)


def replica_facts(asked: AskedFleet, plan: Plan) -> ReplicaFacts:
    """Return the replicas of a plan of one group; InputError where its layout no longer serves the model."""
    trial = trial_of(asked.question, plan.single.layout, terms_of(asked), asked.cache)
    if isinstance(trial, Reason):
        raise InputError(f"the layout of the plan no longer serves the model: {trial.words}")
    return ReplicaFacts(trial, plan.single.busy_replicas)


def sized_as(asked: AskedFleet, row: Certainty) -> tuple[AskedFleet, Plan]:
    """Return the plan of the cheapest fleet at one confidence, and the question that asks for it; InputError where its layout no longer serves the model."""
    slo = replace(asked.question.slo, confidence=row.confidence)
    surer = replace(
        asked,
        question=replace(asked.question, slo=slo),
        scenario=replace(asked.scenario, slo=replace(asked.scenario.slo, confidence=row.confidence)),
    )
    terms = terms_of(surer)
    assert row.replicas is not None
    trial = trial_of(surer.question, layout_of(row, None, asked), terms, asked.cache)
    if isinstance(trial, Reason):
        raise InputError(
            f"the layout of {row.gpus} x {row.hardware} no longer serves the model: {trial.words}"
        )
    return surer, plan_of(terms.sized(trial, row.replicas - (row.spare_replicas or 0)), terms)


@dataclass(frozen=True, slots=True)
class PhaseFacts:
    """Replicas that the phase of one pool takes by itself, simulated; None where no number is enough."""

    slowness: float
    """How slow steps may be with the required confidence."""
    at_peak: int | None
    """As predicted."""
    with_headroom: int | None
    """As predicted, with headroom."""
    slower: int | None
    """Replicas that are enough with steps that are so slow."""


def phase_facts(asked: AskedFleet, plan: Plan, pool: int) -> PhaseFacts:
    """Return what the phase of one pool of a plan takes by itself."""
    terms = terms_of(asked)
    sizing = pools_sizing(asked.question, plan, terms, asked.cache)
    assert not isinstance(sizing, Reason)
    question = sizing.question
    with_headroom, *slower = sizing.contender.demanded(question, terms.headroom_fraction)

    def alone(*demanded: Condition) -> int | None:
        counts = sizing.contender.alone_if(demanded)
        return counts and counts[pool]

    first, *_, last = (condition.paces[pool] for condition in (slower[0], slower[-1]))
    found = alone(Condition(1.0, AS_PREDICTED)), alone(with_headroom), alone(*slower)
    return PhaseFacts(last if pool else first, *found)
