"""What `capplan levers` shows: the plan as it is, the best combination, and every lever separately."""

from collections.abc import Callable, Iterator, Sequence
from shlex import join
from typing import Any

from capplan.assumption import Assumption
from capplan.fleet.plan import Plan
from capplan.questions.levers.answer import Asking
from capplan.questions.levers.changes import REGIONS, kg_co2_per_month
from capplan.questions.levers.lever import (
    Base,
    Combination,
    LeverRow,
    LeversAnswer,
    most_saved_first,
    price_doubt,
    worth_usd_per_byte_month,
)
from capplan.questions.plans.plan_row import plan_row
from capplan.readers.catalogue.scenarios import scenario_word
from capplan.report.answer import Answer, Table, columns, row_of
from capplan.report.answers.fleet import assumed_kernels
from capplan.report.answers.fleet_words import (
    above,
    cost_texts,
    layout_text,
    pool_text,
    purchase_text,
    sure,
    thin_texts,
)
from capplan.report.show import RowProgress

_SHOWN = columns(
    "lever change hardware plan gpus usd_per_month usd_per_month_saved ttft_p95_s tpot_p95_s "
    "confidence_fraction kept"
)
_SPARE = ("ttft_p95_s", "tpot_p95_s", "plan", "hardware", "confidence_fraction")
"""Columns that a narrow terminal does without, the first one first."""
_TITLES = {"confidence_fraction": "chance to meet the SLO", "kept": "meets its SLO targets"}
_COMBINED = Assumption(
    "the best combination takes levers that save separately, keep targets and traffic, and need no capital or interruptible machines",
    "--lever",
)
_ALONE = Assumption("every lever is sized by the same search as the plan as it is", "capplan fleet --set")


def levers_answer(asking: Asking, base: Base, answer: LeversAnswer) -> Answer:
    """Return the plan as it is, every lever separately, and the best combination; exit code 4 where nothing meets the targets."""
    rows = [_row(row) for row in answer.rows]
    both = [plan for plan in (answer.base, answer.best.plan if answer.best else None) if plan is not None]
    plans = [row.plan for row in answer.rows if row.plan is not None]
    best = answer.best
    return Answer(
        command="levers",
        result={
            "scenario": base.asked.scenario.name,
            "base": plan_row(answer.base) if answer.base else None,
            "levers": rows,
            "best": plan_row(best.plan) if best else None,
            "base_usd_per_month": _usd_per_month(answer.base, answer.memory_usd_per_month),
            "best_usd_per_month": _usd_per_month(best.plan, best.memory_usd_per_month) if best else None,
            "best_levers": [lever.change for lever in best.levers] if best else [],
            "best_settings": list(best.settings) if best else [],
            "combinations": best.tried if best else 0,
            "interrupted": answer.interrupted,
        },
        tables=tuple(_tables(base, answer)),
        csv_rows=rows,
        headline=_headline(base, answer),
        closing=(*_closing(asking, answer), *thin_texts([*both, *plans])),
        assumptions=(_ALONE, _COMBINED, *base.asked.assumptions, *_kernels(base, answer)),
        warnings=base.asked.warnings,
        exit_code=130 if answer.interrupted else 0 if both else 4,
    )


def _tables(base: Base, answer: LeversAnswer) -> Iterator[Table]:
    """Yield both plans, the levers that were sized, and why others were not; some tables have no rows."""
    tried = [_line(row) for row in answer.rows if row.plan is not None]
    yield _plans_table([*_compared(answer)], "As it is, and at best", ("choice", *_SHOWN[2:-1]))
    yield _plans_table(tried, "Each lever separately, most saved first", _SHOWN)
    yield _memory_table(tried)
    dearer = [
        {"lever": row.lever.name, "change": row.lever.change, "why": row.dearer}
        for row in answer.rows
        if row.dearer
    ]
    yield Table(dearer, title="Why a change takes more GPUs", shown=("lever", "change", "why"))
    yield _places_table(base, answer)
    risks = [
        {"lever": row.lever.name, **row_of(row.lever, "change risk")}
        for row in answer.rows
        if row.plan is not None and row.lever.risk
    ]
    yield Table(risks, title="Risks", shown=("lever", "change", "risk"))
    left = [row for row in answer.rows if row.plan is None]
    for title, rows in (
        ("No plan meets the targets", [row for row in left if row.meets_targets is False]),
        ("Saves nothing", [row for row in left if row.applicable and row.meets_targets is None]),
        ("Not tried", [row for row in left if not row.applicable and row.lever.slow]),
        ("Not applicable", [row for row in left if not row.applicable and not row.lever.slow]),
    ):
        yield Table([_line(row) for row in rows], title=title, shown=("lever", "change", "reason"))


