"""The schema of a scenario YAML, before anything is resolved: keys for one model or several, in one region or several.

Lengths and the rates of a day come first, then the keys about money, then the scenario.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from shlex import join
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.fleet.scenario import (
    CascadePart,
    CascadeStage,
    Disaggregation,
    MixBy,
    Purchase,
    SharedBy,
    SharingTerms,
)
from capplan.keys import (
    COUNT_SCHEMA,
    FRACTION_SCHEMA,
    Bytes,
    BytesPerS,
    Confidence,
    Day,
    Discount,
    Fraction,
    Headroom,
    HoursPerDay,
    KgPerKwh,
    Number,
    RequestsPerS,
    RequestsPerSOrZero,
    Seconds,
    SecondsOrZero,
    Share,
    StartUp,
    Tokens,
    Usd,
    UsdEach,
    UsdOfBudget,
    UsdPerHour,
    UsdPerKwh,
    UsdPerMonth,
    Watts,
    Whole,
    WholeTokens,
    Years,
)
from capplan.model.network import LoraTerms
from capplan.money.hosted import Hosted
from capplan.money.ledger import BudgetTerms
from capplan.money.price import Prices
from capplan.readers.catalogue.scenarios import scenario_word
from capplan.readers.record import OrNumber, Record, RevisionName, one_or_more, unknown_name
from capplan.replica.speculation import Method
from capplan.serving.terms import Routing
from capplan.workload.daily_curve import HOURS, SHAPES, relative_to_peak
from capplan.workload.length import (
    Lengths,
    empirical,
    fixed,
    lognormal,
    lognormal_quantile,
    lognormal_sigma,
    standard_normal_quantile,
    uniform,
)
from capplan.workload.request_class import Images

PROBABILITIES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
Refuse = Callable[[str], InputError]


class LengthFields(Record):
    """Token counts: `fixed`; `mean` with quantiles; two quantiles; `min` with `max`; or `values`."""

    fixed: Tokens | None = None
    """Length of every request; a number in place of the mapping means the same."""
    mean: Tokens | None = None
    """Mean length; with one or more percentiles the length is lognormal."""
    p50: Tokens | None = None
    """Median length; needs the mean or another percentile."""
    p90: Tokens | None = None
    p95: Tokens | None = None
    p99: Tokens | None = None
    min: Tokens | None = None
    """Shortest length; shorter draws are raised to it. With min and max only, all lengths between are equally likely."""
    max: Tokens | None = None
    """Longest length; longer lengths are cut to it."""
    values: Annotated[list[Tokens], Field(min_length=1)] | None = None
    """Observed lengths, drawn from at random."""


def _number_is(key: str) -> BeforeValidator:
    """Return the validator of a section that may be one number, the value of this key."""

    def section(written: object) -> object:
        is_number = isinstance(written, (int, float, str)) and not isinstance(written, bool)
        return {key: written} if is_number else written

    return BeforeValidator(section)


LengthRecord = Annotated[LengthFields, _number_is("fixed"), OrNumber]


class UsersFields(Record):
    """Users who are active at the same time: a number, or `employees` of whom a share is `active`."""

    employees: Number
    """People who may use the service."""
    active: Share = 1.0
    """Share of the employees who are active at the same time; left out: all of them."""

    @property
    def at_once(self) -> float:
        """Users who are active at the same time, whole people of a share.

        Examples
        --------
        >>> UsersFields(employees=2000, active=0.2).at_once
        400.0
        """
        return self.employees if self.active == 1.0 else max(float(round(self.employees * self.active)), 1.0)


UsersRecord = Annotated[UsersFields, _number_is("employees"), OrNumber]


def _check_order(record: LengthFields, quantiles: dict[str, float], refuse: Refuse) -> None:
    ordered = [
        *([("min", record.min)] if record.min else []),
        *quantiles.items(),
        *([("max", record.max)] if record.max else []),
    ]
    for (low_name, low), (high_name, high) in pairwise(ordered):
        if low > high:
            raise refuse(f"{high_name} {high:g} is below {low_name} {low:g}")
    if record.mean is None:
        return
    for name, value in quantiles.items():
        if name != "p50" and value < record.mean:
            raise refuse(f"{name} {value:g} is below the mean {record.mean:g}; were they swapped?")
        if name == "p50" and value > record.mean:
            raise refuse(
                f"p50 {value:g} is above the mean {record.mean:g}; lengths are skewed the other way; give a trace or values"
            )
        most = record.mean * math.exp(float(standard_normal_quantile(PROBABILITIES[name])) ** 2 / 2.0)
        if name != "p50" and value > most:
            raise refuse(
                f"{name} {value:g} is more than {most / record.mean:.3g} times the mean {record.mean:g}, which no lognormal distribution reaches; "
                "give p50 together with p95 without the mean, or values, or a trace"
            )
    if not (record.min or 0) <= record.mean <= (record.max or math.inf):
        raise refuse(f"the mean {record.mean:g} lies outside min and max")


def _spread(mean: float, quantiles: dict[str, float]) -> float:
    """Return the shape that fits one quantile exactly, or several as well as it can."""
    if len(quantiles) == 1:
        ((name, value),) = quantiles.items()
        if name == "p50":
            return math.sqrt(2.0 * math.log(mean / value))
        return float(lognormal_sigma(mean, value, PROBABILITIES[name]))
    sigmas = np.linspace(0.0, 4.0, 4001)
    error = sum(
        np.log(np.asarray(lognormal_quantile(mean, sigmas, PROBABILITIES[name])) / value) ** 2
        for name, value in quantiles.items()
    )
    return float(sigmas[int(np.argmin(error))])


def lengths(record: LengthFields, refuse: Refuse) -> Lengths:
    """Return the distribution that a record describes.

    Parameters
    ----------
    record : LengthFields
    refuse : function
        Makes the error from a message and adds the place.
    """
    quantiles = {name: value for name in PROBABILITIES if (value := getattr(record, name)) is not None}
    given = {name for name in LengthFields.model_fields if getattr(record, name) is not None}
    if "fixed" in given or "values" in given:
        if len(given) > 1:
            raise refuse(f"{' and '.join(sorted(given))} cannot be combined")
        return fixed(record.fixed) if record.fixed is not None else empirical(np.array(record.values))
    _check_order(record, quantiles, refuse)
    low, high = record.min or 0.0, record.max or math.inf
    if record.mean is not None:
        if not quantiles and given != {"mean"}:
            raise refuse("mean with min or max does not determine the shape; add p95")
        return (
            lognormal(record.mean, _spread(record.mean, quantiles), low=low, high=high)
            if quantiles
            else fixed(record.mean)
        )
    if given == {"min", "max"}:
        return uniform(low, high)
    if len(quantiles) < 2:
        raise refuse(
            "is not enough; give a number, or mean and p95, e.g. {mean: 1800, p95: 6000}, or min and max"
        )
    z = np.array([float(standard_normal_quantile(PROBABILITIES[name])) for name in quantiles])
    sigma, centre = np.polyfit(z, np.log(np.array(list(quantiles.values()))), 1)
    return lognormal(math.exp(centre + sigma**2 / 2.0), float(sigma), low=low, high=high)


_ALLOWED = f"give {HOURS}, one per hour from midnight on, or a shape: {', '.join(SHAPES)}"


def _shape_or_rates(written: object) -> object:
    if isinstance(written, list):
        gap = next((hour for hour, rate in enumerate(written) if rate is None), None)
        if gap is not None:
            raise ValueError(f"has a gap: hour {gap} has no rate; write 0 for an hour without traffic")
    if not isinstance(written, str):
        return written
    if written not in SHAPES:
        raise unknown_name("shape", written, SHAPES)
    return list(SHAPES[written])


def _hours(rates: list[float]) -> list[float]:
    if len(rates) != HOURS:
        values = f"{len(rates)} value{'s' if len(rates) != 1 else ''}"
        raise ValueError(f"has {values}; {_ALLOWED}")
    if max(rates) == 0.0:
        raise ValueError(f"is 0 in every hour; {_ALLOWED}")
    return list(relative_to_peak(rates))


DailyCurve: TypeAlias = Annotated[
    list[RequestsPerSOrZero],
    BeforeValidator(_shape_or_rates),
    AfterValidator(_hours),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(SHAPES)},
                {
                    "type": "array",
                    "items": {
                        "type": ["string", "number"],
                        "description": "a rate of any unit, such as 20 req/s",
                    },
                    "minItems": HOURS,
                    "maxItems": HOURS,
                },
            ]
        }
    ),
]
"""Read as fractions: the rate of every hour over that of the busiest one."""


class Reserved(Record):
    """A device rented for a fixed term: its price, its discount, or listed offers."""

    price: UsdPerHour | None = None
    """Price of one device."""
    discount: Discount | None = None
    """Discount on the price on demand."""
    upfront: Fraction = 0.0
    """Share of the whole term that is paid at its start."""


class Spot(Record):
    """Devices that may be taken away."""

    headroom: Fraction = 0.2
    """Spot machines beyond the need, for those that are interrupted."""
    most: Fraction = 0.5
    """Share of the replicas at the peak that may be spot."""


class Owned(Record):
    """Devices that are bought."""

    capex: Usd
    """Purchase price of one device, with its share of server, network and installation."""
    life: Years = 4.0
    """Time after which only `residual` is left of its value."""
    residual: Discount = 0.0
    """Share of the purchase that is left at the end of its life; nothing if not stated."""
    interest: Fraction = 0.08
    """Interest rate per year."""
    upkeep: Fraction = 0.05
    """Share of the purchase price per year for maintenance, space and insurance."""
    electricity: UsdPerKwh
    """Price of electricity for the device while it runs."""
    power: Watts | None = None
    """Power of a device in use, with its share of the server."""
    facility_ratio: Annotated[float, Field(ge=1, le=5)] = 1.0
    """Power of the building, divided by the power of the devices."""
    idle: Fraction = 1.0
    """Power of a waiting device, divided by the power of a busy one."""
    people: UsdPerMonth = 0.0
    """Cost of the staff that runs them, in all."""


class Commitments(Record):
    """Which commitments are allowed in addition to on-demand prices, and the limits of the autoscaler."""

    reserved_1y: Reserved | None = None
    """Terms of a reservation for one year; {} takes listed offers, else the assumed discount."""
    reserved_3y: Reserved | None = None
    """Terms of a reservation for three years."""
    spot: Spot | None = None
    """Terms of spot machines at listed prices; {} takes the defaults."""
    owned: Owned | None = None
    """Terms of GPUs that you buy."""
    interest: Fraction = 0.0
    """Yearly cost of capital on the upfront parts of reservations; not counted if not stated."""
    begin: Day | None = None
    """Month in which the terms begin, for bills of a month; the month of the bill if not stated."""
    min_replicas: Annotated[Whole, Field(ge=1, le=100_000)] | None = None
    """Fewest replicas that the autoscaler keeps."""
    max_replicas: Annotated[Whole, Field(ge=1, le=100_000)] | None = None
    """Most replicas that the autoscaler starts."""


class Currency(Record):
    """A currency in addition to dollars."""

    name: Annotated[str, Field(min_length=1, max_length=12)]
    """Name of the currency, as shown."""
    usd: Annotated[float, Field(ge=1e-6, le=1e6)]
    """Dollars that one unit of it costs."""


class Growth(Record):
    """How the traffic grows by the month: by the same part each month, or to stated rates."""

    per_month: Fraction | None = None
    """Growth from one month to the next."""
    months: Annotated[Whole, Field(ge=2, le=120)] | None = None
    """Months to look ahead, the current month included."""
    rates: dict[str, RequestsPerS] | None = None
    """Peak rate of all traffic by month, instead of per_month; today's month is 1."""
    gpu_price_decline: Fraction = 0.0
    """Yearly fall of the price of the same GPU hours; a term keeps the price of the month in which it begins."""
    token_price_decline: Fraction = 0.0
    """Yearly fall of the prices of hosted APIs, which `capplan compare` follows month by month."""


