"""What `capplan sweep` shows: every point, the knee of each plan, and the largest load within the targets."""

from collections.abc import Mapping, Sequence
from typing import Any

from capplan.fleet.sweep import Row, summaries
from capplan.questions.sweep import AskedSweep
from capplan.report.answer import Answer, Table

_POINTS = ("plan", "request_rate", "concurrency", "requests_per_s", "output_tokens_per_s_per_gpu", "ttft_s.p95", "tpot_s.mean", "tpot_s.p95", "e2e_s.mean", "slo_met_fraction", "holds")  # fmt: skip
_TITLES = {"request_rate": "offered", "requests_per_s": "served", "usd_per_million_output_tokens": "at that load"}  # fmt: skip


def by_plan(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """Return the points of each plan, in order of load."""
    return {
        name: [row for row in rows if row["plan"] == name]
        for name in dict.fromkeys(row["plan"] for row in rows)
    }


def sweep_answer(asked: AskedSweep, rows: Sequence[Row], *, reused: int, interrupted: bool) -> Answer:
    """Return all points and a summary of each plan; exit code 130 where the run was cut short."""
    planned = {each.contender.name: each.contender.planned_requests_per_s for each in asked.points}
    by_plan_rows = summaries(
        rows, asked.slo, planned, of_users=any(point.demand.users for point in asked.points)
    )
    closed = bool(rows) and rows[0]["request_rate"] is None
    apart = any(point.contender.decode is not None for point in asked.points)
    unit = "requests in flight" if closed else "req/s" if apart else "req/s per replica"
    shown = tuple(name for name in _POINTS if name != ("request_rate" if closed else "concurrency"))
    best = max((s for s in by_plan_rows if s["largest_load_that_holds"]), key=lambda s: float(s["output_tokens_per_s_per_gpu"]), default=None)  # fmt: skip
    verdict = (
        f"{best['plan']} has the highest throughput per GPU within the targets, at {best['largest_load_that_holds']:.3g} {unit}"
        if best
        else "no plan meets the targets at any load"
        if asked.slo.targets
        else "no targets set; compare the knees"
    )
    if interrupted:
        verdict = f"nothing is decided, {len(rows)} points were finished"
    closing = [f"{reused} of {len(rows)} points reused from an earlier run"] if reused else []
    if interrupted:
        closing.append("interrupted: finished points are shown; run again with --points FILE to continue")
    result: dict[str, Any] = {
        "scenario": asked.name,
        "load": "concurrency" if closed else "request_rate",
        "plans": [{**summary, "points": by_plan(rows)[summary["plan"]]} for summary in by_plan_rows],
        "interrupted": interrupted,
    }
    return Answer(
        command="sweep",
        result=result,
        tables=(
            Table(rows, title="Points", shown=shown, titles=_TITLES),
            Table(by_plan_rows, title=f"Plans (loads in {unit})", titles=_TITLES),
        ),
        headline=f"{asked.name}: {verdict}",
        closing=tuple(closing),
        assumptions=asked.assumptions,
        warnings=asked.warnings,
        exit_code=130 if interrupted else 0,
    )
