"""Numbers that commands print beside the row of a plan: groups of them, and rows whose numbers explain each other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from capplan.explain.quantities import AnySubject, explained_quantity, subject_of
from capplan.explain.record import Explained, Input, input_of
from capplan.explain.subject import Place, name_of
from capplan.fleet.plan import AnyPlan, FleetAnswer
from capplan.questions.fleet import AskedFleet

_STATED = ("requests",)
"""Of the traffic: no weaker for the times that other numbers of their row rest on."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A scenario with its plans, of which one is recommended."""

    asked: AskedFleet
    answer: FleetAnswer
    plan: AnyPlan
    """The recommended one."""
    apis: tuple[str, ...] = ()
    """Hosted APIs to compare with; empty: all that serve the model."""

    def of_plan(self, quantity: str) -> Explained:
        """Return a number of the recommended plan explained."""
        return explained_quantity(subject_of(self.asked, self.plan), quantity)


@dataclass(frozen=True, slots=True)
class Group:
    """Numbers that one command prints, or one part of what it prints."""

    numbers: Mapping[Place, float]
    """By their place in the result, the name of the group left out."""
    explain: Callable[[Place, float], Explained]
    """From a place and the number there; its quantity may lack the name of the group."""
    plans: Mapping[str, Callable[[], AnySubject]] = field(default_factory=dict)
    """By path, the plans that it holds, of which more can be explained than is printed."""


@dataclass(frozen=True, slots=True)
class Row:
    """The numbers of one row of a group."""

    group: str
    numbers: Mapping[Place, float]
    place: Place = ()
    label: str = "derived"
    """Of what its numbers rest on."""

    def value(self, name: str) -> float:
        """Return one of the numbers."""
        return self.numbers[(*self.place, name)]

    def input(self, symbol: str, name: str) -> Input:
        """Return one of the numbers as an input of another."""
        path, label = name_of((self.group, *self.place, name)), "config" if name in _STATED else self.label
        return input_of(symbol, name, self.value(name), label, f"explain {path}")

    def inputs(self, names: Mapping[str, str]) -> tuple[Input, ...]:
        """Return several of the numbers, by their letter."""
        return tuple(self.input(symbol, name) for symbol, name in names.items())
