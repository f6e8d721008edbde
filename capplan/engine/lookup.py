"""The profile of an engine at a version, with its host times and the scheduling defaults on a device."""

import json
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

from capplan.assumption import Assumption
from capplan.engine.profile import EngineProfile, HostOverhead, PrefillGraphs, Scheduling, StepRules, Tier
from capplan.engine.profiles import LLAMACPP, SGLANG, TRTLLM, VLLM, reserved_bytes, static_fraction
from capplan.engine.versions import CacheRule, named_engine
from capplan.errors import InputError, Reason, Refusal

ENGINES: dict[str, tuple[EngineProfile, ...]] = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "trtllm": TRTLLM,
    "llamacpp": LLAMACPP,
}
"""Profiles of each engine, oldest first."""

ANY_OF = tuple(name for name, profiles in ENGINES.items() if profiles[-1].policy != "slots")
"""Engines among which `engine: any` chooses: those that serve many users, all from the same checkpoints."""

_VERSION = re.compile(r"(?<![\d.])v?(\d+)\.(\d+)(?:\.(\d+))?")

_BUILD = re.compile(r"b(\d{1,6})")
"""Tag of a build of llama.cpp."""

HOST_TIMES_FILE = Path(__file__).with_name("host_times.json")
"""Host times by engine and version, written by `python -m calibrate.fit_serving`; method and scores are in docs/evidence/."""

LONGEST_VERSION = 80
"""Letters of a version; builds of a day and a commit have about 40."""


def version_key(version: str) -> tuple[int, int, int] | None:
    """Return the first version number in a text, as numbers that compare.

    Parameters
    ----------
    version : such as `0.11.2`, `v0.6.5-dev (V0)`, `0.8.x`

    Returns
    -------
    major, minor, patch [-]; None where the text has none

    Examples
    --------
    >>> version_key("0.11.2.dev690+g67475a6e8")
    (0, 11, 2)
    >>> version_key("0.8.x (V0)")
    (0, 8, 0)
    >>> version_key("b4400") < version_key("b10360")
    True
    >>> version_key("nightly") is None
    True
    """
    if build := _BUILD.fullmatch(version):
        return (0, 0, int(build[1]))
    match = _VERSION.search(version)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def profile(engine: str, version: str | None = None, backend: str | None = None) -> EngineProfile:
    """Return the profile of an engine version: that of the nearest known version at or below it.

    Parameters
    ----------
    engine : vllm, sglang or trtllm, in any spelling that `named_engine` knows
    version : None: the newest known
    backend : of llama.cpp; None: the usual one of a device

    Returns
    -------
    the profile of an API server, whose engine process streams no tokens; `assumptions` say so where the version is not known

    Examples
    --------
    >>> profile("vllm", "0.19.1").version
    '0.18.0'
    >>> profile("sglang").policy
    'prefill_first'
    """
    name = named_engine(engine)[0]
    if backend is not None and ENGINES[name] is not LLAMACPP:
        raise InputError(
            f"{name} has no backends to choose from; llamacpp has: leave {backend} out, or name that engine"
        )
    versioned = _versioned(name, version)
    asked = version_key(version) if version else None
    host = _host_of(name, asked or version_key(versioned.version) or (0, 0, 0))
    return replace(versioned, host=replace(host, stream_s=0.0), backend=backend)


def embedded(engine: EngineProfile) -> EngineProfile:
    """Return the profile of an engine that runs in its client's process, which receives every token as it is generated.

    Parameters
    ----------
    engine : as `profile` returns it, an API server

    Returns
    -------
    the same profile, with the cost of streaming for every running sequence and step

    Examples
    --------
    >>> inside = embedded(profile("vllm", "0.7.3"))
    >>> inside.streams_in_engine, inside.host.stream_s > 0.0
    (True, True)
    """
    key = version_key(engine.asked_version or "") or version_key(engine.version) or (0, 0, 0)
    stream_s = _host_of(engine.engine, key).stream_s
    return replace(engine, streams_in_engine=True, host=replace(engine.host, stream_s=stream_s))


@cache
def host_times() -> Mapping[str, Mapping[str, HostOverhead]]:
    """Return what each engine adds to its steps, by the version from which the numbers hold: fitted on measured serving results."""
    named = json.loads(HOST_TIMES_FILE.read_text(encoding="utf-8"))
    return {
        engine: {since: HostOverhead(**numbers) for since, numbers in eras.items()}
        for engine, eras in named.items()
    }


