"""Machines that are there already: owning more is never dearer, each is used or unused with a reason, and no figure of an answer calls it ordered."""

import csv
import io
import json
import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from capplan.assumption import Assumption
from capplan.fleet.order import OWN, Machine, Survival
from capplan.fleet.price import ChosenPrice
from tests.sweeps import examples

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
SIZES = (1, 2, 4, 8)
SURVIVE = st.builds(
    Survival, st.sampled_from(["replica", "machine", "zone"]), st.integers(0, 2), zones=st.integers(3, 4)
)


@st.composite
def priced(draw):
    """A GPU in machines of some sizes at prices of their own, of which some are limited, with electricity or without."""
    sold = tuple(
        Machine("P", f"sku {gpus}", "h100-sxm", gpus, gpus * draw(st.floats(1.0, 4.0)), most=draw(st.none() | st.integers(0, 4)))
        for gpus in draw(st.sets(st.sampled_from(SIZES), min_size=1))
    )  # fmt: skip
    energy = draw(st.none() | st.floats(0.01, 3.0))
    return ChosenPrice(
        2.0, "on-demand", (), 0, None, None, Assumption("a", "b"), energy_usd_per_hour=energy, machines=sold
    )


def with_owned(price, gpus, count):
    there = Machine(OWN, f"{gpus} x h100-sxm", "h100-sxm", gpus, 0.0, most=count)
    return price.__class__(
        **{
            **{name: getattr(price, name) for name in price.__dataclass_fields__},
            "machines": (there, *price.machines),
        }
    )


@given(
    priced(),
    st.sampled_from(SIZES),
    st.integers(0, 6),
    st.sampled_from((1, 2, 4)),
    st.integers(1, 12),
    SURVIVE,
)
def test_owning_more_is_never_dearer_and_no_order_has_more_than_there_are(
    price, size, owned, each, busy, survive
):
    """One replica in a machine of eight whose electricity is dearer than a rented GPU is left out; three zones share two machines."""
    costs = []
    for count in (0, owned, owned + 1):
        had = with_owned(price, size, count)
        costs.append(had.order_usd_per_hour(each, 8, busy, survive=survive))
        order = had.order(each, 8, busy, survive)
        for line in order.lines if order else ():
            limits = [item.most for item in had.machines if item.sku == line.machine.sku]
            assert limits[0] is None or line.count <= limits[0]
    assert costs[1] <= costs[0] * (1 + 1e-9)
    assert costs[2] <= costs[1] * (1 + 1e-9)
