"""Tables of docs/evidence/: predictions against targets, by group, and the values with the largest errors."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from calibrate.host_rows import STRANGER
from calibrate.left_out_scores import OPEN_LOOP, OWN_PROCESS, LeftOut
from calibrate.targets import AccuracyTarget
from capplan.accuracy.score import Prediction, Score, scored
from docs.generators.page_tables import Table

SHOWN = {
    "TTFT": ("ttft_ms_mean", "ttft_ms_p50"),
    "TPOT": ("tpot_ms_mean", "tpot_ms_p50"),
    "output tokens/s": ("output_tok_s",),
}
"""Quantity of the group tables -> columns, the first that a row has."""
LEAST_GROUP = 5
"""Groups with fewer values than this are not listed."""
WORST = 25
CARRIERS = ("source", "device", "engine", "class")
CARRYING = 8
"""Groups that the file names for each missed target."""
OFF = 0.2
"""Error of a value that is off."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A target and its score."""

    target: AccuracyTarget
    score: Score
    left_out: float | None
    """Of a stranger's run: with its source and its model left out."""

    @property
    def value(self) -> float | None:
        """Return the statistic that the target limits."""
        value: float | None = getattr(self.score, self.target.statistic)
        return value

    @property
    def met(self) -> bool:
        """Return whether the left-out value meets the target, or the in-sample one where nothing was left out."""
        return self.target.met(self.value if self.left_out is None else self.left_out)


def percent(value: float | None) -> str:
    """Return a share as text.

    Examples
    --------
    >>> percent(0.0123), percent(0.5), percent(None)
    ('1.2 %', '50 %', '-')
    """
    if value is None:
        return "-"
    return f"{100 * value:.1f} %" if abs(value) < 0.0995 else f"{100 * value:.0f} %"


def preferred(predictions: Sequence[Prediction], columns: Sequence[str]) -> list[Prediction]:
    """Return one prediction per row: of the first column that the row has."""
    found: dict[str, Prediction] = {}
    for column in reversed(columns):
        found.update({p.row: p for p in predictions if p.metric == column})
    return list(found.values())


def _in_family(prediction: Prediction, families: Sequence[str]) -> bool:
    own = (prediction.groups or {}).get("family", "")
    return own in families or own.split(" ")[0] in families


def kernel_judgements(predictions: Sequence[Prediction], targets: Sequence[AccuracyTarget]) -> list[Judged]:
    """Return the scores of timed kernels; held-out scores are on the pages of the fits."""
    return [
        Judged(target, scored([p for p in predictions if _in_family(p, target.groups)]), None)
        for target in targets
    ]


def serving_judgements(
    predictions: Sequence[Prediction],
    targets: Sequence[AccuracyTarget],
    ruled: Mapping[tuple[str, str, str, str], LeftOut],
    in_client: Collection[str] = (),
) -> list[Judged]:
    """Return the scores of replayed runs next to those of a stranger's run.

    Parameters
    ----------
    predictions : of the runs
    targets : what each score should reach
    ruled : scores with something left out
    in_client : runs whose client ran the engine in its own process
    """
    out = []
    unseen = {key[1:]: found for key, found in ruled.items() if key[0] == STRANGER}
    for target in targets:
        own = [
            p
            for p in predictions
            if (p.groups or {}).get("load") in target.groups
            and not (target.own_process and p.row in in_client)
        ]
        of = (OPEN_LOOP, OWN_PROCESS) if target.own_process else ("load", target.groups[0])
        beside = _left_out_of(*of, target.columns, unseen)
        value = None
        if beside:
            value = (
                beside.left_out_within_20 if target.statistic == "within_20" else beside.left_out_median_error
            )
        out.append(Judged(target, scored(preferred(own, target.columns)), value))
    return out


def memory_judgements(predictions: Sequence[Prediction], targets: Sequence[AccuracyTarget]) -> list[Judged]:
    """Return the scores of logged starts."""
    return [
        Judged(target, scored([p for p in predictions if p.metric in target.columns]), None)
        for target in targets
    ]


def _left_out_of(
    grouping: str, group: str, columns: Sequence[str], left_out: Mapping[tuple[str, str, str], LeftOut]
) -> LeftOut | None:
    """Return the score of the column with most values: columns are not mixed in that file."""
    found = [left_out[key] for column in columns if (key := (grouping, group, column)) in left_out]
    return max(found, key=lambda entry: entry.values, default=None)