def _host_of(engine: str, version: tuple[int, int, int]) -> HostOverhead:
    """Return the host overhead of an engine version: the entry of the newest version at or below it, else the oldest.

    Parameters
    ----------
    engine : a key of ENGINES
    version : major, minor, patch [-]

    Returns
    -------
    [s], fitted

    Examples
    --------
    >>> _host_of("vllm", (0, 0, 1)) == next(iter(host_times()["vllm"].values()))
    True
    """
    if (
        engine not in host_times()
    ):  # llama.cpp: what its steps take besides their kernels is in the starts of these
        return HostOverhead()
    entries = list(host_times()[engine].items())
    older = [host for since, host in entries if (version_key(since) or (0, 0, 0)) <= version]
    return older[-1] if older else entries[0][1]


def _versioned(name: str, version: str | None) -> EngineProfile:
    """Return the profile of the nearest known version at or below, without host times."""
    known = ENGINES[name]
    newest = known[-1]
    if version is None:
        return _assuming(newest, f"{name} {newest.version}, the newest version known")
    if len(version) > LONGEST_VERSION:
        raise InputError(
            f"engine version: {version[:20]!r}... has {len(version):,} letters; give one such as {newest.version}"
        )
    key = version_key(version)
    if key is None:
        what = f"{name} version {version!r} is not known: taken as {newest.version}"
        return replace(_assuming(newest, what), asked_version=version)
    older = [entry for entry in known if (version_key(entry.version) or (0, 0, 0)) <= key]
    if not older:
        what = f"{name} {version} is older than the oldest known version: taken as {known[0].version}"
        return replace(_assuming(known[0], what), asked_version=version)
    nearest = replace(older[-1], asked_version=version)
    if key > (version_key(newest.version) or key):
        return _assuming(
            nearest, f"{name} {version} is newer than the newest version known: taken as {newest.version}"
        )
    return nearest


def _assuming(engine: EngineProfile, what: str) -> EngineProfile:
    return replace(engine, assumptions=(Assumption(what, "--engine-version", "engine_version"),))


def tier(
    engine: EngineProfile, device_memory_bytes: float, architecture: str = "", device_name: str = ""
) -> Tier:
    """Return the defaults that an engine chooses for a device.

    Parameters
    ----------
    engine : the profile
    device_memory_bytes : [B]
        as the driver reports it
    architecture : of the device; some engines keep small defaults on Ampere whatever its memory
    device_name : from the catalogue, for single devices that are treated the same way

    Examples
    --------
    >>> tier(profile("vllm", "0.11.0"), 79.2 * 2**30, "hopper").max_num_seqs
    1024
    >>> tier(profile("vllm", "0.11.0"), 79.2 * 2**30, "ampere").max_num_seqs
    256
    """
    names = {architecture.lower(), device_name.lower()}
    for entry in engine.tiers:
        meant = not names & set(entry.excluded) and (not entry.only or bool(names & set(entry.only)))
        if device_memory_bytes >= entry.above_bytes and meant:
            return entry
    return engine.tiers[-1]


def with_graphs_of(engine: EngineProfile, name: str) -> EngineProfile:
    """Return an engine that captures as much as it does for models of a type, or on devices of an architecture.

    Examples
    --------
    >>> vllm = profile("vllm", "0.27.0")
    >>> [with_graphs_of(vllm, name).host.graph_tokens for name in ("gpt_oss", "hopper", "blackwell")]
    [1024.0, 512, 1024.0]
    """
    most = dict(engine.graph_tokens_of).get(name)
    if most is None:
        return engine
    tiers = tuple(
        replace(tier, graph_max_sequences=most, wide_graph_max_sequences=most) for tier in engine.tiers
    )
    return replace(engine, host=replace(engine.host, graph_tokens=float(most)), tiers=tiers)


def with_most_graphs(engine: EngineProfile, most: int) -> EngineProfile:
    """Return an engine that captures steps of up to so many sequences, and of as many prompt tokens if it captures any: 0 is `--enforce-eager`.

    Examples
    --------
    >>> limited = with_most_graphs(profile("vllm", "0.27.0"), 32)
    >>> limited.host.graph_tokens, limited.tiers[-1].graph_max_sequences, with_most_graphs(limited, 0).host.graph_tokens
    (32.0, 32, 0.0)
    """
    tiers = tuple(
        replace(
            one,
            graph_max_sequences=most,
            wide_graph_max_sequences=most,
        )
        for one in engine.tiers
    )
    return replace(
        engine,
        most_graph_sequences=most,
        host=replace(engine.host, graph_tokens=float(most) if engine.host.graph_tokens else 0.0),
        tiers=tiers if most else engine.tiers,
        graph_sizes=tuple(size for size in engine.graph_sizes if size <= most),
    )


