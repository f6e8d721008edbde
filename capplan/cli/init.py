"""`capplan init`: a first scenario."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.options import Group, grouped, one_of
from capplan.errors import InputError
from capplan.scenario.command_flags import USE_CASES, FirstScenario

File = Annotated[
    Path, typer.Argument(metavar="[FILE]", help="Scenario to write; it must not exist.", show_default=True)
]
Source = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="SOURCE",
        help="A trace, request log or Prometheus text, the command of a running engine (or a file with it), or the name of a shipped scenario.",
    ),
]
UseCase = Annotated[
    str | None,
    one_of(
        "--use-case",
        USE_CASES,
        says="A starting point, with the sources of its lengths and targets: chat, rag, code, agent, batch or voice.",
    ),
]
_LENGTH = "tokens: a mean, or a mean and a 95th percentile such as 1500,4500."
First = Annotated[
    FirstScenario,
    Group(
        "First scenario",
        model=typer.Option("--model", metavar="MODEL", help=f"{o.MODEL}."),
        request_rate=typer.Option("--request-rate", metavar="RATE", help="At the peak, such as '20 req/s'."),
        input_tokens=typer.Option("--input-tokens", metavar="TOKENS", help=f"Input {_LENGTH}"),
        output_tokens=typer.Option("--output-tokens", metavar="TOKENS", help=f"Output {_LENGTH}"),
        ttft_p95=typer.Option(
            "--ttft-p95", metavar="TIME", help="Target of the first token, such as '800 ms'."
        ),
        tpot_p95=typer.Option("--tpot-p95", metavar="TIME", help="Target of every further token."),
        hardware=typer.Option("--hardware", metavar="NAME", help="Device that may be bought; repeatable."),
    ),
]


@grouped
def init_command(
    *,
    file: File = Path("scenario.yaml"),
    source: Source = None,
    use_case: UseCase = None,
    first: First,
    offline: o.Offline = False,
) -> int:
    """Write a first scenario, with a comment at every line: from flags, a use case, a trace, metrics, a launch command or a shipped one."""
    from capplan.deploy.known_deployment import known_deployment
    from capplan.readers.catalogue.scenarios import shipped_scenarios
    from capplan.readers.text_file import is_there
    from capplan.report.show import refuse_existing, say, write_new
    from capplan.scenario.first_scenario import (
        Known,
        checked_scenario_text,
        copied_scenario_text,
        with_use_case,
    )

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
        known = known_deployment(source, file.resolve().parent) if source else Known()
        first, known = with_use_case(use_case, first, known) if use_case else (first, known)
        text = checked_scenario_text(file, first, known, offline=offline)
    write_new(file, text)
    say(f"wrote {file}\n  answer it: capplan fleet {quote(str(file))}")
    return 0
