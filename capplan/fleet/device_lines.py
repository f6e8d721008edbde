"""A device that was asked for and is not among the plans shown: the one reason, with the number that decides."""

from dataclasses import replace
from math import floor, inf, isfinite, log10

from capplan.errors import Refusal
from capplan.fleet.fit import fit
from capplan.fleet.order import Order, machines_per_replica
from capplan.fleet.plan import Relaxation, Relaxed, TightTarget, Uneconomical
from capplan.fleet.price import ChosenPrice, usd_per_month
from capplan.fleet.question import Question, spec_of_layout
from capplan.fleet.search.candidates import Rejections, layouts
from capplan.fleet.search.cheapest import Search, Sized, Terms, busy_bound, busy_replicas
from capplan.fleet.search.layouts import ScreenedLayout, SearchResult
from capplan.fleet.search.recommended import TIGHT_SHARE, rank, used_fraction
from capplan.fleet.search.trial import Trial
from capplan.hardware.device import Device
from capplan.memory.plan import CONTEXT_TOO_LONG
from capplan.workload.request_class import Target

RELAXED = (1.75, 2.75)
"""Relaxed limits for which GPUs are counted instead, as multiples of the stated limit, or of the latency of an idle replica."""
IDLE_SHARE = 1e-3
"""Share of the traffic of an idle replica, where no users are counted."""
IDLE_RATIO = 1.5
"""GPUs that are bought over those that carry the peak, from which on a line names the machines."""
_LIMITS = (Refusal.FLEET_SIZE, Refusal.BUDGET, Refusal.MACHINES)


def dear_line(fleet: Sized, cheapest: Sized, trials: Search) -> Uneconomical:
    """Return the line of a device whose best plan costs far more than the cheapest."""
    hourly, least = (rank(item, trials.terms)[0] for item in (fleet, cheapest))
    tight = tight_target(fleet, trials)
    idle = None if tight else _tightest(fleet.trial)
    return Uneconomical(
        fleet.trial.candidate.layout.device.name,
        tight.target if tight else idle and idle[0].key,
        tight.value_s if tight else idle and idle[1] + idle[0].outside_s,
        tight.limit_s if tight else idle and idle[0].stated_s,
        fleet.gpus,
        tight.gpus_at if tight else (),
        float(usd_per_month(hourly)),
        hourly / least if least else None,
        dear=_dear(fleet, cheapest, trials.terms),
    )


def _dear(fleet: Sized, cheapest: Sized, terms: Terms) -> str:
    """Return why a plan costs more than the cheapest: how many GPUs are bought at which price, and what of them carries the peak."""
    orders = [_order(item, terms) for item in (fleet, cheapest)]
    mine, best = orders
    if mine is None or best is None or not best.usd_per_hour:
        return ""
    each = [order.usd_per_hour / order.gpus for order in orders if order is not None]
    words = (
        f"{mine.gpus:,} GPUs at ${each[0]:.2f} an hour are bought instead of {best.gpus:,} at ${each[1]:.2f}"
    )
    carrying = fleet.busy * fleet.trial.candidate.layout.devices
    size = max(line.machine.gpus for line in mine.lines)
    if mine.gpus < IDLE_RATIO * carrying or size <= fleet.trial.candidate.layout.devices:
        return words
    return (
        f"{words}; {carrying:,} carry the peak, its machines have {size} GPUs, and {terms.survive.what_fails} may fail; "
        f"{terms.survive.key}, fleet.providers"
    )


def _order(fleet: Sized, terms: Terms) -> Order | None:
    """Return the machines of a plan; None without a price."""
    layout = fleet.trial.candidate.layout
    price = terms.prices.get(layout.device.name)
    if price is None:
        return None
    return price.order(layout.devices, layout.device.node_devices, fleet.busy, terms.survive)


def tight_target(fleet: Sized, trials: Search) -> TightTarget | None:
    """Return the target that leaves a fleet a small part of what its GPUs can do; None where it uses more, or one replica is enough."""
    used = used_fraction(fleet, trials)
    tightest = _tightest(fleet.trial)
    if fleet.busy == 1 or used >= TIGHT_SHARE or tightest is None:
        return None
    target, value = tightest
    at = _gpus_at(fleet.trial, target, value, trials, fewer_than=fleet.gpus)
    return TightTarget(used, target.key, value + target.outside_s, target.stated_s, at)


