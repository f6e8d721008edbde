"""A scenario and the listed offers -> the cheapest mix of commitments, for a plan or over all layouts."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from math import inf

import numpy as np

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.fleet.group import Group
from capplan.fleet.over_time import OverTime, RateLine, ReplicasAt, fleet_over_time
from capplan.fleet.plan import Plan
from capplan.fleet.search.cheapest import Search, Sized, busy_bound
from capplan.fleet.search.layouts import ScreenedLayout
from capplan.fleet.search.one_layout import replicas_at_rates
from capplan.fleet.search.recommended import plan_of
from capplan.hardware.device import Device
from capplan.keys import Commitment, Term, first_day
from capplan.money.commitments import (
    HOURS_PER_YEAR,
    GroupUse,
    Mix,
    Offer,
    PaidTerm,
    annuity_usd_per_hour,
    least_usd_per_hour,
    mix_of,
    named_offers,
    tied_up_ratio,
    use_fractions,
)
from capplan.money.order import OWN, Machine, Survival, spares_in, units_of
from capplan.money.price import (
    OLD_DAYS,
    TERM_YEARS,
    ChosenPrice,
    PriceRecord,
    Prices,
    energy_usd_per_hour,
    price_of,
    usd_per_month,
    with_electricity,
)
from capplan.numbers import Counts
from capplan.readers.catalogue.prices import machine_records, records_of
from capplan.scenario.scenario_file import Commitments, Owned, Reserved, Scenario, Spot

RESERVED_DISCOUNTS = {"reserved-1y": 0.35, "reserved-3y": 0.55}
"""Discounts on the price on demand for one and three years, where neither an offer nor a discount is given (an assumption)."""
FLAT = "the load has no curve, so every replica but the spares counts as busy at all hours"


@dataclass(frozen=True, slots=True)
class AskedMix:
    """The mix of one plan, and what it rests on."""

    plan: Plan
    mix: Mix
    short_fraction: float
    """Fraction of the requests that arrive while fewer replicas serve than are needed."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]
    uses: tuple[GroupUse, ...] = ()
    """What the mix pays for, in each window of the load curve."""


def _price(records: Sequence[PriceRecord], device: Device, choice: Prices) -> ChosenPrice | None:
    """Return the price of a device with its electricity; None where one of them is not known."""
    price = price_of(records, device, choice)
    if price is None or (choice.electricity is not None and device.tdp_w is None):
        return None
    return with_electricity(price, device.tdp_w or 0.0, choice)


def _of_listed(name: str, price: ChosenPrice, *, fixed: bool, ratio: float = 1.0) -> Offer:
    """Return the offer of a listed price, times a ratio, with the range of its other offers; electricity is paid apart from both."""
    power = price.energy_usd_per_hour or 0.0
    low, usd, high = (
        rent * ratio + power for rent in (price.low_usd_per_hour, price.usd_per_hour, price.high_usd_per_hour)
    )
    return Offer(
        name,
        usd if fixed else 0.0,
        0.0 if fixed else usd,
        low_ratio=low / usd,
        high_ratio=high / usd,
        origin=named_offers(price.records) if price.offers == 1 and not price.estimated else price.basis,
    )


def reserved_offer(
    name: Term, key: Reserved, listed: ChosenPrice | None, on_demand: ChosenPrice, interest_fraction: float
) -> Offer:
    """Return a reservation: its upfront part, with the cost of the capital that it ties up, and the rest month by month."""
    off = RESERVED_DISCOUNTS[name] if key.discount is None else key.discount
    if key.price is not None:
        offer = Offer(name, key.price + (on_demand.energy_usd_per_hour or 0.0), 0.0, origin="the scenario")
    elif key.discount is None and listed is not None:
        offer = _of_listed(name, listed, fixed=True)
    else:
        origin = f"{off:.0%} off on demand, {'assumed' if key.discount is None else 'the scenario'}"
        offer = replace(_of_listed(name, on_demand, fixed=True, ratio=1.0 - off), origin=origin)
    months, monthly = 12.0 * TERM_YEARS[name], float(usd_per_month(offer.fixed_usd_per_hour))
    term = PaidTerm(
        months,
        key.upfront * monthly * months,
        (1.0 - key.upfront) * monthly,
        interest_fraction=interest_fraction,
    )
    ratio = tied_up_ratio(key.upfront, months, interest_fraction)
    if ratio != 1.0:
        words = f"{offer.origin}; with interest of {interest_fraction:.1%} on what is paid upfront"
        offer = replace(offer, fixed_usd_per_hour=offer.fixed_usd_per_hour * ratio, origin=words)
    return replace(offer, term=term)


