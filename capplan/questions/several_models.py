"""What people ask of several models: a cascade of a small one before a large one, and models that share devices; the fleets of its parts are searched side by side."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from math import inf
from typing import Any, TypeAlias, get_args

from capplan.accuracy.bounded import BoundedSpread
from capplan.assumption import Assumption
from capplan.errors import InputError, TargetError
from capplan.fleet.decision import FleetsByDevice
from capplan.fleet.growth import Growth
from capplan.fleet.plan import Plan
from capplan.fleet.scenario import CascadePart, SharingTerms
from capplan.fleet.unit_costs import mean_requests_per_s
from capplan.money.comparison import OwnFleet
from capplan.money.order import NO_LOSS, Order
from capplan.money.price import ChosenPrice, usd_per_month
from capplan.money.several_models import (
    CascadeFleets,
    breakeven_fraction,
    fewest_when_cut,
    wait_of_stages,
)
from capplan.questions.fleet import AskedFleet, asked_fleet, terms_of
from capplan.questions.fleet_answer import fleet_for
from capplan.questions.money.comparison import own_fleet
from capplan.questions.money.energy import asked_growth, growth_assumptions
from capplan.questions.money.ledger import PaidPlan, paid_plan
from capplan.readers.catalogue.hardware import device, partitions
from capplan.readers.catalogue.prices import machine_prices
from capplan.scenario.scenario import read_scenario
from capplan.scenario.scenario_file import Cascade, Scenario
from capplan.scenario.several import UNSHARED, in_slices, is_unshared
from capplan.workload.request_class import Slo


@dataclass(frozen=True, slots=True)
class PartsAsked:
    """A scenario of several models, and how it is asked."""

    path: str | os.PathLike[str]
    settings: tuple[str, ...]
    """Keys that are overridden, each KEY=VALUE."""
    today: date
    """Day that the age of prices is judged by."""
    progress: Callable[[int, int], None] | None
    """Progress of each search; called with the plans that are done, and all of them."""
    offline: bool
    """Never open a connection."""

    def scenario(self) -> Scenario:
        """Return the scenario of all models."""
        return read_scenario(self.path, self.settings)

    def part(self, *settings: str) -> AskedFleet:
        """Return the question of one fleet, which some more settings ask for."""
        return asked_fleet(read_scenario(self.path, (*self.settings, *settings)), offline=self.offline)


def assumptions_and_warnings(
    scenario: Scenario, parts: Iterable[tuple[AskedFleet, PaidPlan | None]], stated: Iterable[Assumption]
) -> tuple[tuple[Assumption, ...], tuple[str, ...]]:
    """Return the assumptions and warnings of all fleets without repeats; an idle model has no PaidPlan."""
    assumptions, warnings = [*scenario.assumptions], [*scenario.warnings]
    for asked, paid in parts:
        assumptions += [*asked.assumptions, *(paid.assumptions if paid else ())]
        warnings += [*(paid.warnings if paid else ()), *asked.warnings]
    return tuple(dict.fromkeys((*assumptions, *stated))), tuple(dict.fromkeys(warnings))


SECONDS_PER_HOUR = 3600.0
Stages: TypeAlias = tuple[BoundedSpread, ...]


@dataclass(frozen=True, slots=True)
class PartFleet:
    """One fleet of a cascade, or that of the large model only."""

    part: CascadePart
    asked: AskedFleet
    paid: PaidPlan
    growth: Growth | None
    """The fleet of each month, as all traffic grows alike; None where the scenario states no growth."""

    @property
    def plan(self) -> Plan:
        """The recommended plan."""
        return self.paid.plan

    @property
    def model(self) -> str:
        """Name of its network."""
        return next(iter(self.asked.question.networks.values())).name

    @property
    def request_rate(self) -> float:
        """Return the request rate at the peak [req/s]."""
        return sum(item.request_rate_at() for item in self.asked.question.demand.classes)

    @property
    def own(self) -> OwnFleet:
        """The plan as it is paid for at any traffic."""
        return own_fleet(self.paid, machines_only=True)


@dataclass(frozen=True, slots=True)
class CascadeAnswer:
    """The fleets of a cascade, and the large model only."""

    scenario: Scenario
    terms: Cascade
    parts: tuple[PartFleet, ...]
    """Fleets of the cascade; a fleet that no request reaches is left out."""
    alone: PartFleet
    requests: float
    """Requests in the time that is paid for: a month, or a job."""
    breakeven_fraction: float | None
    """Share of escalated requests up to which the cascade never costs more; None where one is too many, or a fleet is not known."""
    waits: tuple[dict[str, Any], ...]
    """Rows of the waits on each way through the cascade, and with only the large model: until something is seen, and until the answer is whole."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]

    @property
    def usd(self) -> float:
        """Cost of the cascade: of a month, or of the job."""
        return sum(part.paid.machines_usd for part in self.parts)

    @property
    def mean_waits_s(self) -> tuple[float, float]:
        """Mean over all requests of the cascade, until something is seen and until the answer is whole."""
        seen, whole = (
            sum(row["share_fraction"] * row[end]["mean"] for row in self.waits if row["who"] != ALONE)
            for end in ("first_token_s", "answer_s")
        )
        return seen, whole


