"""What `capplan estimate` shows."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from capplan.accuracy.bounded import BoundedEstimate
from capplan.accuracy.intervals import LEAST_GROUPS, LEAST_SOURCES
from capplan.assumption import Assumption
from capplan.replica.estimate import Estimate
from capplan.replica.load import Load
from capplan.replica.replica import Replica
from capplan.report.answer import Answer, Table

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
    spreads = {"ttft_s": bounded.ttft_s, "tpot_s": bounded.tpot_s, "e2e_s": bounded.e2e_s}
    latency = [
        {"quantity": name.removesuffix("_s").upper()}
        | {f"{key}_s": value for key, value in asdict(spread).items()}
        for name, spread in spreads.items()
    ]
    figures = _figures(estimated)
    breakdown = [
        {**asdict(row), "flop_per_byte": row.flop / row.bytes if row.bytes else None}
        for row in estimated.breakdown
    ]
    place = {
        "model": spec.network.name,
        "hardware": spec.device.name,
        "gpus": spec.devices,
        "label": replica.label,
    }
    bounds = {
        "output_tokens_per_s_low": estimated.output_tokens_per_s * bounded.throughput.low_ratio,
        "output_tokens_per_s_high": estimated.output_tokens_per_s * bounded.throughput.high_ratio,
    }
    result = {**place, **{name: asdict(spread) for name, spread in spreads.items()}, **bounds, **figures}
    asked = f"concurrency {load.concurrency}" if load.concurrency else f"{load.request_rate:g} req/s"
    out = load.output_tokens if spec.network.generates else "a vector or a score"
    steps = (
        "Prefill of one prompt, and one decode step" if spec.network.generates else "Prefill of one prompt"
    )
    return Answer(
        command="estimate",
        result={**result, "breakdown": breakdown},
        tables=(
            Table(
                latency, title="Latency (low and high: 80 % interval of the mean)", spare=("p90_s", "p50_s")
            ),
            Table([figures], title="Throughput", upright=True),
            Table(breakdown, title=steps, shown=_BREAKDOWN),
        ),
        csv_rows=(result,),
        headline=(
            f"{spec.network.name} on {spec.devices} x {spec.device.name}, {spec.profile.engine} "
            f"{spec.profile.version}: {asked}, {load.input_tokens} tokens in, {out} out"
        ),
        assumptions=(_LENGTHS, *assumptions, *replica.rates.assumptions),
        warnings=(*warnings, *_problems(load, bounded)),
    )


def _figures(estimated: Estimate) -> dict[str, Any]:
    return {
        "output_tokens_per_s": estimated.output_tokens_per_s,
        "total_tokens_per_s": estimated.total_tokens_per_s,
        "requests_per_s": estimated.requests_per_s,
        "output_tokens_per_s_per_gpu": estimated.output_tokens_per_s_per_gpu,
        "concurrency": estimated.concurrency,
        "bottleneck": estimated.bottleneck,
        "saturated": estimated.saturated,
        "kv_occupancy_fraction": estimated.kv_occupancy_fraction,
        "preemptions": estimated.preemptions,
    }


def _problems(load: Load, bounded: BoundedEstimate) -> list[str]:
    problems = []
    if bounded.estimate.saturated:
        problems.append(
            f"{load.request_rate:g} req/s is more than the replica can serve: it saturates at "
            f"{bounded.estimate.requests_per_s:.3g} req/s, and the queue grows without bound"
        )
    if bounded.unmeasured:
        problems.append(
            "no measured result is close to this operating point: the intervals are at their widest"
        )
    elif bounded.fewest_models < LEAST_GROUPS or bounded.fewest_sources < LEAST_SOURCES:
        few = f"{bounded.fewest_models} model{'s' if bounded.fewest_models > 1 else ''}"
        if bounded.fewest_models >= LEAST_GROUPS:
            few = "one source"
        problems.append(
            f"an interval rests on measured results of {few} only, so it is at least as wide as that of wider regimes"
        )
    return problems