def owned_offer(terms: Owned, watts: float) -> Offer:
    """Return what an owned device costs per hour: its annuity, upkeep and idle power always, the rest of its power in use.

    What is left of its value at the end of its life lowers the purchase by its present value.
    """
    left = terms.residual * float((1.0 + terms.interest) ** -terms.life)
    annuity = float(annuity_usd_per_hour(terms.capex * (1.0 - left), terms.life, terms.interest))
    power = float(energy_usd_per_hour(watts, terms.electricity, terms.facility_ratio))
    idle = power * terms.idle
    running = terms.capex * terms.upkeep / HOURS_PER_YEAR + idle
    residual = terms.residual * terms.capex
    term = PaidTerm(12.0 * terms.life, terms.capex, float(usd_per_month(running)), residual, bought=True)
    return Offer("owned", annuity + running, power - idle, origin="the scenario", term=term)


def offers_for(
    scenario: Scenario, device: Device, records: Sequence[PriceRecord], sold_as: str | None = None
) -> tuple[list[Offer], list[Assumption], list[str]]:
    """Return the ways to pay for a device, what is assumed for them, and warnings for those without a price.

    Parameters
    ----------
    scenario : with commitments
    device : to be paid for
    records : offers
    sold_as : the machine that all of them are of; None: any
    """
    name, terms = sold_as or device.name, scenario.file.commitments
    assert terms is not None
    choice = replace(scenario.prices, commitment="on-demand")
    on_demand = _price(records, device, choice)
    if on_demand is None:
        raise InputError(
            f"{scenario.path}: commitments: {name} has no price on demand; give prices.per_gpu_hour.{device.name}"
        )

    def listed(commitment: Commitment | Term) -> ChosenPrice | None:
        return _price(records, device, replace(choice, commitment=commitment, per_gpu_hour={}))

    offers = [_of_listed("on-demand", on_demand, fixed=False)]
    assumed: list[Assumption] = []
    warnings: list[str] = []
    stated: dict[Term, Reserved | None] = {"reserved-1y": terms.reserved_1y, "reserved-3y": terms.reserved_3y}
    for term, key in stated.items():
        if key is not None:
            offers.append(reserved_offer(term, key, listed(term), on_demand, terms.interest))
            if "assumed" in offers[-1].origin:
                place = f"commitments.{term.replace('-', '_')}.discount"
                assumed.append(Assumption(f"{term} of {name}: {offers[-1].origin}", place))
    if terms.owned is not None:
        watts = device.tdp_w if terms.owned.power is None else terms.owned.power
        if watts is None:
            warnings.append(
                f"the power of {device.name} is not known, so owning it is left out; give commitments.owned.power"
            )
        else:
            offers.append(owned_offer(terms.owned, watts))
    if terms.spot is not None:
        spot = listed("spot")
        if spot is None:
            warnings.append(f"no spot price of {name} is known, so spot is left out")
        else:
            offers.append(_spot_offer(terms.spot, spot))
            what = (
                f"spot replicas are rented {terms.spot.headroom:.0%} over need for interruptions, and are at most "
                f"{terms.spot.most:.0%} of the peak"
            )
            assumed.append(Assumption(what, "commitments.spot"))
    contracted = offers[0].used_usd_per_hour
    ratio = on_demand.records[0].discounted_ratio if on_demand.records else 1.0
    priced = [replace(each, list_usd_per_hour=contracted / ratio, discounted_ratio=ratio) for each in offers]
    return priced, assumed, warnings


