"""Write docs/accuracy.md and its tables in docs/evidence/: `python -m calibrate.accuracy_page FOLDER -o docs/accuracy.md`.

FOLDER holds serving_measured.csv.gz, moe_published.csv, memory_measured.csv, kernels_measured.csv, kernels_more.csv.gz and mig_embedding.csv. Every figure of the
pages is computed by the code of `capplan validate`; left-out scores are those of the last fit.
"""

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from math import log
from pathlib import Path
from typing import TypeAlias

from calibrate.accuracy_tables import (
    carried_table,
    group_table,
    judged_table,
    kernel_judgements,
    memory_judgements,
    one_sided_table,
    percent,
    preferred,
    refusal_table,
    ruled_table,
    ruler_table,
    serving_judgements,
    worst_table,
)
from calibrate.accuracy_text import (
    CERTAINTY,
    CHOICES,
    CHOICES_PICTURE_TEXT,
    CLASS_COVERAGE_TEXT,
    CLASS_GENERATION_TEXT,
    FITTED_NUMBERS,
    METHOD,
    NOBODY_TIMED,
    ONE_SIDED_TEXT,
    OPEN_LOOPS_TEXT,
    PAGE,
    PUBLISHED_TEXT,
    RULERS_TEXT,
    SERVED_UNTIMED,
    SETTLE,
    TITLES,
    WRITTEN,
)
from calibrate.class_tables import class_coverage_table, class_generation_table, parting_table
from calibrate.fit_serving import count_fitted
from calibrate.hidden_devices import sampled, served_table, stand_in_table, stand_ins
from calibrate.interval_fit import UNITS
from calibrate.left_out_scores import (
    LeftOut,
    left_out_choices,
    left_out_coverage,
    left_out_scores,
    ruled_scores,
)
from calibrate.open_loop_causes import cause_table, known_causes
from calibrate.open_loops import (
    beyond_table,
    causes_told,
    open_loops,
    own_process_table,
    runs_in_client,
    set_table,
    target_table,
    wrong_table,
)
from calibrate.published_tables import published_section
from calibrate.reliability import certainty_section
from calibrate.slices import slices_section
from calibrate.targets import COVERAGE, KERNELS, MEMORY, MORE_KERNELS, SERVING
from capplan.accuracy.bounded import LEAST_GROUPS, LEVELS, Intervals
from capplan.accuracy.memory import disagreeing_starts
from capplan.accuracy.score import PLANNED_CONFIDENCE, DecisionScore, Prediction, scored
from capplan.engine.lookup import host_times
from capplan.errors import CapplanError
from capplan.questions.validation import Validation, validation
from capplan.readers.catalogue.efficiency import (
    efficiency_for,
    fitted_devices,
    shipped_efficiency,
    shipped_intervals,
)
from capplan.readers.catalogue.hardware import device
from capplan.recorded.measured import measured_table
from capplan.report.answers.simulate import decision_scores
from capplan.report.charts.of_answers import Line, Lines
from capplan.report.charts.svg import svg_file
from capplan.report.show import row_progress, write_whole
from docs.generators.accuracy_quotes import with_quotes
from docs.generators.page_tables import Page, Table

Ruled: TypeAlias = Mapping[tuple[str, str, str, str], LeftOut]
"""Scores by what was left out, grouping, group and column."""
MEMORY_NUMBERS = 20
"""Fitted numbers of memory, as docs/memory.md lists them."""
GROUPINGS = ("load", "source", "device", "class", "engine")
SHORT = 8
"""Lines of a table on a page whose others are in its file."""
WORST_REGIMES = 5


def kernel_section(folder: Path) -> str:
    """Return the scores of timed kernels."""
    parts = []
    for name, title, targets in (
        ("kernels_measured.csv", "Shapes of dense models", KERNELS),
        ("kernels_more.csv.gz", "All kernels of three engines", MORE_KERNELS),
    ):
        found = _validation(folder / name, "kernel")
        parts += [
            f"{title}:\n\n",
            str(judged_table(kernel_judgements(found.scored, targets), left_out=False)),
            "\n\n",
        ]
    parts.append("Scores with whole shapes held out of the fit, by kernel: [kernel times](kernels.md).\n")
    return "".join(parts)


def memory_section(folder: Path) -> str:
    """Return the scores of logged starts."""
    found = _validation(folder / "memory_measured.csv", "memory")
    judged, wrong = disagreeing_starts(found.scored)
    names = f": {', '.join(wrong)}" if wrong else ""
    return (
        f"{judged_table(memory_judgements(found.scored, MEMORY), left_out=False)}"
        f"\n\nFits or not: {judged} logged starts of confidence A or B were judged, {len(wrong)} of them wrongly{names}. "
        "With whole models left out: [memory](../memory.md).\n"
    )