class MeasuredPower(Record):
    """Power of one device as measured, instead of parts of its thermal design power."""

    idle: Watts | None = None
    """Power of a device that waits."""
    decode: Watts | None = None
    """Power of a device in decode."""
    prefill: Watts | None = None
    """Power of a device in prefill."""


class Power(Record):
    """Power by phase, and what is around the devices; `capplan fleet` then shows energy, carbon dioxide and racks."""

    idle: Fraction | None = None
    """Power of a device that waits, over its thermal design power."""
    decode: Fraction | None = None
    """Power of a device in decode, over its thermal design power."""
    prefill: Fraction | None = None
    """Power of a device in prefill, over its thermal design power."""
    measured: MeasuredPower = Field(default_factory=MeasuredPower)
    """Measured power of a device, in watts, instead of idle, decode and prefill."""
    host: Fraction | None = None
    """Power of the servers around the devices at all times, over the thermal design power of the devices."""
    facility_ratio: Annotated[float, Field(ge=1, le=5)] | None = None
    """Power of the building, divided by the power of the servers."""
    grid: KgPerKwh | None = None
    """Carbon dioxide of the electricity."""
    rack_limit: Watts | None = None
    """Power of one rack."""
    gpus_per_server: Annotated[Whole, Field(ge=1, le=1024)] = 8
    """GPUs of one server; a rack takes whole servers."""


