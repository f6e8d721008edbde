"""Random requests do not depend on how many are drawn: a fleet twice as large sees the same first requests."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from capplan.fleet.load.demand import Demand, drawn_requests
from capplan.workload.length import empirical, lognormal
from capplan.workload.request_class import RequestClass

CLASSES = (
    RequestClass(
        "chat", lognormal(800.0, 0.9), lognormal(200.0, 0.7), request_rate_per_s=3.0, prefix_hit_fraction=0.4,
        shared_prefix_tokens=100.0,
    ),
    RequestClass("code", empirical([10.0, 500.0, 4000.0]), lognormal(50.0, 0.2), request_rate_per_s=1.0),
)  # fmt: skip


def _demand(classes: tuple[RequestClass, ...]) -> Demand:
    return Demand(classes, classes[0].input_tokens, 4096)


@given(few=st.integers(1, 400), more=st.integers(0, 400), seed=st.integers(0, 1000))
def test_the_first_requests_of_a_longer_draw_are_those_of_a_shorter_one(
    few: int, more: int, seed: int
) -> None:
    demand = _demand(CLASSES)
    short, long = (drawn_requests(demand, count, seed, 4096) for count in (few, few + more))
    for name in ("input_tokens", "output_tokens", "cached_tokens", "class_index"):
        assert np.array_equal(getattr(short, name), getattr(long, name)[:few]), name


@given(rate=st.floats(0.1, 50.0), seed=st.integers(0, 1000))
def test_the_lengths_of_a_class_do_not_depend_on_the_rate_of_another(rate: float, seed: int) -> None:
    demand = _demand(CLASSES)
    other = _demand((CLASSES[0], replace(CLASSES[1], request_rate_per_s=rate)))
    lengths = [
        drawn.input_tokens[drawn.class_index == 0]
        for drawn in (drawn_requests(item, 300, seed, 4096) for item in (demand, other))
    ]
    shared = min(len(part) for part in lengths)
    assert np.array_equal(lengths[0][:shared], lengths[1][:shared])
