"""What follows from a plan, explained: the mix of commitments, the energy, the months to come."""

from dataclasses import asdict, replace
from functools import partial

import numpy as np

from capplan.explain.plans import Arguments, Group, NextToPlan, Planned, Row, busy_of, no_number
from capplan.explain.subject import Explained, Place, explained, formula_of, group_path, input_of, places_of
from capplan.explain.table import Stated, stated_input
from capplan.fleet.group import Group as PlanGroup
from capplan.fleet.plan import Plan
from capplan.money.commitments import HOURS_PER_YEAR, Mix, MixedPart, Offer, use_fractions
from capplan.money.energy import Energy, Servers, occupied_fraction
from capplan.money.ledger import cost_lines
from capplan.money.price import HOURS_PER_MONTH
from capplan.questions.fleet import demand_of_plan, parts_of
from capplan.questions.money.energy import asked_energy, asked_growth, price_decline
from capplan.questions.money.ledger import ledger_of, plan_mix, term_prices
from capplan.report.answer import row_of
from capplan.report.answers.fleet_money import commitments_result, term_rows, total_result
from capplan.report.answers.fleet_outlook import energy_result, growth_result
from capplan.report.quantities import MONEY
from capplan.scenario.scenario_file import Power
from capplan.serving.steady_state import replicas_over_time


def demand_group(planned: Planned) -> Group:
    """Return the peak and the mean of the traffic that the plan is for."""
    demand, responses_s = planned.asked.question.demand, planned.plan.responses_s
    numbers = dict(places_of(asdict(demand_of_plan(planned.asked, planned.plan))))
    rates = zip(demand.classes, demand.rates_of_classes(responses_s), strict=True)
    classes = [(f"{item.name} ", item.mean_rate_fraction, rate) for item, rate in rates]
    given: Arguments = {
        "class_rate": [Stated(rate, name=f"{name}request_rate") for name, _, rate in classes],
        "class_mean_fraction": [Stated(part, name=f"{name}mean_rate_fraction") for name, part, _ in classes],
    }
    return Group(numbers, NextToPlan("demand", numbers, given).explain)


def total_cost_group(planned: Planned) -> Group:
    """Return every line of what the recommended plan costs."""
    mix = plan_mix(planned.asked, planned.plan)
    lines = cost_lines(ledger_of(planned.asked, planned.plan, mix.mix if mix else None))
    numbers = dict(places_of(total_result(lines)))

    def quantity(place: Place) -> Stated:
        line = lines[int(place[1])]
        return Stated(line.quantity, f"{line.what}, in {line.unit}")

    def price(place: Place) -> Stated:
        line = lines[int(place[1])]
        return Stated(line.usd_each, line.basis, "assumed" if line.basis == "assumed" else "config")

    given: Arguments = {"line_quantity": quantity, "line_price": price}
    return Group(numbers, NextToPlan("total_cost", numbers, given).explain)


def prices_by_term_group(planned: Planned) -> Group:
    """Return the public prices of the GPUs of the recommended plan by term."""
    terms = term_prices(planned.asked.scenario, planned.plan)
    numbers = dict(places_of(term_rows(terms)))

    def offer(place: Place) -> Stated:
        term = terms[int(place[0])]
        ends = {"lowest": term.price.lowest, "highest": term.price.highest}
        record = ends.get(str(place[1]).partition("_")[0]) or term.price.records[0]
        counted = "by its discount, on the median price on demand; " if record in term.discounted else ""
        source = f"{record.provider}, {record.date or 'date unknown'}: {counted}{record.source}"
        return Stated(record.usd_per_hour, source, "spec" if record.quality == "list" else "assumed")

    given: Arguments = {
        "term_price": offer,
        "term_hours": lambda place: Stated(terms[int(place[0])].hours),
        "paid_gpus": lambda place: Stated(terms[int(place[0])].gpus),
    }
    return Group(numbers, NextToPlan("prices_by_term", numbers, given).explain)


def commitments_group(planned: Planned) -> Group:
    """Return the mix of the recommended plan that `capplan fleet` prints, where the scenario names commitments."""
    asked = plan_mix(planned.asked, planned.plan)
    if asked is None:
        return Group({}, no_number)
    result = commitments_result((asked,))
    numbers = {place: value for place, value in places_of(result) if place[0] != "plans"}
    of = NextToPlan("commitments", numbers, _commitment_arguments(planned.plan, asked.mix))
    return Group(numbers, partial(_committed, asked.mix, of))


_USE = f"scenario: traffic, the load curve: {formula_of(use_fractions)}"


