"""`capplan validate`: predictions of measured results, scored."""

from pathlib import Path
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.options import grouped, one_of

Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE]...", help="CSV files of measured results; default: the built-in points."),
]
Kind = Annotated[
    str | None,
    one_of(
        "--kind",
        ("serving", "memory", "kernel"),
        metavar="KIND",
        says="serving, memory or kernel; default: inferred from the columns.",
    ),
]
Predictions = Annotated[
    Path | None,
    typer.Option("--predictions", metavar="OUT.csv", help="Write one line per measured value here."),
]
Decisions = Annotated[
    bool,
    typer.Option(
        "--decisions",
        help="Also score the choices: the plan that predictions pick under limits on TPOT, against the best that was measured.",
    ),
]


@grouped
def command(
    *,
    files: Files = None,
    kind: Kind = None,
    predictions: Predictions = None,
    decisions: Decisions = False,
    calibration: o.Calibration = None,
    to: o.Output,
) -> int:
    """Predict measured results with the code that every command uses, and score the predictions."""
    from capplan.questions.validation import BUILT_IN_POINTS, validation
    from capplan.readers.catalogue.efficiency import shipped_intervals
    from capplan.report.answers.simulate import predictions_csv, validate_answer
    from capplan.report.show import row_progress, show, shown_anyway, write_whole

    with row_progress("rows") as progress:
        checked = validation(
            files or [BUILT_IN_POINTS],
            kind=kind,
            calibration=calibration,
            intervals=shipped_intervals(),
            progress=progress,
        )
    answer = validate_answer(checked, decisions=decisions)
    if predictions:
        with shown_anyway(answer, to):
            write_whole(predictions, predictions_csv(checked.predictions), "--predictions")
    return show(answer, to)