NEVER_TOKENS = 1 << 40
"""A context that no model has."""


def with_chunked_prefill(engine: EngineProfile, *, on: bool) -> EngineProfile:
    """Return an engine that cuts prompts into chunks together with decoding sequences, or that takes every prompt whole.

    Examples
    --------
    >>> with_chunked_prefill(profile("sglang"), on=True).policy, with_chunked_prefill(profile("vllm"), on=False).chunked
    ('mixed', False)
    """
    if on:
        return replace(engine, policy="mixed", chunked=True)
    return replace(engine, chunked=False, long_chunked_tokens=NEVER_TOKENS)


def with_slots(engine: EngineProfile) -> EngineProfile:
    """Return an engine that schedules as llama.cpp's server: slots, and prompts and decoding sequences of a step in a pass each.

    Examples
    --------
    >>> with_slots(profile("vllm")).policy
    'slots'
    """
    return replace(engine, policy="slots", chunked=True)


def scheduling(
    engine: EngineProfile,
    device_memory_bytes: float,
    architecture: str = "",
    *,
    offline: bool = False,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    device_name: str = "",
) -> Scheduling:
    """Return the scheduling of an engine on a device, with its defaults where nothing is requested.

    Parameters
    ----------
    engine : the profile
    device_memory_bytes : [B]
        as the driver reports it
    architecture : of the device
    offline : the offline engine class instead of the API server
    max_model_len : [tokens]
        an engine without chunked prefill takes at least one whole prompt per step
    max_num_seqs : [-]
        requested; None: the default
    max_num_batched_tokens : [tokens]
        requested; None: the default
    device_name : from the catalogue, for single devices with special defaults

    Returns
    -------
    policy, limits and block size

    Examples
    --------
    >>> scheduling(profile("vllm", "0.19.0"), 79.2 * 2**30, "hopper").max_num_batched_tokens
    8192
    """
    entry = tier(engine, device_memory_bytes, architecture, device_name)
    chunked = engine.chunked
    tokens = entry.offline_batched_tokens if offline else entry.server_batched_tokens
    if engine.long_chunked_tokens is not None and max_model_len is not None:
        chunked = chunked or max_model_len > engine.long_chunked_tokens
        tokens = tokens if chunked else max(tokens, max_model_len)
    budget = max_num_batched_tokens or tokens
    rules = {rule.name: getattr(engine, rule.name) for rule in fields(StepRules)}
    return Scheduling(
        engine.policy,
        max_num_seqs or entry.max_num_seqs,
        budget,
        chunked,
        hold_tokens=int(engine.hold_share * budget),
        **rules | {"asynchronous": engine.asynchronous and architecture.lower() != "cpu"},
    )


def default_memory_fraction(
    engine: EngineProfile,
    device_memory_bytes: float,
    tensor_ranks: float = 1.0,
    architecture: str = "",
    *,
    pipeline_ranks: float = 1.0,
    attention_groups: float = 1.0,
    prefill_graphs: PrefillGraphs = "none",
) -> float:
    """Return the engine's default memory fraction.

    Parameters
    ----------
    engine : the profile
    device_memory_bytes : [B]
        as the driver reports it
    tensor_ranks : [-]
        of the engine: those of all attention groups
    architecture : of the device
    pipeline_ranks, attention_groups : [-]
        of pipeline and attention data parallelism
    prefill_graphs : [-]
        whether prefill steps are captured

    Returns
    -------
    [-]
        of total memory (vLLM), of memory free at start (SGLang), of memory left by the weights (TensorRT-LLM)

    Examples
    --------
    >>> default_memory_fraction(profile("vllm", "0.19.0"), 79.2 * 2**30)
    0.9
    >>> default_memory_fraction(profile("sglang"), 79.2 * 2**30)
    0.834
    """
    fixed = engine.memory.default_fraction
    if fixed is not None:
        return fixed
    entry = tier(engine, device_memory_bytes, architecture)
    graphs = entry.wide_graph_max_sequences if tensor_ranks >= 4 else entry.graph_max_sequences
    reserved = reserved_bytes(
        entry.server_batched_tokens, graphs, tensor_ranks * pipeline_ranks, device_memory_bytes,
        attention_groups=attention_groups, prefill_graphs=prefill_graphs,
    )  # fmt: skip
    return static_fraction(reserved, device_memory_bytes)