def _commitment_arguments(plan: Plan, mix: Mix) -> Arguments:
    """Return the arguments of the numbers of a mix: the use of each part, and what its offer states."""

    def part(place: Place) -> MixedPart:
        return mix.parts[int(place[1])]

    def offer(place: Place) -> Offer:
        return part(place).offer if place[0] == "rows" else mix.pure[int(place[1])][0]

    def source(place: Place) -> str:
        return f"{offer(place).name}: {offer(place).origin}"

    def ratio(place: Place) -> Stated:
        end = str(place[-1]).rpartition("_")[2]
        of = "all pools over the likely ones" if place[0] == "pure" else "its GPUs over the likely one"
        return Stated(getattr(offer(place), f"{end}_ratio"), f"{end}est offer of {of}", name=f"{end}_ratio")

    def gpus(place: Place) -> Stated:
        where = f"explain {group_path(plan, part(place).group)}gpus_per_replica"
        return Stated(part(place).devices, where)

    return {
        "use_share": lambda place: Stated(part(place).used_fraction, _USE),
        "layout_gpus": gpus,
        "commitment_price": lambda place: Stated(offer(place).usd_per_hour(1.0), source(place)),
        "fixed_usd_per_gpu_hour": lambda place: Stated(offer(place).fixed_usd_per_hour, f"at all hours; {source(place)}"),
        "used_usd_per_gpu_hour": lambda place: Stated(offer(place).used_usd_per_hour, f"while in use; {source(place)}"),
        "offer_ratio": ratio,
        "committed_hours": lambda place: Stated(HOURS_PER_YEAR if place[-1] == "usd_per_year" else HOURS_PER_MONTH),
        "pure_usd_per_hour": lambda place: Stated(mix.pure[int(place[1])][1], f"every replica by its share of the time, {source(place)}"),
        "people_of_owned": Stated(mix.people_usd_per_hour * HOURS_PER_MONTH),
        "load_curve": Stated(None),
    }  # fmt: skip


def _committed(mix: Mix, of: NextToPlan, place: Place, value: float) -> Explained:
    """Explain a number of a mix: machines instead of replicas, else as the table says."""
    key = str(place[-1])
    if place[0] == "pure" and place[1] == len(mix.pure):
        return explained(key, value, "c", (of.row().input("c", key),), MONEY)
    if key == "gpus" and not mix.parts[int(place[1])].of_replicas:
        formula = (
            "GPUs of machines of the order for whose share u of the time this is the cheapest way to pay"
        )
        use = Stated(mix.parts[int(place[1])].used_fraction, _USE)
        return explained(key, value, formula, (stated_input("use_share", "u", use),), MONEY)
    return of.explain(place, value)


_POWER, _TRAFFIC = "scenario: energy", "scenario: traffic"


def energy_group(planned: Planned) -> Group:
    """Return the energy that `capplan fleet` prints, where the scenario asks for it."""
    energy, *_ = asked_energy(planned.asked, planned.plan)
    if energy is None:
        return Group({}, no_number)
    numbers = dict(places_of(energy_result(energy)))
    of_groups = len(planned.plan.groups) > 1
    of = NextToPlan("energy", numbers, _energy_arguments(planned, energy), "assumed", of_groups=of_groups)
    return Group(numbers, partial(_energy, planned, energy, of))


def _energy_arguments(planned: Planned, energy: Energy) -> Arguments:
    """Return the arguments of the numbers of energy: the terms of the scenario, tokens, and the servers of a place."""
    terms, power = energy.terms, planned.asked.scenario.file.energy or Power()

    def phase(place: Place) -> Stated:
        found = energy.phases[int(place[1])]
        doing = found["phase"].rpartition(" ")[2]
        measured = getattr(power.measured, doing) is not None
        key = f"measured.{doing}" if measured else f"{doing}, a share of the thermal design power"
        return Stated(found["watts_per_gpu"], f"{_POWER}.{key}", name=f"{doing}_watts")

    def server(place: Place) -> Servers:
        return energy.servers[int(place[1])] if place[0] == "servers" else energy.fullest

    def server_gpus() -> list[Stated]:
        orders = ((each.gpus, each.order) for each in planned.plan.groups)
        loose = (gpus for gpus, of in orders if of is None or not all(line.machine.sku for line in of.lines))
        return [Stated(one.count * one.gpus if one.sku else next(loose)) for one in energy.servers]

    hours = HOURS_PER_MONTH if energy.job_hours is None else energy.job_hours
    values = {
        "host_watts": terms.host_watts,
        "ordered_gpus": energy.gpus,
        "facility_ratio": terms.facility_ratio,
        "powered_hours": hours,
        **row_of(terms, "usd_per_kwh kg_co2_per_kwh rack_limit_watts"),
    }
    return {
        **{name: Stated(value) for name, value in values.items()},
        "mean_output_tokens_per_s": Stated(energy.output_tokens_per_s, f"{_TRAFFIC}, output tokens at the mean load"),
        "mean_total_tokens_per_s": Stated(energy.output_tokens_per_s + energy.input_tokens_per_s, f"{_TRAFFIC}, input and output tokens at the mean load"),
        "phase_watts": phase,
        "server_gpus": lambda _: server_gpus(),
        "servers": lambda place: Stated(server(place).count),
        "gpus_per_server": lambda place: Stated(server(place).gpus),
        "watts_per_server": lambda place: Stated(server(place).watts),
    }  # fmt: skip


