"""GPUs that are there already: what of them a plan uses and what that carries, and why the others are unused."""

from collections.abc import Iterator
from typing import Any

from capplan.fleet.plan import FleetAnswer, Mix, NoMix, Plan
from capplan.money.order import Machine, machines_per_replica, owned_price_text
from capplan.questions.fleet import AskedFleet
from capplan.report.answers.fleet_words import paid_text, uneconomical_text


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
