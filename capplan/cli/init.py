"""`capplan init`: a first scenario."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.options import grouped, measure
from capplan.errors import InputError
from capplan.scenario.command_flags import FirstScenario

File = Annotated[
    Path, typer.Argument(metavar="[FILE]", help="Scenario to write; it must not exist.", show_default=True)
]
Source = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="SOURCE",
        help="A trace, request log or Prometheus text, the command of a running engine (or a file with it), the address of a Prometheus server, or the name of a shipped scenario.",
    ),
]
Window = Annotated[
    float | None,
    measure(
        "--window", says="With the address of a Prometheus server: time up to now that is read; default: 7 d."
    ),
]
UseCase = Annotated[str | None, o.USE_CASE]
First = Annotated[FirstScenario, o.FIRST]


@grouped
def init_command(
    *,
    file: File = Path("scenario.yaml"),
    source: Source = None,
    window: Window = None,
    model_name: o.ModelName = None,
    use_case: UseCase = None,
    first: First,
    offline: o.Offline = False,
) -> int:
    """Write a first scenario, with a comment at every line: from flags, a use case, a trace, metrics, a launch command or a shipped one."""
    from capplan.deploy.known_deployment import Watched, known_deployment
    from capplan.readers.catalogue.scenarios import shipped_scenarios
    from capplan.readers.text_file import is_there
    from capplan.report.show import refuse_existing, say, write_new
    from capplan.scenario.first_scenario import (
        Known,
        checked_scenario_text,
        copied_scenario_text,
        with_use_case,
    )

    watched = Watched(window, model_name).of(source)
    refuse_existing(file)
    if source is use_case is None and first == FirstScenario():
        raise InputError(
            "nothing says what to plan; give what is known, e.g. --model llama-3.1-8b-instruct --use-case chat, or --from support-chat"
        )
    if use_case and source in shipped_scenarios():
        raise InputError(f"--use-case: --from {source} copies a scenario as it is; leave one of them out")
    if source in shipped_scenarios() and not is_there(Path(source)):
        text = copied_scenario_text(source, file, first)
    else:
        folder = file.resolve().parent
        known = known_deployment(source, folder, watched, offline=offline) if source else Known()
        first, known = with_use_case(use_case, first, known) if use_case else (first, known)
        text = checked_scenario_text(file, first, known, offline=offline)
    write_new(file, text)
    say(f"wrote {file}\n  answer it: capplan fleet {quote(str(file))}")
    return 0