def _spot_offer(terms: Spot, price: ChosenPrice) -> Offer:
    """Return the offer of spot machines: more of them are rented than the load needs, and they carry at most a part of the peak."""
    offer, ratio = _of_listed("spot", price, fixed=False), 1.0 + terms.headroom
    used = offer.used_usd_per_hour * ratio
    return replace(offer, used_usd_per_hour=used, most_fraction=terms.most, rented_ratio=ratio)


def running_counts(group: Group, over_time: OverTime | None, terms: Commitments) -> Counts:
    """Return the replicas that run in each window, without spares, within the limits of the autoscaler."""
    if over_time is None:
        return np.array([group.busy_replicas])
    most = terms.max_replicas or group.busy_replicas
    least = terms.min_replicas or 1
    return np.clip(over_time.paid, least, max(most, least))


def machine_offers(
    scenario: Scenario, device: Device, machine: Machine | None, records: Sequence[PriceRecord]
) -> tuple[list[Offer], list[Assumption], list[str]]:
    """Return the ways to pay for a GPU of a machine: at its own prices, and on spot at those of the device if its provider has none.

    Parameters
    ----------
    scenario : with commitments
    device : of the machine
    machine : of an order; None: GPUs by the piece
    records : offers of devices
    """
    if machine is not None and machine.provider == OWN:
        fixed = machine.usd_per_hour / machine.gpus
        return [Offer(OWN, fixed, 0.0, origin="machines that are there already")], [], []
    if machine is None or not machine.sku or device.name in scenario.prices.per_gpu_hour:
        return offers_for(scenario, device, records)
    own = machine_records(machine, records if scenario.price_file is not None else None)
    has_spot = any(record.commitment == "spot" for record in own)
    spot = [
        each for each in records if (each.device, each.commitment) == (device.name, "spot") and not has_spot
    ]
    of_its_own = replace(scenario, prices=replace(scenario.prices, provider="any", region=None))
    return offers_for(of_its_own, device, (*own, *spot), machine.sku)


def units_in_service(units: Sequence[int], busy: int, survive: Survival) -> int:
    """Return how many units of machines have to run to carry a load and survive what may fail; they are started one after the other.

    Parameters
    ----------
    units : [-]
        replicas that each unit holds, in the order in which they are started
    busy : [-]
        replicas that carry the load
    survive : what may fail

    Returns
    -------
    [-]
        number of units: all of them if even these are too few

    Examples
    --------
    A machine of one replica, then machines of four, of which any may fail:

    >>> [units_in_service([1, 4, 4], busy, Survival("machine", 1)) for busy in (1, 2, 5)]
    [2, 3, 3]
    """
    needed = busy + survive.unavailable

    def enough(started: int) -> bool:
        held = units[:started]
        if survive.lost_machines:
            return spares_in([(each, 1) for each in held], needed, survive.lost_machines) is not None
        return sum(held) >= busy + survive.least_spares(busy)

    return bisect_left(range(1, len(units)), True, key=enough) + 1


