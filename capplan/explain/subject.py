"""The plan that is explained, and what is simulated of it, once."""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import getdoc
from math import isfinite
from typing import Any

import numpy as np

from capplan.errors import InputError
from capplan.fleet.plan import Plan
from capplan.memory.layer_groups import held_state_bytes
from capplan.memory.plan import MemoryPlan
from capplan.model.kv_cache import kv_bytes_per_token
from capplan.model.weight_format import kv_bytes_per_element
from capplan.money.price import ChosenPrice
from capplan.questions.fleet import AskedFleet
from capplan.questions.plans.facts import ReplicaFacts, replica_facts
from capplan.questions.plans.plan_row import plan_row
from capplan.replica.replica import memory_of
from capplan.replica.spec import ReplicaSpec, served_context_tokens
from capplan.report.answers.replica import OF_A_GPU
from capplan.report.quantities import unexplained
from capplan.report.screen_units import unit_of

_ORDER = ("spec", "config", "derived", "measured", "assumed")
"""Labels, the most certain first."""
_FORMULA = re.compile(r"\n\n((?: {4}.*\n?)+)")
_EXPLAINED_BY = re.compile(r"explain ([\w.\[\]]+)(.*)")
"""A source that is another number, and what is said of it."""
_OF_SCENARIO = re.compile(r"scenario: ([\w-]+(?:\.[\w-]+)*)")
"""A source that is a key of the scenario."""


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

    def input(self, symbol: str) -> Input:
        """Return the quantity as a symbol of another formula."""
        return input_of(symbol, self.quantity, self.value, self.label, f"explain {self.quantity}")


def input_of(symbol: str, name: str, value: Any, label: str, source: str) -> Input:
    """Return a symbol of a formula; its unit is that of its name."""
    return Input(symbol, name, value, unit_of(name), label, source)


def formula_of(function: object) -> str:
    """Return the formula in the docstring of a function, in one line.

    Examples
    --------
    >>> from capplan.money.price import usd_per_month
    >>> formula_of(usd_per_month)
    'm = h n'
    """
    match = _FORMULA.search(getdoc(function) or "")
    return " ".join(match[1].split()) if match else ""


def in_words(statistic: str) -> str:
    """Return a statistic in words.

    Examples
    --------
    >>> in_words("mean"), in_words("p95")
    ('mean', '95th percentile')
    """
    return f"{statistic[1:]}th percentile" if re.fullmatch(r"p\d+", statistic) else statistic


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
    steps = tuple(labelled(step, written) for step in item.steps)
    of_steps = {step.quantity: step.label for step in steps}
    inputs = tuple(
        replace(each, label=of_steps[each.name]) if each.name in of_steps else _labelled_input(each, written)
        for each in item.inputs
    )
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


HELD = {
    **{f"{name}_per_gpu": name for name in OF_A_GPU},
    "reserved_bytes_per_sequence": "reserved_bytes_per_sequence",
    "max_concurrency": "max_concurrency",
}
"""Quantity, named as `capplan fit` names it -> the figure of the memory plan."""
Place = tuple[str | int, ...]
"""Where a number stands in a result: keys of mappings, positions in lists."""


def places_of(result: Any, place: Place = ()) -> Iterator[tuple[Place, float]]:
    """Yield the numbers of a result with their places."""
    if isinstance(result, Mapping):
        for key, value in result.items():
            yield from places_of(value, (*place, key))
    elif isinstance(result, (list, tuple)):
        for position, value in enumerate(result):
            yield from places_of(value, (*place, position))
    elif isinstance(result, (int, float)) and not isinstance(result, bool) and isfinite(result):
        yield place, result


def name_of(place: Place) -> str:
    """Return a place as it is written.

    Examples
    --------
    >>> name_of(("classes", 0, "usd_per_request"))
    'classes[0].usd_per_request'
    """
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")


def listed_path(path: str, numbers: Iterable[str]) -> str:
    """Return a path as the numbers of an answer have it: a plan of one group has those of its group itself.

    Examples
    --------
    >>> listed_path("plans[1].groups[0].gpus", ["plans[1].gpus"]), listed_path("groups[0].watts", ["groups[0].gpus"])
    ('plans[1].gpus', 'groups[0].watts')
    """
    plan, group, key = path.partition("groups[0].")
    has_groups = any(name.startswith(f"{plan}{group}") for name in numbers)
    return path if has_groups else f"{plan}{key}"


