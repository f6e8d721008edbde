"""Regular expressions in a config.json: refused where they do not compile or could backtrack without end."""

import re
import warnings

from capplan.errors import InputError

LONGEST = 300
"""Letters of a pattern; published ones have about 50."""
MOST_REPEATS = 4
"""Most repeats of any number each; the time to match a name grows with that power of its length."""
MOST_OPTIONAL = 6
"""Optional parts, each of which doubles the time."""
_MARK = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?[a-zA-Z-]*:|\{[0-9]*,?[0-9]*\}|.", re.DOTALL)


def check_regular(pattern: str, place: str) -> None:
    r"""Raise the error for a pattern that does not compile, or that could take for ever to match.

    Parameters
    ----------
    pattern : without the `re:` before it
    place : file and key, for the error

    Examples
    --------
    >>> check_regular(r".*mlp\.(gate|up)_proj.*", "config.json")
    >>> check_regular(r"(.*)*x", "config.json")
    Traceback (most recent call last):
        ...
    capplan.errors.InputError: config.json: 're:(.*)*x' could take for ever to match: a repeat within a repeat
    """
    why = _trouble(pattern)
    if why:
        raise InputError(f"{place}: {f're:{pattern}'[:80]!r} could take for ever to match: {why}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError, Warning) as error:
        raise InputError(
            f"{place}: {f're:{pattern}'[:80]!r} is not a regular expression ({str(error)[:80]})"
        ) from None


def _trouble(pattern: str) -> str:
    """Return why a pattern could take for ever; empty where it cannot."""
    if len(pattern) > LONGEST:
        return f"it has {len(pattern):,} letters, more than {LONGEST}"
    repeats = optional = 0
    branching = [False]  # for each group that is open: whether there is more than one way through it
    inside = False  # whether that holds for the part that was read last
    for mark in _MARK.findall(pattern):
        if mark in ("*", "+") or (mark[0] == "{" and len(mark) > 1):
            if inside:
                return "a repeat within a repeat"
            repeats += 1
            branching[-1] = True
        elif mark == "?":
            optional += 1
            branching[-1] = True
        elif mark == "|":
            branching[-1] = True
        elif mark[0] == "(":
            branching.append(False)
        elif mark == ")" and len(branching) > 1:
            inside = branching.pop()
            branching[-1] |= inside
            continue
        inside = False
    if repeats > MOST_REPEATS or optional > MOST_OPTIONAL:
        return f"it has more than {MOST_REPEATS} repeats or {MOST_OPTIONAL} optional parts"
    return ""
