"""Scores of kernel predictions against timings, by the groups that the targets name."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

GROUPS = {
    "gemm": "matmul", "attention_context": "prefill attention", "attention_decode": "decode attention",
    "context_attention": "prefill attention", "generation_attention": "decode attention", "moe": "experts",
    "mla": "MLA", "mla_bmm": "MLA", "linear_attention": "linear attention", "quantize": "quantise",
}  # fmt: skip


Unseen = dict[tuple[str, str], list[float]]
"""Table and group -> errors of fits with the shape family held out."""


def group_of(row: Mapping[str, Any]) -> str:
    """Return the group that a row is scored in."""
    family, dtype = str(row["family"]), str(row["dtype"])
    if family == "comm":
        if str(row.get("op_name")) == "moe_a2a":
            return "expert exchange"
        size = float(row["message_bytes"])
        return "collectives >= 64 KiB" if size >= 65536 else "collectives < 64 KiB"
    group = GROUPS[family]
    return f"{group} {dtype}" if group == "matmul" else group


def score_lines(
    rows: Sequence[Mapping[str, Any]], predicted: Sequence[float | None]
) -> list[tuple[str, str, int, int, float, float]]:
    """Return (table, group, rows, refused, median error, mean error) in the order of the tables.

    Parameters
    ----------
    rows : with `table` and `latency_us`
    predicted : in the same order, None where refused

    Returns
    -------
    one line per table and group
    """
    errors: dict[tuple[str, str], list[float]] = {}
    refused: dict[tuple[str, str], int] = {}
    for row, value in zip(rows, predicted, strict=True):
        key = (str(row["table"]), group_of(row))
        errors.setdefault(key, [])
        if value is None:
            refused[key] = refused.get(key, 0) + 1
        else:
            errors[key].append(abs(value / float(row["latency_us"]) - 1.0))
    lines = []
    for key, own in sorted(errors.items()):
        median, mean = (float(np.median(own)), float(np.mean(own))) if own else (float("nan"), float("nan"))
        lines.append((*key, len(own), refused.get(key, 0), median, mean))
    return lines


def score_table(rows: Sequence[Mapping[str, Any]], predicted: Sequence[float | None], unseen: Unseen) -> str:
    """Return the scores as text.

    Parameters
    ----------
    rows : with `table` and `latency_us`
    predicted : in the same order, None where refused
    unseen : errors on held-out families, empty where none were made

    Returns
    -------
    a table
    """
    text = f"{'table':18} {'group':26} {'rows':>6} {'refused':>8} {'median':>8} {'mean':>8} {'held-out median':>16} {'mean':>8}\n"
    for table, group, count, gone, median, mean in score_lines(rows, predicted):
        text += f"{table:18} {group:26} {count:6} {gone:8} {median:8.1%} {mean:8.1%}"
        own = unseen.get((table, group))
        text += f" {np.median(own):16.1%} {np.mean(own):8.1%}\n" if own else "\n"
    return text
