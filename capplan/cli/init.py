"""`capplan init`: a first scenario."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.options import grouped, measure
from capplan.errors import InputError
from capplan.scenario.command_flags import FirstScenario

_FILE = typer.Argument(metavar="[FILE]", help="Scenario to write; it must not exist.", show_default=True)
_SOURCE = typer.Option(
    "--from",
    metavar="SOURCE",
    help="A trace, request log or Prometheus text, the command of a running engine (or a file with it: a script, a manifest, values of a Helm chart), the address of a Prometheus server, or the name of a shipped scenario.",
)
_ENGINE_NAME = typer.Option(
    "--engine-name", metavar="NAME", help="One of the engines that the manifest of --from starts."
)
_WINDOW = measure(
    "--window", says="With the address of a Prometheus server: time up to now that is read; default: 7 d."
)
UseCase = Annotated[str | None, o.USE_CASE]
First = Annotated[FirstScenario, o.FIRST]


@grouped
def init_command(
    *,
    file: Annotated[Path, _FILE] = Path("scenario.yaml"),
    source: Annotated[str | None, _SOURCE] = None,
    engine_name: Annotated[str | None, _ENGINE_NAME] = None,
    ignore_unmodelled: o.IgnoreUnmodelled = False,
    window: Annotated[float | None, _WINDOW] = None,
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
        checked_scenario_text,
        copied_scenario_text,
        with_use_case,
    )

    _refuse_unclear(source, use_case, first)
    shipped = source if source in shipped_scenarios() and not is_there(Path(source)) else None
    known = known_deployment(
        None if shipped else source,
        file.resolve().parent,
        model=first.model,
        engine=engine_name,
        ignore_unmodelled=ignore_unmodelled,
        watched=Watched(window, model_name).of(source),
        offline=offline,
    )
    refuse_existing(file)
    if shipped:
        text = copied_scenario_text(shipped, file, first)
    else:
        first, known = with_use_case(use_case, first, known) if use_case else (first, known)
        text = checked_scenario_text(file, first, known, offline=offline)
    write_new(file, text)
    say(f"wrote {file}\n  answer it: capplan fleet {quote(str(file))}")
    return 0


def _refuse_unclear(source: str | None, use_case: str | None, first: FirstScenario) -> None:
    """Raise the error where nothing is said, or two things of which only one can be written."""
    from capplan.readers.catalogue.scenarios import shipped_scenarios

    if source is use_case is None and first == FirstScenario():
        raise InputError(
            "nothing says what to plan; give what is known, e.g. --model llama-3.1-8b-instruct --use-case chat, or --from support-chat"
        )
    if use_case and source in shipped_scenarios():
        raise InputError(f"--use-case: --from {source} copies a scenario as it is; leave one of them out")
