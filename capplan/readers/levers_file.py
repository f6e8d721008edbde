"""The answer of `capplan levers` in a file, as `capplan levers -o levers.json` writes it."""

from pathlib import Path
from typing import Any

from capplan.errors import InputError
from capplan.readers.plan_record import Amount, AnswerRow, Count, Probability
from capplan.readers.record import validated
from capplan.readers.text_file import read_json
from capplan.readers.yaml_file import Document

AGAIN = "write it with: capplan levers --plan plan.json -o levers.json"


class PricedRow(AnswerRow):
    """What a page says of a plan."""

    hardware: str
    gpus: Count
    usd_per_month: Amount | None


class BaseRow(PricedRow):
    """The plan as it is, with what tells it from other plans."""

    replicas: Count
    weight_dtype: str
    kv_dtype: str
    slo_met_probability: Probability


class LeverRow(AnswerRow):
    """One lever by itself."""

    lever: str
    change: str
    applicable: bool
    reason: str | None
    gpus: Count | None
    usd_per_month: Amount | None
    usd_per_month_saved: float | None
    ttft_p95_s: Amount | None
    tpot_p95_s: Amount | None
    confidence: Probability | None
    risk: str | None


class LeversRow(AnswerRow):
    """What every lever is worth, separately and combined."""

    scenario: str
    base: BaseRow | None
    levers: list[LeverRow]
    best: PricedRow | None
    base_usd_per_month: Amount | None
    """Cost of the plan as it is, with the host memory of its offload tiers."""
    best_usd_per_month: Amount | None
    best_levers: list[str]
    combinations: Count


class _File(AnswerRow):
    result: LeversRow


def read_levers_file(path: Path) -> dict[str, Any]:
    """Return the result of a saved answer; InputError where the file is none, or a figure in it is not one."""
    envelope = read_json(path, kind="the levers of a plan, as capplan levers -o levers.json writes them")
    if envelope.get("command") != "levers" or not isinstance(envelope.get("result"), dict):
        raise InputError(f"{path}: is not an answer of capplan levers\n  {AGAIN}")
    validated(_File, Document(str(path), {"result": envelope["result"]}, {}))
    return dict(envelope["result"])
