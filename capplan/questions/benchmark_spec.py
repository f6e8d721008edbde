"""A benchmark of a measured row -> the replica that ran it: model, device and engine looked up by name."""

import re
from dataclasses import replace
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any

from capplan.accuracy import deployment
from capplan.accuracy.benchmark import LARGER_CARDS, ONE_GPU, Benchmark
from capplan.accuracy.replay import SERVER_KINDS, Servers
from capplan.assumption import Assumption
from capplan.engine.lookup import embedded, own_sequences, profile, with_graphs_of
from capplan.engine.profile import LOW_LATENCY_STEP_TOKENS, EngineProfile, ExpertKernel
from capplan.errors import DoesNotFitError, InputError, unknown
from capplan.fleet.engine_options import TierSize, offload_tier
from capplan.fleet.pools.link import LinkTerms, link_between
from capplan.hardware.device import Device, engine_memory_bytes
from capplan.memory.kv_sizes import AUTO, cache_dtype
from capplan.model.mixers import LatentAttention
from capplan.model.network import Network
from capplan.model.sharding import Sharding
from capplan.model.weight_format import KV_FORMATS, in_weight_format, kv_bytes_per_element, stored_dtypes
from capplan.questions.replayed_drafts import drafting_of_run
from capplan.readers.calibration.refitted import efficiency_by, row_profile
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.models import is_repository, read_model, shipped_id
from capplan.readers.catalogue.recipes import NOMINAL_SHARE, RecipeSettings, recipe_settings
from capplan.replica.plans import engine_scheduling
from capplan.replica.replica import Replica, memory_of, replica_of
from capplan.replica.spec import ReplicaSpec, network_as_served
from capplan.replica.speculation import best_speculating_replica
from capplan.serving.block_cache import OffloadTier

WEIGHT_DTYPES = {
    "auto": None, "bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "fp8": "fp8", "int8": "int8", "int4": "int4",
    "fp4": "nvfp4", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "fp4(mxfp4)": "mxfp4", "int4(awq)": "int4",
    "int4(gptq)": "int4", "bfloat16": "bf16", "float16": "fp16",
}  # fmt: skip
"""Weight dtypes as measured files call them -> our name; None is what the checkpoint holds."""

POOL_LINK = LinkTerms("nixl", bytes_per_s=3.7e9, latency_s=0.028)
"""Link between separate pools of a row, which names no rate: what NIXL over RDMA takes to bring the cache of one prompt of 2,048 to 49,152 tokens
to another GPU, 28 ms + 11.2 us a token of 41.5 KB. Rests on five published first tokens of gpt-oss-120b on H200 (llm-d, p2p-kv-cache-sharing)."""

SPARE_CONTEXT_TOKENS = 200
"""Maximum context over the nominal request length in InferenceX's runs."""

GRAPH_TOKENS = 64
"""Whole multiples of this many tokens are the step budget of InferenceX's TensorRT-LLM runs, above prompt and clients."""

CONTEXT_MARGIN = 1.25
"""Maximum context over the mean request length where the run does not state it: about that of InferenceX."""


MOST_MEMORY = 0.95
"""Share of a GPU's memory that an engine is started with where its default leaves no room: the largest of vLLM's recipes
(https://github.com/vllm-project/recipes)."""
_MORE_MEMORY = Assumption(
    f"{MOST_MEMORY:.0%} of the memory for the engine: with its default the model does not fit, and the row ran",
    "gpu_memory_utilization",
)

_SMALL_STEPS = Assumption(
    f"decode engines with attention groups take steps of {LOW_LATENCY_STEP_TOKENS:,.0f} tokens, as in vLLM's recipes",
    "max_num_batched_tokens",
)

_BATCH_FITS = Assumption(
    "the cache holds the batch that the row states, for which capplan counts too little room", "batch_per_gpu"
)

_FORMAT_OF_ID = re.compile(r"(?i)-(mxfp4|nvfp4|fp8|fp4|int8|int4|bf16)(?=-|$)")
"""Weight dtype in the id of a checkpoint."""

