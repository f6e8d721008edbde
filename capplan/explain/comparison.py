"""The bill and the comparison with hosted APIs, explained.

What the machines of a plan cost, and the bill of each class and tenant, explained.

The comparison with hosted APIs explained: the own side, the parts of each API's bill, and the break-even.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from capplan.explain.plans import Group, NextToPlan, Planned, Row
from capplan.explain.subject import Explained, Input, Place, explained, formula_of, input_of, places_of
from capplan.explain.table import Stated, stated_input
from capplan.fleet.over_time import replicas_over_time
from capplan.fleet.price import HOURS_PER_MONTH, Prices
from capplan.money.cash import total_usd
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
from capplan.money.who_pays import ClassUse, by_tenant
from capplan.questions.money.comparison import asked_comparison, asked_prices
from capplan.questions.money.who_pays import AskedBill, PaidPlan, asked_bill, paid_plan
from capplan.questions.plans.plan_check import current_day
from capplan.report.answers.compare import bill_answer, compare_answer
from capplan.report.quantities import MONEY
from capplan.scenario.money_terms import memory_usd_per_month
from capplan.workload.request_class import SLICES


def paid(planned: Planned) -> PaidPlan:
    """Return the recommended plan as it is paid for."""
    return paid_plan(planned.asked, planned.answer, "there is nothing to pay for", current_day())


def machines(planned: Planned) -> Explained:
    """Explain what the machines cost: of a month or of one job, with host memory for offloaded caches."""
    plan = paid(planned)
    memory = memory_usd_per_month(planned.asked.scenario, plan.plan) * plan.hours / HOURS_PER_MONTH
    rest = input_of(
        "k", "host_memory_usd", memory, "config", "scenario: prices.host_memory_per_gb and kv_offload"
    )
    if plan.by_mix and not plan.of_job:
        mix = plan.machines_usd - memory
        mixed = input_of("m", "usd_per_month", mix, "derived", "explain commitments.usd_per_month")
        return explained("machines_usd", plan.machines_usd, "m + k", (mixed, rest), MONEY)
    name = "usd_per_job" if plan.of_job else "usd_per_month"
    rented = planned.of_plan(name)
    cost = input_of("m", name, rented.value, rented.label, f"explain {name}")
    return explained("machines_usd", plan.machines_usd, "m + k", (cost, rest), MONEY, steps=(rented,))


def with_people(planned: Planned) -> Explained:
    """Explain what the machines cost with people and overhead."""
    terms, step = planned.asked.scenario.file.prices, machines(planned)
    other = paid(planned).other_usd
    inputs = (
        input_of("m", "machines_usd", step.value, step.label, "the first step below"),
        *stated(planned),
        input_of("x", "other_usd", other, "config", "scenario: prices.other"),
    )
    return explained(
        "own_usd", terms.usd(step.value, other), formula_of(Prices.usd), inputs, MONEY, steps=(step,)
    )


def stated(planned: Planned) -> tuple[Input, ...]:
    """Return overhead and people."""
    terms = planned.asked.scenario.file.prices
    return (
        input_of("f", "overhead_fraction", terms.overhead, "config", "scenario: prices.overhead"),
        input_of("p", "people_usd_per_month", terms.people_usd_per_month, "config", "scenario: prices.people"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Billed:
    """The bill of a plan, and its numbers."""

    planned: Planned
    asked: AskedBill
    numbers: Mapping[Place, float]

    @property
    def label(self) -> str:
        """Return the label of the times that the cost is shared by."""
        return self.planned.plan.groups[0].label

    @property
    def tabled(self) -> NextToPlan:
        """Return the numbers, with the arguments of those that the table of quantities explains."""
        return NextToPlan("bill", self.numbers, self._arguments(), self.label)

    def _arguments(self) -> Mapping[str, Callable[[Place], Stated]]:
        bill, plan = self.asked.bill, self.planned.plan
        classes = self.planned.asked.scenario.classes

        def use(place: Place) -> ClassUse:
            return bill.shares[int(place[1])].use

        def traffic(place: Place) -> Stated:
            mine = f"{use(place).name}, "
            at = next(at for at, item in enumerate(classes) if mine.startswith(f"{item.name}, "))
            key = {"requests": "", "outside_usd": ".outside"}.get(str(place[-1]), f".{place[-1]}")
            return Stated(None, f"scenario: traffic[{at}]{key}", name=use(place).name)

        return {
            "all_replica_s": lambda _: Stated(sum(share.use.replica_s for share in bill.shares), label=self.label),
            "busy_usd": lambda _: Stated(sum(pool.busy_usd for pool in bill.pools), label=self.label),
            "class_decode_s": lambda place: Stated(use(place).decode_s, label=self.label),
            "class_prefill_s": lambda place: Stated(use(place).prefill_s, label=self.label),
            "class_traffic": traffic,
            "class_users": lambda place: Stated(use(place).users),
            "conversation_requests": lambda place: Stated(use(place).requests_per_conversation),
            "paid_hours": lambda place: Stated(self.numbers[place]),
            "paid_replica_s": lambda _: Stated(None, f"{plan.replicas} replicas, spares included, for the time that is paid for"),
            "waiting_usd": lambda _: Stated(bill.idle_usd, label=self.label),
        }  # fmt: skip


def bill_group(planned: Planned) -> Group:
    """Return what `capplan bill` prints; the order is explained as a number of the plan."""
    asked = asked_bill(planned.asked, planned.answer, current_day())
    result = bill_answer(asked, planned.asked.scenario.name, None, None).result
    numbers = {place: value for place, value in places_of(result) if place[0] != "order"}
    return Group(numbers, partial(_bill_explain, _Billed(planned, asked, numbers)))


def _bill_explain(billed: _Billed, place: Place, value: float) -> Explained:
    """Explain a number of a bill: sums, what rests on the plan, time of several groups, else as the table says."""
    key, of = str(place[-1]), billed.tabled
    if place[0] == "tenants":
        shares = by_tenant(billed.asked.bill.shares)
        mine = tuple(shares.values())[int(place[1])]
        at = [n for n, share in enumerate(billed.asked.bill.shares) if share in mine]
        parts = [replace(item, name=item.source.removeprefix("explain ")) for n in at for item in (of.row("classes", n).input(f"x_{n}", key),)]  # fmt: skip
        return explained(key, value, " + ".join(part.symbol for part in parts), parts, MONEY)
    if place[0] == "classes" and key in _BY_TIME and len(billed.planned.plan.groups) > 1:
        formula = "of the cost of each group, the share of its time that the class takes; GPUs weigh the time of all"
        times = (stated_input(f"class_{phase}_s", phase[0], of.given[f"class_{phase}_s"](place)) for phase in ("prefill", "decode"))  # fmt: skip
        return explained(key, value, formula, (*of.row(*place[:2]).inputs({"n": "requests"}), *times), MONEY)
    if key == "gpus":
        return billed.planned.of_plan("gpus")
    if place[0] == "classes" or key in ("busy_fraction", "hours"):
        return of.explain(place, value)
    if key == "idle_usd":
        return _idle(billed)
    cost = with_people(billed.planned)
    machines_usd = billed.asked.bill.machines_usd
    machines = input_of("C", cost.quantity, machines_usd, cost.label, "explain bill.usd_per_month")
    return explained(
        key, billed.asked.bill.usd, "C + x", (machines, _bill_outside(billed)), MONEY, steps=(cost,)
    )


_BY_TIME = ("prefill_usd", "decode_usd", "idle_usd", "gpu_time_fraction")
"""What follows from the time that a class takes of the replicas."""


def _idle(billed: _Billed) -> Explained:
    """Explain what GPUs cost while they wait: of each pool the part of its time that nobody uses."""
    bill, terms = billed.asked.bill, billed.planned.asked.scenario.file.prices
    if len(bill.pools) > 1:
        formula = (
            "of each group, the cost of its machines for the part of its time in which no request is at work"
        )
        return explained("idle_usd", bill.idle_usd, formula, (_share_of_time(billed),), MONEY)
    step = machines(billed.planned)
    inputs = (
        input_of("M", "machines_usd", step.value, step.label, "the first step below"),
        input_of("f", "overhead_fraction", terms.overhead, "config", "scenario: prices.overhead"),
        _share_of_time(billed),
    )
    return explained("idle_usd", bill.idle_usd, "(1 - b) M (1 + f)", inputs, MONEY, steps=(step,))


def _share_of_time(billed: _Billed) -> Input:
    fraction = billed.asked.bill.busy_fraction
    return input_of("b", "busy_fraction", fraction, billed.label, "explain bill.busy_fraction")


def _bill_outside(billed: _Billed) -> Input:
    usd = sum(share.use.outside_usd for share in billed.asked.bill.shares)
    return input_of("x", "outside_usd", usd, "config", "scenario: traffic, outside: of all classes")


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
    return Group(numbers, partial(_comparison_explain, _Compared(planned, compared.comparison, numbers)))


def _comparison_explain(compared: _Compared, place: Place, value: float) -> Explained:
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
        return _comparison_outside(compared)
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
        input_of("p", "usd_per_unit_hour", sold.price, "config", "scenario: hosted.provisioned.price"),
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


def _comparison_outside(compared: _Compared) -> Explained:
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
    value = own.machines_usd * own.terms.overhead
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
    "outside_usd_per_month": _comparison_outside,
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
