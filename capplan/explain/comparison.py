"""The comparison with hosted APIs explained: the own side, the parts of each API's bill, and the break-even."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from capplan.explain.bill import machines, stated, with_people
from capplan.explain.quantities import Group, Planned, Row
from capplan.explain.subject import Explained, Input, Place, explained, formula_of, input_of, places_of
from capplan.fleet.over_time import replicas_over_time
from capplan.fleet.price import HOURS_PER_MONTH
from capplan.money.comparison import ComparedApi, Comparison
from capplan.money.hosted import (
    BilledClass,
    HostedBill,
    HostedTraffic,
    TokenPrice,
    billed_class,
    outside_usd,
    provisioned_units,
)
from capplan.money.total_cost import total_usd
from capplan.questions.money.comparison import asked_comparison, asked_prices
from capplan.questions.money.price_check import current_day
from capplan.report.answers.compare import compare_answer
from capplan.report.quantities import MONEY
from capplan.workload.request_class import SLICES

_PARTS = {
    "i": "input_usd", "o": "output_usd", "w": "cache_write_usd", "k": "cache_read_usd", "s": "storage_usd", "t": "provisioned_usd", "x": "outside_usd",
}  # fmt: skip
_WORKED_BY = {
    "input_usd": (BilledClass.input_usd, "masd"),
    "output_usd": (BilledClass.output_usd, "mo"),
    "cache_write_usd": (BilledClass.cache_write_usd, "msfw"),
    "cache_read_usd": (BilledClass.cache_read_usd, "jsfk"),
    "storage_usd": (BilledClass.cache_storage_usd, "hg"),
}
"""Part of a bill -> the function that works it out for a class, and its letters."""


@dataclass(frozen=True, slots=True)
class _Compared:
    """A comparison and its numbers."""

    planned: Planned
    comparison: Comparison
    numbers: Mapping[Place, float]


def comparison_group(planned: Planned) -> Group:
    """Return what `capplan compare` prints; the order is explained as a number of the plan."""
    asked = planned.asked
    compared = asked_comparison(asked, planned.answer, asked_prices(planned.apis, asked), current_day())
    result = compare_answer(compared, asked.scenario.name, None).result
    numbers = {place: value for place, value in places_of(result) if "order" not in place}
    return Group(numbers, partial(_explain, _Compared(planned, compared.comparison, numbers)))


def _explain(compared: _Compared, place: Place, value: float) -> Explained:
    key = str(place[-1])
    if place[0] == "own":
        return _OWN[key](compared)
    if place[0] == "breakeven_request_rate":
        return _break_even(compared, compared.comparison.apis[0])
    api = compared.comparison.apis[int(place[1])]
    if key == "breakeven_request_rate":
        return _break_even(compared, api)
    if key in ("usd_per_month", "usd"):
        inputs = Row("compare", compared.numbers, place[:2], "derived").inputs(_PARTS)
        return explained(key, api.bill.usd, formula_of(HostedBill.usd), inputs, MONEY)
    if key == "outside_usd":
        return _outside(compared)
    if key == "provisioned_usd" or compared.comparison.terms.provisioned is not None:
        return _provisioned(compared, api, key)
    parts = [_part(key, traffic, api.price, compared) for traffic in api.traffic]
    if len(parts) == 1:
        return parts[0]
    shares = [
        input_of(f"u_{number}", part.quantity, part.value, part.label, "a step below")
        for number, part in enumerate(parts)
    ]
    formula = " + ".join(item.symbol for item in shares)
    return explained(key, value, formula, shares, MONEY, steps=parts)


def _provisioned(compared: _Compared, api: ComparedApi, key: str) -> Explained:
    """Explain the throughput that is rented by the hour; what is paid by the token is nothing then, and the other way round."""
    comparison = compared.comparison
    sold = comparison.terms.provisioned
    if sold is None or key != "provisioned_usd":
        how = "by the hour" if sold is not None else "by the token"
        none = input_of("z", "nothing", 0.0, "config", f"scenario: hosted.provisioned: all is paid {how}")
        return explained(key, 0.0, "z", (none,), MONEY)
    units = provisioned_units(api.traffic, api.price, comparison.terms)
    inputs = (
        input_of("n", "units", units, "derived", "for the busiest hour: scenario: hosted.provisioned"),
        input_of(
            "p", "usd_per_unit_hour", sold.usd_per_unit_hour, "config", "scenario: hosted.provisioned.price"
        ),
        input_of("h", "hours", comparison.traffic[0].hours, "config", "of a month, or of the job"),
    )
    return explained(key, api.bill.provisioned_usd, "n p h", inputs, MONEY)


def _part(part: str, traffic: HostedTraffic, price: TokenPrice, compared: _Compared) -> Explained:
    """Explain what one class pays an API for one kind of tokens."""
    function, letters = _WORKED_BY[part]
    billed = billed_class(traffic, price, compared.comparison.terms)
    price = billed.way.price
    inputs = {item.symbol: item for item in _letters(billed, traffic, price)}
    name = part if len(compared.comparison.traffic) == 1 else f"{traffic.request_class.name} {part}"
    steps = [
        _of_a_request(item, billed, traffic, price)
        for item in (inputs[letter] for letter in letters)
        if item.symbol in _RATES and item.value
    ]
    value = float(getattr(billed, "cache_storage_usd" if part == "storage_usd" else part))
    requests = [_requests(letter, billed, traffic, price) for letter in letters if letter in "mj"]
    return explained(
        name, value, formula_of(function), [inputs[letter] for letter in letters], MONEY, steps=(*requests, *steps)
    )  # fmt: skip


def _letters(billed: BilledClass, traffic: HostedTraffic, price: TokenPrice) -> tuple[Input, ...]:
    each, name = billed.each, traffic.request_class.name
    page = f"{price.source}, {price.date}"
    kept = "time to live against the time between requests with the same prefix: scenario: hosted.time_to_live, hosted.prefixes"
    return (
        input_of("m", "paid_requests", billed.paid_requests, "derived", "a step below"),
        input_of("j", "paid_reads", billed.paid_reads, "derived", "a step below"),
        input_of("a", "input_usd_per_request", each.input_usd, "spec", page),
        input_of("o", "output_usd_per_request", each.output_usd, "spec", page),
        input_of("s", "prefix_fraction", billed.prefix_fraction, "config", f"scenario: traffic, shared_prefix.hit_fraction of {name}"),
        input_of("f", "hit_fraction", billed.hit_fraction, "derived", kept),
        input_of("d", "prefix_input_usd_per_request", each.prefix_input_usd, "spec", page),
        input_of("k", "prefix_read_usd_per_request", each.prefix_read_usd, "spec", page),
        input_of("w", "prefix_write_usd_per_request", each.prefix_write_usd, "spec", page),
        input_of("h", "stored_token_hours", billed.stored_token_hours, "derived", kept),
        input_of("g", "storage_usd", billed.storage_usd, "spec", page),
    )  # fmt: skip


_RATES = {"a": "input", "d": "input", "k": "cache_read", "w": "cache_write", "o": "output"}
"""Letter of what a request costs -> the price in the list of the provider."""


def _requests(letter: str, billed: BilledClass, traffic: HostedTraffic, price: TokenPrice) -> Explained:
    source = f"scenario: traffic, mean rate of {traffic.request_class.name} over {traffic.hours:.6g} h"
    reads = letter == "j"
    off = billed.batch_read_fraction if reads else billed.batch_fraction
    sent = "discount of batches times the share that is sent in them"
    hours = (
        "no peak hours"
        if price.peak is None
        else f"hours of requests against peak hours in UTC; {price.source}"
    )
    inputs = (
        input_of("n", "requests", billed.requests, "config", source),
        input_of("b" if reads else "q", "batch_read_fraction" if reads else "batch_fraction", off, "spec", sent),
        input_of("v", "peak_ratio", billed.peak_ratio, "spec", hours),
    )  # fmt: skip
    if reads:
        return explained("paid_reads", billed.paid_reads, formula_of(BilledClass.paid_reads), inputs, MONEY)
    return explained(
        "paid_requests", billed.paid_requests, formula_of(BilledClass.paid_requests), inputs, MONEY
    )


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
        "o": request_class.generated_tokens,
    }.get(item.symbol, billed.each.mean_prefix_tokens)
    inputs = (
        input_of("t", _TOKENS.get(item.symbol, "prefix_tokens"), tokens, "config", f"scenario: traffic, mean of {request_class.name}"),
        input_of("p", f"{rate}_usd_per_million_tokens", listed, "spec", source),
    )  # fmt: skip
    return explained(item.name, float(item.value), formula, inputs, MONEY)


_TOKENS = {"a": "input_tokens", "o": "output_tokens"}


def _outside(compared: _Compared) -> Explained:
    traffic = compared.comparison.traffic
    inputs = [
        input_of(f"n_{number} x_{number}", f"{part.request_class.name} usd_per_request", part.request_class.outside.usd_per_request, "config", "scenario: traffic, outside")
        for number, part in enumerate(traffic)
    ]  # fmt: skip
    formula = "sum over the classes of requests times what one costs outside the GPUs"
    return explained("outside_usd", outside_usd(traffic), formula, inputs, MONEY)


def _own_total(compared: _Compared) -> Explained:
    step, own = with_people(compared.planned), compared.comparison.own
    row = Row("compare", compared.numbers, ("own",), step.label)
    inputs = row.inputs(
        {
            "m": "machines_usd_per_month",
            "o": "overhead_usd_per_month",
            "p": "people_usd_per_month",
            "y": "other_usd_per_month",
            "x": "outside_usd_per_month",
        }
    )
    return explained("usd_per_month", own.usd_today, "m + o + p + y + x", inputs, MONEY, steps=(step,))


def _own_machines(compared: _Compared) -> Explained:
    item = machines(compared.planned)
    return explained(
        "machines_usd_per_month", item.value, item.formula, item.inputs, item.page, steps=item.steps
    )


def _own_overhead(compared: _Compared) -> Explained:
    own = compared.comparison.own
    row = Row("compare", compared.numbers, ("own",))
    inputs = (*row.inputs({"m": "machines_usd_per_month"}), stated(compared.planned)[0])
    value = own.machines_usd * own.terms.overhead_fraction
    return explained("overhead_usd_per_month", value, "m f", inputs, MONEY)


def _own_people(compared: _Compared) -> Explained:
    people = stated(compared.planned)[1]
    return explained(people.name, float(people.value), "p", (people,), MONEY)


def _own_other(compared: _Compared) -> Explained:
    lines = compared.comparison.own.other
    inputs = [
        input_of(
            f"q_{n} u_{n}",
            line.what,
            line.usd,
            "assumed" if line.basis == "assumed" else "config",
            line.basis,
        )
        for n, line in enumerate(lines)
    ]
    return explained(
        "other_usd_per_month", total_usd(lines), "sum over the lines of quantity times price", inputs, MONEY
    )


def _own_rate(compared: _Compared) -> Explained:
    plan = compared.planned.plan
    alike = len(plan.groups) == 1
    inputs = [
        item
        for at, group in enumerate(plan.groups if plan.is_mix else plan.groups[:1])
        for path in ("" if alike else f"groups[{at}].",)
        for item in (
            input_of("r" if alike else f"r_{at}", "request_rate_per_replica", group.request_rate_per_replica, group.label, f"explain {path}request_rate_per_replica"),
            input_of("n" if alike else f"n_{at}", "busy_replicas", group.busy_replicas, "derived", f"explain {path}replicas, without spares"),
        )
    ]  # fmt: skip
    formula = " + ".join(f"{r.symbol} {n.symbol}" for r, n in zip(inputs[::2], inputs[1::2], strict=True))
    return explained("request_rate", compared.comparison.own.request_rate, formula, inputs, MONEY)


_OWN: Mapping[str, Callable[[_Compared], Explained]] = {
    "usd_per_month": _own_total,
    "gpus": lambda compared: compared.planned.of_plan("gpus"),
    "machines_usd_per_month": _own_machines,
    "overhead_usd_per_month": _own_overhead,
    "people_usd_per_month": _own_people,
    "other_usd_per_month": _own_other,
    "outside_usd_per_month": _outside,
    "request_rate": _own_rate,
}


def _break_even(compared: _Compared, api: ComparedApi) -> Explained:
    """Explain the traffic above which the self-hosted fleet never costs more: steps of whole replicas against a line."""
    own, rate = compared.comparison.own, api.breakeven_request_rate
    assert rate is not None
    groups = [
        item
        for number, group in enumerate(own.groups)
        for carried in replicas_over_time(np.array([rate]), group.request_rate).tolist()
        for item in (
            input_of(f"l_{number}", "planned_request_rate_per_replica", group.request_rate, "derived", "the smaller of both limits: explain sure_request_rate_limit_per_replica, and request_rate_limit_per_replica less headroom"),
            input_of(f"n_{number}", "busy_replicas", carried, "derived", "at the break-even"),
            input_of(f"u_{number}", "machines_usd_per_month", group.usd_of(carried), "derived", f"the cheapest order of {carried} replicas and their spares: {compared.planned.asked.scenario.fleet.survive.key}"),
        )
    ]  # fmt: skip
    at_rate = own.usd(rate)
    of_api = api.bill.usd / own.request_rate
    inputs = (
        *groups,
        *stated(compared.planned),
        input_of("y", "other_usd_per_month", total_usd(own.other), "config", "scenario: prices.other, of today; egress grows with traffic and support with machines"),
        input_of("c", "api_usd_per_month", of_api, "spec", f"{api.price.name}: its bill of today by the peak of today, in $ for each request a second; prefixes are found more often as traffic grows"),
        input_of("o", "own_usd_per_month", at_rate, "derived", f"the self-hosted fleet at the break-even, {HOURS_PER_MONTH:g} h"),
    )  # fmt: skip
    formula = "least r from which on (1 + f) sum_k u_k(n_k) + p + y(r) <= c(r), n_k = ceil(r / l_k)"
    return explained("breakeven_request_rate", rate, formula, inputs, MONEY)
