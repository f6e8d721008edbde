"""What both pools together bear, carry and lack, where it is given what a simulation would say: all of it can be worked out."""

from itertools import product
from math import inf
from types import SimpleNamespace

import pytest

from capplan.accuracy.slowness import Slowness
from capplan.fleet.pools.joint import (
    AS_PREDICTED,
    BUSY_LINK,
    Joint,
    JointPoolsSlowness,
    JointRuns,
    Paces,
    PoolsSlowness,
    cheapest_pair,
    demanded_of,
)
from capplan.fleet.pools.link import LinkUse
from capplan.fleet.pools.search import _met_probability
from capplan.workload.request_class import Target

FIRST, LATER = Target("ttft", "p95", 1.0), Target("tpot", "p95", 0.02)
SPREAD = Slowness((-0.4, -0.2, 0.0, 0.2, 0.4, 0.5), 36, 22, thin=False)
SLOW = Paces(1.5, 1.5)
ALIKE = PoolsSlowness(SPREAD, SPREAD)
ROOM = 1.25
"""Headroom of a fifth: replicas as fast as predicted have to carry this many times the peak."""


def as_slow(paces):
    """Demand that all targets hold with a headroom of a fifth as predicted, and at the peak with replicas as slow as this."""
    return demanded_of(0.2, {None: paces})


class Told(Joint):
    """Pools of which is told where they fail: from which load or slowness they miss targets, or their queues grow."""

    def __init__(
        self, *, load=9.0, slowness=9.0, misses=(LATER,), grows=9.0, first_grows=9.0, links=(0.0, 0.0), linked=True, at_peak=()
    ):  # fmt: skip
        self.most, self.misses, self.grows, self.links = (load, slowness), misses, grows, links
        self.linked, self.first_grows, self.runs, self._borne = linked, first_grows, [], {}
        self._seen, self.peaks = JointRuns(), 0
        self.question = SimpleNamespace(slo=SimpleNamespace(targets=(FIRST, LATER)))
        self.peak = SimpleNamespace(seen=None, value=lambda target: inf if target in at_peak else 0.0)

    def missed(self, _pair, load=1.0, paces=AS_PREDICTED):
        self.runs.append((load, paces))
        return self.misses if load > self.most[0] or paces.decode > self.most[1] else ()

    def late(self, _pair, _load, _paces):
        return False

    def steady(self, _pair, load, paces):
        return load * paces.decode < min(self.grows, self.first_grows)

    def steady_first(self, _pair, load, paces):
        return load * paces.prefill < self.first_grows

    def link_use(self, _pair, load=1.0):
        return LinkUse("wire", 1.0, 1.0, 1.0, *(load * share for share in self.links))

    def unlinked_reason(self, _pair):
        return "" if self.linked else "too far apart"

    def at_peak(self, _pair):
        self.peaks += 1
        return self.peak


@pytest.mark.parametrize("borne", [0.1, 0.26, 0.4, 0.7, 1.0, 1.3, 2.2, 3.9, 9.0])
@pytest.mark.parametrize("asked", [0.3, 0.5, 1.3, 3.0, 5.0])
def test_the_slowest_steps_are_found_to_a_twentieth_in_seven_runs_and_never_below_what_is_asked(borne, asked):
    """Between a quarter and four times as slow as predicted; nothing above what is asked for where that fails."""
    pools = Told(slowness=borne)
    found = pools.slowest((1, 1), Paces(asked, asked), ALIKE, (FIRST, LATER))
    assert len(pools.runs) <= 7
    assert all(load == 1.0 for load, _ in pools.runs)
    most = min(max(borne, 0.25), 4.0)
    if asked > borne:
        most = min(most, max(asked, 0.25))
    assert most / 1.05 <= found <= most * (1.0 + 1e-12)
    if 0.25 < asked < 4.0 and asked <= borne:
        assert found >= asked


@pytest.mark.parametrize("load", [1.0, 1.3, 1.5, 1.9, 2.4, 2.6])
def test_a_pair_carries_the_load_that_holds_with_headroom_as_predicted_and_without_it_if_slow(load):
    """Up to twice the peak; a load that is met as predicted at 1.25 times itself, and whose links are not full."""
    pools = Told(load=load)
    found = pools.most_load((1, 1), as_slow(SLOW))
    most = min(max(load / ROOM, 1.0), 2.0)
    assert most / 1.05 <= found <= most
    assert {paces for load, paces in pools.runs if load == pytest.approx(ROOM * found)} <= {Paces(), SLOW}
    assert Told(load=load, slowness=1.4).most_load((1, 1), as_slow(SLOW)) == 1.0
    assert Told(grows=1.5 * 1.4).most_load((1, 1), as_slow(SLOW)) == pytest.approx(1.4, rel=0.05)
    assert Told(links=(0.0, 0.5)).most_load((1, 1), as_slow(SLOW)) == pytest.approx(1.6, rel=0.05)


