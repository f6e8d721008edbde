"""Energy: the tables and the record that `capplan fleet` adds."""

from dataclasses import asdict
from typing import Any

from capplan.money.energy import Energy
from capplan.report.answer import Table

_TITLES = {
    "phase": "",
    "time_fraction": "of the time",
    "watts_per_gpu": "each",
    "gpu_watts": "GPUs, mean",
    "server_watts": "with their servers",
    "facility_watts": "with cooling and losses",
    "design_watts": "servers at design power",
    "kwh_per_month": "energy",
    "kwh_per_job": "energy",
    "joules_per_output_token": "an output token, its prompt included",
    "kwh_per_million_output_tokens": "a million output tokens, their prompts included",
    "kwh_per_million_tokens": "a million tokens, input and output",
    "electricity_usd_per_month": "electricity",
    "electricity_usd_per_job": "electricity",
    "kg_co2_per_month": "carbon dioxide",
    "kg_co2_per_job": "carbon dioxide",
    "rack_watts": "a full rack at design power",
}
_WATTS = ("gpu_watts", "server_watts", "facility_watts", "design_watts")
_PER_TOKEN = ("joules_per_output_token", "kwh_per_million_output_tokens", "kwh_per_million_tokens")


def energy_result(energy: Energy | None) -> dict[str, Any] | None:
    """Return power by phase, energy by month or job and by token, carbon dioxide and racks."""
    if energy is None:
        return None
    span = "month" if energy.job_hours is None else "job"
    return {
        "phases": [asdict(phase) for phase in energy.phases],
        **{name: getattr(energy, name) for name in _WATTS},
        f"kwh_per_{span}": energy.kwh,
        **{name: getattr(energy, name) for name in _PER_TOKEN},
        f"electricity_usd_per_{span}": energy.usd,
        f"kg_co2_per_{span}": energy.kg_co2,
        "racks": energy.racks,
        "rack_watts": energy.rack_watts,
        "gpus_per_rack": energy.gpus_per_rack,
    }


def energy_tables(energy: Energy | None) -> tuple[Table, ...]:
    """Return what the devices do for how much of the time, and the energy of the fleet."""
    if energy is None:
        return ()
    result = energy_result(energy) or {}
    shown = tuple(name for name, value in result.items() if name != "phases" and value is not None)
    return (
        Table(
            [asdict(phase) for phase in energy.phases],
            title="Power of a GPU by phase, spares included",
            titles=_TITLES,
        ),
        Table([result], title="Energy", shown=shown, titles=_TITLES, upright=True),
    )
