"""Write docs/accuracy.md: `python -m calibrate.accuracy_page FOLDER -o docs/accuracy.md`.

FOLDER holds serving_measured.csv.gz, moe_published.csv, memory_measured.csv, kernels_measured.csv, kernels_more.csv.gz and mig_embedding.csv. Every figure of the
page is computed by the code of `capplan validate`; left-out scores are those of the last fit.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path

from calibrate.accuracy_tables import (
    carried_table,
    group_table,
    judged_table,
    kernel_judgements,
    markdown,
    memory_judgements,
    one_sided_table,
    percent,
    preferred,
    refusal_table,
    ruler_table,
    serving_judgements,
    worst_table,
)
from calibrate.accuracy_text import (
    BEGIN,
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
    PUBLISHED_TEXT,
    RULERS_TEXT,
    SERVED_UNTIMED,
    SETTLE,
    STRANGERS_RUN,
    TRIED,
    WEAK,
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
from calibrate.open_loop_causes import evidence_list, known_causes
from calibrate.open_loops import (
    beyond_table,
    causes_told,
    open_loops,
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
from capplan.accuracy.score import DecisionScore, Prediction, scored
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
from capplan.report.answers.simulate import decision_scores
from capplan.report.charts.of_answers import Line, Lines
from capplan.report.charts.svg import svg_file
from capplan.report.show import row_progress, write_whole

MEMORY_NUMBERS = 20
"""Fitted numbers of memory, as docs/memory.md lists them."""
GROUPINGS = ("load", "source", "device", "class", "engine")


def _named(text: str) -> str:
    return f"\n## {text}\n\n"


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
            judged_table(kernel_judgements(found.scored, targets), left_out=False),
            "\n\n",
        ]
    parts.append("Scores with whole shapes held out of the fit, by kernel: [kernels.md](kernels.md).\n")
    return "".join(parts)


def memory_section(folder: Path) -> str:
    """Return the scores of logged starts."""
    found = _validation(folder / "memory_measured.csv", "memory")
    judged, wrong = disagreeing_starts(found.scored)
    names = f": {', '.join(wrong)}" if wrong else ""
    return (
        judged_table(memory_judgements(found.scored, MEMORY), left_out=False)
        + f"\n\nFits or not: {judged} logged starts of confidence A or B were judged, {len(wrong)} of them wrongly{names}. "
        + "With whole models left out: [memory.md](memory.md).\n"
    )


def coverage_text(found: Validation) -> str:
    """Return how many core rows are predicted and how many values lie in their interval."""
    rows = {p.row for p in found.scored}
    known = {p.row for p in found.scored if p.predicted is not None}
    share, inside = len(known) / max(len(rows), 1), scored(found.scored).interval_coverage
    return (
        f"Coverage: {len(known):,} of {len(rows):,} core rows are predicted, {percent(share)} (target {percent(COVERAGE)}). "
        f"Inside their 80 % interval: {percent(inside)} of the values; of values left out: see [Intervals](#intervals).\n"
    )


def claimed_table() -> str:
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
    return markdown(["left out", "values", *(f"claimed {percent(level)}" for level in LEVELS)], rows)


def intervals_section() -> str:
    """Return what intervals hold of what was left out: over all values, by class and engine generation, and by regime."""
    coverage = left_out_coverage()
    return "\n\n".join(
        (
            claimed_table(),
            CLASS_COVERAGE_TEXT + "\n" + class_coverage_table(coverage),
            parting_table(coverage),
            "All regimes:",
            interval_table(shipped_intervals()),
        )
    )


def interval_table(intervals: Intervals) -> str:
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
        few = "" if not entry.few else " (few models)" if entry.groups < LEAST_GROUPS else " (one source)"
        ends = [f"{low:.2f} to {high:.2f}" for low, high in map(entry.at, (0.8, 0.95))]
        held = [
            percent(unseen[ruler, regime].held[0.8]) if (ruler, regime) in unseen else "" for ruler in UNITS
        ]
        rows.append(
            [regime, f"{entry.n:,}", f"{entry.groups}{few}", f"{entry.median_ratio:.2f}", *ends, *held]
        )
    if not rows:
        return "No fit has left any yet."
    head = ["regime", "values", "models", "measured / predicted", "80 %", "95 %"]
    return markdown([*head, *(f"inside 80 %, {ruler} left out" for ruler in UNITS)], rows)


def separated_table(predictions: Sequence[Prediction]) -> str:
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
    return markdown(
        ["quantity", "load", "values", "its error", "error of TPOT", "left with measured TPOT"], rows
    )


CHOICES_PICTURE = Path("pictures/choices.svg")
"""What required confidence trades, next to the page."""
CHOSEN_BY = ("model", "source")
"""What is left out of the predictions that the picture shows."""
PREDICTED_TIME = "predicted time"


def choices_section(found: Validation, left_out: Mapping[str, Sequence[DecisionScore]]) -> str:
    """Return the section of choices by prediction: scores by what was left out and required confidence, and the picture."""
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
            ]
            for s in scores
        ]
    titles = ["predictions", "required confidence", "questions with a pick", "without a pick", "pick above the limit", "above it by over 10 %"]  # fmt: skip
    table = markdown([*titles, *(f"regret, {key}" for key in ("median", "mean", "p90"))], rows)
    return f"{CHOICES}\n{table}\n\n{CHOICES_PICTURE_TEXT}"


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


def open_loops_section() -> str:
    """Return the scores of open loops with their source left out, and what is known of rows that are predicted wrongly."""
    values, known = open_loops(), known_causes()
    return "\n\n".join(
        (
            OPEN_LOOPS_TEXT + "\n" + target_table(values),
            "By set of runs:",
            set_table(values, known),
            "Saturation predicted wrongly:",
            wrong_table(values, known.saturation),
            "Causes of what misses a target within capacity, with their evidence (`calibrate/open_loop_causes.yaml`):",
            evidence_list(causes_told(values, known)),
            "Columns that no model of an engine can follow; they stay in every score that has them:",
            "\n".join(f"- {text}" for text in known.unfollowed),
            "Rows within capacity that miss a target, predicted over measured, the misses in bold:",
            beyond_table(values, known),
        )
    )


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
    return markdown(["part", "numbers", "each belongs to"], rows) + "\n\n" + FITTED_NUMBERS


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


def _never_fitted(ruled: Mapping[tuple[str, str, str, str], LeftOut]) -> list[str]:
    """Return the errors on results that no fit has seen."""
    return [
        _named("What was never fitted"),
        RULERS_TEXT + "\n",
        *(f"{ruler_table(ruled, grouping)}\n\n" for grouping in ("load", "class", "engine")),
        *(CLASS_GENERATION_TEXT + "\n", class_generation_table(ruled), "\n\n"),
        *(ONE_SIDED_TEXT + "\n", one_sided_table(ruled), "\n"),
    ]


def accuracy_page(folder: Path) -> str:
    """Return the page.

    Parameters
    ----------
    folder : with the six files of measured results
    """
    left_out: Mapping[tuple[str, str, str], LeftOut] = left_out_scores()
    ruled = ruled_scores()
    serving = _validation(folder / "serving_measured.csv.gz", "serving")
    own = serving.scored
    parts = [
        BEGIN,
        _named("Scoreboard: serving"),
        judged_table(serving_judgements(own, SERVING, ruled), left_out=True),
        f"\n\n{STRANGERS_RUN}\n" + coverage_text(serving),
        _named("Published deployments"),
        PUBLISHED_TEXT + "\n" + published_section(folder / "moe_published.csv") + "\n",
        _named("Scoreboard: kernels"),
        kernel_section(folder),
        _named("Devices that nobody timed"),
        NOBODY_TIMED + "\n",
        stand_in_table(list(stand_ins(sampled(folder)))) + "\n\n" + SERVED_UNTIMED + "\n",
        served_table(own) + "\n",
        _named("Scoreboard: memory"),
        memory_section(folder),
        _named("Method"),
        METHOD,
        _named("Count of fitted numbers"),
        fitted_section(),
    ]
    parts += _never_fitted(ruled)
    parts += [_named("Open loops by source"), open_loops_section(), "\n"]
    parts += [_named("Choices").lstrip("\n"), choices_section(serving, left_out_choices()), "\n"]
    parts += [_named("What was tried"), TRIED]
    parts.append(_named("Serving by group"))
    for grouping in GROUPINGS:
        parts += [f"### By {grouping}\n\n", group_table(own, grouping, left_out), "\n\n"]
    parts += [
        _named("Intervals").lstrip("\n"),
        intervals_section() + "\n",
        _named("Chance to meet the SLO of a plan"),
        CERTAINTY + "\n" + certainty_section(),
        _named("MIG slices and embeddings"),
        slices_section(folder),
        _named("Steps or queues"),
        "How much of an error is the length of the steps, and how much is what the scheduler makes of them:\n\n",
        separated_table(own) + "\n",
        _named("What carries the misses"),
        "For each target of serving that was missed: the groups with most of the weight that is off by over 20 %, in sample; `ratio` is predicted over\n"
        "measured.\n\n",
        carried_table(serving_judgements(own, SERVING, ruled), own, _told) + "\n",
        _named("Furthest off"),
        "Means and medians, one value for each source, device, engine and load; `ratio` is predicted over measured.\n\n",
        worst_table([p for p in own if not p.metric.endswith("p99")], _told) + "\n",
        _named("Refused"),
        refusal_table(own) + "\n",
        _named("Where it is weak, and what not to use it for"),
        WEAK,
        _named("What would settle it"),
        SETTLE,
    ]
    return "".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m calibrate.accuracy_page", description="Write docs/accuracy.md."
    )
    parser.add_argument("folder", type=Path, help="folder with the measured results")
    parser.add_argument("-o", "--output", type=Path, required=True, help="file to write")
    options = parser.parse_args(arguments)
    write_whole(options.output, accuracy_page(options.folder))
    write_whole(options.output.parent / CHOICES_PICTURE, svg_file(choices_chart(left_out_choices())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