BUSY, IDLE = 1.01 * BUSY_LINK / ROOM, 0.99 * BUSY_LINK / ROOM


@pytest.mark.parametrize(
    ("told", "lacks"),
    [
        ({}, ""),
        ({"linked": False}, "prefill decode"),
        # Links that are full at the load with headroom, of either pool; of both, those that send.
        ({"links": (0.81, 0.0)}, "prefill"),
        ({"links": (0.0, 0.81)}, "decode"),
        ({"links": (0.81, 0.81)}, "prefill"),
        ({"links": (0.79, 0.79)}, ""),
        # The first token waits for both pools; later ones for the decode pool, and for busy links.
        ({"load": 1.24, "misses": (FIRST,)}, "prefill decode"),
        ({"load": 1.24, "misses": (FIRST, LATER)}, "prefill decode"),
        ({"load": 1.24}, "decode"),
        ({"load": 1.26}, ""),
        ({"load": 1.24, "links": (BUSY, 0.0)}, "prefill decode"),
        ({"load": 1.24, "links": (IDLE, 0.5)}, "decode"),
        # As slow as asked for, without headroom.
        ({"slowness": 1.49}, "decode"),
        ({"slowness": 1.51}, ""),
        ({"slowness": 1.49, "misses": (FIRST,)}, "prefill decode"),
        ({"grows": 1.24}, "decode"),
        ({"grows": 1.4}, "decode"),
        ({"grows": 1.51}, ""),
        # A queue that grows before the first token is that of either pool, even if no target is missed so far.
        ({"first_grows": 1.4}, "prefill decode"),
        ({"first_grows": 1.2, "load": 1.24}, "prefill decode"),
        ({"first_grows": 1.51}, ""),
        # Every request of the peak counts in the end, not only the first ones.
        ({"at_peak": (LATER,)}, "decode"),
        ({"at_peak": (FIRST,)}, "prefill decode"),
        ({"at_peak": (LATER,), "links": (BUSY, 0.0)}, "prefill decode"),
    ],
)
def test_what_a_pair_lacks_is_the_pool_that_can_mend_it(told, lacks):
    assert Told(**told).lacking((2, 3), as_slow(SLOW)) == frozenset(lacks.split())


def test_a_larger_pair_than_one_that_meets_all_targets_needs_no_long_run():
    told = Told()
    for pair, runs in (((2, 3), 1), ((2, 3), 1), ((5, 3), 1), ((5, 2), 2), ((1, 9), 3), ((9, 2), 3)):
        assert told.lacking(pair, as_slow(SLOW)) == frozenset()
        assert told.peaks == runs
    told = Told(at_peak=(FIRST,))
    assert [told.lacking(pair, as_slow(SLOW)) for pair in ((2, 3), (5, 3))] == [{"prefill", "decode"}] * 2
    assert told.peaks == 2


def test_headroom_is_asked_of_replicas_as_fast_as_predicted_alone():
    assert Told(grows=1.24).lacking((2, 3), as_slow(Paces())) == {"decode"}
    assert Told(grows=1.26).lacking((2, 3), as_slow(Paces())) == frozenset()
    assert Told(slowness=0.99).lacking((2, 3), as_slow(Paces(0.9, 0.9))) == {"decode"}


@pytest.mark.parametrize("needs", list(product((1, 2, 4, 9, 11), repeat=2)))
@pytest.mark.parametrize("costs", [(1.0, 1.0), (3.0, 1.0), (1.0, 2.5)])
def test_replicas_are_as_many_as_needed_even_where_either_pool_alone_takes_more(needs, costs):
    """From nine of each, which either phase takes alone: eleven of one and four of the other are found as well."""

    def lacks(pair):
        return frozenset(
            name
            for name, count, least in zip(("prefill", "decode"), pair, needs, strict=True)
            if count < least
        )

    def rank(pair):
        return costs[0] * pair[0] + costs[1] * pair[1], sum(pair)

    pair, tried = cheapest_pair(lacks, (9, 9), rank, under=(1e9, 0))
    assert pair == needs
    assert tried <= 20
    cost, _ = rank(needs)
    assert cheapest_pair(lacks, needs, rank, under=(1.01 * cost, 0))[0] == needs
    assert cheapest_pair(lacks, needs, rank, under=rank(needs))[0] is None
    assert cheapest_pair(lacks, (1, 1), rank, joined=lambda pair: sum(pair) <= sum(needs))[0] == needs
    assert cheapest_pair(lacks, (1, 1), rank, joined=lambda pair: sum(pair) < sum(needs))[0] is None


