"""What requests take outside the GPUs: the table and the lines that answers add."""

from typing import Any

from capplan.fleet.plan import AnyPlan
from capplan.report.answer import Table
from capplan.workload.outside import OutsideUse

_TITLES = {
    "name": "class",
    "wait_s": "before the prompt",
    "usd_per_request": "a request",
    "usd_per_month": "",
    "usd_per_job": "",
}


def outside_rows(use: OutsideUse) -> list[dict[str, Any]]:
    """Return what the requests of each class take outside."""
    cost = "usd_per_job" if use.of_job else "usd_per_month"
    return [
        {
            "name": item.name,
            "requests": item.requests,
            "wait_s": item.wait_s,
            "tool_calls": item.tool_calls,
            "usd_per_request": item.usd_per_request,
            cost: item.usd,
            "answer_s": item.answer_s,
        }
        for item in use.classes
    ]


def outside_tables(plan: AnyPlan | None) -> tuple[Table, ...]:
    """Return what is outside the GPUs of the recommended plan, if anything is stated."""
    if plan is None or plan.outside is None:
        return ()
    rows = outside_rows(plan.outside)
    kept = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    return (Table(rows, title="Outside the GPUs, by class of requests", shown=tuple(kept), titles=_TITLES),)


def outside_texts(plan: AnyPlan | None) -> tuple[str, ...]:
    """Return what users wait for in all, and what is paid on top of the plan."""
    if plan is None or plan.outside is None:
        return ()
    use, most = plan.outside, "" if len({item.wait_s for item in plan.outside.classes}) == 1 else "at most "
    texts = []
    if use.longest_wait_s:
        seen = [f"{name} p95 {most}{1e3 * (spread.p95 + use.longest_wait_s):,.0f} ms" for name, spread in (("TTFT", plan.ttft_s), ("E2E", plan.e2e_s))]  # fmt: skip
        texts.append(
            f"with what is outside users see {' and '.join(seen)}; the table of plans has the engine's part"
        )
    if use.usd:
        span = "for the job" if use.of_job else "a month"
        texts.append(f"outside the GPUs ${use.usd:,.0f} {span}, on top of the plan")
    return tuple(texts)
