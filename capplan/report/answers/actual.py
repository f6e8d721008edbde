"""What `capplan bill --actual` shows: planned and paid by month, machine and class, and what explains the difference."""

from collections.abc import Sequence
from typing import Any

from capplan.questions.money.actual import Difference, MonthPaid
from capplan.questions.money.who_pays import AskedBill
from capplan.recorded.paid import PaidFile
from capplan.report.answer import Answer, Table, row_of

_TITLES = {
    "hours": "covered (h)",
    "planned_gpu_hours": "planned (GPU h)",
    "gpu_hours": "paid (GPU h)",
    "difference_usd": "more",
    "price_usd": "of the price",
    "hours_usd": "of hours",
    "load_usd": "of load",
    "idle_usd": "of idle GPUs",
}


def _row(month: MonthPaid, key: str, item: Difference) -> dict[str, Any]:
    return {
        "month": f"{month.year}-{month.month:02}",
        key: item.name or "not stated",
        "planned_gpu_hours": item.planned.gpu_hours,
        "gpu_hours": item.paid.gpu_hours,
        "planned_usd": item.planned.usd,
        "paid_usd": item.paid.usd,
        "difference_usd": item.usd,
        **row_of(item, "price_usd hours_usd"),
    }


def _month_row(month: MonthPaid) -> dict[str, Any]:
    rows = [_row(month, "class", item) for item in month.rows]
    summed = {key: sum(row[key] for row in rows) for key in list(rows[0])[2:]}
    return {
        "month": f"{month.year}-{month.month:02}",
        "hours": month.hours,
        **summed,
        **row_of(month, "load_usd idle_usd"),
    }


def actual_answer(months: Sequence[MonthPaid], bill: AskedBill, file: PaidFile, name: str) -> Answer:
    """Return planned and paid costs with what explains their difference."""
    rows = [_month_row(month) for month in months]
    machines = [_row(month, "machine", item) for month in months for item in month.machines]
    classes = [_row(month, "class", item) for month in months for item in month.classes]
    planned, paid = (sum(row[key] for row in rows) for key in ("planned_usd", "paid_usd"))
    price, hours = (sum(row[key] for row in rows) for key in ("price_usd", "hours_usd"))
    left_out = f"left out: {file.left_out_rows} charges that are of no GPU, ${file.left_out_usd:,.0f}"
    shown = tuple(key for key in rows[0] if key not in ("load_usd", "idle_usd") or rows[0][key] is not None)
    return Answer(
        command="bill",
        result={
            "scenario": name,
            "planned_usd": planned,
            "paid_usd": paid,
            "months": rows,
            "machines": machines,
            "classes": classes,
            "left_out": {"rows": file.left_out_rows, "usd": file.left_out_usd},
        },
        tables=tuple(
            Table(
                table,
                title=title,
                titles=_TITLES,
                shown=keys,
                spare=("planned_gpu_hours", "gpu_hours", "hours"),
            )
            for title, table, keys in (
                ("By month", rows, shown),
                ("By machine", machines, tuple(machines[0]) if machines else ()),
                ("By class of requests", classes, tuple(classes[0]) if classes else ()),
            )
            if table
        ),
        headline=f"{name}: paid ${paid:,.0f}, planned ${planned:,.0f}: {price:+,.0f} by the price of a GPU hour, {hours:+,.0f} by hours",
        closing=(
            "planned and paid: machines only, as they are used up (EffectiveCost), in the hours that the export covers",
            "of the price = paid GPU hours x (paid - planned price); of hours = (paid - planned GPU hours) x planned price",
            *((left_out,) if file.left_out_rows else ()),
        ),
        assumptions=bill.assumptions,
        warnings=bill.warnings,
        csv_rows=rows,
    )
