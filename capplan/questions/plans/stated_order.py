"""The order of a plan that one can place today: machines of which a price list states name, region, price and day."""

from dataclasses import replace

from capplan.fleet.order import OWN, Order
from capplan.fleet.plan import Plan, plan_order, summed_usd_per_hour
from capplan.fleet.price import ChosenPrice
from capplan.fleet.survival import Survival
from capplan.readers.catalogue.machines import stated_machines

ON_DEMAND = "on-demand"


def stated_order(plan: Plan | None) -> Plan | None:
    """Return a plan in machines of which everything is stated; the plan itself if its own order states everything.

    Each group has the provider at which its order costs least, and the spare replicas that the machines of this provider need.

    Returns
    -------
    Plan; None without an order, if a scenario states the price or a quota, or if no provider states everything for one of its GPUs
    """
    if plan is None or plan_order(plan) is None:
        return None
    groups = []
    for group in plan.groups:
        device, price = group.layout.device, group.price
        size = (group.layout.devices, device.node_devices, group.busy_replicas)
        stated = None if price is None else stated_price(price, device.name, *size, group.survive)
        if stated is None:
            return None
        groups.append(group if stated is price else replace(group, price=stated).resized(group.busy_replicas))
    if tuple(groups) == plan.groups:
        return plan
    return replace(plan, groups=tuple(groups), usd_per_hour=summed_usd_per_hour(groups))


def stated_price(
    price: ChosenPrice, device: str, replica_gpus: int, node_gpus: int, busy: int, survive: Survival
) -> ChosenPrice | None:
    """Return the price of a device in the machines of the cheapest provider that states everything; the same price if it does so itself.

    If no provider states everything for a commitment, it is the price on demand.

    Parameters
    ----------
    price : as it was chosen
    device : catalogue name
    replica_gpus : [-]
        GPUs of one replica
    node_gpus : [-]
        GPUs of a server as the prediction assumes it
    busy : [-]
        replicas that carry the peak
    survive : what may fail

    Returns
    -------
    None if a scenario states the price or a quota, or if no provider states everything
    """
    size = (replica_gpus, node_gpus, busy)
    if len(price.records) < 2 and _is_stated(price.order(*size, survive)):
        return price
    rented = [machine for machine in price.machines if machine.provider != OWN]
    if not price.records or any(machine.most is not None for machine in rented):
        return None
    own = tuple(machine for machine in price.machines if machine.provider == OWN)
    for commitment in dict.fromkeys((price.commitment, ON_DEMAND)):
        offered = [
            replace(price, commitment=commitment, machines=(*own, *machines))
            for machines in stated_machines(device, commitment).values()
        ]
        able = [item for item in offered if item.order(*size, survive) is not None]
        if able:
            return min(able, key=lambda item: item.order_usd_per_hour(*size, survive=survive))
    return None


def _is_stated(order: Order | None) -> bool:
    """Return whether an order has all that one needs to place it."""
    return order is not None and not any(line.machine.unstated for line in order.lines)