class Budget(Record):
    """What the fleet may cost, a target like those of latency."""

    usd_per_month: UsdOfBudget
    """All devices, spares included: by the cheapest mix where commitments are named, else at the price of prices.commitment."""
    includes: list[Literal["people", "overhead", "other"]] = Field(default_factory=list)
    """What the budget pays for in addition to the machines: prices.people, prices.overhead, prices.other."""


Changed = Annotated[dict[str, Any], Field(max_length=100)]


class Cascade(Record):
    """A large model that a share of the requests is escalated to; the model of the scenario is the small one."""

    model: str
    """The large one: Hugging Face id, shipped alias, or path relative to this file."""
    revision: RevisionName | None = None
    """Branch, tag or commit of the large model on the hub."""
    escalated: Fraction
    """Share of the requests that the large one answers."""
    after: CascadeStage = "answer"
    """Moment at which a request is escalated: after the whole response of the small model, or after the verdict of a router before it."""
    verdict_time: SecondsOrZero = 0.0
    """Time of the judge or of the router for every request, on other machines than the fleets."""
    changes: Changed = Field(default_factory=dict)
    """Keys of the scenario that differ for the large one, nested as there; null takes a key away."""
    part: CascadePart | None = None
    """Plan only this fleet: first (small), second (large, what is escalated), alone (large, all requests)."""

    @property
    def first_fraction(self) -> float:
        """Share of the requests that the small model answers."""
        return 1.0 if self.after == "answer" else 1.0 - self.escalated