ACCEPTED, ESCALATED, ALONE = "answered by the small model", "escalated", "large model only"


def cascade_for(parts_asked: PartsAsked) -> CascadeAnswer:
    """Return the fleets of the cascade in a scenario, each searched like any other.

    Raises
    ------
    TargetError
        no plan meets the targets of one of the models
    InputError
        the price of a plan is not known
    """
    scenario = parts_asked.scenario()
    terms = scenario.several
    assert isinstance(terms, Cascade)
    reached = {"first": terms.first_fraction, "second": terms.escalated, "alone": 1.0}
    questions: dict[CascadePart, AskedFleet] = {
        part: parts_asked.part(f"cascade.part={part}") for part in get_args(CascadePart) if reached[part]
    }
    found: dict[CascadePart, PartFleet] = {}
    for part, asked in questions.items():
        lacking = f"the cascade has no {part} fleet; with --set cascade.part={part}"
        answer = fleet_for(asked, parts_asked.progress)
        paid = paid_plan(asked, answer, lacking, parts_asked.today)
        found[part] = PartFleet(part, asked, paid, asked_growth(asked, paid.plan))
    alone = found.pop("alone")
    parts = tuple(found.values())
    stated = _stated_terms(terms)
    if alone.growth is not None:
        stated += growth_assumptions(scenario, alone.growth)
        stated.append(Assumption("the escalated share of requests stays as traffic grows", "growth.rates"))
    every = [(part.asked, part.paid) for part in (*parts, alone)]
    assumptions, warnings = assumptions_and_warnings(scenario, every, stated)
    requests, even, waits = _requests(alone), _breakeven(terms, found, alone), _waits(terms, found, alone)
    warnings = (*warnings, *_late(scenario, waits))
    return CascadeAnswer(scenario, terms, parts, alone, requests, even, waits, assumptions, warnings)


