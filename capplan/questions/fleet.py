"""A scenario -> the question that the fleet search answers: model, devices and engine looked up by name."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from pathlib import Path

import numpy as np

from capplan.assumption import Assumption
from capplan.engine.lookup import ENGINES, profile
from capplan.engine.profile import EngineProfile
from capplan.errors import InputError
from capplan.families.model_config import pooled
from capplan.fleet.group import Group
from capplan.fleet.load.demand import Demand, PlannedDemand, demand_of, planned_demand
from capplan.fleet.over_time import ReplicasAt
from capplan.fleet.plan import Plan
from capplan.fleet.review import Question
from capplan.fleet.search.cheapest import Terms
from capplan.fleet.search.one_layout import replicas_at_rates
from capplan.fleet.search.search_cache import SearchCache
from capplan.hardware.device import Device
from capplan.memory.kv_sizes import cache_dtype
from capplan.model.network import Network
from capplan.model.weight_format import in_weight_format, stored_formats, weight_format_assumptions
from capplan.money.price import HOURS_PER_MONTH, ChosenPrice
from capplan.operators.device_rates import no_speed_reason
from capplan.questions.money.budget import (
    budgeted,
)
from capplan.readers.calibration.refitted import efficiency_by, refitted_profiles
from capplan.readers.catalogue.efficiency import shipped_intervals, shipped_slowness
from capplan.readers.catalogue.hardware import network_of_sku
from capplan.readers.catalogue.models import read_model
from capplan.readers.catalogue.prices import machine_prices, unsold_devices
from capplan.replica.spec import network_as_served, profile_as_served, refuse_prefixes
from capplan.replica.speculation import DraftPlan
from capplan.scenario.replica import adapter_assumptions, with_adapters
from capplan.scenario.scenario import ANY_ENGINE, with_networks, with_screened_pools
from capplan.scenario.scenario_file import Scenario
from capplan.scenario.several import refuse_several
from capplan.scenario.speculation import drafting_of
from capplan.scenario.traffic import of_turns
from capplan.scenario.traffic_line import with_image_tokens, with_image_work
from capplan.serving.terms import BY_LOAD
from capplan.workload.kept_contexts import LENGTHS
from capplan.workload.multiples import part_of_classes
from capplan.workload.request_class import RequestClass

LONGEST_STEP = 1024
"""The maximum context is rounded up to a multiple of this many tokens."""
SAME_RATE = 1e-3
"""Two networks of which one is faster by this part at most are the same."""


@dataclass(frozen=True, slots=True)
class AskedFleet:
    """The question, what it costs, and what was assumed to ask it."""

    scenario: Scenario
    question: Question
    prices: dict[str, ChosenPrice | None]
    unsold: dict[str, str]
    """Devices that no machine that may be ordered has, each with the reason; the question is not about them."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]
    published_formats: tuple[str, ...]
    """Weight formats of the checkpoint, most elements first."""
    cache: SearchCache = field(default_factory=SearchCache, compare=False, repr=False)
    """Replicas and simulations that all searches for this question share."""


def _published(scenario: Scenario, *, offline: bool) -> Network:
    try:
        network = read_model(scenario.model, revision=scenario.file.revision, offline=offline)
    except InputError as error:
        of_line = scenario.path == scenario.file.model
        place = f"{scenario.path} is no scenario file" if of_line else f"{scenario.path}: model"
        raise InputError(f"{place}: {error}") from error
    if not (network.generates or scenario.pooled):
        raise InputError(
            f"{scenario.path}: model: {network.name} has no LM head and generates no tokens\n"
            "  for the vectors or scores of its prompts: runner: pooling, and no output_tokens"
        )
    return pooled(network) if scenario.pooled else network


def _networks(scenario: Scenario, shipped: Network) -> tuple[dict[str, Network], list[Assumption]]:
    if scenario.weight_dtypes == (None,):
        alone = no_speed_reason(stored_formats(shipped), scenario.engine)
        if alone:
            raise InputError(
                f"{scenario.path}: model: the weights of {shipped.name} have no speed, only a memory: {alone}"
            )
    networks: dict[str, Network] = {}
    assumed: list[Assumption] = list(shipped.doubts)
    for dtype in scenario.weight_dtypes:
        if dtype is None:
            networks["auto"] = shipped
            continue
        networks[dtype] = in_weight_format(shipped, dtype)
        assumed += [item.of_scenario() for item in weight_format_assumptions(shipped, dtype)]
    return networks, assumed