def coverage_text(found: Validation) -> str:
    """Return how many core rows are predicted and how many values lie in their interval."""
    rows = {p.row for p in found.scored}
    known = {p.row for p in found.scored if p.predicted is not None}
    share, inside = len(known) / max(len(rows), 1), scored(found.scored).interval_coverage
    return (
        f"Coverage: {len(known):,} of {len(rows):,} core rows are predicted, {percent(share)} (target {percent(COVERAGE)}). "
        f"{percent(inside)} of their values lie inside the 80 % interval: the intervals were widened until they hold results that the fit did not see."
    )


def claimed_table() -> Table:
    """Return what intervals of all other units hold of what was left out, at each claimed level, over all statistics."""
    rows = []
    for ruler in UNITS:
        own = [
            entry
            for (name, regime), entry in left_out_coverage().items()
            if name == ruler and regime.count("/") == 1
        ]
        total = max(sum(entry.values for entry in own), 1)
        held = [sum(entry.values * entry.held[level] for entry in own) / total for level in LEVELS]
        rows.append([ruler, f"{total:,}", *map(percent, held)])
    return Table(["left out", "values", *(f"claimed {percent(level)}" for level in LEVELS)], rows)


def intervals_section() -> Page:
    """Return what intervals hold of what was left out, by class and engine generation, and where they hold least; a file has each regime."""
    coverage = left_out_coverage()
    count, parting = parting_table(coverage)
    parts = (
        f"{CLASS_COVERAGE_TEXT}\n{class_coverage_table(coverage)}",
        f"{count} [Each regime](intervals.csv), with its interval. The worst, of those with five models or more and of the others:",
        _worst_regimes(parting),
    )
    return Page("\n\n".join(map(str, parts)) + "\n", {"intervals": interval_table(shipped_intervals())})


def _worst_regimes(parting: Table) -> Table:
    """Return the first regimes of many models, and the first of few."""
    many = [row for row in parting.rows if int(row[1]) >= LEAST_GROUPS]
    few = [row for row in parting.rows if int(row[1]) < LEAST_GROUPS]
    return Table(parting.headings, [*many[:WORST_REGIMES], *few[:WORST_REGIMES]])


def interval_table(intervals: Intervals) -> Table:
    """Return the distribution of measured over predicted by regime, and what it holds of models, sources and generations left out."""
    unseen = left_out_coverage()
    rows = []
    for regime, entry in sorted(intervals.items()):
        levels = regime.count("/")
        if (
            levels < 1
            or regime.split("/")[0].endswith("middle")
            or regime.endswith(("/measured", "/assumed"))
        ):
            continue
        few = "" if not entry.few else "few models" if entry.groups < LEAST_GROUPS else "one source"
        ends = [f"{end:.2f}" for level in (0.8, 0.95) for end in entry.at(level)]
        held = [
            percent(unseen[ruler, regime].held[level]) if (ruler, regime) in unseen else ""
            for ruler in UNITS
            for level in LEVELS
        ]
        rows.append(
            [regime, f"{entry.n:,}", str(entry.groups), few, f"{entry.median_ratio:.2f}", *ends, *held]
        )
    sides = [f"{level} interval, {side}" for level in ("80 %", "95 %") for side in ("low", "high")]
    head = [
        "regime",
        "values",
        "models",
        "as wide as the next wider regime for",
        "measured / predicted",
        *sides,
    ]
    inside = [f"inside {percent(level)}, {ruler} left out" for ruler in UNITS for level in LEVELS]
    return Table([*head, *inside], rows)


