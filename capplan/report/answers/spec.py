"""What `capplan spec` shows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from capplan.assumption import Assumption
from capplan.replica.spec import ReplicaSpec
from capplan.replica.speculation import DraftModel, Speculation
from capplan.report.answer import Answer, Table

_INDEPENDENT = Assumption(
    "every draft token is accepted with the same probability, whatever its position and the other tokens",
    "--acceptance as measured by the engine",
)
MOST_ROUNDS = 16
"""Rounds shown one by one; more are shown only by their speedup."""

_SHOWN = (
    "batch", "draft_tokens", "expected_tokens_per_round", "draft_s", "verify_s", "round_s", "target_step_s",
    "speedup", "fits",
)  # fmt: skip
_TITLES = {
    "draft_tokens": "drafts",
    "fits": "fits in memory",
}


def spec_answer(
    speculated: Speculation,
    target: ReplicaSpec | float,
    draft: DraftModel | float,
    assumptions: Sequence[Assumption],
    warnings: Sequence[str],
) -> Answer:
    """Return rounds by batch and draft length, the best of each batch, and the memory of both models."""
    rows = [asdict(row) for row in speculated.rows]
    best = [asdict(row) for row in speculated.best]
    shown = tuple(name for name in _SHOWN if name != "fits" or speculated.memory is not None)
    memory = _memory_rows(speculated)
    tables = []
    if len(best) > 1 and len(rows) > len(best):
        tables.append(Table(best, title="Best draft length at every batch size", shown=shown, titles=_TITLES))
    if len(rows) > MOST_ROUNDS:
        tables.append(_speedups(rows))
    else:
        tables.append(Table(rows, title="Rounds", shown=shown, titles=_TITLES))
    if memory:
        tables.append(Table([memory], title="Memory of one GPU", upright=True, titles=_MEMORY_TITLES))
    result: dict[str, Any] = {
        "target": _name(target),
        "draft": _name(draft),
        "label": speculated.label,
        "rows": rows,
        "best_draft_tokens": speculated.best_draft_tokens,
        "best": best,
        "breakeven_batch": speculated.breakeven_batch,
        "largest_batch": speculated.largest_batch,
        "memory": memory,
    }
    return Answer(
        command="spec",
        result=result,
        tables=tuple(tables),
        csv_rows=rows,
        headline=_headline(speculated, target, draft),
        closing=(_closing(speculated, stated=isinstance(target, float)),),
        assumptions=(_INDEPENDENT, *assumptions, *speculated.assumptions),
        warnings=tuple(warnings),
    )


def _speedups(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return one line per batch with the speedup of every draft length; CSV and JSON have every round."""
    lines: dict[int, dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(row["batch"], {"batch": row["batch"]})
        line[f"drafts {row['draft_tokens']}"] = row["speedup"]
    return Table(list(lines.values()), title="Speedup by batch size and draft tokens")


def _name(part: ReplicaSpec | DraftModel | float) -> str | None:
    if isinstance(part, float):
        return None
    return part.spec.network.name if isinstance(part, DraftModel) else part.network.name


def _headline(speculated: Speculation, target: ReplicaSpec | float, draft: DraftModel | float) -> str:
    first = speculated.best[0]
    what = f"{_name(draft) or 'a draft of given step time'} drafting for {_name(target) or 'a target of given step time'}"
    place = "" if isinstance(target, float) else f" on {target.devices} x {target.device.name}"
    at = "" if isinstance(target, float) else f" at batch {first.batch}"
    return (
        f"{what}{place}: {first.speedup:.3g}x{at} with {first.draft_tokens} draft "
        f"{'token' if first.draft_tokens == 1 else 'tokens'} per round"
    )


def _closing(speculated: Speculation, *, stated: bool) -> str:
    batch, most = speculated.breakeven_batch, speculated.largest_batch
    if stated:
        return (
            "speculation does not pay off"
            if batch is not None
            else "speculation pays off at any batch size, because the step times given do not depend on it"
        )
    if batch is None:
        return f"speculation pays off at every batch size that fits, up to {most}"
    if batch > most:
        return (
            f"speculation pays off at every batch size that fits, up to {most}; from {batch} on it would not"
        )
    return f"from batch size {batch} on, speculation does not pay off"


_MEMORY_TITLES = {
    "kv_bytes_available_per_gpu": "available for the caches of target and draft",
    "context_tokens": "context of a sequence",
    "max_concurrency": "concurrent sequences with the draft",
}


def _memory_rows(speculated: Speculation) -> dict[str, Any] | None:
    both = speculated.memory
    if both is None:
        return None
    return {
        "target_weight_bytes_per_gpu": both.target_weight_bytes,
        "draft_weight_bytes_per_gpu": both.draft_weight_bytes,
        "kv_bytes_available_alone_per_gpu": both.kv_bytes_alone,
        "kv_bytes_available_per_gpu": both.kv_bytes_left,
        "target_kv_bytes_per_sequence_per_gpu": both.target_bytes_per_sequence,
        "draft_kv_bytes_per_sequence_per_gpu": both.draft_bytes_per_sequence,
        "context_tokens": both.context_tokens,
        "max_concurrency_alone": both.max_sequences_alone,
        "max_concurrency": both.max_sequences,
    }
