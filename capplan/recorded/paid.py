"""What was paid: charges of machines and of what ran on them, in exports of FOCUS, of AWS (cost and usage report) and of OpenCost."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from typing import Any

from capplan.errors import InputError
from capplan.readers.catalogue.hardware import sku_of
from capplan.readers.text_file import csv_rows, read_json, read_text

IDLE = "__idle__"
"""Name under which OpenCost and bills of ours have GPUs that wait."""
_MAX_BYTES = 2_000_000_000
_MOST = 1e15
"""Amounts of dollars and hours are below this."""
_HOURS = {"hour", "hours", "hrs", "h"}
_CUR_COST = {
    "DiscountedUsage": "reservation_effective_cost",
    "SavingsPlanCoveredUsage": "savings_plan_savings_plan_effective_cost",
}
"""Kind of a line -> the column that has what is used up of a commitment."""


@dataclass(frozen=True, slots=True)
class PaidCharge:
    """A charge of an export, as it is used up."""

    start: datetime
    end: datetime
    machine: str
    """Name of the machine; empty: not stated."""
    name: str
    """Class, namespace or deployment that it is of; empty: not stated."""
    gpu_hours: float
    usd: float
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PaidFile:
    """The charges of GPUs in an export, and what is left out of it."""

    charges: tuple[PaidCharge, ...]
    left_out_rows: int
    """Rows that are of no GPU."""
    left_out_usd: float


def read_paid(path: Path, usd_each: Mapping[str, float]) -> PaidFile:
    """Return what an export says was paid for GPUs.

    Parameters
    ----------
    path : CSV in the columns of FOCUS or of a cost and usage report, or JSON of OpenCost's allocations
    usd_each : currency -> dollars of one unit of it

    Raises
    ------
    InputError
        it is none of these, is in another currency, or has no charge of a GPU
    """
    name = str(path)
    if path.suffix.lower() == ".json":
        rows: Iterator[PaidCharge | float] = _opencost(
            read_json(path, kind="OpenCost's allocations", max_bytes=_MAX_BYTES), name
        )
    else:
        table = csv_rows(read_text(path, kind="an export of costs", max_bytes=_MAX_BYTES), name)
        plain = [{_plain(column): (cell or "").strip() for column, cell in row.items()} for row in table]
        columns = set(plain[0]) if plain else set()
        reader = next((read for key, read in _TABLES.items() if key in columns), None)
        if reader is None:
            raise InputError(
                f"{name}: is no export of FOCUS (ChargePeriodStart), of AWS's cost and usage report (line_item_usage_start_date) or of OpenCost (JSON)"
            )
        rows = (reader(row, f"{name}: line {number}", usd_each) for number, row in enumerate(plain, start=2))
    charges: list[PaidCharge] = []
    rest: list[float] = []
    try:
        for row in rows:
            if isinstance(row, PaidCharge):
                charges.append(row)
            else:
                rest.append(row)
    except (AttributeError, LookupError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"{name}: is not in the form of an export of costs: {error!r:.80}") from None
    if not charges:
        raise InputError(
            f"{name}: has no charge of a GPU machine; capplan list machines has those that are known"
        )
    return PaidFile(tuple(charges), sum(map(bool, rest)), sum(rest))


def _plain(column: str) -> str:
    """Return the name of a column of a cost and usage report in the words of its second version: lineItem/UsageAmount is line_item_usage_amount."""
    if "/" not in column:
        return column
    return "".join(
        f"_{letter.lower()}" if letter.isupper() else letter for letter in re.sub("[/:]", "_", column)
    ).replace("__", "_")


def _number(text: object, place: str) -> float:
    try:
        value = float(str(text or 0.0))
    except ValueError:
        value = nan
    if not abs(value) < _MOST:
        raise InputError(f"{place}: {str(text)[:40]!r} is not a number, or out of range")
    return value


def _period(start: str, end: str, place: str) -> tuple[datetime, datetime]:
    """Return the time of a charge; without a zone it is UTC."""

    def moment(text: str) -> datetime:
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            raise InputError(f"{place}: {text[:40]!r} is not a time such as 2026-12-01T00:00:00Z") from None
        return found if found.tzinfo else found.replace(tzinfo=UTC)

    return moment(start), moment(end)


def _object(text: str) -> Mapping[str, Any]:
    """Return the pairs of a cell in JSON; none for an empty cell."""
    value = json.loads(text) if text else {}
    return value if isinstance(value, Mapping) else {}


def _gpus(machine: str) -> int:
    """Return the GPUs of a machine, or of one GPU by its own name; 0 for what the catalogue does not have."""
    from capplan.readers.catalogue.hardware import catalogue_name

    if (known := sku_of(machine)) is not None:
        return known.record.gpus
    return 1 if catalogue_name(machine.lower()) else 0


def _focus(row: Mapping[str, str], place: str, usd_each: Mapping[str, float]) -> PaidCharge | float:
    """Return a row of FOCUS: by the machine that it names, or by what a bill shares it with; what is no usage is left out."""
    currency = row.get("BillingCurrency") or "USD"
    if currency not in usd_each:
        raise InputError(
            f"{place}: is in {currency}; give the scenario that currency: currency: {{name: {currency}, usd: 1.16}}"
        )
    usd = _number(row.get("EffectiveCost", ""), f"{place}: EffectiveCost") * usd_each[currency]
    details = _object(row.get("SkuPriceDetails", ""))
    named = [
        row.get(key, "")
        for key in (
            "x_InstanceType",
            "x_SkuInstanceType",
            "SkuId",
            "ResourceId",
            "ResourceName",
            "x_Hardware",
        )
    ]
    machine = next(
        (name for name in (str(details.get("InstanceType", "")), *named) if name and _gpus(name)), ""
    )
    if row.get("ChargeCategory") != "Usage" or not machine:
        return usd if row.get("ChargeCategory") == "Usage" else 0.0
    tags = {key: str(value) for key, value in _object(row.get("Tags", "")).items()}
    of_class = row["ResourceName"] if row.get("ResourceType") == "LLM traffic class" else ""
    name = (
        IDLE
        if row.get("SubAccountId") == IDLE
        else row.get("AllocatedResourceName") or of_class or tags.get("class", "")
    )
    hours = _number(row.get("PricingQuantity", ""), f"{place}: PricingQuantity") * _gpus(machine)
    if row.get("PricingUnit", "").lower() not in _HOURS:
        split = _object(row.get("AllocatedMethodDetails", "")).get("Elements", [])
        if not split and "x_GpuTimeShare" not in row:
            return usd
        if not split:
            raise InputError(
                f"{place}: is of tokens and states no hours; export the bill with --by machine or --focus-version 1.3"
            )
        hours = sum(_number(each.get("UsageQuantity"), f"{place}: UsageQuantity") for each in split)
    elif name == IDLE or row.get("AllocatedMethodId"):
        hours /= _gpus(machine)
    start, end = _period(row["ChargePeriodStart"], row["ChargePeriodEnd"], f"{place}: charge period")
    return PaidCharge(start, end, machine, name, hours, usd, tags)


def _cur(row: Mapping[str, str], place: str, usd_each: Mapping[str, float]) -> PaidCharge | float:
    """Return a line of a cost and usage report: usage at its price, or at what is used up of the commitment that covers it."""
    currency, kind = row.get("line_item_currency_code") or "USD", row.get("line_item_line_item_type", "")
    if currency not in usd_each:
        raise InputError(
            f"{place}: is in {currency}; give the scenario that currency: currency: {{name: {currency}, usd: 1.16}}"
        )
    column = _CUR_COST.get(kind, "line_item_unblended_cost")
    usd = _number(row.get(column, ""), f"{place}: {column}") * usd_each[currency]
    machine, gpus = row.get("product_instance_type", ""), _gpus(row.get("product_instance_type", ""))
    if kind not in ("Usage", *_CUR_COST) or not gpus:
        return usd if kind == "Usage" else 0.0
    hours = _number(row["line_item_usage_amount"], f"{place}: line_item_usage_amount") * gpus
    user = "resource_tags_user_"
    tags = {
        column.removeprefix(user): cell for column, cell in row.items() if column.startswith(user) and cell
    }
    start, end = _period(
        row["line_item_usage_start_date"], row["line_item_usage_end_date"], f"{place}: time of use"
    )
    return PaidCharge(start, end, machine, tags.get("class", ""), hours, usd, tags)


def _opencost(value: Mapping[str, Any], name: str) -> Iterator[PaidCharge | float]:
    """Yield the allocations of OpenCost: the hours of GPUs and the whole cost of what has a name."""
    for window in value.get("data", ()):
        for key, item in window.items():
            usd, hours = (
                _number(item.get(column), f"{name}: {key}: {column}") for column in ("totalCost", "gpuHours")
            )
            if not hours:
                yield usd
                continue
            labels = item.get("properties", {}).get("labels", {}) or {}
            start, end = _period(item["window"]["start"], item["window"]["end"], f"{name}: {key}: window")
            yield PaidCharge(start, end, "", str(labels.get("class", key)), hours, usd, labels)


_TABLES: Mapping[str, Callable[[Mapping[str, str], str, Mapping[str, float]], PaidCharge | float]] = {
    "ChargePeriodStart": _focus,
    "line_item_usage_start_date": _cur,
}
"""Column by which a table is known -> how a row of it is read."""
