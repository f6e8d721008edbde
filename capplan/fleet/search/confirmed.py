"""A plan from a sized layout: latencies at the peak, their probabilities, costs."""

from math import inf

from capplan.accuracy.bounded import BoundedSpread, load_interval
from capplan.fleet.plan import FleetPlan
from capplan.fleet.price import HOURS_PER_MONTH, usd_per_million_tokens, usd_per_month
from capplan.fleet.search.cheapest import Sized, Terms
from capplan.fleet.search.trial import Trial
from capplan.fleet.unit_costs import unit_costs_at_mean
from capplan.replica.estimate import bottleneck_of, breakdown_of
from capplan.replica.load import Load
from capplan.serving.outcome import Spread
from capplan.workload.outside import outside_use
from capplan.workload.slo import Target

MOST_ADDED = 16
"""Replicas, one by one, that a plan may get to reach the required confidence at its own load."""
RANGE = (0.1, 0.9)
"""Quantiles of replica slowness for the range of the cost of a fleet: 80 % of the cases."""


def met_probability(trial: Trial, busy: int) -> float:
    """Return the probability that all targets hold together at the peak, with this many replicas.

        P = F(s_max)

    A single factor, the slowness of all steps over the prediction, decides about every target; s_max is the largest
    slowness at which all of them hold, and F the distribution of slowness.
    """
    slowness, confidence = trial.candidate.slowness, trial.question.slo.confidence
    probability = slowness.probability(trial.slowest(busy, trial.limits))
    if probability < confidence and trial.meets(busy, slowness.quantile(confidence), trial.limits):
        return confidence  # what was simulated counts more than what lies between two steps of the scale
    return probability


def target_probability(trial: Trial, busy: int, target: Target) -> float:
    """Return the probability that one target holds at the peak, whether or not the others do; at least that of all together."""
    slowest = trial.slowest(busy, {target: target.limit_s})
    question, candidate = trial.question, trial.candidate
    network = question.networks[candidate.weight_dtype]
    slowness = question.slowness([target], network, candidate.usual_step_s, candidate.layout.device)
    alone = slowness.probability(slowest)
    return max(alone, met_probability(trial, busy))


def plan_of(sized: Sized, terms: Terms) -> FleetPlan:
    """Return the plan, with latencies simulated at the peak."""
    trial, candidate, question = sized.trial, sized.trial.candidate, sized.trial.question
    latencies = trial.fleet(sized.busy)
    demand = candidate.demand.at_responses(latencies.responses_s)
    lengths = demand.lengths
    load = Load(int(lengths.input_tokens), int(lengths.output_tokens), request_rate=latencies.requests_per_s)
    in_replica = latencies.requests_per_s * latencies.e2e_s.mean
    rows = breakdown_of(trial.replica, load, in_replica)
    device = candidate.layout.device
    price = terms.prices.get(device.name)
    hourly = price.total_usd_per_hour * sized.gpus if price else None
    output_rate = latencies.requests_per_s * sized.busy * demand.generated_tokens
    input_rate = latencies.requests_per_s * sized.busy * float(lengths.input_tokens)

    def per_million(tokens_per_s: float) -> float | None:
        return (
            None
            if hourly is None or not tokens_per_s
            else float(usd_per_million_tokens(hourly, tokens_per_s))
        )

    return FleetPlan(
        layout=candidate.layout,
        weight_dtype=candidate.weight_dtype,
        replicas=sized.busy + terms.spare_replicas,
        spare_replicas=terms.spare_replicas,
        concurrency_per_replica=in_replica,
        request_rate_per_replica=latencies.requests_per_s,
        request_rate_limit_per_replica=trial.rate_limit(sized.busy, 1.0),
        sure_rate_limit_per_replica=trial.rate_limit(
            sized.busy, candidate.slowness.quantile(question.slo.confidence)
        ),
        ttft_s=_bounded(latencies.ttft_s, "ttft", trial),
        tpot_s=_bounded(latencies.tpot_s, "tpot", trial),
        e2e_s=_bounded(latencies.e2e_s, "e2e", trial),
        slo_met_probability=met_probability(trial, sized.busy),
        few_open_loops_measured=candidate.slowness.thin,
        target_probabilities={
            target.key: target_probability(trial, sized.busy, target) for target in question.slo.targets
        },
        usd_per_hour=hourly,
        usd_per_month=float(usd_per_month(hourly)) if hourly is not None else None,
        usd_per_million_output_tokens=per_million(output_rate),
        usd_per_million_tokens=per_million(output_rate + input_rate),
        watts=device.tdp_w * sized.gpus if device.tdp_w else None,
        bottleneck=bottleneck_of(rows, load.output_tokens, in_replica),
        label=candidate.label,
        kv_cache_tokens=candidate.kv_cache_tokens,
        checked="simulated",
        price=price,
        money=None if hourly is None else unit_costs_at_mean(demand, hourly, latencies.responses_s),
        draft_tokens=candidate.rounds.draft_tokens if candidate.rounds else None,
        routing=question.routing,
        outside=outside_use(demand.classes, latencies.responses_s, HOURS_PER_MONTH),
        class_e2e_s=latencies.responses_s if len(demand.classes) > 1 else (),
    )


def confirmed(fleet: Sized, terms: Terms) -> tuple[Sized, FleetPlan] | None:
    """Return a sized layout and its plan, which reaches the required confidence at its own load; None if the limits on GPUs forbid that.

    A size rests on loads of a scale, so a few replicas may be missing.
    """
    trial, confidence = fleet.trial, fleet.trial.question.slo.confidence
    devices = trial.candidate.layout.devices
    for more in range(MOST_ADDED):
        gpus = fleet.gpus + more * devices
        if more and gpus > terms.most_devices(trial.candidate.layout.device.name):
            return None
        if not trial.limits or met_probability(trial, fleet.busy + more) >= confidence:
            larger = Sized(trial, fleet.busy + more, gpus)
            return larger, plan_of(larger, terms)
    return None


def cost_range(sized: Sized, terms: Terms) -> tuple[float, float] | None:
    """Return the monthly cost [$] of this layout if its replicas are as fast or as slow as RANGE; None without a price.

    Headroom and spares stay the same.
    """
    trial = sized.trial
    hourly = terms.hourly(trial.candidate.layout.device.name)
    if hourly is None:
        return None
    costs = []
    for part in RANGE:
        busy = replicas_at_speed(trial, part, terms)
        gpus = inf if busy is None else (busy + terms.spare_replicas) * trial.candidate.layout.devices
        costs.append(float(usd_per_month(hourly * gpus)))
    return costs[0], costs[1]


def replicas_at_speed(trial: Trial, part: float, terms: Terms) -> int | None:
    """Return the replicas that carry the peak with headroom if they are as slow as in this part of the cases; None if none do."""
    peak = trial.total_rate / (1.0 - terms.headroom_fraction)
    return trial.replicas_for(peak, trial.candidate.slowness.quantile(part), trial.limits)


def _bounded(values: Spread, quantity: str, trial: Trial) -> BoundedSpread:
    interval = load_interval(trial.question.intervals, quantity, "open", trial.replica)
    low, high = values.mean * interval.low_ratio, values.mean * interval.high_ratio
    return BoundedSpread(values.mean, values.p50, values.p90, values.p95, values.p99, low, high)