def _late(scenario: Scenario, waits: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what users wait for longer than a target of the fleets says, where already the mean does."""
    limits = {"ttft": ("first_token_s", "a first token"), "e2e": ("answer_s", "the whole answer")}
    late = []
    for target in scenario.slo.targets:
        end, what = limits.get(target.metric, ("", ""))
        late += [
            f"requests {wait['who']} wait {wait[end]['mean']:.3g} s for {what} in the mean, beyond the {target.limit_s:g} s "
            f"of slo.{target.key}, which each fleet meets for itself"
            for wait in (waits if end else ())
            if wait["who"] != ALONE and wait[end]["mean"] > target.limit_s
        ]
    return late


def _stated_terms(terms: Cascade) -> list[Assumption]:
    who = "judge" if terms.after == "answer" else "router"
    shown = "at another escalated share each fleet has one of the layouts shown, and as many replicas as the rule of its plan asks for"
    return [
        Assumption(f"the {who} costs nothing, and runs on other machines", "cascade.verdict_time"),
        Assumption("targets are those of each fleet for itself", "cascade.changes"),
        Assumption(shown, "cascade.escalated"),
    ]


def _requests(alone: PartFleet) -> float:
    """Return all requests of a month, or of the jobs."""
    demand = alone.asked.question.demand
    if alone.paid.plan.is_of_job:
        return sum(item.job_requests or 0.0 for item in demand.classes)
    return mean_requests_per_s(demand, alone.plan.responses_s) * SECONDS_PER_HOUR * alone.paid.hours


def _breakeven(terms: Cascade, found: dict[CascadePart, PartFleet], alone: PartFleet) -> float | None:
    """Return the break-even share, the large model in the layout of its share or in that of all requests."""
    if "first" not in found:
        return None
    seconds = tuple(part.own for part in (found.get("second"), alone) if part is not None)
    fleets = CascadeFleets(found["first"].own, seconds, terms.after == "router", alone.request_rate)
    return breakeven_fraction(fleets, alone.paid.machines_usd)


def _waits(
    terms: Cascade, found: dict[CascadePart, PartFleet], alone: PartFleet
) -> tuple[dict[str, Any], ...]:
    """Return what users wait for on each way that requests take."""
    judged = terms.after == "answer"
    waits = []
    if "first" in found and terms.escalated < 1.0:
        plan = found["first"].plan
        seen = plan.e2e_s if judged else plan.ttft_s
        waits.append(_way(ACCEPTED, 1.0 - terms.escalated, terms.verdict_time, (seen,), (plan.e2e_s,)))
    if "second" in found:
        before = (found["first"].plan.e2e_s,) if judged else ()
        plan = found["second"].plan
        ends = (*before, plan.ttft_s), (*before, plan.e2e_s)
        waits.append(_way(ESCALATED, terms.escalated, terms.verdict_time, *ends))
    waits.append(_way(ALONE, 1.0, 0.0, (alone.plan.ttft_s,), (alone.plan.e2e_s,)))
    return tuple(waits)


def _way(who: str, fraction: float, verdict_s: float, seen: Stages, whole: Stages) -> dict[str, Any]:
    """Return the waits of requests that pass the stages up to the first token, and up to the whole answer."""
    waits = {"who": who, "share_fraction": fraction}
    for end, stages in (("first_token_s", seen), ("answer_s", whole)):
        late = [stage.p90 if len(stages) == 1 else stage.p95 for stage in stages]
        waits[end] = wait_of_stages([verdict_s, *(stage.mean for stage in stages)], [verdict_s, *late])
    return waits


_LITTLE = "[{request_rate: 0.001 req/s, input_tokens: 16, output_tokens: 16}]"
"""Stands for the traffic of an idle model: what it needs is that its memory suffices."""


@dataclass(frozen=True, slots=True)
class SharingModel:
    """One of the models that share GPUs: its plans in the shared pool, and its own fleet to compare with."""

    name: str
    asked: AskedFleet
    """Question for a fleet of the model's own."""
    paid: PaidPlan | None
    """Fleet of the model's own; None where the model is idle."""
    fleets: FleetsByDevice
    """Its plans in the pool: with time slices, sized for k times the load and 1/k of each latency target; with MIG, on each slice."""
    memory_fraction: float | None
    """Fraction of the memory of each device; None where a slice has one model."""

    @property
    def network_name(self) -> str:
        """Name of its network."""
        return next(iter(self.asked.question.networks.values())).name

    def lacking_on(self, hardware: str, slices: int) -> str:
        """Return what the model lacks on a device, with the number that decides; times are those that its users see."""
        line = self.fleets.line(hardware)
        if line.target is None or line.value_s is None or line.limit_s is None:
            return line.reason
        value_s, limit_s, sure_s = (
            time_s * slices for time_s in (line.value_s, line.limit_s, line.sure_value_s or line.value_s)
        )
        shared = f" in one of {slices} time slices" if slices > 1 else ""
        if sure_s > limit_s >= value_s:
            confidence = self.asked.scenario.slo.confidence
            return (
                f"{line.target} of an idle replica{shared} is predicted to be {1e3 * value_s:.3g} ms and may be {1e3 * sure_s:.3g} ms "
                f"with the required confidence of {confidence:.0%}; the limit is {1e3 * limit_s:.3g} ms"
            )
        return f"{line.target} of an idle replica{shared} is predicted to be {1e3 * value_s:.3g} ms; the limit is {1e3 * limit_s:.3g} ms"


@dataclass(frozen=True, slots=True)
class SharedPool:
    """Devices of one kind that serve all models."""

    hardware: str
    plans: tuple[Plan, ...]
    """Plan of each model."""
    busy_gpus: int
    """GPUs that are needed, without spares."""
    spare_gpus: int
    price: ChosenPrice | None
    """Price of one GPU of the pool."""
    cut: tuple[tuple[str, ...], ...] = ()
    """Slices of each GPU without spares, by their names; empty where GPUs are whole."""

    @property
    def gpus(self) -> int:
        """Spares included."""
        return self.busy_gpus + self.spare_gpus

    @property
    def usd_per_month(self) -> float:
        """Cost of the machines that these GPUs come in, at all hours; infinite without a price."""
        return inf if self.price is None else float(usd_per_month(self.price.order_usd_per_hour(*self._size)))

    @property
    def order(self) -> Order | None:
        """Machines that these GPUs come in; None without a price."""
        return None if self.price is None else self.price.order(*self._size)

    @property
    def quote(self) -> ChosenPrice | None:
        """Price of one GPU in these machines; None without a price."""
        return None if self.price is None else self.price.of_order(*self._size, NO_LOSS)

    @property
    def _size(self) -> tuple[int, int, int]:
        """GPUs that any replica may have, GPUs of a server as the prediction assumes it, GPUs."""
        return 1, device(self.hardware).node_devices, self.gpus


@dataclass(frozen=True, slots=True)
class SharingAnswer:
    """The cheapest pool of several models, and a fleet for each of them."""

    scenario: Scenario
    terms: SharingTerms
    models: tuple[SharingModel, ...]
    pool: SharedPool
    slices: int
    """Time slices of each device; latencies are up to this factor longer than in a plan."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]

    @property
    def separate_fleets(self) -> tuple[PaidPlan, ...]:
        """Fleets of the models that have traffic."""
        return tuple(model.paid for model in self.models if model.paid)


def sharing_for(parts_asked: PartsAsked) -> SharingAnswer:
    """Return the pool of the models that share devices in a scenario, each sized by the search of any other fleet.

    Raises
    ------
    TargetError
        a model has no fleet of its own, or no device holds all of them within their targets
    InputError
        the price of a plan is not known
    """
    scenario = parts_asked.scenario()
    terms = scenario.several
    assert isinstance(terms, SharingTerms)
    slices = len(terms.models) - len(terms.idle) if terms.by == "device" else 1
    models = [_searched(parts_asked, terms, index, slices) for index in range(len(terms.models))]
    assumptions, warnings = assumptions_and_warnings(
        scenario, [(model.asked, model.paid) for model in models], _stated_pool(terms)
    )
    pool = _cheapest_pool(scenario, models, terms, slices)
    return SharingAnswer(scenario, terms, tuple(models), pool, slices, assumptions, warnings)


def _searched(parts_asked: PartsAsked, terms: SharingTerms, index: int, slices: int) -> SharingModel:
    """Return a model with its own fleet, and with what it needs in the pool; an idle one has what holds it."""
    name = terms.models[index]
    part, idle = f"sharing.part={json.dumps(name)}", name in terms.idle
    little = [f"sharing.models[{index - 1}].changes.traffic={_LITTLE}"] if idle else []
    asked = parts_asked.part(part, *little)
    scenario = replace(asked.scenario, slo=Slo()) if idle else asked.scenario
    if any(map(is_unshared, scenario.classes)):
        raise InputError(f"{scenario.path}: {name}: traffic {UNSHARED}")
    paid = None
    if not idle:
        answer = fleet_for(asked, parts_asked.progress)
        lacking = f"there is no fleet of {name} to compare with; with --set {part}"
        paid = paid_plan(asked, answer, lacking, parts_asked.today)
    fraction = None if terms.by == "mig" else terms.memory_fractions[index]
    parts = in_slices(scenario) if fraction is None else sliced_scenario(scenario, slices, fraction)
    sliced = asked_fleet(parts, offline=parts_asked.offline)
    return SharingModel(name, asked, paid, FleetsByDevice(sliced.question, terms_of(sliced)), fraction)


def sliced_scenario(scenario: Scenario, slices: int, memory_fraction: float) -> Scenario:
    """Return the scenario of a model that has one of k slices of the time of each device, and a part of its memory.

    A step takes up to k times as long. That is the simulation of steps of their own length at k times the rate, in which every time
    is a k-th: k times the traffic within a k-th of each target.

    Parameters
    ----------
    scenario : of the model with all of its devices
    slices : [-]
        k, models that have work at the same time
    memory_fraction : [-]
        of a device, for weights, cache and activations
    """
    classes, targets, fleet = scenario.classes, scenario.slo.targets, scenario.fleet
    busier = (replace(item, request_rate_per_s=item.request_rate_at() * slices) for item in classes)
    slower = (replace(item, limit_s=item.limit_s / slices) for item in targets)
    return replace(
        scenario,
        classes=tuple(busier),
        slo=replace(scenario.slo, targets=tuple(slower)),
        file=scenario.file.model_copy(update={"gpu_memory_utilization": memory_fraction}),
        fleet=replace(fleet, ranges=replace(fleet.ranges, max_devices_per_replica=1)),
    )


def _cheapest_pool(
    scenario: Scenario, models: Sequence[SharingModel], terms: SharingTerms, slices: int
) -> SharedPool:
    """Return the cheapest pool of one kind of device; TargetError where none serves all models, InputError without a price."""
    hardware, pool_on = scenario.fleet.hardware, _pool_of_slices if terms.by == "mig" else _pool_on
    whole = dict.fromkeys(item.partition.device if item.partition else item.name for item in hardware)
    pools = [pool for name in whole if (pool := pool_on(name, models))]
    if pools:
        best = min(pools, key=lambda pool: (pool.usd_per_month, pool.gpus))
        if best.usd_per_month == inf:
            raise InputError(
                f"{scenario.path}: the price of {best.hardware} is not known; give prices.per_gpu_hour"
            )
        return best
    names = [
        f"{item.name}:{cut.profile}" if cut else item.name
        for item in hardware
        for cut in (partitions(item.name) if terms.by == "mig" else (None,))
    ]
    lacks = [
        f"\n  {name}: {model.name} has no plan: {model.lacking_on(name, slices)}"
        for model in models
        if terms.by != "mig" or not any(model.fleets.plan(name) for name in names)
        for name in names
        if model.fleets.plan(name) is None
    ]
    raise TargetError(
        f"{scenario.path}: sharing: no device in fleet.hardware serves all models within their targets{''.join(lacks)}\n"
        f"  give another device{' or other parts of its memory' if terms.by == 'device' else ''}, or a fleet for each: "
        f"capplan fleet {scenario.command_words('sharing=null')}"
    )


def _pool_on(hardware: str, models: Sequence[SharingModel]) -> SharedPool | None:
    """Return the pool of one kind of device, each of which holds a replica of every model; None where a model has no plan."""
    plans = [plan for model in models if (plan := model.fleets.plan(hardware))]
    if len(plans) < len(models):
        return None
    spares = [plan.spare_replicas * plan.single.layout.devices for plan in plans]
    busy = max(plan.single.busy_replicas for plan in plans)
    return SharedPool(hardware, tuple(plans), busy, max(spares), plans[0].single.price)


def _pool_of_slices(hardware: str, models: Sequence[SharingModel]) -> SharedPool | None:
    """Return the fewest GPUs of one kind whose slices hold the replicas of all models."""
    profiles = partitions(hardware)
    names = [f"{hardware}:{cut.profile}" for cut in profiles]
    while True:
        counts = [
            {at: busy for at, name in enumerate(names) if (busy := model.fleets.busy(name)) is not None}
            for model in models
        ]
        found = fewest_when_cut(profiles, counts)
        if found is None:
            return None
        choice, devices = found
        chosen = [model.fleets.plan(names[at]) for model, at in zip(models, choice, strict=True)]
        plans = tuple(plan for plan in chosen if plan is not None)
        wanted = [options[at] for options, at in zip(counts, choice, strict=True)]
        if [plan.single.busy_replicas for plan in plans] == wanted:
            break  # else a plan has more replicas once it is confirmed, or is none
    scenario = models[0].asked.scenario
    prices, _ = machine_prices(replace(scenario, fleet=replace(scenario.fleet, hardware=(device(hardware),))))
    cuts = tuple(
        tuple(cut.profile for cut, n in zip(profiles, amounts, strict=True) for _ in range(n))
        for amounts in devices
    )
    spares = max(plan.spare_replicas for plan in plans)
    return SharedPool(hardware, plans, len(devices), spares, prices[hardware], cuts)


def _stated_pool(terms: SharingTerms) -> list[Assumption]:
    spares = "the pool keeps the spares of the model that needs most, as any device can take any model; fleets of their own keep theirs each"
    said = {
        "device": (
            "a device gives equal slices of its time to all models that have work (time slicing without MPS), at no cost of switching",
            "all models have work at all times: latencies are the longest that slices can make them",
            "replicas are of one device, and each device has one of every model",
        ),
        "mig": (
            "a slice has the bandwidth of its memory slices, the arithmetic of its multiprocessors, and no link to another one",
            "kernels reach the same part of the peaks of a slice as of a whole device; none was measured on a slice",
            "all replicas of a model have slices of one profile; a spare GPU is cut like the one that it takes the place of",
        ),
    }
    stated = [Assumption(text, "sharing.by") for text in said[terms.by]]
    return [Assumption(spares, "fleet.spare_replicas"), *stated]
