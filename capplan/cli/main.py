"""The program: finds the command, loads only that one, and turns our errors into exit codes; its version, with the state of the compiled core, and completion."""

import errno
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from functools import cache
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperCommand, TyperGroup

from capplan import __version__
from capplan.cli.commands import COMMANDS, DROPPED, EXAMPLES, FUNCTIONS
from capplan.errors import LONGEST_SHOWN, CapplanError, InputError, nearest, unknown
from capplan.report.safe_text import message

FOLDER = Path(__file__).parents[1] / "serving"
REASON_FILE = "core_not_compiled.txt"
"""Written by hatch_build.py next to the core where it could not compile it."""
CORE = "flat_engine"
TIMES_SLOWER = 40
"""How many times as long simulations take without the compiled core, about."""
UNRECORDED = "its compiled files are missing"


def core_missing(folder: Path = FOLDER) -> str:
    """Return why the core is not compiled; empty where it is."""
    if any((folder / f"{CORE}{end}").is_file() for end in EXTENSION_SUFFIXES):
        return ""
    recorded = folder / REASON_FILE
    return recorded.read_text(encoding="utf-8").strip() if recorded.is_file() else UNRECORDED


def core_words(folder: Path = FOLDER) -> str:
    """Return what the program says of its core."""
    reason = core_missing(folder)
    if not reason:
        return "compiled core"
    return f"core not compiled: {reason}; simulations take about {TIMES_SLOWER} times as long"


_SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
_INSTALL, _SHOW = "--install-completion", "--show-completion"
_PROGRAM, _VARIABLE = "capplan", "_CAPPLAN_COMPLETE"
"""What is completed, and the variable with which a shell asks it."""


def completes(words: Sequence[str]) -> bool:
    """Return whether a command line wants completion, which is then installed or shown.

    Raises
    ------
    InputError
        the shell that is named is not known, none is named and none is found, or its files cannot be written
    """
    option, equals, value = words[0].partition("=") if words else ("", "", "")
    if option not in (_INSTALL, _SHOW):
        return False
    named = value if equals else next(iter(words[1:]), "-")
    if named in ("-h", "--help"):
        return False
    shell = _running_shell(option) if named.startswith("-") else named.lower()
    if shell not in _SHELLS:
        raise unknown("shell", shell, _SHELLS, place=option)
    if option == _INSTALL:
        _install(shell)
    else:
        from typer._completion_shared import get_completion_script

        print(get_completion_script(prog_name=_PROGRAM, complete_var=_VARIABLE, shell=shell))
    return True


def _install(shell: str) -> None:
    from typer._completion_shared import install

    try:
        _, path = install(shell=shell, prog_name=_PROGRAM, complete_var=_VARIABLE)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        place = getattr(error, "filename", None) or "the home folder"
        raise InputError(
            f"{_INSTALL}: cannot write {str(place)!r}: {reason}\n  print it instead: capplan {_SHOW} {shell}"
        ) from None
    print(f"{shell} completion is installed in {path}; it takes effect in the next terminal")


def _running_shell(option: str) -> str:
    import shellingham

    try:
        return str(shellingham.detect_shell()[0]).lower()
    except (shellingham.ShellDetectionFailure, OSError):
        raise InputError(
            f"{option}: no shell is found that this runs in\n  name one: capplan {option} {'|'.join(_SHELLS)}"
        ) from None


