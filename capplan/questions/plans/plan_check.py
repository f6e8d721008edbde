"""A plan against today: whether it holds, what changed, and which prices are old, retired or contradicted."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from capplan import __version__
from capplan.assumption import Assumption
from capplan.errors import Reason
from capplan.fleet.plan import Plan
from capplan.fleet.pools.order import PoolSize, pools_order
from capplan.fleet.pools.search import pools_standing
from capplan.fleet.search.candidates import DEGREES
from capplan.fleet.search.one_layout import Standing, standing_of, trial_of
from capplan.hardware.device import Device
from capplan.keys import first_day
from capplan.money.order import OWN
from capplan.money.price import (
    OLD_DAYS,
    ChosenPrice,
    PriceRecord,
    Prices,
    accepted_offers,
    choose_price,
    usd_per_month,
)
from capplan.money.token_price import TokenPrice
from capplan.questions.fleet import AskedFleet, parts_of, replicas_by_group, terms_of
from capplan.questions.mix import together_of
from capplan.questions.money.budget import mix_usd_per_month
from capplan.questions.plans.plan_file import chosen_in
from capplan.readers.catalogue.hardware import device_names
from capplan.readers.catalogue.models import model_source
from capplan.readers.catalogue.prices import price_records
from capplan.readers.catalogue.token_prices import TokenOffer, age_days, token_offers
from capplan.readers.plan_file import PlanFile, StatedGroup, StatedPlan, is_plan_file, read_plan_file
from capplan.readers.yaml_file import KeyPath, key_path
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


def check_plan(asked: AskedFleet, file: PlanFile, today: date, max_price_age_days: int) -> tuple[Check, ...]:
    """Return what a plan has to keep for a scenario, and whether it does.

    Parameters
    ----------
    asked : the question of the scenario as it is now, with prices of today
    file : the plan
    today : that the dates of prices are compared with
    max_price_age_days : [d]
        A price that is older no longer holds.

    Returns
    -------
    the checks; latencies, certainty and capacity are left out where the scenario no longer allows the plan
    """
    chosen = file.answer.chosen
    if chosen.has_pools and asked.scenario.fleet.pools is None:
        return (Check("fleet.disaggregation", "off", "separate pools", holds=False),)
    allowed = tuple(_allowed(asked, file, chosen))
    able = all(check.holds for check in allowed)
    measured = _measured(asked, chosen_in(file, asked)) if able else ()
    return (*allowed, *measured, *_money(asked, file, chosen, today, max_price_age_days))


def _allowed(asked: AskedFleet, file: PlanFile, chosen: StatedPlan) -> Iterator[Check]:
    """Yield what the scenario has to allow for the plan to be one of its candidates."""
    scenario, question = asked.scenario, asked.question
    model = model_source(scenario.model, scenario.file.revision).title
    yield _one_of("model", (model,), file.inputs.model.source)
    yield _one_of("engine", (scenario.engine,), file.inputs.engine.name)
    yield _one_of("weight_dtype", tuple(question.networks), chosen.weight_dtype)
    yield _one_of("kv_dtype", tuple(question.kv_formats), chosen.kv_dtype)
    if scenario.file.fleet.max_gpus is not None:
        yield _at_most("fleet.max_gpus", scenario.file.fleet.max_gpus, chosen.gpus)
    pools = scenario.fleet.pools
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
    allowed = asked.scenario.file.fleet
    yield _one_of(key, tuple(item.name for item in devices), row.hardware)
    for name in DEGREES:
        degrees = allowed.degrees(name)
        if degrees is not None:
            yield _one_of(f"fleet.{name}", degrees, getattr(row, name))
    most = asked.scenario.fleet.ranges.max_devices_per_replica
    if most is not None:
        yield _at_most("fleet.max_gpus_per_replica", most, row.gpus_per_replica)
    hardware = next((item for item in devices if item.name == row.hardware), None)
    if hardware is not None:
        price, spares = asked.prices.get(hardware.name), row.spare_replicas
        survive = asked.scenario.fleet.survive
        needed = survive.least_spares(row.busy_replicas)
        if price:
            needed = price.spares(row.gpus_per_replica, hardware.node_devices, row.busy_replicas, survive)
        yield Check(survive.key, needed, spares, spares >= needed)


def _standing(asked: AskedFleet, plan: Plan) -> Standing | Reason:
    """Return how a plan stands under the traffic of today, or the reason where one of its layouts no longer serves the model."""
    terms = terms_of(asked)
    if plan.has_pools:
        return pools_standing(asked.question, plan, terms)
    if plan.is_mix:
        together = together_of(parts_of(asked, plan), asked.question.demand.classes)
        least, headroom = asked.scenario.slo.confidence, terms.headroom_fraction
        return together if isinstance(together, Reason) else together.standing(least, headroom)
    trial, busy = trial_of(asked.question, plan.single.layout, terms), plan.single.busy_replicas
    return trial if isinstance(trial, Reason) else standing_of(trial, busy, terms.headroom_fraction)


def _measured(asked: AskedFleet, plan: Plan) -> Iterator[Check]:
    """Yield what a simulation at the peak of today says: targets, certainty, capacity of each group."""
    stands = _standing(asked, plan)
    if isinstance(stands, Reason):
        what = plan.hardware if len(plan.groups) > 1 else plan.single.layout.in_words()
        yield Check(f"layout: {stands.words}", None, what, holds=False)
        return
    for target, value in stands.values_s.items():
        yield _at_most(f"slo.{target.key}", target.stated_s, value)
    if stands.values_s:
        least, sure = asked.scenario.slo.confidence, stands.probability
        yield Check("slo.confidence", least, sure, sure >= least - _SURE_ENOUGH)
    for name, group, needed in zip(plan.group_names, plan.groups, stands.needed, strict=True):
        enough = needed is not None and needed <= group.busy_replicas
        yield Check(f"{name}: capacity" if name else "capacity", group.busy_replicas, needed, enough)


def _one_of(name: str, allowed: tuple[Any, ...], value: Any) -> Check:
    return Check(name, allowed[0] if len(allowed) == 1 else list(allowed), value, value in allowed)


def _at_most(name: str, limit: float, value: float) -> Check:
    return Check(name, limit, value, value <= limit)


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
        return pools_order(sizes, busy, survive)[0]
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


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: what was asked, and the plan that answers it."""

    path: Path
    version: str
    """Version of capplan that found the plan."""
    inputs: Mapping[str, Any]
    """As a plan file holds them."""
    record: Mapping[str, Any]
    """The keys of the scenario in base units."""
    chosen: Mapping[str, Any] | None
    """The recommended plan, with the keys of `capplan fleet`; None where no plan meets the targets."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...] = ()


def both_sides(
    before: Path, after: Path, progress: Callable[[int, int], None] | None = None, *, offline: bool = False
) -> tuple[Side, Side]:
    """Return what is compared: plans from plan files, and for scenarios those that `fleet` recommends.

    Parameters
    ----------
    before, after : each a scenario YAML or a plan file
    progress : of a search
    offline : never open a connection

    Returns
    -------
    both sides; a file that is given twice is searched once
    """
    first = _side(before, progress, offline=offline)
    same = before.resolve() == after.resolve()
    return first, first if same else _side(after, progress, offline=offline)


def _side(path: Path, progress: Callable[[int, int], None] | None, *, offline: bool) -> Side:
    if is_plan_file(path):
        return side_of_file(read_plan_file(path))
    from capplan.questions.fleet import asked_fleet
    from capplan.questions.fleet_answer import fleet_for
    from capplan.scenario.scenario import read_scenario

    asked = asked_fleet(read_scenario(path), offline=offline)
    return side_of(path, asked, fleet_for(asked, progress).chosen)


def side_of_file(file: PlanFile) -> Side:
    """Return the side of a plan file."""
    record = _record(file.inputs.content, file.scenario)
    return Side(
        file.path, file.version, file.inputs.model_dump(), record, file.result["chosen"], file.assumptions
    )


def side_of(path: Path, asked: "AskedFleet", plan: "Plan | None") -> Side:
    """Return the side of a scenario and of the plan that answers it."""
    from capplan.questions.plans.plan_row import plan_inputs, plan_row

    return Side(
        path,
        __version__,
        plan_inputs(asked, plan),
        _record(asked.scenario.written, path),
        plan_row(plan) if plan else None,
        asked.assumptions,
        asked.warnings,
    )


def _record(written: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    from capplan.readers.yaml_file import Document
    from capplan.scenario.reading import scenario_record

    record, _ = scenario_record(Document(str(path), dict(written), {}), path.resolve().parent)
    return record.model_dump(exclude_unset=True)


def changes(before: Side, after: Side) -> tuple[dict[str, Any], ...]:
    """Return the inputs that differ: keys of the scenario as written, then what was looked up for them.

    A key that says the same in another unit, such as 0.8 s for 800 ms, has not changed.
    """
    was, now = (dict(_leaves(side.inputs["content"])) for side in (before, after))
    written = [
        path
        for path in dict.fromkeys((*was, *now))
        if was.get(path) != now.get(path) and not _same(_at(before.record, path), _at(after.record, path))
    ]
    traced = before.inputs["files"] != after.inputs["files"]
    priced = [{row["hardware"] for row in side.inputs["prices"]} for side in (before, after)]
    devices = set.intersection(*priced)
    then, today = (dict(_leaves(_looked_up(side, devices, traced=traced))) for side in (before, after))
    looked_up = [path for path in dict.fromkeys((*then, *today)) if then.get(path) != today.get(path)]
    return tuple(
        {"path": key_path(path), "before": old.get(path), "after": new.get(path)}
        for paths, old, new in ((written, was, now), (looked_up, then, today))
        for path in paths
    )


def plan_changes(before: Side, after: Side) -> tuple[dict[str, Any], ...]:
    """Return every figure that differs between the two plans, by its path in JSON below `plan`; with one plan only, all figures of that one."""
    was, now = (dict(_leaves(side.chosen, ("plan",))) if side.chosen else {} for side in (before, after))
    return tuple(
        {"path": key_path(path), "before": was.get(path), "after": now.get(path)}
        for path in dict.fromkeys((*was, *now))
        if was.get(path) != now.get(path)
    )


def _looked_up(side: Side, devices: set[str], *, traced: bool) -> dict[str, Any]:
    """Return what is no key of the scenario: versions, files and the traffic in them, prices, what engines are started with."""
    inputs = side.inputs
    return {
        "capplan": side.version,
        "inputs": {
            "model": inputs["model"]["source"],
            "engine_version": inputs["engine"]["version"],
            "traffic": {
                key: inputs[key] for key in ("request_rate", "input_tokens", "output_tokens") if traced
            },
            "files": {row["key"]: row["sha256"] for row in inputs["files"]},
            "prices": {
                row["hardware"]: {"usd_per_gpu_hour": row["usd_per_gpu_hour"], "dates": row["dates"]}
                for row in inputs["prices"]
                if row["hardware"] in devices
            },
            "launch": inputs["launch"],
        },
    }


def _leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the values of nested mappings, and of lists of mappings, by key path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for at, inner in enumerate(value):
            yield from _leaves(inner, (*path, at))
    else:
        yield path, value


_ABSENT = object()


def _at(record: Any, path: KeyPath) -> Any:
    """Return the value of a record at a path, or at the part of it that the record resolves to one value."""
    value = record
    for part in path:
        if isinstance(value, Mapping):
            value = value.get(str(part), _ABSENT)
        elif isinstance(value, list) and isinstance(part, int):
            value = value[part] if part < len(value) else _ABSENT
        else:
            break
    return value


def _same(before: Any, after: Any) -> bool:
    """Return whether two values of records are equal, whatever they are made of."""
    from capplan.fleet.search.search_cache import content_key

    if before is _ABSENT or after is _ABSENT:
        return before is after
    return content_key(before) == content_key(after)


FAR_APART = 3.0
"""Offers of one device that differ by more than this are named."""
SAME_WITHIN = 0.01
"""Prices of two lists that differ by less are the same."""

Row = Mapping[str, Any]


def checked_devices(today: date) -> Iterator[Row]:
    """Yield each device that is offered on demand, with the price that plans take and what is to be known of it."""
    records = price_records()
    for name in device_names():
        chosen = choose_price(records, name, Prices())
        if chosen is not None:
            yield {
                "hardware": name,
                "usd_per_gpu_hour": chosen.usd_per_hour,
                "offers": chosen.offers,
                "newest": chosen.newest_day,
                "remark": "; ".join(_device_remarks(chosen, accepted_offers(records, name, Prices()), today))
                or None,
            }


def _device_remarks(price: ChosenPrice, offers: Sequence[PriceRecord], today: date) -> Iterator[str]:
    """Yield what is to be known of a price and of the offers that it is the median of, each with its own age."""
    ages = [(today - first_day(offer.date)).days for offer in offers if offer.date]
    old = sum(age > OLD_DAYS for age in ages)
    if not ages:
        yield "no offer has a date"
    elif old == len(ages):
        yield f"old: the newest offer is {min(ages)} days old"
    elif old:
        yield f"{old} of {len(offers)} offers are over {OLD_DAYS} days old"
    for offer in price.records:
        if offer.date and (age := (today - first_day(offer.date)).days) > OLD_DAYS and old < len(ages):
            yield f"the price is of {offer.date}, {age} days old"
    if price.estimated:
        yield "an estimate: nobody lists a price"
    elif price.offers == 1:
        yield "one offer"
    low, high = price.low_usd_per_hour, price.high_usd_per_hour
    if high > FAR_APART * low:
        assert price.lowest is not None
        assert price.highest is not None
        yield f"far apart: {price.lowest.provider} {low:.2f}, {price.highest.provider} {high:.2f} $/h"


def checked_apis(today: date, newer: Sequence[TokenPrice] | None) -> Iterator[Row]:
    """Yield the hosted APIs of which something is to be known: their age, their end, what another list states.

    Parameters
    ----------
    today : that prices are judged old by
    newer : another list, whose names decide; None: none is given
    """
    by_name = {price.name.lower(): price for price in newer or ()}
    for offer in token_offers():
        name = f"{offer.provider}/{offer.model}"
        remarks = list(offer_remarks(offer, today))
        if newer is not None:
            remarks += _newer_remarks(offer, by_name.get(name.lower()))
        if remarks:
            yield {"api": name, "date": offer.date, "remark": "; ".join(remarks)}
    known = {f"{offer.provider}/{offer.model}".lower() for offer in token_offers()}
    for price in newer or ():
        if price.name.lower() not in known:
            rates = price.rates
            what = (
                f"new in {price.source}: input ${rates.input:g}, output ${rates.output:g} per million tokens"
            )
            yield {"api": price.name, "date": price.date, "remark": what}


def offer_remarks(offer: TokenOffer, today: date) -> Iterator[str]:
    """Yield what is to be known of a hosted price: its age, its end, what it rests on."""
    if (today - first_day(offer.date)).days > OLD_DAYS:
        yield f"older than {OLD_DAYS} days"
    if offer.retires is not None:
        yield f"{'ended' if first_day(offer.retires) <= today else 'ends'} on {offer.retires}"
    if offer.change is not None:
        yield f"input ${offer.change.input:g} and output ${offer.change.output:g} from {offer.change.on}"
    if offer.disagreement is not None:
        yield f"sources disagree: {offer.disagreement}"
    elif offer.second_source is None:
        yield "one source"


def _newer_remarks(offer: TokenOffer, newer: TokenPrice | None) -> list[str]:
    """Return where another list contradicts a price."""
    if newer is None:
        return []
    pairs = (
        ("input", offer.input, newer.rates.input),
        ("output", offer.output, newer.rates.output),
        ("cache reads", offer.cache_read, newer.rates.cache_read),
    )
    remarks = [
        f"{kind} ${listed:g}, ${other:g} in {newer.source} of {newer.date}"
        for kind, listed, other in pairs
        if listed is not None and other is not None and abs(other - listed) > SAME_WITHIN * listed
    ]
    longest = newer.context_tokens
    if offer.context and longest and abs(longest - offer.context) > SAME_WITHIN * offer.context:
        remarks.append(f"context of {offer.context:,} tokens, {longest:,} in {newer.source} of {newer.date}")
    return remarks


SOON_DAYS = 120
"""A model whose provider ends it within this time is named."""


def life_warnings(prices: Sequence[TokenPrice], time_to_live_s: float | None) -> list[str]:
    """Return a warning for each API that keeps a prefix for less time than is stated, and does not sell more."""
    return [
        f"{price.provider} states that it keeps a prefix for {price.time_to_live_s:g} s, not for {time_to_live_s:g} s, which is taken from you"
        for price in prices
        if price.rates.cache_read is not None
        and price.longer_life is None
        and not price.storage_usd_per_million_tokens_hour
        and time_to_live_s is not None
        and price.time_to_live_s is not None
        and time_to_live_s > price.time_to_live_s
    ]


def change_warnings(prices: Sequence[TokenPrice]) -> list[str]:
    """Return a warning for each API whose provider announced other prices."""
    return [
        f"{price.name} announced other prices from {day}: input ${rates.input:g}, output ${rates.output:g} per million tokens"
        for price in prices
        if price.change is not None
        for day, rates in [price.change]
    ]


def age_warnings(prices: Sequence[TokenPrice], today: date) -> tuple[str, ...]:
    """Return the warnings for prices older than OLD_DAYS or dated in the future, and for models that end soon."""
    old = [price for price in prices if age_days(price, today) > OLD_DAYS]
    early = [price for price in prices if age_days(price, today) < 0]
    warnings = []
    if old:
        named = ", ".join(f"{price.name} ({price.date})" for price in old)
        warnings.append(f"prices older than {OLD_DAYS} days, check them at the provider: {named}")
    warnings += [f"{price.name} is dated {price.date}, which is still to come" for price in early]
    warnings += [
        f"{price.name} {'ended' if first_day(price.retires) <= today else 'ends'} on {price.retires}: its provider retires it"
        for price in prices
        if price.retires is not None and (first_day(price.retires) - today).days <= SOON_DAYS
    ]
    return tuple(warnings)
