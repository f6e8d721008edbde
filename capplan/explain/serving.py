"""Latencies, loads and certainty explained."""

from collections.abc import Iterator

from capplan.accuracy.bounded import load_interval
from capplan.explain.record import Explained, Input, explained, input_of
from capplan.explain.subject import ACCURACY, KERNELS, SIMULATION, Subject
from capplan.fleet.load.demand import planned_demand
from capplan.fleet.load.offered import WARM_UP_SHARE
from capplan.replica.estimate import breakdown_of
from capplan.replica.load import Load

BOUNDS = {"low": "low_ratio", "high": "high_ratio"}


def latency(of: Subject, metric: str, statistic: str) -> Explained:
    """Explain a statistic of a latency: that of a simulation, whose steps are sums of operators."""
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
    mean = latency(of, metric, "mean")
    interval = load_interval(of.asked.question.intervals, metric.removesuffix("_s"), "open", of.trial.replica)
    ratio = float(getattr(interval, BOUNDS[end]))
    source = f"measured over predicted, {interval.n} results in {interval.groups} groups"
    inputs = (
        input_of("m", f"{metric}.mean", mean.value, mean.label, f"explain {metric}.mean"),
        input_of("q", BOUNDS[end], ratio, "measured", source),
    )
    return explained(f"{metric}.{end}", mean.value * ratio, "m q", inputs, ACCURACY, steps=(mean,))


def probability(of: Subject, quantity: str, key: str = "") -> Explained:
    """Explain the probability that one target, or all together, hold."""
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


def replicas(of: Subject) -> Explained:
    """Explain the replicas, spares included."""
    steps = tuple(rate_limit(of, name, sure=sure) for name, sure in LIMITS.items())
    inputs = (
        _peak(of),
        of.of_scenario("h", "headroom_fraction", of.terms.headroom_fraction, "fleet.headroom"),
        *(
            input_of(symbol, step.quantity, step.value, step.label, f"explain {step.quantity}")
            for symbol, step in zip("lc", steps, strict=True)
        ),
        of.of_scenario("s", "spare_replicas", of.plan.spare_replicas, of.plan.groups[0].survive.key),
    )
    formula = (
        "max(ceil(R / ((1 - h) l)), ceil(R / c)) + s, or more where that is surer for about the same cost"
    )
    return explained("replicas", float(of.plan.replicas), formula, inputs, SIMULATION, steps=steps)


LIMITS: dict[str, bool] = {
    "request_rate_limit_per_replica": False,
    "sure_request_rate_limit_per_replica": True,
}
"""Largest rates of a replica -> whether for one as slow as the required confidence allows for."""


def rate_limit(of: Subject, quantity: str, *, sure: bool) -> Explained:
    """Explain the largest rate of a replica at which the targets hold."""
    slowness, confidence = of.trial.candidate.slowness, of.asked.scenario.slo.confidence
    factor = slowness.quantile(confidence) if sure else 1.0
    source = (
        f"not exceeded in {confidence:.0%} of {slowness.rows} measured open-loop runs"
        if sure
        else "as predicted"
    )
    inputs = (
        input_of("s", "slowness_ratio", factor, "measured" if sure else "derived", source),
        *of.limits(),
    )
    value = of.trial.rate_limit(of.busy, factor)
    formula = "largest rate at which all targets hold if every step takes s times as long, simulated"
    return explained(quantity, value, formula, inputs, SIMULATION, label=of.plan.single.label)


def planned_rate(of: Subject) -> Explained:
    """Explain the largest rate that a replica is planned for, at least what it carries at the peak."""
    steps = tuple(rate_limit(of, name, sure=sure) for name, sure in LIMITS.items())
    group = of.plan.single
    inputs = (
        of.of_scenario("h", "headroom_fraction", of.terms.headroom_fraction, "fleet.headroom"),
        *(
            input_of(symbol, step.quantity, step.value, step.label, f"explain {step.quantity}")
            for symbol, step in zip("lc", steps, strict=True)
        ),
        input_of(
            "r",
            "request_rate_per_replica",
            group.request_rate_per_replica,
            "derived",
            "explain request_rate_per_replica",
        ),
    )
    value, quantity = group.planned_request_rate_limit_per_replica, "planned_request_rate_limit_per_replica"
    return explained(
        quantity, value, "max(min((1 - h) l, c), r)", inputs, SIMULATION, steps=steps, label=group.label
    )


def _peak(of: Subject) -> Input:
    """Return the requests of all replicas at the peak."""
    demand = of.trial.demand
    peak = planned_demand(demand, of.latencies.responses_s).peak_requests_per_s
    if demand.users:
        source = "scenario: traffic.users over the think time and the mean response, explain e2e_s.mean"
        return input_of("R", "request_rate", peak, "derived", source)
    return input_of("R", "request_rate", peak, "config", "scenario: traffic, at its peak")


def request_rate(of: Subject) -> Explained:
    """Explain the rate of a replica at the peak."""
    inputs = (
        _peak(of),
        input_of("n", "busy_replicas", of.busy, "derived", "explain replicas, without spares"),
    )
    value = of.latencies.requests_per_s
    return explained("request_rate_per_replica", value, "R / n", inputs, SIMULATION)


def concurrency(of: Subject) -> Explained:
    """Explain the requests in a replica at the peak."""
    rate, response_s = of.latencies.requests_per_s, of.latencies.e2e_s.mean
    inputs = (
        input_of("r", "request_rate_per_replica", rate, "derived", "explain request_rate_per_replica"),
        input_of("t", "e2e_s.mean", response_s, of.plan.single.label, "explain e2e_s.mean"),
    )
    return explained("concurrency_per_replica", rate * response_s, "r t (Little's law)", inputs, SIMULATION)