def _plans_table(rows: Sequence[dict[str, Any]], title: str, shown: tuple[str, ...]) -> Table:
    """Return a table of plans, which leaves out columns on a narrow terminal."""
    return Table(rows, title=title, shown=shown, titles=_TITLES, spare=_SPARE)


def lever_found(progress: RowProgress, base: Base) -> Callable[[LeverRow], None]:
    """Return what tells each lever as it is found, and the one that saves most by then."""
    rows: list[LeverRow] = []

    def tell(row: LeverRow) -> None:
        rows.append(row)
        words = _most_saved_text(most_saved_first(rows), base.plan)
        progress.found(words, levers=[_row(row)])

    return tell


def _figures(plan: Plan | None, usd: float | None, saved_usd: float | None) -> dict[str, Any]:
    """Return what is compared of a plan, or nothing of each without one."""
    return {
        "hardware": plan and plan.hardware,
        "plan": plan and _layouts(plan),
        "gpus": plan and plan.gpus,
        "usd_per_month": usd,
        "usd_per_month_saved": saved_usd,
        "ttft_p95_s": plan and plan.ttft_s.p95,
        "tpot_p95_s": plan and plan.tpot_s.p95,
    }


def _row(row: LeverRow) -> dict[str, Any]:
    """Return a lever with the keys of the interface."""
    plan = row.plan
    return {
        "lever": row.lever.name,
        "change": row.lever.change,
        "applicable": row.applicable,
        "reason": row.reason or None,
        "meets_targets": row.meets_targets,
        **_figures(plan, _usd_per_month(plan, row.memory_usd_per_month), row.usd_per_month_saved),
        "confidence": plan.slo_met_probability if plan else None,
        "risk": row.lever.risk or None,
        "dearer": row.dearer or None,
        "kg_co2_per_month": row.kg_co2_per_month,
        "host_memory_bytes": (plan and row.lever.host_bytes * plan.prefilling_replicas) or None,
        "host_memory_bytes_per_replica": row.lever.host_bytes or None,
        "host_memory_usd_per_month": row.memory_usd_per_month or None,
        "host_memory_worth_usd_per_gb_month": _worth_usd_per_gb_month(row),
        "settings": list(row.lever.settings),
    }


def _worth_usd_per_gb_month(row: LeverRow) -> float | None:
    """Return what that memory may cost, per gigabyte and month; None where it is not known."""
    if row.plan is None or not row.lever.host_bytes or row.usd_per_month_saved is None:
        return None
    saved = row.usd_per_month_saved + row.memory_usd_per_month
    return 1e9 * worth_usd_per_byte_month(saved, row.lever.host_bytes, row.plan.replicas)


def _usd_per_month(plan: Plan | None, memory: float) -> float | None:
    """Return what a plan costs with the host memory of its offload tiers, where that has a price."""
    return None if plan is None or plan.usd_per_month is None else plan.usd_per_month + memory