class SharedModel(Record):
    """A model that shares devices with that of the scenario."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    """Name shown in results."""
    model: str
    """Hugging Face id, shipped alias, or path relative to this file."""
    revision: RevisionName | None = None
    """Branch, tag or commit on the hub."""
    gpu_memory_utilization: Share | None = None
    """Fraction of the memory of each device that this model has, with by: device; the scenario's own key is for its own model."""
    changes: Changed = Field(default_factory=dict)
    """Keys of the scenario that differ for it, nested as there; without traffic among them it is idle."""


class Sharing(Record):
    """Models that share devices with the model of the scenario."""

    by: SharedBy
    """What is shared: every device, in slices of its time and memory; or devices cut into MIG slices, each with one model."""
    models: Annotated[list[SharedModel], Field(min_length=1, max_length=20)]
    """Models that share GPUs with the scenario's own."""
    part: str | None = None
    """Plan only the fleet of this model, by its name; own: of the scenario's own model."""


class Region(Record):
    """A region whose users send a part of the traffic, or in which machines may be."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    """Name of the region, as in traffic[].region and fleet.location."""
    utc_offset: Annotated[float, Field(ge=-12, le=14)] | None = None
    """Hours by which the local time of its users, in which daily curves are written, is ahead of UTC."""
    delay: dict[str, SecondsOrZero] = Field(default_factory=dict)
    """Time of a round trip on the network from its users to the machines of another region, by name."""
    offers: Annotated[list[str], Field(min_length=1)] | None = None
    """Names that providers have for the region; machines are then ordered there."""
    electricity: UsdPerKwh | None = None
    """Price of electricity there, instead of prices.electricity."""
    grid: KgPerKwh | None = None
    """Carbon dioxide of the electricity there, instead of energy.grid."""


def _as_list(written: object) -> object:
    alone = isinstance(written, (str, int, float)) and not isinstance(written, bool)
    return [written] if alone else written


def _switched_off(written: object) -> object:
    return "off" if written is False else written  # YAML reads a bare off as false


MOST_CLASSES = 1_000
"""Kinds of requests of one scenario; 500 open ones take a fleet some seconds."""
MOST_REGIONS = 100
Count = Annotated[Whole, Field(ge=1, le=1_000_000_000)]
Limit = Annotated[WholeTokens, Field(le=1_000_000_000)]
Counts = Annotated[
    list[Count],
    BeforeValidator(_as_list),
    Field(min_length=1),
    one_or_more(COUNT_SCHEMA),
]
Names = Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1), one_or_more({"type": "string"})]


class SharedPrefix(Record):
    """Leading tokens that the prompts of a class have in common, such as a system prompt."""

    tokens: Tokens
    """Length of the shared prefix, which the mean input length includes."""
    hit_fraction: Fraction | None = None
    """Share of the requests that hit the prefix; for sessions it follows from their traffic."""


class Retries(Record):
    """Outputs that do not have the form that was asked for, and are asked for again."""

    invalid: Annotated[Fraction, Field(lt=1)]
    """Share of the outputs that are not valid."""
    attempts: Annotated[Whole, Field(ge=1, le=100)]
    """Most attempts, the first one included."""


class Outside(Record):
    """What a request takes outside the GPUs: retrieval, tools, checks, each with its time and its price."""

    time: SecondsOrZero | None = None
    """Time before the prompt of every request is sent, such as retrieval."""
    usd_per_request: UsdEach | None = None
    """Price of every request outside the GPUs."""
    tool_calls: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Calls before the prompt of a request, one after the other; with turns, calls between two turns."""
    tool_time: SecondsOrZero | None = None
    """Time of one call; with turns, think_time states the time of all calls together."""
    usd_per_tool_call: UsdEach | None = None
    """Price of one call."""


