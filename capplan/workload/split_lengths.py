"""Parts of the requests of classes: by the length of their prompts up to a threshold and above it, or a share of each class."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from capplan.numbers import Array
from capplan.workload.length import Lengths, empirical
from capplan.workload.multiples import thinned_arrival_cv
from capplan.workload.request_class import RequestClass, busier

VALUES = 2000
"""Prompts of equal weight that stand for a distribution."""


def prompt_tokens(lengths: Lengths) -> Array:
    """Return the prompt lengths that stand for a distribution, ascending."""
    return lengths.quantile((np.arange(VALUES) + 0.5) / VALUES)


def below_and_above(item: RequestClass, tokens: float) -> tuple[RequestClass | None, RequestClass | None]:
    """Return a class cut in two: prompts of at most so many tokens, and longer ones; None for a part without requests."""
    values = prompt_tokens(item.input_tokens)
    parts: list[RequestClass | None] = []
    for name, mine in (("up to", values[values <= tokens]), ("above", values[values > tokens])):
        if not len(mine):
            parts.append(None)
        elif len(mine) == len(values):
            parts.append(item)
        else:
            share = len(mine) / len(values)
            cut = replace(item, name=f"{item.name}, {name} {tokens:g}", input_tokens=empirical(mine))
            parts.append(busier(cut, share))
    return parts[0], parts[1]


def divisible(item: RequestClass) -> bool:
    """Return whether the requests of a class may be divided by length: none of them belongs to another."""
    return item.users is None and item.sessions is None and item.reuse is None


def share_of(item: RequestClass, share: float) -> RequestClass:
    """Return a share of the requests of a class, which a router deals out by weight: each request by chance."""
    return replace(busier(item, share), arrival_cv=float(thinned_arrival_cv(item.arrival_cv, share)))


def part_of_classes(
    classes: Sequence[RequestClass],
    above_tokens: float | None,
    up_to_tokens: float | None,
    share: float | None = None,
) -> tuple[RequestClass, ...]:
    """Return the parts of classes whose prompts have some lengths, or a share of each; classes without such a prompt are left out."""
    kept = tuple(classes if share is None else (share_of(item, share) for item in classes))
    if up_to_tokens is not None:
        kept = tuple(part for item in kept if (part := below_and_above(item, up_to_tokens)[0]) is not None)
    if above_tokens is not None:
        kept = tuple(part for item in kept if (part := below_and_above(item, above_tokens)[1]) is not None)
    return kept


def thresholds(classes: Sequence[RequestClass], parts: Sequence[float]) -> tuple[float, ...]:
    """Return prompt lengths that these parts of all requests do not exceed, with two significant digits, ascending."""
    values = np.concatenate([prompt_tokens(item.input_tokens) for item in classes])
    weights = np.repeat([item.request_rate_at() / VALUES for item in classes], VALUES)
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    found = [float(values[order][np.searchsorted(reached, part)]) for part in parts]
    rounded = {float(f"{value:.2g}") for value in found}
    least, most = float(values.min()), float(values.max())
    return tuple(sorted(value for value in rounded if least <= value < most))
