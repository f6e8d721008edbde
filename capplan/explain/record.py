"""How a number came about: its formula, what went into it, and where each of those is from; formulas are read from docstrings."""

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import getdoc
from typing import Any

from capplan.report.screen_units import unit_of

_ORDER = ("spec", "config", "derived", "measured", "assumed")
"""Labels, the most certain first."""
_FORMULA = re.compile(r"\n\n((?: {4}.*\n?)+)")
_EXPLAINED_BY = re.compile(r"explain ([\w.\[\]]+)(.*)")
"""A source that is another number, and what is said of it."""
_OF_SCENARIO = re.compile(r"scenario: ([\w-]+(?:\.[\w-]+)*)")
"""A source that is a key of the scenario."""
_PARAMETER = re.compile(r"^(\w+) : \[([^\]]+)\]\n\s+(\w+)(?=[,.;: ]|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Input:
    """One symbol of a formula."""

    symbol: str
    name: str
    value: Any
    unit: str
    label: str
    """spec, config, derived, measured or assumed."""
    source: str
    """A datasheet, a price list, a key of the scenario, measured rows, or the quantity that explains it further."""


@dataclass(frozen=True, slots=True)
class Explained:
    """A quantity with everything that it was made from."""

    quantity: str
    value: float
    unit: str
    formula: str
    inputs: tuple[Input, ...]
    label: str
    """The weakest one of what it rests on."""
    page: str
    """Page of the documentation."""
    steps: tuple["Explained", ...]


def input_of(symbol: str, name: str, value: Any, label: str, source: str) -> Input:
    """Return a symbol of a formula; its unit is that of its name."""
    return Input(symbol, name, value, unit_of(name), label, source)


def formula_of(function: object) -> str:
    """Return the formula in the docstring of a function, in one line.

    Examples
    --------
    >>> from capplan.fleet.price import usd_per_month
    >>> formula_of(usd_per_month)
    'm = h n'
    """
    match = _FORMULA.search(getdoc(function) or "")
    return " ".join(match[1].split()) if match else ""


def symbols_of(function: object) -> dict[str, tuple[str, str]]:
    """Return the parameters of a formula with their letter and unit, as its docstring states them.

    Examples
    --------
    >>> from capplan.fleet.price import usd_per_month
    >>> symbols_of(usd_per_month)
    {'usd_per_hour': ('h', '$/h'), 'hours': ('n', 'h')}
    """
    lines = _PARAMETER.findall(getdoc(function) or "")
    return {name: (letter, unit) for name, unit, letter in lines}


def within(group: str, item: Explained, numbers: Container[str]) -> Explained:
    """Return an explanation of one of several plans, its numbers named as in the result that holds them all.

    Parameters
    ----------
    group : of the plan in the result, such as choices.surest
    item : explained by itself
    numbers : of the plan, by name
    """

    def named(name: str) -> str:
        return f"{group}.{name}" if name in numbers else name

    def source_in(source: str) -> str:
        match = _EXPLAINED_BY.match(source)
        return f"explain {named(match[1])}{match[2]}" if match else source

    return replace(
        item,
        quantity=named(item.quantity),
        inputs=tuple(replace(each, source=source_in(each.source)) for each in item.inputs),
        steps=tuple(within(group, step, numbers) for step in item.steps),
    )


def labelled(item: Explained, written: Mapping[str, Any]) -> Explained:
    """Return an explanation whose inputs from the scenario say `config` if their key is written there, and else `assumed`.

    Parameters
    ----------
    item : explained, its steps too
    written : the scenario as its file has it
    """
    inputs = tuple(_labelled_input(each, written) for each in item.inputs)
    steps = tuple(labelled(step, written) for step in item.steps)
    before = {each.label for each in item.inputs} | {step.label for step in item.steps}
    own = "derived" if item.label in before else item.label
    labels = [own, *(each.label for each in inputs), *(step.label for step in steps)]
    return replace(item, inputs=inputs, steps=steps, label=max(labels, key=_ORDER.index))


def _labelled_input(each: Input, written: Mapping[str, Any]) -> Input:
    match = _OF_SCENARIO.match(each.source)
    if match is None or each.label not in {"config", "assumed"}:
        return each
    return replace(each, label="config" if is_written(match[1], written) else "assumed")


def is_written(path: str, written: Any) -> bool:
    """Return whether a mapping states the key at a path, in one of its records if a key on the way holds a list.

    Examples
    --------
    >>> is_written("prices.people", {"prices": {"overhead": 0.1}})
    False
    >>> is_written("traffic.users", {"traffic": [{"name": "chat", "users": 40}]})
    True
    """
    if isinstance(written, list):
        return any(is_written(path, part) for part in written)
    first, _, rest = path.partition(".")
    value = written.get(first) if isinstance(written, Mapping) else None
    return value is not None and (not rest or is_written(rest, value))


def worked(
    quantity: str,
    function: Callable[..., Any],
    inputs: Mapping[str, tuple[Any, str, str]],
    *,
    page: str,
    steps: Sequence[Explained],
) -> Explained:
    """Return a quantity as the function that commands call works it out.

    Parameters
    ----------
    quantity : its name in results
    function : a formula, whose docstring has its letters
    inputs : by parameter, its value, label and source
    page : of the documentation
    steps : of inputs that are explained further

    Returns
    -------
    Explained; its value is what the function returns for these inputs
    """
    symbols = symbols_of(function)
    symbols_given = tuple(
        Input(symbols[name][0], name, value, symbols[name][1], label, source)
        for name, (value, label, source) in inputs.items()
    )
    value = float(function(**{name: value for name, (value, _, _) in inputs.items()}))
    return explained(quantity, value, formula_of(function), symbols_given, page, steps=steps)


def explained(
    quantity: str,
    value: float,
    formula: str,
    inputs: Sequence[Input],
    page: str,
    *,
    label: str = "derived",
    steps: Sequence[Explained] = (),
) -> Explained:
    """Return a quantity explained; its label is the weakest one of its inputs, of its steps and of how it was worked out.

    An input that is the result of a step has the label of the step.
    """
    of_steps = {step.quantity: step.label for step in steps}
    inputs = [replace(item, label=of_steps.get(item.name, item.label)) for item in inputs]
    labels = [label, *(item.label for item in inputs), *(step.label for step in steps)]
    return Explained(
        quantity,
        value,
        unit_of(quantity),
        formula,
        tuple(inputs),
        max(labels, key=_ORDER.index),
        page,
        tuple(steps),
    )