def judged_table(judged: Sequence[Judged], *, left_out: bool) -> Table:
    """Return the targets with their scores."""
    names = {
        "median_ape": "median error",
        "mean_ape": "mean error",
        "p90_ape": "error of nine of ten at most",
        "within_20": "within 20 %",
    }
    headings = ["what", "values", "refused", "statistic", "target", "in sample"]
    headings += ["a stranger's run", "met"] if left_out else ["met"]
    rows = []
    for entry in judged:
        target, score = entry.target, entry.score
        sign = "at least " if target.statistic == "within_20" else ""
        row = [
            target.title,
            f"{score.n:,}",
            f"{score.n - score.predicted:,}",
            names[target.statistic],
            sign + percent(target.limit),
            percent(entry.value),
        ]
        row += [percent(entry.left_out)] if left_out else []
        rows.append([*row, "yes" if entry.met else "**no**"])
    return Table(headings, rows)


def group_table(
    predictions: Sequence[Prediction],
    groupings: Sequence[str],
    left_out: Mapping[tuple[str, str, str], LeftOut],
) -> Table:
    """Return errors of TTFT, TPOT and throughput by group: median in sample, left out, and within 20 %."""
    rows = []
    for grouping in groupings:
        for group in sorted({(p.groups or {}).get(grouping, "") for p in predictions} - {""}):
            cells, counts = [grouping, group], []
            for columns in SHOWN.values():
                own = preferred([p for p in predictions if (p.groups or {}).get(grouping) == group], columns)
                score = scored(own)
                beside = _left_out_of(grouping, group, columns, left_out)
                counts.append(score.n)
                enough = score.n >= LEAST_GROUP
                cells.append(f"{score.n:,}" if score.n else "")
                cells.append(percent(score.median_ape) if enough else "")
                cells.append(percent(beside.left_out_median_error) if beside and enough else "")
                cells.append(percent(score.within_20) if enough else "")
            if max(counts) >= LEAST_GROUP:
                rows.append(cells)
    headings = ["by", "group"]
    for name in SHOWN:
        headings += [f"{name}: values", f"{name}: median error", f"{name}: left out", f"{name}: within 20 %"]
    return Table(headings, rows)


RULED_COLUMNS = {
    "TPOT": ("tpot_ms_mean", "tpot_ms_p50"),
    "TTFT, mean": ("ttft_ms_mean",),
    "TTFT, p50": ("ttft_ms_p50",),
    "output tokens/s": ("output_tok_s",),
}
"""Quantity of the table of rulers -> columns."""


def ruler_table(ruled: Mapping[tuple[str, str, str, str], LeftOut], grouping: str) -> Table:
    """Return the errors by load, class or engine with a group, a whole model, device or source left out of the fit."""
    rulers = list(dict.fromkeys(key[0] for key in ruled))
    rows = []
    for group in sorted({key[2] for key in ruled if key[1] == grouping}):
        for title, columns in RULED_COLUMNS.items():
            cells = []
            count = 0
            for ruler in rulers:
                own = {key[1:]: found for key, found in ruled.items() if key[0] == ruler}
                found = _left_out_of(grouping, group, columns, own)
                enough = found is not None and found.values >= LEAST_RULED
                count = found.values if found and enough else count
                cells.append(
                    f"{percent(found.left_out_median_error)} / {percent(found.left_out_within_20)}"
                    if found and enough
                    else ""
                )
            if count:
                rows.append([group, title, f"{count:,}", *cells])
    return Table([grouping, "what", "values", *(f"{ruler} left out" for ruler in rulers)], rows)


def ruled_table(ruled: Mapping[tuple[str, str, str, str], LeftOut]) -> Table:
    """Return every score with something left out of the fit, of cells with enough values."""
    rows = [
        [
            left_out,
            grouping,
            group,
            column,
            f"{found.values:,}",
            str(found.models or ""),
            *(
                "" if value is None else percent(value)
                for value in (found.left_out_median_error, found.left_out_within_20, found.left_out_bias)
            ),
        ]
        for (left_out, grouping, group, column), found in ruled.items()
        if found.values >= LEAST_RULED
    ]
    errors = ["median error", "within 20 %", "median of predicted over measured, less one"]
    return Table(["left out of the fit", "by", "group", "column", "values", "models", *errors], rows)


LEAST_RULED = 15
"""Cells of the table of rulers with fewer values are not shown."""


ONE_SIDED = 0.1
"""Typical error with its sign from which predictions of a cell count as one-sided."""


def one_sided_table(ruled: Mapping[tuple[str, str, str, str], LeftOut]) -> tuple[str, Table]:
    """Return how many cells (engine, class, device) are predicted to one side with their models left out of the fit, and which, the furthest first."""
    cells, rows = 0, []
    for group in sorted({key[2] for key in ruled if key[:2] == ("model", "cell")}):
        own = {key[1:]: found for key, found in ruled.items() if key[0] == "model"}
        for title, columns in RULED_COLUMNS.items():
            found = _left_out_of("cell", group, columns, own)
            if found is None or found.values < LEAST_RULED or found.left_out_bias is None:
                continue
            cells += 1
            if abs(found.left_out_bias) > ONE_SIDED:
                rows.append(
                    (
                        -abs(found.left_out_bias),
                        [group, title, f"{found.values:,}", f"{100.0 * found.left_out_bias:+.0f} %"],
                    )
                )
    count = f"{len(rows)} of {cells} cells of {LEAST_RULED} values or more are off to one side by over {percent(ONE_SIDED)}."
    head = ["engine, class, device", "what", "values", "predicted over measured, median"]
    return count, Table(head, [cells for _, cells in sorted(rows)])