def without_plan(device: Device, result: SearchResult, rejected: Rejections, trials: Search) -> Uneconomical:
    """Return the line of a device without any plan."""
    name = device.name
    mine = [item for item in trials.candidates if item.layout.device.name == name]
    if mine and any(count and key[0] == name and key[1].code in _LIMITS for key, count in rejected.items()):
        return Uneconomical(name, reason=_limited(name, trials))
    if mine and trials.question.slo.targets:
        nearest = max(mine, key=lambda item: item.share_bound / item.layout.devices)
        line = _missed(trials.trial(nearest), trials)
        return line or Uneconomical(
            name, reason="the load of a single user is more than one replica serves within the targets"
        )
    near = [item for item in result.relaxations if item.layout.device.name == name]
    if near:
        return _screened(name, min(near, key=lambda item: item.needed_s / item.limit_s))
    return Uneconomical(name, reason=_refused(device, rejected, trials.question))


def _unheld(name: str, held: float, price: ChosenPrice, trials: Search) -> str:
    """Return why the machines that may be ordered are not enough, and what would be: each is too small, or they are too few."""
    mine = [item for item in trials.candidates if item.layout.device.name == name]
    node = mine[0].layout.device.node_devices
    able = [
        item
        for item in mine
        if any(machines_per_replica(one.gpus, item.layout.devices, node)[1] for one in price.machines)
    ]
    if not able:
        fewest = min(item.layout.devices for item in mine)
        way = (
            f"a machine of {fewest} would do"
            if fewest <= node
            else f"machines of {node} would do, with fleet.network between them"
        )
        return (
            f"its smallest replica has {fewest} GPUs, and the largest machine that may be ordered has "
            f"{max(one.gpus for one in price.machines)}: {way}; fleet.machines, fleet.providers, prices.provider"
        )
    nearest = max(able, key=lambda item: item.share_bound / item.layout.devices)
    needed = _unlimited_order(nearest, price, trials)
    return (
        f"the machines that may be ordered hold {held:.0f} GPUs, and {needed}; fleet.max_machines, fleet.own"
    )


def _unlimited_order(candidate: ScreenedLayout, price: ChosenPrice, trials: Search) -> str:
    """Return how many machines a layout would take if any number of them could be ordered."""
    layout, trial = candidate.layout, trials.trial(candidate)
    busy = busy_replicas(trial, trial.limits, trials.question.slo.confidence, trials.terms)
    if busy is None:
        return "no number of them meets the targets"
    free = replace(price, machines=tuple(replace(one, most=None) for one in price.machines))
    order = free.order(layout.devices, layout.device.node_devices, busy, trials.terms.survive)
    assert order is not None
    words = " and ".join(f"{line.count} x {line.machine.sku}" for line in order.lines)
    return f"it takes {words}, {order.gpus} GPUs"


def _limited(name: str, trials: Search) -> str:
    """Return which limit of the scenario a device exceeds, and by how much as far as the closed form knows."""
    terms, confidence = trials.terms, trials.question.slo.confidence
    least = min(
        terms.least_gpus(item.layout, busy_bound(item, confidence, terms))
        for item in trials.candidates
        if item.layout.device.name == name
    )
    mine = [item.layout for item in trials.candidates if item.layout.device.name == name]
    paid, held, most = (
        max(terms.least_gpus(layout, busy) if (busy := of(layout)) >= 1.0 else 0.0 for layout in mine)
        for of in (terms.affordable_busy, terms.orderable_busy, terms.busy_allowed)
    )
    if held < min(paid, terms.max_devices or inf):
        price = terms.prices[name]
        assert price is not None
        return _unheld(name, held, price, trials)
    if terms.max_devices is not None and terms.max_devices <= paid:
        limit = f"fleet.max_gpus allows {terms.max_devices}"
    elif not terms.priced(name):
        return "its price is not known, so no plan is known to be within the budget"
    else:
        limit = f"the budget pays for {paid:.0f}"
    if most < least < inf:
        return f"it needs at least {least:.0f} GPUs, and {limit}"
    return f"no plan of that many GPUs meets the targets: {limit}"


def _missed(trial: Trial, trials: Search) -> Uneconomical | None:
    """Return the target that no number of replicas meets; None where even an idle replica cannot be simulated."""
    tightest = _tightest(trial)
    if tightest is None:
        return None
    target, value = tightest
    slower = trial.candidate.slowness.quantile(trials.question.slo.confidence)
    sure = _idle_value(trial, target, slower)
    at = _gpus_at(trial, target, value, trials)
    name = trial.candidate.layout.device.name
    value_s, sure_s = value + target.outside_s, sure + target.outside_s
    return Uneconomical(name, target.key, value_s, target.stated_s, None, at, sure_value_s=sure_s)


