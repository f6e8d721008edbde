"""The changes that levers try: of the engine, of the purchase, and those that somebody has to agree to.

Engine: dtypes, prefix cache, speculation, scheduling. Purchase: layouts, devices, commitments, routing. By agreement: looser targets, shorter
requests, refused ones, and machines switched off at night.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from capplan.engine.lookup import unsupported_reason
from capplan.errors import CapplanError, InputError, Reason
from capplan.fleet.engine_options import tier_in_tokens
from capplan.fleet.group import RoutedRequests
from capplan.fleet.load.demand import demand_of_classes
from capplan.fleet.plan import Plan
from capplan.fleet.review import spec_of_layout
from capplan.fleet.search.candidates import PIPELINE_PARALLEL, TENSOR_PARALLEL
from capplan.fleet.search.cheapest import Sized, busy_replicas
from capplan.fleet.search.one_layout import trial_of
from capplan.fleet.search.recommended import plan_of
from capplan.fleet.search.together import Together
from capplan.keys import Commitment, Term
from capplan.model.network import Network
from capplan.model.parameters import weight_bytes
from capplan.model.weight_format import in_weight_format, kv_bytes_per_element, named_weight_format
from capplan.money.price import choose_price
from capplan.questions.fleet import AskedFleet, terms_of
from capplan.questions.fleet_answer import other_engines
from capplan.questions.levers.lever import Base, Lever, LeverRow, first_line, idle, lever_row, merged_settings
from capplan.questions.mix import mix_plan, together_of
from capplan.questions.money.energy import asked_energy
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device, device_names
from capplan.readers.catalogue.prices import price_records, read_prices
from capplan.replica.replica import replica_of
from capplan.replica.speculation import DraftPlan, Method, draft_of, speculation
from capplan.scenario.scenario_file import LengthFields
from capplan.scenario.speculation import Published, not_published, published_acceptance
from capplan.workload.multiples import dealt_by_share
from capplan.workload.reuse import hits_by_replica

WEIGHT_DTYPES = ("fp8", "nvfp4", "int4")
"""Weight dtypes to try, where they are narrower than those of the scenario."""
KV_DTYPES = ("fp8", "int8", "int4")
HOST_MEMORY_GB = (128, 512, 2048)
"""Host memory of a replica that the offload lever tries."""
HIT_FRACTIONS = (0.0, 0.25, 0.5, 0.75, 0.95)
"""Shares of requests that hit their shared prefix, for `--lever prefix-hits`."""

_ROUNDED = "answers change a little: evaluate the quantised model on your own tasks"
_COARSE = "answers change: 4-bit weights lose more than 8-bit ones; evaluate on your own tasks"
_ROUNDED_CACHE = "answers change a little, most over long contexts: evaluate on your own tasks"
_QUEUE = "more sequences in a step: time per output token rises at the peak"
_ENGINE_KEPT = "none: an engine setting that can be turned back"
_PRESENT = "the scenario has it already"
_NO_STEPS = "there is no plan whose steps could be changed"


def one(
    name: str, change: str, settings: Sequence[str] = (), risk: str = "", *, why: str = "", **more: Any
) -> list[Lever]:
    """Return a lever, or why there is none to try."""
    return [idle(name, change, why) if why else Lever(name, change, tuple(settings), risk, **more)]


def weight_dtypes(base: Base) -> list[Lever]:
    """Return narrower weight dtypes, each separately."""
    question, levers = base.asked.question, []
    narrowest = min(weight_bytes(network) for network in question.networks.values())
    shipped = next(iter(question.networks.values()))
    for dtype in WEIGHT_DTYPES:
        refused = partial(_refused, base, weight_dtype=named_weight_format(dtype).dtype)
        why = _PRESENT if dtype in question.networks else refused() or _no_smaller(shipped, dtype, narrowest)
        settings = (f"weight_dtype={dtype}", "fleet.weight_dtypes=null")
        risk, adds = _ROUNDED if dtype == "fp8" else _COARSE, {"fleet.weight_dtypes": (dtype,)}
        levers += one("weight-dtype", f"weights in {dtype}", settings, risk, why=why, adds=adds)
    return levers


def kv_dtypes(base: Base) -> list[Lever]:
    """Return narrower dtypes of the KV cache, each separately."""
    formats, levers = base.asked.question.kv_formats, []
    narrowest = min(kv_bytes_per_element(name) for name in formats)
    for dtype in KV_DTYPES:
        why = _PRESENT if dtype in formats else _refused(base, kv_dtype=dtype)
        if not why and kv_bytes_per_element(dtype) >= narrowest:
            why = "would not be smaller than the cache as it is"
        settings, adds = (f"kv_dtype={dtype}", "fleet.kv_dtypes=null"), {"fleet.kv_dtypes": (dtype,)}
        levers += one("kv-dtype", f"KV cache in {dtype}", settings, _ROUNDED_CACHE, why=why, adds=adds)
    return levers


def _refused(base: Base, *, weight_dtype: str | None = None, kv_dtype: str | None = None) -> str:
    """Return why no device of the scenario runs a dtype, or the model has no use for it; empty where one does."""
    question = base.asked.question
    if kv_dtype and any(network.bidirectional for network in question.networks.values()):
        return "an encoder has no KV cache"
    refused = [
        unsupported_reason(question.profile, device.architecture, weight_dtype, kv_dtype)
        for device in question.devices
    ]
    return "; ".join(dict.fromkeys(why.words for why in refused if why)) if all(refused) else ""


def _no_smaller(network: Network, dtype: str, narrowest: float) -> str:
    """Return why a weight dtype saves no memory; empty where it does."""
    try:
        smaller = weight_bytes(in_weight_format(network, dtype)) < narrowest
    except InputError as error:
        return first_line(error)
    return "" if smaller else "would not be smaller than the weights as they are"


def prefix_caching(base: Base) -> list[Lever]:
    """Return the scenario without its prefix cache: what the cache is worth."""
    name, change = "prefix-caching", "with prefix caching"
    if base.file.prefix_caching is False:
        return one(name, change, ("prefix_caching=true",), _ENGINE_KEPT, combines=True)
    if not any(item.prefix_hit_fraction or item.reuse for item in base.asked.scenario.classes):
        why = "no traffic says what its prompts have in common: give traffic[].shared_prefix, or a trace with block hashes"
        return one(name, change, why=why)
    risk = "prompts that share a prefix are computed in full"
    return one(name, "without prefix caching", ("prefix_caching=false",), risk)


def prefix_hits(base: Base) -> list[Lever]:
    """Return other shares of requests that hit their shared prefix: what a better or worse cache is worth."""
    name = "prefix-hits"
    shared = [index for index, item in enumerate(base.file.traffic) if item.shared_prefix is not None]
    if not shared or base.file.prefix_caching is False:
        why = "no traffic states a shared_prefix with its hit_fraction"
        return one(name, "another share of prefix hits", why=why)
    risk = "hits follow from traffic, routing and the size of the cache: measure them"
    levers = []
    for fraction in HIT_FRACTIONS:
        settings = [f"traffic[{index}].shared_prefix.hit_fraction={fraction!r}" for index in shared]
        levers += one(name, f"{fraction:.0%} of the requests hit their shared prefix", settings, risk)
    return levers


def token_budget(base: Base) -> list[Lever]:
    """Return half and twice the tokens of a step."""
    risks = "long prompts take more steps", "long prompts delay the tokens of others"
    return _half_and_twice(base, "token-budget", "max_num_batched_tokens", risks)


def sequences(base: Base) -> list[Lever]:
    """Return half and twice the sequences of a step."""
    risks = "requests wait longer for their first token at the peak", _QUEUE
    return _half_and_twice(base, "max-num-seqs", "max_num_seqs", risks)


def _half_and_twice(base: Base, lever: str, key: str, risks: tuple[str, str]) -> list[Lever]:
    """Return half and twice a limit of the engine, as far as a step still has a token for each sequence."""
    scheduling = base.scheduling
    if scheduling is None:
        return one(lever, key, why=_NO_STEPS)
    limits = {name: getattr(scheduling, name) for name in ("max_num_seqs", "max_num_batched_tokens")}
    now = limits[key]
    levers = []
    for value, risk in zip((now // 2, now * 2), risks, strict=True):
        changed = limits | {key: value}
        if 1 <= changed["max_num_seqs"] <= changed["max_num_batched_tokens"]:
            levers.append(Lever(lever, f"{key} {now} -> {value}", (f"{key}={value}",), risk, combines=True))
    return levers


def chunked_prefill(base: Base) -> list[Lever]:
    """Return prompts in chunks together with decoding sequences, or whole ones where the plan as it is has chunks; slow."""
    name, change = "chunked-prefill", "prompts in chunks together with decoding"
    scheduling, asked = base.scheduling, base.asked
    if base.has_pools:
        why = "prompts have their own pool, where no sequence decodes next to them"
        return one(name, change, why=why)
    if scheduling is None:
        return one(name, change, why=_NO_STEPS)
    if scheduling.policy == "mixed" and scheduling.chunked:
        now = asked.scenario.file.max_num_batched_tokens
        limited = now is not None and now < asked.question.max_model_len
        settings = ["chunked_prefill=false", *(["max_num_batched_tokens=null"] if limited else [])]
        risk = "a long prompt holds up the tokens of all others while it runs"
        return one(name, "prompts taken whole, not in chunks", settings, risk, combines=True, slow=True)
    risk = "none: an engine setting; prompts take more steps, tokens wait less"
    return one(name, change, ("chunked_prefill=true",), risk, combines=True, slow=True)


def kv_offload(base: Base) -> list[Lever]:
    """Return host memory for prefixes, or the scenario without its tiers."""
    name, scenario = "kv-offload", base.asked.scenario
    if scenario.kv_offload:
        return one(name, "without offload tiers", ("kv_offload=[]",), _ENGINE_KEPT, combines=True)
    if not any(item.reuse for item in scenario.classes):
        why = "no traffic says how prefix hits grow with the cache: give a trace with block hashes"
        return one(name, "host memory for prefixes", why=why)
    risk = "the price of that memory is not included: give prices.host_memory_per_gb"
    if scenario.file.prices.host_memory_per_gb is not None:
        risk = "host memory has to be bought or rented with the machines"
    levers = []
    for size in HOST_MEMORY_GB:
        change, settings = (
            f"{size} GB of host memory for prefixes",
            [f"kv_offload=[{{name: host, capacity: {size} GB}}]"],
        )
        levers += one(name, change, settings, risk, combines=True, host_bytes=size * 1e9)
    return levers


TRIED: tuple[Method, ...] = ("ngram", "eagle", "mtp")
"""Methods that need nothing but the target: a head has to be trained, or is published for it."""
_WORDS: dict[Method, str] = {
    "ngram": "drafts from the prompt (ngram)",
    "eagle": "an EAGLE head",
    "mtp": "the model's own multi-token prediction",
}


def speculations(base: Base) -> list[Lever]:
    """Return the scenario without its speculation, or with each method that needs no other model."""
    name = "speculation"
    if base.asked.scenario.speculation is not None:
        risk = "none: an engine setting"
        return one(name, "without speculation", ("speculation=null",), risk, combines=True)
    return [lever for method in TRIED for lever in _method(base, name, method)]


def _method(base: Base, name: str, method: Method) -> list[Lever]:
    change = f"speculation: {_WORDS[method]}"
    network = next(iter(base.asked.question.networks.values()))
    if method == "mtp" and not network.mtp_parameters:
        return one(name, change, why=f"{network.name} has no layers for multi-token prediction")
    groups = () if base.plan is None else base.plan.groups
    if any(group.layout.sharding.pipeline > 1 for group in groups):
        why = "the plan as it is has pipeline stages, with which speculation is not modelled"
        return one(name, change, why=why)
    known = published_acceptance(method, network)
    if known is None:
        return one(name, change, why=not_published(method, network).replace("\n ", ";"))
    accepted = known.acceptance_fractions[0]
    risk = f"pays by its acceptance, here {accepted:.0%}: measure it on your own traffic{_until(base, known)}"
    return one(name, change, (f"speculation={{method: {method}}}",), risk, combines=True)


def _until(base: Base, published: Published) -> str:
    """Return the load from which a method makes the plan as it is no faster, next to the load that it has."""
    plan, question = base.plan, base.asked.question
    if plan is None:
        return ""
    group = plan.groups[-1]  # of separate pools the one that decodes
    replica = replica_of(spec_of_layout(group.layout, question))
    drafting = DraftPlan(published.method, published.acceptance_fractions, published.draft_tokens)
    lengths = question.demand.at_responses(plan.responses_s).lengths
    context = float(lengths.input_tokens + lengths.output_tokens)
    rows = speculation(
        replica,
        draft_of(replace(drafting, draft_tokens=1), replica.spec),
        published.acceptance_fractions[0],
        draft_tokens=[published.draft_tokens] if published.draft_tokens else (1, 2, 3, 4),
        batches=(1,),
        context_tokens=context,
    )
    now = f"the plan has {group.concurrency_per_replica:.0f} at the peak"
    if rows.breakeven_batch is None:
        return f"; faster at every batch that fits ({rows.largest_batch}); {now}"
    return f"; no faster from {rows.breakeven_batch} sequences on; {now}"


LOOSER = 1.25
"""Times each target."""
HALF = 0.5
SHORTER = 0.9
"""Times each length."""
SERVED = 0.95
"""Share of the peak that is served where admission is controlled."""


def looser_targets(base: Base) -> list[Lever]:
    """Return each target loosened by a quarter."""
    targets, levers = base.asked.scenario.slo.targets, []
    if not targets:
        return one("target", "a looser target", why="the scenario has no targets")
    risk = "users wait longer: whoever promised the target has to agree"
    for target in targets:
        looser = LOOSER * target.stated_s
        change, broken = (
            f"{target.key} {target.stated_s:g} s -> {looser:g} s",
            f"{target.key} only at its looser value",
        )
        levers += one("target", change, [f"slo.{target.key}={looser!r} s"], risk, keeps=False, broken=broken)
    return levers


def quicker_outside(base: Base) -> list[Lever]:
    """Return half the time outside, where the targets include it."""
    name, change = "outside", "what is outside takes half the time"
    if not any(target.outside_s for target in base.asked.scenario.slo.targets):
        why = "no target includes time outside: traffic[].outside.time, or slo.outside: included"
        return one(name, change, why=why)
    settings = [
        f"traffic[{index}].outside.{key}={HALF * value!r} s"
        for index, item in enumerate(base.file.traffic)
        if item.outside is not None
        for key in ("time", "tool_time")
        if (value := getattr(item.outside, key))
    ]
    risk = "retrieval and tools have to be made quicker; users wait no less than before"
    return one(name, change, settings, risk)


def shorter_prompts(base: Base) -> list[Lever]:
    """Return prompts shorter by a tenth."""
    return _shorter(base, "prompts", "input_tokens", "prompts have to be rewritten, or less retrieved")


def shorter_answers(base: Base) -> list[Lever]:
    """Return answers shorter by a tenth."""
    return _shorter(base, "answers", "output_tokens", "users get less text: instructions have to ask for it")


def _shorter(base: Base, name: str, key: str, risk: str) -> list[Lever]:
    change, settings = f"{name} shorter by {1.0 - SHORTER:.0%}", []
    for index, item in enumerate(base.file.traffic):
        record = getattr(item, key)
        if record is None:
            why = f"the lengths of {item.name!r} come from a trace: state {key} to change them"
            return one(name, change, why=why)
        settings.append(f"traffic[{index}].{key}={{{', '.join(_scaled(record))}}}")
    return one(name, change, settings, risk)


def _scaled(record: LengthFields) -> Iterator[str]:
    for part, value in record.model_dump(exclude_none=True).items():
        shorter = [SHORTER * each for each in value] if isinstance(value, list) else SHORTER * value
        yield f"{part}: {shorter!r}"


def admission_control(base: Base) -> list[Lever]:
    """Return a fleet for most of the peak; the rest is turned away, also from a mean that is above what is served."""
    name, change = "admission-control", f"the busiest {1.0 - SERVED:.0%} of the peak is turned away"
    settings = []
    for index, item in enumerate(base.file.traffic):
        if item.request_rate is not None:
            settings.append(f"traffic[{index}].request_rate={SERVED * item.request_rate!r} req/s")
        if item.users is not None:
            settings.append(f"traffic[{index}].users={SERVED * item.users.at_once!r}")
        if item.request_rate and item.mean_rate and item.mean_rate > SERVED * item.request_rate:
            settings.append(f"traffic[{index}].mean_rate={SERVED * item.request_rate!r} req/s")
    if any(item.request_rate is None and item.users is None for item in base.file.traffic):
        why = "a rate or users are needed, of which a part can be turned away; not a trace or a batch job"
        return one(name, change, why=why)
    risk = "refused requests have to be told so, or retried"
    broken = f"{1.0 - SERVED:.0%} of the requests are turned away at the peak"
    return one(name, change, settings, risk, keeps=False, broken=broken)


COMMITMENT_RISKS = {
    "on-demand": "none: machines can be handed back at any hour",
    "community": "hosts that the provider does not vouch for",
    "spot": "machines are taken away at short notice, which is not modelled",
    "reserved": "paid for whether used or not, for a term that the offers do not state",
    "reserved-1y": "paid for whether used or not, for a year",
    "reserved-3y": "paid for whether used or not, for three years",
    "capacity-block": "for a fixed number of days, booked ahead",
    "owned": "an estimate of the cost of ownership; capital is bound for years",
}
FREE_TO_TAKE = ("on-demand", "reserved-1y", "reserved-3y")
"""Commitments that the combination may take: the others can end while users are served, need capital, or state no term."""

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
        why = "the search tries every legal degree already"
        return one(name, "other degrees of parallelism", why=why)
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
    priced, engine = other_devices(base), base.asked.question.profile
    names = tuple(name for name in priced if efficiency_for(device(name), engine).fits)
    without = (
        f" ({len(priced) - len(names)} more have no known speed of {engine.engine})"
        if priced != names
        else ""
    )
    if _unpriced(base):
        return one("device", "another device", why=NO_PRICE)
    if not names:
        why = f"no other device has a price under the scenario's terms{without}"
        return one("device", "another device", why=why)
    change = f"another device, of {len(names)} with a price{without}"
    settings = merged_settings([Lever("device", change, adds={"fleet.hardware": names})], {})
    risk = "another stack to run; prices and supply differ by provider"
    return one("device", change, settings, risk)


def engines(base: Base) -> list[Lever]:
    """Return the other engines, each in its newest version; slow."""
    file, now = base.asked.scenario.file, base.asked.scenario.engine
    version = ("engine_version=null",) if file.engine_version is not None else ()
    risk = "another engine to run, to test and to keep up to date"
    return [
        Lever("engine", f"{now} -> {name}", (f"engine={name}", *version), risk, combines=True, slow=True)
        for name in other_engines(now)
    ]


def commitments(base: Base) -> list[Lever]:
    """Return the other ways to pay for the same devices."""
    scenario, levers = base.asked.scenario, []
    if _unpriced(base):
        return one("commitment", "another commitment", why=NO_PRICE)
    own = all(item.name in scenario.prices.per_gpu_hour for item in scenario.fleet.hardware)
    why = "the scenario has its own prices: prices.per_gpu_hour" if own else ""
    for commitment in (*get_args(Commitment), *get_args(Term)):
        if commitment != scenario.prices.paid_as:
            change, combines = f"{scenario.prices.paid_as} -> {commitment}", commitment in FREE_TO_TAKE
            settings, risk = [f"prices.commitment={commitment}"], COMMITMENT_RISKS[commitment]
            levers += one("commitment", change, settings, risk, why=why, combines=combines)
    return levers


def disaggregation(base: Base) -> list[Lever]:
    """Return separate prefill and decode pools, on the devices of the scenario, or the scenario without them; slow."""
    name, change = "disaggregation", "prefill and decode in separate pools"
    scenario = base.asked.scenario
    if scenario.fleet.pools is not None:
        if scenario.fleet.pools.screened and not base.has_pools:
            return one(name, change, why="the plan is cheaper than separate pools: fleet looks at both")
        risk = "none: replicas that do both are simpler to run"
        change, settings = "prefill and decode in the same replicas", ("fleet.disaggregation=off",)
        return one(name, change, settings, risk, combines=True)
    if any(item.users is not None and item.sessions for item in scenario.classes):
        return one(name, change, why="not modelled with users who have conversations")
    risk = "two pools to run and to scale; KV caches cross the network, whose congestion is not modelled"
    return one(name, change, ("fleet.disaggregation=only",), risk, combines=True, slow=True)


def mixes(base: Base) -> list[Lever]:
    """Return several fleets for one service, each on the GPUs that suit its requests, or the scenario without them."""
    name, asked = "mix", base.asked
    change = "a fleet for each class, for short and long prompts, or for a share of each class"
    if asked.scenario.fleet.mix != "off":
        risk = "none: one kind of fleet is simpler to run"
        return one(name, "one fleet for all requests", ("fleet.mix=off",), risk)
    why, classes, gpus = "", asked.scenario.classes, asked.question.devices
    if _unpriced(base):
        why = NO_PRICE
    elif len(gpus) < 2:
        why = f"{gpus[0].name} is the only kind of GPU listed"
    elif len(classes) < 2 and not all(map(dealt_by_share, classes)):
        why = "there is one class, and the prompts of one user, of a session and of cached prefixes stay together"
    risk = "a router that knows the class of a request or the length of its prompt, and several fleets to run"
    return one(name, change, ("fleet.mix=any",), risk, why=why)


NAME, CHANGE = "prefix-routing", "requests go where their prefix is cached"


def routing(base: Base) -> list[Lever]:
    """Return a router by prefix, whose replicas hold different prefixes, or why it changes nothing; slow."""
    plan, classes, why = base.plan, base.asked.scenario.classes, ""
    if plan is None or len(plan.groups) > 1:
        why = (
            "there is no plan whose requests could be routed"
            if plan is None
            else "the router of a mix looks at classes or lengths"
            if plan.is_mix
            else "prompts have their own pool"
        )
        return one(NAME, CHANGE, why=why)
    busy = plan.single.busy_replicas
    if base.asked.question.demand.has_sessions:
        why = _kept_by_sessions(base, busy)
    elif not any(item.reuse for item in classes):
        why = "no traffic has prefixes that differ from replica to replica"
        shared = ", ".join(item.name for item in classes if item.prefix_hit_fraction)
        if shared:
            why += f": each of the {busy} replicas has the shared prefix of {shared} after its first request"
    elif busy == 1:
        why = "one replica serves all requests, so there is nothing to route"
    risk = "a router that follows the prefixes has to be run; the replica of a popular prefix may be busier than others"
    settings = ("fleet.routing=prefix_aware",)
    return one(NAME, CHANGE, settings, risk, why=why, slow=True, sized=partial(pooled_plan, base, plan))


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
    trial = trial_of(replace(question, demand=demand), layout, terms)
    if isinstance(trial, Reason):
        return None
    busy = busy_replicas(trial, trial.limits, question.slo.confidence, terms)
    return None if busy is None else terms.sized(trial, busy)


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


REGIONS, EACH = "regions", "a fleet in each region, for its own users"
Planned = Callable[[Sequence[str]], tuple[AskedFleet, Plan | None]]
"""A question with more keys overridden, and its plan; None if no plan meets the targets."""


def region_rows(planned: Planned, base: Base) -> list[LeverRow]:
    """Return the other places for the machines of all users, and a fleet in each region.

    Parameters
    ----------
    planned : asks a changed scenario
    base : the scenario as it is: one fleet
    """
    names, why = [region.name for region in base.file.regions], ""
    if len(names) < 2:
        why = "the scenario has fewer than two regions; see regions and traffic[].region"
    elif base.file.fleet.serves == "location":
        why = "the fleet serves the users of one region; leave fleet.serves out"
    if why:
        return [lever_row(idle(REGIONS, EACH, why), None, base.plan)]
    return [*_elsewhere(planned, base, names), _in_each(planned, base, names)]


def kg_co2_per_month(asked: AskedFleet, plan: Plan | None) -> float | None:
    """Return the carbon dioxide of the electricity of a plan; None if a scenario does not state what it takes to say it."""
    energy = None if plan is None else asked_energy(asked, plan)[0]
    return None if energy is None else energy.kg_co2


def _elsewhere(planned: Planned, base: Base, names: Sequence[str]) -> Iterator[LeverRow]:
    """Yield one fleet for the users of all regions, with its machines in each region; the plan as it is is left out."""
    for name in names:
        settings = (f"fleet.location={json.dumps(name)}",)
        risk = "users of other regions wait longer for a first token: the delay is a part of the targets"
        lever = Lever(REGIONS, f"one fleet for all users, in {name}", settings, risk)
        try:
            asked, plan = planned(settings)
        except CapplanError as error:
            yield lever_row(idle(REGIONS, lever.change, first_line(error)), None, base.plan)
            continue
        if asked.scenario.classes == base.asked.scenario.classes:  # where the machines are
            continue
        row = lever_row(lever, plan, base.plan, "no plan meets the targets")
        yield replace(row, kg_co2_per_month=kg_co2_per_month(asked, plan))


def _in_each(planned: Planned, base: Base, names: Sequence[str]) -> LeverRow:
    """Return the fleets of all regions together, each sized for the busiest hour of its own users."""
    homes = {item.region for item in base.file.traffic}
    parts: dict[str, tuple[AskedFleet, Plan]] = {}
    risk = "users are sent to the fleet of their region; plan each with fleet.serves=location and fleet.location=REGIONS"
    for name in names:
        if name not in homes:
            continue
        try:
            asked, plan = planned((f"fleet.location={json.dumps(name)}", "fleet.serves=location"))
        except CapplanError as error:
            return lever_row(idle(REGIONS, EACH, first_line(error)), None, base.plan)
        if plan is None:
            return lever_row(
                Lever(REGIONS, EACH, risk=risk), None, base.plan, f"no plan meets the targets in {name}"
            )
        parts[name] = asked, plan
    if any(len(plan.groups) > 1 for _, plan in parts.values()):
        why = "fleets of separate pools or of a mix are not added up; plan each with fleet.serves=location"
        return lever_row(idle(REGIONS, EACH, why), None, base.plan)
    fleets = ", ".join(f"{plan.gpus} x {plan.hardware} in {name}" for name, (_, plan) in parts.items())
    lever = Lever(REGIONS, f"a fleet in each region: {fleets}", risk=risk)
    each = [kg_co2_per_month(*part) for part in parts.values()]
    kg = None if None in each else sum(filter(None, each))
    return replace(lever_row(lever, _together(parts), base.plan), kg_co2_per_month=kg)


def _together(parts: dict[str, tuple[AskedFleet, Plan]]) -> Plan:
    """Return the fleets of several regions as one plan, each with the requests of its own users."""
    total = sum(plan.peak_requests_per_s for _, plan in parts.values())
    classes = tuple(item for asked, _ in parts.values() for item in asked.scenario.classes)
    plans = []
    for asked, plan in parts.values():
        names = tuple(item.name for item in asked.scenario.classes)
        requests = RoutedRequests(names, plan.peak_requests_per_s / total)
        plans.append(replace(plan, groups=(replace(plan.single, requests=requests),)))
    together = together_of([(asked, plan) for asked, plan in parts.values()], classes)
    assert isinstance(together, Together)  # each plan was found with its layout
    headroom = max(terms_of(asked).headroom_fraction for asked, _ in parts.values())
    return mix_plan(demand_of_classes(classes), plans, together, headroom)[0]
