"""`capplan workload`: what a trace, a request log or a server's counters say about the traffic."""

from pathlib import Path
from typing import Annotated

import typer

from capplan.cli.options import Form, Picture, measure, refuse_unread

Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="Request trace, request log or Prometheus text; two scrapes of Prometheus give their difference.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="A .yaml is written as a workload for scenarios."),
]
Lognormal = Annotated[
    bool, typer.Option("--lognormal", help="Write lengths as the fitted lognormal instead of quantiles.")
]
Interval = Annotated[
    float | None,
    typer.Option(
        "--interval",
        parser=measure("--interval", "SECONDS"),
        metavar="TIME",
        help="Between two scrapes of Prometheus, such as '5 min'.",
    ),
]


def command(
    context: typer.Context,
    files: Files,
    interval: Interval = None,
    lognormal: Lognormal = False,
    picture: Picture = None,
    form: Form = None,
    output: Output = None,
) -> int:
    """Read a trace, a request log or Prometheus text, and write it as a workload for scenarios."""
    from capplan.questions.workload_file import is_workload, workload_text
    from capplan.readers.traces.read import workload_of
    from capplan.report.picture import workload_picture
    from capplan.report.show import show, write_whole
    from capplan.report.workload_answer import workload_answer

    found = workload_of(files, interval_s=interval)
    as_workload = output is not None and is_workload(output.name)
    if not as_workload:
        refuse_unread(
            context, ("lognormal",), "belongs to a workload that is written, such as -o workload.yaml"
        )
    if output is not None and as_workload:
        write_whole(output, workload_text(found, lognormal=lognormal))
    if picture:
        workload_picture(picture, found)
    answer = workload_answer(found, str(output) if as_workload else None)
    return show(answer, form, None if as_workload else output)