FP4_OF_VENDOR = {"amd": "mxfp4"}
"""Vendor -> the fp4 format that its matrix units read; that of all others is nvfp4."""


def stated_checkpoint(model: str, weight_dtype: str) -> tuple[str, str, tuple[Assumption, ...]]:
    """Return a shipped model and the weight dtype that the id of a checkpoint stands for, and what was assumed.

    Publishers quantise models of others: an id that is not shipped is the model that its name begins with, in the dtype of the row or of the id.

    Examples
    --------
    >>> stated_checkpoint("amd/DeepSeek-R1-MXFP4-Preview", "auto")[:2]
    ('DeepSeek-R1', 'mxfp4')
    """
    found = _FORMAT_OF_ID.search(model)
    base = model[: found.start()].rpartition("/")[2] if found else ""
    if found is None or not is_repository(model) or shipped_id(model) or not shipped_id(base):
        return model, weight_dtype, ()
    dtype = found[1].lower() if weight_dtype in {"", "auto"} else weight_dtype
    return base, dtype, (Assumption(f"{model} is {shipped_id(base)} in {dtype}", "model_hf_id"),)


@lru_cache(maxsize=256)
def benchmark_network(model: str, weight_dtype: str) -> Network:
    """Return the model of a row in the dtype that the row names; a checkpoint already in it is left as it is."""
    if weight_dtype not in WEIGHT_DTYPES:
        raise unknown("weight dtype", weight_dtype, WEIGHT_DTYPES, place="weights_dtype")
    network = read_model(model, offline=True)
    wanted, stored = WEIGHT_DTYPES[weight_dtype], stored_dtypes(network)
    # A row that says fp4 means the format of the checkpoint, where that has one.
    if wanted is None or wanted in stored or (weight_dtype == "fp4" and stored & {"nvfp4", "mxfp4"}):
        return network
    return in_weight_format(network, wanted)


def cache_format(network: Network, asked: str, engine: str) -> str:
    """Return the KV dtype: the row's, else the checkpoint's, else the activation dtype.

    The fp8 and fp4 checkpoints of TensorRT-LLM all specify an fp8 cache.
    """
    asked = asked.removesuffix("_e4m3").removesuffix("_e5m2").replace("bfloat", "bf")
    if asked not in {"", AUTO, *KV_FORMATS}:
        raise unknown("KV dtype", asked, (AUTO, *KV_FORMATS), place="kv_dtype")
    narrow = engine == "trtllm" and network.kv_format is None and stored_dtypes(network) & {"fp8", "nvfp4"}
    return "fp8" if narrow and asked in {"", AUTO} else cache_dtype(network, asked or None)[0]


