"""What commands show of one replica: what it delivers (`estimate`), what its memory holds (`fit`), and what drafts gain (`spec`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from capplan.accuracy.bounded import LEAST_GROUPS, LEAST_SOURCES, MOST_WIDTH, BoundedEstimate
from capplan.assumption import Assumption
from capplan.engine.profile import LOW_LATENCY_STEP_TOKENS
from capplan.errors import CapplanError
from capplan.memory.plan import MemoryPlan
from capplan.model.sharding import network_adapter_elements
from capplan.operators.llamacpp import ENGINE as LLAMACPP
from capplan.replica.estimate import LAUNCHES, Estimate
from capplan.replica.load import Load
from capplan.replica.plans import (
    card_plans,
    engine_scheduling,
    exchange_of,
    prefill_graph_tokens,
    replica_scheduling,
)
from capplan.replica.replica import Replica, replica_of
from capplan.replica.spec import ReplicaSpec, card_layers, served_context_tokens
from capplan.report.answer import Answer, Table, columns, row_of

if TYPE_CHECKING:
    from capplan.fleet.fit import Fit
    from capplan.fleet.plan import Plan
    from capplan.replica.speculation import DraftModel, Speculation

_BREAKDOWN = ("phase", "operator", "seconds", "flop", "bytes", "flop_per_byte", "bound")
_LENGTHS = Assumption(
    "every request has the mean input and output length", "capplan simulate with a scenario"
)


def estimate_answer(
    replica: Replica,
    load: Load,
    bounded: BoundedEstimate,
    assumptions: Sequence[Assumption],
    warnings: Sequence[str],
) -> Answer:
    """Return latency, throughput and the operators they are made of."""
    estimated, spec = bounded.estimate, replica.spec
    spreads = row_of(bounded, "ttft_s tpot_s e2e_s")
    latency = [
        {"quantity": name.removesuffix("_s").upper()}
        | {f"{key}_s": value for key, value in asdict(spread).items()}
        for name, spread in spreads.items()
    ]
    figures = row_of(
        estimated,
        "output_tokens_per_s total_tokens_per_s requests_per_s output_tokens_per_s_per_gpu concurrency "
        "bottleneck saturated kv_occupancy_fraction preemptions",
    )
    breakdown = [
        {**asdict(row), "flop_per_byte": row.flop / row.bytes if row.bytes else None}
        for row in estimated.breakdown
    ]
    result = {
        "model": spec.network.name,
        "hardware": spec.device.name,
        "gpus": spec.devices,
        "label": replica.label,
        **{name: asdict(spread) for name, spread in spreads.items()},
        "output_tokens_per_s_low": estimated.output_tokens_per_s * bounded.throughput.low_ratio,
        "output_tokens_per_s_high": estimated.output_tokens_per_s * bounded.throughput.high_ratio,
        **figures,
    }
    rests_on = bounded.rests_on and f"; {bounded.rests_on}"
    asked = f"concurrency {load.concurrency}" if load.concurrency else f"{load.request_rate:g} req/s"
    out = load.output_tokens if spec.network.generates else "a vector or a score"
    steps = f"Prefill of one prompt{', and one decode step' if spec.network.generates else ''}"
    return Answer(
        command="estimate",
        result={**result, "breakdown": breakdown},
        tables=(
            Table(
                latency,
                f"Latency (low and high: 80% interval of the mean{rests_on})",
                spare=("p90_s", "p50_s"),
            ),
            Table([figures], title="Throughput", upright=True),
            Table(breakdown, title=steps, shown=_BREAKDOWN),
        ),
        csv_rows=(result,),
        closing=tuple(_launch_bound(replica, load, estimated)),
        headline=(
            f"{spec.network.name} on {spec.devices} x {spec.device.name}, {spec.profile.engine} "
            f"{spec.profile.version}: {asked}, {load.input_tokens} tokens in, {out} out"
        ),
        assumptions=(_LENGTHS, *assumptions, *replica.rates.assumptions),
        warnings=(*warnings, *_problems(load, bounded, spec.offload is not None)),
    )


LAUNCH_BOUND = 0.1
"""Part of the mean TTFT from which waiting for launches is named."""


def _launch_bound(replica: Replica, load: Load, estimated: Estimate) -> Iterator[str]:
    """Yield that prompts, and decode steps, wait for their kernels to be launched, where they do for long."""
    waits = {row.phase: row.seconds for row in estimated.breakdown if row.operator == LAUNCHES}
    waits_s, profile = waits.get("prefill", 0.0), replica.spec.profile
    if waits.get("decode", 0.0) >= LAUNCH_BOUND * estimated.tpot_s.mean:
        kernel, _ = exchange_of(replica.spec)
        yield (
            f"launch-bound: a decode step waits {1e3 * waits['decode']:.3g} ms for its kernels, which the host launches one by one: "
            f"{kernel} does not run in CUDA graphs\n"
            f"  steps of up to {LOW_LATENCY_STEP_TOKENS:g} tokens start low-latency kernels: --max-num-batched-tokens {LOW_LATENCY_STEP_TOKENS:g}"
        )
        return
    if waits_s < LAUNCH_BOUND * estimated.ttft_s.mean:
        return
    name, captured = (
        f"{profile.engine} {profile.asked_version or profile.version}",
        prefill_graph_tokens(replica.spec),
    )
    what = f"steps of up to {captured:g} tokens" if captured else "no step with prompts"
    yield (
        f"launch-bound: a prompt of {load.input_tokens} tokens waits {1e3 * waits_s:.3g} ms for its kernels, which the host launches one by one; "
        f"{name} captures {what} in CUDA graphs"
    )


def unknown_intervals(of: BoundedEstimate | Plan) -> list[str]:
    """Return which intervals of mean latencies are unknown, and why; nothing where all are known."""
    unknown = [
        name.removesuffix("_s").upper()
        for name in ("ttft_s", "tpot_s", "e2e_s")
        if isnan(getattr(of, name).low) and not isnan(getattr(of, name).mean)
    ]
    if not unknown:
        return []
    reason = (
        f"measured results of this regime differ from their predictions by more than {MOST_WIDTH:g} times"
    )
    return [f"the interval of {' and '.join(unknown)} is unknown: {reason}"]


def _problems(load: Load, bounded: BoundedEstimate, offloads: bool) -> Iterator[str]:
    if bounded.estimate.saturated:
        yield (
            f"{load.request_rate:g} req/s is more than the replica can serve: it saturates at "
            f"{bounded.estimate.requests_per_s:.3g} req/s, and the queue grows without bound"
        )
    yield from unknown_intervals(bounded)
    if bounded.unmeasured:
        yield "no measured result is close to this operating point: the intervals are at their widest"
    elif offloads:
        yield "the intervals with weights on the host rest on published runs of three hosts"
    elif bounded.fewest_models < LEAST_GROUPS or bounded.fewest_sources < LEAST_SOURCES:
        few = f"{bounded.fewest_models} model{'s' if bounded.fewest_models > 1 else ''}"
        if bounded.fewest_models >= LEAST_GROUPS:
            few = "one source"
        yield f"an interval rests on measured results of {few} only, so it is at least as wide as that of wider regimes"


DOES_NOT_FIT = 3


_ENCODER_PROFILE = (
    "vLLM runs the image encoder once before it sizes the KV cache, and that may take more memory than is counted: in 4 of 4 logged "
    "starts of Qwen3.5 and Qwen3.6 the predicted cache was 7 to 26% too large; read the capacity that the engine prints"
)


def fit_answer(fit: Fit, assumptions: Sequence[Assumption], warnings: Sequence[str]) -> Answer:
    """Return the budget of the fullest device, the capacity, and what would make it fit where it does not."""
    figures = _memory_figures(fit)
    spec = fit.spec
    place = f"{spec.devices} x {spec.device.name}"
    verdict = "fits" if fit.fits else "does not fit"
    changes = list(fit.changes)
    steps, split, cards = waterfall(fit), _split_figures(spec), _card_rows(spec)
    hidden = _IN_WATERFALL | (_OF_CACHES if spec.network.bidirectional else set())
    shown = tuple(name for name in figures if name not in hidden)
    closing = (
        ()
        if fit.fits or changes
        else ("no single change and no pair of changes makes it fit on one link domain",)
    )
    return Answer(
        command="fit",
        result={
            **figures,
            "limits": list(fit.plan.limits),
            "changes": changes,
            "waterfall": steps,
            **({"split": split} if split else {}),
            **({"cards": cards} if cards else {}),
        },
        tables=(
            Table([figures], upright=True, shown=shown, titles=_WATERFALL_TITLES),
            Table(cards, title="Cards, the LM head counted as a layer"),
            Table(steps, title="Memory of the fullest card" if cards else "Memory of one GPU"),
            Table([split] if split else [], title=SPLIT, upright=True, titles=_SPLIT_TITLES),
            Table(changes, title="Any of these makes it fit"),
        ),
        headline=f"{spec.network.name} {verdict} on {place}",
        closing=(*(f"limit: {limit}" for limit in fit.plan.limits), *closing, *_offload_hints(fit)),
        assumptions=tuple(assumptions),
        warnings=(*warnings, *([_ENCODER_PROFILE] if _encoder_is_profiled(spec) else [])),
        exit_code=0 if fit.fits else DOES_NOT_FIT,
    )


def _card_rows(spec: ReplicaSpec) -> list[dict[str, Any]]:
    """Return what each card of a machine holds; nothing of a single device."""
    if not spec.device.cards:
        return []
    counts = [count for count in card_layers(spec) if count]
    return [
        {"hardware": card.device.name, "layers": count, **_amounts(plan, _OF_A_CARD)}
        for count, (card, plan) in zip(counts, card_plans(spec), strict=True)
    ]


_OF_A_CARD = columns("weight_bytes activation_bytes non_torch_bytes kv_bytes_available max_concurrency")


SPLIT = "Split between the device and its host"
_SPLIT_TITLES = {"half_context_tokens_per_s": "generated in the middle of the context"}


def _split_figures(spec: ReplicaSpec) -> dict[str, Any]:
    """Return which layers are on the host, and how fast one sequence is, after an empty context and in its middle; nothing if none are."""
    if spec.offload is None:
        return {}
    from capplan.questions.gguf_speeds import generated_tokens_per_s, prompt_tokens_per_s
    from capplan.questions.runnable import PROMPT_TOKENS

    placed = {
        "n_gpu_layers": spec.offload.gpu_layers or spec.layers + 1,
        "n_cpu_moe": spec.offload.cpu_experts or 0,
        "host_weight_bytes": spec.offload.weight_bytes,
    }
    try:
        replica = replica_of(spec)
    except CapplanError:
        return placed
    middle = served_context_tokens(spec) / 2.0
    return placed | {
        "generated_tokens_per_s": generated_tokens_per_s(replica, 1, 0.0),
        "half_context_tokens_per_s": generated_tokens_per_s(replica, 1, middle),
        "prompt_tokens_per_s": prompt_tokens_per_s(replica, PROMPT_TOKENS, 0),
    }


def _offload_hints(fit: Fit) -> tuple[str, ...]:
    """Return how llama.cpp runs a model that does not fit, or how its split is written."""
    spec = fit.spec
    if spec.offload is not None and fit.fits:
        return (
            "capplan export --model MODEL --target llamacpp with the same options writes this as a command",
        )
    offloads = spec.profile.engine == LLAMACPP and spec.device.pcie_bytes_per_s is not None
    if fit.fits or spec.offload is not None or not offloads or spec.devices > 1 or spec.device.cards:
        return ()
    return ("--host-bandwidth '80 GB/s' finds the fastest split with the memory of the host",)


def _encoder_is_profiled(spec: ReplicaSpec) -> bool:
    """Return whether an engine runs the image encoder of a model before it sizes the cache."""
    return bool(spec.network.vision_parameters and spec.profile.memory.vision_bytes_per_token)


OF_A_GPU = columns(
    "usable_bytes weight_bytes activation_bytes non_torch_bytes cuda_graph_bytes kv_bytes_available"
)
"""Amounts of memory of the fullest device."""


def _amounts(plan: MemoryPlan, names: Sequence[str]) -> dict[str, float]:
    """Return amounts of the memory plan of one replica as plain numbers."""
    return {name: float(np.asarray(getattr(plan, name))) for name in names}


def _memory_figures(fit: Fit) -> dict[str, Any]:
    plan, spec = fit.plan, fit.spec
    scheduling = replica_scheduling(engine_scheduling(spec), spec.batching)
    amounts = _amounts(plan, (*OF_A_GPU, "kv_cache_tokens", "max_concurrency", "reserved_bytes_per_sequence"))
    tokens = 0 if spec.network.bidirectional else int(max(0.0, amounts["kv_cache_tokens"]))
    sequences, groups = max(0.0, amounts["max_concurrency"]), int(spec.sharding.data)
    of_a_group = {
        "attention_groups": groups,
        "max_num_seqs_per_group": scheduling.max_num_seqs // groups,
        "kv_cache_tokens_per_group": tokens,
        "max_concurrency_per_group": sequences,
    }
    return {
        "fits": fit.fits,
        "model": spec.network.name,
        "hardware": spec.device.name,
        "gpus": spec.devices,
        "engine": spec.profile.engine,
        "engine_version": spec.profile.asked_version or spec.profile.version,
        "kv_dtype": spec.kv_format,
        "max_model_len": served_context_tokens(spec),
        **row_of(scheduling, "max_num_seqs max_num_batched_tokens"),
        "device_memory_bytes": fit.device_memory_bytes,
        **{f"{name}_per_gpu": amounts[name] for name in OF_A_GPU},
        "kv_cache_tokens": groups * tokens,
        "max_concurrency": groups * sequences,
        **(of_a_group if groups > 1 else {}),
        "reserved_bytes_per_sequence": amounts["reserved_bytes_per_sequence"],
        "longest_context_tokens": fit.longest_context_tokens,
        **_adapter_figures(fit),
    }


def _adapter_figures(fit: Fit) -> dict[str, Any]:
    """Return the memory of LoRA adapters, and how many would fit next to one sequence; nothing without them."""
    network, plan = fit.spec.network, fit.plan
    if network.adapters is None:
        return {}
    from capplan.fleet.fit import adapter_bytes_on_fullest_rank

    each = adapter_bytes_on_fullest_rank(network, fit.spec.sharding)
    available, reserved = _amounts(plan, ("kv_bytes_available", "reserved_bytes_per_sequence")).values()
    left = available - reserved
    return {
        "adapter_elements": network_adapter_elements(network, network.adapters),
        "adapter_bytes_per_gpu": each,
        "max_loras": network.adapters.slots,
        "lora_bytes_per_gpu": network.adapters.slots * each,
        "adapters_that_fit": max(int(network.adapters.slots + left / each), 0),
    }


_IN_WATERFALL = {"device_memory_bytes", *(f"{name}_per_gpu" for name in OF_A_GPU)}
_OF_CACHES = {"kv_dtype", "kv_cache_tokens", "reserved_bytes_per_sequence"}
"""Figures that say nothing where nothing is cached."""
_WATERFALL_TITLES = {
    "max_model_len": "maximum sequence length",
    "max_num_seqs": "maximum sequences per step",
    "attention_groups": "groups that share no cache",
    "max_num_seqs_per_group": "maximum sequences per step, each group",
    "kv_cache_tokens_per_group": "capacity of the KV cache, each group",
    "max_concurrency_per_group": "concurrent sequences of maximum length, each group",
    "max_num_batched_tokens": "maximum tokens per step",
    "kv_cache_tokens": "capacity of the KV cache",
    "max_concurrency": "concurrent sequences of maximum length",
}


def waterfall(fit: Fit) -> list[dict[str, Any]]:
    """Return what comes off the device's memory, line by line, down to the cache, in the order of the engine."""
    plan, rules = fit.plan, fit.spec.profile.memory
    total = fit.device_memory_bytes
    usable, weight, activation, non_torch, whole, available = _amounts(plan, OF_A_GPU).values()
    runtime, weights = ("kernels, handles, collectives", -non_torch), ("weights", -weight)
    activations = ("peak activations", -activation)
    if rules.budget == "utilisation":
        left_out = (1.0 - rules.budgeted_graph_fraction) * whole
        graphs = [("CUDA graphs", -whole), ("CUDA graphs that the engine does not count", left_out)]
        graphs = graphs[: 1 + bool(left_out)] if rules.budgeted_graph_fraction and whole else []
        kept = ("kept free by the memory fraction", usable - total)
        steps = [kept, weights, activations, runtime, *graphs]
    elif rules.budget == "static_fraction":
        reserved = usable - total - runtime[1]
        steps = [runtime, ("set aside for activations and CUDA graphs", reserved), weights]
        rings = usable - weight - available
        steps += [("waiting tokens of all sequences", -rings)] if rings > 1.0 else []
    else:
        left = total + runtime[1] + weights[1] + activations[1]
        steps = [runtime, weights, activations, ("kept free by the memory fraction", available - left)]
    left_bytes = total
    rows = [{"what": "visible to a process", "memory_bytes": total, "left_bytes": total}]
    for what, amount in steps:
        left_bytes += amount
        rows.append({"what": what, "memory_bytes": amount, "left_bytes": left_bytes})
    rest = "free: an encoder has no KV cache" if fit.spec.network.bidirectional else "KV cache"
    return [*rows, {"what": rest, "memory_bytes": available, "left_bytes": None}]


