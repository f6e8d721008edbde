"""What follows from a plan: its energy under its load, replicas over time, its mix of commitments, and the fleets of the months to come."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from itertools import pairwise
from math import ceil
from typing import TypeAlias

import numpy as np

from capplan.assumption import Assumption
from capplan.fleet.answer import FleetAnswer
from capplan.fleet.group import PHASES, Group, Role
from capplan.fleet.growth import Growth, growth_of
from capplan.fleet.over_time import OverTime, RateLine, ReplicasAt
from capplan.fleet.plan import Plan
from capplan.fleet.unit_costs import job_hours, mean_tokens_per_s
from capplan.money.commitments import Cash, Mix, cash_of
from capplan.money.energy import (
    DECODE_FRACTION,
    HOST_FRACTION,
    IDLE_FRACTION,
    PREFILL_FRACTION,
    Energy,
    EnergyTerms,
    Servers,
    energy_of,
    occupied_fraction,
    servers_of,
    total_energy,
)
from capplan.money.hosted import hosted_traffic
from capplan.money.ledger import Entry
from capplan.money.price import Prices
from capplan.numbers import Array
from capplan.questions.fleet import AskedFleet, parts_of, replicas_by_group
from capplan.questions.money.commitments import (
    AskedMix,
    asked_mix,
    group_over_time,
    rent_warnings,
)
from capplan.questions.money.ledger import TermPrice, ledger_of, term_prices
from capplan.questions.money.who_pays import PlanUse, class_use, plan_use
from capplan.readers.catalogue.hardware import sku_of
from capplan.scenario.scenario_file import Power, Scenario
from capplan.scenario.traffic import rate_line
from capplan.workload.daily_curve import HOURS

AskedEnergy: TypeAlias = tuple[Energy | None, tuple[Assumption, ...], tuple[str, ...]]
"""The energy of a plan, assumptions and warnings."""


def asked_energy(asked: AskedFleet, plan: Plan) -> AskedEnergy:
    """Return the energy of a plan; none where the scenario does not ask for it, or the power of a device is not known."""
    power = asked.scenario.file.energy
    if power is None:
        return None, (), ()
    unknown = [group.layout.device.name for group in plan.groups if group.layout.device.tdp_w is None]
    if unknown:
        warning = f"the power of {unknown[0]} is not known, so its energy is left out; give chip.power in your own hardware YAML"
        return None, (), (warning,)
    energies, assumed = [], []
    for (part, alone), group in zip(parts_of(asked, plan), plan.groups, strict=True):
        terms, stated = _terms(power, group, asked.scenario.prices)
        energies.append(_energy_of_group(part, alone, group, terms, _servers(power, group, terms)))
        assumed += stated
    if power.grid is None:
        assumed.append(Assumption("no carbon dioxide is shown: the grid is not stated", "energy.grid"))
    names = [f"{name} pool" if name in PHASES else name for name in plan.group_names]
    energy = energies[0] if len(energies) == 1 else total_energy(energies, names)
    warnings = dict.fromkeys(text for one in energies for text in _odd(one))
    return energy, tuple(dict.fromkeys(assumed)), tuple(warnings)


def _energy_of_group(
    asked: AskedFleet, plan: Plan, group: Group, terms: EnergyTerms, servers: tuple[Servers, ...]
) -> Energy:
    """Return the energy of a group under the requests that it gets; of a pool only its own phase and its own tokens count."""
    demand = asked.question.demand
    busy = group.busy_replicas * group.layout.devices
    bought = sum(one.count * one.gpus for one in servers) if _named(group) else group.gpus
    each = (group.layout.device.tdp_w or 0.0) + terms.host_watts
    design = sum(one.count * one.watts for one in servers) if _named(group) else each * group.gpus
    read, written = mean_tokens_per_s(demand, plan.responses_s)
    tokens = 0.0 if group.role == "decode" else read, 0.0 if group.role == "prefill" else written
    shares = _shares(plan_use(plan, asked.question), plan.groups)[group.role]
    found = energy_of(*shares, busy, bought - busy, design, terms, tokens, servers)
    phases = (row for row in found.phases if group.role == "serve" or row["phase"] in (group.role, "idle"))
    return replace(found, phases=tuple(phases), job_hours=job_hours(demand))


def _named(group: Group) -> bool:
    """Return whether the machines of a group have names, so that their number and size are known."""
    return group.order is not None and all(line.machine.sku for line in group.order.lines)


def _wall_watts(sku: str) -> float | None:
    """Return the power of a machine at the wall, at most, as its catalogue entry states it; None if it does not."""
    known = sku_of(sku)
    return None if known is None else known.record.power


def _servers(power: Power, group: Group, terms: EnergyTerms) -> tuple[Servers, ...]:
    """Return the servers of a group: the machines of its order, or servers of `energy.gpus_per_server` if GPUs are bought by the piece."""
    device, limit = group.layout.device, power.rack_limit
    each = (device.tdp_w or 0.0) + terms.host_watts
    order = group.order
    if order is None or not _named(group):
        size = power.gpus_per_server
        return (servers_of("", device.name, ceil(group.gpus / size), size, each * size, limit),)
    return tuple(
        servers_of(
            line.machine.sku,
            device.name,
            line.count,
            line.machine.gpus,
            _wall_watts(line.machine.sku) or each * line.machine.gpus,
            limit,
        )
        for line in order.lines
    )


def _host_watts(group: Group) -> float | None:
    """Return what the servers of an order draw in addition to the design power of their GPUs, for each GPU [W]; None if one does not state its power."""
    lines = group.order.lines if group.order is not None and _named(group) else ()
    walls = [(line, _wall_watts(line.machine.sku)) for line in lines]
    gpus = sum(line.count * line.machine.gpus for line in lines)
    if not gpus or any(watts is None for _, watts in walls):
        return None
    total = sum(line.count * (watts or 0.0) for line, watts in walls)
    return max(total / gpus - (group.layout.device.tdp_w or 0.0), 0.0)


def _odd(energy: Energy) -> list[str]:
    """Return the warnings for a server that no rack feeds, and for a device that draws more while it waits."""
    terms = energy.terms
    warnings = [
        f"energy.rack_limit: one {one.sku or f'server of {one.gpus} x {one.device}'} draws {one.watts:,.0f} W, "
        f"more than the {terms.rack_limit_watts:,.0f} W of a rack"
        for one in energy.servers
        if one.per_rack == 0
    ]
    if terms.idle_watts > min(terms.decode_watts, terms.prefill_watts):
        warnings.append(
            f"energy: a device that waits draws {terms.idle_watts:,.0f} W, more than the {terms.decode_watts:,.0f} W of decode "
            f"or the {terms.prefill_watts:,.0f} W of prefill: check energy.idle"
        )
    return warnings


def _terms(power: Power, group: Group, prices: Prices) -> tuple[EnergyTerms, list[Assumption]]:
    tdp, assumed = group.layout.device.tdp_w or 0.0, list[Assumption]()

    def watts(phase: str, measured: float | None, stated: float | None, otherwise: float) -> float:
        if measured is not None:
            return measured
        if stated is None:
            assumed.append(
                Assumption(f"{phase}: {otherwise:.0%} of the thermal design power", f"energy.{phase}")
            )
        return tdp * (otherwise if stated is None else stated)

    host = _host_watts(group) if power.host is None else None
    terms = EnergyTerms(
        idle_watts=watts("idle", power.measured.idle, power.idle, IDLE_FRACTION),
        decode_watts=watts("decode", power.measured.decode, power.decode, DECODE_FRACTION),
        prefill_watts=watts("prefill", power.measured.prefill, power.prefill, PREFILL_FRACTION),
        host_watts=watts("host", host, power.host, HOST_FRACTION),
        facility_ratio=power.facility_ratio or prices.power_ratio,
        kg_co2_per_kwh=power.grid,
        usd_per_kwh=prices.electricity,
        rack_limit_watts=power.rack_limit,
    )
    if host is not None:
        what = f"the servers of {group.layout.device.name} draw {host:.0f} W for each GPU at all times: their stated power less the GPUs"
        assumed.append(Assumption(what, "energy.host"))
    assumed.append(
        Assumption(
            "all replicas run at all hours; one decodes while it has a request and no prompt, whatever its batch",
            "energy.decode",
        )
    )
    return terms, assumed


def _shares(use: PlanUse, groups: Sequence[Group]) -> Mapping[Role, tuple[Array, Array]]:
    """Return by role and hour of the day the share of the time that a replica prefills, and that in which it has a request.

    A prefill pool has a request while it prefills, a decode pool never prefills.
    """
    prefill, peak, running = np.zeros(HOURS), 0.0, np.zeros(HOURS)
    for index, item in enumerate(use.demand.classes):
        rates = np.resize(hosted_traffic(item, use.responses_s[index]).rates_per_s, HOURS)
        prefill += rates * class_use(index, use).prefill_s / groups[0].busy_replicas
        running += rates
        peak += item.request_rate_at(use.responses_s[index])
    decoding = np.asarray(occupied_fraction(groups[-1].concurrency_per_replica * running / peak))
    return {
        "serve": (prefill, decoding),
        "prefill": (prefill, np.minimum(prefill, 1.0)),
        "decode": (np.zeros(HOURS), decoding),
    }


def asked_growth(asked: AskedFleet, plan: Plan) -> Growth | None:
    """Return the fleets of the months to come; None where the scenario states no growth."""
    scenario = asked.scenario
    if not scenario.growth:
        return None
    replicas_at, line = replicas_by_group(asked, plan), rate_line(scenario, plan.responses_s)
    mix = partial(_mix_of_month, scenario, line, replicas_at)
    return growth_of(plan, np.array(scenario.growth), mix, replicas_at, price_decline(scenario))


def price_decline(scenario: Scenario) -> float:
    """Return the yearly fall of the prices of GPUs; 0 where the scenario states no growth."""
    return scenario.file.growth.gpu_price_decline if scenario.file.growth else 0.0


def _mix_of_month(
    scenario: Scenario, line: RateLine | None, replicas_at: Sequence[ReplicasAt], ratio: float, plan: Plan
) -> Mix | None:
    """Return the cheapest mix of a month, at some times the traffic; None without commitments."""
    grown = None if line is None else replace(line, rates_per_s=line.rates_per_s * ratio)
    asked = asked_mix(scenario, plan, grown, replicas_at)
    return None if asked is None else asked.mix


def growth_assumptions(scenario: Scenario, growth: Growth) -> tuple[Assumption, ...]:
    """Return what the months to come rest on."""
    falls = any(later.replicas < before.replicas for before, later in pairwise(growth.months))
    kept = "; where it falls, replicas are given back whatever their term" if falls else ""
    decline = price_decline(scenario)
    prices = "rents and the prices at which terms begin fall evenly" if decline else "prices of GPUs stay"
    stated = [
        Assumption(
            f"all traffic grows alike, {prices}, and the layout stays that of today's plan{kept}",
            "growth.rates",
        )
    ]
    if any(row.pool_replicas for row in growth.months):
        what = "all groups of replicas grow alike, by the load that they carry together"
        stated.append(Assumption(what, "growth.rates"))
    if scenario.file.commitments is not None:
        at = " at the prices of today" if decline else ""
        what = f"each month has the cheapest mix for its own load{at}; what is reserved or owned once stays, for the load grows"
        stated.append(Assumption(what, "commitments"))
    return tuple(stated)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What follows from the plans of a fleet."""

    over_time: Mapping[str, OverTime] = field(default_factory=dict)
    """Load of each group of the recommended plan over the day, where the load has a curve; without a name where all replicas are alike."""
    mixes: tuple[AskedMix, ...] = ()
    """Mix of the recommended plan first, then of the others; empty where the scenario names no commitments."""
    energy: Energy | None = None
    """Energy of the recommended plan, where the scenario asks for it."""
    growth: Growth | None = None
    """Growth of the recommended plan, where the scenario states a growth."""
    assumptions: tuple[Assumption, ...] = ()
    """What all of this rests on, in addition to the plan."""
    warnings: tuple[str, ...] = ()
    cash: Cash | None = None
    """What the recommended plan pays in which month, where the scenario names commitments."""
    total: tuple[Entry, ...] = ()
    """The ledger of the recommended plan; empty without a price."""
    terms: tuple[TermPrice, ...] = ()
    """Public prices of its GPUs by term."""
    narrower: Plan | None = None
    """The recommended plan with narrower weights, if it costs less so."""


