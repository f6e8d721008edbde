"""What serves a measured row: replicas behind a router or separate pools, with the requests and limits of `trtllm-bench` where that tool ran.

Requests: "Preparing a Dataset" in docs/source/performance/perf-overview.md of TensorRT-LLM, versions 0.14 to 1.1;
limits: tensorrt_llm/bench/build/tuning.py. Memory fraction: the same page (0.95), its printed example before 0.17 (0.99).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, gcd, inf
from typing import TypeAlias

from capplan.accuracy.cells import is_set, number_in
from capplan.assumption import Assumption
from capplan.engine.versions import SPELLINGS, named_engine, spelled_engine
from capplan.errors import InputError, unknown
from capplan.model.network import Attention, LatentAttention, Network
from capplan.model.parameters import weight_bytes
from capplan.model.sharding import Sharding
from capplan.model.weight_format import stored_dtypes
from capplan.serving.terms import Routing

_POOLS = re.compile(r"(\d+)\s*P\s*(?:\(([^)]*)\))?\s*\+\s*(\d+)\s*D\s*(?:\(([^)]*)\))?(?:\s*\(([^)]*)\))?")
_COUNT = re.compile(r"\d+(?:\.0*)?")
_RANKS = re.compile(r"(TP|DP)\s*(\d+)", re.IGNORECASE)
_POOL_LAYOUT = r"{} (?:\d+ x )?((?:(?:TP|DP)\s*\d+\s*/?\s*)+)"
_HOST_BYTES = re.compile(
    r"(?:cpu-offload-|\b)(\d+(?:\.\d+)?) ?GiB CPU tier|CPU tier (\d+(?:\.\d+)?) GiB|cpu-offload-(\d+(?:\.\d+)?)GiB",
    re.IGNORECASE,
)
_HOST_TOKENS = re.compile(r"CPU (\d+(?:\.\d+)?)M tokens", re.IGNORECASE)

PHASES = {"prefill_only": "prefill", "step_time": "prefill", "decode_only": "decode"}
"""Kind of a run of one phase -> the phase."""

ATTENTION_DP = frozenset({"attn-dp", "attention-dp", "attn dp", "dp attention", "dp-attention"})
"""Words in `dp` that say attention runs in as many groups as there are ranks."""

ATTENTION_RANKS = inf
"""Degree that such words stand for: as many groups as there are ranks."""

SERVER_GPUS = 8
"""Most GPUs that engines split attention over by default: those of one server. Experts over more are combined with data-parallel attention."""

INSIDE = {"deepseek-internal": ("sglang", "0.4.6")}
"""Engine that is not published -> engine and version that are replayed in its place: since 0.4.6 SGLang runs the same kernels (DeepEP, DeepGEMM,
FlashMLA) in the same layout and repeats its figures, https://lmsys.org/blog/2025-05-05-large-scale-ep/."""

_TIERS_UNSEEN = re.compile(r"cpu index weight 0(?:\.0{1,9})?(?![\d.])")
"""Words of a router that gives blocks in host memory no weight."""

REPORTED = ("queue", "kv-util")
"""Words of a router that scores engines by the metrics that they publish: those of llm-d and of the Gateway API inference extension."""

ROUTERS: tuple[tuple[str, Routing], ...] = (
    ("round robin", "round_robin"),
    ("random", "random"),
    ("prefix", "prefix_aware"),
    ("affinity", "prefix_aware"),
    ("precise", "prefix_aware"),
    ("approx", "prefix_aware"),
    ("load", "least_loaded"),
    ("least", "least_loaded"),
    ("token-aware", "least_loaded"),
    ("own dispatch", "round_robin"),
    ("none", "round_robin"),
)
"""Word in the column `router` -> the rule of the simulator, the first that occurs; a load generator that deals requests itself takes turns."""