def _memory_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the host memory that offloading takes, and whether it pays or what it may cost to pay."""
    bought = [{**row, "pays": _pays(row)} for row in rows if row["host_memory_bytes"]]
    shown: tuple[str, ...] = ("lever", "change", "host_memory_bytes", "usd_per_month_saved", "pays")
    if any(row["host_memory_usd_per_month"] for row in bought):
        shown = (*shown[:3], "host_memory_usd_per_month", *shown[3:])
    return Table(bought, title="Host memory to buy, and whether it pays", shown=shown, titles=_TITLES)


def _pays(row: dict[str, Any]) -> str:
    """Return whether host memory pays: at its price, or below which one."""
    worth = row["host_memory_worth_usd_per_gb_month"] or 0.0
    below = f"below ${worth:.3g} per GB and month" if worth > 0.0 else "nothing saved"
    if row["host_memory_usd_per_month"] is None:
        return below
    return f"{'yes' if row['usd_per_month_saved'] > 0.0 else 'no'}: {below}"


def _layouts(plan: Plan) -> str:
    """Return parallelism and dtypes of a replica, or of one of either pool."""
    if not plan.has_pools:
        return layout_text(plan, kv=True)
    return ", ".join(f"{group.role} on {pool_text(group)}" for group in plan.groups)


def _line(row: LeverRow) -> dict[str, Any]:
    """Return a lever as people see it."""
    line = _row(row)
    return {**line, "confidence_fraction": line["confidence"], "kept": row.reason or "yes"}


def _compared(answer: LeversAnswer) -> Iterator[dict[str, Any]]:
    """Yield the plan as it is and the best one."""
    plans = {"as it is": (answer.base, answer.memory_usd_per_month)}
    if answer.best is not None and answer.best.levers:
        plans["best combination"] = (answer.best.plan, answer.best.memory_usd_per_month)
    before = _usd_per_month(answer.base, answer.memory_usd_per_month)
    for name, (plan, memory) in plans.items():
        if plan is not None:
            usd = _usd_per_month(plan, memory)
            row = {"choice": name, **_figures(plan, usd, above(before, usd))}
            yield row | {"confidence_fraction": plan.slo_met_probability}


def _places_table(base: Base, answer: LeversAnswer) -> Table:
    """Return what one fleet costs in each region, and a fleet in each; with the carbon dioxide of its electricity if it is known."""
    rows = [_row(row) for row in answer.rows if row.lever.name == REGIONS and row.plan is not None]
    if rows and answer.base is not None:
        now = {
            "change": "as it is",
            "gpus": answer.base.gpus,
            "usd_per_month": _usd_per_month(answer.base, answer.memory_usd_per_month),
            "kg_co2_per_month": kg_co2_per_month(base.asked, answer.base),
        }
        rows = [now, *rows]
    shown: tuple[str, ...] = ("change", "gpus", "usd_per_month", "kg_co2_per_month")
    if all(row["kg_co2_per_month"] is None for row in rows):
        shown = shown[:-1]
    return Table(rows, title="Where machines are", shown=shown, titles=_TITLES)


def _kernels(base: Base, answer: LeversAnswer) -> tuple[Assumption, ...]:
    """Return the borrowed kernels of the plan as it is and of the best one, and the price of the latter."""
    stated = assumed_kernels([answer.base], base.asked.question) if answer.base else ()
    best = answer.best
    if best is not None and best.question is not None:
        stated += tuple(group.quote.assumption for group in best.plan.groups if group.quote)
        stated += assumed_kernels([best.plan], best.question)
    return tuple(item for item in dict.fromkeys(stated) if item not in base.asked.assumptions)


def _headline(base: Base, answer: LeversAnswer) -> str:
    name = base.asked.scenario.name
    now = _plan_text(answer.base, answer.memory_usd_per_month) if answer.base else base.missing
    as_it_is, best = f"as it is {now}", answer.best
    if answer.interrupted:
        return f"{name}: {as_it_is}; interrupted{_separately(answer)}"
    if best is None:
        return f"{name}: {as_it_is}; no lever changes that"
    if not best.levers:
        return f"{name}: {as_it_is}; no combination of levers that keep targets and traffic costs less{_separately(answer)}"
    changes = ", ".join(lever.change for lever in best.levers)
    return f"{name}: {as_it_is}; at best {_plan_text(best.plan, best.memory_usd_per_month)}{_saving(answer, best)}, with {changes}"


def _separately(answer: LeversAnswer) -> str:
    """Return what saves most by itself, if no combination may take it; empty if nothing saves."""
    saved = _most_saved_text(answer.rows, answer.base)
    return f"; separately, {saved}: see its targets and risk" if saved else ""


def _most_saved_text(rows: Sequence[LeverRow], base: Plan | None) -> str:
    """Return what saves most by itself, of rows with the most saved first; empty if nothing saves."""
    first = next((row for row in rows if row.plan and not price_doubt(row.plan, base)), None)
    if first is None or first.plan is None or not (first.usd_per_month_saved or 0.0) > 0.0:
        return ""
    return f"{first.lever.name} saves ${first.usd_per_month_saved:,.0f} per month ({first.lever.change})"


def _plan_text(plan: Plan, memory: float) -> str:
    paid = f"{cost_texts(plan)[0]}{f' and ${memory:,.0f} for host memory' if memory else ''}"
    return f"{purchase_text(plan)}, {paid}, chance to meet the SLO {sure(plan.slo_met_probability)}"


def _saving(answer: LeversAnswer, best: Combination) -> str:
    before = _usd_per_month(answer.base, answer.memory_usd_per_month)
    after = _usd_per_month(best.plan, best.memory_usd_per_month)
    return "" if before is None or after is None else f" ({1.0 - after / before:.0%} less)"


def _closing(asking: Asking, answer: LeversAnswer) -> Iterator[str]:
    best = answer.best
    if answer.interrupted:
        yield "interrupted: what was found until then is shown; combinations are not chosen"
        return
    if best is None or not best.levers:
        return
    settings = [word for setting in (*asking.settings, *best.settings) for word in ("--set", setting)]
    risks = "; ".join(dict.fromkeys(f"{lever.change}: {lever.risk}" for lever in best.levers if lever.risk))
    again = f"to see that plan: capplan fleet {scenario_word(asking.path)} {join(settings)}"
    yield again
    yield from (f"before you take it: {risks}",) if risks else ()