def _with_prompt_work(
    scenario: Scenario, networks: Mapping[str, Network], demand: Demand
) -> dict[str, Network]:
    """Return the networks with the adapters and the images of the scenario, if it has any."""
    lengths = demand.lengths
    computed = max(float(lengths.input_tokens) - float(lengths.cached_tokens), 1.0)
    read = {name: with_image_work(network, scenario.classes, computed) for name, network in networks.items()}
    if scenario.lora is None:
        return read
    rates = [item.request_rate_at() for item in scenario.classes]
    first = [
        rate * (1.0 - item.repeated_fraction) for item, rate in zip(scenario.classes, rates, strict=True)
    ]
    # the samples of a request have one adapter, which is copied for the first of them
    alone = computed * sum(rates) / sum(first)
    try:
        return {name: with_adapters(network, scenario.lora, alone) for name, network in read.items()}
    except InputError as error:
        raise InputError(f"{scenario.path}: {error}") from error


def _kv_formats(
    scenario: Scenario, network: Network, engine: EngineProfile
) -> tuple[tuple[str, ...], list[Assumption]]:
    resolved = [cache_dtype(network, name, engine) for name in scenario.kv_dtypes]
    stated = [assumption.of_scenario() for _, assumptions in resolved for assumption in assumptions]
    return tuple(dict.fromkeys(name for name, _ in resolved)), stated


def _context(scenario: Scenario, network: Network, demand: Demand) -> tuple[int, list[Assumption], list[str]]:
    """Return the context that replicas are started with; InputError where a mean request exceeds it."""
    tokens, assumed, warnings = wanted_context(scenario, network, demand.longest_tokens)
    prompt, output = float(demand.lengths.input_tokens), demand.generated_tokens
    if prompt + output > tokens:
        raise InputError(
            f"{scenario.path}: a mean request has {prompt:.0f} + {output:.0f} tokens, "
            f"more than the context of {tokens}\n  raise max_model_len"
        )
    return tokens, assumed, warnings


def wanted_context(
    scenario: Scenario, network: Network, longest_request: int
) -> tuple[int, list[Assumption], list[str]]:
    """Return the scenario's context, else one with room for 99.9 % of the requests."""
    most = network.max_context_tokens
    if scenario.file.max_model_len is not None:
        over = most is not None and scenario.file.max_model_len > most
        text = f"max_model_len {scenario.file.max_model_len} exceeds the model's maximum of {most} tokens"
        return scenario.file.max_model_len, [], [text] if over else []
    wanted = LONGEST_STEP * ceil(longest_request / LONGEST_STEP)
    tokens = wanted if most is None else min(wanted, most)
    room = "room for 99.9% of the requests"
    if most is not None and longest_request > most:
        room = "the maximum of the model; one request in a thousand is longer and is truncated"
    return tokens, [Assumption(f"max_model_len {tokens}: {room}", "max_model_len", "max_model_len")], []


def _with_ended_sessions(scenario: Scenario, network: Network) -> tuple[Scenario, list[Assumption]]:
    """Return the scenario whose sessions end before a turn that exceeds the context of the model, or the stated one."""
    most = scenario.file.max_model_len or network.max_context_tokens or inf
    classes, assumed = list(scenario.classes), list[Assumption]()
    for place, item in enumerate(scenario.classes):
        over = float(np.mean(item.input_tokens.midpoints(LENGTHS) >= most))
        if item.sessions is not None and over:
            classes[place] = of_turns(item, item.sessions, most)
            words = f"{item.name}: sessions end before a turn exceeds the context of {most} tokens, which leaves out about {over:.1%} of the turns"
            assumed.append(Assumption(words, f"traffic[{place}].turns", "max_model_len"))
    return replace(scenario, classes=tuple(classes)), assumed


