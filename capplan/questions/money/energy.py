"""The power that a scenario states -> the energy of a plan under its load."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from capplan.assumption import Assumption
from capplan.fleet.plan import Group, Plan
from capplan.fleet.price import PriceChoice
from capplan.fleet.unit_costs import job_hours, mean_tokens_per_s
from capplan.money.energy import (
    DECODE_FRACTION,
    HOST_FRACTION,
    IDLE_FRACTION,
    PREFILL_FRACTION,
    Energy,
    EnergyTerms,
    Servers,
    apart,
    energy_of,
    occupied_fraction,
    servers_of,
    together,
)
from capplan.money.hosted import hosted_traffic
from capplan.numbers import Array
from capplan.questions.fleet import AskedFleet, parts_of
from capplan.questions.money.who_pays import PlanUse, class_use, plan_use
from capplan.readers.catalogue.machines import sku_of
from capplan.scenario.records.money import Power
from capplan.workload.daily_curve import HOURS


@dataclass(frozen=True, slots=True)
class AskedEnergy:
    """The energy of a plan, and what it rests on."""

    energy: Energy | None
    """None where the power of the device is not known."""
    assumptions: tuple[Assumption, ...] = ()
    warnings: tuple[str, ...] = ()


def asked_energy(asked: AskedFleet, plan: Plan) -> AskedEnergy | None:
    """Return the energy of a plan; None where the scenario does not ask for it."""
    scenario, question = asked.scenario, asked.question
    power = scenario.file.energy
    if power is None:
        return None
    if plan.is_mix:
        return _energy_of_mix([asked_energy(*part) for part in parts_of(asked, plan)], plan.group_names)
    unknown = [group.layout.device.name for group in plan.groups if group.layout.device.tdp_w is None]
    if unknown:
        warning = f"the power of {unknown[0]} is not known, so its energy is left out; give chip.power in your own hardware YAML"
        return AskedEnergy(None, warnings=(warning,))
    use = plan_use(plan, question)
    energies, assumed, warnings = [], [], []
    for group, shares in zip(plan.groups, _shares(use, plan.groups), strict=True):
        terms, stated = _terms(power, group, scenario.prices)
        servers = _servers(power, group, terms)
        busy = group.busy_replicas * group.layout.devices
        bought = sum(one.count * one.gpus for one in servers) if _named(group) else group.gpus
        each = (group.layout.device.tdp_w or 0.0) + terms.host_watts
        design = sum(one.count * one.watts for one in servers) if _named(group) else each * group.gpus
        tokens = mean_tokens_per_s(question.demand, plan.responses_s)
        energies.append(energy_of(*shares, busy, bought - busy, design, terms, tokens, servers))
        assumed += stated
        warnings += _odd(energies[-1])
    energy = energies[0] if len(energies) == 1 else apart(energies[0], energies[1])
    if power.grid is None:
        assumed.append(Assumption("no carbon dioxide is shown: the grid is not stated", "energy.grid"))
    return AskedEnergy(
        replace(energy, job_hours=job_hours(question.demand)),
        tuple(dict.fromkeys(assumed)),
        tuple(dict.fromkeys(warnings)),
    )


def _energy_of_mix(parts: Sequence[AskedEnergy | None], names: Sequence[str]) -> AskedEnergy:
    """Return the energy of all groups of a mix; none if that of one group is not known."""
    found = [part for part in parts if part is not None]
    energies = [part.energy for part in found if part.energy is not None]
    known = len(energies) == len(parts)
    return AskedEnergy(
        together(energies, names) if known else None,
        tuple(dict.fromkeys(item for part in found for item in part.assumptions)),
        tuple(dict.fromkeys(text for part in found for text in part.warnings)),
    )


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


def _terms(power: Power, group: Group, prices: PriceChoice) -> tuple[EnergyTerms, list[Assumption]]:
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
        facility_ratio=power.facility_ratio or prices.facility_ratio,
        kg_co2_per_kwh=power.grid,
        usd_per_kwh=prices.usd_per_kwh,
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


def _shares(use: PlanUse, groups: Sequence[Group]) -> list[tuple[Array, Array]]:
    """Return of each group, by hour of the day, the share of the time that a replica prefills, and that in which it has a request.

    A prefill pool has a request while it prefills, a decode pool never prefills.
    """
    prefill, peak, running = np.zeros(HOURS), 0.0, np.zeros(HOURS)
    for index, item in enumerate(use.demand.classes):
        rates = np.resize(hosted_traffic(item, use.responses_s[index]).rates_per_s, HOURS)
        prefill += rates * class_use(index, use).prefill_s / groups[0].busy_replicas
        running += rates
        peak += item.request_rate_at(use.responses_s[index])
    decoding = np.asarray(occupied_fraction(groups[-1].concurrency_per_replica * running / peak))
    if len(groups) == 1:
        return [(prefill, decoding)]
    return [(prefill, np.minimum(prefill, 1.0)), (np.zeros(HOURS), decoding)]