def recipe_limits(recipe: RecipeSettings, benchmark: Benchmark) -> tuple[int | None, int | None]:
    """Return the limits of one engine that a script states, as numbers.

    Parameters
    ----------
    recipe : its limits may be words
    benchmark : clients and lengths that the words stand for

    Returns
    -------
    largest batch [-] and token budget of a step [tokens] of one data-parallel group; None is the engine's default
    """
    clients, prompt = benchmark.concurrency or 0, round(benchmark.input_tokens / NOMINAL_SHARE)
    longest = (benchmark.input_tokens + benchmark.output_tokens) / NOMINAL_SHARE
    words = {
        "clients": clients or None,
        "context": int(longest) + SPARE_CONTEXT_TOKENS,
        "two_prompts": 2 * prompt,
        "prompt_and_clients": -(-(prompt + clients + GRAPH_TOKENS) // GRAPH_TOKENS) * GRAPH_TOKENS,
    }
    sequences, tokens = (
        words[limit] if isinstance(limit, str) else limit
        for limit in (recipe.max_num_seqs, recipe.max_num_batched_tokens)
    )
    if benchmark.engine != "sglang":
        return sequences, tokens
    # SGLang shares its limits out to the data-parallel groups of attention; other engines give each group all.
    groups = int(benchmark.sharding.data)
    return sequences and max(1, sequences // groups), tokens and max(1, tokens // groups)


def run_settings(
    benchmark: Benchmark, network: Network, gpu: Device, engine: EngineProfile
) -> tuple[dict[str, Any], bool]:
    """Return how the engine behind a row was started: those the row states, else its source's scripts, else NVIDIA's benchmark tool.

    Settings have the names of `ReplicaSpec`, and None is the engine's default; the other value says whether experts are parallel.
    """
    groups = int(benchmark.sharding.data) if benchmark.engine == "sglang" else 1
    stated = {name: max(1, limit // groups) for name, limit in benchmark.limits.items()}
    kv_format = cache_format(network, benchmark.kv_format, benchmark.engine)
    recipe = recipe_settings(benchmark)
    engine = replace(engine, graph_sizes=tuple(recipe.graph_sizes or ()))
    if benchmark.kind == "offline_max" and engine.engine == "trtllm" and not stated:
        return _tool_settings(benchmark, network, gpu, engine, kv_format), False
    started = replace(
        engine,
        hold_steps=recipe.hold_steps or 0,
        hold_share=recipe.hold_share or 0.0,
        hold_prompts=int(recipe.hold_prompts == "group"),
        gather_steps=recipe.gather_steps or 0,
        hold_seats=int(recipe.hold_seats == "group"),
        poll_steps=recipe.poll_steps or 0,
        asynchronous=engine.asynchronous if recipe.asynchronous is None else recipe.asynchronous,
    )
    if recipe.graph_tokens is not None:
        started = replace(started, host=replace(started.host, graph_tokens=float(recipe.graph_tokens)))
    if recipe.expert_kernel:
        asked = ExpertKernel(recipe.expert_kernel, frozenset({gpu.architecture.lower()}))
        started = replace(started, expert_kernels=(asked,))
    if recipe.embedded:
        started = embedded(started)
    sequences, tokens = recipe_limits(recipe, benchmark)
    if sequences is None:
        own = own_sequences(engine, network.model_type, drafts=benchmark.drafts is not None)
        sequences = own and max(1, own // groups)
    settings = {
        "profile": started,
        "max_model_len": recipe.max_model_len,
        "kv_format": recipe.kv_dtype if recipe.kv_dtype and benchmark.kv_format == "auto" else kv_format,
        "max_num_seqs": stated.get("max_num_seqs", sequences),
        "max_num_batched_tokens": stated.get("max_num_batched_tokens", tokens),
        "gpu_memory_utilization": benchmark.memory_fraction or recipe.memory_fraction,
    }
    return settings, recipe.expert_parallel or False


def _tool_settings(
    benchmark: Benchmark, network: Network, gpu: Device, engine: EngineProfile, kv_format: str
) -> dict[str, Any]:
    """Return the settings that `trtllm-bench` chooses."""
    prompt, answer = benchmark.input_tokens, benchmark.output_tokens
    held = deployment.cache_requests(
        network,
        benchmark.sharding,
        engine_memory_bytes(gpu),
        kv_bytes_per_element(kv_format),
        prompt + answer,
    )
    stages = int(benchmark.sharding.pipeline)
    batch, tokens = deployment.limits(held, prompt, answer, stages)
    if not engine.chunked:
        tokens = max(tokens, int(prompt) + batch)
    return {
        "profile": engine,
        "max_model_len": None,
        "kv_format": kv_format,
        "max_num_seqs": batch * stages,
        "max_num_batched_tokens": tokens,
        "gpu_memory_utilization": deployment.memory_fraction(engine.version),
    }


def benchmark_spec(benchmark: Benchmark, calibration: Path | None = None) -> ReplicaSpec:
    """Return the replica that ran a benchmark.

    Parameters
    ----------
    benchmark : what was measured
    calibration : fitted numbers, used where the benchmark ran on the device they were measured on

    Returns
    -------
    the replica; InputError where a name is not known
    """
    gpu = device(benchmark.device)
    named = benchmark.weight_format
    if named == "fp4" and not stored_dtypes(benchmark_network(benchmark.model, "auto")) & {"nvfp4", "mxfp4"}:
        named = FP4_OF_VENDOR.get(gpu.vendor.lower(), named)
    network = benchmark_network(benchmark.model, named)
    tokens = int(CONTEXT_MARGIN * (benchmark.input_tokens + benchmark.output_tokens)) + 256
    recipe = recipe_settings(benchmark)
    engine = profile(benchmark.engine, recipe.engine_version or benchmark.engine_version)
    engine = with_graphs_of(with_graphs_of(engine, network.model_type), gpu.architecture)
    network = network_as_served(network, engine)
    longest = network.max_context_tokens or tokens
    sharding = benchmark.sharding
    _refuse_context_ranks(network, sharding)
    if recipe.data_parallel and float(sharding.data) == 1.0:
        sharding = Sharding(1.0, sharding.pipeline, sharding.tensor, sharding.tensor)
        benchmark = replace(benchmark, sharding=sharding)
    run, expert = run_settings(benchmark, network, gpu, row_profile(calibration, engine, gpu))
    run["max_model_len"] = run["max_model_len"] or max(2048, min(longest, tokens))
    spec = ReplicaSpec(
        **run,
        network=network,
        device=gpu,
        efficiency=efficiency_by(calibration, gpu),
        sharding=replace(sharding, expert=sharding.tensor * sharding.data) if expert else sharding,
        typical_context_tokens=int(benchmark.input_tokens + benchmark.output_tokens),
        offline=benchmark.kind not in SERVER_KINDS,
    )
    larger = LARGER_CARDS.get(benchmark.device)
    if larger is not None and benchmark.decoding is not None:
        held = max(float(memory_of(spec).max_concurrency), 0.0) * float(spec.sharding.data)
        if held < benchmark.decoding:
            return benchmark_spec(replace(benchmark, device=larger), calibration)
    batch = ceil((benchmark.batch_per_gpu or 0.0) * spec.ranks)
    # A decode batch that is larger than the engine's default was started with its own limit.
    return replace(spec, max_num_seqs=batch) if batch > engine_scheduling(spec).max_num_seqs else spec


def _refuse_context_ranks(network: Network, sharding: Sharding) -> None:
    """Raise the error for ranks that would share out other caches than those of latent attention over all tokens."""
    mixers = [mixer for layer in network.layers for mixer in layer.mixers]
    plain = (
        isinstance(mixer, LatentAttention) and not mixer.index_heads and mixer.window_tokens is None
        for mixer in mixers
    )
    if float(sharding.context) > 1.0 and not all(plain):
        raise InputError(
            f"dcp: of {network.name} it is not replayed; it is of latent attention over all tokens, as in DeepSeek-R1\n"
            "  give another run: dcp 1"
        )


def benchmark_servers(benchmark: Benchmark, calibration: Path | None = None) -> Servers:
    """Return the engines behind a benchmark.

    Returns
    -------
    one replica of each kind, the link between pools, and their host memory; InputError where a name is not known
    """
    model, dtype, named = stated_checkpoint(benchmark.model, benchmark.weight_format)
    benchmark = replace(benchmark, model=model, weight_format=dtype)
    spec = benchmark_spec(benchmark, calibration)
    small: tuple[Assumption, ...] = ()
    if benchmark.kind == "decode_only":
        spec, small = _decoding(spec)
    replica, begun = _started(spec, benchmark)
    begun = (*named, *begun, *small, *_crowded(replica, benchmark))
    host = _host_cache(benchmark, replica)
    pools = benchmark.deployment.pools
    if pools is None:
        pulls = benchmark.deployment.pulls
        link = link_between(replica.spec, replica.spec, POOL_LINK, benchmark.input_tokens) if pulls else None
        drafting, assumed = _with_drafts(replica, benchmark, benchmark.deployment.replicas)
        return Servers(drafting, link=link, host_cache=host, assumptions=(*begun, *assumed))
    spec, small = _decoding(benchmark_spec(replace(benchmark, sharding=pools[1][1]), calibration))
    decode, also = _started(spec, benchmark)
    drafting, assumed = _with_drafts(decode, benchmark, pools[1][0])
    link = link_between(replica.spec, decode.spec, POOL_LINK, benchmark.input_tokens, drafting.draft)
    return Servers(replica, drafting, link, host, (*dict.fromkeys((*begun, *also, *small)), *assumed))


def _decoding(spec: ReplicaSpec) -> tuple[ReplicaSpec, tuple[Assumption, ...]]:
    """Return the replica of a pool that only decodes, and what was assumed of its steps: small ones for attention groups under vLLM."""
    groups = float(spec.sharding.data) > 1.0 and spec.profile.one_exchange
    if spec.max_num_batched_tokens is not None or not groups:
        return spec, ()
    return replace(spec, max_num_batched_tokens=int(LOW_LATENCY_STEP_TOKENS)), (_SMALL_STEPS,)


def _started(spec: ReplicaSpec, benchmark: Benchmark) -> tuple[Replica, tuple[Assumption, ...]]:
    """Return the replica of a row, and what was assumed so that it starts: the row ran, so its engine had more memory than by default.

    InputError where the row states no number of GPUs and the model does not fit on one.
    """
    try:
        return replica_of(spec), ()
    except DoesNotFitError as error:
        if ONE_GPU in benchmark.assumptions:
            raise InputError(
                f"num_gpus: missing, and {spec.network.name} does not fit on one {spec.device.name}\n"
                "  write num_gpus, and tp or dp and ep"
            ) from error
        if spec.gpu_memory_utilization is not None:
            raise
    return replica_of(replace(spec, gpu_memory_utilization=MOST_MEMORY)), (_MORE_MEMORY,)


def _crowded(replica: Replica, benchmark: Benchmark) -> tuple[Assumption, ...]:
    """Return the assumption that a stated decode batch fits, where capplan counts too little room in the cache for it."""
    whole = benchmark.input_tokens + benchmark.output_tokens
    held = replica.kv_blocks * replica.scheduling.block_tokens
    if (benchmark.batch_per_gpu or 0.0) * replica.spec.devices * whole <= held:
        return ()
    return (_BATCH_FITS,)


def _with_drafts(
    replica: Replica, benchmark: Benchmark, replicas: int
) -> tuple[Replica, tuple[Assumption, ...]]:
    """Return a replica whose steps are the rounds that a row drafts in, and what was assumed of them; without drafts as it is."""
    if benchmark.drafts is None or benchmark.kind in {"prefill_only", "step_time"}:
        return replica, ()
    plan, assumed = drafting_of_run(benchmark.drafts, replica.spec.network)
    mean_context = benchmark.input_tokens + benchmark.output_tokens / 2.0
    most = replica.scheduling.max_num_seqs
    each = benchmark.batch_per_gpu and benchmark.batch_per_gpu * replica.spec.devices
    batch = min(most, each or (benchmark.concurrency or most * replicas) / replicas)
    return best_speculating_replica(replica, plan, batch, mean_context), assumed


def _host_cache(benchmark: Benchmark, replica: Replica) -> OffloadTier | None:
    """Return the host memory of a replica in blocks of one token; None where it has none."""
    deployment = benchmark.deployment
    if not deployment.host_cache_bytes and not deployment.host_cache_tokens:
        return None
    tier = offload_tier(
        replica, TierSize("host", deployment.host_cache_bytes or 1.0), 1, benchmark.input_tokens
    )
    tokens = int(deployment.host_cache_tokens) or tier.capacity_blocks
    return replace(tier, capacity_blocks=tokens)
