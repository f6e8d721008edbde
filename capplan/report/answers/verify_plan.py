"""What `capplan verify-plan` shows: predicted next to measured, which targets held, and what to do next."""

import math
import shlex
from pathlib import Path
from typing import Any

from capplan.assumption import Assumption
from capplan.fleet.plan import Plan
from capplan.questions.fleet import AskedFleet
from capplan.questions.plans.plan_verification import LATENCIES, PROMETHEUS, Verification, next_settings
from capplan.readers.catalogue.scenarios import scenario_word
from capplan.report.answer import Answer, Table
from capplan.report.screen_units import screen_of, shown_number

_WORDS = {
    "holds": "what was measured lies in the intervals of the prediction",
    "slower": "it is slower than the interval of the prediction",
    "faster": "it is faster than the interval of the prediction, so the plan may buy more than is needed",
}
_LENGTHS = {
    "of the plan": Assumption(
        "the run had the traffic of the plan at its own rate: lengths, arrivals and prefixes are those of the scenario; "
        "the intervals include by how much runs of as many requests differ",
        "results with the lengths of every request",
    ),
    "of the results": Assumption(
        "the requests are those that the results list; prefixes hit as in the plan", "results without them"
    ),
    "fixed": Assumption(
        "the mean lengths of the results are not those of the plan, so all requests have these mean lengths",
        "results with the lengths of every request",
    ),
}
"""What is predicted, by whose lengths it has."""
_RATES = {"output_tokens_per_s": "tokens/s", "requests_per_s": "req/s"}
_CAUSES = {
    "ttft_s": "time to first token: prefill kernels, the wait in the queue and the host, per request",
    "tpot_s": "time per output token: decode kernels and the host, per step",
    "e2e_s": "end-to-end latency: follows from the other two",
    "output_tokens_per_s": "throughput: follows from the latencies of a closed loop",
    "requests_per_s": "throughput: follows from the latencies of a closed loop",
}


def verify_plan_answer(
    asked: AskedFleet, plan: Plan, verification: Verification, results: tuple[Path, ...]
) -> Answer:
    """Return a plan next to its measurement; exit code 4 where it is slower than predicted or misses a target."""
    result, verdict = verification.result, verification.verdict
    missed = [target for target in verification.targets if not target.holds]
    settings = next_settings(asked, verification)
    rows = [
        {name: getattr(row, name) for name in ("quantity", "predicted", "low", "high", "measured", "inside")}
        for row in verification.rows
    ]
    load = (
        f"{result.request_rate_per_s:.4g} req/s"
        if result.request_rate_per_s
        else f"{result.concurrency:.4g} requests in flight"
        if result.concurrency
        else "all requests at once"
    )
    of = f"{verification.replicas} replica{'s' if verification.replicas > 1 else ''}"
    return Answer(
        command="verify-plan",
        result={
            "rows": rows,
            "targets": [
                {"target": t.target, "limit_s": t.limit_s, "measured_s": t.measured_s, "holds": t.holds}
                for t in verification.targets
            ],
            "verdict": verdict,
            "lengths": verification.lengths,
            "recalibrate": list(verification.culprits),
            "next_settings": list(settings),
        },
        tables=(
            Table([_row(row) for row in rows], title=f"Predicted and measured, {load} on {of}"),
            *([Table([_target(t.target, t.limit_s, t.measured_s, holds=t.holds) for t in verification.targets], title="Targets of the plan")]
              if verification.targets else []),
        ),
        csv_rows=rows,
        headline=f"{asked.scenario.name}: {_WORDS[verdict]}"
        + (f"; missed: {', '.join(target.target for target in missed)}" if missed else ""),
        closing=tuple(_closing(asked, plan, verification, settings, results)),
        assumptions=(*asked.assumptions, _LENGTHS[verification.lengths]),
        warnings=(*asked.warnings, *result.notes),
        exit_code=4 if verdict == "slower" or missed else 0,
    )  # fmt: skip


def _row(row: dict[str, Any]) -> dict[str, Any]:
    latency = str(row["quantity"]).partition(".")[0] in LATENCIES
    screen = screen_of("s" if latency else "count", [row["predicted"], row["measured"]])
    shown = {
        name: shown_number(row[name], screen.factor) for name in ("predicted", "low", "high", "measured")
    }
    return {
        "quantity": row["quantity"],
        **shown,
        "unit": screen.unit if latency else _RATES[str(row["quantity"])],
        "inside": row["inside"],
    }


def _target(name: str, limit_s: float, measured_s: float, *, holds: bool) -> dict[str, Any]:
    screen = screen_of("s", [limit_s, measured_s])
    return {
        "target": name,
        "limit": shown_number(limit_s, screen.factor),
        "measured": shown_number(measured_s, screen.factor),
        "unit": screen.unit,
        "holds": holds,
    }


def _closing(
    asked: AskedFleet,
    plan: Plan,
    verification: Verification,
    settings: tuple[str, ...],
    results: tuple[Path, ...],
) -> list[str]:
    """Return what to recalibrate, and the next version of the scenario."""
    said = [
        f"recalibrate: {cause}" for cause in dict.fromkeys(_CAUSES[name] for name in verification.culprits)
    ]
    own = [
        "--model",
        asked.scenario.model,
        "--hardware",
        plan.single.layout.device.name,
        "-o",
        "own.calibration.yaml",
    ]
    said += _machines(plan, verification)
    if verification.verdict != "holds" and not results:
        words = ["capplan", "calibrate", "--endpoint", verification.result.path, *own]
        said.append(f"with this server: {shlex.join(words)}")
    elif verification.verdict != "holds" and verification.result.tool != PROMETHEUS:
        words = ["capplan", "calibrate", "--from", str(results[0]), *own]
        said.append(f"with this result: {shlex.join(words)}")
    elif verification.verdict != "holds":
        said.append(
            "with a benchmark of the same server: capplan calibrate --from RESULT -o own.calibration.yaml"
        )
    if settings:
        words = [part for setting in settings for part in ("--set", setting)]
        said.append(
            f"next version: {'capplan fleet ' + scenario_word(asked.scenario.path) + ' ' + shlex.join(words)}"
        )
    return said


def _machines(plan: Plan, verification: Verification) -> list[str]:
    """Return what a slower replica means for their number: steps that take s times as long carry 1/s of the load."""
    row = next((row for row in verification.rows if row.quantity == "e2e_s.mean"), None)
    if verification.verdict != "slower" or row is None or row.measured <= row.predicted:
        return []
    slowness = row.measured / row.predicted
    needed = math.ceil(plan.single.busy_replicas * slowness - 1e-9)
    return [
        f"a replica takes {slowness:.3g} times as long as predicted: about {needed} busy replicas instead of {plan.single.busy_replicas} "
        "for the same latencies; a new plan with a calibration says it exactly"
    ]
