"""What `capplan check` shows: every check of a plan, and whether the plan meets it."""

from typing import Any

from capplan.questions.fleet import AskedFleet
from capplan.questions.plans.plan_check import Check, PlanCheck
from capplan.readers.catalogue.scenarios import scenario_word
from capplan.readers.plan_file import PlanFile
from capplan.report.answer import Answer, Table
from capplan.report.screen_units import is_number, screen_of, shown_money, shown_number

_UNITS = {"slo.confidence": "confidence_fraction", "budget.usd_per_month": "usd_per_month"}
"""Check -> the name that says its unit; latencies are in seconds, the others are counts and words."""


def check_answer(asked: AskedFleet, file: PlanFile, checked: PlanCheck) -> Answer:
    """Return whether a plan meets its checks; exit code 4 if it does not."""
    failures, chosen = checked.failures, file.answer.chosen
    plan = f"{chosen.gpus} x {chosen.hardware}"
    missed = ", ".join(_missed(check) for check in failures)
    name = asked.scenario.name
    return Answer(
        command="check",
        result={
            "holds": not failures,
            "failures": [_failure(check) for check in failures],
            "checks": [{**_failure(check), "holds": check.holds} for check in checked.checks],
            "scenario": name,
            "plan": str(file.path),
        },
        tables=(
            Table(
                [_row(check) for check in checked.checks],
                title=f"Checks of the plan of {plan}",
                titles={"holds": "met"},
            ),
        ),
        csv_rows=[{**_failure(check), "holds": check.holds} for check in checked.checks],
        headline=f"{name}: the plan of {plan} no longer meets {missed}"
        if failures
        else f"{name}: the plan of {plan} meets every check",
        closing=(f"search again: capplan fleet {scenario_word(asked.scenario.path)} -o {file.path}",)
        if failures
        else (),
        assumptions=asked.assumptions,
        warnings=(*file.data_remarks, *asked.warnings),
        exit_code=4 if failures else 0,
    )


def _failure(check: Check) -> dict[str, Any]:
    return {"what": check.name, "limit": check.limit, "value": check.value}


def _row(check: Check) -> dict[str, Any]:
    limit, value, unit = _shown(check)
    return {"what": check.name, "limit": limit, "value": value, "unit": unit, "holds": check.holds}


def _missed(check: Check) -> str:
    limit, value, unit = _shown(check)
    if check.name == "capacity":
        return f"capacity ({value} replicas needed, {limit} at work)"
    return (
        check.name if limit == "-" else f"{check.name} ({value}, limit {limit}{f' {unit}' if unit else ''})"
    )


def _shown(check: Check) -> tuple[str, str, str]:
    """Return limit, value and their unit as on screen."""
    latency = check.name.startswith("slo.") and check.name not in _UNITS
    screen = screen_of("s" if latency else _UNITS.get(check.name, "count"), [check.limit, check.value])
    unit = "replicas" if check.name == "capacity" else screen.unit

    def text(value: Any) -> str:
        if not is_number(value):
            return (
                "-"
                if value is None
                else ", ".join(map(str, value))
                if isinstance(value, list)
                else str(value)
            )
        return shown_money(value, unit) if unit.startswith("$") else shown_number(value, screen.factor)

    return text(check.limit), text(check.value), unit