def _drafting(
    scenario: Scenario, target: Network, *, offline: bool
) -> tuple[DraftPlan | None, tuple[Assumption, ...]]:
    if scenario.speculation is None:
        return None, ()
    try:
        return drafting_of(scenario.speculation, target, offline=offline)
    except InputError as error:
        raise InputError(f"{scenario.path}: {error}") from error


def _tokens_per_step(
    scenario: Scenario, network: Network, engine: EngineProfile, context_tokens: int
) -> tuple[int | None, list[Assumption]]:
    """Return the limit on the tokens of a step: the stated one, or room for the longest prompt if it is read whole and the engine's limit is lower.

    None: the engine's. InputError for steps that never take the longest prompts.
    """
    budget = scenario.file.max_num_batched_tokens
    whole = network.whole_prompts or scenario.file.chunked_prefill is False or engine.rejects_long_prompts
    if budget is None and engine.rejects_long_prompts:
        usual = min(item.server_batched_tokens for item in engine.tiers)
        if usual < context_tokens:
            tokens = context_tokens + (
                scenario.file.max_num_seqs or max(item.max_num_seqs for item in engine.tiers)
            )
            what = (
                f"max_num_batched_tokens {tokens}: {engine.engine} does not cut prompts into chunks, and with its default of {usual} "
                "it rejects longer ones; the longest has room next to a token of every running sequence"
            )
            key = "max_num_batched_tokens"
            return tokens, [Assumption(what, key, key)]
    if whole and budget is not None and budget < context_tokens:
        raise InputError(
            f"{scenario.path}: max_num_batched_tokens: {budget} is below the context of {context_tokens}, and prompts are "
            "not cut into chunks, so the longest would never start"
        )
    return budget, []


def _sequences(
    scenario: Scenario, network: Network, engine: EngineProfile
) -> tuple[int | None, tuple[Assumption, ...]]:
    """Return the limit on running sequences of a group: the stated one, or that which the engine has for the model; None: the engine's usual one."""
    own = engine.model_sequences.get(network.model_type)
    if scenario.file.max_num_seqs is not None or own is None:
        return scenario.file.max_num_seqs, ()
    words = f"{own} sequences at once in each group of attention, the limit of {engine.engine} with {network.model_type}"
    return own, (Assumption(words, "max_num_seqs", "max_num_seqs"),)


def _profile(scenario: Scenario, network: Network) -> EngineProfile:
    """Return the engine of a scenario, as it runs the model; InputError where an encoder is asked for chunks or prefixes."""
    if scenario.file.engine == ANY_ENGINE:
        raise InputError(
            f"{scenario.path}: engine: any is a question for capplan fleet, which tries each engine\n"
            f"  here write one: {', '.join(ENGINES)}"
        )
    engine = profile(scenario.engine, scenario.file.engine_version, scenario.file.backend)
    reused = any(item.reuse or item.prefix_hit_fraction for item in scenario.classes)
    try:
        refuse_prefixes(network, float(reused))
        return profile_as_served(engine, network, scenario.file.chunked_prefill, scenario.file.cuda_graphs)
    except InputError as error:
        raise InputError(f"{scenario.path}: {error}") from error


def _without_effect(scenario: Scenario, demand: Demand) -> list[str]:
    """Return the warnings for what a scenario asks for in vain."""
    warnings = []
    if scenario.kv_offload and not demand.reuses:
        warnings.append("kv_offload has no effect: no traffic says how prefix hits grow with the cache")
    return warnings


def _sold(scenario: Scenario, unsold: Mapping[str, str]) -> tuple[Device, ...]:
    """Return the devices that may be had; InputError if there is none."""
    devices = tuple(item for item in scenario.fleet.hardware if item.name not in unsold)
    if not devices:
        raise InputError(
            f"{scenario.path}: fleet.hardware: {', '.join(unsold)}: {next(iter(unsold.values()))}\n"
            f"  find machines with: capplan list machines {next(iter(unsold))}"
        )
    return devices


