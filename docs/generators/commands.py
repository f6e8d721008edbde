"""Write what the documentation shows of the program: `python -m docs.generators.commands [PAGE ...]` (`make docs`).

docs/commands.md and docs/commands/ are written from the commands themselves, docs/scenario.md and docs/scenario/ from the records of a scenario; in the other pages the marked console blocks
are run again. Tests check that both are current. It can be run any number of times.
"""

import io
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import typer

from capplan.cli.commands import COMMANDS
from capplan.cli.commands import EXAMPLES as USES
from capplan.cli.main import app, main
from docs.generators import plan_numbers, scenario_keys
from docs.generators.accuracy_quotes import quoted_text, with_quotes
from docs.generators.console_blocks import first_lines, page_width, part, with_output

EXAMPLES = {
    "model": ("deepseek-v3",),
    "kv-size": (
        "llama-3.1-8b",
        "--context",
        "8192",
        "--context",
        "131072",
        "--kv-dtype",
        "fp8",
        "--sequences",
        "4",
    ),
    "fit": (
        "llama-3.1-70b-instruct",
        "--hardware",
        "h100-sxm",
        "--engine-version",
        "0.19.0",
        "--kv-dtype",
        "bf16",
    ),
    "spec": (
        "--draft-step-time",
        "2 ms",
        "--target-step-time",
        "35 ms",
        "--acceptance",
        "0.8",
        "--draft-tokens",
        "3",
        "--draft-tokens",
        "5",
    ),
    "hardware": ("h100-sxm",),
    "list": ("engines", "sglang"),
}
"""One example per command; the first lines of its output are shown, or of the parts in `SHOWN`."""
SHOWN = {"model": ("decision", "Weights by class"), "fit": ("decision", "Memory of one GPU")}
"""Command -> parts of its output that its page shows."""

_HEAD = """# Commands

<!-- written by `make docs` from the commands themselves -->

Each command has a page with its options. [Scenario keys](scenario.md) has what a SCENARIO may hold; numbers are written the same way in flags: `--request-rate '600 rpm'`, `--max-model-len 32k`.
"""
_FOOT = """
## Options of all commands

- **Formats**: all commands but `init`, `export`, `mcp` and `serve` take `--format table|json|csv|markdown` (default: by the suffix of `--output`, else table) and `--output FILE`, `-o FILE`, which replaces the file at once. JSON and CSV are in base units with full precision.
- **Connections**: `--offline` never opens one.
- **Streams**: results go to stdout, warnings to stderr.
- **Exit codes**: 0 done, 2 bad input, 3 does not fit, 4 target not reachable, 130 interrupted, 1 a bug of capplan, with its traceback.
- **Width**: tables fit the terminal, or `COLUMNS` in a pipe. Words wrap, and the least important columns are left out and named; no number is cut.
- **Completion**: `capplan --install-completion [SHELL]` completes commands, options, models, devices, dtypes, scenarios and plan files.
- **Pictures**: `--plot FILE.svg` draws what `estimate`, `fit`, `kv-size`, `fleet`, `sweep`, `workload` and `compare` show.
"""

_SEVERAL = """## Options of several commands
"""
OFTEN = 3
"""Commands that have an option with one meaning, from which on the index tells it."""


def documentation() -> dict[str, str]:
    """Return the pages of the commands by their paths below docs/: the index, and a page for each."""
    rows = [f"- [`{name}`](commands/{name}.md): {says}" for name, says in COMMANDS.items()]
    program: Any = typer.main.get_command(app)
    with program.make_context("capplan", ["--help"], resilient_parsing=True) as context:
        commands = {name: program.get_command(context, name) for name in COMMANDS}
        shared = _shared(commands.values())
        listed = "\n".join(shared.values())
        texts = {"commands.md": "\n".join([_HEAD, *rows, _FOOT, _SEVERAL, listed, ""])}
        for name, summary in COMMANDS.items():
            example = _example(name) or f"For example: `{USES[name]}`"
            parts = [f"# capplan {name}", summary, _usage(name, commands[name]), example]
            parts += _lists(commands[name], shared)
            texts[f"commands/{name}.md"] = "\n\n".join(part.strip() for part in parts if part) + "\n"
    return texts


def _options(command: Any) -> list[Any]:
    """Return the options of a command that its page tells, without those of all commands."""
    own = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    return [p for p in own if (p.opts[0], p.help) not in _SHARED]


def _shared(commands: Iterable[Any]) -> dict[str, str]:
    """Return the options that at least so many commands have with one meaning, by their first name, and how they are told."""
    told = Counter((p.opts[0], _row(p)) for command in commands for p in _options(command))
    often = [key for key, count in told.items() if count >= OFTEN]
    names = Counter(name for name, _ in often)
    return {name: row for name, row in often if names[name] == 1}


