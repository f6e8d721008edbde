"""The errors that people see: what is wrong, where, what is allowed, and the way out."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum


class Refusal(StrEnum):
    """Why something that was asked for or tried cannot be; what code counts and decides by."""

    WEIGHT_DTYPE = "weight_dtype"
    KV_DTYPE = "kv_dtype"
    HEADS = "heads"
    EXPERTS = "experts"
    LAYERS = "layers"
    LINK_DOMAIN = "link_domain"
    REPLICA_SIZE = "replica_size"
    FLEET_SIZE = "fleet_size"
    MEMORY = "memory"
    OVERLOAD = "overload"
    """Not even one request at a time is served."""
    TARGET = "target"
    """A target is missed at every load."""
    LOAD = "load"
    """A target is missed at this load."""
    SIMULATION = "simulation"
    """A target is missed once the requests are simulated."""
    COST = "cost"
    """Something else costs less."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One refusal, with the words that people read."""

    code: Refusal
    words: str


class CapplanError(Exception):
    """A mistake in what we were given, or a question without an answer; never a bug of ours.

    The first line says what is wrong, with the value; the further lines say where, what is
    allowed, and one thing to do.
    """

    exit_code = 2


class InputError(CapplanError):
    """What was asked or read cannot be used (exit 2)."""


class DoesNotFitError(CapplanError):
    """The model does not fit on the devices (exit 3)."""

    exit_code = 3


class TargetError(CapplanError):
    """A target is missed or cannot be reached (exit 4)."""

    exit_code = 4


def unknown(kind: str, name: str, known: Iterable[str], *, place: str = "", hint: str = "") -> InputError:
    """Return the error for a name that is not in a list, with its nearest matches.

    Examples
    --------
    >>> print(unknown("hardware", "h20", ["h100", "h200", "l4"]))
    unknown hardware 'h20': did you mean 'h200'?
      known: h100, h200, l4
    """
    names = sorted(known)
    lower = {candidate.lower(): candidate for candidate in names}
    near = get_close_matches(name.lower(), lower, n=3, cutoff=0.55)
    near = [lower[n] for n in near if n.startswith(name.lower())] or [lower[n] for n in near]
    question = f": did you mean {' or '.join(repr(n) for n in near[:2])}?" if near else ""
    lines = [f"{place + ': ' if place else ''}unknown {kind} {name!r}{question}"]
    shown = names if len(names) <= 24 else [*near, *(n for n in names if n not in near)][:24]
    lines.append(f"  known: {', '.join(shown)}{', ...' if len(names) > len(shown) else ''}")
    if hint:
        lines.append(f"  {hint}")
    return InputError("\n".join(lines))