def _as_ordered(
    scenario: Scenario, prices: Mapping[str, ChosenPrice | None]
) -> tuple[Scenario, list[Assumption]]:
    """Return a scenario whose servers are joined by the network of the machines that are ordered for a replica of several, and what that assumes.

    Where a scenario states `fleet.network`, or no list says what the machines have, the network of a device stays as it is.
    """
    rates: dict[str, float] = {}
    assumed: list[Assumption] = []
    for device in scenario.fleet.devices if scenario.file.fleet.network is None else ():
        price, usual, node = prices.get(device.name), device.network_bytes_per_s, device.node_devices
        if price is None or usual is None:
            continue
        spanned = [item.sku for item in price.sold(2 * node, node) if item.gpus >= node]
        known = {sku: each for sku in spanned if (each := network_of_sku(sku)) is not None}
        slowest = min(known, key=lambda sku: known[sku], default=None)
        if slowest is not None and abs(known[slowest] / usual - 1.0) > SAME_RATE:
            rates[device.name] = known[slowest]
            what = f"servers of {device.name} are joined as those of {slowest} are: {known[slowest] / 1e9:.3g} GB/s for each GPU"
            assumed.append(Assumption(what, "fleet.network", "fleet.network"))
    return with_networks(scenario, rates), assumed


def asked_fleet(scenario: Scenario, *, offline: bool) -> AskedFleet:
    """Return the question that a scenario asks; InputError where it is not valid, or asks for several fleets."""
    refuse_several(scenario)
    prices, price_warnings = machine_prices(scenario)
    scenario, network_assumed = _as_ordered(scenario, prices)
    published = _published(scenario, offline=offline)
    networks, assumed = _networks(scenario, published)
    scenario, image_assumed = with_image_tokens(with_screened_pools(scenario, published), published)
    scenario, ended_assumed = _with_ended_sessions(scenario, published)
    assumed += [*network_assumed, *image_assumed, *ended_assumed]
    demand = demand_of(scenario)
    networks = _with_prompt_work(scenario, networks, demand)
    scenario, budget_assumed = budgeted(scenario, demand, networks)
    first = next(iter(networks.values()))
    assumed += [*budget_assumed, *adapter_assumptions(first, "lora")]
    drafting, draft_assumed = _drafting(scenario, first, offline=offline)
    engine = _profile(scenario, first)
    kv_formats, kv_assumed = _kv_formats(scenario, first, engine)
    tokens, context_assumed, warnings = _context(scenario, network_as_served(first, engine), demand)
    step_tokens, step_assumed = _tokens_per_step(scenario, first, engine, tokens)
    sequences, sequences_assumed = _sequences(scenario, first, engine)
    assumed += (*kv_assumed, *context_assumed, *step_assumed, *sequences_assumed, *draft_assumed)
    calibration = Path(scenario.calibration) if scenario.calibration else None
    limits = scenario.fleet
    on_devices, host_assumptions, host_warnings = refitted_profiles(calibration, engine, limits.devices)
    unsold, warnings = unsold_devices(scenario), [*warnings, *_without_effect(scenario, demand)]
    question = Question(
        networks={name: network_as_served(network, engine) for name, network in networks.items()},
        devices=_sold(scenario, unsold),
        efficiencies={device.name: efficiency_by(calibration, device, engine) for device in limits.devices},
        kv_formats=kv_formats,
        profile=engine,
        ranges=limits.ranges,
        demand=demand,
        slo=scenario.slo,
        intervals=shipped_intervals(),
        slowness_table=shipped_slowness(),
        max_model_len=tokens,
        routing=scenario.file.fleet.routing,
        max_num_seqs=sequences,
        max_num_batched_tokens=step_tokens,
        gpu_memory_utilization=scenario.file.gpu_memory_utilization,
        drafting=drafting,
        on_devices=on_devices,
    )
    stated = [item.of_scenario() for item in (*engine.assumptions, *host_assumptions)]
    if scenario.file.fleet.routing in BY_LOAD:
        words = (
            f"replicas are sized for round-robin routing; only simulate models {scenario.file.fleet.routing}"
        )
        stated.append(Assumption(words, "fleet.routing", "fleet.routing"))
    paid = [price.assumption for price in prices.values() if price]
    return AskedFleet(
        scenario,
        question,
        prices,
        unsold,
        (*scenario.assumptions, *assumed, *stated, *paid),
        (*scenario.warnings, *warnings, *host_warnings, *price_warnings),
        stored_formats(published),
    )


