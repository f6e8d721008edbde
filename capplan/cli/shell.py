"""`--install-completion` and `--show-completion`: for the shell that is named behind them, else the one that the program runs in."""

from collections.abc import Sequence

from capplan.errors import InputError, unknown

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
