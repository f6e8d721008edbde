"""Forty short open loops that no fit saw: how often what was measured lies in the 80 % intervals, and how often a plan that claims 80 % holds.

`python -m calibrate.live.claims FOLDER CALIBRATION [ENVIRONMENT]` prints both; with the environment of the engine the loops are measured first.
A plan is a limit of p95 latency that capplan says is met with 80 % certainty: the p95 of the same requests, simulated on a replica that is
as slow as one in five may be. It holds where the measured p95 is within the limit.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.live.loads import Load, capacity_per_s, measured
from calibrate.live.queueing import calibrated_replica, engine_of, records_of, simulated, slowed
from calibrate.live.queueing import measured as measured_by_request
from capplan.accuracy.bounded import operation_interval, operation_of, served_by
from capplan.accuracy.slowness import JointSlowness, by_latency, replica_slowness
from capplan.readers.catalogue.efficiency import shipped_intervals, shipped_slowness
from capplan.replica.replica import Replica
from capplan.workload.request_class import Metric, Target

CLAIMED = 0.8
SHARES = (0.3, 0.45, 0.6, 0.75, 0.9)
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"burstiness": 0.3},
    {"sigma": 0.7},
    {"sigma": 0.5, "burstiness": 0.5},
)
LENGTHS = ((128, 32, 1.0), (256, 16, 0.8))
"""Prompt and output tokens, and the highest rate over that of 128 and 32."""
SECONDS = 22.0
METRICS: tuple[Metric, ...] = ("ttft", "tpot", "e2e")
PLANS: dict[str, tuple[Metric, ...]] = {"ttft": ("ttft",), "tpot": ("tpot",), "both": ("ttft", "tpot")}


def loads(capacity: float) -> tuple[Load, ...]:
    """Return the forty loops for a highest rate [1/s]."""
    return tuple(
        Load(
            f"claim-{kind}-{tokens}-{share:g}",
            share=share * scale,
            requests=max(12, round(SECONDS * share * scale * capacity)),
            input_tokens=tokens,
            output_tokens=output,
            seed=100 + 20 * kind + tokens + round(100 * share),
            **shape,
        )
        for kind, shape in enumerate(KINDS)
        for tokens, output, scale in LENGTHS
        for share in SHARES
    )


@dataclass(frozen=True, slots=True)
class Claim:
    """One loop: which statistics lie in their interval, and which plans hold."""

    load: str
    measured_s: dict[str, float]
    predicted_s: dict[str, float]
    inside: dict[str, bool]
    holds: dict[str, bool]


def claim(record: dict[str, Any], replica: Replica, name: str) -> Claim:
    """Return what the calibrated replica claims of a loop, and what came true."""
    engine, spec = engine_of(replica), replica.spec
    seen, own = measured_by_request(record), simulated(record, engine)
    served = served_by(
        spec, np.mean(record["input_lens"]), np.mean(record["output_lens"]), in_flight(record, own)
    )
    operation = operation_of(replica, served)
    measured_s, predicted_s, inside = {}, {}, {}
    for metric in METRICS:
        for statistic in ("mean", "p95"):
            value, guess = (_statistic(of[metric], statistic) for of in (seen, own))
            interval = operation_interval(shipped_intervals(), metric, "open", operation, statistic)
            key = f"{metric}.{statistic}"
            measured_s[key], predicted_s[key] = value, guess
            inside[key] = guess * interval.low_ratio <= value <= guess * interval.high_ratio
    holds = {}
    step_s, table = _statistic(own["tpot"], "mean"), shipped_slowness()
    for plan, metrics in PLANS.items():
        asked = by_latency(Target(metric, "p95", 1.0) for metric in metrics)
        usual = {
            name: replica_slowness(
                table, targets, network_class=operation.network_class, step_s=step_s, device=spec.device,
                efficiency=spec.efficiency, left_out=spec.profile.left_out, served=served,
            )
            for name, targets in asked.items()
        }  # fmt: skip
        slow = JointSlowness(usual, table.correlation).equally(CLAIMED)
        late = {name: slowed(record, engine, slowness) for name, slowness in slow.items()}
        limits = {
            target.metric: _statistic(late[name][target.metric], "p95")
            for name, targets in asked.items()
            for target in targets
        }
        holds[plan] = all(measured_s[f"{metric}.p95"] <= limits[metric] for metric in metrics)
    return Claim(name, measured_s, predicted_s, inside, holds)


def in_flight(record: dict[str, Any], own: dict[str, Any]) -> float:
    """Return the simulated mean of the requests in flight, by Little's law [-]."""
    span_s = max(record["start_times"]) - min(record["start_times"]) + float(np.max(own["e2e"]))
    return float(np.sum(own["e2e"]) / span_s)


def _statistic(values: Any, statistic: str) -> float:
    return float(np.mean(values) if statistic == "mean" else np.percentile(values, int(statistic[1:])))


def printed(claims: Sequence[Claim]) -> dict[str, float]:
    """Print the shares of intervals and plans that came true, with median error and bias; return the shares."""
    found = {}
    for key in claims[0].inside:
        ratios = [one.measured_s[key] / one.predicted_s[key] for one in claims]
        found[f"interval {key}"] = sum(one.inside[key] for one in claims) / len(claims)
        print(
            f"{key:10} inside {found[f'interval {key}']:4.0%}  median error {np.median(np.abs(np.array(ratios) - 1.0)):5.1%}"
            f"  measured/predicted {np.median(ratios):.2f}, 80 %: {np.percentile(ratios, 10):.2f} to {np.percentile(ratios, 90):.2f}"
        )
    for plan in PLANS:
        found[f"plan {plan}"] = sum(one.holds[plan] for one in claims) / len(claims)
        print(f"plans with limits of {plan:5} at {CLAIMED:.0%}: {found[f'plan {plan}']:.0%} hold")
    return found


def main(words: list[str]) -> int:
    """Measure where asked, print, and write FOLDER/claims.json."""
    folder, calibration, *environment = map(Path, words)
    series = loads(capacity_per_s(folder))
    if environment:
        capacity = capacity_per_s(folder)
        measured(series, environment[0], folder, 1, lambda load: load.share * capacity)
    replica = calibrated_replica(calibration, folder / "tiny")
    claims = [
        claim(record, replica, load.name) for load in series for record in records_of(folder, load.name)
    ]
    shares = printed(claims)
    rows = [
        {"load": one.load, "measured_s": one.measured_s, "predicted_s": one.predicted_s} for one in claims
    ]
    (folder / "claims.json").write_text(json.dumps({"shares": shares, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
