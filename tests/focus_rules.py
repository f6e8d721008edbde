"""A bill against the published rules of the columns of FOCUS, which `tests/rows/focus_columns.yaml` holds."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pytest

from tests.tables import rows

Row = Mapping[str, str]
TYPES: Mapping[str, str] = {
    "decimal": r"-?\d+(\.\d+)?([eE][+-]?\d+)?",
    "price": r"\d+(\.\d+)?([eE][+-]?\d+)?",
    "unit": r"(\d+ )?[A-Z][A-Za-z]*(-[A-Z][a-z]+)?",
    "time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
    "currency": r"[A-Z]{3}",
}


@lru_cache(maxsize=1)
def rules() -> Mapping[str, Any]:
    return rows("focus_columns")


def columns_of(version: str) -> dict[str, Mapping[str, Any]]:
    return {
        name: rule
        for name, rule in rules()["columns"].items()
        if float(rule.get("since", 1.2)) <= float(version)
    }


def holds(condition: Mapping[str, str], row: Row) -> bool:
    """A condition of the rules, for a row."""

    def one(column: str, wanted: str) -> bool:
        cell = row.get(column, "")
        if wanted in ("set", "null"):
            return bool(cell) == (wanted == "set")
        return cell != wanted[1:] if wanted.startswith("!") else cell == wanted

    return all(one(column, wanted) for column, wanted in condition.items())


def faults(row: Row, version: str) -> list[str]:
    """What a row has against the rules."""
    found = []
    for name, rule in columns_of(version).items():
        cell = row.get(name, "")

        def any_of(key: str, rule: Mapping[str, Any] = rule) -> bool:
            return any(holds(condition, row) for condition in rule.get(key, ()))

        if cell and any_of("null_if"):
            found.append(f"{name} is {cell}, and has to be null")
        if not cell and any_of("set_if"):
            found.append(f"{name} is null")
        if cell and rule["type"] == "json":
            assert isinstance(json.loads(cell), dict), name
        if cell and not re.fullmatch(TYPES.get(rule["type"], r"(?s).+"), cell):
            found.append(f"{name} of {cell!r} is no {rule['type']}")
        if cell and "values" in rule and cell not in rule["values"]:
            found.append(f"{name} of {cell!r} is none of its values")
        if cell and any_of("zero_if") and float(cell) != 0.0:
            found.append(f"{name} is {cell}, and has to be 0")
    found += [f"is {condition}" for condition in rules()["never"] if holds(condition, row)]
    for price, quantity, cost in rules()["products"]:
        if float(row[price]) * float(row[quantity]) != pytest.approx(float(row[cost])):
            found.append(f"{price} x {quantity} is not {cost}")
    return found


def follows_columns(rows: Sequence[Row], version: str) -> None:
    """Every column that has to be there is there, no other but our own, and no cell is against its rules."""
    known = columns_of(version)
    assert {name for name, rule in known.items() if rule["level"] == "mandatory"} <= rows[0].keys()
    assert all(column.startswith("x_") or column in known for column in rows[0])
    found = [(row["ChargeDescription"], fault) for row in rows for fault in faults(row, version)]
    assert not found
    for row in rows:
        assert (
            row["BillingPeriodStart"]
            <= row["ChargePeriodStart"]
            < row["ChargePeriodEnd"]
            <= row["BillingPeriodEnd"]
        )
    prices: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        prices.setdefault(row["SkuPriceId"], set()).add((row["SkuId"], f"{float(row['ListUnitPrice']):.9g}"))
    assert all(len(each) == 1 for each in prices.values())


def total(rows: Sequence[Row], column: str, where: Callable[[Row], bool] = lambda _: True) -> float:
    return sum(float(row[column]) for row in rows if where(row) and row[column])
