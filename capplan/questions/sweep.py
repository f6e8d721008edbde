"""The inputs of `sweep`: plans of a scenario or of a model, and the loads to try."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeAlias

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.fleet.load.demand import Demand
from capplan.fleet.plan import Plan, summed
from capplan.fleet.pools.sizing import decode_question, prefill_question
from capplan.fleet.review import Question, spec_of_layout
from capplan.fleet.sweep import CONCURRENCIES, Contender, DecodePool, Point, offered_rates
from capplan.quantity import COUNT, REQUESTS_PER_S, quantity, whole_number
from capplan.questions.fleet import AskedFleet, asked_fleet
from capplan.questions.simulation import (
    Chosen,
    chosen_plan,
    fleet_plans,
    layout_name,
)
from capplan.replica.load import MOST_IN_FLIGHT, Load
from capplan.scenario.command_flags import PlanFlags, ScenarioFlags, SweepFlags
from capplan.scenario.drawn_workload import names_a_scenario
from capplan.scenario.flags import ServingFlags
from capplan.scenario.reading import settings_of
from capplan.scenario.replica import asked_replica
from capplan.scenario.scenario import read_scenario
from capplan.serving.steady_state import Lengths
from capplan.workload.length import fixed
from capplan.workload.request_class import RequestClass, Slo

MOST_LOADS = 200
_ALONE = r"[\d._]+\s*[kKM]?"
"""A number without a unit; in a list, the unit of the last entry then holds for it."""
REQUESTS = replace(COUNT, example="1,8,64")
Loads: TypeAlias = tuple[tuple[float, ...], tuple[int, ...]]
"""Request rates [1/s] and concurrencies."""


@dataclass(frozen=True, slots=True)
class AskedSweep:
    """The points, and their assumptions."""

    name: str
    points: tuple[Point, ...]
    slo: Slo
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]


def loads_of(request_rate: str | None, concurrency: str | None) -> Loads:
    """Return request rates and concurrencies to try, as the texts of the flags say, such as '1, 2, 4 req/s' or '1,8,64'.

    With neither given, rates up to what a plan can serve are tried, or the default concurrencies.
    """
    if request_rate and concurrency:
        raise InputError("give --request-rate or --concurrency, not both")
    rates = _list(request_rate, "--request-rate")
    counts = _list(concurrency, "--concurrency")
    unit = re.sub(rf"^{_ALONE}\s*", "", rates[-1]) if rates else ""
    written = [f"{rate} {unit}" if re.fullmatch(_ALONE, rate) else rate for rate in rates]
    in_flight = [whole_number(count, REQUESTS, "--concurrency", "requests") for count in counts]
    if not all(1 <= count <= MOST_IN_FLIGHT for count in in_flight):
        raise InputError(f"--concurrency: {concurrency!r} is out of range; allowed: 1 to {MOST_IN_FLIGHT}")
    per_s = sorted({quantity(rate, REQUESTS_PER_S, "--request-rate") for rate in written})
    if any(rate <= 0 for rate in per_s):
        raise InputError("--request-rate: 0 is not above zero; e.g. '1, 2, 4 req/s'")
    return tuple(per_s), tuple(sorted(set(in_flight)))


def _list(text: str | None, option: str) -> list[str]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if text is not None and not parts:
        raise InputError(f"{option}: is empty; e.g. 1,2,4")
    if len(parts) > MOST_LOADS:
        raise InputError(f"{option}: {len(parts)} loads are more than {MOST_LOADS}")
    return parts


def asked_sweep(what: str, flags: SweepFlags, lengths: Load, serving: ServingFlags) -> AskedSweep:
    """Return the sweep of a scenario's traffic, or of a model with requests of equal lengths.

    Parameters
    ----------
    what : path of a scenario, or a model
    flags : plans and loads
    lengths : of the requests of a model
    serving : of a model; a scenario states its serving itself, all but a calibration
    """
    loads = loads_of(flags.request_rate, flags.concurrency)
    if names_a_scenario(Path(what)):
        return _scenario_sweep(Path(what), loads, flags, serving)
    return _model_sweep(what, loads, flags, lengths, serving)


def _scenario_sweep(path: Path, loads: Loads, flags: SweepFlags, serving: ServingFlags) -> AskedSweep:
    """Return the sweep over the cheapest plan of each device, or over the plans that are given."""
    settings = settings_of(ScenarioFlags(settings=flags.settings, calibration=serving.calibration))
    asked = asked_fleet(read_scenario(path, settings), offline=serving.offline)
    contenders = []
    if flags.hardware or flags.tensor_parallel:
        names = flags.hardware or [device.name for device in asked.question.devices]
        for name, tensor in product(names, flags.tensor_parallel or [1]):
            chosen: Chosen = chosen_plan(asked, PlanFlags(name, tensor))
            contenders.append(Contender(chosen.name, chosen.spec))
    else:
        every = [plan for plan in fleet_plans(asked) if not plan.is_mix]
        best = {(plan.hardware, len(plan.groups)): plan for plan in reversed(every)}
        contenders += [_contender(plan, asked) for plan in sorted(best.values(), key=every.index)]
    if any(item.think_time_s == 0.0 for item in asked.scenario.classes) and not loads[1]:
        raise InputError(
            f"sweep {path}: users with a think_time of 0 s have no rate, only a number in flight\n  e.g. --concurrency 1,8,64"
        )
    rates = partial(_offered_rates, asked.question, flags.seed)
    points = _points(contenders, asked.question.demand, asked.scenario.slo, loads, flags.seed, rates)
    points = tuple(replace(point, routing=asked.question.routing or "round_robin") for point in points)
    counted = (*((_VECTORS,) if asked.scenario.pooled else ()), *_loads_of_pools(contenders))
    return AskedSweep(
        asked.scenario.name, points, asked.scenario.slo, (*counted, *asked.assumptions), asked.warnings
    )


def _contender(plan: Plan, asked: AskedFleet) -> Contender:
    """Return one replica of a plan, or both of its pools."""
    question = asked.question
    specs = [spec_of_layout(group.layout, question) for group in plan.groups]
    if plan.transfer is not None:
        usd = summed(
            None if pool.usd_per_hour is None else pool.usd_per_hour / pool.replicas * pool.busy_replicas
            for pool in plan.groups
        )
        prefill, decode = plan.groups
        count = f"{prefill.busy_replicas} + {decode.busy_replicas}"
        name = f"{count} apart: {layout_name(prefill.layout)}, {layout_name(decode.layout)}"
        pool = DecodePool(specs[1], (prefill.busy_replicas, decode.busy_replicas), plan.transfer.terms)
        planned = min(
            group.planned_request_rate_limit_per_replica * group.busy_replicas for group in plan.groups
        )
        return Contender(name, specs[0], usd, pool, planned)
    hourly = plan.usd_per_hour / plan.replicas if plan.usd_per_hour is not None else None
    planned = plan.single.planned_request_rate_limit_per_replica
    return Contender(layout_name(plan.single.layout), specs[0], hourly, planned_requests_per_s=planned)


def _offered_rates(question: Question, seed: int, contender: Contender) -> list[float]:
    """Return rates from near zero up to what one replica can serve, or the slower of both pools with its phase by itself [1/s]."""
    pool = contender.decode
    if pool is None:
        return offered_rates(contender, question.demand, seed)
    phases = prefill_question(question, ()), decode_question(question, ())
    specs = contender.spec, pool.spec
    alone = [
        [count * rate for rate in offered_rates(Contender("", spec), phase.demand, seed)]
        for count, spec, phase in zip(pool.replicas, specs, phases, strict=True)
    ]
    return [float(f"{min(rates):.3g}") for rates in zip(*alone, strict=True)]


def _loads_of_pools(contenders: Sequence[Contender]) -> tuple[Assumption, ...]:
    """Return what a load means where some plans have separate pools."""
    if all(contender.decode is None for contender in contenders):
        return ()
    words = "a load is that of one replica; where prefill and decode are apart, that of all replicas in service of both pools"
    return (Assumption(words, "fleet.disaggregation", "fleet.disaggregation"),)


_VECTORS = Assumption("output tok/s are vectors or scores per second: one for each prompt", "runner")


def _model_sweep(
    model: str, loads: Loads, flags: SweepFlags, lengths: Load, serving: ServingFlags
) -> AskedSweep:
    """Return the sweep on the devices given, with requests of equal lengths."""
    if not flags.hardware:
        raise InputError(
            f"sweep {model}: no device is given\n  e.g. --hardware h100-sxm, several times to compare"
        )
    prompt, output = lengths.input_tokens, lengths.output_tokens
    request_class = RequestClass("requests", fixed(float(prompt)), fixed(float(output)), 1.0)
    demand = Demand((request_class,), Lengths(float(prompt), float(output)), prompt + output)
    contenders = []
    assumptions: dict[Assumption, None] = {}
    warnings: dict[str, None] = {}
    for name, tensor in product(flags.hardware, flags.tensor_parallel or [1]):
        asked = asked_replica(model, name, replace(serving, tensor_parallel=tensor))
        assumptions |= dict.fromkeys(asked.assumptions)
        warnings |= dict.fromkeys(asked.warnings)
        longest = asked.spec.network.max_context_tokens
        context = 1024 * -(-(prompt + output) // 1024)
        spec = replace(asked.spec, max_model_len=min(context, longest) if longest else context)
        contenders.append(Contender(f"{asked.spec.device.name} TP{tensor}", spec))
    rates = None if not loads[0] else partial(offered_rates, demand=demand, seed=flags.seed)
    points = _points(contenders, demand, Slo(), loads, flags.seed, rates)
    return AskedSweep(model, points, Slo(), tuple(assumptions), tuple(warnings))


def _points(
    contenders: Sequence[Contender],
    demand: Demand,
    slo: Slo,
    loads: Loads,
    seed: int,
    rates_of: Callable[[Contender], Sequence[float]] | None,
) -> tuple[Point, ...]:
    """Return the loads of each plan: those given, else rates up to what it can serve; without `rates_of` concurrencies."""
    points = []
    request_rates, concurrencies = loads
    for contender in contenders:
        if rates_of is None or concurrencies:
            counts = concurrencies or CONCURRENCIES
            points += [Point(contender, demand, slo, seed, concurrency=count) for count in counts]
        else:
            rates = request_rates or rates_of(contender)
            points += [Point(contender, demand, slo, seed, request_rate=rate) for rate in rates]
    return tuple(points)
