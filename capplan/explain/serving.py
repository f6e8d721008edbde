"""Latencies and certainty explained: by the operators of a step, and by measured results."""

from collections.abc import Iterator

from capplan.accuracy.bounded import load_interval
from capplan.explain.record import Explained, explained, input_of
from capplan.explain.subject import Subject
from capplan.fleet.load.offered import WARM_UP_SHARE
from capplan.replica.estimate import breakdown_of
from capplan.replica.load import Load
from capplan.report.quantities import ACCURACY, KERNELS, SIMULATION

BOUNDS = {"low": "low_ratio", "high": "high_ratio"}


def latency(of: Subject, path: str) -> Explained:
    """Explain a statistic of a latency: that of a simulation, whose steps are sums of operators; or an end of the interval around the mean."""
    metric, _, statistic = path.partition(".")
    if statistic in BOUNDS:
        return end_of_interval(of, metric, statistic)
    value = float(getattr(getattr(of.latencies, metric), statistic))
    warm = f"requests of a simulated run, the first {WARM_UP_SHARE:.0%} left out"
    inputs = (
        input_of(
            "r",
            "request_rate_per_replica",
            of.trial.total_rate / of.busy,
            "derived",
            "explain request_rate_per_replica",
        ),
        input_of("n", "busy_replicas", of.busy, "derived", "explain replicas, without spares"),
        input_of("N", "requests", of.asked.question.requests, "derived", warm),
        input_of(
            "T", "kv_cache_tokens", of.plan.single.kv_cache_tokens, "derived", "explain kv_cache_tokens"
        ),
    )
    what = "mean" if statistic == "mean" else f"{statistic[1:]}th percentile"
    formula = (
        f"{what} over N requests that arrive at r; each step takes the sum of its operators and of the host"
    )
    steps = tuple(operators(of))
    return explained(
        f"{metric}.{statistic}", value, formula, inputs, SIMULATION, label=of.plan.single.label, steps=steps
    )


def operators(of: Subject) -> Iterator[Explained]:
    """Yield the operators of one prefill and one decode step at the mean load, slowest first."""
    now, profile = of.latencies, of.asked.question.profile
    lengths = of.trial.demand.at_responses(now.responses_s).lengths
    load = Load(int(lengths.input_tokens), int(lengths.output_tokens), request_rate=now.requests_per_s)
    rows = breakdown_of(of.trial.replica, load, now.requests_per_s * now.e2e_s.mean)
    for row in sorted(rows, key=lambda row: -row.seconds):
        inputs = (
            input_of("F", "flop", row.flop, "derived", "config.json of the model, at the mean load"),
            input_of("Q", "moved_bytes", row.bytes, "derived", "config.json of the model, at the mean load"),
        )
        host = f"per step and per sequence, fitted for {profile.engine} {profile.version}"
        formula = host if row.operator == "host" else f"t(F, Q), bound by {row.bound}: {of.kernels}"
        yield explained(
            f"{row.phase}.{row.operator}_s", row.seconds, formula, inputs, KERNELS, label=of.plan.single.label
        )


def end_of_interval(of: Subject, metric: str, end: str) -> Explained:
    """Explain an end of the interval around a mean."""
    mean = latency(of, f"{metric}.mean")
    interval = load_interval(of.asked.question.intervals, metric.removesuffix("_s"), "open", of.trial.replica)
    ratio = float(getattr(interval, BOUNDS[end]))
    source = f"measured over predicted, {interval.n} results in {interval.groups} groups"
    inputs = (
        input_of("m", f"{metric}.mean", mean.value, mean.label, f"explain {metric}.mean"),
        input_of("q", BOUNDS[end], ratio, "measured", source),
    )
    return explained(f"{metric}.{end}", mean.value * ratio, "m q", inputs, ACCURACY, steps=(mean,))


def probability(of: Subject, quantity: str) -> Explained:
    """Explain the probability that one target, or all together, hold."""
    key = quantity.partition(".")[2]
    trial, slowness = of.trial, of.trial.candidate.slowness
    targets = {target: limit for target, limit in trial.limits.items() if key in ("", target.key)}
    value = of.plan.target_probabilities[key] if key else of.plan.slo_met_probability
    slowest = trial.slowest(of.busy, targets)
    rows = f"{slowness.rows} measured open-loop runs in {slowness.groups} groups"
    inputs = (
        input_of(
            "s",
            "slowest_ratio",
            slowest,
            of.plan.single.label,
            "largest factor on every step at which the targets hold",
        ),
        input_of(
            "F", "slowness", None, "measured", f"distribution of measured over predicted step times: {rows}"
        ),
        *of.limits(key),
    )
    formula = "P = F(s)" + (", at least that of all targets together" if key else "")
    return explained(quantity, value, formula, inputs, ACCURACY)
