"""A scenario, its plan and the names of hosted APIs -> the comparison of both."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TypeAlias

import numpy as np

from capplan.assumption import Assumption
from capplan.errors import InputError, unknown
from capplan.fleet.answer import FleetAnswer
from capplan.fleet.group import Group
from capplan.fleet.growth import Growth
from capplan.fleet.plan import Plan
from capplan.keys import first_day
from capplan.money.commitments import falling_ratios
from capplan.money.comparison import (
    ComparedMonth,
    Comparison,
    OwnFleet,
    PaidReplicas,
    compare,
    compared_month,
)
from capplan.money.hosted import keeps_a_prefix, price_on, sold_price, too_long_fraction
from capplan.money.token_price import BY_ITSELF, UNSTATED_TIME_TO_LIVE_S, TokenPrice, TokenRates
from capplan.questions.fleet import AskedFleet
from capplan.questions.money.energy import asked_energy, asked_growth, growth_assumptions
from capplan.questions.money.ledger import PaidPlan, own_assumptions, paid_plan, traffic_of
from capplan.questions.plans.plan_check import age_warnings, change_warnings, life_warnings
from capplan.readers.catalogue.token_prices import (
    HINT,
    find_price,
    litellm_prices,
    prices_of_model,
    read_token_prices,
    refuse_unused_day,
    token_prices,
)
from capplan.recorded.traces.trace import read_trace
from capplan.scenario.command_flags import CachePriceFlags
from capplan.scenario.scenario_file import Scenario
from capplan.scenario.workload_file import is_workload
from capplan.workload.request_class import RequestClass, ResponseTimes, responses_of_classes
from capplan.workload.reuse import Repeated, reuse_by_age, session_reuse_by_age

_SEED = 0
"""Seed of the sessions whose prompts an API keeps."""
LEAST_SHOWN = 0.001
"""A smaller share of requests is said to be under it."""


@dataclass(frozen=True, slots=True)
class AskedComparison:
    """The comparison, and what was assumed for it."""

    plan: Plan
    comparison: Comparison
    by_mix: bool
    """The self-hosted machines are paid for by a mix of commitments."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]
    months: tuple[ComparedMonth, ...] = ()
    """The months to come, where the scenario states a growth."""
    kg_co2: float | None = None
    """Carbon dioxide of the self-hosted fleet in a month or of a job, where the scenario states its electricity; no API states its own."""


def listed_prices(file: str | None, day: str | None) -> tuple[TokenPrice, ...]:
    """Return the prices to look names up in: those that ship, or those of a file.

    Parameters
    ----------
    file : a token-price YAML, or the price file of LiteLLM; None: those that ship
    day : of a file that does not state it
    """
    if file is None:
        return token_prices()
    if not file.lower().endswith(".json"):
        return read_token_prices(file)
    if day is None:
        raise InputError(
            f"{file}: states no date for its prices, and a price without a date cannot be compared\n"
            "  say which day they are of: hosted: {date: 2026-11-01}, or --set hosted.date=2026-11-01"
        )
    return litellm_prices(file, day)


def asked_prices(names: Sequence[str], asked: AskedFleet) -> tuple[TokenPrice, ...]:
    """Return the prices of the named APIs; without names, those of all that serve the scenario's model."""
    scenario, model = asked.scenario, next(iter(asked.question.networks.values())).name
    file, day = scenario.hosted.file, scenario.hosted.date
    known = listed_prices(file, day)
    found = tuple(dict.fromkeys(find_price(name, known) for name in names))
    if found and all(price.date != scenario.hosted.date for price in found):
        refuse_unused_day(scenario.hosted.date, found, f"{scenario.path}: hosted.date")
    found = found or tuple(prices_of_model(model, known))
    if not found:
        raise InputError(
            f"no listed API serves {model}; name what to compare with: --api PROVIDER/MODEL\n  {HINT}"
        )
    if scenario.hosted.provisioned is not None and len(found) > 1:
        raise InputError(
            f"{scenario.path}: hosted.provisioned is the price of one API, and {len(found)} are compared; name it: --api {found[0].name}"
        )
    sellers = {price.provider for price in found}
    for name in scenario.hosted.token_ratios:
        if name not in sellers:
            raise unknown("provider", name, sellers, place=f"{scenario.path}: hosted.token_ratios")
    for price in found:
        refuse_unsold_life(price, scenario.hosted.time_to_live, f"{scenario.path}: hosted.time_to_live")
        _refuse_unsold_service(price, scenario.hosted.service, f"{scenario.path}: hosted.service")
        if any(keeps_a_prefix(item, price) for item in scenario.classes):
            refuse_unknown_storage(price)
    return found


