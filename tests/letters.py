"""The letters of a formula, as the docstring of its function states them."""

import re
from inspect import getdoc

_PARAMETER = re.compile(r"^(\w+) : \[([^\]]+)\]\n\s+(\w+)(?=[,.;: ]|$)", re.MULTILINE)


def symbols_of(function: object) -> dict[str, tuple[str, str]]:
    """Return the parameters of a formula with their letter and unit, as its docstring states them."""
    lines = _PARAMETER.findall(getdoc(function) or "")
    return {name: (letter, unit) for name, unit, letter in lines}