Pools: TypeAlias = tuple[tuple[int, Sharding], tuple[int, Sharding]]
"""Prefill and decode: identical engines and their layout."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """The engines that served a run."""

    replicas: int = 1
    """Identical engines; with separate pools those of both."""
    routing: Routing = "round_robin"
    """Routing of the replicas, or of the prefill pool."""
    pools: Pools | None = None
    """None: every engine does both."""
    host_cache_bytes: float = 0.0
    """Host memory of one replica for evicted blocks; 0 where the row states it in tokens."""
    host_cache_tokens: float = 0.0
    """Host memory of one replica for evicted blocks [tokens]; 0 where the row states it in bytes."""
    pulls: bool = False
    """Engines pull the prompts that others have cached."""
    unshared: Routing = "least_loaded"
    """Routing of a router by prefix when no prompts share one."""
    assumptions: tuple[Assumption, ...] = ()
    """What the row does not state of its pools."""


AGGREGATED = Deployment()
"""One engine."""


def routing_named(text: str) -> Routing:
    """Return the rule of a router that a text describes.

    Parameters
    ----------
    text : such as `Kubernetes Service round robin`, `load only`, `precise prefix affinity`; empty: turns

    Returns
    -------
    the rule; InputError where no word is known

    Examples
    --------
    >>> routing_named("llm-d prefix affinity + load"), routing_named("load only"), routing_named("")
    ('prefix_aware', 'least_loaded', 'round_robin')
    >>> routing_named("llm-d precise; CPU index weight 0.4"), routing_named("llm-d precise; CPU index weight 0.0")
    ('prefix_aware', 'gpu_prefix_aware')
    """
    lower = text.lower()
    if not lower.strip():
        return "round_robin"
    for word, routing in ROUTERS:
        if word in lower:
            return (
                "gpu_prefix_aware" if routing == "prefix_aware" and _TIERS_UNSEEN.search(lower) else routing
            )
    raise InputError(
        f"router: {text!r} is not modelled; known are words such as round robin, random, load, prefix and affinity"
    )


def engine_inside(text: str) -> tuple[str, bool, tuple[Assumption, ...]]:
    """Return the engine that runs inside what a cell names, whether something around it counts versions of its own, and what was assumed.

    Parameters
    ----------
    text : such as `vllm`, `vllm+llm-d`, `trtllm+dynamo`, `moreh-vllm`, `deepseek-internal`

    Examples
    --------
    >>> engine_inside("vllm+llm-d")[:2], engine_inside("moreh-vllm")[:2], engine_inside("TensorRT-LLM")
    (('vllm', True), ('vllm', False), ('trtllm', False, ()))
    """
    name, joined = text.strip().lower(), "+" in text
    if name in INSIDE:
        replayed, version = INSIDE[name]
        return replayed, False, (Assumption(f"{name} is replayed as {replayed} {version}", "engine"),)
    parts = re.split(r"\+" if joined else r"[-_ ]", name)
    inside = {engine for part in parts if (engine := spelled_engine(part))}
    if not joined:
        try:
            return (*named_engine(text), ())
        except InputError:
            if len(inside) != 1 or "disagg" in name:
                raise
    elif len(inside) != 1:
        raise unknown("engine", text, SPELLINGS)
    own = inside.pop()
    return own, joined, (Assumption(f"{text.strip()} is replayed as {own}", "engine"),)


def _degree(row: Mapping[str, str], key: str, place: int) -> float | None:
    """Return a degree of parallelism of the prefill (0) or decode (1) engines: `16/32` states both, one number holds for either."""
    text = (row.get(key) or "").strip()
    parts = [part.strip() for part in text.split("/")]
    if len(parts) > 2:
        raise InputError(
            f"{key}: {text!r} is neither a number nor two\n  write that of prefill and that of decode engines: 16/32"
        )
    own = parts[min(place, len(parts) - 1)]
    return ATTENTION_RANKS if key == "dp" and own.lower() in ATTENTION_DP else number_in({key: own}, key)


def stated_sharding(row: Mapping[str, str], gpus: float | None, place: int = 0) -> Sharding | None:
    """Return the layout of one engine as the columns state it; None where they state none.

    Experts occupy all ranks of an engine, so of `tp`, `dp` and `ep` = tp x dp two tell the third.

    Parameters
    ----------
    row : its columns tp, pp, ep, dp, attention_data_parallel and layout
    gpus : of the engine, for layouts that name no number
    place : 0 for prefill engines and aggregated ones, 1 for decode engines

    Examples
    --------
    >>> stated_sharding({"tp": "1", "ep": "16/32"}, None, 1) == Sharding(1.0, 1.0, 32.0, 32.0)
    True
    """
    named = (row.get("layout") or "").strip().lower()
    tensor, pipeline, expert, data = (_degree(row, key, place) for key in ("tp", "pp", "ep", "dp"))
    whole = gpus and gpus / (pipeline or 1.0)
    if is_set(row.get("attention_data_parallel")) or data == ATTENTION_RANKS:
        # One size for both: attention over that many groups, experts spread over all.
        ranks = tensor or expert or whole or 1.0
        return Sharding(1.0, pipeline or 1.0, ranks, ranks)
    if tensor is None and data is None:
        if named == "dep" and whole:
            data = expert = whole
        elif named == "tp" and whole:
            tensor = whole
        elif expert is not None and expert > SERVER_GPUS:
            data = expert
        elif (pipeline or 1.0) == (expert or 1.0) == 1.0:
            return None
    elif tensor is None and expert and data and expert % data == 0:
        tensor = expert / data
    elif data is None and expert and tensor and expert % tensor == 0:
        data = expert / tensor
    return Sharding(tensor or 1.0, pipeline or 1.0, expert or 1.0, data or 1.0)


def unstated_layout(gpus: float, phase: str) -> InputError:
    """Return the error for GPUs whose layout nothing states."""
    return InputError(
        f"tp, dp, ep: missing; {gpus:g} {phase}GPUs can be laid out in several ways\n"
        "  write tp, or dp and ep, of one engine; 16/32 states prefill and decode engines"
    )


def sharding_of(row: Mapping[str, str], replicas: int = 1) -> tuple[Sharding, tuple[Assumption, ...]]:
    """Return the parallelism of one of the identical replicas of a row, and what was assumed.

    Engines count attention data parallelism in two ways: on top of tensor parallelism, or inside it
    (tp = dp = GPUs). Where tp x dp x pp exceeds the GPUs, attention is cut over GPUs / (dp x pp) ranks. Where a row states no
    layout, one server is tensor parallel, and several are an error.

    Examples
    --------
    >>> sharding_of({"num_gpus": "8"})[0] == Sharding(tensor=8.0)
    True
    """
    total = number_in(row, "num_gpus")
    whole = total / replicas if total else None
    stated = stated_sharding(row, whole)
    if stated is None:
        if whole and whole > SERVER_GPUS:
            raise unstated_layout(whole, "")
        if whole and whole > 1.0:
            note = f"tensor parallel over the {whole:g} GPUs of one server"
            return Sharding(tensor=whole), (Assumption(note, "tp, dp, ep"),)
        return Sharding(), ()
    tensor, pipeline, data = float(stated.tensor), float(stated.pipeline), float(stated.data)
    devices = whole or tensor * pipeline * data
    if tensor * pipeline * data > devices:
        tensor = max(1.0, devices / (pipeline * data))
    elif tensor * pipeline * data < devices:
        each = f" of each of {replicas} replicas" if replicas > 1 else ""
        raise InputError(
            f"tp {tensor:g} x pp {pipeline:g} x dp {data:g} does not use all {devices:g} GPUs{each}\n"
            "  write tp, or dp and ep, so that tp x pp x dp is the number of GPUs"
        )
    return Sharding(tensor, pipeline, stated.expert, data), ()


def with_identical_engines(row: Mapping[str, str], deployment: Deployment) -> Deployment:
    """Return a deployment with several identical engines, where a row states the whole layout of one of them.

    With `ep` = tp x dp every rank of an engine is stated, so further GPUs are further engines.

    Examples
    --------
    >>> [with_identical_engines({"num_gpus": "72"} | cells, AGGREGATED).replicas for cells in ({"ep": "8", "dp": "8"}, {"tp": "8"})]
    [9, 1]
    """
    total, stated = number_in(row, "num_gpus"), stated_sharding(row, None)
    if not total or stated is None or stated.expert == 1.0 or stated.expert != stated.tensor * stated.data:
        return deployment
    count, left = divmod(total, float(stated.devices))
    if row.get("replicas") or left or count < 2:
        return deployment
    note = Assumption(f"{count:g} identical engines behind a router by load", "replicas")
    return replace(deployment, replicas=int(count), routing="least_loaded", assumptions=(note,))


def pool_of_gpus(
    row: Mapping[str, str], gpus: float, phase: str, *, both: bool
) -> tuple[int, Sharding, tuple[Assumption, ...]]:
    """Return how many engines of which layout a pool has.

    Parameters
    ----------
    row : text by column name
    gpus : of the pool
    phase : prefill or decode
    both : the row has the other pool too, whose layout its columns may state instead

    Returns
    -------
    engines, the layout of one, and what was assumed; InputError where the row states no layout
    """
    stated = stated_sharding(row, gpus, int(phase == "decode"))
    if stated is None:
        if gpus <= SERVER_GPUS or both:
            raise unstated_layout(gpus, f"{phase} ")
        spread = Sharding(1.0, 1.0, gpus, gpus)
        note = f"{phase} engines with data-parallel attention and experts over all {gpus:g} GPUs"
        return 1, spread, (Assumption(note, "dp, ep"),)
    size = float(stated.devices)
    if gpus % size == 0:
        return int(gpus / size), stated, ()
    if size > gpus and not both:
        return 1, *sharding_of({**row, "num_gpus": f"{gpus:g}"})
    ranks = gcd(int(gpus), int(size))
    if stated.data > 1.0:
        fewer = Sharding(1.0, 1.0, float(ranks), float(ranks))
    else:
        fewer = Sharding(float(ranks), 1.0, float(min(ranks, float(stated.expert))), 1.0)
    note = f"{phase} engines of {ranks} GPUs each: layouts of {size:g} do not fill {gpus:g} GPUs"
    return int(gpus) // ranks, fewer, (Assumption(note, "tp, dp, ep"),)


def deployment_of(row: Mapping[str, str], *, split: bool) -> Deployment:
    """Return the engines that served a row.

    Parameters
    ----------
    row : its columns replicas, router, num_gpus, prefill_gpus, decode_gpus, tp, pp, ep, dp, and config_basis for the layouts of pools
    split : prefill and decode ran on separate engines

    Returns
    -------
    the deployment; InputError names what is not modelled or not stated
    """
    said = " ".join(row.get(name) or "" for name in ("router", "prefix_state", "flags")).lower()
    pulls = "p2p" in said or "pulled" in said or "+ pull" in said
    if pulls and (split or (row.get("kind") or "").strip() == "first_token"):
        raise InputError(
            "router: a prompt that one engine pulls from another is replayed in a fleet without pools; by itself it times the link"
        )
    size = _host_cache(row)
    text = (row.get("replicas") or "").strip()
    assumed: tuple[Assumption, ...] = ()
    if split:
        if text:
            pools = _pools(row, text)
        else:
            pools, assumed = _pools_of_gpus(row)
        return Deployment(
            pools[0][0] + pools[1][0],
            "least_loaded" if not row.get("router") else routing_named(row["router"]),
            pools,
            *size,
            unshared=_unshared(row),
            assumptions=assumed,
        )
    if text and not _COUNT.fullmatch(text):
        raise InputError(f"replicas: {text!r} is not a whole number of identical engines")
    count = int(float(text)) if text else 1
    if count < 1:
        raise InputError(f"replicas: {text!r} must be at least 1")
    return Deployment(
        count,
        routing_named(row.get("router") or "") if count > 1 else "round_robin",
        None,
        *size,
        pulls=pulls and count > 1,
        unshared=_unshared(row),
    )


def _unshared(row: Mapping[str, str]) -> Routing:
    """Return what a router by prefix does with prompts that share nothing: its other scores decide, which it reads from engines' metrics or counts."""
    text = (row.get("router") or "").lower()
    return "reported_load" if any(word in text for word in REPORTED) else "least_loaded"