_INDEPENDENT = Assumption(
    "every draft token is accepted with the same probability, whatever its position and the other tokens",
    "--acceptance as measured by the engine",
)
_NO_HOST_TIME = Assumption(
    "the host needs no time between the draft steps of a round, so speedups are upper bounds",
    "--draft-step-time as measured",
)
MOST_ROUNDS = 16
"""Rounds shown one by one; more are shown only by their speedup."""

_REPLICA_SHOWN = columns(
    "batch draft_tokens expected_tokens_per_round draft_s verify_s round_s target_step_s speedup fits"
)
_SPARE = ("draft_s", "verify_s")
"""Columns that a narrow screen leaves out, the first one first."""
_SPEC_TITLES = {"draft_tokens": "drafts", "fits": "fits in memory"}


def spec_answer(
    speculated: Speculation,
    target: ReplicaSpec | float,
    draft: DraftModel | float,
    assumptions: Sequence[Assumption],
    warnings: Sequence[str],
) -> Answer:
    """Return rounds by batch and draft length, the best of each batch, and the memory of both models."""
    from capplan.replica.speculation import measured_pairs

    rows, best = list(speculated.rows), list(speculated.best)
    shown = tuple(name for name in _REPLICA_SHOWN if name != "fits" or speculated.memory is not None)
    memory = speculated.memory and dict(speculated.memory)
    rounds = partial(Table, shown=shown, titles=_SPEC_TITLES, spare=_SPARE)
    several = len(best) > 1 and len(rows) > len(best)
    tables = (
        rounds(best if several else [], title="Best draft length at every batch size"),
        _speedups(rows) if len(rows) > MOST_ROUNDS else rounds(rows, title="Rounds"),
        Table([memory] if memory else [], title="Memory of one GPU", upright=True, titles=_MEMORY_TITLES),
    )
    result: dict[str, Any] = {
        "target": _name(target),
        "draft": _name(draft),
        "label": speculated.label,
        "rows": rows,
        "best_draft_tokens": speculated.best_draft_tokens,
        "best": best,
        **row_of(speculated, "breakeven_batch largest_batch"),
        "memory": memory,
        "measured": measured_pairs(),
    }
    return Answer(
        command="spec",
        result=result,
        tables=tables,
        csv_rows=rows,
        headline=_headline(speculated, target, draft),
        closing=tuple(closing_of(speculated, stated=isinstance(target, float))),
        assumptions=(
            _INDEPENDENT,
            *(() if isinstance(draft, float) else (_NO_HOST_TIME,)),
            *assumptions,
            *speculated.assumptions,
        ),
        warnings=tuple(warnings),
    )