class Traffic(Record):
    """A kind of request: how often (one of request_rate, users, requests, trace) and how long."""

    name: str = "requests"
    """Name of this class of requests, shown in results."""
    request_rate: RequestsPerS | None = None
    """Request rate at the peak."""
    users: UsersRecord | None = None
    """Users who are active at the same time: each waits for a response, thinks, and sends the next request. A number, or a share of employees."""
    think_time: SecondsOrZero | None = None
    """Time from a response to the next request of the same user, or to the next turn of the same session; 0 s: the next request follows at once."""
    turns: LengthRecord | None = None
    """Requests of one session, each with all that was said before as its prompt; prefix hits then follow from the traffic."""
    added_tokens: LengthRecord | None = None
    """Tokens that the user or the tools add before each later turn; input_tokens is the prompt of the first turn."""
    requests: Number | None = None
    """Number of requests in a batch job."""
    within: Seconds | None = None
    """Time in which a batch job has to finish."""
    trace: str | None = None
    """File with arrivals and lengths, relative to this one."""
    mean_rate: RequestsPerS | None = None
    """Mean over all hours that the machines are paid for, at most the peak; affects the cost, not the size of the fleet."""
    daily_curve: DailyCurve | None = None
    """Instead of mean_rate: 24 rates, one per hour from midnight on, scaled so that the largest is the peak; or a shape."""
    active_hours: HoursPerDay | None = None
    """Instead of mean_rate: hours of a day with traffic, at its peak; the machines are paid for all 24."""
    input_tokens: LengthRecord | None = None
    """Input length of a request, the shared prefix included."""
    output_tokens: LengthRecord | None = None
    """Output length of a request."""
    reasoning_tokens: LengthRecord | None = None
    """Tokens of reasoning before the answer, in addition to output_tokens; max is their budget."""
    samples: Annotated[Whole, Field(ge=1, le=1000)] | None = None
    """Outputs of every request, for best-of-N or self-consistency; their prompt is computed once."""
    retries: Retries | None = None
    """Outputs that are not valid and are requested again."""
    images: Images | None = None
    """Images in addition to the text of input_tokens; their tokens are added to it by the rule of the model."""
    documents: Annotated[Whole, Field(ge=1, le=10_000)] | None = None
    """Documents of one request to score or embed: each is a prompt of input_tokens, for a reranker with the query in it."""
    padded_batch: Annotated[Whole, Field(ge=1, le=10_000)] | None = None
    """Sequences of a batch job that are padded to the longest of them; left out: sequences are packed, as engines do."""
    shared_prefix: SharedPrefix | None = None
    """Leading tokens that prompts have in common."""
    outside: Outside | None = None
    """Time and money outside the GPUs, such as retrieval and tools."""
    tenant: Annotated[str, Field(min_length=1, max_length=60)] | None = None
    """Tenant that pays for the class, for `capplan bill`."""
    region: Annotated[str, Field(min_length=1, max_length=60)] | None = None
    """Region whose users send these requests, of `regions`; daily_curve is then in its local time."""
    requests_per_conversation: Annotated[Number, Field(ge=1)] | None = None
    """Mean requests of a conversation, for the price of a thousand conversations."""
    arrival_cv: Annotated[float, Field(gt=0, le=100)] | None = None
    """Burstiness: coefficient of variation of the time between arrivals; 1 is Poisson. Not for users or sessions: they send after responses."""
    priority: Annotated[Whole, Field(ge=0, le=1000)] | None = None
    """Order in a simulation: lower numbers are admitted first and preempted last; default 0."""
    deadline: Seconds | None = None
    """Longest wait in a simulation; requests that wait longer are shed."""


class Promise(Record):
    """Limits on time to first token, time per output token, inter-token latency, and end-to-end latency."""

    ttft_mean: Seconds | None = None
    ttft_p50: Seconds | None = None
    ttft_p90: Seconds | None = None
    ttft_p95: Seconds | None = None
    ttft_p99: Seconds | None = None
    tpot_mean: Seconds | None = None
    tpot_p50: Seconds | None = None
    tpot_p90: Seconds | None = None
    tpot_p95: Seconds | None = None
    tpot_p99: Seconds | None = None
    itl_mean: Seconds | None = None
    itl_p50: Seconds | None = None
    itl_p90: Seconds | None = None
    itl_p95: Seconds | None = None
    itl_p99: Seconds | None = None
    e2e_mean: Seconds | None = None
    e2e_p50: Seconds | None = None
    e2e_p90: Seconds | None = None
    e2e_p95: Seconds | None = None
    e2e_p99: Seconds | None = None
    outside: Literal["included", "excluded"] | None = None
    """Whether targets of ttft and e2e include the time of traffic.outside."""
    confidence: Confidence | None = None
    """Probability with which all targets must be met, given how far predictions were from measured results;
    50 % sizes by the central prediction."""


