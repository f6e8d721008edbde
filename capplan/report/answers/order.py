"""The order of a plan: machines line by line, what of them stays idle, and what the plan uses of those that are there already."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import floor, log10
from typing import Any

from capplan.fleet.answer import FleetAnswer, Mix, NoMix
from capplan.fleet.group import Group
from capplan.fleet.plan import Plan
from capplan.fleet.pools.link import LinkTerms, reach_of
from capplan.money.order import OWN, Machine, OrderLine, machines_per_replica, owned_price_text, racks_of
from capplan.money.price import usd_per_month
from capplan.questions.fleet import AskedFleet
from capplan.questions.plans.plan_row import (
    is_at_one_provider,
    order_row,
    slower_networks,
)
from capplan.report.answer import Table
from capplan.report.answers.fleet_words import by_the_gpu_text, paid_text, uneconomical_text

YOURS = "your own"
_TITLES = {
    "gpus": "GPUs each",
    "count": "machines",
    "usd_per_hour": "one machine",
    "date": "price of",
}


def order_tables(plan: Plan | None) -> list[Table]:
    """Return the machines to order for a plan; none without a price."""
    order = None if plan is None else order_row(plan)
    if order is None:
        return []
    rows: list[dict[str, Any]] = [
        {
            **line,
            "provider": YOURS if line["provider"] == OWN else line["provider"],
            "sku": line["sku"]
            or ("by the GPU" if line["gpus"] == 1 else f"{line['gpus']} x {line['hardware']}"),
            "total_usd_per_hour": line["count"] * line["usd_per_hour"],
        }
        for line in order["machines"]
    ]
    if order["energy_usd_per_hour"]:
        rows.append({"sku": "electricity", "total_usd_per_hour": order["energy_usd_per_hour"]})
    shown = ["sku", "provider", "region", "gpus", "count", "usd_per_hour", "total_usd_per_hour", "date"]
    if not any(row.get("region") for row in rows):
        shown.remove("region")
    owned = order["gpus_owned"]
    title = "Machines of the recommended plan" if owned else "Order: machines for the recommended plan"
    return [Table(rows, title=title, shown=tuple(shown), titles=_TITLES, spare=("date", "region"))]


def order_texts(plan: Plan | None) -> Iterator[str]:
    """Yield the order in one line, what of the machines stays idle, what may fail, and how likely enough replicas are in service."""
    if plan is None:
        return
    yield from ordered_texts([plan])
    yield from _unstated_texts(plan)
    yield from network_texts(plan)
    yield from rack_texts(plan)
    yield from idle_texts(plan)
    yield from _survival_texts(plan)  # fmt: skip


def ordered_texts(plans: Sequence[Plan]) -> tuple[str, ...]:
    """Return the machines of the plans of one service, or of each part of it, in one line; nothing for prices of the scenario."""
    return lines_texts(_lines(plans))


def used_texts(lines: Sequence[OrderLine], *, powered: bool) -> Iterator[str]:
    """Yield the machines that are there already in one line, with what they count as; nothing without any."""
    said = [
        f"{line.count} x {line.machine.name} of your own, {owned_price_text(line.machine.usd_per_hour, powered=powered)}"
        for line in lines
        if line.machine.is_owned
    ]
    if said:
        yield f"use: {'; '.join(said)}"


def used_by_texts(plans: Sequence[Plan]) -> Iterator[str]:
    """Return the machines of plans that are there already."""
    return used_texts(_lines(plans), powered=any(plan.energy_usd_per_hour for plan in plans))


def _lines(plans: Sequence[Plan]) -> list[OrderLine]:
    orders = [plan.order for plan in plans]
    return [line for order in orders if order is not None for line in order.lines]


def lines_texts(lines: Sequence[OrderLine]) -> tuple[str, ...]:
    """Return what of an order is to be bought in one line, each machine with provider, region, price and its day; nothing for prices of the scenario."""
    bought = [line for line in lines if not line.machine.is_owned]
    if not bought or not all(line.machine.source for line in bought):
        return ()
    return (f"order: {_lines_text(bought)}",)


def _lines_text(lines: Sequence[OrderLine]) -> str:
    """Return machines in words: those of one provider, region and day together."""
    sold = groupby(
        lines,
        lambda line: (line.machine.provider, line.machine.region, line.machine.date, line.machine.unstated),
    )
    return "; ".join(_sold_text([*some]) for _, some in sold)


def _lot_text(machine: Machine) -> str:
    return f" (sold {machine.sold_by} at once)" if machine.sold_by > 1 else ""


def _sold_text(lines: Sequence[OrderLine]) -> str:
    machine, several = lines[0].machine, len(lines) > 1
    prices = [f"${line.machine.usd_per_hour:,.2f}" for line in lines]
    what = ", ".join(
        f"{line.count} x {line.machine.name}{_lot_text(line.machine)}{f' ({price})' if several else ''}"
        for line, price in zip(lines, prices, strict=True)
    )
    seller = ", ".join(filter(None, (machine.provider, machine.region)))
    cost = "per hour each" if several else f"{prices[0]} per hour each"
    day = f", {'prices' if several else 'price'} of {machine.date}" if machine.date else ""
    unstated = f" (not stated: {' and '.join(machine.unstated)})" if machine.unstated else ""
    return f"{what} at {seller}, {cost}{day}{unstated}"


def _unstated_texts(plan: Plan) -> Iterator[str]:
    """Yield which GPUs no list sells in a machine, what the price list does not say of the machines, and which pools are far apart."""
    for group in plan.groups:
        if group.is_by_the_gpu and group.price is not None:
            yield (
                f"no list states a machine with {group.layout.devices} x {group.hardware}: the cost is {by_the_gpu_text(group)}; "
                "ask a provider, or state your own machines: prices.file"
            )
        elif group.order is not None:
            machines = [line.machine for line in group.order.lines if line.machine.source]
            unstated = dict.fromkeys(word for machine in machines for word in machine.unstated)
            if unstated:
                verb = "is" if len(unstated) == 1 else "are"
                yield f"to order {group.hardware}, its {' and '.join(unstated)} {verb} missing in the price list of {machines[0].provider}"
    if plan.transfer is not None:
        yield from _near_texts(plan, plan.transfer.terms)


def _near_texts(plan: Plan, link: LinkTerms) -> Iterator[str]:
    """Yield why the pools of an order are not as near each other as their link needs them."""
    sellers = {group.role: _sellers(group) for group in plan.groups}
    if not is_at_one_provider(plan):
        at = " and ".join(f"{role} is priced at {seller}" for role, seller in sellers.items() if seller)
        yield f"{at}, and KV caches go from one to the other: order both at one provider"
    first = plan.groups[0].layout.device
    reach = reach_of(first, link)
    if reach is not None and reach <= first.node_devices and all(sellers.values()):
        yield f"{link.name} joins the GPUs of one server, and in the order each pool has machines of its own: put both pools in one of them, or state a network as fleet.kv_link"


def _sellers(group: Group) -> str:
    lines = group.order.lines if group.order is not None else ()
    return " and ".join(dict.fromkeys(line.machine.provider for line in lines if line.machine.source))


def failure_text(plan: Plan) -> str:
    """Return for how much of the time enough replicas for the peak are in service, and what may fail at the peak."""
    survive, found = plan.groups[0].survive, plan.availability
    lost = f"{survive.what_fails} may fail at the peak" if survive.count else "no replica is spare"
    return f"availability: {'' if found is None else f'{percent(found.now.time_fraction)}; '}{lost}"


def network_texts(plan: Plan) -> Iterator[str]:
    """Yield the machines that a replica spans, or between which KV caches go, and whose network is slower than the plan counts on."""
    yield from (
        f"the network of {sku} carries {each / 1e9:.3g} GB/s for each GPU, and the plan counts on "
        f"{counted / 1e9:.3g} GB/s: plan with fleet.network: {each / 1e9:.3g} GB/s"
        for sku, (each, counted) in slower_networks(plan).items()
    )


def rack_texts(plan: Plan) -> Iterator[str]:
    """Yield how many racks the replicas of a plan stand in, where one NVLink domain joins more GPUs than a machine has, and what whole racks cost."""
    devices = {group.layout.device.name: group.layout.device for group in plan.groups}
    for name, device in devices.items():
        groups = [group for group in plan.groups if group.layout.device.name == name]
        rack, usd = device.link_domain_devices, groups[0].usd_per_gpu_hour
        sizes = [group.gpus_per_replica for group in groups for _ in range(group.replicas)]
        if rack <= device.node_devices or (racks := racks_of(sizes, rack)) is None:
            continue
        noun, hold = ("rack", "holds") if racks == 1 else ("racks", "hold")
        lines = [line for group in groups if group.order for line in group.order.lines]
        whole = ""
        if not any(line.machine.sold_by > 1 for line in lines):
            whole = f"; a provider that sells whole racks sells {racks * rack} GPUs"
            whole += (
                ""
                if usd is None
                else f", for ${usd_per_month(racks * rack * usd):,.0f} per month at the same price per GPU"
            )
        yield (
            f"racks: {racks} {noun} of {rack} {name} (one NVLink domain) {hold} the {sum(sizes)} GPUs, each replica inside one{whole}"
        )


def idle_texts(plan: Plan) -> Iterator[str]:
    """Yield what of the machines stays idle; nothing if every GPU is used, or without a price."""
    order = plan.order
    if order is not None and order.gpus_idle:
        noun = "replica fits" if order.free_replicas == 1 else "replicas fit"
        room = f": {order.free_replicas} more {noun} on them at no cost" if order.free_replicas else ""
        yield f"of the {order.gpus} GPUs in the order {order.gpus_idle} stay idle{room}"


def _survival_texts(plan: Plan) -> Iterator[str]:
    """Yield what may fail while the targets are met, and how likely that is over a month."""
    survive, found = plan.groups[0].survive, plan.availability
    spread = ", ".join(
        f"{item.replicas} on {'each of ' if item.machines > item.span else ''}{item.machines} {item.machine.name}"
        for group in plan.groups
        for item in (group.order.placed() if group.order else ())
        if item.machine.sku and item.span == 1
    )
    if survive.count:
        lost, held = sum(group.spare_replicas - survive.unavailable for group in plan.groups), ""
        if survive.domain != "replica":
            held = f", which {'holds' if survive.count == 1 else 'hold'} {lost} replica{'s' * (lost != 1)}"
        where = f"; replicas are spread: {spread}" if spread else ""
        yield f"the plan meets its targets at the peak without {survive.what_fails}{held}{where}"
        yield from _more_than_spares(plan)
    if found is None:
        return
    now, more = found.now, found.more
    rate, every_s = "machines fail as often as published for H100 servers", survive.failures.time_to_failure_s
    if every_s is not None:
        rate = f"a machine fails every {every_s / 86400.0:g} days"
    text = (
        f"enough replicas for the peak are in service {percent(now.time_fraction)} of the time, and throughout a month with a "
        f"probability of {percent(now.month_probability)}: {rate}, and are replaced in {survive.failures.repair_s / 3600.0:g} h"
    )
    if more is not None:
        text += (
            f"; one machine more ({more.machine}, ${usd_per_month(more.usd_per_hour):,.0f} per month): "
            f"{percent(more.availability.time_fraction)} and {percent(more.availability.month_probability)}"
        )
    yield text


def _more_than_spares(plan: Plan) -> Iterator[str]:
    """Yield that one machine takes more replicas with it than are spare, if only replicas were to fail."""
    for group in plan.groups:
        fullest = max((item.replicas for item in (group.order.placed() if group.order else ())), default=0)
        if group.survive.domain == "replica" and fullest > group.spare_replicas:
            yield (
                f"a machine holds up to {fullest} replicas and {group.spare_replicas} "
                f"{'is' if group.spare_replicas == 1 else 'are'} spare, so the plan misses its targets at the peak without a machine; "
                "to meet them: fleet.survive: {machine: 1} instead of fleet.spare_replicas"
            )


def percent(part: float) -> str:
    """Return a probability in percent, with as many digits as tell it from certainty.

    Examples
    --------
    >>> percent(0.97), percent(0.99973), percent(1.0)
    ('97.0%', '99.973%', '100%')
    """
    if part >= 1.0 - 1e-9:
        return "100%"
    return f"{100.0 * part:.{max(1, -floor(log10(1.0 - part)) - 1)}f}%"


def owned_rows(asked: AskedFleet, answer: FleetAnswer) -> list[dict[str, Any]]:
    """Return what the recommended plan does with each kind of machine that is there already, with the keys of JSON."""
    plan = answer.chosen
    order = None if plan is None else plan.order
    rows = []
    for machine in asked.scenario.fleet.machines.own:
        lines = [line for line in order.lines if _same(line.machine, machine)] if order else []
        placed = [item for item in order.placed if _same(item.machine, machine)] if order else []
        count, used = machine.most or 0, sum(line.count for line in lines)
        rows.append(
            {
                "machine": machine.sku,
                "hardware": machine.device,
                "gpus": machine.gpus,
                "machines": count,
                "used": used,
                "unused": count - used,
                "replicas": sum(item.machines // item.span * item.replicas for item in placed),
                "usd_per_hour": next((line.machine.usd_per_hour for line in lines), 0.0),
                "reason": _reason(asked, answer, machine, used) if used < count else None,
            }
        )
    return rows


def _same(machine: Machine, owned: Machine) -> bool:
    return machine.is_owned and (machine.sku, machine.device) == (owned.sku, owned.device)


def _reason(asked: AskedFleet, answer: FleetAnswer, machine: Machine, used: int) -> str:
    """Return why a plan leaves some machines unused that are there already."""
    plan, device = answer.chosen, machine.device
    if all(item.name != device for item in asked.scenario.fleet.devices):
        return f"fleet.hardware has no {device}"
    if plan is None:
        return "no plan meets the SLO targets"
    groups = [group for group in plan.groups if group.hardware == device]
    if groups and plan.order is None:
        return f"no price of {device} is known, so no machines are counted"
    for group in groups:
        node, most = group.layout.device.node_devices, machine.most or 0
        span, held = machines_per_replica(machine.gpus, group.gpus_per_replica, node)
        if not held or span > most:
            return f"they hold no replica of {group.gpus_per_replica} GPUs"
    if groups:
        return "the plan needs no more" if used else "the plan needs no machine of this size"
    return f"{_alone_text(answer, plan, device)}{_divided_text(asked, answer)}"


def _alone_text(answer: FleetAnswer, plan: Plan, device: str) -> str:
    """Return what a plan on a device costs that the recommended plan does not have, or why there is none."""
    alone = next((item for item in (*answer.alike, *answer.dear) if item.hardware == device), None)
    if alone is not None and alone.usd_per_month is not None and plan.usd_per_month is not None:
        cost = f"a plan on {device} with them costs {paid_text(answer, alone.usd_per_month)}"
        return f"{cost}, and this plan {paid_text(answer, plan.usd_per_month)}"
    line = next((row for row in answer.uneconomical if row.hardware == device), None)
    return f"no plan on {device} is cheaper" if line is None else uneconomical_text(line, answer)


def _divided_text(asked: AskedFleet, answer: FleetAnswer) -> str:
    """Return what dealing machines a part of the requests came to, or how to try it."""
    mix = answer.mix
    if isinstance(mix, Mix):
        return f", and of {mix.tried} ways to divide the requests none with them is cheaper"
    if isinstance(mix, NoMix):
        return f", and {mix.reason} ({mix.tried} ways to divide the requests tried)"
    if asked.scenario.fleet.pools is not None or len(asked.scenario.fleet.hardware) < 2:
        return ""
    return "; to give them a part of the requests: --set fleet.mix=any"


def owned_texts(asked: AskedFleet, answer: FleetAnswer) -> Iterator[str]:
    """Yield what of the machines that are there already is used, and what it carries and counts as; and what is unused, and why."""
    plan = answer.chosen
    for machine, row in zip(asked.scenario.fleet.machines.own, owned_rows(asked, answer), strict=True):
        if row["used"] and plan is not None:
            price = owned_price_text(row["usd_per_hour"], powered=bool(plan.energy_usd_per_hour))
            yield f"use: {row['used']} x {machine.name} of your own, {price}, for {row['replicas']} of the {plan.replicas} replicas"
        if row["unused"]:
            yield f"unused: {row['unused']} x {machine.name} of your own: {row['reason']}"
