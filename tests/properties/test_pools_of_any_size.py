"""Separate pools of any size: a pair is found where there is one, no replica of it can be left out, and copies carry copies of the load."""

from itertools import product

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.fleet.plan import cost_of
from capplan.fleet.pools.ratio import cheap_pair_in_strides
from capplan.questions.fleet import fleet_for
from tests.fuzz.answers import asked_of
from tests.sweeps import examples, long_but

AGENT = """name: pools
model: meta-llama/Llama-3.1-8B-Instruct
traffic:
  - {name: agent, request_rate: RATE, input_tokens: {mean: 2500, p95: 6000}, output_tokens: {mean: 150, p95: 400}}
slo: {ttft_p95: 1 s, tpot_p95: 15 ms}
fleet: {hardware: [h100-sxm], tensor_parallel: 1, pipeline_parallel: 1, headroom: 20 %, spare_replicas: SPARES,
  disaggregation: only, kv_link: LINK, kv_link_latency: 10 us}
prices: {per_gpu_hour: {h100-sxm: 4.08 $/h}}
"""


def of(rate, link="infiniband-ndr", spares=1):
    text = AGENT.replace("RATE", str(rate)).replace("LINK", link).replace("SPARES", str(spares))
    assert yaml.safe_load(text)
    return fleet_for(asked_of(text))


@settings(max_examples=examples(60, 600), deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.floats(0.0, 0.6), st.floats(0.25, 4.0), st.floats(0.3, 2.0), st.floats(0.3, 2.0))  # fmt: skip
def test_no_replica_of_a_pair_can_be_left_out_and_no_pair_costs_much_less(
    prefill, decode, bend, ratio, alone_prefill, alone_decode
):
    """A pool that is larger helps the other by up to a fraction `bend` of what it needs, as busy links do."""

    def lacks(pair):
        eased = 1.0 - bend * min(max(pair[0] / prefill - 1.0, 0.0), 1.0)
        short = [*["prefill"] * (pair[0] < prefill), *["decode"] * (pair[1] < eased * decode)]
        return frozenset(["prefill", "decode"] if bend and "decode" in short else short)

    costs = (1.0, ratio)
    first, second = max(1, round(alone_prefill * prefill)), max(1, round(alone_decode * decode))
    pair, tried = cheap_pair_in_strides(lacks, (first, second), costs, largest=(4000, 4000))
    assert pair is not None
    assert tried < 90
    assert not lacks(pair)
    for other in ((pair[0] - 1, pair[1]), (pair[0], pair[1] - 1)):
        assert min(other) < 1 or lacks(other)
    if not bend:
        assert pair == (prefill, decode)


def test_where_no_pair_is_enough_the_search_ends():
    assert (
        cheap_pair_in_strides(lambda _: frozenset({"decode"}), (5, 5), (1.0, 1.0), largest=(20, 20))[0]
        is None
    )


def test_small_pairs_are_the_cheapest_of_all():
    def lacks(pair):
        return frozenset([*["prefill"] * (pair[0] < 3), *["decode"] * (2 * pair[1] + pair[0] < 11)])

    pair, _ = cheap_pair_in_strides(lacks, (3, 3), (1.0, 3.0), largest=(40, 40))
    enough = [pair for pair in product(range(1, 20), repeat=2) if not lacks(pair)]
    assert pair[0] + 3.0 * pair[1] <= 1.1 * min(first + 3.0 * second for first, second in enough)


@pytest.mark.parametrize("rate", long_but((5,), (2, 5)))
def test_a_rate_between_two_that_are_served_is_served(rate):
    answer = of(rate, "ethernet-25g")
    assert answer.bought is not None
    assert answer.bought.slo_met_probability >= 0.8


@pytest.mark.long
def test_twice_the_load_takes_at_most_two_copies():
    once, twice = of(80).bought, of(160, spares=2).bought
    assert once is not None
    assert twice is not None
    assert cost_of(twice) <= 2.0 * cost_of(once)