class Fleet(Record):
    """Hardware and layouts that a plan may use."""

    hardware: Names | None = None
    """Catalogue names, aliases, or paths of hardware YAML relative to this file."""
    headroom: Headroom | None = None
    """Share of the capacity that stays unused at peak."""
    spare_replicas: Annotated[Whole, Field(ge=0, le=10_000)] | None = None
    """Replicas beyond those that the peak needs, so that one may fail; the same as survive: {replica: N}."""
    survive: dict[str, Annotated[Whole, Field(ge=0, le=16)]] | None = None
    """What may fail at once while the fleet still meets its targets at the peak: {machine: 1}, or replica, rack or zone, and how
    many; if left out, one machine, or nothing for batch jobs."""
    machines_per_rack: Annotated[Whole, Field(ge=1, le=16)] | None = None
    """Machines that fail together with a rack, for survive: {rack: N}."""
    zones: Annotated[Whole, Field(ge=2, le=16)] | None = None
    """Zones that the machines are spread over, for survive: {zone: N}."""
    max_unavailable: Annotated[Whole, Field(ge=0, le=10_000)] | None = None
    """Replicas that a rolling update takes out at once, while what may fail has failed; if left out, updates use the spares."""
    time_to_failure: Seconds | None = None
    """Mean time between two failures of one machine; if left out, by its GPUs, as published for H100 servers."""
    time_to_repair: Seconds | None = None
    """Mean time until a failed machine is repaired or replaced."""
    start_up: StartUp | None = None
    """Time from the decision to start a replica to the first request that it serves; for traffic from a trace."""
    burst: Annotated[float, Field(ge=1, le=100)] | None = None
    """Size the fleet for this multiple of the busiest minute of a trace; if left out, only the table of spares shows a burst, of 1.5."""
    routing: Routing | None = None
    """How requests are routed to replicas: in turn, at random, to the least loaded one, or to the one with the prefix."""
    tensor_parallel: Counts | None = None
    """Devices that every matrix is split over."""
    pipeline_parallel: Counts | None = None
    """Stages that the layers are distributed over."""
    expert_parallel: Counts | None = None
    """Groups that whole experts are distributed over; if left out, 1 and all ranks of a stage are tried."""
    data_parallel: Counts | None = None
    """Attention groups of tensor_parallel ranks, each with different sequences; if left out, 1 and one per rank are tried."""
    max_gpus: Count | None = None
    """Most GPUs of the whole fleet, spares included."""
    max_gpus_per_replica: Count | None = None
    """Most GPUs of one replica."""
    machines: Names | None = None
    """Machines that may be ordered, by sku; if left out, those in which the provider of the price sells the GPU."""
    providers: Names | None = None
    """Providers whose machines may be ordered."""
    regions: Names | None = None
    """Regions in which machines may be ordered, by the provider's name."""
    location: Annotated[str, Field(min_length=1, max_length=60)] | None = None
    """Region of all machines, of `regions`; default: the one from which most requests come."""
    serves: Literal["all", "location"] | None = None
    """Requests of all regions, or only of users at fleet.location; default: all."""
    own: dict[str, Annotated[Whole, Field(ge=1, le=1_000_000)]] | None = None
    """Machines that you have, by sku or GPUS x DEVICE, and how many; they are used first, and free unless you state their cost."""
    max_machines: dict[str, Annotated[Whole, Field(ge=0, le=1_000_000)]] | None = None
    """Most machines of a sku that may be ordered."""
    mix: Annotated[MixBy | None, BeforeValidator(_switched_off)] = None
    """Several fleets for one service, each on the GPUs that suit its requests: classes gives each fleet whole classes, lengths short or
    long prompts, shares a share of every class, and any tries all of these; off by default."""
    disaggregation: Annotated[Disaggregation | None, BeforeValidator(_switched_off)] = None
    """Prefill and decode in separate pools: off, allowed (in addition to identical replicas), or only; if left out, they are looked at for
    large mixtures of experts, and off for other models."""
    prefill_hardware: Names | None = None
    """Devices of the prefill pool, written as hardware; if left out, those."""
    decode_hardware: Names | None = None
    """Devices of the decode pool, written as hardware; if left out, those."""
    kv_link: str | None = None
    """Link between the pools: network, pcie or a link of the devices, a standard such as infiniband-ndr or ethernet-100g,
    or a rate per device."""
    kv_link_latency: SecondsOrZero | None = None
    """Time from the end of a transfer until the decode replica has the cache."""
    network: str | None = None
    """Link between servers: a standard such as infiniband-ndr or ethernet-100g, or a rate per device; if left out, that of
    the machines that are ordered, where lists state it."""
    weight_dtypes: Names | None = None
    """Weight dtypes that are tried in addition to weight_dtype."""
    kv_dtypes: Names | None = None
    """Cache dtypes that are tried in addition to kv_dtype."""

    def degrees(self, name: str) -> tuple[int, ...] | None:
        """Return the degrees of one kind of parallelism in ascending order, None where the scenario states none."""
        stated: list[int] | None = getattr(self, name)
        return None if stated is None else tuple(sorted(set(stated)))


