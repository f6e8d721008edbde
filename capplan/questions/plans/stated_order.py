"""The order of a plan that one can place today: machines of which a price list states name, region, price and day."""

from dataclasses import replace

from capplan.fleet.order import OWN
from capplan.fleet.plan import Group, Plan, plan_order, summed_usd_per_hour
from capplan.readers.catalogue.machines import stated_machines


def stated_order(plan: Plan | None) -> Plan | None:
    """Return a plan in machines of which everything is stated; the plan itself if its own order states everything.

    Each group has the provider at which its order costs least, and the spare replicas that the machines of this provider need.

    Returns
    -------
    Plan; None without an order, if a scenario states the price or a quota, or if no provider states everything for one of its GPUs
    """
    order = None if plan is None else plan_order(plan)
    if plan is None or order is None:
        return None
    if not any(map(_unstated, plan.groups)):
        return plan
    groups = [_stated(group) if _unstated(group) else group for group in plan.groups]
    found = [group for group in groups if group is not None]
    if len(found) < len(groups):
        return None
    return replace(plan, groups=tuple(found), usd_per_hour=summed_usd_per_hour(found))


def _unstated(group: Group) -> bool:
    """Return whether the order of a group leaves out what one needs to place it, or is priced at the mean of two offers."""
    order, price = group.order, group.price
    assert order is not None
    assert price is not None
    return len(price.records) > 1 or any(line.machine.unstated for line in order.lines)


def _stated(group: Group) -> Group | None:
    """Return a group in machines of the cheapest provider that states everything; None if there is none."""
    price = group.price
    assert price is not None
    rented = [machine for machine in price.machines if machine.provider != OWN]
    if not price.records or any(machine.most is not None for machine in rented):
        return None
    own = tuple(machine for machine in price.machines if machine.provider == OWN)
    offered = [
        replace(group, price=replace(price, machines=(*own, *machines))).resized(group.busy_replicas)
        for machines in stated_machines(group.layout.device.name, price.commitment).values()
    ]
    able = [
        (usd, at) for at, item in enumerate(offered) if item.order and (usd := item.usd_per_hour) is not None
    ]
    return offered[min(able)[1]] if able else None