def _host_cache(row: Mapping[str, str]) -> tuple[float, float]:
    """Return the bytes or else the tokens of host memory of one replica that keeps evicted blocks."""
    text = " ".join(row.get(name) or "" for name in ("prefix_state", "config_basis", "arm"))
    tokens, found = _HOST_TOKENS.search(text), _HOST_BYTES.search(text)
    if tokens and re.fullmatch(_COUNT, row.get("replicas") or ""):
        return 0.0, 1e6 * float(tokens[1]) / float(row["replicas"])
    return (float(next(part for part in found.groups() if part)) * 2.0**30 if found else 0.0), 0.0


def _pools_of_gpus(row: Mapping[str, str]) -> tuple[Pools, tuple[Assumption, ...]]:
    """Return the prefill and the decode pool of a row that states their GPUs, and what was assumed."""
    gpus = [number_in(row, f"{phase}_gpus") for phase in ("prefill", "decode")]
    if not gpus[0] or not gpus[1]:
        raise InputError(
            "prefill_gpus, decode_gpus: missing; prefill and decode ran separately\n  write the GPUs of each pool"
        )
    total = number_in(row, "num_gpus")
    if total and total != gpus[0] + gpus[1]:
        raise InputError(f"num_gpus: {total:g} is not prefill_gpus {gpus[0]:g} + decode_gpus {gpus[1]:g}")
    prefill = pool_of_gpus(row, gpus[0], "prefill", both=True)
    decode = pool_of_gpus(row, gpus[1], "decode", both=True)
    return (prefill[:2], decode[:2]), (*prefill[2], *decode[2])