class OffloadMemory(Record):
    """Memory of one replica for prefixes that no longer fit on its devices."""

    name: str
    """Name of the tier: host, nvme, remote, ... from the fastest to the slowest."""
    capacity: Bytes
    """Capacity for the whole replica."""
    bandwidth: BytesPerS | None = None
    """Bandwidth for the whole replica; left out for host (PCIe of every device) and remote (network of every device)."""


class Speculation(Record):
    """Speculative decoding: where drafts come from, and how many are accepted."""

    method: Method = "draft-model"
    """Where drafts come from: another model, a head on the target, or the prompt (ngram)."""
    acceptance: Annotated[
        list[Fraction],
        BeforeValidator(_as_list),
        Field(min_length=1, max_length=64),
        one_or_more(FRACTION_SCHEMA),
    ] = Field(default_factory=list)
    """Probability that a draft token is accepted, given that all before it were: one, or one for each position."""
    metrics: Annotated[Names, Field(max_length=2)] | None = None
    """Instead of acceptance: Prometheus text of a server that speculates, relative to this file; two scrapes count what lies between."""
    draft_tokens: Annotated[Whole, Field(ge=1, le=64)] | None = None
    """Tokens that are drafted in one round."""
    verified_tokens: Annotated[Whole, Field(ge=1, le=1024)] | None = None
    """Tokens that are verified in one round, if drafts form a tree."""
    draft: str | None = None
    """Hugging Face id, shipped alias, or path relative to this file."""
    draft_step_time: SecondsOrZero | None = None
    """Instead of draft: time of one of its steps; may be 0."""


class Lora(Record):
    """LoRA adapters that are served with the model."""

    adapters: Annotated[Whole, Field(ge=1, le=100_000)]
    """Different adapters of the traffic, equally popular."""
    max_loras: Annotated[Whole, Field(ge=1, le=100_000)] | None = None
    """Slots on a replica, at most as many as adapters; default: one for each adapter."""
    max_lora_rank: Annotated[Whole, Field(ge=1, le=512)] | None = None
    """Rank of the slots, and of every adapter; default 16."""
    modules: Names | None = None
    """Matrices with an adapter, such as q_proj; default: all of attention and feed-forward."""
    fully_sharded: bool | None = None
    """Split both low-rank matrices over tensor-parallel ranks; default: one of them."""
    share: Annotated[Fraction, Field(gt=0)] | None = None
    """Share of the requests with an adapter; default: all."""


