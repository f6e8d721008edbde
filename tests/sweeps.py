"""How long tests ask: some questions of a law at every run, more and new ones in `make fuzz`; short runs where their length decides nothing.

`make test` leaves out what is marked `long`, and keeps a sample of it; `make long`, `make check` and continuous integration run the rest.
"""

from collections.abc import Container, Iterable
from functools import partial
from typing import Any

import pytest
from hypothesis import settings

from capplan.fleet.review import Question
from capplan.fleet.search.search_cache import SearchCache


def examples(brief: int, long: int) -> int:
    """Return how many examples a law takes: `long` under the profile of new questions.

    A law that has found something at its full length keeps that question as an `@example`.
    """
    return brief if settings().derandomize else long


def long_but(sample: Container[Any], values: Iterable[Any]) -> list[Any]:
    """Return the parameters of a test, of which `make test` takes those in the sample and `make long` the others."""
    return [value if value in sample else pytest.param(value, marks=pytest.mark.long) for value in values]


def size_on_few_requests(patch: pytest.MonkeyPatch) -> None:
    """Size fleets on runs of a fifth of the requests: what a key changes shows in them too, and equal questions stay equal."""
    patch.setattr("capplan.questions.fleet.Question", partial(Question, requests=3000))
    patch.setattr("capplan.fleet.pools.joint.SIZING_REQUESTS", 1000)


def share_runs(patch: pytest.MonkeyPatch, runs: SearchCache) -> None:
    """Let the searches of one question after another share the runs of replicas, as the levers of one question do."""
    patch.setattr(SearchCache, "__init__", lambda cache: vars(cache).update(vars(runs)))