def _pools(row: Mapping[str, str], text: str) -> Pools:
    """Return the prefill and the decode pool of a row: from `8P(TP1)+2D(TP4)`, else with layouts that config_basis states."""
    counts = _POOLS.fullmatch(text)
    if counts is None:
        raise InputError(
            f"replicas: {text!r} does not name one prefill and one decode pool\n  write '8P(TP1)+2D(TP4)'"
        )
    basis = row.get("config_basis") or ""
    pools = []
    for place, name in ((1, "prefill"), (3, "decode")):
        own = counts[place + 1] or ""
        found = re.search(_POOL_LAYOUT.format(name), basis, re.IGNORECASE)
        layout = own or (found[1] if found else "")
        pools.append((int(counts[place]), _sharding_named(layout, row)))
    devices = sum(replicas * float(sharding.devices) for replicas, sharding in pools)
    stated = float(row.get("num_gpus") or devices)
    if devices != stated:
        raise InputError(
            f"replicas: the pools of {text!r} have {devices:g} GPUs, and num_gpus is {stated:g}\n"
            "  write the layout of each: '8P(TP1)+2D(TP4)'"
        )
    return pools[0], pools[1]


def _sharding_named(layout: str, row: Mapping[str, str]) -> Sharding:
    """Return the layout of `TP4` or `DP8`, whose experts are spread over its ranks where the row has expert parallelism; else the row's."""
    ranks = {name.upper(): float(count) for name, count in _RANKS.findall(layout)}
    columns = {name: float(row.get(name) or 1.0) for name in ("tp", "pp", "ep", "dp")}
    if not ranks:
        return Sharding(columns["tp"], columns["pp"], columns["ep"], columns["dp"])
    tensor, data = ranks.get("TP", 1.0), ranks.get("DP", 1.0)
    expert = tensor * data if columns["ep"] > 1.0 or data > 1.0 else 1.0
    return Sharding(tensor, columns["pp"], expert, data)


