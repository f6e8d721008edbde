"""Does a plan still hold: its layout and its replicas under the scenario, the prices and the budget of today."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from math import inf
from typing import Any

from capplan.errors import Reason
from capplan.fleet.order import OWN
from capplan.fleet.plan import Plan
from capplan.fleet.pools.order import PoolSize, pools_order
from capplan.fleet.pools.search import pools_standing
from capplan.fleet.price import usd_per_month
from capplan.fleet.search.candidates import DEGREES
from capplan.fleet.search.one_layout import adequacy, trial_of
from capplan.hardware.device import Device
from capplan.questions.fleet import AskedFleet, parts_of, replicas_by_group, terms_of
from capplan.questions.money.budget import mix_usd_per_month
from capplan.questions.plans.plan_file import chosen_in
from capplan.readers.catalogue.model import model_source
from capplan.readers.plan_file import PlanFile
from capplan.readers.plan_record import StatedGroup, StatedPlan
from capplan.scenario.traffic import rate_line

_SURE_ENOUGH = 1e-9
"""Rounding of a probability."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a plan has to keep."""

    name: str
    limit: Any
    """Allowed value in base units, or the least that is asked for; None where the reason is in words."""
    value: Any
    """Value of the plan as it stands today."""
    holds: bool


@dataclass(frozen=True, slots=True)
class PlanCheck:
    """What a plan has to keep, and whether it does."""

    checks: tuple[Check, ...]

    @property
    def failures(self) -> tuple[Check, ...]:
        """Return the checks that do not hold."""
        return tuple(check for check in self.checks if not check.holds)


def check_plan(asked: AskedFleet, file: PlanFile, today: date, max_price_age_days: int) -> PlanCheck:
    """Return whether a plan holds for a scenario.

    Parameters
    ----------
    asked : the question of the scenario as it is now, with prices of today
    file : the plan
    today : that the dates of prices are compared with
    max_price_age_days : [d]
        A price that is older no longer holds.

    Returns
    -------
    PlanCheck; latencies, certainty and capacity are left out where the scenario no longer allows the plan
    """
    chosen = file.answer.chosen
    if chosen.has_pools and asked.scenario.fleet.pools is None:
        return PlanCheck((Check("fleet.disaggregation", "off", "separate pools", holds=False),))
    allowed = tuple(_allowed(asked, file, chosen))
    measured: tuple[Check, ...] = ()
    if all(check.holds for check in allowed):
        plan = chosen_in(file, asked)
        if plan.is_mix:
            measured = tuple(_groups_measured(asked, plan))
        else:
            measured = tuple(_pools_measured(asked, plan) if plan.has_pools else _measured(asked, plan))
    return PlanCheck((*allowed, *measured, *_money(asked, file, chosen, today, max_price_age_days)))


def _allowed(asked: AskedFleet, file: PlanFile, chosen: StatedPlan) -> Iterator[Check]:
    """Yield what the scenario has to allow for the plan to be one of its candidates."""
    scenario, question, limits = asked.scenario, asked.question, asked.scenario.fleet
    model = model_source(scenario.model, scenario.file.revision).title
    yield _one_of("model", (model,), file.inputs.model.source)
    yield _one_of("engine", (scenario.engine,), file.inputs.engine.name)
    yield _one_of("weight_dtype", tuple(question.networks), chosen.weight_dtype)
    yield _one_of("kv_dtype", tuple(question.kv_formats), chosen.kv_dtype)
    if limits.max_devices is not None:
        yield _at_most("fleet.max_gpus", limits.max_devices, chosen.gpus)
    pools = limits.pools
    devices = {"serve": question.devices}
    if pools is not None:
        devices |= {"prefill": tuple(pools.prefill_devices), "decode": tuple(pools.decode_devices)}
    for group in chosen.groups:
        key = "fleet.hardware" if group.role == "serve" else f"fleet.{group.role}_hardware"
        for check in _group_allowed(asked, group, key, devices[group.role]):
            name = group.role if chosen.has_pools else group.hardware if len(chosen.groups) > 1 else ""
            yield replace(check, name=f"{name}: {check.name}") if name else check


def _group_allowed(
    asked: AskedFleet, row: StatedGroup, key: str, devices: Sequence[Device]
) -> Iterator[Check]:
    limits = asked.scenario.fleet
    yield _one_of(key, tuple(item.name for item in devices), row.hardware)
    for name in DEGREES:
        degrees = getattr(limits, name)
        if degrees is not None:
            yield _one_of(f"fleet.{name}", degrees, getattr(row, name))
    if limits.max_devices_per_replica is not None:
        yield _at_most("fleet.max_gpus_per_replica", limits.max_devices_per_replica, row.gpus_per_replica)
    hardware = next((item for item in devices if item.name == row.hardware), None)
    if hardware is not None:
        price, spares = asked.prices.get(hardware.name), row.spare_replicas
        needed = limits.survive.least_spares(row.busy_replicas)
        if price:
            needed = price.spares(
                row.gpus_per_replica, hardware.node_devices, row.busy_replicas, limits.survive
            )
        yield Check(limits.survive.key, needed, spares, spares >= needed)


def _pools_measured(asked: AskedFleet, plan: Plan) -> Iterator[Check]:
    """Yield what a simulation of both pools at the peak of today says: targets, certainty, capacity."""
    stands = pools_standing(asked.question, plan, terms_of(asked))
    if isinstance(stands, Reason):
        yield Check(f"layout: {stands.words}", None, plan.hardware, holds=False)
        return
    now = stands.plan
    for target in asked.question.slo.targets:
        yield _at_most(f"slo.{target.key}", target.stated_s, now.value(target))
    if asked.question.slo.targets:
        yield _sure(asked, now.slo_met_probability)
    for group in now.groups:
        enough = group.role not in stands.lacking
        needed = group.busy_replicas if enough else None
        yield Check(f"{group.role}: capacity", group.busy_replicas, needed, enough)