def _usage(name: str, command: Any) -> str:
    arguments = " ".join(
        p.metavar if p.required or p.metavar.startswith("[") else f"[{p.metavar}]"
        for p in command.params
        if p.param_type_name == "argument"
    )
    return " ".join(f"`capplan {name} {arguments} [OPTIONS]`".split())


_SHARED = frozenset(
    {
        ("--format", "table, json, csv or markdown; default: by the suffix of --output, else table."),
        ("--output", "Write to this file instead of stdout, atomically."),
        ("--offline", "Never open a connection."),
    }
)
"""Options, with their meaning, that the index of commands has."""


def _lists(command: Any, shared: Mapping[str, str]) -> Iterator[str]:
    """Yield arguments and options as a list, which wraps on a phone, and the names of those that the index of commands tells."""
    arguments = [p for p in command.params if p.param_type_name == "argument" and not p.hidden]
    own = [p for p in _options(command) if shared.get(p.opts[0]) != _row(p)]
    for listed in (arguments, own):
        if listed:
            yield "\n".join(map(_row, listed))
    alike = [", ".join(f"`{name}`" for name in p.opts) for p in _options(command) if p not in own]
    of_all = [f"`{p.opts[0]}`" for p in command.params if (p.opts[0], getattr(p, "help", "")) in _SHARED]
    if alike:
        yield f"[As other commands](../commands.md#options-of-several-commands): {', '.join(alike)}."
    if of_all:
        yield f"[As all commands](../commands.md#options-of-all-commands): {', '.join(of_all)}."


def _row(parameter: Any) -> str:
    option = parameter.param_type_name == "option"
    names = ", ".join(f"`{name}`" for name in parameter.opts) if option else f"`{parameter.metavar}`"
    metavar = f" {parameter.metavar}" if option and parameter.metavar else ""
    default = parameter.default
    stated = f"Default: `{default}`."
    shown = "Required." if parameter.required else "" if default in (None, False, ()) else stated
    return f"- {names}{metavar}: {parameter.help} {shown}".rstrip()


def _example(name: str) -> str:
    if name not in EXAMPLES:
        return ""
    printed = io.StringIO()
    with page_width(), redirect_stdout(printed):
        main([name, *EXAMPLES[name]])
    text = printed.getvalue().rstrip()
    shown = "\n\n".join(part(text, each) for each in SHOWN[name]) if name in SHOWN else text
    return f"```console\n$ capplan {name} {shlex.join(EXAMPLES[name])}\n{first_lines(shown)}\n```"


WHOLE = (
    "commands.md",
    *(f"commands/{name}.md" for name in COMMANDS),
    "scenario.md",
    "numbers.md",
)
"""Pages of docs/ that are written whole, besides those of docs/scenario/."""


def pages(root: Path) -> list[Path]:
    """Return the pages whose marked blocks are run: all but those that are written whole."""
    names = {
        page: page.relative_to(root / "docs").as_posix() for page in sorted((root / "docs").rglob("*.md"))
    }
    own = [page for page, name in names.items() if name not in WHOLE and not name.startswith("scenario/")]
    return [root / "README.md", *own]


def generated(root: Path) -> dict[Path, str]:
    """Return the text of each page that is written whole."""
    docs = root / "docs"
    named = documentation() | scenario_keys.pages() | {"numbers.md": plan_numbers.index()}
    return {docs / name: text for name, text in named.items()}


def write(root: Path, only: Sequence[str] = ()) -> None:
    """Write docs/commands.md, docs/commands/, docs/scenario.md, docs/numbers.md and the marked blocks of all other pages again.

    Parameters
    ----------
    root : of the repository
    only : paths of pages that are written; none: all
    """
    os.chdir(root)  # commands of the pages are written as from the root of the repository
    whole, accuracy = generated(root), quoted_text(root)
    wanted = [root / name for name in only] or [*whole, *pages(root)]
    before = {page: page.read_text(encoding="utf-8") if page.exists() else "" for page in wanted}
    known: dict[str, str] = {}
    for page in wanted:
        text = whole.get(page) or with_output(with_quotes(before[page], accuracy), main, known)
        if text != before[page]:
            page.parent.mkdir(exist_ok=True)
            page.write_text(text, encoding="utf-8")
            sys.stderr.write(f"wrote {page.relative_to(root)}\n")


if __name__ == "__main__":
    write(Path(__file__).resolve().parents[2], sys.argv[1:])
