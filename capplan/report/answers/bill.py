"""What `capplan bill` shows: who pays for a fleet."""

from collections.abc import Sequence
from typing import Any

from capplan.money.who_pays import Share, by_tenant
from capplan.questions.money.who_pays import AskedBill
from capplan.questions.plans.plan_row import order_row
from capplan.report.answer import Answer, Table
from capplan.report.answers.fleet_money import currency_texts
from capplan.report.answers.fleet_words import purchase_text
from capplan.report.answers.order import ordered_texts
from capplan.scenario.records.money import Currency

IDLE = "idle"
"""Name of the line of GPUs that wait for requests."""
_TITLES = {
    "name": "class",
    "tenant": "",
}
_SPARE = ("usd_per_thousand_conversations", "usd_per_user", "prefill_usd", "decode_usd")
"""Columns that a narrow terminal does without, the first one first."""


def bill_answer(
    asked: AskedBill,
    name: str,
    written: str | None,
    currency: Currency | None,
    month: tuple[int, int] | None = None,
) -> Answer:
    """Return what each class and tenant pays, and the cost of a request, a user and a thousand conversations."""
    cost = "usd_per_job" if asked.of_job else "usd_per_month"
    rows = [_class_row(share) for share in asked.bill.shares]
    grouped = [
        {
            "tenant": tenant,
            "requests": sum(share.use.requests for share in shares),
            "gpu_time_fraction": sum(share.fraction for share in shares),
            "prefill_usd": sum(share.prefill_usd for share in shares),
            "decode_usd": sum(share.decode_usd for share in shares),
            "outside_usd": sum(share.use.outside_usd for share in shares),
            "usd": sum(share.usd for share in shares),
            "idle_usd": sum(share.idle_usd for share in shares),
            "with_idle_usd": sum(share.with_idle_usd for share in shares),
        }
        for tenant, shares in by_tenant(asked.bill.shares).items()
    ]
    span = "for the job" if asked.of_job else "per month"
    span = span if month is None else f"in {month[0]}-{month[1]:02} of {asked.hours:g} h"
    outside = " + outside" if any(row["outside_usd"] for row in rows) else ""
    written_text = (f"the bill is in {written}, in the columns of FOCUS 1.2",) if written else ()
    return Answer(
        command="bill",
        result={
            "scenario": name,
            cost: asked.bill.usd,
            "hours": asked.hours,
            "gpus": asked.plan.gpus,
            "order": order_row(asked.plan),
            "busy_fraction": asked.bill.busy_fraction,
            "idle_usd": asked.bill.idle_usd,
            "classes": rows,
            "tenants": grouped,
        },
        tables=_tables(rows, grouped, asked.bill.idle_usd, cost),
        headline=f"{name}: {purchase_text(asked.plan)}, ${asked.bill.usd:,.0f} {span}, shared by the time of the GPUs",
        closing=(
            f"prefill + decode{outside} = cost; cost with idle / requests x 1,000 = cost of a thousand requests",
            f"requests keep the replicas busy for {asked.bill.busy_fraction:.0%} of the time that is paid for, spares included; "
            f"idle: what the machines cost for the rest, ${asked.bill.idle_usd:,.0f}",
            *ordered_texts([asked.plan]),
            *currency_texts(currency, {span: asked.bill.usd}),
            *written_text,
        ),
        assumptions=asked.assumptions,
        warnings=asked.warnings,
        csv_rows=rows,
    )


def _tables(
    rows: Sequence[dict[str, Any]], grouped: Sequence[dict[str, Any]], idle_usd: float, cost: str
) -> tuple[Table, ...]:
    """Return the classes and, if they are more, the tenants, each table with the line of idle GPUs."""
    usd = (
        "prefill_usd",
        "decode_usd",
        *(("outside_usd",) if any(row["outside_usd"] for row in rows) else ()),
    )
    shown = ("name", "tenant", "requests", "gpu_time_fraction", *usd, cost, "with_idle_usd",
             "usd_per_thousand_requests", "usd_per_user", "usd_per_thousand_conversations")  # fmt: skip
    kept = tuple(column for column in shown if column == cost or any(row[column] is not None for row in rows))

    def with_idle(lines: Sequence[dict[str, Any]], key: str) -> list[dict[str, Any]]:
        idle = {**dict.fromkeys(lines[0]), key: IDLE, "usd": idle_usd}
        return [{**line, cost: line["usd"]} for line in [*lines, idle]]

    classes = Table(
        with_idle(rows, "name"), title="By class of requests", shown=kept, titles=_TITLES, spare=_SPARE
    )
    if len(grouped) == len(rows):
        return (classes,)
    by = ("tenant", "requests", "gpu_time_fraction", *usd, cost, "with_idle_usd")
    return classes, Table(
        with_idle(grouped, "tenant"), title="By tenant", shown=by, titles=_TITLES, spare=_SPARE
    )


def _class_row(share: Share) -> dict[str, Any]:
    use = share.use
    return {
        "name": use.name,
        "tenant": use.tenant,
        "requests": use.requests,
        "input_tokens": use.input_tokens,
        "output_tokens": use.output_tokens,
        "gpu_time_fraction": share.fraction,
        "prefill_usd": share.prefill_usd,
        "decode_usd": share.decode_usd,
        "outside_usd": share.use.outside_usd,
        "usd": share.usd,
        "idle_usd": share.idle_usd,
        "with_idle_usd": share.with_idle_usd,
        "usd_per_request": share.usd_per_request,
        "usd_per_thousand_requests": 1000.0 * share.usd_per_request,
        "usd_per_user": share.usd_per_user,
        "usd_per_thousand_conversations": share.usd_per_thousand_conversations,
    }