def _ratio(prediction: Prediction) -> float:
    return float(prediction.predicted or 0.0) / prediction.measured


def _off(ratio: float) -> float:
    return max(ratio, 1.0 / ratio)


def worst_values(predictions: Sequence[Prediction], count: int) -> list[Prediction]:
    """Return the values with the largest errors, one for each group of runs, the largest factor first."""
    known = [p for p in predictions if p.predicted and p.measured > 0]
    out: dict[tuple[str, ...], Prediction] = {}
    for p in sorted(known, key=lambda p: -_off(_ratio(p))):
        groups = p.groups or {}
        out.setdefault(
            (*(groups.get(name, "") for name in ("source", "device", "engine", "load")), p.metric), p
        )
    return list(out.values())[:count]


def reason_of(
    prediction: Prediction, alike: Sequence[Prediction], told: Callable[[Prediction], str | None]
) -> str:
    """Return why a value is far off, judged by the other runs of its source, device, engine and load.

    Parameters
    ----------
    prediction : the value
    alike : predictions of the same column in the same group, itself among them
    told : what is known of such runs, in words
    """
    known = told(prediction)
    middle = median(_ratio(p) for p in alike if p.predicted)
    size = len(alike)
    if size >= LEAST_GROUP and _off(middle) > 1.3 and (middle > 1.0) == (_ratio(prediction) > 1.0):
        found = f"its whole group of {size} is off, by {middle:.2g} in the middle: the setup, not the run"
    elif size >= LEAST_GROUP:
        found = f"by itself: the group of {size} is off by {middle:.2g} in the middle"
    else:
        found = f"one of {size} such runs: no neighbours to tell"
    return f"{known}; {found}" if known else found


def worst_table(predictions: Sequence[Prediction], told: Callable[[Prediction], str | None]) -> Table:
    """Return the worst values with reasons."""
    rows = []
    for p in worst_values(predictions, WORST):
        groups = p.groups or {}
        names = ("source", "device", "engine", "load")
        alike = [
            other
            for other in predictions
            if other.metric == p.metric
            and other.predicted
            and all((other.groups or {}).get(name) == groups.get(name) for name in names)
        ]
        rows.append(
            [
                p.row,
                ", ".join(groups.get(name, "") for name in names[1:]),
                p.metric,
                f"{p.measured:.4g}",
                f"{float(p.predicted or 0):.4g}",
                f"{_ratio(p):.2g}",
                reason_of(p, alike, told),
            ]
        )
    return Table(["row", "device, engine, load", "column", "measured", "predicted", "ratio", "why"], rows)


def carried_table(
    judged: Sequence[Judged], predictions: Sequence[Prediction], told: Callable[[Prediction], str | None]
) -> Table:
    """Return the groups of runs with most of the errors above 20 %, for every missed target of all runs of a load."""
    rows = []
    missing = {
        entry.target.title: entry.target for entry in judged if not (entry.met or entry.target.own_process)
    }
    for target in missing.values():
        own = [p for p in predictions if (p.groups or {}).get("load") in target.groups and p.predicted]
        groups: dict[tuple[str, ...], list[Prediction]] = {}
        for p in preferred(own, target.columns):
            key = tuple((p.groups or {}).get(name, "") for name in CARRIERS)
            groups.setdefault(key, []).append(p)
        missed = {
            key: sum(p.weight for p in alike if abs(_ratio(p) - 1.0) > OFF) for key, alike in groups.items()
        }
        whole = sum(missed.values()) or 1.0
        for key in sorted(missed, key=lambda key: -missed[key])[:CARRYING]:
            alike = groups[key]
            off = sum(abs(_ratio(p) - 1.0) > OFF for p in alike)
            middle = median(_ratio(p) for p in alike)
            rows.append(
                [
                    target.title,
                    ", ".join(key),
                    f"{off} of {len(alike)}",
                    percent(missed[key] / whole),
                    f"{middle:.2f}",
                    told(alike[0]) or "",
                ]
            )
    return Table(["target", "runs", "off by over 20 %", "of all such", "ratio in the middle", "known"], rows)


def refusal_table(predictions: Sequence[Prediction]) -> Table:
    """Return the reasons of refused rows with the rows of each."""
    rows: dict[str, set[str]] = {}
    for p in predictions:
        if p.predicted is None:
            rows.setdefault(p.reason, set()).add(p.row)
    ordered = sorted(rows.items(), key=lambda item: -len(item[1]))
    return Table(["reason", "core rows"], [[reason, str(len(found))] for reason, found in ordered])