def refuse_unsold_life(price: TokenPrice, time_to_live_s: float | None, place: str) -> None:
    """Raise the error for a time to live beyond those that a provider sells."""
    longer = price.longer_life
    if longer is not None and time_to_live_s is not None and time_to_live_s > longer.time_to_live:
        raise InputError(
            f"{place}: {price.provider} keeps a prefix for {price.time_to_live_s:g} s or {longer.time_to_live:g} s since its "
            f"last use, not for {time_to_live_s:g} s"
        )


def _refuse_unsold_service(price: TokenPrice, service: str, place: str) -> None:
    """Raise the error for a service tier that a provider does not sell, or whose price is not known."""
    sold = ["standard", *(name for name, _ in price.services)]
    if service not in sold:
        raise InputError(
            f"{place}: the list has no price of {price.name} at {service}; it has {' and '.join(sold)}"
        )


def refuse_unknown_storage(price: TokenPrice) -> None:
    """Raise the error for a cache whose storage is paid for at a price that is not known."""
    unknown = price.storage_usd_per_million_tokens_hour is None
    if price.rates.cache_read is not None and unknown and not price.keeps_by_itself:
        raise InputError(
            f"{price.name}: the storage of cached tokens is paid for by the hour, and its price is not in the list\n"
            "  give it as cache_storage in a token-price YAML of your own; 0 $/Mtok/h for implicit caching, which stores for nothing"
        )


def own_fleet(paid: PaidPlan, *, machines_only: bool = False) -> OwnFleet:
    """Return what a plan costs at any traffic, by the rule that sized it; pools grow alike, beyond what they carry together.

        u(n) = u(b) h(n) / h(b)

    Parameters
    ----------
    paid : today's plan, and for each group of its replicas what its machines cost: u(b) of b replicas; h of one hour where they cost nothing
    machines_only : whether the rest of the ledger is left out

    Returns
    -------
    OwnFleet; u(n) follows h(n), the price of the cheapest order of n replicas and their spares
    """

    def replicas(group: Group, fraction: float) -> PaidReplicas:
        today = group.usd_per_hour_of(group.busy_replicas) or 0.0
        per_usd = paid.machines_usd * fraction / today if today else paid.hours
        return PaidReplicas(
            group.total_rate_per_replica,
            lambda busy: per_usd * (group.usd_per_hour_of(busy) or 0.0),
        )

    groups = tuple(replicas(*pair) for pair in zip(paid.plan.groups, paid.group_fractions, strict=True))
    entries = tuple(entry for entry in paid.entries if entry.kind == "machines" or not machines_only)
    return OwnFleet(paid.plan.peak_requests_per_s, groups, entries)


