"""A scenario, its plan and the names of hosted APIs -> the comparison of both."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from capplan.assumption import Assumption
from capplan.errors import InputError, unknown
from capplan.fleet.growth import Growth
from capplan.fleet.plan import FleetAnswer, Group, Plan
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
from capplan.money.hosted import (
    BY_ITSELF,
    UNSTATED_TIME_TO_LIVE_S,
    TokenPrice,
    TokenRates,
    keeps_a_prefix,
    price_on,
    sold_price,
    too_long_fraction,
)
from capplan.questions.fleet import AskedFleet
from capplan.questions.money.energy import asked_energy, asked_growth, growth_assumptions
from capplan.questions.money.ledger import PaidPlan, own_assumptions, paid_plan, traffic_of
from capplan.questions.plans.plan_check import age_warnings, change_warnings, life_warnings
from capplan.readers.catalogue.token_prices import (
    HINT,
    find_price,
    json_prices,
    prices_of_model,
    read_token_prices,
    refuse_unused_day,
    token_prices,
)
from capplan.recorded.traces.trace import read_trace
from capplan.scenario.command_flags import CachePriceFlags
from capplan.scenario.scenario_file import Scenario
from capplan.scenario.traffic import rate_line
from capplan.scenario.workload_file import is_workload
from capplan.workload.request_class import ResponseTimes, responses_of_classes
from capplan.workload.statistics import Repeated, reuse_by_age, session_reuse_by_age

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
    file : a token-price YAML, or the price file of LiteLLM or genai-prices in JSON; None: those that ship
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
    return json_prices(file, day)


def asked_prices(names: Sequence[str], asked: AskedFleet) -> tuple[TokenPrice, ...]:
    """Return the prices of the named APIs; without names, those of all that serve the scenario's model."""
    scenario, model = asked.scenario, next(iter(asked.question.networks.values())).name
    file, day = scenario.hosted.file, scenario.hosted.date
    known = listed_prices(file, day)
    found = tuple(dict.fromkeys(find_price(name, known, day, own_list=file is not None) for name in names))
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


def own_fleet(paid: PaidPlan, *, alone: bool = False) -> OwnFleet:
    """Return what a plan costs at any traffic, by the rule that sized it; pools grow alike, beyond what they carry together.

        u(n) = u(b) h(n) / h(b)

    Parameters
    ----------
    paid : today's plan, and for each group of its replicas what its machines cost: u(b) of b replicas; h of one hour where they cost nothing
    alone : the machines, without anything else in the ledger

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
    entries = tuple(entry for entry in paid.entries if entry.kind == "machines" or not alone)
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
    energy, *_ = asked_energy(asked, paid.plan) or (None,)
    growth = asked_growth(asked, paid.plan, rate_line(scenario, paid.plan.responses_s))
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


def _assumptions(
    scenario: Scenario, prices: Sequence[TokenPrice], comparison: Comparison
) -> list[Assumption]:
    """Return what the comparison rests on in addition to the plan."""
    paid = (
        "paid for by the cheapest mix of commitments"
        if scenario.file.commitments
        else "rented for its peak at all hours"
    )
    stated = [
        Assumption(
            f"the self-hosted fleet is {paid}; at another rate it has the same layout and as many replicas as the rule of the plan "
            "asks for, in the cheapest machines that hold them",
            "traffic[0].request_rate",
        )
    ]
    cached = [p for p in prices if p.rates.cache_read is not None]
    shared = [item for item in comparison.traffic if item.request_class.shared_prefix_tokens]
    if cached and shared:
        stated.append(
            Assumption(
                "of the requests, shared_prefix.hit_fraction have the prefix; at the API they find it if the last one came "
                "within the time to live, else they write it; the others are plain input",
                "traffic[0].shared_prefix.hit_fraction",
            )
        )
        if scenario.hosted.prefixes == 1.0:
            stated.append(Assumption("all of them share one prefix", "hosted.prefixes"))
        unstated = [p.name for p in cached if p.time_to_live_s is None]
        if unstated and scenario.hosted.time_to_live is None:
            what = f"{', '.join(unstated)} keep a prefix for {UNSTATED_TIME_TO_LIVE_S:g} s after its last use"
            stated.append(Assumption(what, "hosted.time_to_live"))
    for price in cached:
        short = [
            t.request_class.name
            for t in shared
            if t.request_class.shared_prefix_tokens < price.minimum_prefix_tokens
        ]
        if short:
            what = f"{price.name} caches prefixes from {price.minimum_prefix_tokens * price.token_ratio:,.0f} tokens on, so not that of {', '.join(short)}"
            stated.append(Assumption(what, "traffic[0].shared_prefix.tokens"))
    return [
        *stated,
        *_token_assumptions(prices),
        *_reuse_assumptions(comparison),
        *_price_assumptions(prices, comparison, shared=bool(shared)),
    ]


def _token_assumptions(prices: Sequence[TokenPrice]) -> list[Assumption]:
    """Return how many tokens the APIs are taken to count for the text of one token of the scenario's model."""
    ratios = sorted({price.token_ratio for price in prices} - {1.0})
    if not ratios:
        return [Assumption("APIs count as many tokens as the scenario's model does", "hosted.token_ratios")]
    others = "; the others as many" if any(price.token_ratio == 1.0 for price in prices) else ""
    each = (
        f"{', '.join(price.name for price in prices if price.token_ratio == ratio)} count {ratio:g} tokens for one of the scenario's model"
        for ratio in ratios
    )
    return [Assumption(f"{'; '.join(each)}{others}", "hosted.token_ratios")]