def _energy(planned: Planned, energy: Energy, of: NextToPlan, place: Place, value: float) -> Explained:
    """Explain a number of energy: the time of a phase, else as the table says."""
    key = str(place[-1])
    if key == "time_fraction":
        return _time_fraction(planned, energy, int(place[1]))
    sized = place[0] == "servers" or key in ("design_watts", "racks", "rack_watts", "gpus_per_rack")
    return (replace(of, label="derived") if sized else of).explain(place, value)


def _time_fraction(planned: Planned, energy: Energy, position: int) -> Explained:
    phase = energy.phases[position]
    doing = phase["phase"].rpartition(" ")[2]
    formula = {
        "prefill": "mean over the hours of rate times the prefill of a request, over the replicas; spares idle",
        "decode": f"{formula_of(occupied_fraction)}, mean over the hours, less prefill; spares idle",
        "idle": "1 - prefill - decode",
    }[doing]
    plan = planned.plan
    named = zip(plan.group_names, plan.groups, strict=True)
    at = next((at for at, (name, _) in enumerate(named) if name and phase["phase"].startswith(name)), -1)
    group = plan.groups[at]
    name = "concurrency_per_replica"
    source = f"explain {group_path(plan, at % len(plan.groups))}{name}; of each hour, by its rate over that of the peak"
    load = input_of("N", name, group.concurrency_per_replica, group.label, source)
    return explained("time_fraction", phase["time_fraction"], formula, (load,), MONEY)


def growth_group(planned: Planned) -> Group:
    """Return the months to come that `capplan fleet` prints, where the scenario states a growth."""
    scenario = planned.asked.scenario
    growth = asked_growth(planned.asked, planned.plan)
    numbers = dict(places_of(growth_result(growth)))
    plan = planned.plan

    def before(place: Place) -> Stated:
        month = int(place[1])
        if not month:
            return Stated(plan.gpus, "explain gpus")
        row = of.row("months", month - 1).input("b", "gpus")
        return Stated(row.value, row.source, row.label)

    given: Arguments = {
        "peak_today": Stated(plan.peak_requests_per_s),
        "traffic_ratio": lambda place: Stated(scenario.growth[int(place[1])]),
        "layout_gpus": Stated(plan.groups[0].layout.devices),
        "before_gpus": before,
        "month_usd_per_hour": lambda place: Stated(
            plan.resized([busy_of(plan.groups[0], int(numbers[(*place[:-1], "replicas")]))]).usd_per_hour
        ),
        "hours": Stated(HOURS_PER_MONTH),
        "price_decline": Stated(price_decline(scenario)),
    }
    of = NextToPlan("growth", numbers, given, plan.groups[0].label, of_groups=len(plan.groups) > 1)
    return Group(numbers, partial(_grown, planned, of))


def _grown(planned: Planned, of: NextToPlan, place: Place, value: float) -> Explained:
    """Explain a number of the months to come: what a search finds, else as the table says."""
    key, plan = str(place[-1]), planned.plan
    if key == "outgrown_in_month":
        bought = input_of("n", "replicas", plan.replicas, "derived", "explain replicas")
        needed = of.row("months", int(value) - 1).input("m", "replicas")
        formula = "first month whose replicas m, of any kind, are more than those n of today's plan"
        return explained(key, value, formula, (bought, needed), MONEY)
    if len(place) == 1:
        return of.explain(place, value)
    if place[2] == "pool_replicas" or (key == "replicas" and not of.of_groups):
        at = int(place[-1]) if place[2] == "pool_replicas" else 0
        return _replicas(planned, of.row(*place[:2]), at, value)
    return of.explain(place, value)


def _replicas(planned: Planned, row: Row, at: int, value: float) -> Explained:
    asked, group = planned.asked, planned.plan.groups[at]
    part, _ = parts_of(asked, planned.plan)[at]
    if group.is_searched_at_other_rates(part.scenario.classes):
        return _searched_replicas(group, row, value)
    carried = group.planned_request_rate_limit_per_replica
    spares = group.spares_for(int(replicas_over_time(np.array([row.value("request_rate")]), carried)[0]))
    source = "largest rate of a replica: as predicted less headroom, and with the confidence"
    inputs = (
        row.input("r", "request_rate"),
        input_of("c", "planned_request_rate_per_replica", carried, group.label, source),
        input_of("s", "spare_replicas", spares, "config", f"scenario: {group.survive.key}"),
    )
    needed = formula_of(replicas_over_time).rpartition("= ")[2].replace("r_i", "r")
    return explained("replicas", value, f"{needed} + s", inputs, MONEY)


def _searched_replicas(group: PlanGroup, row: Row, value: float) -> Explained:
    """Explain the replicas of a month as what a search for the layout finds at its rate."""
    busy = busy_of(group, int(value))
    inputs = (
        row.input("r", "request_rate"),
        input_of("n", "busy_replicas", busy, group.label, "the fewest that meet the SLO targets at r, as the search of the plan finds them"),
        input_of("s", "spare_replicas", value - busy, "config", f"scenario: {group.survive.key}"),
    )  # fmt: skip
    return explained("replicas", value, "n + s", inputs, MONEY)