def plan_numbers(plan: Plan) -> dict[str, float]:
    """Return the numbers of a plan by name; those of its groups and of single machines have other names, or are no result."""
    return {name_of(place): value for place, value in plan_places(plan)}


def plan_places(plan: Plan) -> Iterator[tuple[Place, float]]:
    """Yield the same numbers with their places; a plan of one group has those of the group itself."""
    row = {key: value for key, value in plan_row(plan).items() if not unexplained(key)}
    order = {key: value for key, value in (row["order"] or {}).items() if not unexplained(f"order.{key}")}
    groups = row["groups"] if len(plan.groups) > 1 or plan.is_mix else None
    return places_of({**row, "groups": groups, "order": order})


def group_path(plan: Plan, at: int) -> str:
    """Return where the numbers of a group of a plan stand; a plan of one group has them itself."""
    return f"groups[{at}]." if len(plan.groups) > 1 else ""


@dataclass
class PlanSubject:
    """A plan whose quantities are asked for."""

    asked: AskedFleet
    plan: Plan

    @cached_property
    def numbers(self) -> dict[str, float]:
        """Return the numbers of the plan by name, such as groups[1].gpus."""
        return plan_numbers(self.plan)

    def number(self, symbol: str, path: str, label: str = "derived") -> Input:
        """Return a number of the plan as a symbol of another formula."""
        return input_of(symbol, path, self.numbers[path], label, f"explain {path}")

    @property
    def label(self) -> str:
        """Return the weakest label of the groups."""
        return "assumed" if "assumed" in (group.label for group in self.plan.groups) else "measured"


@dataclass
class Subject(PlanSubject):
    """A plan of identical replicas."""

    @cached_property
    def numbers(self) -> dict[str, float]:
        """Return the numbers of the plan by name, such as ttft_s.p95, and the memory of one of its devices."""
        return plan_numbers(self.plan) | self.memory_figures

    @property
    def memory_figures(self) -> dict[str, float]:
        """Return the memory of the fullest device by the names of `fit` and `kv-size`, at the longest context that it serves."""
        figures = {name: float(getattr(self.memory, figure)) for name, figure in HELD.items()}
        element, context = kv_bytes_per_element(self.spec.kv_format), float(served_context_tokens(self.spec))
        token = kv_bytes_per_token(self.spec.network, context, element, stored=True)
        state = held_state_bytes(self.spec.network, 1.0, self.spec.profile.memory.recurrent_format)
        held = {"kv_bytes_per_token": token, "state_bytes_per_sequence": state}
        return figures | {name: float(np.asarray(size)) for name, size in held.items()}

    @property
    def busy(self) -> int:
        """Return the replicas without spares."""
        return self.plan.single.busy_replicas

    @property
    def price(self) -> ChosenPrice:
        """Return the price of the plan's device in its order."""
        if self.plan.single.quote is None:
            raise InputError(f"no price of {self.plan.single.layout.device.name} is listed any more")
        return self.plan.single.quote

    @cached_property
    def facts(self) -> ReplicaFacts:
        """Return the replicas of the plan as the search simulates them."""
        return replica_facts(self.asked, self.plan)

    @property
    def spec(self) -> ReplicaSpec:
        """Return what one replica is."""
        return self.facts.replica.spec

    @property
    def engine(self) -> str:
        """Return name and version of the engine."""
        return f"{self.spec.profile.engine} {self.spec.profile.version}"

    @property
    def confidence(self) -> float:
        """Return the required confidence."""
        return self.asked.scenario.slo.confidence

    @cached_property
    def memory(self) -> MemoryPlan:
        """Return the memory of the fullest device of a replica."""
        return memory_of(self.spec)

    @property
    def kernels(self) -> str:
        """Return where the kernel times of the plan are from."""
        how = "measured on" if self.plan.single.label == "measured" else "borrowed for"
        return f"kernels {how} {self.plan.single.layout.device.name}"

    def of_scenario(self, symbol: str, name: str, value: float | None, key: str) -> Input:
        """Return an input that a key of the scenario states, or its default."""
        return input_of(symbol, name, value, "config", f"scenario: {key}")

    def limits(self, key: str = "") -> list[Input]:
        """Return the limits of all targets, or of one."""
        limits = {target.key: limit + target.outside_s for target, limit in self.facts.limits.items()}
        return [
            Input("", f"slo.{name}", limit_s, "s", "config", f"scenario: slo.{name}")
            for name, limit_s in limits.items()
            if key in ("", name)
        ]