def outlook_of(asked: AskedFleet, answer: FleetAnswer, today: date | None = None) -> Outlook:
    """Return what follows from the plans of a fleet; nothing where there is no plan. Prices are judged old by a day, if one is given."""
    scenario, chosen = asked.scenario, answer.chosen
    if chosen is None:
        return Outlook()
    from capplan.questions.narrower import narrower_weights

    line = rate_line(scenario, chosen.responses_s)
    growth = asked_growth(asked, chosen)
    energy, assumed, warned = asked_energy(asked, chosen)
    plans = (chosen, *(plan for plan in answer.plans if plan != chosen))
    mixed = (asked_mix(scenario, plan, line, replicas_by_group(asked, plan)) for plan in plans)
    mixes = tuple(mix for mix in mixed if mix is not None)
    needs = zip(chosen.groups, replicas_by_group(asked, chosen), strict=True)
    by_group = [group_over_time(scenario, group, line, replicas_at) for group, replicas_at in needs]
    names = chosen.group_names if len(by_group) > 1 else ("",)
    return Outlook(
        {name: item for name, item in zip(names, by_group, strict=True) if item is not None},
        mixes,
        energy,
        growth,
        assumptions=(
            *(mixes[0].assumptions if mixes else ()),
            *(growth_assumptions(scenario, growth) if growth else ()),
            *assumed,
        ),
        warnings=tuple(
            dict.fromkeys(
                (
                    *(text for item in mixes for text in item.warnings),
                    *warned,
                    *(rent_warnings(chosen, today) if today else ()),
                )
            )
        ),
        cash=asked_cash(scenario, mixes[0].mix, growth) if mixes else None,
        total=ledger_of(asked, chosen, mixes[0].mix if mixes else None),
        terms=term_prices(scenario, chosen, today),
        narrower=narrower_weights(asked, chosen),
    )


CASH_MONTHS = 12
"""Months to look ahead where the scenario states no growth."""


def asked_cash(scenario: Scenario, mix: Mix, growth: Growth | None) -> Cash | None:
    """Return what is paid in which month: by the mixes of a growth, else by today's for a year; None if every month pays alike."""
    mixes = growth.mixes if growth is not None else (mix,) * CASH_MONTHS
    has_terms = any(part.offer.term for each in mixes for part in each.parts)
    return cash_of(mixes, price_decline(scenario)) if has_terms else None
