"""Levers of the engine: dtypes, prefix cache, speculation, steps, offload."""

from capplan.engine.lookup import unsupported_reason
from capplan.errors import InputError
from capplan.fleet.levers import Lever
from capplan.model.network import Network
from capplan.model.parameters import weight_bytes
from capplan.model.weight_format import in_weight_format, kv_bytes_per_element, named_weight_format
from capplan.questions.levers.as_it_is import Base, first_line, idle

WEIGHT_DTYPES = ("fp8", "nvfp4", "int4")
"""Weight dtypes to try, where they are narrower than those of the scenario."""
KV_DTYPES = ("fp8", "int8", "int4")
HOST_MEMORY_GB = 512
"""Host memory of a replica that the offload lever tries."""

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
    levers = []
    for dtype in WEIGHT_DTYPES:
        name, change = "weight-dtype", f"weights in {dtype}"
        run = named_weight_format(dtype).dtype
        refused = [
            unsupported_reason(question.profile, device.architecture, run) for device in question.devices
        ]
        if dtype in question.networks:
            levers.append(idle(name, change, "the scenario has it already"))
        elif all(refused):
            levers.append(idle(name, change, "; ".join(dict.fromkeys(why.words for why in refused if why))))
        elif why := _no_smaller(shipped, dtype, narrowest):
            levers.append(idle(name, change, why))
        else:
            settings = (f"weight_dtype={dtype}", "fleet.weight_dtypes=null")
            risk = _ROUNDED if dtype == "fp8" else _COARSE
            levers.append(Lever(name, change, settings, risk, adds={"fleet.weight_dtypes": (dtype,)}))
    return levers


def _no_smaller(network: Network, dtype: str, narrowest: float) -> str:
    """Return why a weight dtype saves no memory; empty where it does."""
    try:
        smaller = weight_bytes(in_weight_format(network, dtype)) < narrowest
    except InputError as error:
        return first_line(error)
    return "" if smaller else "would not be smaller than the weights as they are"


def kv_dtypes(base: Base) -> list[Lever]:
    """Return narrower dtypes of the KV cache, each alone."""
    question = base.asked.question
    narrowest = min(kv_bytes_per_element(name) for name in question.kv_formats)
    levers = []
    for dtype in KV_DTYPES:
        name, change = "kv-dtype", f"KV cache in {dtype}"
        refused = [
            unsupported_reason(question.profile, device.architecture, kv_dtype=dtype)
            for device in question.devices
        ]
        if dtype in question.kv_formats:
            levers.append(idle(name, change, "the scenario has it already"))
        elif all(refused):
            levers.append(idle(name, change, "; ".join(dict.fromkeys(why.words for why in refused if why))))
        elif kv_bytes_per_element(dtype) >= narrowest:
            levers.append(idle(name, change, "would not be smaller than the cache as it is"))
        else:
            settings = (f"kv_dtype={dtype}", "fleet.kv_dtypes=null")
            levers.append(Lever(name, change, settings, _ROUNDED_CACHE, adds={"fleet.kv_dtypes": (dtype,)}))
    return levers


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


def token_budget(base: Base) -> list[Lever]:
    """Return half and twice the tokens of a step."""
    scheduling, key = base.scheduling, "max_num_batched_tokens"
    if scheduling is None:
        return [idle("token-budget", key, "there is no plan whose steps could be changed")]
    now = scheduling.max_num_batched_tokens
    return [
        Lever(
            "token-budget", f"{key} {now} -> {tokens}", (f"{key}={tokens}",),
            "long prompts delay the tokens of others" if tokens > now else "long prompts take more steps",
            combines=True,
        )
        for tokens in (now // 2, now * 2)
        if tokens >= scheduling.max_num_seqs
    ]  # fmt: skip


def sequences(base: Base) -> list[Lever]:
    """Return half and twice the sequences of a step."""
    scheduling, key = base.scheduling, "max_num_seqs"
    if scheduling is None:
        return [idle("max-num-seqs", key, "there is no plan whose steps could be changed")]
    now = scheduling.max_num_seqs
    return [
        Lever(
            "max-num-seqs", f"{key} {now} -> {count}", (f"{key}={count}",),
            _QUEUE if count > now else "requests wait longer for their first token at the peak",
            combines=True,
        )
        for count in (now // 2, now * 2)
        if 1 <= count <= scheduling.max_num_batched_tokens
    ]  # fmt: skip


def chunked_prefill(base: Base) -> list[Lever]:
    """Return nothing to try: the search knows the scheduler of the engine alone."""
    scheduling = base.scheduling
    profile = base.asked.question.profile
    if scheduling is not None and scheduling.policy == "mixed" and scheduling.chunked:
        why = f"on already: {profile.engine} {profile.version} cuts prompts into chunks beside decoding sequences"
    else:
        why = (
            f"{profile.engine} prefills apart from decoding; to try it: capplan simulate --scheduling chunked"
        )
    return [idle("chunked-prefill", "prompts in chunks beside decoding", why)]


def kv_offload(base: Base) -> list[Lever]:
    """Return host memory for prefixes, or the scenario without its tiers."""
    name, scenario = "kv-offload", base.asked.scenario
    if scenario.kv_offload:
        return [Lever(name, "without offload tiers", ("kv_offload=[]",), _ENGINE_KEPT, combines=True)]
    change = f"{HOST_MEMORY_GB} GB of host memory for prefixes"
    if not any(item.reuse for item in scenario.classes):
        why = "no traffic says how prefix hits grow with the cache: give a trace with block hashes"
        return [idle(name, change, why)]
    settings = (f"kv_offload=[{{name: host, capacity: {HOST_MEMORY_GB} GB}}]",)
    return [Lever(name, change, settings, "the price of that memory is not included", combines=True)]