def _speedups(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return one line per batch with the speedup of every draft length; CSV and JSON have every round."""
    lines: dict[int, dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(row["batch"], {"batch": row["batch"]})
        line[f"drafts {row['draft_tokens']}"] = row["speedup"]
    return Table(list(lines.values()), title="Speedup by batch size and draft tokens")


def _name(part: ReplicaSpec | DraftModel | float) -> str | None:
    if isinstance(part, float):
        return None
    return part.network.name if isinstance(part, ReplicaSpec) else part.spec.network.name


def _headline(speculated: Speculation, target: ReplicaSpec | float, draft: DraftModel | float) -> str:
    first = speculated.best[0]
    what = f"{_name(draft) or 'a draft of given step time'} drafting for {_name(target) or 'a target of given step time'}"
    place = "" if isinstance(target, float) else f" on {target.devices} x {target.device.name}"
    at = "" if isinstance(target, float) else f" at batch {first['batch']}"
    return (
        f"{what}{place}: {first['speedup']:.3g}x{at} with {first['draft_tokens']} draft "
        f"{'token' if first['draft_tokens'] == 1 else 'tokens'} per round"
    )


def closing_of(speculated: Speculation, *, stated: bool) -> Iterator[str]:
    """Yield up to which batch speculation pays off as predicted, what a round costs there, and what was measured."""
    batch, most = speculated.breakeven_batch, speculated.largest_batch
    if stated:
        pays = "speculation pays off at any batch size, because the step times given do not depend on it"
        yield pays if batch is None else "speculation does not pay off"
        return
    if batch is not None and batch <= most:
        paying = f"as predicted, speculation does not pay off from batch size {batch} on"
    else:
        beyond = "" if batch is None else f"; from {batch} on it would not"
        paying = f"as predicted, speculation pays off at every batch size that fits, up to {most}{beyond}"
    last = max(speculated.best, key=lambda row: row["batch"])
    verified = last["batch"] * (last["draft_tokens"] + 1)
    cost = (
        f"at batch size {last['batch']} a verification computes {verified:,} tokens in {last['verify_s'] / last['target_step_s']:.3g} times "
        f"the time of a plain step, and {last['draft_tokens'] + 1 - last['expected_tokens_per_round']:.2g} of {last['draft_tokens'] + 1} "
        "tokens of each sequence are rejected"
    )
    yield paying
    yield cost
    yield _measured_text()


def _measured_text() -> str:
    """Return what was measured with and without drafts, next to what is predicted."""
    from capplan.replica.speculation import measured_pairs

    ratios = [pair["ratio"] for pair in measured_pairs()]
    fewest = min(pair["requests"] for pair in measured_pairs())
    gains = sum(ratio > 1.0 for ratio in ratios)
    return (
        f"the gain at every batch size is extrapolated from step times: {gains or 'none'} of {len(ratios)} measured pairs of runs with and "
        f"without drafts, with {fewest} or more requests at once, gained ({min(ratios):.2f} to {max(ratios):.2f} times the throughput); measure "
        "both at your load before you order"
    )


_MEMORY_TITLES = {
    "kv_bytes_available_per_gpu": "available for the caches of target and draft",
    "context_tokens": "context of a sequence",
    "max_concurrency": "concurrent sequences with the draft",
}
