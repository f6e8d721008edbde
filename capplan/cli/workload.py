"""`capplan workload`: what a trace, a request log or a server's counters say about the traffic."""

from pathlib import Path
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.options import Group, grouped, measure, one_of
from capplan.scenario.flags import OutputFlags

Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="Request trace, request log or Prometheus text; two scrapes of Prometheus give their difference; or a scenario YAML or name.",
    ),
]
Interval = Annotated[
    float | None,
    measure("--interval", says="Between two scrapes of Prometheus, such as '5 min'."),
]
Lognormal = Annotated[
    bool, typer.Option("--lognormal", help="Write lengths as the fitted lognormal instead of quantiles.")
]
Eviction = Annotated[
    list[str] | None,
    one_of(
        "--eviction",
        ("lru", "lfu", "prefix"),
        metavar="POLICY",
        says="Run the prefix cache block by block with lru, lfu or prefix (leaves first); repeatable.",
    ),
]
_FILE = typer.Option("--output", "-o", metavar="FILE", help="A .yaml is written as a workload for scenarios.")
Output = Annotated[OutputFlags, Group("Output", form=o.OUTPUT["form"], file=_FILE)]


@grouped
def command(
    context: typer.Context,
    *,
    files: Files,
    interval: Interval = None,
    lognormal: Lognormal = False,
    eviction: Eviction = None,
    picture: o.Picture = None,
    to: Output,
) -> int:
    """Read a trace, a request log or Prometheus text, or draw a scenario's traffic; write it as a workload for scenarios."""
    from capplan.recorded.traces.trace import workload_of
    from capplan.report.answers.simulate import workload_answer
    from capplan.report.charts.static import workload_picture
    from capplan.report.show import send, show, shown_anyway
    from capplan.scenario.drawn_workload import drawn_workload, names_a_scenario
    from capplan.scenario.workload_file import is_workload, workload_text

    policies = tuple(eviction or ())
    if len(files) == 1 and interval is None and names_a_scenario(files[0]):
        summary = drawn_workload(files[0], policies)
    else:
        summary = workload_of(files, interval_s=interval, policies=policies)
    written = to.file if to.file and is_workload(to.file.name) else None
    if not written:
        why = "applies only to a workload file, such as -o workload.yaml"
        o.refuse_unread(context, ("lognormal",), why)
    if written:
        send(workload_text(summary, lognormal=lognormal), written)
    answer = workload_answer(summary, str(written) if written else None)
    to = OutputFlags(to.form) if written else to
    if picture:
        with shown_anyway(answer, to):
            workload_picture(picture, summary)
    return show(answer, to)
