"""The power that a scenario states -> the energy of a plan under its load."""

from dataclasses import dataclass, replace

import numpy as np

from capplan.assumption import Assumption
from capplan.fleet.money.energy import (
    DECODE_FRACTION,
    HOST_FRACTION,
    IDLE_FRACTION,
    PREFILL_FRACTION,
    Energy,
    EnergyTerms,
    energy_of,
    occupied_fraction,
)
from capplan.fleet.money.hosted import hosted_traffic
from capplan.fleet.money.terms import PowerTerms
from capplan.fleet.plan import FleetPlan
from capplan.fleet.review import plan_spec
from capplan.fleet.scenario import Scenario
from capplan.fleet.search import Question
from capplan.fleet.unit_costs import job_hours, mean_tokens_per_s
from capplan.numbers import Array
from capplan.questions.who_pays import class_use
from capplan.replica.replica import replica_of
from capplan.workload.daily_curve import HOURS


@dataclass(frozen=True, slots=True)
class AskedEnergy:
    """The energy of a plan, and what it rests on."""

    energy: Energy | None
    """None where the power of the device is not known."""
    assumptions: tuple[Assumption, ...] = ()
    warnings: tuple[str, ...] = ()


def asked_energy(scenario: Scenario, question: Question, plan: FleetPlan) -> AskedEnergy | None:
    """Return the energy of a plan; None where the scenario does not ask for it."""
    power, tdp = scenario.power, plan.layout.device.tdp_w
    if power is None:
        return None
    if tdp is None:
        warning = f"the power of {plan.layout.device.name} is not known, so its energy is left out; give chip.power in your own hardware YAML"
        return AskedEnergy(None, warnings=(warning,))
    terms, assumed = _terms(power, tdp, scenario.prices.usd_per_kwh)
    prefill, occupied = _shares(question, plan)
    energy = replace(energy_of(
        prefill, occupied, plan.busy_replicas * plan.layout.devices, plan.spare_replicas * plan.layout.devices, tdp, terms,
        mean_tokens_per_s(question.demand, plan.e2e_s.mean),
    ), job_hours=job_hours(question.demand))  # fmt: skip
    warnings: tuple[str, ...] = () if energy.gpus_per_rack != 0 else (
        f"energy.rack_limit: one server of {power.gpus_per_server} x {plan.layout.device.name} draws {energy.rack_watts or 0.0:,.0f} W, more than "
        f"the {power.rack_limit_watts:,.0f} W of a rack",
    )  # fmt: skip
    if terms.idle_watts > min(terms.decode_watts, terms.prefill_watts):
        warnings += (
            f"energy: a device that waits draws {terms.idle_watts:,.0f} W, more than the {terms.decode_watts:,.0f} W of decode "
            f"or the {terms.prefill_watts:,.0f} W of prefill: check energy.idle",
        )
    if power.kg_co2_per_kwh is None:
        assumed.append(Assumption("no carbon dioxide is shown: the grid is not stated", "energy.grid"))
    return AskedEnergy(energy, tuple(assumed), warnings)


def _terms(power: PowerTerms, tdp: float, usd_per_kwh: float | None) -> tuple[EnergyTerms, list[Assumption]]:
    assumed: list[Assumption] = []

    def watts(phase: str, measured: float | None, stated: float | None, otherwise: float) -> float:
        if measured is not None:
            return measured
        if stated is None:
            assumed.append(
                Assumption(f"{phase}: {otherwise:.0%} of the thermal design power", f"energy.{phase}")
            )
        return tdp * (otherwise if stated is None else stated)

    terms = EnergyTerms(
        idle_watts=watts("idle", power.idle_watts, power.idle_fraction, IDLE_FRACTION),
        decode_watts=watts("decode", power.decode_watts, power.decode_fraction, DECODE_FRACTION),
        prefill_watts=watts("prefill", power.prefill_watts, power.prefill_fraction, PREFILL_FRACTION),
        host_watts=watts("host", None, power.host_fraction, HOST_FRACTION),
        facility_ratio=power.facility_ratio,
        kg_co2_per_kwh=power.kg_co2_per_kwh,
        usd_per_kwh=usd_per_kwh,
        rack_limit_watts=power.rack_limit_watts,
        server_devices=power.gpus_per_server,
    )
    assumed.append(
        Assumption(
            "all replicas run at all hours; one decodes while it has a request and no prompt, whatever its batch",
            "energy.decode",
        )
    )
    return terms, assumed


def _shares(question: Question, plan: FleetPlan) -> tuple[Array, Array]:
    """Return, by hour of the day, the share of the time that a replica prefills, and that in which it has a request."""
    replica = replica_of(plan_spec(plan, question))
    prefill, peak, running = np.zeros(HOURS), 0.0, np.zeros(HOURS)
    for item in question.demand.classes:
        traffic = hosted_traffic(item, plan.e2e_s.mean)
        rates = np.resize(traffic.rates_per_s, HOURS) / plan.busy_replicas
        prefill += rates * class_use(item, replica, plan).prefill_s
        running += rates
        peak += item.request_rate_at(plan.e2e_s.mean) / plan.busy_replicas
    return prefill, np.asarray(occupied_fraction(plan.concurrency_per_replica * running / peak))