def asked_comparison(
    asked: AskedFleet, answer: FleetAnswer, prices: Sequence[TokenPrice], today: date
) -> AskedComparison:
    """Return the comparison of the recommended plan with hosted APIs.

    Raises
    ------
    TargetError
        no plan meets the targets
    InputError
        the price of the plan is not known
    """
    scenario = asked.scenario
    paid = paid_plan(asked, answer, "there is no fleet to compare with", today)
    own = own_fleet(paid)
    prices = tuple(sold_price(price_on(price, today.isoformat()), scenario.hosted) for price in prices)
    repeated = _repeated(scenario, paid.plan.responses_s, asked.question.max_model_len)
    comparison = compare(own, traffic_of(asked, paid.plan), prices, scenario.hosted, repeated)
    long = [(price, too_long_fraction(comparison.traffic, price)) for price in prices]
    warnings = [
        f"{'under 0.1%' if share < LEAST_SHOWN else f'{share:.1%}'} of the requests are longer than the context of {price.name}, {(price.context_tokens or 0) * price.token_ratio:,.0f} tokens"
        for price, share in long
        if share > 0.0
    ]
    warnings += change_warnings(prices)
    energy, *_ = asked_energy(asked, paid.plan)
    growth = asked_growth(asked, paid.plan)
    return AskedComparison(
        paid.plan,
        comparison,
        paid.mix is not None,
        (
            *_assumptions(scenario, prices, comparison),
            *(() if growth is None else (*growth_assumptions(scenario, growth), _token_prices(scenario))),
            *own_assumptions(scenario),
            *paid.assumptions,
            *asked.assumptions,
        ),
        (
            *paid.warnings,
            *age_warnings(prices, today),
            *life_warnings(prices, scenario.hosted.time_to_live),
            *warnings,
            *asked.warnings,
        ),
        () if growth is None else _months(scenario, paid, comparison, growth),
        energy.kg_co2 if energy else None,
    )


def _token_prices(scenario: Scenario) -> Assumption:
    """Return what the months to come rest on at the side of the APIs."""
    falls = scenario.file.growth and scenario.file.growth.token_price_decline
    prices = f"fall evenly, by {falls:.0%} a year" if falls else "stay"
    return Assumption(
        f"in the months to come, prices of APIs {prices}; changes that a provider announced are not counted",
        "growth.token_price_decline",
    )


def _months(
    scenario: Scenario, paid: PaidPlan, comparison: Comparison, growth: Growth
) -> tuple[ComparedMonth, ...]:
    """Return both sides in the months to come, each at the prices of its month; memory of hosts grows with the GPUs."""
    assert scenario.file.growth is not None
    tokens = falling_ratios(scenario.file.growth.token_price_decline, len(growth.months))
    today = growth.months[0].paid_usd or 0.0
    beside = (paid.machines_usd - today) / paid.plan.gpus
    return tuple(
        compared_month(
            comparison, row.month, row.request_rate, (row.paid_usd or 0.0) + beside * row.gpus, float(ratio)
        )
        for row, ratio in zip(growth.months, tokens, strict=True)
    )


def _repeated(scenario: Scenario, response_s: ResponseTimes, longest: int) -> dict[str, Repeated]:
    """Return what the prompts of a trace or of sessions repeat, by class; a workload YAML does not say how long ago."""
    found: dict[str, Repeated] = {}
    responses_s = responses_of_classes(response_s, len(scenario.classes))
    for index, (item, own_s) in enumerate(zip(scenario.classes, responses_s, strict=True)):
        if item.sessions is not None:
            random = np.random.default_rng([_SEED, index])
            found[item.name] = session_reuse_by_age(item.sessions, own_s, longest, random)
        elif item.reuse is not None and item.trace is not None and not is_workload(item.trace):
            trace = read_trace(item.trace)
            found[item.name] = reuse_by_age(
                trace.block_ids, trace.block_counts, trace.arrival_s, trace.block_tokens
            )
    return found


Row: TypeAlias = tuple[object, str, str]
"""Whether something is assumed, what, and the key of the scenario that decides it."""


def _assumptions(
    scenario: Scenario, prices: Sequence[TokenPrice], comparison: Comparison
) -> list[Assumption]:
    """Return what the comparison rests on in addition to the plan."""
    rows = (
        *_use_rows(scenario, prices, comparison),
        *_token_rows(prices),
        *_reuse_rows(comparison),
        *_price_rows(prices, comparison),
    )
    return [Assumption(what, key) for holds, what, key in rows if holds]


