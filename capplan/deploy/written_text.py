"""Texts of others in what is exported: a comment stays a comment, a word stays one word and is never expanded."""

from collections.abc import Iterable

from capplan.errors import LONGEST_SHOWN, InputError


def comment(text: str) -> str:
    r"""Return a line of comment for a shell and for YAML: line ends and control characters become spaces.

    Examples
    --------
    >>> comment("a device\n touch FILE")
    '# a device  touch FILE'
    """
    return "# " + "".join(letter if letter.isprintable() else " " for letter in text)


def checked_name(what: str, name: str | None) -> str | None:
    """Return a name that an engine can be started with, or that a manifest can hold.

    Raises
    ------
    InputError
        the name is blank, begins with a dash and would be read as an option, or has line ends, control characters or half a letter
    """
    if name is not None and (not name.strip() or not name.isprintable() or name.startswith("-")):
        raise InputError(f"{what}: {name[:LONGEST_SHOWN]!r} is not a name that an export can hold")
    return name


def unexpanded(words: Iterable[str]) -> list[str]:
    """Return words in which Kubernetes and Compose expand no variable: both read two dollar signs as one.

    Examples
    --------
    >>> unexpanded(["--model", "$(HF_TOKEN)"])
    ['--model', '$$(HF_TOKEN)']

    References
    ----------
    Kubernetes, "Define Dependent Environment Variables": $$(VAR) is not expanded. Compose specification, "Interpolation": a double dollar sign
    is a literal one.
    """
    return [word.replace("$", "$$") for word in words]


def refuse_variables(platform: str, name: str) -> None:
    """Raise the error for a model whose name a chart may expand, in places where no escape is known."""
    if "$" in name:
        raise InputError(
            f"{platform}: the model {name[:LONGEST_SHOWN]!r} has a dollar sign, which its charts may expand; rename its folder"
        )
