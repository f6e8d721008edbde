"""What follows from a plan, explained: the mix of commitments, the energy, the months to come."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from capplan.explain.plans import Group, Planned, Row
from capplan.explain.subject import (
    Explained,
    Input,
    Place,
    explained,
    formula_of,
    input_of,
    places_of,
    worked,
)
from capplan.fleet.over_time import replicas_over_time
from capplan.fleet.plan import Group as PlanGroup
from capplan.fleet.plan import Plan
from capplan.fleet.price import HOURS_PER_MONTH
from capplan.fleet.search.one_layout import is_searched_at_other_rates
from capplan.money.commitments import HOURS_PER_YEAR, Mix, MixedPart, use_fractions
from capplan.money.energy import Energy, kwh_per_million_tokens, occupied_fraction
from capplan.questions.fleet import parts_of, replicas_by_group
from capplan.questions.money.commitments import asked_mix
from capplan.questions.money.energy import asked_energy, asked_growth
from capplan.report.answers.fleet_money import commitments_result
from capplan.report.answers.fleet_outlook import energy_result, growth_result
from capplan.report.quantities import MONEY
from capplan.scenario.records.money import Power
from capplan.scenario.traffic import rate_line


def _path(plan: Plan, at: int) -> str:
    """Return where the numbers of a group of a plan stand; a plan of one group has them itself."""
    return f"groups[{at}]." if len(plan.groups) > 1 else ""


_SIDES = {"usd_per_month_low": "low_ratio", "usd_per_month_high": "high_ratio"}


def commitments_group(planned: Planned) -> Group:
    """Return the mix of the recommended plan that `capplan fleet` prints, where the scenario names commitments."""
    scenario = planned.asked.scenario
    line = rate_line(scenario, planned.plan.responses_s)
    asked = asked_mix(scenario, planned.plan, line, replicas_by_group(planned.asked, planned.plan))
    result = commitments_result((asked,)) if asked else None
    numbers = {place: value for place, value in places_of(result) if place[0] != "plans"}
    return Group(
        numbers, partial(_commitments_explained, planned.plan, asked.mix if asked else None, numbers)
    )


def _commitments_explained(
    plan: Plan, mix: Mix | None, numbers: Mapping[Place, float], place: Place, value: float
) -> Explained:
    assert mix is not None
    key = str(place[-1])
    if key == "short_fraction":
        curve = input_of("r", "traffic", None, "config", "scenario: traffic, the load curve")
        formula = "requests that arrive while fewer replicas than they need are in service, over all requests"
        return explained(key, value, formula, (curve,), MONEY)
    if place[0] == "rows":
        return _part(plan, mix.parts[int(place[1])], Row("commitments", numbers, place[:2]), key, value)
    if place[0] == "pure":
        return _alone(mix, numbers, int(place[1]), key, value)
    people = input_of(
        "p",
        "people_usd_per_month",
        mix.people_usd_per_hour * HOURS_PER_MONTH,
        "config",
        "scenario: commitments.owned.people",
    )
    if key == "people_usd_per_month":
        return explained(key, value, "p", (people,), MONEY)  # fmt: skip
    parts = [
        Row("commitments", numbers, ("rows", number)).input(f"c_{number}", key)
        for number in range(len(mix.parts))
    ]
    formula = " + ".join(part.symbol for part in parts)
    if key == "usd_per_year":
        return explained(key, value, f"{formula} + 12 p", (*parts, people), MONEY)
    return explained(key, value, f"{formula} + p", (*parts, people), MONEY)


def _part(plan: Plan, part: MixedPart, row: Row, key: str, value: float) -> Explained:
    offer = part.offer
    used = input_of(
        "u",
        "used_fraction",
        part.used_fraction,
        "config",
        f"scenario: traffic, the load curve: {formula_of(use_fractions)}",
    )
    if key in ("replicas", "used_fraction"):
        formula = (
            "replicas for whose share u of the time this is the cheapest way to pay"
            if key == "replicas"
            else "mean of their u"
        )
        return explained(key, value, formula, (used,), MONEY)  # fmt: skip
    if key == "gpus" and not part.of_replicas:
        formula = (
            "GPUs of machines of the order for whose share u of the time this is the cheapest way to pay"
        )
        return explained(key, value, formula, (used,), MONEY)
    if key == "gpus":
        where = f"explain {_path(plan, part.group)}gpus_per_replica"
        devices = input_of("g", "gpus_per_replica", part.devices, "derived", where)
        return explained(key, value, "n g", (*row.inputs({"n": "replicas"}), devices), MONEY)
    price = input_of(
        "p", "usd_per_gpu_hour", offer.usd_per_hour(1.0), "spec", f"{offer.name}: {offer.origin}"
    )
    if key == "usd_per_gpu_hour":
        return explained(key, value, "p", (price,), MONEY)
    inputs = (
        row.input("g", "gpus"),
        input_of("f", "fixed_usd_per_gpu_hour", offer.fixed_usd_per_hour, "spec", f"at all hours; {offer.name}: {offer.origin}"),
        input_of("v", "used_usd_per_gpu_hour", offer.used_usd_per_hour, "spec", f"while in use; {offer.name}: {offer.origin}"),
        used,
        _hours(key),
    )  # fmt: skip
    if key in _SIDES:
        source = (
            "lowest offer over the likely one" if key.endswith("low") else "highest offer over the likely one"
        )
        ratio = input_of("x", _SIDES[key], getattr(offer, _SIDES[key]), "spec", source)
        return explained(key, value, "g (f + v u) h x", (*inputs, ratio), MONEY)
    return explained(key, value, "g (f + v u) h", inputs, MONEY)


def _hours(key: str) -> Input:
    hours = HOURS_PER_YEAR if key == "usd_per_year" else HOURS_PER_MONTH
    return input_of("h", "hours", hours, "derived", "8,760 hours of a year, a twelfth of them a month")


def _alone(mix: Mix, numbers: Mapping[Place, float], position: int, key: str, value: float) -> Explained:
    """Explain what one commitment for all replicas would cost, or the mix next to it."""
    if position == len(mix.pure):
        total = Row("commitments", numbers).input("c", key)
        return explained(key, value, "c", (total,), MONEY)
    offer, usd = mix.pure[position]
    each = input_of(
        "u",
        "usd_per_hour",
        usd,
        "spec",
        f"every replica by its share of the time, {offer.name}: {offer.origin}",
    )
    if key in _SIDES:
        ratio = input_of(
            "x", _SIDES[key], getattr(offer, _SIDES[key]), "spec", "offers of all pools over the likely ones"
        )
        return explained(key, value, "u x h", (each, ratio, _hours(key)), MONEY)  # fmt: skip
    return explained(key, value, "u h", (each, _hours(key)), MONEY)


_POWER = "scenario: energy"


def energy_group(planned: Planned) -> Group:
    """Return the energy that `capplan fleet` prints, where the scenario asks for it."""
    asked = asked_energy(planned.asked, planned.plan)
    energy = asked.energy if asked else None
    numbers = dict(places_of(energy_result(energy)))
    return Group(numbers, partial(_energy, planned, energy, numbers))


def _energy(
    planned: Planned, energy: Energy | None, numbers: Mapping[Place, float], place: Place, value: float
) -> Explained:
    assert energy is not None
    key = str(place[-1])
    if place[0] == "phases":
        return _phase(planned, energy, int(place[1]), key)
    if place[0] == "servers":
        return _server(energy, int(place[1]), key, value)
    row = Row("energy", numbers, (), "assumed")
    if key in _POWERS:
        return _POWERS[key](planned, energy, row, value)
    if key.startswith("kwh_per_million"):
        return _per_million(energy, row, key)
    if key == "joules_per_output_token":
        inputs = (row.input("w", "facility_watts"), _tokens(energy.output_tokens_per_s, "output"))
        return explained(key, value, formula_of(Energy.joules_per_output_token), inputs, MONEY)
    span = key.rpartition("_")[2]
    if key.startswith("kwh_per_"):
        hours = HOURS_PER_MONTH if energy.job_hours is None else energy.job_hours
        time = input_of("n", "hours", hours, "derived", "of a month, or until the job is done")
        return explained(
            key, energy.kwh, formula_of(Energy.kwh), (row.input("w", "facility_watts"), time), MONEY
        )
    spent = row.input("E", f"kwh_per_{span}")
    if key.startswith("electricity"):
        price = input_of(
            "p", "usd_per_kwh", energy.terms.usd_per_kwh, "config", "scenario: prices.electricity"
        )
        return explained(key, value, formula_of(Energy.usd), (spent, price), MONEY)
    grid = input_of("k", "kg_co2_per_kwh", energy.terms.kg_co2_per_kwh, "config", f"{_POWER}.grid")
    return explained(key, value, formula_of(Energy.kg_co2), (spent, grid), MONEY)


def _tokens(tokens_per_s: float, what: str) -> Input:
    return input_of(
        "r", "tokens_per_s", tokens_per_s, "config", f"scenario: traffic, {what} tokens at the mean load"
    )


def _per_million(energy: Energy, row: Row, key: str) -> Explained:
    output_alone = key == "kwh_per_million_output_tokens"
    rate = (
        energy.output_tokens_per_s if output_alone else energy.output_tokens_per_s + energy.input_tokens_per_s
    )
    what = "output" if output_alone else "input and output"
    inputs = {
        "watts": (energy.facility_watts, row.label, "explain energy.facility_watts"),
        "tokens_per_s": (rate, "config", f"scenario: traffic, {what} tokens at the mean load"),
    }
    return worked(key, kwh_per_million_tokens, inputs, page=MONEY, steps=())


def _phase(planned: Planned, energy: Energy, position: int, key: str) -> Explained:
    phase = energy.phases[position]
    doing = phase.phase.rpartition(" ")[2]
    power = planned.asked.scenario.file.energy or Power()
    if key == "watts_per_gpu":
        measured = getattr(power.measured, doing) is not None
        source = (
            f"{_POWER}.measured.{doing}"
            if measured
            else f"{_POWER}.{doing}, a share of the thermal design power"
        )
        stated = input_of("w", f"{doing}_watts", phase.watts_per_gpu, "config", source)
        return explained(key, phase.watts_per_gpu, "w", (stated,), MONEY)  # fmt: skip
    formula = {
        "prefill": "mean over the hours of rate times the prefill of a request, over the replicas; spares idle",
        "decode": f"{formula_of(occupied_fraction)}, mean over the hours, less prefill; spares idle",
        "idle": "1 - prefill - decode",
    }[doing]
    plan = planned.plan
    named = zip(plan.group_names, plan.groups, strict=True)
    at = next((at for at, (name, _) in enumerate(named) if name and phase.phase.startswith(name)), -1)
    group = plan.groups[at]
    load = input_of(
        "N",
        "concurrency_per_replica",
        group.concurrency_per_replica,
        group.label,
        f"explain {_path(plan, at % len(plan.groups))}concurrency_per_replica; of each hour, by its rate over that of the peak",
    )
    return explained(key, phase.time_fraction, formula, (load,), MONEY)  # fmt: skip


def _gpu_watts(planned: Planned, energy: Energy, row: Row, value: float) -> Explained:
    del planned
    parts = [
        item
        for number, phase in enumerate(energy.phases)
        for item in (
            input_of(f"f_{number}", f"{phase.phase} time_fraction", phase.time_fraction, row.label, f"explain energy.phases[{number}].time_fraction"),
            input_of(f"w_{number}", f"{phase.phase} watts_per_gpu", phase.watts_per_gpu, row.label, f"explain energy.phases[{number}].watts_per_gpu"),
        )
    ]  # fmt: skip
    mean = " + ".join(f"f_{number} w_{number}" for number in range(len(energy.phases)))
    gpus = input_of("g", "gpus", energy.gpus, "derived", "explain gpus")
    return explained("gpu_watts", value, f"g ({mean})", (gpus, *parts), MONEY)


def _server_watts(planned: Planned, energy: Energy, row: Row, value: float) -> Explained:
    if len(planned.plan.groups) > 1:
        formula = "gpu_watts, and of each device its share of its server"
        return explained("server_watts", value, formula, row.inputs({"w": "gpu_watts"}), MONEY)
    inputs = (
        row.input("w", "gpu_watts"),
        _host(energy),
        input_of("g", "gpus", energy.gpus, "derived", "explain gpus"),
    )
    return explained("server_watts", value, "w + h g", inputs, MONEY)


def _host(energy: Energy) -> Input:
    return input_of("h", "host_watts", energy.terms.host_watts, "assumed", f"{_POWER}.host, of each device")


def _facility_watts(planned: Planned, energy: Energy, row: Row, value: float) -> Explained:
    del planned
    ratio = input_of(
        "e",
        "facility_ratio",
        energy.terms.facility_ratio,
        "config",
        f"{_POWER}.facility_ratio; 1 unless stated",
    )
    return explained("facility_watts", value, "w e", (row.input("w", "server_watts"), ratio), MONEY)


def _design_watts(planned: Planned, energy: Energy, row: Row, value: float) -> Explained:
    del row
    if any(one.sku for one in energy.servers):
        return explained("design_watts", value, *_summed(energy, "n_{0} W_{0}"), MONEY)
    inputs = [
        item
        for number, group in enumerate(planned.plan.groups)
        for item in (
            input_of(f"P_{number}", "watts", group.layout.device.tdp_w, "spec", f"capplan hardware {group.layout.device.name}"),
            input_of(f"g_{number}", "gpus", group.gpus, "derived", "explain gpus"),
        )
    ]  # fmt: skip
    if len(planned.plan.groups) == 1:
        return explained("design_watts", value, "(P_0 + h) g_0", (*inputs, _host(energy)), MONEY)
    return explained("design_watts", value, "P_0 g_0 + P_1 g_1, and the share of the servers", inputs, MONEY)


def _of_a_rack(planned: Planned, energy: Energy, row: Row, value: float, *, key: str) -> Explained:
    del planned
    if key == "racks":
        return explained(key, value, *_summed(energy, "ceil(n_{0} / m_{0})"), MONEY)
    full = energy.fullest
    limit = input_of("L", "rack_limit_watts", energy.terms.rack_limit_watts, "config", f"{_POWER}.rack_limit")
    server = input_of(
        "d",
        "gpus_per_server",
        full.gpus,
        "config",
        f"the order, else {_POWER}.gpus_per_server; 8 unless stated",
    )
    each = input_of("W", "watts_per_server", full.watts, row.label, "at the wall, at most; energy.servers")
    formula, inputs = {
        "gpus_per_rack": ("d floor(L / W)", (server, limit, each)),
        "rack_watts": ("W G / d, or of one server that is too much for a rack", (each, server, *row.inputs({"G": "gpus_per_rack"}))),
    }[key]  # fmt: skip
    return explained(key, value, formula, inputs, MONEY)


def _summed(energy: Energy, term: str) -> tuple[str, tuple[Input, ...]]:
    """Return a sum over the kinds of servers, and its inputs."""
    inputs = [
        item
        for number, one in enumerate(energy.servers)
        for item in (
            input_of(f"n_{number}", "servers", one.count, "derived", f"the order: {one.sku or one.device}"),
            input_of(f"W_{number}", "watts_per_server", one.watts, "spec", "the catalogue of machines, or the design power of its GPUs and the host"),
            input_of(f"m_{number}", "servers_per_rack", one.per_rack, "derived", f"floor of {_POWER}.rack_limit over the watts of a server"),
        )
    ]  # fmt: skip
    used = tuple(item for item in inputs if item.symbol[:2] in term)
    return " + ".join(term.format(number) for number in range(len(energy.servers))), used


def _server(energy: Energy, position: int, key: str, value: float) -> Explained:
    """Explain a number of one kind of servers."""
    one = energy.servers[position]
    name = one.sku or f"server of {one.gpus} x {one.device}"
    count = input_of(
        "n",
        "servers",
        one.count,
        "derived",
        f"the order: {name}, or GPUs by the piece over those of a server",
    )
    watts = input_of(
        "W",
        "watts_per_server",
        one.watts,
        "spec",
        "the catalogue of machines, or the design power of its GPUs and the host",
    )
    limit = input_of("L", "rack_limit_watts", energy.terms.rack_limit_watts, "config", f"{_POWER}.rack_limit")
    gpus = input_of(
        "d", "gpus_per_server", one.gpus, "spec", f"the order: {name}, or {_POWER}.gpus_per_server"
    )
    each = input_of("m", "servers_per_rack", one.per_rack, "derived", "floor(L / W)")
    formula, inputs = {
        "count": ("n", (count,)), "gpus": ("d", (gpus,)), "watts": ("W", (watts,)),
        "per_rack": ("floor(L / W)", (limit, watts)), "racks": ("ceil(n / m)", (count, each)),
    }[key]  # fmt: skip
    return explained(key, value, formula, inputs, MONEY)


_POWERS: Mapping[str, Callable[[Planned, Energy, Row, float], Explained]] = {
    "gpu_watts": _gpu_watts,
    "server_watts": _server_watts,
    "facility_watts": _facility_watts,
    "design_watts": _design_watts,
} | {key: partial(_of_a_rack, key=key) for key in ("racks", "rack_watts", "gpus_per_rack")}


@dataclass(frozen=True, slots=True)
class _Grown:
    """The growth of a plan and its numbers."""

    planned: Planned
    numbers: Mapping[Place, float]

    def row(self, position: int) -> Row:
        """Return the numbers of a month."""
        return Row("growth", self.numbers, ("months", position), self.planned.plan.groups[0].label)

    def sum_of(self, key: str, value: float, name: str) -> Explained:
        """Explain the sum of a number of all months."""
        months = sorted({int(place[1]) for place in self.numbers if place[0] == "months"})
        parts = [self.row(month).input(f"c_{month + 1}", name) for month in months]
        return explained(key, value, " + ".join(part.symbol for part in parts), parts, MONEY)


def growth_group(planned: Planned) -> Group:
    """Return the months to come that `capplan fleet` prints, where the scenario states a growth."""
    scenario = planned.asked.scenario
    growth = asked_growth(planned.asked, planned.plan, rate_line(scenario, planned.plan.responses_s))
    numbers = dict(places_of(growth_result(growth)))
    return Group(numbers, partial(_growth_explained, _Grown(planned, numbers)))


def _growth_explained(grown: _Grown, place: Place, value: float) -> Explained:
    key = str(place[-1])
    if place[0] == "months":
        return _month(grown, grown.row(int(place[1])), place, value)
    if key == "usd_over_horizon":
        return grown.sum_of(key, value, "usd_per_month")
    if key == "mix_usd_over_horizon":
        return grown.sum_of(key, value, "mix_usd_per_month")
    plan = grown.planned.plan
    bought = input_of("n", "replicas", plan.replicas, "derived", "explain replicas")
    needed = grown.row(int(value) - 1).input("m", "replicas")
    formula = "first month whose replicas m, of any kind, are more than those n of today's plan"
    return explained(key, value, formula, (bought, needed), MONEY)


def _month(grown: _Grown, row: Row, place: Place, value: float) -> Explained:
    key, month, plan = str(place[-1]), int(place[1]), grown.planned.plan
    if key == "month":
        return explained(key, value, "1 is today", (), MONEY)
    if key == "request_rate":
        today = plan.peak_requests_per_s
        ratio = grown.planned.asked.scenario.growth[month]
        inputs = (
            input_of("r", "request_rate", today, "derived", "the peak of today: explain request_rate_per_replica, times the busy replicas"),
            input_of("x", "traffic_ratio", ratio, "config", "scenario: growth, traffic of the month over that of today"),
        )  # fmt: skip
        return explained(key, value, "r x", inputs, MONEY)
    if key == "replicas" or place[2] == "pool_replicas":
        return _replicas(grown, row, place, value)
    if key == "gpus":
        if len(plan.groups) > 1:
            return explained(key, value, "of all groups, replicas times their GPUs", (), MONEY)
        devices = input_of(
            "g", "gpus_per_replica", plan.groups[0].layout.devices, "derived", "explain gpus_per_replica"
        )
        return explained(key, value, "n g", (*row.inputs({"n": "replicas"}), devices), MONEY)
    if key == "added_gpus":
        before = input_of("b", "gpus", plan.gpus, "derived", "explain gpus")
        before = before if month == 0 else grown.row(month - 1).input("b", "gpus")
        return explained(key, value, "g - b", (row.input("g", "gpus"), before), MONEY)
    if key == "mix_usd_per_month":
        formula = "cheapest mix of commitments for the load of the month: explain commitments.usd_per_month has that of today"
        return explained(key, value, formula, row.inputs({"r": "request_rate"}), MONEY)
    return _cost(grown, row, value)


def _replicas(grown: _Grown, row: Row, place: Place, value: float) -> Explained:
    groups = grown.planned.plan.groups
    if place[-1] == "replicas" and len(groups) > 1:
        return explained("replicas", value, "of all groups", (), MONEY)
    at = int(place[-1]) if place[2] == "pool_replicas" else 0
    group, asked = groups[at], grown.planned.asked
    part = parts_of(asked, grown.planned.plan)[at][0] if grown.planned.plan.is_mix else asked
    if is_searched_at_other_rates(group, part.question.demand):
        return _searched_replicas(group, row, value)
    planned = group.planned_request_rate_limit_per_replica
    source = "largest rate of a replica: as predicted less headroom, and with the confidence"
    inputs = (
        row.input("r", "request_rate"),
        input_of("c", "planned_request_rate_per_replica", planned, group.label, source),
        input_of(
            "s",
            "spare_replicas",
            group.spares_for(int(replicas_over_time(np.array([row.value("request_rate")]), planned)[0])),
            "config",
            f"scenario: {group.survive.key}",
        ),
    )
    needed = formula_of(replicas_over_time).rpartition("= ")[2].replace("r_i", "r")
    return explained("replicas", value, f"{needed} + s", inputs, MONEY)


def _searched_replicas(group: PlanGroup, row: Row, value: float) -> Explained:
    """Explain the replicas of a month as what a search for the layout finds at its rate."""
    busy = next(n for n in range(int(value), 0, -1) if n + group.spares_for(n) <= value)
    inputs = (
        row.input("r", "request_rate"),
        input_of("n", "busy_replicas", busy, group.label, "the fewest that meet the SLO targets at r, as the search of the plan finds them"),
        input_of("s", "spare_replicas", value - busy, "config", f"scenario: {group.survive.key}"),
    )  # fmt: skip
    return explained("replicas", value, "n + s", inputs, MONEY)


def _cost(grown: _Grown, row: Row, value: float) -> Explained:
    plan = grown.planned.plan
    if len(plan.groups) > 1:
        formula = f"{HOURS_PER_MONTH:g} hours of the replicas of all groups"
        return explained("usd_per_month", value, formula, row.inputs({"n": "replicas"}), MONEY)
    hours = input_of("m", "hours", HOURS_PER_MONTH, "derived", "365 x 24 / 12 hours of an average month")
    order = input_of(
        "h",
        "usd_per_hour",
        value / HOURS_PER_MONTH,
        "derived",
        "the cheapest order for the replicas of that month",
    )
    return explained("usd_per_month", value, "h m", (order, hours), MONEY)