def part_of(asked: AskedFleet, classes: tuple[RequestClass, ...]) -> AskedFleet:
    """Return the same question for some of its requests: traffic, context, and what prompts take of adapters and images are theirs."""
    scenario = replace(asked.scenario, classes=classes)
    demand = demand_of(scenario)
    networks = _with_prompt_work(scenario, asked.question.networks, demand)
    tokens, _, _ = _context(scenario, next(iter(networks.values())), demand)
    question = replace(asked.question, networks=networks, demand=demand, max_model_len=tokens)
    return replace(asked, scenario=scenario, question=question)


def demand_of_plan(asked: AskedFleet, plan: Plan | None) -> PlannedDemand:
    """Return the peak and the mean of the traffic, at the responses of a plan."""
    return planned_demand(asked.question.demand, plan.responses_s if plan else 0.0)


def parts_of(asked: AskedFleet, plan: Plan) -> list[tuple[AskedFleet, Plan]]:
    """Return each group of a mix by itself: the question of the requests that the router sends to it, and its plan; of another plan the whole for each group.

    Its latencies are those of the requests of the group; its probabilities are those of all groups together.
    """
    if not plan.is_mix:
        return [(asked, plan)] * len(plan.groups)
    parts = []
    responses = dict(zip((item.name for item in asked.scenario.classes), plan.class_e2e_mean_s, strict=False))
    for group in plan.groups:
        classes = requests_of(group, asked.scenario.classes)
        assert group.requests is not None
        whole = [name for name in responses if name in group.requests.classes]
        alone = replace(
            plan,
            groups=(replace(group, requests=None),),
            usd_per_hour=group.usd_per_hour,
            class_e2e_mean_s=tuple(responses[name] for name in whole) if len(whole) > 1 else (),
            ttft_s=group.ttft_s or plan.ttft_s,
            tpot_s=group.tpot_s or plan.tpot_s,
            e2e_s=group.e2e_s or plan.e2e_s,
            class_latencies=(),
            class_prefix_hit_fractions=group.class_prefix_hit_fractions,
        )
        parts.append((part_of(asked, classes), alone))
    return parts


def replicas_by_group(asked: AskedFleet, plan: Plan) -> tuple[ReplicasAt, ...]:
    """Return what finds the replicas of each group of a plan at another request rate of the service."""
    terms, peak_per_s = terms_of(asked), plan.peak_requests_per_s
    return tuple(
        replicas_at_rates(part.question, group, peak_per_s, terms, asked.cache)
        for (part, _), group in zip(parts_of(asked, plan), plan.groups, strict=True)
    )


def requests_of(group: Group, classes: Sequence[RequestClass]) -> tuple[RequestClass, ...]:
    """Return the parts of classes that the router of a mix sends to a group; none if the group gets nothing of them."""
    requests = group.requests
    assert requests is not None
    mine = [item for item in classes if item.name in requests.classes]
    return part_of_classes(mine, requests.above_tokens, requests.up_to_tokens, requests.share)


def prices_of_others(asked: AskedFleet, own: Container[str]) -> tuple[Assumption, ...]:
    """Return what is assumed of prices of GPUs other than those of a plan, on which nothing that follows from the plan rests."""
    return tuple(price.assumption for name, price in asked.prices.items() if price and name not in own)


def terms_of(asked: AskedFleet) -> Terms:
    """Return headroom, spares, prices, the size limit and the budget of a scenario; commitments are judged by their mix instead."""
    limits, budget = asked.scenario.fleet, asked.scenario.budget_usd_per_month
    terms = Terms(limits.headroom_fraction, limits.survive, asked.prices, asked.scenario.file.fleet.max_gpus)
    if budget is None or asked.scenario.file.commitments is not None:
        return terms
    return replace(terms, max_usd_per_hour=budget / HOURS_PER_MONTH)
