"""What a fleet survives: orders against every combination of machines, spares against every placement, availability against a simulation."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.fleet.availability import SECONDS_PER_MONTH, Machines, availability
from capplan.money.order import (
    Machine,
    Survival,
    failures_per_s,
    order_of,
    spares_in,
    surviving_cover,
)

SMALL = "tests/golden/small.yaml"
pytestmark = pytest.mark.usefixtures("shared_runs")


def left_after(counts, capacities, lost):
    """Return what is left of some machines without the largest ones."""
    every = sorted((c for n, c in zip(counts, capacities, strict=True) for _ in range(n)), reverse=True)
    return sum(every[lost:])


def every_survivor(units, capacities, prices, most, lost):
    """Return the lowest cost of all combinations that still cover the units without the largest machines."""
    limits = [
        math.ceil(units / c) + lost if limit is None else min(limit, math.ceil(units / c) + lost)
        for c, limit in zip(capacities, most, strict=True)
    ]
    return min(
        (
            sum(n * p for n, p in zip(counts, prices, strict=True))
            for counts in itertools.product(*(range(limit + 1) for limit in limits))
            if left_after(counts, capacities, lost) >= units
        ),
        default=math.inf,
    )


def test_brute_force_on_200_random_small_cases_finds_nothing_cheaper():
    """Up to three kinds of machines, some free, some limited, of which none, one or two are lost."""
    dice = random.Random(27)
    for _ in range(200):
        kinds = [
            (
                dice.randint(1, 8),
                dice.choice([0.0, 1.0, 2.5, 7.0, 9.9, 16.0]),
                dice.choice([None, 1, 2, 3]),
            )
            for _ in range(dice.randint(1, 3))
        ]
        kinds = [(c, p, 3 if p == 0.0 and limit is None else limit) for c, p, limit in kinds]
        capacities, prices, most = zip(*kinds, strict=True)
        units, lost = dice.randint(1, 14), dice.randint(0, 2)
        counts = surviving_cover(units, capacities, prices, most, lost)
        least = every_survivor(units, capacities, prices, most, lost)
        if counts is None:
            assert least == math.inf
            continue
        assert left_after(counts, capacities, lost) >= units
        assert all(limit is None or n <= limit for n, limit in zip(counts, most, strict=True))
        assert sum(n * p for n, p in zip(counts, prices, strict=True)) == pytest.approx(least)


def fewest_replicas(capacities, busy, lost):
    """Return the fewest replicas of any placement that leaves enough without the fullest machines."""
    machines = [c for c, n in capacities for _ in range(n)]
    return min(
        (
            sum(placed)
            for placed in itertools.product(*(range(c + 1) for c in machines))
            if sum(sorted(placed)[: len(placed) - lost]) >= busy
        ),
        default=None,
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 2)), min_size=1, max_size=3),
    st.integers(1, 6),
    st.integers(0, 2),
)
def test_no_placement_has_fewer_spares(capacities, busy, lost):
    spares = spares_in(capacities, busy, lost)
    fewest = fewest_replicas(capacities, busy, lost)
    assert (None if spares is None else busy + spares) == fewest


KINDS = tuple(Machine("p", f"x{gpus}", "gpu", gpus, 2.0 * gpus**0.95) for gpus in (1, 2, 4, 8))
DOMAINS = st.builds(
    Survival,
    st.sampled_from(["replica", "machine", "rack", "zone"]),
    st.integers(0, 2),
    st.integers(1, 3),
    st.integers(3, 4),
    st.integers(0, 2),
)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 40),
    st.sampled_from([1, 2, 4, 8, 16]),
    DOMAINS,
    st.sets(st.sampled_from(KINDS), min_size=1),
)
def test_an_order_holds_its_replicas_and_more_demands_are_never_cheaper(busy, each, survive, some):
    machines = tuple(sorted(some, key=lambda item: item.gpus))
    order, plain = order_of(machines, each, 8, busy, survive), order_of(machines, each, 8, busy)
    assert (order is None) == (plain is None)
    if order is None:
        return
    assert order.replicas >= busy + order.spares
    assert order.spares >= survive.least_spares(busy)
    assert order.usd_per_hour >= plain.usd_per_hour - 1e-9
    placed = order.placed()
    assert sum(item.machines // item.span * item.replicas for item in placed) == busy + order.spares
    held = sorted((item.replicas for item in placed for _ in range(item.machines // item.span)), reverse=True)
    assert sum(held[survive.lost_machines :]) >= busy + survive.unavailable or survive.domain in (
        "replica",
        "zone",
    )
    larger = order_of(machines, each, 8, busy + 1, survive)
    assert larger is None or larger.usd_per_hour >= order.usd_per_hour - 1e-9
    every = order_of(KINDS, each, 8, busy, survive)
    assert every is not None
    assert every.usd_per_hour <= order.usd_per_hour + 1e-9


def simulated(machines, busy, repair_s, months, dice):
    """Return the part of the time with enough replicas, and of the months without a shortage: machines fail and are repaired one by one."""
    flat = [(kind.replicas, kind.failures_per_s) for kind in machines for _ in range(kind.count)]
    enough_s = good = 0
    for _ in range(months):
        down = [dice.random() < rate * repair_s / (1.0 + rate * repair_s) for _, rate in flat]
        now, short = 0.0, False
        while now < SECONDS_PER_MONTH:
            up = sum(held for (held, _), is_down in zip(flat, down, strict=True) if not is_down)
            rates = [
                1.0 / repair_s if is_down else rate for (_, rate), is_down in zip(flat, down, strict=True)
            ]
            step = min(dice.expovariate(sum(rates)), SECONDS_PER_MONTH - now)
            enough_s += step if up >= busy else 0.0
            short |= up < busy
            now += step
            machine = dice.choices(range(len(flat)), rates)[0]
            down[machine] = not down[machine]
        good += not short
    return enough_s / (months * SECONDS_PER_MONTH), good / months


@pytest.mark.parametrize(
    ("machines", "busy"),
    [
        ([Machines(7, 1, 1.0 / (60 * 86400.0))], 6),
        ([Machines(3, 3, 1.0 / (60 * 86400.0))], 6),
        ([Machines(2, 4, 1.0 / (40 * 86400.0)), Machines(3, 1, 1.0 / (90 * 86400.0))], 7),
    ],
)
def test_availability_is_that_of_a_simulation(machines, busy):
    found = availability(machines, busy, 86400.0)
    fraction, month = simulated(machines, busy, 86400.0, 4000, random.Random(8))
    assert found.time_fraction == pytest.approx(fraction, abs=0.002)
    assert found.month_probability == pytest.approx(month, abs=0.025)


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 5), st.floats(1e-9, 1e-5))
def test_one_machine_more_never_makes_a_plan_less_available(count, each, extra, rate):
    busy = max(1, (count - extra) * each)
    few = availability([Machines(count, each, rate)], min(busy, count * each), 86400.0)
    more = availability([Machines(count + 1, each, rate)], min(busy, count * each), 86400.0)
    assert few.time_fraction <= more.time_fraction + 1e-12
    assert few.month_probability <= few.time_fraction + 1e-12


def test_a_server_of_eight_fails_as_often_as_published():
    """419 interruptions of 2,048 servers in 54 days: one in 264 days; a machine of one GPU keeps those that no GPU causes."""
    assert 1.0 / failures_per_s(8) / 86400.0 == pytest.approx(2048 * 54 / 419)
    assert failures_per_s(1) == pytest.approx((268 / 8 + 151) / (2048 * 54 * 86400))


def fleet(capplan, *words, code=0):
    return capplan.result("fleet", SMALL, "--offline", *words, code=code)


@pytest.fixture(scope="module")
def eights(tmp_path_factory):
    """A price list of one provider that sells L4 in eights only."""
    file = tmp_path_factory.mktemp("prices") / "prices.yaml"
    file.write_text(
        "sources: {page: {title: page, url: 'https://example.org'}}\n"
        "prices:\n"
        "  - {device: l4, provider: P, sku: eight, devices: 8, commitment: on-demand, price: 4 $/h, date: 2026-11-02, source: page}\n"
    )
    return ("--hardware", "l4", "--set", "prices={}", "--set", f"prices.file={file}")


def test_a_plan_survives_what_it_says(capplan, eights):
    busy, usd = {}, {}
    for name, keys in {
        "nothing": ["fleet.survive={machine: 0}"],
        "replica": ["fleet.survive={replica: 1}"],
        "machine": ["fleet.survive={machine: 1}"],
        "two": ["fleet.survive={machine: 2}"],
        "update": ["fleet.survive={machine: 1}", "fleet.max_unavailable=2"],
        "rack": ["fleet.survive={rack: 1}", "fleet.machines_per_rack=2"],
    }.items():
        words = [word for key in ("fleet.spare_replicas=null", *keys) for word in ("--set", key)]
        plan = fleet(capplan, *eights, *words)["plans"][0]
        busy[name], usd[name] = plan["replicas"] - plan["spare_replicas"], plan["usd_per_hour"]
        placed = [item["replicas"] for item in plan["order"]["placement"] for _ in range(item["machines"])]
        assert sum(placed) == plan["replicas"]
        lost = {"machine": 1, "two": 2, "update": 1, "rack": 2}.get(name, 0)
        assert sum(sorted(placed)[: len(placed) - lost]) >= busy[name]
        assert plan["survival"]["month_probability"] <= plan["survival"]["time_fraction"] <= 1.0
    assert usd["nothing"] <= usd["replica"] <= usd["machine"] <= usd["two"] == usd["rack"]
    assert usd["machine"] <= usd["update"]


def test_the_default_is_one_machine_and_said(capplan, eights):
    ran = capplan(
        "fleet", SMALL, "--offline", "--full", "--assumptions", *eights, "--set", "fleet.spare_replicas=null"
    )
    assert "without 1 machine" in ran.out
    assert "with one machine gone" in ran.out
    assert "one machine more (eight, $2,920 per month)" in ran.out