def _screened(name: str, nearest: Relaxation) -> Uneconomical:
    """Return the target that the closed form says is out of reach at any load."""
    needed = nearest.needed_s
    return Uneconomical(name, nearest.target, needed, nearest.limit_s, None, (), sure_value_s=needed)


def _refused(device: Device, rejected: Rejections, question: Question) -> str:
    """Return why no layout of a device can run the model: the reason of those that came furthest."""
    counts = {why: count for (name, why), count in rejected.items() if name == device.name and count}
    if not counts:
        return "no layout of it is allowed"
    ranks = {Refusal.OVERLOAD: 3, Refusal.SPECULATION: 2, Refusal.MEMORY: 1}
    why = max(counts, key=lambda reason: (ranks.get(reason.code, 0), counts[reason]))
    return _memory_lacking(device, question) if why.code is Refusal.MEMORY else why.words


def _memory_lacking(device: Device, question: Question) -> str:
    """Return what memory the largest replica of a device lacks, with the numbers."""
    legal = []
    for dtype, network in question.networks.items():
        for kv_format in question.kv_formats:
            ranges = replace(question.ranges, weight_formats=(dtype,), kv_formats=(kv_format,))
            layouts_of_dtype, _ = layouts(network, [device], ranges, question.profile)
            legal += [(layout, dtype) for layout in layouts_of_dtype]
    fits = [fit(spec_of_layout(layout, dtype, question)) for layout, dtype in legal]
    furthest = max(fits, key=lambda item: (int(item.plan.limit_codes), item.spec.devices))
    plan, gpus = furthest.plan, furthest.spec.devices
    each = f"each of {gpus} GPUs" if gpus > 1 else "one GPU"
    if int(plan.limit_codes) == CONTEXT_TOO_LONG:
        tokens = float(plan.kv_cache_tokens)
        return f"the KV cache of its largest replica holds {tokens:,.0f} tokens, and a request may have {question.max_model_len:,}"
    weights, usable = float(plan.weight_bytes) * 1e-9, float(plan.usable_bytes) * 1e-9
    reason = f"its weights take {weights:.3g} GB on {each}, of which the engine may use {usable:.3g} GB"
    return reason if weights >= usable else f"{reason}; {plan.limits[0]}"


def _idle_value(trial: Trial, target: Target, slowness: float = 1.0) -> float:
    """Return the targeted latency on a replica with next to no load: a single user, or a thousandth of the traffic."""
    users = trial.demand.users
    rate = trial.total_rate / users if users else trial.total_rate * IDLE_SHARE
    return trial.at(rate, 16, slowness).value(target, slowness)


def _tightest(trial: Trial) -> tuple[Target, float] | None:
    """Return the target that leaves an idle replica the least room, and its value; None without one that can be met."""
    values = {target: _idle_value(trial, target) for target in trial.limits}
    target = max(values, key=lambda item: values[item] / item.limit_s, default=None)
    return None if target is None or not isfinite(values[target]) else (target, values[target])


def _gpus_at(
    trial: Trial, target: Target, value_s: float, trials: Search, fewer_than: float = inf
) -> tuple[Relaxed, ...]:
    """Return the GPUs of a layout at relaxed limits of one target, as far as each needs fewer than the limit before it."""
    terms, layout = trials.terms, trial.candidate.layout
    found = []
    for ratio in RELAXED:
        limit = two_digits(max(value_s, target.limit_s / RELAXED[0]) * ratio)
        if limit <= target.limit_s:
            continue
        limits = {**trial.limits, target: limit}
        busy = busy_replicas(trial, limits, trials.question.slo.confidence, terms)
        if busy is not None and terms.gpus(layout, busy) < fewer_than:
            fewer_than = terms.gpus(layout, busy)
            found.append(Relaxed(limit + target.outside_s, int(fewer_than)))
    return tuple(found)


def two_digits(value: float) -> float:
    """Round a value to two significant digits.

    Examples
    --------
    >>> two_digits(1.2128), two_digits(0.0693)
    (1.2, 0.069)
    """
    return round(value, 1 - floor(log10(value)))
