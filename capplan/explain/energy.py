"""The energy of a plan explained: power by phase, of servers and building, by token, and what it costs."""

from collections.abc import Callable, Mapping
from functools import partial

from capplan.explain.record import Explained, Input, explained, formula_of, input_of, worked
from capplan.explain.row import Group, Planned, Row
from capplan.explain.subject import MONEY, Place, places_of
from capplan.fleet.money_terms import PowerTerms
from capplan.fleet.price import HOURS_PER_MONTH
from capplan.money.energy import Energy, kwh_per_million_tokens, occupied_fraction
from capplan.questions.money.energy import asked_energy
from capplan.report.answers.energy import energy_result

_POWER = "scenario: energy"


def energy_group(planned: Planned) -> Group:
    """Return the energy that `capplan fleet` prints, where the scenario asks for it."""
    asked = asked_energy(planned.asked.scenario, planned.asked.question, planned.plan)
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
    power = planned.asked.scenario.power or PowerTerms()
    if key == "watts_per_gpu":
        measured = getattr(power, f"{doing}_watts") is not None
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
    groups = planned.plan.groups
    load = input_of(
        "N",
        "concurrency_per_replica",
        groups[-1].concurrency_per_replica,
        groups[-1].label,
        "explain concurrency_per_replica; of each hour, by its rate over that of the peak",
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
    terms = energy.terms
    limit = input_of("L", "rack_limit_watts", terms.rack_limit_watts, "config", f"{_POWER}.rack_limit")
    server = input_of(
        "d", "gpus_per_server", terms.server_devices, "config", f"{_POWER}.gpus_per_server; 8 unless stated"
    )
    each = input_of(
        "W",
        "design_watts_per_gpu",
        energy.design_watts / energy.gpus,
        row.label,
        "explain energy.design_watts, of one device",
    )
    formula, inputs = {
        "gpus_per_rack": ("d floor(L / (d W))", (server, limit, each)),
        "rack_watts": ("W G, or of one server that is too much for a rack", (each, *row.inputs({"G": "gpus_per_rack"}))),
        "racks": ("ceil(g / G), of each pool by itself", (input_of("g", "gpus", energy.gpus, "derived", "explain gpus"), *row.inputs({"G": "gpus_per_rack"}))),
    }[key]  # fmt: skip
    del planned
    return explained(key, value, formula, inputs, MONEY)


_POWERS: Mapping[str, Callable[[Planned, Energy, Row, float], Explained]] = {
    "gpu_watts": _gpu_watts,
    "server_watts": _server_watts,
    "facility_watts": _facility_watts,
    "design_watts": _design_watts,
} | {key: partial(_of_a_rack, key=key) for key in ("racks", "rack_watts", "gpus_per_rack")}
