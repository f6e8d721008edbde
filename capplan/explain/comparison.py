"""The bill of a plan, and its comparison with hosted APIs, explained."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from capplan.explain.plans import Arguments, Group, NextToPlan, Planned, Row
from capplan.explain.subject import (
    Explained,
    Input,
    Place,
    explained,
    formula_of,
    group_path,
    input_of,
    places_of,
)
from capplan.explain.table import Stated
from capplan.keys import current_day
from capplan.money.comparison import ComparedApi, Comparison, PaidReplicas
from capplan.money.hosted import BilledClass, HostedTraffic, billed_class, outside_usd, provisioned_units
from capplan.money.ledger import Entry
from capplan.money.price import HOURS_PER_MONTH, usd_per_month
from capplan.money.token_price import TokenPrice
from capplan.money.who_pays import ClassUse, by_tenant
from capplan.questions.money.comparison import asked_comparison, asked_prices
from capplan.questions.money.ledger import PaidPlan, paid_plan
from capplan.questions.money.who_pays import AskedBill, asked_bill
from capplan.report.answers.compare import bill_answer, compare_answer
from capplan.report.quantities import MONEY
from capplan.scenario.money_terms import memory_usd_per_month
from capplan.serving.steady_state import replicas_over_time
from capplan.workload.request_class import SLICES


def _paid(planned: Planned) -> PaidPlan:
    return paid_plan(planned.asked, planned.answer, "there is nothing to pay for", current_day())


def _paid_arguments(planned: Planned, paid: PaidPlan) -> Arguments:
    """Return what the machines of the recommended plan cost, of a month or of one job, and the terms of people and overhead."""
    plan, terms = paid.plan, planned.asked.scenario.file.prices
    memory = memory_usd_per_month(planned.asked.scenario, plan) * paid.hours / HOURS_PER_MONTH
    lines = [entry for entry in paid.entries if entry.kind == "other"] or [
        Entry("other", 0.0, "", 0.0, "scenario: prices.other")
    ]
    return {
        "rented_usd": _rented(paid),
        "host_memory_usd": Stated(memory),
        "overhead_fraction": Stated(terms.overhead),
        "stated_people_usd": Stated(terms.people_usd_per_month),
        "ordered_gpus": Stated(plan.gpus),
        "other_lines": [
            Stated(line.usd, line.basis, "assumed" if line.basis == "assumed" else "", f"{line.what} usd")
            for line in lines
        ],
    }  # fmt: skip


def _rented(paid: PaidPlan) -> Stated:
    if paid.plan.is_of_job:
        job = paid.plan.money.usd_per_job if paid.plan.money else None
        return Stated(job, "explain usd_per_job", paid.plan.groups[0].label, "usd_per_job")
    if paid.mix is not None:
        return Stated(usd_per_month(paid.mix.mix.usd_per_hour), "explain commitments.usd_per_month")
    return Stated(paid.plan.usd_per_month)


def _bill_arguments(
    planned: Planned, asked: AskedBill, paid: PaidPlan, numbers: Mapping[Place, float]
) -> Arguments:
    bill, label = asked.bill, planned.plan.groups[0].label
    classes = planned.asked.scenario.classes

    def use(place: Place) -> ClassUse:
        return bill.shares[int(place[1])].use

    def traffic(place: Place) -> Stated:
        mine = f"{use(place).name}, "
        at = next(at for at, item in enumerate(classes) if mine.startswith(f"{item.name}, "))
        key = {"requests": "", "outside_usd": ".outside"}.get(str(place[-1]), f".{place[-1]}")
        return Stated(None, f"scenario: traffic[{at}]{key}", name=use(place).name)

    def of_tenant(place: Place) -> list[Stated]:
        mine = tuple(by_tenant(bill.shares).values())[int(place[1])]
        rows = (
            Row("bill", numbers, ("classes", at), label)
            for at, share in enumerate(bill.shares)
            if share in mine
        )
        parts = (row.input("", str(place[-1])) for row in rows)
        return [
            Stated(part.value, part.source, part.label, part.source.removeprefix("explain "))
            for part in parts
        ]

    def busy(_: Place) -> list[Stated]:
        source = "" if len(bill.pools) > 1 else "explain bill.busy_fraction"
        return [Stated(pool.busy_fraction, source, label) for pool in bill.pools]

    return {
        **_paid_arguments(planned, paid),
        "all_replica_s": Stated(sum(share.use.replica_s for share in bill.shares), label=label),
        "busy_usd": Stated(sum(pool.busy_usd for pool in bill.pools), label=label),
        "class_decode_s": lambda place: Stated(use(place).decode_s, label=label),
        "class_prefill_s": lambda place: Stated(use(place).prefill_s, label=label),
        "class_traffic": traffic,
        "class_users": lambda place: Stated(use(place).users),
        "conversation_requests": lambda place: Stated(use(place).requests_per_conversation),
        "group_busy": busy,
        "group_cost_fraction": [Stated(each) for each in paid.group_fractions],
        "classes_outside": [Stated(share.use.outside_usd, name=f"{share.use.name} usd") for share in bill.shares],
        "tenant_classes": of_tenant,
        "paid_hours": lambda place: Stated(numbers[place]),
        "paid_replica_s": Stated(None, f"{sum(asked.group_gpus):.4g} GPUs that are paid for, spares included, mean over the time, by the GPUs of a replica"),
        "waiting_usd": Stated(bill.idle_usd, label=label),
    }  # fmt: skip


def bill_group(planned: Planned) -> Group:
    """Return what `capplan bill` prints; the order is explained as a number of the plan."""
    asked = asked_bill(planned.asked, planned.answer, current_day())
    result = bill_answer(asked, planned.asked.scenario, None).result
    left = ("order", "charges", "rates", "prices_by_term")
    numbers = {place: value for place, value in places_of(result) if place[0] not in left}
    given = _bill_arguments(planned, asked, _paid(planned), numbers)
    groups = planned.plan.groups
    of = NextToPlan("bill", numbers, given, groups[0].label, of_groups=len(groups) > 1)
    return Group(numbers, of.explain)


_BELOW = "a step below"
"""Source of an input that a step of its explanation has."""
_WORKED_BY = {
    "input_usd": (BilledClass.input_usd, "masd"),
    "output_usd": (BilledClass.output_usd, "mo"),
    "cache_write_usd": (BilledClass.cache_write_usd, "msfw"),
    "cache_read_usd": (BilledClass.cache_read_usd, "jsfk"),
    "storage_usd": (BilledClass.cache_storage_usd, "hg"),
}
"""Part of a bill by the token -> the function that works it out for a class, and its letters."""


def comparison_group(planned: Planned) -> Group:
    """Return what `capplan compare` prints; the order is explained as a number of the plan."""
    asked = planned.asked
    compared = asked_comparison(asked, planned.answer, asked_prices(planned.apis, asked), current_day())
    result = compare_answer(compared, asked.scenario.name, None).result
    left = ("order", "offers_compared")
    numbers = {place: value for place, value in places_of(result) if {*place}.isdisjoint(left)}
    of = NextToPlan("compare", numbers, _comparison_arguments(planned, compared.comparison))
    return Group(numbers, partial(_comparison_explain, compared.comparison, of))


def _comparison_arguments(planned: Planned, comparison: Comparison) -> Arguments:
    own, sold, plan = comparison.own, comparison.terms.provisioned, planned.plan
    served = dict(enumerate(plan.receiving))

    def api(place: Place) -> ComparedApi:
        return comparison.apis[int(place[1]) if place[0] == "apis" else 0]

    def even(place: Place) -> float:
        return api(place).breakeven_request_rate or 0.0

    def carried(place: Place) -> list[tuple[PaidReplicas, int]]:
        return [
            (each, int(replicas_over_time(np.array([even(place)]), each.request_rate)[0]))
            for each in own.groups
        ]

    def other(place: Place) -> float:
        machines_usd = sum(each.usd_of(count) for each, count in carried(place))
        others = [entry for entry in own.entries if entry.kind == "other"]
        fixed = sum(entry.usd for entry in others if entry.grows_with == "nothing")
        support = sum(entry.usd_each for entry in others if entry.grows_with == "machines")
        return own.usd_of_requests(even(place)) + fixed + support * machines_usd

    def outside(_: Place) -> list[Stated]:
        return [
            Stated(outside_usd((part,)), name=f"{part.request_class.name} usd") for part in comparison.traffic
        ]

    def units(place: Place) -> Stated:
        if sold is None:
            return Stated(0.0, "scenario: hosted.provisioned: all is paid by the token")
        return Stated(provisioned_units(api(place).traffic, api(place).price, comparison.terms))

    def of_group(at: int, key: str) -> str:
        return f"explain {group_path(plan, at)}{key}"

    return {
        **_paid_arguments(planned, _paid(planned)),
        "classes_outside": outside,
        "group_request_rate": [Stated(group.request_rate_per_replica, of_group(at, "request_rate_per_replica"), group.label) for at, group in served.items()],
        "group_busy_replicas": [Stated(group.busy_replicas, f"{of_group(at, 'replicas')}, without spares") for at, group in served.items()],
        "provisioned_units": units,
        "provisioned_price": Stated(0.0 if sold is None else sold.price),
        "provisioned_hours": Stated(comparison.traffic[0].hours),
        "cheapest_api_usd": Stated(comparison.apis[0].bill.usd),
        "cheapest_api_outside_usd": Stated(comparison.apis[0].bill.outside_usd),
        "own_usd": Stated(own.usd_today),
        "own_outside_usd": Stated(own.outside_usd),
        "priced_machines_usd": Stated(own.machines_usd + own.beside_usd("machines")),
        "even_rate_limit": lambda place: [Stated(each.request_rate) for each, _ in carried(place)],
        "even_replicas": lambda place: [Stated(count) for _, count in carried(place)],
        "even_machines_usd": lambda place: [Stated(each.usd_of(count)) for each, count in carried(place)],
        "even_other_usd": lambda place: Stated(other(place)),
        "even_api_usd": lambda place: Stated(api(place).bill.usd / own.request_rate * even(place), f"{api(place).price.name}: its bill of today for the requests of the break-even; prefixes are found more often as traffic grows"),
    }  # fmt: skip


def _comparison_explain(comparison: Comparison, of: NextToPlan, place: Place, value: float) -> Explained:
    """Explain a number of a comparison as the table says; what an API charges by the token, class by class."""
    key = str(place[-1])
    if place[0] != "apis" or key not in _WORKED_BY:
        return of.explain(place, value)
    if comparison.terms.provisioned is not None:
        source = "scenario: hosted.provisioned: all is paid by the hour"
        return explained(key, value, "z", (input_of("z", "nothing", 0.0, "config", source),), MONEY)
    api = comparison.apis[int(place[1])]
    parts = [_part(key, traffic, api.price, comparison) for traffic in api.traffic]
    if len(parts) == 1:
        return parts[0]
    shares = [replace(part.input(f"u_{at}"), source=_BELOW) for at, part in enumerate(parts)]
    return explained(key, value, " + ".join(item.symbol for item in shares), shares, MONEY, steps=parts)


def _part(part: str, traffic: HostedTraffic, price: TokenPrice, comparison: Comparison) -> Explained:
    """Explain what one class pays an API for one kind of tokens."""
    function, letters = _WORKED_BY[part]
    billed = billed_class(traffic, price, comparison.terms)
    price = billed.way.price
    inputs = {item.symbol: item for item in _letters(billed, traffic, price)}
    name = part if len(comparison.traffic) == 1 else f"{traffic.request_class.name} {part}"
    value = float(getattr(billed, "cache_storage_usd" if part == "storage_usd" else part))
    used = [inputs[letter] for letter in letters]
    steps = [_requests(letter, billed, traffic, price) for letter in letters if letter in "mj"]
    steps += [
        _of_a_request(item, billed, traffic, price) for item in used if item.symbol in _RATES and item.value
    ]
    return explained(name, value, formula_of(function), used, MONEY, steps=steps)


def _letters(billed: BilledClass, traffic: HostedTraffic, price: TokenPrice) -> tuple[Input, ...]:
    each, name = billed.each, traffic.request_class.name
    page = f"{price.source}, {price.date}"
    kept = "time to live against the time between requests with the same prefix: scenario: hosted.time_to_live, hosted.prefixes"
    return (
        input_of("m", "paid_requests", billed.paid_requests, "derived", _BELOW),
        input_of("j", "paid_reads", billed.paid_reads, "derived", _BELOW),
        input_of("a", "input_usd_per_request", each.input_usd, "spec", page),
        input_of("o", "output_usd_per_request", each.output_usd, "spec", page),
        input_of("s", "prefix_fraction", billed.prefix_fraction, "config", f"scenario: traffic, shared_prefix.hit_fraction of {name}"),
        input_of("f", "hit_fraction", billed.hit_fraction, "derived", kept),
        input_of("d", "prefix_input_usd_per_request", each.prefix_input_usd, "spec", page),
        input_of("k", "prefix_read_usd_per_request", each.prefix_read_usd, "spec", page),
        input_of("w", "prefix_write_usd_per_request", each.prefix_write_usd, "spec", page),
        input_of("h", "stored_token_hours", billed.stored_token_hours, "derived", kept),
        input_of("g", "storage_usd_per_million_tokens_hour", billed.storage_usd, "spec", page),
    )  # fmt: skip


_RATES = {"a": "input", "d": "input", "k": "cache_read", "w": "cache_write", "o": "output"}
"""Letter of what a request costs -> the price in the list of the provider."""


def _requests(letter: str, billed: BilledClass, traffic: HostedTraffic, price: TokenPrice) -> Explained:
    source = f"scenario: traffic, mean rate of {traffic.request_class.name} over {traffic.hours:.6g} h"
    reads = letter == "j"
    off = billed.batch_read_fraction if reads else billed.batch_fraction
    sent = "discount of batches times the share that is sent in them"
    hours = f"hours of requests against peak hours in UTC; {price.source}" if price.peak else "no peak hours"
    inputs = (
        input_of("n", "requests", billed.requests, "config", source),
        input_of("b" if reads else "q", "batch_read_fraction" if reads else "batch_fraction", off, "spec", sent),
        input_of("v", "peak_ratio", billed.peak_ratio, "spec", hours),
    )  # fmt: skip
    name = "paid_reads" if reads else "paid_requests"
    return explained(name, getattr(billed, name), formula_of(getattr(BilledClass, name)), inputs, MONEY)


def _of_a_request(item: Input, billed: BilledClass, traffic: HostedTraffic, price: TokenPrice) -> Explained:
    """Explain what one request costs of one kind of tokens: tokens by the price in the list of the provider."""
    rate, request_class = _RATES[item.symbol], traffic.request_class
    listed, source = getattr(price.rates, rate), f"{price.source}, {price.date}"
    if listed is None:
        listed, source = price.rates.input, f"as plain input; {source}"
    formula = "t p / 10^6"
    if price.tiers:
        formula = (
            f"mean over the lengths of {formula}, p by the tier of each prompt, the lowest of them shown"
        )
    tokens = {
        "a": float(request_class.input_tokens.midpoints(SLICES).mean()),
        "o": request_class.generated_tokens * traffic.answers_at(price),
    }.get(item.symbol, billed.each.mean_prefix_tokens)
    inputs = (
        input_of("t", _TOKENS.get(item.symbol, "prefix_tokens"), tokens, "config", f"scenario: traffic, mean of {request_class.name}"),
        input_of("p", f"{rate}_usd_per_million_tokens", listed, "spec", source),
    )  # fmt: skip
    return explained(item.name, float(item.value), formula, inputs, MONEY)


_TOKENS = {"a": "input_tokens", "o": "output_tokens"}
