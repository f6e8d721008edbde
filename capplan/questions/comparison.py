"""A scenario, its plan and the names of hosted APIs -> the comparison of both."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.fleet.money.comparison import Comparison, compare, own_fleet
from capplan.fleet.money.hosted import UNSTATED_TIME_TO_LIVE_S, TokenPrice, too_long_fraction
from capplan.fleet.plan import FleetAnswer, FleetPlan
from capplan.fleet.price import usd_per_month
from capplan.fleet.scenario import Scenario
from capplan.questions.commitments import asked_mix
from capplan.questions.fleet import AskedFleet
from capplan.questions.plan_over_time import plan_over_time
from capplan.questions.priced_plan import priced_plan
from capplan.questions.rate_line import rate_line
from capplan.questions.workload_file import is_workload
from capplan.readers.catalogue.prices import first_day
from capplan.readers.catalogue.token_prices import (
    HINT,
    OLD_DAYS,
    age_days,
    find_price,
    litellm_prices,
    prices_of_model,
    read_token_prices,
    refuse_unused_day,
    token_prices,
)
from capplan.readers.traces.trace import read_trace
from capplan.workload.reuse_by_age import ReuseByAge, reuse_by_age


@dataclass(frozen=True, slots=True)
class AskedComparison:
    """The comparison, and what was assumed for it."""

    comparison: Comparison
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]


def current_day() -> date:
    """Return the day that prices are judged old by."""
    return datetime.now(tz=UTC).date()


def listed_prices(file: str | None, day: str | None) -> tuple[TokenPrice, ...]:
    """Return the prices to look names up in: those that ship, or those of a file.

    Parameters
    ----------
    file : a token-price YAML, or LiteLLM's price file in JSON; None: those that ship
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
    known = listed_prices(scenario.hosted_file, scenario.hosted_date)
    if names:
        found = tuple(dict.fromkeys(find_price(name, known, scenario.hosted_date) for name in names))
        if all(price.date != scenario.hosted_date for price in found):
            refuse_unused_day(scenario.hosted_date, found, f"{scenario.path}: hosted.date")
        return found
    own = tuple(prices_of_model(model, known))
    if not own:
        raise InputError(
            f"no listed API serves {model}; name what to compare with: --api PROVIDER/MODEL\n  {HINT}"
        )
    return own


def age_warnings(prices: Sequence[TokenPrice], today: date) -> tuple[str, ...]:
    """Return the warnings for prices older than OLD_DAYS, and for those dated in the future."""
    old = [price for price in prices if age_days(price, today) > OLD_DAYS]
    early = [price for price in prices if age_days(price, today) < 0]
    warnings = []
    if old:
        named = ", ".join(f"{price.name} ({price.date})" for price in old)
        warnings.append(f"prices older than {OLD_DAYS} days, check them at the provider: {named}")
    warnings += [f"{price.name} is dated {price.date}, which is still to come" for price in early]
    return tuple(warnings)


def _old_rent(plan: FleetPlan, today: date) -> list[str]:
    """Return the warnings for offers of the plan's device that are older than OLD_DAYS."""
    records = plan.price.records if plan.price else ()
    return [
        f"the price of {record.device} is of {record.date}, over {OLD_DAYS} days old: check it at {record.provider}"
        for record in records
        if record.date is None or (today - first_day(record.date)).days > OLD_DAYS
    ]


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
    plan = priced_plan(scenario, answer, "there is no fleet to compare with")
    mix = asked_mix(scenario, plan, plan_over_time(scenario, plan, rate_line(scenario)))
    paid = float(usd_per_month(mix.mix.usd_per_hour)) if mix else None
    own = own_fleet(plan, scenario.fleet.headroom_fraction, scenario.own, paid)
    comparison = compare(plan, asked.question.demand, own, tuple(prices), scenario.hosted, _reuse(scenario))
    long = [(price, too_long_fraction(comparison.traffic, price)) for price in prices]
    warnings = [
        f"{share:.1%} of the requests are longer than the context of {price.name}, {price.context_tokens:,} tokens"
        for price, share in long
        if share > 0.0
    ]
    return AskedComparison(
        comparison,
        (*_assumptions(scenario, prices, comparison), *(mix.assumptions if mix else ()), *asked.assumptions),
        (
            *(mix.warnings if mix else ()),
            *age_warnings(prices, today),
            *_old_rent(plan, today),
            *warnings,
            *asked.warnings,
        ),
    )


def _reuse(scenario: Scenario) -> dict[str, ReuseByAge]:
    """Return what the prompts of a trace repeat, by class; only a trace itself says how long ago."""
    found = {}
    for item in scenario.classes:
        if item.reuse is not None and item.trace is not None and not is_workload(item.trace):
            trace = read_trace(item.trace)
            found[item.name] = reuse_by_age(trace.block_ids, trace.block_counts, trace.arrival_s)
    return found


def _assumptions(
    scenario: Scenario, prices: Sequence[TokenPrice], comparison: Comparison
) -> list[Assumption]:
    """Return what the comparison rests on beside the plan."""
    paid = (
        "paid for by the cheapest mix of commitments"
        if scenario.commitments
        else "rented for its peak at all hours"
    )
    stated = [
        Assumption(
            f"the own fleet is {paid}; at another rate it has the same layout and as many replicas as the rule of the plan "
            "asks for, each at the same mean cost",
            "traffic[0].request_rate",
        )
    ]
    if not scenario.own.people_usd_per_month:
        stated.append(Assumption("nobody is paid for running the own fleet", "prices.people"))
    if not scenario.own.overhead_fraction:
        stated.append(Assumption("no overhead on the price of the machines", "prices.overhead"))
    cached = [p for p in prices if p.rates.cache_read is not None]
    shared = [item for item in comparison.traffic if item.item.shared_prefix_tokens]
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
        if unstated and scenario.hosted.time_to_live_s is None:
            what = f"{', '.join(unstated)} keep a prefix for {UNSTATED_TIME_TO_LIVE_S:g} s after its last use"
            stated.append(Assumption(what, "hosted.time_to_live"))
    for price in cached:
        short = [t.item.name for t in shared if t.item.shared_prefix_tokens < price.minimum_prefix_tokens]
        if short:
            what = f"{price.name} caches prefixes from {price.minimum_prefix_tokens:,.0f} tokens on, so not that of {', '.join(short)}"
            stated.append(Assumption(what, "traffic[0].shared_prefix.tokens"))
    if any(item.reuse for item in comparison.traffic):
        what = (
            "prompts find at the API what the trace sent within the time to live, and write the rest; its shortest prefix and its "
            "price of storage are not counted"
        )
        stated.append(Assumption(what, "traffic[0].shared_prefix"))
    if any(item.item.reuse and not item.reuse for item in comparison.traffic):
        stated.append(
            Assumption("prefix hits of a trace are not counted at the API", "traffic[0].shared_prefix")
        )
    if any(p.tiers for p in prices):
        stated.append(
            Assumption(
                "above the start of a long-context tier, its prices hold for all tokens of the request",
                "hosted.file",
            )
        )
    return stated