def _price_assumptions(
    prices: Sequence[TokenPrice], comparison: Comparison, *, shared: bool
) -> list[Assumption]:
    """Return what the rules of caches and prices rest on."""
    cached, stated = [p for p in prices if p.rates.cache_read is not None], []
    marked = [p.name for p in cached if p.marked and comparison.terms.caching != "default"]
    if marked and shared:
        what = (
            f"at {', '.join(marked)} a breakpoint is set at the end of the shared prefix; without it, none is found and every "
            "prompt is written"
        )
        stated.append(Assumption(what, "hosted.caching"))
    alone = [api.price.name for api in comparison.apis if BY_ITSELF in api.ways]
    if alone:
        what = (
            f"{', '.join(alone)} keep prompts by themselves, for {UNSTATED_TIME_TO_LIVE_S:g} s after the last use, which they do "
            "not promise"
        )
        stated.append(Assumption(what, "hosted.time_to_live"))
    several = [item.request_class.name for item in comparison.traffic if item.request_class.samples > 1.0]
    if several:
        once = [p.name for p in prices if p.several_answers]
        each = [p.name for p in prices if not p.several_answers]
        said = [
            *([f"{', '.join(once)} bill a prompt once for all its samples (n)"] if once else []),
            *([f"{', '.join(each)} bill it for each sample"] if each else []),
        ]
        stated.append(Assumption(f"{', '.join(several)}: {'; '.join(said)}", "traffic[0].samples"))
    if any(p.peak for p in prices):
        stated.append(
            Assumption(
                "hours of the traffic are those of UTC, against the peak hours of prices", "hosted.file"
            )
        )
    if comparison.terms.provisioned is not None:
        what = "provisioned throughput is rented for the busiest hour at all hours, and what the cache has takes none of it"
        stated.append(Assumption(what, "hosted.provisioned"))
    if any(p.tiers for p in prices):
        stated.append(
            Assumption(
                "above the start of a long-context tier, its prices hold for all tokens of the request",
                "hosted.file",
            )
        )
    return stated


def _reuse_assumptions(comparison: Comparison) -> list[Assumption]:
    """Return what the hits of prompts rest on that a trace names or sessions send again."""
    stated = []
    prices = [api.price for api in comparison.apis if api.price.rates.cache_read is not None]
    traffic = comparison.apis[0].traffic
    for sessions, sent in (
        (False, "the trace sent"),
        (True, "their own session, and all sessions in common, sent"),
    ):
        mine = [
            item for item in traffic if item.reuse and (item.request_class.sessions is not None) == sessions
        ]
        if mine:
            rules = [
                f"prompts find at the API what {sent} within the time to live, if it is as long as the shortest prefix that is kept, and write the rest"
            ]
            if any(price.storage_usd_per_million_tokens_hour != 0.0 for price in prices):
                rules.append("none of it is kept at a price by the hour")
            if any(price.whole_units for price in prices):
                rules.append("what several requests have in common is found from the second of them on")
            if not sessions and any(price.marked for price in prices):
                rules.append("the ends of what prompts repeat are marked")
            key = "hosted.time_to_live" if sessions else "traffic[0].shared_prefix"
            stated.append(Assumption("; ".join(rules), key))
    if any(item.request_class.reuse and not item.reuse for item in traffic):
        stated.append(
            Assumption("prefix hits of a trace are not counted at the API", "traffic[0].shared_prefix")
        )
    return stated


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
        found = find_price(flags.api, known, flags.date, own_list=flags.prices is not None)
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