REQUESTS = {
    (128, 128): 30000, (128, 2048): 3000, (128, 4096): 1500, (500, 2000): 3000, (1000, 1000): 3000,
    (1000, 2000): 1500, (2048, 128): 3000, (2048, 2048): 1500, (5000, 500): 1500, (20000, 2000): 1000,
    (1024, 1024): 3000, (1024, 2048): 1500, (1024, 8192): 1500, (1024, 32768): 1000, (8192, 1024): 1500,
    (32768, 1024): 1000,
}  # fmt: skip
"""Input and output tokens -> requests sent; 1024/2048 is not in the table and taken as 1000/2000."""

MEMORY_FRACTION = 0.95
EARLY_MEMORY_FRACTION = 0.99
"""Share of the memory left by the weights: with the PyTorch backend (from 0.19 on), and before."""

PACKED_RATIO = {"nvfp4": 0.5, "mxfp4": 2.0}
"""Format of two weights per stored element -> bytes that the tool counts for an element."""

MOST_BATCH = 4096.0
MOST_TOKENS = 32768.0


def memory_fraction(version: str) -> float:
    """Return the share of free memory that goes to the cache in runs of an engine version."""
    major, minor = (int(part) for part in version.split(".")[:2])
    return MEMORY_FRACTION if (major, minor) >= (0, 19) else EARLY_MEMORY_FRACTION


