"""Energy of a fleet: watts by phase and load, joules and kilowatt-hours per token, carbon dioxide, racks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Any

import numpy as np

from capplan.money.price import HOURS_PER_MONTH
from capplan.numbers import Array, Number

IDLE_FRACTION = 0.12
"""Power of a device that waits over its thermal design power (an assumption)."""
DECODE_FRACTION = 0.6
"""Power of a device in decode, which waits for memory, over its thermal design power (an assumption)."""
PREFILL_FRACTION = 0.95
"""Power of a device in prefill, which computes, over its thermal design power (an assumption)."""
HOST_FRACTION = 0.35
"""Power of processors, memory, fans and network of the servers over the thermal design power of their devices (an assumption)."""
J_PER_KWH = 3.6e6


def occupied_fraction(concurrency: Number) -> Number:
    """Return the share of the time in which a replica has at least one request.

        b = 1 - e^-N

    Parameters
    ----------
    concurrency : [requests]
        N, mean in the replica.

    Returns
    -------
    [-]
        b, if requests come by themselves and none waits for another.

    Examples
    --------
    >>> round(float(occupied_fraction(1.0)), 4)
    0.6321

    References
    ----------
    Kleinrock 1975, "Queueing Systems", volume 1, section 3.4; Takacs 1962, "Introduction to the Theory of Queues", chapter 3.
    """
    return np.asarray(-np.expm1(-np.asarray(concurrency)))


def phase_watts(
    prefill_share: Number,
    decode_share: Number,
    idle_watts: Number,
    decode_watts: Number,
    prefill_watts: Number,
) -> Number:
    """Return the mean power of a device that prefills, decodes and waits for parts of the time.

        w = p w_p + d w_d + (1 - p - d) w_i

    Parameters
    ----------
    prefill_share : [-]
        p, of the time.
    decode_share : [-]
        d, of the time.
    idle_watts : [W]
        w_i.
    decode_watts : [W]
        w_d.
    prefill_watts : [W]
        w_p.

    Returns
    -------
    [W]
        w.

    Examples
    --------
    >>> phase_watts(0.25, 0.5, 100.0, 400.0, 600.0)
    375.0

    References
    ----------
    Patel et al. 2024, "Characterizing Power Management Opportunities for LLMs in the Cloud", doi:10.1145/3620666.3651329.
    """
    return (
        prefill_share * prefill_watts
        + decode_share * decode_watts
        + (1.0 - prefill_share - decode_share) * idle_watts
    )


def kwh_per_million_tokens(watts: Number, tokens_per_s: Number) -> Number:
    """Return the energy of a million tokens.

        e = 10^6 w / (r 3.6 10^6)

    Parameters
    ----------
    watts : [W]
        w, of the whole fleet.
    tokens_per_s : [token/s]
        r, above zero.

    Returns
    -------
    [kWh/10^6 token]
        e.

    Examples
    --------
    3.6 kW at a thousand tokens a second:

    >>> kwh_per_million_tokens(3600.0, 1000.0)
    1.0

    References
    ----------
    A unit conversion; the kilowatt-hour is 3.6 MJ, SI Brochure, 9th edition, table 8, doi:10.59161/AUEZ1291.
    """
    return 1e6 * watts / (tokens_per_s * J_PER_KWH)


@dataclass(frozen=True, slots=True)
class EnergyTerms:
    """Power of a device by phase, and what is around it."""

    idle_watts: float
    decode_watts: float
    prefill_watts: float
    host_watts: float
    """Power of the server for each device, at all times."""
    facility_ratio: float = 1.0
    kg_co2_per_kwh: float | None = None
    usd_per_kwh: float | None = None
    """None: electricity is part of the price."""
    rack_limit_watts: float | None = None


@dataclass(frozen=True, slots=True)
class Servers:
    """Servers of one kind, as they are connected to power and put into racks."""

    sku: str
    """Machine of the order; empty if GPUs are bought by the piece."""
    device: str
    count: int
    gpus: int
    """GPUs of one server."""
    watts: float
    """Power of one server at the wall, at most."""
    per_rack: int | None
    """Servers that the power of one rack feeds; None: no limit is stated."""

    @property
    def racks(self) -> int | None:
        """Racks that the servers fill; None without a limit, and if a rack does not feed one of them."""
        return ceil(self.count / self.per_rack) if self.per_rack else None


def servers_of(
    sku: str, device: str, count: int, gpus: int, watts: float, limit_watts: float | None
) -> Servers:
    """Return servers of one kind in racks that each feed as many whole servers as their limit allows.

        m = floor(L / W)

    Parameters
    ----------
    sku, device : names
    count : servers
    gpus : [-]
        of one server
    watts : [W]
        W, of one server at the wall, at most
    limit_watts : [W]
        L, of a rack; None: not stated

    Returns
    -------
    Servers; m is the number that one rack feeds

    Examples
    --------
    Ten servers of 10 kW, in racks of 40 kW:

    >>> servers_of("", "h100-sxm", 10, 8, 10_000.0, 40_000.0).racks
    3
    """
    per_rack = None if limit_watts is None else floor(limit_watts / watts + 1e-9)
    return Servers(sku, device, count, gpus, watts, per_rack)


@dataclass(frozen=True, slots=True)
class Energy:
    """The energy of a fleet over a month, or until one job is done."""

    phases: tuple[Mapping[str, Any], ...]
    """Rows of what the devices do, for how much of the time, and at what power."""
    gpu_watts: float
    """Mean power of all devices."""
    server_watts: float
    """Mean power of all devices with their servers."""
    facility_watts: float
    """Mean power of all servers with cooling and losses."""
    design_watts: float
    """Largest power of all servers at the wall: what their catalogue entry states, else at the thermal design power of their devices."""
    gpus: int
    """GPUs of the order: spares, and those that no replica uses."""
    output_tokens_per_s: float
    input_tokens_per_s: float
    terms: EnergyTerms
    servers: tuple[Servers, ...] = ()
    """Servers of the order, by kind and by group of replicas."""
    job_hours: float | None = None
    """Duration of one batch job; None: traffic without an end."""

    @property
    def fullest(self) -> Servers:
        """Return the server type whose full rack draws the most; a type of which one server exceeds the limit of a rack comes first."""
        return max(self.servers, key=lambda one: (one.per_rack == 0, (one.per_rack or 1) * one.watts))

    @property
    def racks(self) -> int | None:
        """Racks of all servers, each kind and each group in racks of its own; None if that is not known."""
        racks = [one.racks for one in self.servers]
        return None if None in racks else sum(filter(None, racks))

    @property
    def rack_watts(self) -> float | None:
        """Power of a full rack, or of one server that is too much for a rack [W]; None without a limit."""
        per_rack = self.fullest.per_rack
        return None if per_rack is None else (per_rack or 1) * self.fullest.watts

    @property
    def gpus_per_rack(self) -> int | None:
        """GPUs in such a rack."""
        per_rack = self.fullest.per_rack
        return None if per_rack is None else per_rack * self.fullest.gpus

    @property
    def kwh(self) -> float:
        """Return the energy of a month or of one job, with cooling and losses.

            E = w n / 1000

        Returns
        -------
        [kWh]
            E, of w watts for n hours
        """
        hours = HOURS_PER_MONTH if self.job_hours is None else self.job_hours
        return self.facility_watts * hours / 1000.0

    @property
    def joules_per_output_token(self) -> float | None:
        """Return the energy of an output token, that of the prompts included; None where none is generated.

            j = w / r

        Returns
        -------
        [J/token]
            j, of w watts at r output tokens a second
        """
        return self.facility_watts / self.output_tokens_per_s if self.output_tokens_per_s else None

    @property
    def kwh_per_million_output_tokens(self) -> float | None:
        """Return the energy of a million output tokens, that of the prompts included; None where none is generated."""
        if not self.output_tokens_per_s:
            return None
        return float(kwh_per_million_tokens(self.facility_watts, self.output_tokens_per_s))

    @property
    def kwh_per_million_tokens(self) -> float:
        """Return the energy of a million tokens, input and output together."""
        return float(
            kwh_per_million_tokens(self.facility_watts, self.output_tokens_per_s + self.input_tokens_per_s)
        )

    @property
    def usd(self) -> float | None:
        """Return what its electricity costs, where it is paid apart.

            c = E p

        Returns
        -------
        [$]
            c, of E kilowatt-hours at the price p
        """
        price = self.terms.usd_per_kwh
        return None if price is None else self.kwh * price

    @property
    def kg_co2(self) -> float | None:
        """Return the carbon dioxide of its electricity, at the stated grid.

            m = E k

        Returns
        -------
        [kg]
            m, of E kilowatt-hours with k kg each
        """
        grid = self.terms.kg_co2_per_kwh
        return None if grid is None else self.kwh * grid


def energy_of(
    prefill_share: Array, occupied: Array, busy_gpus: int, idle_gpus: int, design_watts: float, terms: EnergyTerms,
    tokens_per_s: tuple[float, float], servers: tuple[Servers, ...],
) -> Energy:  # fmt: skip
    """Return the energy of a fleet whose replicas are occupied for parts of every hour.

    Parameters
    ----------
    prefill_share : [-]
        of the time, by hour of the day
    occupied : [-]
        share of the time in which a replica has a request, by hour; what of it is not prefill is decode
    busy_gpus, idle_gpus : [-]
        devices that serve, and those that wait for a failure or that no replica uses
    design_watts : [W]
        of all servers at the wall, at most
    terms : power by phase, server, building, rack
    tokens_per_s : [token/s]
        input and output, mean over the month
    servers : that the devices are in
    """
    prefill = np.minimum(prefill_share, occupied)
    share = float(np.mean(prefill)), float(np.mean(occupied - prefill))
    watts = float(phase_watts(*share, terms.idle_watts, terms.decode_watts, terms.prefill_watts))
    gpus = busy_gpus + idle_gpus
    gpu_watts = watts * busy_gpus + terms.idle_watts * idle_gpus
    server_watts = gpu_watts + terms.host_watts * gpus
    fraction = busy_gpus / gpus
    phases = tuple(
        {"phase": phase, "time_fraction": part, "watts_per_gpu": watts_each}
        for phase, part, watts_each in (
            ("prefill", share[0] * fraction, terms.prefill_watts),
            ("decode", share[1] * fraction, terms.decode_watts),
            ("idle", 1.0 - sum(share) * fraction, terms.idle_watts),
        )
    )
    return Energy(
        phases, gpu_watts, server_watts, server_watts * terms.facility_ratio, design_watts, gpus, tokens_per_s[1], tokens_per_s[0],
        terms, servers,
    )  # fmt: skip


def total_energy(parts: Sequence[Energy], names: Sequence[str]) -> Energy:
    """Return the energy of several groups of replicas, each with requests or a phase and with servers of its own."""
    gpus = sum(part.gpus for part in parts)
    return replace(
        parts[-1],
        phases=tuple(
            {
                **row,
                "phase": f"{name}: {row['phase']}",
                "time_fraction": row["time_fraction"] * part.gpus / gpus,
            }
            for name, part in zip(names, parts, strict=True)
            for row in part.phases
        ),
        gpu_watts=sum(part.gpu_watts for part in parts),
        server_watts=sum(part.server_watts for part in parts),
        facility_watts=sum(part.facility_watts for part in parts),
        design_watts=sum(part.design_watts for part in parts),
        gpus=gpus,
        output_tokens_per_s=sum(part.output_tokens_per_s for part in parts),
        input_tokens_per_s=sum(part.input_tokens_per_s for part in parts),
        servers=tuple(one for part in parts for one in part.servers),
    )
