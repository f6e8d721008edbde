"""`capplan validate`: predictions of measured results, scored."""

from pathlib import Path
from typing import Annotated

import typer

from capplan.cli.options import Calibration, Form, Output, one_of


def command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...", help="CSV files of measured results; default: the built-in points."
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            parser=one_of("--kind", "kind", ("serving", "memory", "kernel")),
            metavar="KIND",
            help="serving, memory or kernel; default: told by the columns.",
        ),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option("--predictions", metavar="OUT.csv", help="Write one line per measured value here."),
    ] = None,
    calibration: Calibration = None,
    form: Form = None,
    output: Output = None,
) -> int:
    """Predict measured results with the code that every command uses, and score the predictions."""
    from capplan.questions.validation import BUILT_IN_POINTS, validation
    from capplan.readers.catalogue.intervals import shipped_intervals
    from capplan.report.answers.validate import predictions_csv, validate_answer
    from capplan.report.show import row_progress, show, write_whole

    with row_progress("rows") as progress:
        found = validation(
            files or [BUILT_IN_POINTS],
            kind=kind,
            calibration=calibration,
            intervals=shipped_intervals(),
            progress=progress,
        )
    if predictions:
        write_whole(predictions, predictions_csv(found.predictions))
    return show(validate_answer(found), form, output)
