"""What the machines of a plan cost, and the bill of each class and tenant, explained."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from capplan.explain.quantities import Group, Planned, Row
from capplan.explain.subject import Explained, Input, Place, explained, formula_of, input_of, places_of
from capplan.fleet.money_terms import OwnTerms
from capplan.fleet.price import HOURS_PER_MONTH
from capplan.money.who_pays import ClassUse, Share, by_tenant
from capplan.questions.money.price_check import current_day
from capplan.questions.money.who_pays import AskedBill, PaidPlan, asked_bill, paid_plan
from capplan.report.answers.bill import bill_answer
from capplan.report.quantities import MONEY
from capplan.scenario.money_terms import memory_usd_per_month


def paid(planned: Planned) -> PaidPlan:
    """Return the recommended plan as it is paid for."""
    return paid_plan(planned.asked, planned.answer, "there is nothing to pay for", current_day())


def machines(planned: Planned) -> Explained:
    """Explain what the machines cost: of a month or of one job, with host memory for offloaded caches."""
    plan = paid(planned)
    memory = memory_usd_per_month(planned.asked.scenario, plan.plan) * plan.hours / HOURS_PER_MONTH
    rest = input_of("k", "host_memory_usd", memory, "config", "scenario: prices.host_memory and kv_offload")
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
    terms, step = planned.asked.scenario.own, machines(planned)
    other = paid(planned).other_usd
    inputs = (
        input_of("m", "machines_usd", step.value, step.label, "the first step below"),
        *stated(planned),
        input_of("x", "other_usd", other, "config", "scenario: prices.other"),
    )
    return explained(
        "own_usd", terms.usd(step.value, other), formula_of(OwnTerms.usd), inputs, MONEY, steps=(step,)
    )


def stated(planned: Planned) -> tuple[Input, ...]:
    """Return overhead and people."""
    terms = planned.asked.scenario.own
    return (
        input_of("f", "overhead_fraction", terms.overhead_fraction, "config", "scenario: prices.overhead"),
        input_of("p", "people_usd_per_month", terms.people_usd_per_month, "config", "scenario: prices.people"),
    )  # fmt: skip


_OF_OTHERS: Mapping[str, tuple[object, Mapping[str, str]]] = {
    "usd": (Share.usd, {"p": "prefill_usd", "d": "decode_usd", "x": "outside_usd"}),
    "with_idle_usd": (Share.with_idle_usd, {"c": "usd", "i": "idle_usd"}),
    "usd_per_request": (Share.usd_per_request, {"a": "with_idle_usd", "n": "requests"}),
    "usd_per_user": (Share.usd_per_user, {"a": "with_idle_usd"}),
    "usd_per_thousand_conversations": (Share.usd_per_thousand_conversations, {"u": "usd_per_request"}),
}
"""Number of a class -> the function that works it out, and the numbers of the class that it takes."""


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

    def row(self, *place: str | int) -> Row:
        """Return the numbers of a class or a tenant."""
        return Row("bill", self.numbers, place, self.label)


def bill_group(planned: Planned) -> Group:
    """Return what `capplan bill` prints; the order is explained as a number of the plan."""
    asked = asked_bill(planned.asked, planned.answer, current_day())
    result = bill_answer(asked, planned.asked.scenario.name, None, None).result
    numbers = {place: value for place, value in places_of(result) if place[0] != "order"}
    return Group(numbers, partial(_explain, _Billed(planned, asked, numbers)))


def _explain(billed: _Billed, place: Place, value: float) -> Explained:
    key = str(place[-1])
    if place[0] == "classes":
        return _of_class(billed, int(place[1]), key)
    if place[0] == "tenants":
        shares = by_tenant(billed.asked.bill.shares)
        mine = tuple(shares.values())[int(place[1])]
        at = [n for n, share in enumerate(billed.asked.bill.shares) if share in mine]
        parts = [_renamed(billed.row("classes", n).input(f"x_{n}", key)) for n in at]
        return explained(key, value, " + ".join(part.symbol for part in parts), parts, MONEY)
    if key == "gpus":
        return billed.planned.of_plan("gpus")
    if key == "busy_fraction":
        return _busy(billed)
    if key == "hours":
        paid_for = input_of("h", key, value, "derived", "365 x 24 / 12 hours of an average month, or the job")
        return explained(key, value, "h", (paid_for,), MONEY)
    if key == "idle_usd":
        return _idle(billed)
    cost = with_people(billed.planned)
    machines_usd = billed.asked.bill.machines_usd
    machines = input_of("C", cost.quantity, machines_usd, cost.label, "explain bill.usd_per_month")
    return explained(key, billed.asked.bill.usd, "C + x", (machines, _outside(billed)), MONEY, steps=(cost,))


def _renamed(item: Input) -> Input:
    return input_of(item.symbol, item.source.removeprefix("explain "), item.value, item.label, item.source)


def _idle(billed: _Billed) -> Explained:
    """Explain what GPUs cost while they wait: of each pool the part of its time that nobody uses."""
    bill, terms = billed.asked.bill, billed.planned.asked.scenario.own
    if len(bill.pools) > 1:
        formula = (
            "of each group, the cost of its machines for the part of its time in which no request is at work"
        )
        return explained("idle_usd", bill.idle_usd, formula, (_share_of_time(billed),), MONEY)
    step = machines(billed.planned)
    inputs = (
        input_of("M", "machines_usd", step.value, step.label, "the first step below"),
        input_of("f", "overhead_fraction", terms.overhead_fraction, "config", "scenario: prices.overhead"),
        _share_of_time(billed),
    )
    return explained("idle_usd", bill.idle_usd, "(1 - b) M (1 + f)", inputs, MONEY, steps=(step,))


def _share_of_time(billed: _Billed) -> Input:
    fraction = billed.asked.bill.busy_fraction
    return input_of("b", "busy_fraction", fraction, billed.label, "explain bill.busy_fraction")


def _shared(billed: _Billed) -> tuple[Input, ...]:
    """Return what the busy time of all replicas costs, with people and the rest."""
    usd = sum(pool.busy_usd for pool in billed.asked.bill.pools)
    return (input_of("W", "busy_usd", usd, billed.label, "bill.usd_per_month less idle_usd and outside_usd"),)


def _idle_input(billed: _Billed) -> tuple[Input, ...]:
    return (input_of("I", "idle_usd", billed.asked.bill.idle_usd, billed.label, "explain bill.idle_usd"),)


def _outside(billed: _Billed) -> Input:
    usd = sum(share.use.outside_usd for share in billed.asked.bill.shares)
    return input_of("x", "outside_usd", usd, "config", "scenario: traffic, outside: of all classes")


def _time(use: ClassUse, label: str) -> tuple[Input, ...]:
    """Return the time of a replica that one request takes."""
    return (
        input_of("p", "prefill_s", use.prefill_s, label, "its prompt of mean length by itself in a step, all sequences of the request"),
        input_of("d", "decode_s", use.decode_s, label, "its part of each decode step at the batch of the peak: (o - 1) t / n"),
    )  # fmt: skip


def _total(billed: _Billed) -> Input:
    seconds = sum(share.use.replica_s for share in billed.asked.bill.shares)
    return input_of("T", "replica_s", seconds, billed.label, "sum over all classes of n (p + d)")


def _busy(billed: _Billed) -> Explained:
    plan, bill = billed.planned.plan, billed.asked.bill
    paid = input_of(
        "H",
        "paid_replica_s",
        None,
        "derived",
        f"{plan.replicas} replicas, spares included, for the time that is paid for",
    )
    return explained("busy_fraction", bill.busy_fraction, "at most 1: T / H", (_total(billed), paid), MONEY)  # fmt: skip


def _of_class(billed: _Billed, position: int, key: str) -> Explained:
    share, row = billed.asked.bill.shares[position], billed.row("classes", position)
    if key in _OF_OTHERS:
        function, names = _OF_OTHERS[key]
        stated = _STATED.get(key)
        inputs = (*row.inputs(names), *([stated(share)] if stated else []))
        return explained(key, float(getattr(share, key)), formula_of(function), inputs, MONEY)
    if key == "usd_per_thousand_requests":
        value = 1000.0 * share.usd_per_request
        return explained(key, value, "1000 u", row.inputs({"u": "usd_per_request"}), MONEY)
    if key in _BY_TIME:
        return _by_time(billed, share, row, key)
    formula, number_of, source = _TRAFFIC[key]
    classes = billed.planned.asked.scenario.classes
    at = next(at for at, item in enumerate(classes) if f"{share.use.name}, ".startswith(f"{item.name}, "))
    stated_by = input_of("", share.use.name, None, "config", f"scenario: traffic[{at}]{source}")
    mean = () if key == "requests" else row.inputs({"n": "requests"})
    return explained(key, number_of(share.use), formula, (*mean, stated_by), MONEY)


_BY_TIME = {
    "prefill_usd": ("W n p / T", _shared),
    "decode_usd": ("W n d / T", _shared),
    "idle_usd": ("I n (p + d) / T", _idle_input),
    "gpu_time_fraction": ("n (p + d) / T", lambda _: ()),
}
_TRAFFIC: Mapping[str, tuple[str, Callable[[ClassUse], float], str]] = {
    "requests": ("mean rate times the time that is paid for", lambda use: use.requests, ""),
    "input_tokens": ("n times the mean prompt, of all sequences", lambda use: use.input_tokens, ".input_tokens"),
    "output_tokens": ("n times the mean output, of all sequences", lambda use: use.output_tokens, ".output_tokens"),
    "outside_usd": ("n times what a request costs outside", lambda use: use.outside_usd, ".outside"),
}  # fmt: skip
_STATED: Mapping[str, Callable[[Share], Input]] = {
    "usd_per_user": lambda share: input_of("m", "users", share.use.users, "config", "scenario: traffic, users"),
    "usd_per_thousand_conversations": lambda share: input_of(
        "k", "requests_per_conversation", share.use.requests_per_conversation, "config", "scenario: traffic, requests_per_conversation"
    ),
}  # fmt: skip


def _by_time(billed: _Billed, share: Share, row: Row, key: str) -> Explained:
    """Explain what follows from the time that a class takes of the replicas."""
    inputs = (*row.inputs({"n": "requests"}), *_time(share.use, billed.label))
    value = share.fraction if key == "gpu_time_fraction" else float(getattr(share, key))
    if len(billed.planned.plan.groups) > 1:
        formula = "of the cost of each group, the share of its time that the class takes; GPUs weigh the time of all"
        return explained(key, value, formula, inputs, MONEY)
    formula, cost = _BY_TIME[key]
    spent = [item for item in inputs if item.symbol in formula]
    return explained(key, value, formula, (*cost(billed), *spent, _total(billed)), MONEY)