_ParserError: type[Exception] = typer.BadParameter.__mro__[2]
"""What the parser raises for words it cannot use; the base of bad parameters and unknown options."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


SIMULATING = frozenset(
    {"fleet", "capacity", "simulate", "sweep", "levers", "report", "compare", "verify-plan", "cascade"}
)
"""Commands whose time the simulator decides."""


@cache
def _warn_of_core() -> None:
    """Say once that the core is not compiled, and why."""
    if sys.stderr is not None and "--help" not in sys.argv and "-h" not in sys.argv:
        sys.stderr.write(f"warning: {core_words()}\n")


class _LazyCommands(TyperGroup):
    """The names and summaries of all commands; a command is imported when it is called."""

    def list_commands(self, _ctx: Any) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        """Return the named command, imported now."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in SIMULATING and core_missing():
            _warn_of_core()
        file, _, function = FUNCTIONS[cmd_name].partition(".")
        return as_click(cmd_name, getattr(import_module(f"capplan.cli.{file}"), function))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Name the nearest commands where there is none of that name."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            asked = f"{args[1]} " if args[0] == "help" and args[1:] and args[1] in COMMANDS else ""
            raise unknown("command", args[0], COMMANDS, hint=f"see: capplan {asked}--help")
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """Write the table without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


class _Sectioned(TyperCommand):
    """A command whose help has its options below the titles of their groups; options of none come first."""

    titles: Mapping[str, str]
    """Parameter -> title of its group."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options by group, the output last but for help."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if record is not None:
                sections.setdefault(self.titles.get(parameter.name or "", kind), []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


app = typer.Typer(
    cls=_LazyCommands,
    help="Capacity planning and cost modelling for LLM inference.",
    epilog="Exit codes: 0 done, 2 bad input, 3 does not fit, 4 target not reachable, 1 a bug of ours.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def as_click(name: str, function: Callable[..., int]) -> Any:
    """Return one command as the parser wants it."""
    single = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    example = EXAMPLES.get(name)
    single.command(name, cls=_Sectioned, epilog=example and f"For example: {example}")(function)
    command: Any = typer.main.get_command(single)
    command.titles = getattr(function, "titles", {})
    return command


_COMMANDS = _LazyCommands()
MOST_NAMED = 6
"""Commands that are named where the one that was typed lacks an option."""


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"capplan {__version__} ({core_words()})")
        raise typer.Exit


@app.callback()
def _common(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    del version


def _commands_with(option: str) -> dict[str, list[str]]:
    """Return the commands that have an option, and all its names in each."""
    commands = {name: _COMMANDS.get_command(None, name) for name in COMMANDS}
    return {name: p.opts for name, command in commands.items() for p in command.params if option in p.opts}


def _instead(option: str, names: Sequence[str], known: set[str]) -> str:
    """Return what a command has for an option of other commands: one of its own, or the key of its scenario."""
    if near := nearest(option, known):
        return f": did you mean {near[0]!r}?"
    if "--set" in known:
        from capplan.scenario.scenario_file import Fleet, ScenarioFile, Traffic

        keys = [name.lstrip("-").replace("-", "_") for name in names]
        places = {"": ScenarioFile, "fleet.": Fleet, "traffic[0].": Traffic}
        for place, record in places.items():
            if key := next((key for key in keys if key in record.__annotations__), None):
                return f": did you mean --set '{place}{key}=...'?"
    return ""


def _usage_message(error: Any) -> str:
    """Return an error of the parser in the form of all other errors."""
    path = error.ctx.command_path if getattr(error, "ctx", None) else "capplan"
    hint = f"see: {path} --help"
    if hasattr(error, "possibilities") and error.ctx is not None:
        known = {name for p in error.ctx.command.get_params(error.ctx) for name in p.opts if name[:1] == "-"}
        instead = DROPPED.get(f"{path.rpartition(' ')[2]} {error.option_name}")
        if instead is not None:
            return f"{error.option_name}: was removed: {instead}"
        arguments = " ".join(
            p.make_metavar(error.ctx) for p in error.ctx.command.params if not p.opts[0].startswith("-")
        )
        example = EXAMPLES.get(path.rpartition(" ")[2])
        if example and error.option_name[2:].upper() in re.findall(r"\w+", arguments):
            return f"{path}: has no {error.option_name}: it stands without a flag, as in {example}\n  {hint}"
        if having := _commands_with(error.option_name):
            question = _instead(error.option_name, next(iter(having.values())), known)
            more = ", ..." if len(having) > MOST_NAMED else ""
            named = ", ".join(list(having)[:MOST_NAMED])
            has = "has it" if len(having) == 1 else "have it"
            return f"{path}: has no {error.option_name}{question}\n  {named}{more} {has}\n  {hint}"
        return str(unknown("option", error.option_name, known, hint=hint))
    message = error.format_message().rstrip(".")
    example = EXAMPLES.get(path.rpartition(" ")[2]) if type(error).__name__ == "MissingParameter" else None
    return f"{path}: {message}\n  {hint}" + (f"; for example: {example}" if example else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code.

    Only errors of ours become one line; anything else is a bug and keeps its traceback.
    """
    if sys.stderr is None:  # closed: what print() would then write to stdout goes nowhere
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stderr(nowhere):
            return _exit_code(arguments)
    with redirect_stderr(cast("TextIO", _Remarks(sys.stderr))):
        return _exit_code(arguments)


class _Remarks:
    """The stream of warnings and progress; where nobody can write to it, such as on a full disk, the answer still comes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, or lose it."""
        try:
            return self._stream.write(text)
        except OSError:
            self._lose()
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, or lose it."""
        try:
            self._stream.flush()
        except OSError:
            self._lose()

    def _lose(self) -> None:
        """Let what is buffered, and all that follows, go nowhere."""
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())


def _exit_code(arguments: Sequence[str] | None) -> int:
    program = typer.main.get_command(app)
    if "_CAPPLAN_COMPLETE" in os.environ:
        return _completed(program)
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _refuse_nul(words)
        if completes(words):
            return 0
        with program.make_context("capplan", with_streams(words)) as context:
            code: int = program.invoke(context)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except typer.Exit as stop:
        return stop.exit_code
    except CapplanError as error:
        _say(str(error))
        return error.exit_code
    except _ParserError as error:
        return _complain(error)
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    except BrokenPipeError:
        _forget_stdout()  # the reader (head, a pager) has seen enough
        return 0
    except OSError as error:
        if not _has_working_folder():
            _say("the working folder does not exist any more\n  go to one that does: cd ~")
            return 2
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        _forget_stdout()
        _say(f"stdout: cannot be written: {error.strerror}")
        return 2


def _completed(program: Any) -> int:
    """Answer a shell that asks how a line may go on; a line that is wrong already goes on in no way."""
    with suppress(CapplanError):
        program.main(prog_name="capplan")
    return 0


def _refuse_nul(words: Sequence[str]) -> None:
    """Raise the error for a word that no file can be called."""
    for word in words:
        if "\0" in word:
            raise InputError(f"{word[:LONGEST_SHOWN]!r}: holds a NUL character, which nothing can be called")


_STDOUT = ("-o", "--output")
STDIN = "/dev/stdin"


def with_streams(words: Sequence[str]) -> list[str]:
    """Return a command line in which an input `-` is stdin. An output `-` is left out, because an answer goes to stdout by default.

    Examples
    --------
    >>> with_streams(["fleet", "-", "--plan=-", "-o", "-"])
    ['fleet', '/dev/stdin', '--plan=/dev/stdin']
    """
    if not any(word.endswith("-") for word in words):
        return list(words)
    from capplan.cli.options import OUTPUTS

    written = {*OUTPUTS.values(), "--save"}
    found: list[str] = []
    for word in words:
        before = found[-1] if found else ""
        option, equals, value = word.partition("=")
        if word == "-" and before in _STDOUT:
            found.pop()
        elif word == "-o-" or (equals and value == "-" and option in _STDOUT):
            continue
        elif word == "-" and before in written:
            raise InputError(f"{before}: - is stdout, where the answer goes; name a file")
        elif word == "-":
            found.append(STDIN)
        elif equals and value == "-" and option.startswith("--") and option not in written:
            found.append(f"{option}={STDIN}")
        else:
            found.append(word)
    return found


def _has_working_folder() -> bool:
    try:
        Path.cwd()
    except OSError:
        return False
    return True


def _say(text: str) -> None:
    print(message(text), file=sys.stderr)


def _forget_stdout() -> None:
    """Let what is still buffered go nowhere, so that it does not fail at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())
        return 0
    _say(_usage_message(error))
    return 2