def separated_table(predictions: Sequence[Prediction]) -> Table:
    """Return the error that remains once predictions are corrected to the measured step times.

    A prediction of throughput or TTFT is scaled by measured over predicted TPOT of the same row: what remains
    is not the error of the steps but of their scheduling.
    """
    tpot = {p.row: p for p in preferred(predictions, ("tpot_ms_mean", "tpot_ms_p50")) if p.predicted}
    rows = []
    for title, columns, power in (
        ("output tokens/s", ("output_tok_s",), -1.0),
        ("TTFT", ("ttft_ms_mean", "ttft_ms_p50"), 1.0),
    ):
        for load in sorted({(p.groups or {}).get("load", "") for p in tpot.values()}):
            own = [
                p
                for p in preferred(predictions, columns)
                if p.predicted and p.row in tpot and (p.groups or {}).get("load") == load
            ]
            if len(own) < 10:
                continue
            before = [abs(log(float(p.predicted or 1) / p.measured)) for p in own]
            steps = [abs(log(float(tpot[p.row].predicted or 1) / tpot[p.row].measured)) for p in own]
            after = [
                abs(log(float(p.predicted or 1) / p.measured) - power * log(float(tpot[p.row].predicted or 1) / tpot[p.row].measured))
                for p in own
            ]  # fmt: skip
            rows.append(
                [
                    title,
                    load,
                    f"{len(own):,}",
                    *(percent(sorted(v)[len(v) // 2]) for v in (before, steps, after)),
                ]
            )
    return Table(
        ["quantity", "load", "values", "its error", "error of TPOT", "left with measured TPOT"], rows
    )


CHOICES_PICTURE = "pictures/choices.svg"
"""What required confidence trades, next to the page."""
SERVED_PICTURE = "pictures/measured-predicted.svg"
"""Measured against predicted times, next to the page."""
DRAWN_LOADS = frozenset({"online_conc", "online_rate"})
DRAWN = 100
"""Points of each class, about."""
CLASSES = {"dense": "dense", "mla": "latent attention (MLA)", "moe": "mixture of experts"}
CHOSEN_BY = ("model", "source")
"""What is left out of the predictions that the picture shows."""
PREDICTED_TIME = "predicted time"


def choices_section(found: Validation, left_out: Mapping[str, Sequence[DecisionScore]]) -> Page:
    """Return the section of choices by prediction: scores by what was left out, and the picture; the file has every required confidence."""
    names = ["in sample", *(f"{ruler} left out" for ruler in left_out)]
    rows = []
    for name, scores in zip(names, (decision_scores(found.runs), *left_out.values()), strict=True):
        rows += [
            [
                name,
                PREDICTED_TIME if s.confidence is None else percent(s.confidence),
                f"{s.questions:,}",
                f"{s.unanswered:,}",
                percent(s.broke_limit_fraction),
                percent(s.broke_by_10_fraction),
                *(percent(s.regret[key]) for key in ("median", "mean", "p90")),
                percent(s.right_device_fraction or 0.0),
            ]
            for s in scores
        ]
    titles = ["predictions", "required confidence", "questions with a pick", "without a pick", "pick above the limit", "above it by over 10 %"]  # fmt: skip
    regrets = [f"regret, {key}" for key in ("median", "mean", "p90")]
    table = Table([*titles, *regrets, "on the GPU of the best run"], rows)
    shown = [row for row in rows if row[1] in (percent(PLANNED_CONFIDENCE), PREDICTED_TIME)]
    text = f"{CHOICES}\n{Table(table.headings, shown)}\n\n[At each required confidence](choices.csv).\n\n{CHOICES_PICTURE_TEXT}"
    return Page(text, {"choices": table})


def choices_chart(left_out: Mapping[str, Sequence[DecisionScore]]) -> Lines:
    """Return limits broken and mean regret over the required confidence, by predictions that never saw the model or the source."""
    lines = []
    for ruler in CHOSEN_BY:
        scores = [score for score in left_out[ruler] if score.confidence is not None]
        x = tuple(float(score.confidence or 0.0) for score in scores)
        lines.append(Line(f"regret, mean, {ruler} left out", x, tuple(s.regret["mean"] for s in scores)))
        broken = tuple(score.broke_limit_fraction for score in scores)
        lines.append(Line(f"picks above their limit, {ruler} left out", x, broken))
    return Lines(
        "What required confidence trades",
        "confidence_fraction",
        "share_fraction",
        tuple(lines),
        x_title="required confidence",
        y_title="share of picks; regret as a share of tokens/s per GPU",
    )


def open_loops_section() -> Page:
    """Return the scores of open loops with their source left out, and the causes of rows that are predicted wrongly; the files have the rows and the evidence."""
    values, known = open_loops(), known_causes()
    causes, by_set, rows = (
        cause_table(causes_told(values, known)),
        set_table(values, known),
        beyond_table(values, known),
    )
    parts = (
        f"{OPEN_LOOPS_TEXT}\n{target_table(values)}",
        f"[By set of runs](open-loops-by-set.csv). {len(rows.rows)} rows within capacity miss a target ([each with its cause](open-loops.csv)). "
        "The causes ([with their evidence](open-loops-causes.csv)):",
        Table(causes.headings[:3], [row[:3] for row in causes.rows]),
        "Saturation predicted wrongly:",
        wrong_table(values, known.saturation),
        "Columns that no model of an engine can follow; they stay in every score that has them:",
        "\n".join(f"- {text}" for text in known.unfollowed),
    )
    files = {"open-loops": rows, "open-loops-by-set": by_set, "open-loops-causes": causes}
    return Page("\n\n".join(map(str, parts)) + "\n", files)


def fitted_section() -> str:
    """Return how many numbers were fitted, by part."""
    kernels = sum(
        fit.fitted_numbers
        for fitted in dict.fromkeys(fitted_devices().values())
        for fit in shipped_efficiency(fitted).fits.values()
        if fit.label == "measured"
    )
    eras = len({host for versions in host_times().values() for host in versions.values()})
    rows = [
        [
            "kernels",
            f"{round(kernels):,}",
            "a device, a kernel, a format and, where kernels differ, an engine",
        ],
        ["host", str(count_fitted(host_times())), f"an engine and a range of versions ({eras} of them)"],
        ["memory", str(MEMORY_NUMBERS), "an engine and a range of versions"],
    ]
    return f"{Table(['part', 'numbers', 'each belongs to'], rows)}\n\n{FITTED_NUMBERS}"


def _told(prediction: Prediction) -> str | None:
    """Return what is known of a kind of run that explains a large error."""
    groups: Mapping[str, str] = prediction.groups or {}
    try:
        own = device(groups.get("device", ""))
        if efficiency_for(own).label != "measured":
            return "no kernel was ever timed on this device"
    except CapplanError:
        return None
    if groups.get("load") == "online_rate" and prediction.metric.startswith("ttft"):
        return "open loop close to saturation: a few percent of capacity decide whether a queue grows"
    if groups.get("load") in {"online_burst", "offline_burst"} and prediction.metric.endswith(("p50", "p99")):
        return "one burst: a percentile of TTFT is a place in the queue"
    return None


def _validation(path: Path, kind: str) -> Validation:
    with row_progress(path.name) as progress:
        return validation([path], kind=kind, intervals=shipped_intervals(), progress=progress)


def _by_group(own: Sequence[Prediction], ruled: Ruled, in_client: Collection[str]) -> Page:
    """Return the errors of served runs by load and class, and which of them carry the misses; the files have every group and more of the rows."""
    left_out: Mapping[tuple[str, str, str], LeftOut] = left_out_scores()
    carried = carried_table(serving_judgements(own, SERVING, ruled, in_client), own, _told)
    worst = worst_table([p for p in own if not p.metric.endswith("p99")], _told)
    most = {row[0]: row for row in reversed(carried.rows)}
    refused = refusal_table(own)
    parts = [
        "[By load, source, device, class and engine](serving-by-group.csv). By load and class. If an error is smaller with the group left out "
        "than in sample, that is chance: the many closed loops decide the host numbers, whose fit does not ask for the least error of a few open loops.\n",
        f"{group_table(own, ('load', 'class'), left_out)}\n",
        "## Steps or queues\n\n"
        "How much of an error is the length of the steps, and how much is what the scheduler makes of them:\n",
        f"{separated_table(own)}\n",
        "## What carries the misses\n\n"
        "For each target of serving that was missed: the group with most of the weight that is off by over 20 %, in sample ([the first eight](serving-misses.csv));\n"
        "`ratio` is predicted over measured.\n",
        f"{Table(carried.headings, list(reversed(most.values())))}\n",
        "## Furthest off\n\n"
        f"Means and medians, one value for each source, device, engine and load ([the first {len(worst.rows)}](serving-furthest-off.csv)):\n",
        f"{worst.first(SHORT)}\n",
        f"## Refused\n\n{refused if refused.rows else 'capplan predicts every core row.'}\n",
        f"## What would settle it\n\n{SETTLE}",
    ]
    files = {"serving-by-group": group_table(own, GROUPINGS, left_out), "serving-misses": carried}
    return Page("\n".join(parts), files | {"serving-furthest-off": worst})


def _never_fitted(ruled: Ruled) -> Page:
    """Return the errors on results that no fit has seen, by class and generation; the file has every score."""
    count, one_sided = one_sided_table(ruled)
    parts = [
        RULERS_TEXT,
        f"{ruler_table(ruled, 'class')}\n",
        CLASS_GENERATION_TEXT,
        f"{ONE_SIDED_TEXT}\n{count} The furthest:\n\n{one_sided.first(SHORT)}",
    ]
    files = {"never-fitted": ruled_table(ruled), "never-fitted-by-generation": class_generation_table(ruled)}
    return Page("\n".join(parts) + "\n", files)


def _kernels_and_memory(folder: Path, own: Sequence[Prediction]) -> str:
    """Return the scores of timed kernels, of devices without timings, of logged starts and of slices."""
    return "\n".join(
        [
            f"## Kernels\n\n{kernel_section(folder)}",
            f"## Devices that nobody timed\n\n{NOBODY_TIMED}",
            f"{stand_in_table(list(stand_ins(sampled(folder))))}\n\n{SERVED_UNTIMED}",
            f"{served_table(own)}\n",
            f"## Memory\n\n{memory_section(folder)}",
            f"## MIG slices and embeddings\n\n{slices_section(folder)}",
        ]
    )


def served_chart(own: Sequence[Prediction]) -> Lines:
    """Return measured against predicted time per output token of closed and open loops, by class of model.

    Parameters
    ----------
    own : of served runs; of each class as many are drawn, evenly spread over what is predicted
    """
    classes: dict[str, list[tuple[float, float]]] = {}
    for p in preferred(own, ("tpot_ms_mean", "tpot_ms_p50")):
        groups: Mapping[str, str] = p.groups or {}
        if p.predicted and groups.get("load") in DRAWN_LOADS:
            classes.setdefault(groups.get("class", ""), []).append(
                (float(p.predicted) / 1e3, p.measured / 1e3)
            )
    points = []
    for name, found in sorted(classes.items()):
        drawn = sorted(found)[:: max(1, len(found) // DRAWN)]
        points.append(
            Line(CLASSES[name], tuple(x for x, _ in drawn), tuple(y for _, y in drawn), kind="points")
        )
    ends = (min(min(line.x) for line in points), max(max(line.x) for line in points))
    return Lines("Measured against predicted time per output token, by class of model", "tpot_s", "tpot_s",
                 (Line("predicted = measured", ends, ends), *points),
                 log=True, x_title="predicted time per output token", y_title="measured time per output token")  # fmt: skip


def pages(folder: Path) -> tuple[dict[str, str], dict[str, Lines]]:
    """Return the text of each page, and its pictures, by their paths below docs/.

    Parameters
    ----------
    folder : with the six files of measured results
    """
    ruled = ruled_scores()
    serving = _validation(folder / "serving_measured.csv.gz", "serving")
    own, choices = serving.scored, left_out_choices()
    _, measured = measured_table(folder / "serving_measured.csv.gz", "serving")
    in_client = {row["id"] for row in measured if runs_in_client(row)}
    published = published_section(folder / "moe_published.csv")
    evidence = {
        "published-deployments": Page(f"{PUBLISHED_TEXT}\n{published.text}\n", published.files),
        "kernels-and-memory": Page(_kernels_and_memory(folder, own)),
        "method": Page(f"{METHOD}\n## Count of fitted numbers\n\n{fitted_section()}"),
        "never-fitted": _never_fitted(ruled),
        "open-loops": open_loops_section(),
        "choices": choices_section(serving, choices),
        "serving-by-group": _by_group(own, ruled, in_client),
        "intervals": intervals_section(),
        "chance-to-meet-the-slo": Page(f"{CERTAINTY}\n{certainty_section()}"),
    }
    texts = {
        f"evidence/{name}.md": f"# {TITLES[name]}\n\n{WRITTEN}\n{page.text}"
        for name, page in evidence.items()
    }
    board = judged_table(serving_judgements(own, SERVING, ruled, in_client), left_out=True)
    page = PAGE.format(
        board=board,
        coverage=coverage_text(serving),
        own_process=own_process_table(open_loops()),
        claimed=claimed_table(),
    )
    texts["accuracy.md"] = with_quotes(page, "\n".join([page, *texts.values()]))
    for page_of in evidence.values():
        texts |= {f"evidence/{name}.csv": table.csv() for name, table in page_of.files.items()}
    return texts, {SERVED_PICTURE: served_chart(own), CHOICES_PICTURE: choices_chart(choices)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages."""
    parser = argparse.ArgumentParser(
        prog="python -m calibrate.accuracy_page",
        description="Write docs/accuracy.md and the pages of docs/evidence/ that its figures come from.",
    )
    parser.add_argument("folder", type=Path, help="folder with the measured results")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="file of the page; the others stand next to it"
    )
    options = parser.parse_args(arguments)
    texts, pictures = pages(options.folder)
    for name, text in texts.items():
        write_whole(options.output.parent / name, text)
    for name, chart in pictures.items():
        write_whole(options.output.parent / name, svg_file(chart))
    return 0


if __name__ == "__main__":
    sys.exit(main())