def graph_max_sequences(
    engine: EngineProfile, entry: Tier, max_num_seqs: int, tensor_parallel: int = 1
) -> int:
    """Return the largest decode batch that runs as a captured CUDA graph.

    Parameters
    ----------
    engine : the profile
    entry : the tier of the device
    max_num_seqs : [-]
        sequences that may run at once
    tensor_parallel : [-]
        ranks

    Returns
    -------
    [-]

    Examples
    --------
    >>> vllm = profile("vllm", "0.19.0")
    >>> graph_max_sequences(vllm, vllm.tiers[-1], 64)
    128
    """
    limit = entry.wide_graph_max_sequences if tensor_parallel >= 4 else entry.graph_max_sequences
    return min(2 * max_num_seqs, limit) if engine.doubles_graph_sequences else limit


def unsupported_reason(
    engine: EngineProfile, architecture: str, weight_dtype: str | None = None, kv_dtype: str | None = None
) -> Reason | None:
    """Return why an engine cannot run dtypes on a device, or None where it can.

    Parameters
    ----------
    engine : the profile
    architecture : of the device
    weight_dtype : name of a weight dtype; None is not checked
    kv_dtype : name of a cache dtype; None is not checked

    Returns
    -------
    the dtype at fault in words, or None

    Examples
    --------
    >>> unsupported_reason(profile("trtllm"), "ampere", weight_dtype="fp8").words
    'trtllm does not run fp8 weights on ampere'
    >>> unsupported_reason(profile("vllm"), "hopper", "fp8", "fp8") is None
    True
    """
    for code, what, dtype, table in (
        (Refusal.WEIGHT_DTYPE, "weights", weight_dtype, engine.weight_dtypes),
        (Refusal.KV_DTYPE, "KV cache", kv_dtype, engine.kv_dtypes),
    ):
        if dtype is not None and dtype not in table.get(architecture.lower(), table["*"]):
            return Reason(code, f"{engine.engine} does not run {dtype} {what} on {architecture}")
    return None


def cache_rule(engine: EngineProfile, model_type: str, architecture: str | None = None) -> CacheRule | None:
    """Return what an engine stores the cache of a model in where nobody asks for a dtype, or None where that is the dtype of its activations.

    Parameters
    ----------
    engine : the profile
    model_type : of the model
    architecture : of the device; None: what holds on every device, or what some device needs

    Examples
    --------
    >>> cache_rule(profile("sglang", "0.5.23"), "glm_moe_dsa", "blackwell").dtype, cache_rule(profile("sglang", "0.5.23"), "glm_moe_dsa", "hopper")
    ('fp8', None)
    >>> cache_rule(profile("vllm"), "deepseek_v4").dtype, cache_rule(profile("vllm"), "glm_moe_dsa")
    ('fp8', None)
    """
    return next((rule for rule in engine.cache_rules if rule.covers(model_type, architecture)), None)


def needed_cache_reason(
    engine: EngineProfile, model_type: str, architecture: str, kv_dtype: str
) -> Reason | None:
    """Return why an engine does not run a model with a cache dtype, or None where it does.

    Examples
    --------
    >>> needed_cache_reason(profile("vllm"), "deepseek_v4", "hopper", "bf16").words
    'vllm runs deepseek_v4 on hopper with a KV cache in fp8 only'
    """
    rule = cache_rule(engine, model_type, architecture)
    if rule is None or not rule.only or rule.dtype == kv_dtype:
        return None
    return Reason(
        Refusal.KV_DTYPE,
        f"{engine.engine} runs {model_type} on {architecture} with a KV cache in {rule.dtype} only",
    )


def own_sequences(engine: EngineProfile, model_type: str, *, drafts: bool) -> int | None:
    """Return the limit on running sequences that an engine takes for a model, or with drafts, by default; None for that of the device.

    Examples
    --------
    >>> sglang = profile("sglang", "0.5.23")
    >>> [own_sequences(sglang, kind, drafts=drafts) for kind, drafts in (("llama", False), ("llama", True), ("deepseek_v4", False))]
    [None, 48, 256]
    """
    return engine.model_sequences.get(model_type, engine.drafting_sequences if drafts else None)