@pytest.mark.parametrize("needs", [(100, 7), (7, 130), (300, 310)])
def test_pools_much_larger_than_either_phase_takes_alone_are_found_in_a_few_strides(needs):
    """From ten of each; the old walk in steps of one replica gave up after 16 pairs."""

    def lacks(pair):
        short = [
            name
            for name, count, least in zip(("prefill", "decode"), pair, needs, strict=True)
            if count < least
        ]
        return frozenset(short[:1])

    pair, tried = cheapest_pair(lacks, (10, 10), lambda pair: (sum(pair), 0))
    assert pair == needs
    assert tried <= 45


def too_few(needs):
    """Return what pairs lack that have fewer replicas than needed: prefill replicas first."""

    def lacks(pair):
        names = ("prefill", "decode")
        return frozenset(
            [name for name, count, least in zip(names, pair, needs, strict=True) if count < least][:1]
        )

    return lacks


def test_a_large_fleet_takes_a_dozen_pairs_from_a_likely_one_and_none_if_they_are_known():
    """From the start of 108 prefill replicas a search took 13 pairs, each with a long run; now one pair gets that."""
    confirmed, known = [], {}

    def cheapest(under):
        return cheapest_pair(
            too_few((140, 9)),
            (108, 9),
            lambda pair: (pair[0] + 8.0 * pair[1], 0.0),
            likely=lambda: (147, 10),
            confirmed=lambda pair: confirmed.append(pair) or frozenset(),
            under=under,
            known=known,
        )

    pair, tried = cheapest((inf, 0.0))
    assert pair == (140, 9)
    assert tried == len(known) <= 12
    assert confirmed == [(140, 9)]
    assert cheapest((212.0, 0.0)) == (None, 0)


def test_a_pair_that_lacks_something_in_longer_runs_is_not_the_cheapest():
    longer = too_few((143, 9))
    pair, _ = cheapest_pair(
        too_few((140, 9)), (108, 9), lambda pair: (pair[0] + 8.0 * pair[1], 0.0), confirmed=longer
    )
    assert pair == (143, 9)


def test_decode_replicas_that_were_enough_once_are_tried_again_with_more_prefill_replicas():
    """With 223 prefill replicas later tokens are late, whatever the decode replicas: as few as 19 are enough with 224."""

    def lacks(pair):
        return frozenset({"decode"}) if pair[0] < 224 or pair[1] < 19 else frozenset()

    pair, _ = cheapest_pair(lacks, (234, 24), lambda pair: (pair[0] + 8.0 * pair[1], 0.0))
    assert pair == (224, 19)


def test_a_target_that_no_number_of_replicas_meets_ends_the_walk():
    for missing in ({"prefill"}, {"decode"}, {"prefill", "decode"}):
        pair, tried = cheapest_pair(
            lambda _pair, missing=missing: frozenset(missing), (3, 4), lambda pair: (sum(pair), 0)
        )
        assert pair is None
        assert tried <= 20


@pytest.mark.parametrize(("borne", "sure"), [(1.2, False), (1.3, True), (1.9, True)])
def test_a_plan_that_bears_what_was_asked_for_is_as_sure_as_asked(borne, sure):
    """Later tokens bear some slowness, and first tokens any: what is asked of later ones is then what decides."""
    told = Told(slowness=borne)
    slowness = JointPoolsSlowness({"ttft": ALIKE, "tpot": ALIKE}, 0.5)
    asked = {"ttft": Paces(1.0, 1.0), "tpot": Paces(1.25, 1.25)}
    told.question.slo.confidence = 0.9
    contender = SimpleNamespace(slowness=lambda _question: slowness)
    found = _met_probability(contender, told, (1, 1), demanded_of(0.2, asked))
    alone = slowness.of_decode.probability({"ttft": 4.0, "tpot": borne})
    assert found == pytest.approx(max(alone, 0.9) if sure else alone, abs=0.02)