def group_uses(
    place: int, group: Group, running: Counts, offers_of: Callable[[Machine | None], Sequence[Offer]]
) -> list[GroupUse]:
    """Return what is paid for of a group in each window: its replicas with the spares, or the machines that hold them, idle GPUs included.

    The machines are those of the order for the largest load. They are started one after the other, those that cost least for a
    replica first, so that each runs for a share of the time and takes the commitment that is cheapest for it. Those that are sold
    in lots run at all hours.

    Parameters
    ----------
    place : of the group in its plan
    group : of the plan
    running : [-]
        replicas in service by window, without spares
    offers_of : a machine, None for GPUs by the piece -> ways to pay for one of its GPUs
    """
    layout, survive = group.layout, group.survive
    order = None
    if group.price is not None and group.price.machines:
        order = group.order_of(int(running.max()))
    counts = np.unique(running).tolist()
    if order is None:
        started = {busy: busy + survive.least_spares(busy) for busy in counts}
        paid = np.array([started[busy] for busy in running.tolist()])
        return [GroupUse(use_fractions(paid), offers_of(None), layout.devices, group=place, running=paid)]
    kinds = sorted(
        ((line, *units_of(line)) for line in order.lines),
        key=lambda kind: (kind[3] * kind[0].machine.usd_per_hour / kind[2], -kind[2]),
    )
    units = [each for _, count, each, _ in kinds for _ in range(count)]
    started = {busy: units_in_service(units, busy, survive) for busy in counts}
    all_units = np.array([started[busy] for busy in running.tolist()])
    uses, first = [], 0
    for line, count, _, span in kinds:
        mine, gpus = np.clip(all_units - first, 0, count), span * line.machine.gpus
        first += count
        shares = use_fractions(mine)
        if line.machine.sold_by > 1:
            shares, gpus, mine = np.ones(line.count), line.machine.gpus, np.full_like(mine, line.count)
        if mine.any():
            uses.append(
                GroupUse(
                    shares, offers_of(line.machine), gpus, of_replicas=gpus == layout.devices, group=place, machine=line.machine, running=mine,
                )
            )  # fmt: skip
    return uses


def asked_mix(
    scenario: Scenario, plan: Plan, line: RateLine | None, replicas_at: Sequence[ReplicasAt]
) -> AskedMix | None:
    """Return the cheapest mix for a plan, under a load curve if there is one; None if the scenario names no commitments.

    Parameters
    ----------
    scenario : with its commitments
    plan : sized for the peak
    line : load curve; None: every replica runs at all hours
    replicas_at : of each group, the rate of the service -> replicas in service
    """
    terms = scenario.file.commitments
    if terms is None:
        return None
    records, remarks = records_of(scenario)
    assumed: list[Assumption] = []
    warnings: list[str] = []
    uses: list[GroupUse] = []
    short = 0.0

    def offers_of(device: Device, machine: Machine | None) -> Sequence[Offer]:
        offers, stated, remarked = machine_offers(scenario, device, machine, records)
        assumed.extend(stated)
        warnings.extend(remarked)
        return offers

    for place, (group, needed_at) in enumerate(zip(plan.groups, replicas_at, strict=True)):
        over_time = group_over_time(scenario, group, line, needed_at)
        running = running_counts(group, over_time, terms)
        uses += group_uses(place, group, running, partial(offers_of, group.layout.device))
        assumed.append(_followed(over_time))
        short = max(short, over_time.short_fraction if over_time else 0.0)
        warnings += _capped(over_time, terms)
    people = terms.owned.people / float(usd_per_month(1.0)) if terms.owned else 0.0
    said = tuple(dict.fromkeys((*remarks, *warnings)))
    return AskedMix(plan, mix_of(uses, people), short, tuple(dict.fromkeys(assumed)), said, tuple(uses))


def _followed(over_time: OverTime | None) -> Assumption:
    """Return what is assumed of the hours in which a replica runs."""
    if over_time is None:
        return Assumption(FLAT, "traffic[0].daily_curve")
    return Assumption(
        f"an autoscaler follows the load: a replica starts in {over_time.start_up_s:g} s and is kept for a while after "
        "it was needed; what is reserved or owned runs at all hours",
        "fleet.start_up",
    )


def _capped(over_time: OverTime | None, terms: Commitments) -> list[str]:
    """Return the warning for an autoscaler that may not start what the peak needs."""
    most = terms.max_replicas
    if over_time is None or most is None or over_time.needed.max() <= most:
        return []
    return [
        f"commitments.max_replicas of {most} is below the {over_time.needed.max()} replicas that the peak needs"
    ]