class ScenarioFile(Record):
    """One question: what serves this traffic on this model within these limits, and what does it cost."""

    removed: ClassVar[Mapping[str, str]] = {
        "sharing.by: hour": "write device or mig, or leave sharing out for a fleet of each model"
    }

    name: str
    """Name of the scenario, shown in results."""
    description: str = ""
    """Sentence about the scenario for readers of a report."""
    model: str
    """Hugging Face id, shipped alias, or path relative to this file."""
    revision: RevisionName | None = None
    """Branch, tag or commit on the hub."""
    runner: Literal["generate", "pooling"] | None = None
    """generate, or pooling for the vectors and scores of embedding models and rerankers; default: generate."""
    weight_dtype: str | None = None
    """Dtype of the weights: as-published, fp8, int4, ..."""
    kv_dtype: str | None = None
    """Dtype of the KV cache: auto, bf16, fp8, ..."""
    engine: str | None = None
    """vllm, sglang, trtllm or llamacpp; with any, `capplan fleet` tries each of the first three and keeps the cheapest plan."""
    engine_version: str | None = None
    """Version of the engine, as text."""
    backend: Literal["cuda", "metal", "vulkan", "rocm", "sycl", "cpu"] | None = None
    """Backend of llama.cpp."""
    max_model_len: Limit | None = None
    """Longest sequence, input and output."""
    max_num_seqs: Count | None = None
    """Maximum sequences in one step of a replica."""
    max_num_batched_tokens: Limit | None = None
    """Maximum tokens in one step of a replica."""
    cuda_graphs: Annotated[int, Field(ge=0, le=65536)] | None = None
    """Sequences of the largest step that runs as a CUDA graph; 0: none does, as with --enforce-eager of vLLM; default: the engine's."""
    gpu_memory_utilization: Share | None = None
    """Fraction of device memory for weights, activations and cache together."""
    calibration: str | None = None
    """File of measured efficiencies, relative to this one."""
    chunked_prefill: bool | None = None
    """Whether prompts are cut into chunks that share their steps with decoding sequences; default: the engine's."""
    prefix_caching: bool | None = None
    """false: every prompt is computed in full, whatever it shares with earlier ones."""
    kv_offload: list[OffloadMemory] = Field(default_factory=list)
    """Offload tiers, fastest first; for traffic that records which prefixes are reused."""
    lora: Lora | None = None
    """LoRA adapters in addition to the model."""
    speculation: Speculation | None = None
    """Speculative decoding: drafts that the target verifies several at a time."""
    cascade: Cascade | None = None
    """A large model that some of the requests are escalated to."""
    sharing: Sharing | None = None
    """Models that share GPUs with this one."""
    traffic: Annotated[list[Traffic], Field(min_length=1, max_length=MOST_CLASSES)]
    """Kinds of requests, one or more."""
    regions: Annotated[list[Region], Field(max_length=MOST_REGIONS)] = Field(default_factory=list)
    """Regions with users and machines: their local time, the delay between them, their offers and their electricity."""
    slo: Promise = Field(default_factory=Promise)
    """SLO targets."""
    fleet: Fleet = Field(default_factory=Fleet)
    """Hardware and layouts that a plan may use."""
    prices: Prices = Field(default_factory=Prices)
    """Prices, if they differ from the shipped ones."""
    commitments: Commitments | None = None
    """Ways to pay in addition to prices.commitment; the cheapest mix for the load curve is then shown."""
    tags: dict[Annotated[str, Field(min_length=1, max_length=128)], Annotated[str, Field(max_length=256)]] = (
        Field(default_factory=dict)
    )
    """Tags of the service on every row of a FOCUS bill, such as cost_center and team."""
    currency: Currency | None = None
    """Currency in which totals are shown next to dollars."""
    budget: Budget | None = None
    """Limit of what the fleet may cost."""
    energy: Power | None = None
    """Power of devices and what is around them."""
    growth: Growth | None = None
    """Traffic in the months to come."""
    hosted: Hosted = Field(default_factory=Hosted)
    """Terms of the hosted APIs that `capplan compare` compares with the fleet."""


@dataclass(frozen=True, slots=True)
class Scenario(Purchase):
    """A scenario file with what its keys mean: paths resolved, defaults filled in, traffic as request classes."""

    file: ScenarioFile
    """The keys as they are read, in base units; after regions are resolved."""
    path: str
    model: str
    """Hub id, alias, or absolute path."""
    weight_dtypes: tuple[str | None, ...]
    """None: as in the model's config."""
    kv_dtypes: tuple[str, ...]
    """`auto`: the checkpoint's KV dtype, else what the engine takes for the model whatever the device, else the activation dtype."""
    engine: str
    calibration: str | None
    budget: BudgetTerms | None
    """Terms of the budget; None: not stated."""
    growth: tuple[float, ...]
    """Traffic of successive months over that of the first, which is today's; empty: not stated."""
    hosted: Hosted
    """Hosted APIs to compare with, and the path of the file of their prices."""
    speculation: Speculation | None
    """Speculative decoding with the path of the config of its draft, and what its metrics count; None: not used."""
    lora: LoraTerms | None
    """LoRA adapters that are served with the model."""
    several: Cascade | SharingTerms | None
    """More models than `model`; None where it is the only one."""
    assumptions: tuple[Assumption, ...]
    """The defaults of keys that the file does not have."""
    warnings: tuple[str, ...]
    """Values in the file that are probably mistakes."""
    written: Mapping[str, Any]
    """The keys as written, overridden ones included, which a plan file keeps."""
    settings: tuple[str, ...] = ()
    """Keys that were overridden, each KEY=VALUE as `--set` takes them."""

    @property
    def name(self) -> str:
        """Name of the scenario, shown in results."""
        return self.file.name

    def command_words(self, *settings: str) -> str:
        """Return the scenario as a command line names it: its file or name, and the keys that are overridden, more of them last."""
        changed = join(word for setting in (*self.settings, *settings) for word in ("--set", setting))
        return f"{scenario_word(self.path)}{' ' if changed else ''}{changed}"

    @property
    def pooled(self) -> bool:
        """Whether the model is served for vectors or scores of prompts."""
        return self.file.runner == "pooling"

    @property
    def budget_usd_per_month(self) -> float | None:
        """What the machines may cost: the budget less what else it includes."""
        return None if self.budget is None else self.budget.machines_usd_per_month()
