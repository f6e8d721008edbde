"""Several fleets for one service: against every division, against one kind of GPU, and as a router sends the requests."""

import itertools
import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.fleet.mix import Costs, cheapest_division, partitions
from capplan.workload.length import fixed, lognormal
from capplan.workload.request_class import RequestClass
from capplan.workload.split_lengths import below_and_above, prompt_tokens, thresholds

pytestmark = pytest.mark.usefixtures("shared_runs")
TWO = """name: two
model: meta-llama/Llama-3.1-8B-Instruct
traffic:
  - {name: chat, request_rate: 30 req/s, input_tokens: 200, output_tokens: 60}
  - {name: documents, request_rate: 1 req/s, input_tokens: 8000, output_tokens: 100}
slo: {ttft_p95: 2 s, tpot_p95: 100 ms, confidence: 50 %}
fleet: {hardware: [l4, h100-sxm], tensor_parallel: 1, pipeline_parallel: 1, headroom: 0 %, survive: {machine: 0}}
prices: {per_gpu_hour: {l4: 0.4 $/h, h100-sxm: 4 $/h}}
"""


def groups_of(items):
    """Return every partition by giving each item the number of its group."""
    found = set()
    for numbers in itertools.product(range(len(items)), repeat=len(items)):
        groups = {n: frozenset(i for i, m in zip(items, numbers, strict=True) if m == n) for n in numbers}
        found.add(frozenset(groups.values()))
    return found


def test_partitions_are_all_there_are():
    for count in range(1, 6):
        mine = [frozenset(map(frozenset, division)) for division in partitions(tuple(range(count)))]
        assert len(mine) == len(set(mine))
        assert set(mine) == groups_of(range(count))


@given(st.integers(1, 4), st.integers(0, 10**6))
def test_no_division_is_cheaper(count, seed):
    """Random costs of groups, with bounds that are off by a random part of them."""
    dice = random.Random(seed)
    groups = [g for size in range(1, count + 1) for g in itertools.combinations(range(count), size)]
    cost = {group: dice.uniform(1.0, 10.0) for group in groups}
    bound = {group: usd * dice.uniform(0.2, 1.0) for group, usd in cost.items()}

    def find(group, most):
        return (cost[group], group) if cost[group] < most else None

    divisions = list(partitions(tuple(range(count))))
    under = dice.uniform(2.0, 30.0)
    best = cheapest_division(divisions, Costs(bound.__getitem__, find), under)
    least = min(sum(cost[group] for group in division) for division in divisions)
    if least >= under - 1e-9:
        assert best is None
    else:
        assert sum(cost[group] for group in best[0]) == pytest.approx(least)
        assert best[1] == best[0]


LENGTHS = st.one_of(
    st.integers(10, 5000).map(float).map(fixed),
    st.tuples(st.floats(50.0, 3000.0), st.floats(0.1, 1.2)).map(lambda p: lognormal(p[0], p[1])),
)


@given(LENGTHS, st.floats(5.0, 20_000.0), st.floats(0.1, 100.0))
def test_a_class_cut_in_two_is_the_class(lengths, tokens, rate):
    item = RequestClass("chat", lengths, fixed(10.0), rate)
    parts = [part for part in below_and_above(item, tokens) if part is not None]
    assert sum(part.request_rate_at() for part in parts) == pytest.approx(rate)
    mean = sum(part.request_rate_at() * prompt_tokens(part.input_tokens).mean() for part in parts) / rate
    assert mean == pytest.approx(prompt_tokens(lengths).mean(), rel=0.01)
    below, above = below_and_above(item, tokens)
    if below is not None and above is not None:
        assert prompt_tokens(below.input_tokens).max() <= tokens < prompt_tokens(above.input_tokens).min()


def test_thresholds_are_quantiles_of_all_requests():
    short, long = (
        RequestClass(str(n), fixed(n), fixed(1.0), rate) for n, rate in ((100.0, 9.0), (5000.0, 1.0))
    )
    assert thresholds((short, long), (0.5, 0.95)) == (100.0,)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    path = tmp_path_factory.mktemp("mix") / "two.yaml"
    path.write_text(TWO)
    return path


def fleet(capplan, path, *words):
    ran = capplan("fleet", path, "--offline", "--format", "json", *words)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)["result"]


def test_a_mix_is_never_dearer_and_one_kind_is_that_plan(capplan, two):
    plain = fleet(capplan, two)
    assert plain["mix"] is None
    for by in ("classes", "lengths", "any"):
        found = fleet(capplan, two, "--set", f"fleet.mix={by}")
        assert found["chosen"] == plain["chosen"]
        mix = found["mix"]
        if "parts" in mix:
            assert mix["usd_per_month"] < found["choices"]["cheapest"]["usd_per_month"]
            assert mix["usd_per_month"] == pytest.approx(
                sum(part["plan"]["usd_per_month"] for part in mix["parts"])
            )
            assert sum(part["request_fraction"] for part in mix["parts"]) == pytest.approx(1.0)
    alone = fleet(capplan, two, "--set", "fleet.mix=any", "--hardware", "l4")
    assert alone["mix"]["reason"] == "l4 is the only kind of GPU listed"


def test_the_mix_of_two_classes_is_the_cheapest_fleet_of_each(capplan, two):
    """Enumeration: each class for itself, on each kind of GPU."""
    mix = fleet(capplan, two, "--set", "fleet.mix=classes")["mix"]
    together = fleet(capplan, two)["choices"]["cheapest"]["usd_per_month"]
    apart = 0.0
    for text in TWO.split("traffic:\n")[1].split("slo:")[0].strip().splitlines():
        alone = two.parent / "alone.yaml"
        alone.write_text(
            TWO.split("traffic:\n")[0] + "traffic:\n  " + text.strip() + "\nslo:" + TWO.split("slo:")[1]
        )
        apart += fleet(capplan, alone)["choices"]["cheapest"]["usd_per_month"]
    if apart < together:
        assert mix["usd_per_month"] == pytest.approx(apart)
    else:
        assert "no mix costs less" in mix["reason"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["mix=some"], "fleet.mix"),
        (["mix=any", "max_gpus=4"], "not modelled with fleet.max_gpus"),
        (["mix=any", "disaggregation=allowed"], "not modelled with fleet.disaggregation"),
    ],
)
def test_what_cannot_be_mixed_is_refused(capplan, two, keys, said):
    ran = capplan("fleet", two, "--offline", *(word for key in keys for word in ("--set", f"fleet.{key}")))
    assert (ran.code, said in ran.err) == (2, True), ran.err


def test_values_of_a_distribution_are_its_quantiles():
    values = prompt_tokens(lognormal(1000.0, 0.5))
    assert np.all(np.diff(values) >= 0.0)
    assert values.mean() == pytest.approx(1000.0, rel=0.01)