def cheapest_by_mix(
    scenario: Scenario, trials: Search, line: RateLine | None, under_usd_per_month: float = inf
) -> tuple[Plan, float] | None:
    """Return the plan of the cheapest mix, and what it costs a month [$]; None where none costs less than that.

    Parameters
    ----------
    scenario : with commitments
    trials : of its layouts, without a budget: the price of `prices.commitment` says nothing about a mix
    line : load curve; None: every replica runs at all hours
    under_usd_per_month : [$/month]
    """
    confidence, plans = trials.question.slo.confidence, dict[int, Plan]()

    def paid(sized: Sized) -> float:
        plan = plans[id(sized)] = plan_of(sized, trials.terms)
        needed_at = replicas_at_rates(
            trials.question, plan.single, plan.peak_requests_per_s, trials.terms, trials.cache
        )
        asked = asked_mix(scenario, plan, line, (needed_at,))
        return inf if asked is None else float(usd_per_month(asked.mix.usd_per_hour))

    least = least_usd_per_month(scenario, trials, line)
    found = trials.cheapest_paid(confidence, least, paid, under_usd_per_month)
    return None if found is None else (plans[id(found[0])], found[1])


def _offers_of_any(
    scenario: Scenario, device: Device, price: ChosenPrice | None, records: Sequence[PriceRecord]
) -> list[Offer]:
    """Return the ways to pay for a GPU of any of the machines in which a device is sold."""
    machines = price.machines if price else ()
    return [
        offer
        for machine in machines or (None,)
        for offer in machine_offers(scenario, device, machine, records)[0]
    ]


def least_usd_per_month(
    scenario: Scenario, trials: Search, line: RateLine | None
) -> Callable[[ScreenedLayout], float]:
    """Return a lower bound on what a layout costs a month by any mix [$], from the closed form of the load that its replicas carry."""
    terms, demand, confidence = trials.terms, trials.question.demand, trials.question.slo.confidence
    records, _ = records_of(scenario)
    devices = {candidate.layout.device.name: candidate.layout.device for candidate in trials.candidates}
    offers = {
        name: _offers_of_any(scenario, device, terms.prices[name], records)
        for name, device in devices.items()
    }
    peak = sum(demand.rates_per_s(0.0))
    scaling = scenario.file.commitments
    assert scaling is not None
    fewest, most = scaling.min_replicas or 1, scaling.max_replicas or inf

    def least(candidate: ScreenedLayout) -> float:
        predicted = candidate.share_bound * (1.0 - terms.headroom_fraction)
        share = min(predicted, candidate.sure_share_bounds[confidence])
        if demand.users or share <= 0.0:
            return 0.0 if demand.users else inf
        if line is None:
            running = busy_bound(candidate, confidence, terms)
        else:
            needed = line.rates_per_s / (share * peak)
            running = float(np.clip(needed, fewest, max(most, fewest)).mean())
        layout = candidate.layout
        hourly = least_usd_per_hour(
            running + terms.survive.least_spares(1), offers[layout.device.name], layout.devices
        )
        return float(usd_per_month(hourly))

    return least


def group_over_time(
    scenario: Scenario, group: Group, line: RateLine | None, replicas_at: ReplicasAt
) -> OverTime | None:
    """Return the replicas of a plan, or of one pool of it, over a load curve; None without one."""
    if line is None:
        return None
    limits = scenario.fleet
    return fleet_over_time(
        group, line, replicas_at, start_up_s=limits.start_up_s, burst_ratio=limits.burst_ratio
    )  # fmt: skip


def age_remark(record: PriceRecord, today: date) -> str | None:
    """Return what is to be known of the day of a price; None for a price of the last OLD_DAYS."""
    if record.date is None:
        return "no date"
    return f"over {OLD_DAYS} days old" if (today - first_day(record.date)).days > OLD_DAYS else None


def rent_warnings(plan: Plan, today: date) -> tuple[str, ...]:
    """Return the warnings for prices of a plan that are older than OLD_DAYS, and for those of an unknown day."""
    records = dict.fromkeys(record for group in plan.groups if group.quote for record in group.quote.records)
    return tuple(_age_text(record, today) for record in records if age_remark(record, today))


def _age_text(record: PriceRecord, today: date) -> str:
    age = "has no date"
    if record.date is not None:
        age = f"is of {record.date}, {(today - first_day(record.date)).days} days old on {today}"
    return f"the price of {record.device} at {record.provider} {age}: check it there"
