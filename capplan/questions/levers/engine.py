"""Levers of the engine: dtypes, prefix cache, speculation, scheduling."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from capplan.engine.lookup import unsupported_reason
from capplan.errors import InputError
from capplan.fleet.question import spec_of_layout
from capplan.model.network import Network
from capplan.model.parameters import weight_bytes
from capplan.model.weight_format import in_weight_format, kv_bytes_per_element, named_weight_format
from capplan.questions.levers.lever import Base, Lever, first_line, idle
from capplan.replica.replica import replica_of
from capplan.replica.speculation import DraftPlan, Method, draft_of, speculation
from capplan.scenario.speculation import Published, not_published, published_acceptance

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


def weight_dtypes(base: Base) -> list[Lever]:
    """Return narrower weight dtypes, each alone."""
    question = base.asked.question
    narrowest = min(weight_bytes(network) for network in question.networks.values())
    shipped = next(iter(question.networks.values()))
    return [
        _narrower(
            Lever(
                "weight-dtype", f"weights in {dtype}", (f"weight_dtype={dtype}", "fleet.weight_dtypes=null"),
                _ROUNDED if dtype == "fp8" else _COARSE, adds={"fleet.weight_dtypes": (dtype,)},
            ),
            dtype in question.networks,
            _refused(base, weight_dtype=named_weight_format(dtype).dtype),
            partial(_no_smaller, shipped, dtype, narrowest),
        )
        for dtype in WEIGHT_DTYPES
    ]  # fmt: skip


def kv_dtypes(base: Base) -> list[Lever]:
    """Return narrower dtypes of the KV cache, each alone."""
    formats = base.asked.question.kv_formats
    narrowest = min(kv_bytes_per_element(name) for name in formats)
    return [
        _narrower(
            Lever(
                "kv-dtype", f"KV cache in {dtype}", (f"kv_dtype={dtype}", "fleet.kv_dtypes=null"), _ROUNDED_CACHE,
                adds={"fleet.kv_dtypes": (dtype,)},
            ),
            dtype in formats,
            _refused(base, kv_dtype=dtype),
            partial(_no_smaller_cache, dtype, narrowest),
        )
        for dtype in KV_DTYPES
    ]  # fmt: skip


def _narrower(lever: Lever, present: bool, refused: str, no_smaller: Callable[[], str]) -> Lever:
    """Return a lever of a dtype, or why it is not applicable."""
    why = "the scenario has it already" if present else refused or no_smaller()
    return idle(lever.name, lever.change, why) if why else lever


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


def _no_smaller_cache(dtype: str, narrowest: float) -> str:
    """Return why a cache dtype saves no memory; empty where it does."""
    return "" if kv_bytes_per_element(dtype) < narrowest else "would not be smaller than the cache as it is"


def prefix_caching(base: Base) -> list[Lever]:
    """Return the scenario without its prefix cache: what the cache is worth."""
    name, change = "prefix-caching", "without prefix caching"
    classes = base.asked.scenario.classes
    if base.file.prefix_caching is False:
        return [Lever(name, "with prefix caching", ("prefix_caching=true",), _ENGINE_KEPT, combines=True)]
    if not any(item.prefix_hit_fraction or item.reuse for item in classes):
        why = "no traffic says what its prompts have in common: give traffic[].shared_prefix, or a trace with block hashes"
        return [idle(name, "with prefix caching", why)]
    return [
        Lever(name, change, ("prefix_caching=false",), "prompts that share a prefix are computed in full")
    ]


def prefix_hits(base: Base) -> list[Lever]:
    """Return other shares of requests that hit their shared prefix: what a better or worse cache is worth."""
    name, change = "prefix-hits", "another share of prefix hits"
    shared = [index for index, item in enumerate(base.file.traffic) if item.shared_prefix is not None]
    if not shared or base.file.prefix_caching is False:
        return [idle(name, change, "no traffic states a shared_prefix with its hit_fraction")]
    return [
        Lever(
            name,
            f"{fraction:.0%} of the requests hit their shared prefix",
            tuple(f"traffic[{index}].shared_prefix.hit_fraction={fraction!r}" for index in shared),
            "hits follow from traffic, routing and the size of the cache: measure them",
        )
        for fraction in HIT_FRACTIONS
    ]


def token_budget(base: Base) -> list[Lever]:
    """Return half and twice the tokens of a step."""
    return _half_and_twice(
        base,
        "token-budget",
        "max_num_batched_tokens",
        ("long prompts take more steps", "long prompts delay the tokens of others"),
    )


def sequences(base: Base) -> list[Lever]:
    """Return half and twice the sequences of a step."""
    return _half_and_twice(
        base,
        "max-num-seqs",
        "max_num_seqs",
        ("requests wait longer for their first token at the peak", _QUEUE),
    )


def _half_and_twice(base: Base, lever: str, key: str, risks: tuple[str, str]) -> list[Lever]:
    """Return half and twice a limit of the engine, as far as a step still has a token for each sequence."""
    scheduling = base.scheduling
    if scheduling is None:
        return [idle(lever, key, "there is no plan whose steps could be changed")]
    limits = {name: getattr(scheduling, name) for name in ("max_num_seqs", "max_num_batched_tokens")}
    now = limits[key]
    levers = []
    for value, risk in zip((now // 2, now * 2), risks, strict=True):
        changed = limits | {key: value}
        if 1 <= changed["max_num_seqs"] <= changed["max_num_batched_tokens"]:
            levers.append(Lever(lever, f"{key} {now} -> {value}", (f"{key}={value}",), risk, combines=True))
    return levers


def chunked_prefill(base: Base) -> list[Lever]:
    """Return prompts in chunks beside decoding sequences, or whole ones where the plan as it is has chunks; slow."""
    name, scheduling = "chunked-prefill", base.scheduling
    if base.apart:
        why = "prompts have their own pool, where no sequence decodes beside them"
        return [idle(name, "prompts in chunks beside decoding", why)]
    if scheduling is None:
        return [
            idle(name, "prompts in chunks beside decoding", "there is no plan whose steps could be changed")
        ]
    if scheduling.policy == "mixed" and scheduling.chunked:
        now = base.asked.scenario.max_num_batched_tokens
        context = base.asked.question.max_model_len
        settings = (
            "chunked_prefill=false",
            *(() if now is None or now >= context else ("max_num_batched_tokens=null",)),
        )
        risk = "a long prompt holds up the tokens of all others while it runs"
        return [Lever(name, "prompts taken whole, not in chunks", settings, risk, combines=True, slow=True)]
    risk = "none: an engine setting; prompts take more steps, tokens wait less"
    return [
        Lever(
            name,
            "prompts in chunks beside decoding",
            ("chunked_prefill=true",),
            risk,
            combines=True,
            slow=True,
        )
    ]


def kv_offload(base: Base) -> list[Lever]:
    """Return host memory for prefixes, or the scenario without its tiers."""
    name, scenario = "kv-offload", base.asked.scenario
    if scenario.kv_offload:
        return [Lever(name, "without offload tiers", ("kv_offload=[]",), _ENGINE_KEPT, combines=True)]
    priced = scenario.own.host_usd_per_gb_month is not None
    changes = {size: f"{size} GB of host memory for prefixes" for size in HOST_MEMORY_GB}
    if not any(item.reuse for item in scenario.classes):
        why = "no traffic says how prefix hits grow with the cache: give a trace with block hashes"
        return [idle(name, "host memory for prefixes", why)]
    return [
        Lever(
            name,
            change,
            (f"kv_offload=[{{name: host, capacity: {size} GB}}]",),
            "host memory has to be bought or rented with the machines"
            if priced
            else "the price of that memory is not included: give prices.host_memory_per_gb",
            combines=True,
            host_bytes=size * 1e9,
        )
        for size, change in changes.items()
    ]


TRIED: tuple[Method, ...] = ("ngram", "eagle", "mtp")
"""Methods that need nothing but the target: a head has to be trained, or is published for it."""
_WORDS: dict[Method, str] = {
    "ngram": "drafts from the prompt (ngram)",
    "eagle": "an EAGLE head",
    "mtp": "the model's own multi-token prediction",
}


def speculations(base: Base) -> list[Lever]:
    """Return the scenario without its speculation, or with each method that needs no other model."""
    name, scenario = "speculation", base.asked.scenario
    if scenario.speculation is not None:
        return [
            Lever(
                name, "without speculation", ("speculation=null",), "none: an engine setting", combines=True
            )
        ]
    return [_method(base, name, method) for method in TRIED]


def _method(base: Base, name: str, method: Method) -> Lever:
    change = f"speculation: {_WORDS[method]}"
    network = next(iter(base.asked.question.networks.values()))
    if method == "mtp" and not network.mtp_parameters:
        return idle(name, change, f"{network.name} has no layers for multi-token prediction")
    groups = () if base.plan is None else base.plan.groups
    if any(group.layout.sharding.pipeline > 1 for group in groups):
        return idle(
            name, change, "the plan as it is has pipeline stages, with which speculation is not modelled"
        )
    known = published_acceptance(method, network)
    if known is None:
        return idle(name, change, not_published(method, network).replace("\n ", ";"))
    settings = (f"speculation={{method: {method}}}",)
    accepted = known.acceptance_fractions[0]
    risk = f"pays by its acceptance, here {accepted:.0%}: measure it on your own traffic{_until(base, known)}"
    return Lever(name, change, settings, risk, combines=True)


def _until(base: Base, published: Published) -> str:
    """Return the load from which a method makes the plan as it is no faster, next to the load that it has."""
    plan, question = base.plan, base.asked.question
    if plan is None:
        return ""
    group = plan.groups[-1]  # of separate pools the one that decodes
    replica = replica_of(spec_of_layout(group.layout, group.weight_dtype, question))
    drafting = DraftPlan(published.method, published.acceptance_fractions, published.draft_tokens)
    context = float(question.demand.lengths.input_tokens + question.demand.lengths.output_tokens)
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