def limits(cache_requests: float, input_tokens: float, output_tokens: float, stages: int) -> tuple[int, int]:
    """Return the largest batch and the token budget of a step that the tool configures.

        b = min(r, 4096) / p,  c = min(b (1 + i / o), 32768), both rounded up

    Parameters
    ----------
    cache_requests : [-]
        r, requests that the cache holds, at full length
    input_tokens : [tokens]
        i
    output_tokens : [tokens]
        o
    stages : [-]
        p, pipeline stages; each has its own batch

    Returns
    -------
    [-]
        largest batch of a stage, token budget of its step

    Examples
    --------
    >>> limits(300.0, 1000.0, 1000.0, 1)
    (384, 2048)

    References
    ----------
    TensorRT-LLM, `finetune_setting` in tensorrt_llm/bench/build/tuning.py.
    """
    batch = min(cache_requests, MOST_BATCH) / stages
    tokens = min(batch * (1.0 + input_tokens / output_tokens), MOST_TOKENS)
    steps = 32 if batch < 256 else 128 if batch < 1024 else 256
    grain = 256 if tokens < 4096 else 512 if tokens < 8192 else 1024
    return max(64, steps * ceil(batch / steps)), max(2048, grain * ceil(tokens / grain))


def weight_ratio(network: Network) -> float:
    """Return the weights of a checkpoint by the tool's count over what they take.

    The tool counts the elements that the files of a checkpoint state, each with the bytes of its number format: two fp4 weights are stored as
    one element, and count as half a byte again; a format that the tool does not know counts two bytes an element.

    Examples
    --------
    >>> PACKED_RATIO["nvfp4"], PACKED_RATIO["mxfp4"]
    (0.5, 2.0)

    References
    ----------
    TensorRT-LLM, `ModelConfig.get_param_count` in tensorrt_llm/bench/build/dataclasses.py and `BYTES_PER_ELEM` in tuning.py.
    """
    stored = stored_dtypes(network)
    return next((ratio for name, ratio in PACKED_RATIO.items() if name in stored), 1.0)


def cache_requests(
    network: Network, sharding: Sharding, device_bytes: float, kv_bytes: float, tokens: float
) -> float:
    """Return the tool's estimate of full-length requests in the cache; every layer counts in full.

        r = f (n M - w W) / (2 L max(t, h) d b (i + o))

    Parameters
    ----------
    network : the model as it is served; W its weight bytes, w what the tool makes of them (`weight_ratio`), L its layers, h KV heads,
        d head width; f is MEMORY_FRACTION
    sharding : n devices in p pipeline stages; t = n / p, also where attention is data parallel
    device_bytes : [B]
        M
    kv_bytes : [B]
        b, bytes of one cached element
    tokens : [tokens]
        i + o

    Returns
    -------
    [-]
        r, at least 1

    References
    ----------
    TensorRT-LLM, `calc_engine_setting` in tensorrt_llm/bench/build/tuning.py.
    """
    devices = float(sharding.devices)
    heads, width = 1.0, 128.0
    for layer in network.layers:
        for mixer in layer.mixers:
            if isinstance(mixer, Attention):
                heads, width = float(mixer.kv_heads), float(mixer.head_dim)
            elif isinstance(mixer, LatentAttention):
                heads, width = float(mixer.query_heads), network.hidden_size / mixer.query_heads
    heads = max(heads, devices / float(sharding.pipeline))
    free = max(devices * device_bytes - weight_ratio(network) * weight_bytes(network), 0.0) * MEMORY_FRACTION
    return max(1.0, free / (2.0 * len(network.layers) * heads * width * kv_bytes * tokens))
