"""Levers of the purchase: layouts, devices, commitments, routing."""

from dataclasses import replace
from typing import get_args

from capplan.errors import Reason
from capplan.fleet.engine_options import tier_in_tokens
from capplan.fleet.plan import Plan
from capplan.fleet.price import choose_price
from capplan.fleet.search.cheapest import Sized, busy_replicas
from capplan.fleet.search.one_layout import trial_of
from capplan.fleet.search.recommended import plan_of
from capplan.questions.fleet import PIPELINE_PARALLEL, TENSOR_PARALLEL, terms_of
from capplan.questions.levers.lever import Base, Lever, idle, merged_settings
from capplan.readers.catalogue.hardware import device_names
from capplan.readers.catalogue.offer_terms import Commitment, Term
from capplan.readers.catalogue.prices import price_records, read_prices
from capplan.workload.multiples import divisible
from capplan.workload.reuse_by_age import hits_by_replica

COMMITMENT_RISKS = {
    "on-demand": "none: machines can be handed back at any hour",
    "community": "hosts that the provider does not vouch for",
    "spot": "machines are taken away at short notice, which is not modelled",
    "reserved": "paid for whether used or not, for the whole term",
    "reserved-1y": "paid for whether used or not, for a year",
    "reserved-3y": "paid for whether used or not, for three years",
    "capacity-block": "for a fixed number of days, booked ahead",
    "owned": "an estimate of the cost of ownership; capital is bound for years",
}
FREE_TO_TAKE = ("on-demand", "reserved", "reserved-1y", "reserved-3y")
"""Commitments that the combination may take: the others can end while users are served, or need capital."""

NO_PRICE = "the plan as it is has no price to compare with: give prices.per_gpu_hour"


def _unpriced(base: Base) -> bool:
    return base.plan is not None and base.plan.usd_per_hour is None


def parallelism(base: Base) -> list[Lever]:
    """Return all degrees of tensor and pipeline parallelism, where the scenario allows only some."""
    fleet, name = base.file.fleet, "parallelism"
    adds: dict[str, tuple[str | int, ...]] = {}
    for key, now, every in (
        ("tensor_parallel", fleet.tensor_parallel, TENSOR_PARALLEL),
        ("pipeline_parallel", fleet.pipeline_parallel, PIPELINE_PARALLEL),
    ):
        if now is not None and set(every) - set(now):
            adds[f"fleet.{key}"] = tuple(sorted({*now, *every}))
    if not adds:
        return [idle(name, "other degrees of parallelism", "the search tries every legal degree already")]
    words = ", ".join(
        f"{key.partition('.')[2]} {', '.join(map(str, values))}" for key, values in adds.items()
    )
    settings = merged_settings([Lever(name, words, adds=adds)], {})
    return [Lever(name, words, settings, "none: another start-up flag", adds=adds)]


def other_devices(base: Base) -> tuple[str, ...]:
    """Return the devices of the catalogue that the scenario leaves out and that have a listed price under its terms."""
    scenario = base.asked.scenario
    records = read_prices(scenario.price_file) if scenario.price_file else price_records()
    here = {item.name for item in scenario.fleet.hardware}
    return tuple(
        name
        for name in device_names()
        if name not in here
        and (price := choose_price(records, name, scenario.prices)) is not None
        and not price.estimated
    )


def devices(base: Base) -> list[Lever]:
    """Return every other device that has a price, in one question."""
    names = other_devices(base)
    if _unpriced(base):
        return [idle("device", "another device", NO_PRICE)]
    if not names:
        return [idle("device", "another device", "no other device has a price under the scenario's terms")]
    change = f"another device, of {len(names)} with a price"
    settings = merged_settings([Lever("device", change, adds={"fleet.hardware": names})], {})
    risk = "another stack to run; prices and supply differ by provider"
    return [Lever("device", change, settings, risk)]


def commitments(base: Base) -> list[Lever]:
    """Return the other ways to pay for the same devices."""
    scenario = base.asked.scenario
    if _unpriced(base):
        return [idle("commitment", "another commitment", NO_PRICE)]
    levers = []
    for commitment in (*get_args(Commitment), *get_args(Term)):
        change = f"{scenario.prices.commitment} -> {commitment}"
        if commitment == scenario.prices.commitment:
            continue
        if all(item.name in scenario.prices.overrides for item in scenario.fleet.hardware):
            levers.append(idle("commitment", change, "the scenario has its own prices: prices.per_gpu_hour"))
            continue
        settings = (f"prices.commitment={commitment}",)
        levers.append(
            Lever(
                "commitment", change, settings, COMMITMENT_RISKS[commitment],
                combines=commitment in FREE_TO_TAKE,
            )
        )  # fmt: skip
    return levers


def disaggregation(base: Base) -> list[Lever]:
    """Return separate prefill and decode pools, on the devices of the scenario, or the scenario without them; slow."""
    name, change = "disaggregation", "prefill and decode in separate pools"
    scenario = base.asked.scenario
    if scenario.fleet.pools is not None:
        risk = "none: replicas that do both are simpler to run"
        change, settings = "prefill and decode in the same replicas", ("fleet.disaggregation=off",)
        return [Lever(name, change, settings, risk, combines=True)]
    if any(item.users is not None and item.sessions for item in scenario.classes):
        return [idle(name, change, "not modelled with users who have conversations")]
    risk = "two pools to run and to scale; KV caches cross the network, whose congestion is not modelled"
    return [Lever(name, change, ("fleet.disaggregation=only",), risk, combines=True, slow=True)]