def _groups_measured(asked: AskedFleet, plan: Plan) -> Iterator[Check]:
    """Yield what simulations of the groups of a mix say, each with the requests that the router sends to it."""
    for name, part in zip(plan.group_names, parts_of(asked, plan), strict=True):
        for check in _measured(*part):
            yield replace(check, name=f"{name}: {check.name}")


def _sure(asked: AskedFleet, probability: float) -> Check:
    least = asked.scenario.slo.confidence
    return Check("slo.confidence", least, probability, probability >= least - _SURE_ENOUGH)


def _one_of(name: str, allowed: tuple[Any, ...], value: Any) -> Check:
    return Check(name, allowed[0] if len(allowed) == 1 else list(allowed), value, value in allowed)


def _at_most(name: str, limit: float, value: float) -> Check:
    return Check(name, limit, value, value <= limit)


def _measured(asked: AskedFleet, plan: Plan) -> Iterator[Check]:
    """Yield what a simulation of one replica at the peak of today says: targets, certainty, capacity."""
    terms, group = terms_of(asked), plan.single
    layout, busy = group.layout, group.busy_replicas
    trial = trial_of(asked.question, layout, group.weight_dtype, terms)
    if isinstance(trial, Reason):
        yield Check(f"layout: {trial.words}", None, layout.in_words(group.weight_dtype), holds=False)
        return
    now = adequacy(trial, busy, terms.headroom_fraction)
    for target, value in now.values_s.items():
        yield _at_most(f"slo.{target.key}", target.stated_s, value)
    if now.values_s:
        yield _sure(asked, now.probability)
    needed = None if now.needed == inf else int(now.needed)
    yield Check("capacity", busy, needed, needed is not None and needed <= busy)


def _money(
    asked: AskedFleet, file: PlanFile, chosen: StatedPlan, today: date, max_price_age_days: int
) -> Iterator[Check]:
    """Yield whether the price of the plan is still one, and its cost within the budget."""
    budget = asked.scenario.budget_usd_per_month
    rows = chosen.groups
    for name, row in {row.hardware: row for row in rows}.items():
        price = asked.prices.get(name)
        if price is None and row.usd_per_gpu_hour is not None:
            yield Check(f"prices.{name}", row.usd_per_gpu_hour, None, holds=False)
    hourly = _order_usd_per_hour(asked, chosen)
    yield from _machines(asked, chosen)
    if hourly is not None and budget is not None:
        usd = float(usd_per_month(hourly))
        if asked.scenario.file.commitments is not None and chosen.weight_dtype in asked.question.networks:
            plan = chosen_in(file, asked)
            line, needs = rate_line(asked.scenario, plan.responses_s), replicas_by_group(asked, plan)
            usd = mix_usd_per_month(asked.scenario, plan, line, needs) or usd
        yield _at_most("budget.usd_per_month", budget, usd)
    for name in dict.fromkeys(row.hardware for row in rows):
        paid = next((row for row in file.inputs.prices if row.hardware == name), None)
        for day in (day for day in (paid.dates if paid else ()) if day):
            age = (today - latest_day(day)).days
            yield Check(f"price date of {name}", f"{max_price_age_days} days", day, age <= max_price_age_days)


def _order_usd_per_hour(asked: AskedFleet, chosen: StatedPlan) -> float | None:
    """Return what the replicas of a plan cost at the prices of today; None without a price."""
    nodes = {device.name: device.node_devices for device in asked.scenario.fleet.devices}
    survive, sizes = asked.scenario.fleet.survive, []
    for row in chosen.groups:
        price = asked.prices.get(row.hardware)
        if price is None:
            return None
        sizes.append(PoolSize(price, row.gpus_per_replica, nodes[row.hardware]))
    busy = [row.busy_replicas for row in chosen.groups]
    if chosen.transfer is not None:
        return pools_order(sizes, busy, survive).usd_per_hour
    return sum(
        size.price.order_usd_per_hour(size.replica_gpus, size.node_gpus, count, survive=survive)
        for size, count in zip(sizes, busy, strict=True)
    )


def _machines(asked: AskedFleet, chosen: StatedPlan) -> Iterator[Check]:
    """Yield whether the machines of an order are still sold, by the catalogue or the scenario's own prices."""
    sold = {item.sku for price in asked.prices.values() if price for item in price.machines}
    for line in chosen.order.machines if chosen.order else ():
        if line.sku is not None and line.provider != OWN:
            name = f"machine {line.sku} at {line.provider}"
            yield Check(name, "offered", "offered" if line.sku in sold else None, line.sku in sold)


def latest_day(written: str) -> date:
    """Return the last day that a date of any precision may mean.

    Parameters
    ----------
    written : YYYY, YYYY-MM or YYYY-MM-DD

    Examples
    --------
    >>> str(latest_day("2025")), str(latest_day("2024-02")), str(latest_day("2025-03-09"))
    ('2025-12-31', '2024-02-29', '2025-03-09')
    """
    year, month, day = (*(int(part) for part in written.split("-")), 0, 0)[:3]
    if day:
        return date(year, month, day)
    after = date(year + 1, 1, 1) if month in (0, 12) else date(year, month + 1, 1)
    return date.fromordinal(after.toordinal() - 1)