def _names(prices: Iterable[TokenPrice]) -> str:
    return ", ".join(price.name for price in prices)


def _cached(prices: Iterable[TokenPrice]) -> list[TokenPrice]:
    """Return the prices of APIs that sell cached input."""
    return [price for price in prices if price.rates.cache_read is not None]


def _sharing(comparison: Comparison) -> list[RequestClass]:
    """Return the classes whose requests have a prefix in common."""
    classes = (item.request_class for item in comparison.traffic)
    return [item for item in classes if item.shared_prefix_tokens]


def _use_rows(scenario: Scenario, prices: Sequence[TokenPrice], comparison: Comparison) -> Iterator[Row]:
    """Yield how the fleet is paid for, and how the APIs find prefixes."""
    mixed = scenario.file.commitments is not None
    paid = "paid for by the cheapest mix of commitments" if mixed else "rented for its peak at all hours"
    same = f"the self-hosted fleet is {paid}; at another rate it has the same layout and as many replicas as the rule of the plan asks for, in the cheapest machines that hold them"
    yield True, same, "traffic[0].request_rate"
    cached, shared, terms = _cached(prices), _sharing(comparison), scenario.hosted
    both, unstated = cached and shared, [price for price in cached if price.time_to_live_s is None]
    found = "of the requests, shared_prefix.hit_fraction have the prefix; at the API they find it if the last one came within the time to live, else they write it; the others are plain input"
    yield both, found, "traffic[0].shared_prefix.hit_fraction"
    yield both and terms.prefixes == 1.0, "all of them share one prefix", "hosted.prefixes"
    kept = f"{_names(unstated)} keep a prefix for {UNSTATED_TIME_TO_LIVE_S:g} s after its last use"
    yield both and unstated and terms.time_to_live is None, kept, "hosted.time_to_live"
    for price in cached:
        least = price.minimum_prefix_tokens
        short = ", ".join(item.name for item in shared if item.shared_prefix_tokens < least)
        what = f"{price.name} caches prefixes from {least * price.token_ratio:,.0f} tokens on, so not that of {short}"
        yield short, what, "traffic[0].shared_prefix.tokens"


def _token_rows(prices: Sequence[TokenPrice]) -> Iterator[Row]:
    """Yield how many tokens the APIs are taken to count for the text of one token of the scenario's model."""
    ratios = sorted({price.token_ratio for price in prices} - {1.0})
    each = "; ".join(
        f"{_names(p for p in prices if p.token_ratio == ratio)} count {ratio:g} tokens for one of the scenario's model"
        for ratio in ratios
    )
    others = "; the others as many" if any(price.token_ratio == 1.0 for price in prices) else ""
    alike = "APIs count as many tokens as the scenario's model does"
    yield True, f"{each}{others}" if ratios else alike, "hosted.token_ratios"


def _price_rows(prices: Sequence[TokenPrice], comparison: Comparison) -> Iterator[Row]:
    """Yield what the rules of caches and prices rest on."""
    marked = _names(price for price in _cached(prices) if price.marked)
    ends = f"at {marked} a breakpoint is set at the end of the shared prefix; without it, none is found and every prompt is written"
    cheapest = comparison.terms.caching != "default"
    yield marked and cheapest and _sharing(comparison), ends, "hosted.caching"
    alone = _names(api.price for api in comparison.apis if BY_ITSELF in api.ways)
    kept = f"{alone} keep prompts by themselves, for {UNSTATED_TIME_TO_LIVE_S:g} s after the last use, which they do not promise"
    yield alone, kept, "hosted.time_to_live"
    classes = (item.request_class for item in comparison.traffic)
    several = ", ".join(item.name for item in classes if item.samples > 1.0)
    once = _names(price for price in prices if price.several_answers)
    each = _names(price for price in prices if not price.several_answers)
    said = [f"{once} bill a prompt once for all its samples (n)"] if once else []
    said += [f"{each} bill it for each sample"] if each else []
    yield several, f"{several}: {'; '.join(said)}", "traffic[0].samples"
    hours = "hours of the traffic are those of UTC, against the peak hours of prices"
    yield any(price.peak for price in prices), hours, "hosted.file"
    rented = "provisioned throughput is rented for the busiest hour at all hours, and what the cache has takes none of it"
    yield comparison.terms.provisioned, rented, "hosted.provisioned"
    tiers = "above the start of a long-context tier, its prices hold for all tokens of the request"
    yield any(price.tiers for price in prices), tiers, "hosted.file"