def mixes(base: Base) -> list[Lever]:
    """Return several fleets for one service, each on the GPUs that suit its requests, or the scenario without them."""
    name, change, fleet = (
        "mix",
        "a fleet for each class, for short and long prompts, or for a share of each class",
        base.asked.scenario.fleet,
    )
    if fleet.mix != "off":
        risk = "none: one kind of fleet is simpler to run"
        return [Lever(name, "one fleet for all requests", ("fleet.mix=off",), risk)]
    if _unpriced(base):
        return [idle(name, change, NO_PRICE)]
    if len(base.asked.question.devices) < 2:
        return [idle(name, change, f"{base.asked.question.devices[0].name} is the only kind of GPU listed")]
    classes = base.asked.scenario.classes
    if len(classes) < 2 and not all(divisible(item) for item in classes):
        return [
            idle(
                name,
                change,
                "prompts of users, sessions and traces with prefixes stay together, and there is one class",
            )
        ]
    risk = "a router that knows the class of a request or the length of its prompt, and several fleets to run"
    return [Lever(name, change, ("fleet.mix=any",), risk)]


NAME, CHANGE = "prefix-routing", "requests go where their prefix is cached"


def routing(base: Base) -> list[Lever]:
    """Return a router by prefix, whose replicas hold different prefixes, or why it changes nothing; slow."""
    classes = base.asked.scenario.classes
    plan = base.plan
    if plan is None or len(plan.groups) > 1:
        why = (
            "there is no plan whose requests could be routed"
            if plan is None
            else "the router of a mix looks at classes or lengths"
            if plan.is_mix
            else "prompts have their own pool"
        )
        return [idle(NAME, CHANGE, why)]
    if base.asked.question.demand.has_sessions:
        return [idle(NAME, CHANGE, _kept_by_sessions(base, plan.single.busy_replicas))]
    if not any(item.reuse for item in classes):
        why = "no traffic has prefixes that differ from replica to replica"
        shared = ", ".join(item.name for item in classes if item.prefix_hit_fraction)
        if shared:
            why += f": each of the {plan.single.busy_replicas} replicas has the shared prefix of {shared} after its first request"
        return [idle(NAME, CHANGE, why)]
    if plan.single.busy_replicas == 1:
        return [idle(NAME, CHANGE, "one replica serves all requests, so there is nothing to route")]
    risk = "a router that follows the prefixes has to be run; the replica of a popular prefix may be busier than others"
    settings = ("fleet.routing=prefix_aware",)
    return [Lever(NAME, CHANGE, settings, risk, slow=True, sized=lambda: pooled_plan(base, plan))]


def pooled_plan(base: Base, plan: Plan) -> Plan | None:
    """Return the layout of a plan with the hits of all its caches together; None where it meets no targets.

    As many replicas are at least needed as their caches hold prefixes of: first with the caches of all replicas that there
    are, then with those of the ones that are left.
    """
    many = _sized(base, plan, plan.single.busy_replicas)
    few = None if many is None else _sized(base, plan, many.busy)
    return None if few is None else plan_of(few, terms_of(base.asked))


def _sized(base: Base, plan: Plan, caches: int) -> Sized | None:
    """Return the replicas that the traffic takes if prompts find what so many caches hold."""
    question, layout, terms = base.asked.question, plan.single.layout, terms_of(base.asked)
    network, prompt = question.networks[plan.single.weight_dtype], float(question.demand.lengths.input_tokens)
    each = [
        tier_in_tokens(network, layout.device, layout.sharding, layout.kv_format, size, prompt)
        for size in question.demand.tiers
    ]
    tiers = [tier._replace(tokens=caches * tier.tokens) for tier in each]
    demand = question.demand.with_cache(caches * plan.single.kv_cache_tokens, tiers)
    trial = trial_of(replace(question, demand=demand), layout, plan.single.weight_dtype, terms)
    if isinstance(trial, Reason):
        return None
    busy = busy_replicas(trial, trial.limits, question.slo.confidence, terms)
    if busy is None:
        return None
    return Sized(trial, busy, terms.gpus(layout, busy))


def _kept_by_sessions(base: Base, busy: int) -> str:
    """Return that replicas are sized for turns that come back to them, and what they would find if dealt out in turn."""
    said = "replicas are sized for sessions whose turns come back to their replica"
    longest = base.asked.question.max_model_len
    found = []
    for item in base.asked.scenario.classes:
        if item.sessions is not None and busy > 1:
            kept, dealt = (hits_by_replica(item.sessions, count, longest) for count in (1, busy))
            found.append(
                f"dealt out in turn to {busy}, those of {item.name} would find {dealt:.0%} of their prompt tokens instead of {kept:.0%}"
            )
    return "; ".join([said, *found])