def _reuse_rows(comparison: Comparison) -> Iterator[Row]:
    """Yield what the hits of prompts rest on that a trace names or sessions send again."""
    prices, traffic = _cached(api.price for api in comparison.apis), comparison.apis[0].traffic
    stored = any(price.storage_usd_per_million_tokens_hour != 0.0 for price in prices)
    rest = "; none of it is kept at a price by the hour" if stored else ""
    if any(price.whole_units for price in prices):
        rest += "; what several requests have in common is found from the second of them on"
    marked = "; the ends of what prompts repeat are marked" if any(p.marked for p in prices) else ""
    for sessions, sent, key, more in (
        (False, "the trace sent", "traffic[0].shared_prefix", marked),
        (True, "their own session, and all sessions in common, sent", "hosted.time_to_live", ""),
    ):
        mine = [
            item for item in traffic if item.reuse and (item.request_class.sessions is not None) == sessions
        ]
        found = f"prompts find at the API what {sent} within the time to live, if it is as long as the shortest prefix that is kept, and write the rest"
        yield mine, f"{found}{rest}{more}", key
    unread = any(item.request_class.reuse and not item.reuse for item in traffic)
    yield unread, "prefix hits of a trace are not counted at the API", "traffic[0].shared_prefix"


STATED = "as stated"
_USED = ("input_price", "write_price", "read_price")


def cache_price(
    flags: CachePriceFlags, prefix_tokens: float, time_to_live_s: float | None, today: date
) -> TokenPrice:
    """Return the price that the options name or state, for a prefix of this length that lives this long, as it is on a day."""
    given = [f"--{name.replace('_', '-')}" for name in _USED if getattr(flags, name) is not None]
    if flags.api is not None:
        if given:
            raise InputError(f"{given[0]}: {flags.api} has its own prices; leave out --api or {given[0]}")
        if flags.date is not None:
            first_day(flags.date, "--date")
        known = listed_prices(str(flags.prices) if flags.prices else None, flags.date)
        found = find_price(flags.api, known)
        refuse_unused_day(flags.date, [found], "--date")
        refuse_unsold_life(found, time_to_live_s, "--time-to-live")
        if prefix_tokens >= found.minimum_prefix_tokens:
            refuse_unknown_storage(found)
        return price_on(found, today.isoformat())
    if flags.date is not None:
        raise InputError("--date: belongs to --api, and none is given; e.g. --api openai/gpt-5")
    if flags.prices is not None:
        raise InputError("--prices: says what names mean, and no --api is given; e.g. --api openai/gpt-5")
    if flags.input_price is None or flags.read_price is None:
        raise InputError(
            "no price is given: --api PROVIDER/MODEL, or --input-price and --read-price, with --write-price where writes cost more\n"
            "  e.g. --api anthropic/claude-sonnet-5-5, or --input-price 3 --write-price 3.75 --read-price 0.3"
        )
    rates = TokenRates(flags.input_price, 0.0, flags.read_price, flags.write_price)
    return TokenPrice(STATED, "prices", rates, STATED, STATED)
