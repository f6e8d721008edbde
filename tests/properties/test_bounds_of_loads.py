"""What a simulation takes: the last value that is allowed goes in, the first one beyond it is refused by name."""

from contextlib import nullcontext
from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

from capplan.engine.profile import Scheduling
from capplan.errors import InputError
from capplan.replica.load import MOST_IN_FLIGHT, Load, check_load
from capplan.serving.block_cache import OffloadTier, PrefixCaching, check_prefix_caching
from capplan.serving.requests import (
    NO_REQUESTS,
    Admission,
    ClosedLoopUsers,
    Requests,
    check_admission,
    check_requests,
    offered,
)
from capplan.serving.simulator import simulate
from capplan.serving.step_table import StepTable, check_step_table
from capplan.serving.terms import EngineSetup, engine_terms
from tests.tables import table

TINY = 5e-324
"""The smallest number above zero."""
THREE = Requests(np.full(3, 9), np.full(3, 2))
ONE = np.array([1.0])
TABLE = StepTable(ONE, ONE, ONE, ONE, ONE[None], ONE, ONE, ONE, ONE, ONE[None])
PLAIN = EngineSetup(TABLE, Scheduling("mixed", 4, 64), 10)


def below(value):
    return float(np.nextafter(value, -inf))


def above(value):
    return float(np.nextafter(value, inf))


def expected(words):
    return pytest.raises(InputError, match=words) if words else nullcontext()


@pytest.mark.parametrize("at", [0, 1, 2])
@table
def test_the_first_request_that_is_wrong_is_named_by_its_number(column, least, at):
    """All from this one on are wrong; the first of them is number `at`."""
    ids = {"block_counts": {"block_ids": np.zeros(0, int)}, "output_counts": {"output_ids": np.zeros(0, int)}}
    good = np.full(3, least)
    check_requests(replace(THREE, **{column: good}, **ids.get(column, {})), timed=False)
    bad = np.where(np.arange(3) >= at, least - 1, least)
    with pytest.raises(InputError, match=f"request {at}: {column} is "):
        check_requests(replace(THREE, **{column: bad}, **ids.get(column, {})), timed=False)


@table
def test_arrivals_ascend_from_zero_where_they_are_used(arrivals, words):
    timed = replace(THREE, arrival_s=np.array(arrivals))
    check_requests(timed, timed=False)
    with expected(words):
        check_requests(timed, timed=True)


def test_a_wrong_request_is_named():
    late = replace(THREE, arrival_s=np.array([0.0, 2.0, 1.0]))
    empty = replace(THREE, output_tokens=np.array([2, 0, 2]))
    for arrivals, crowd, words in (
        (late, None, "request 2 arrives before its predecessor"),
        (empty, None, "request 1: output_tokens is 0"),
        (NO_REQUESTS, ClosedLoopUsers(empty, 2), "request 1: output_tokens is 0"),
    ):
        with pytest.raises(InputError, match=words):
            simulate(arrivals, PLAIN, crowd=crowd)


@pytest.mark.parametrize("column", ["output_tokens", "arrival_s", "cached_tokens", "class_index"])
@pytest.mark.parametrize("entries", [2, 4])
def test_columns_are_as_long_as_there_are_requests(column, entries):
    with pytest.raises(InputError, match=f"requests: {column} has {entries} entries for 3 requests"):
        check_requests(replace(THREE, **{column: np.ones(entries, int)}), timed=False)


@pytest.mark.parametrize(("ids", "counts"), [("block_ids", "block_counts"), ("output_ids", "output_counts")])
def test_ids_come_with_their_counts(ids, counts):
    check_requests(replace(THREE, **{ids: np.arange(3), counts: np.ones(3, int)}), timed=False)
    for alone in (ids, counts):
        with pytest.raises(InputError, match=f"requests: {ids} and {counts} must be given together"):
            check_requests(replace(THREE, **{alone: np.ones(3, int)}), timed=False)


@pytest.mark.parametrize(
    ("concurrency", "crowd", "words"),
    [
        (1, None, None),
        (0, None, "concurrency is 0; it must be at least 1"),
        (None, ClosedLoopUsers(THREE, 1), None),
        (None, ClosedLoopUsers(THREE, 0), "users is 0; it must be at least 1"),
        (None, ClosedLoopUsers(THREE, 1, np.array([0.0, TINY, 1e300])), None),
        (None, ClosedLoopUsers(THREE, 1, np.array([0.0, -TINY, -1.0])), "request 1: think_s is -5e-324"),
        (None, ClosedLoopUsers(THREE, 1, np.array([0.0, 0.0, inf])), "request 2: think_s is inf"),
        (None, ClosedLoopUsers(THREE, 1, np.zeros(2)), "crowd: think_s has 2 entries for 3 requests"),
        (1, ClosedLoopUsers(THREE, 1), "concurrency and crowd exclude each other"),
    ],
)
def test_users_are_at_least_one_and_think_for_no_negative_time(concurrency, crowd, words):
    with expected(words):
        offered(None if crowd else THREE, concurrency, crowd)


def test_a_concurrency_is_that_many_users_of_all_requests_and_arrivals_have_none():
    arrivals, crowd = offered(THREE, 2, None)
    assert (len(arrivals), crowd.requests, crowd.users, crowd.thinks) == (0, THREE, 2, False)
    assert offered(THREE, None, None) == (THREE, None)
    arrivals, crowd = offered(None, None, ClosedLoopUsers(THREE, 1, np.array([0.0, TINY, 0.0])))
    assert (len(arrivals), crowd.thinks) == (0, True)


@table
def test_rules_of_admission_reach_down_to_zero(rules, words):
    with expected(words):
        check_admission(Admission(**rules), None)


def test_a_queue_limit_needs_users_who_think():
    """A user who never thinks would send again at the instant of a refusal."""
    rules = Admission(queue_limit=3)
    check_admission(rules, ClosedLoopUsers(THREE, 1, np.array([0.0, 0.0, TINY])))
    for crowd in (ClosedLoopUsers(THREE, 1), ClosedLoopUsers(THREE, 1, np.zeros(3))):
        check_admission(Admission(), crowd)
        with pytest.raises(InputError, match="queue_limit has no meaning for users without think time"):
            simulate(NO_REQUESTS, PLAIN, crowd=crowd, admission=rules)


@table
def test_limits_of_an_engine_leave_room_for_one_of_everything(scheduling, others, words):
    setup = replace(PLAIN, scheduling=replace(PLAIN.scheduling, **scheduling), **others)
    with expected(words):
        terms = engine_terms(setup)
        assert terms.mixed == (setup.scheduling.policy == "mixed")


TWO, SQUARE = np.array([1.0, 2.0]), np.ones((2, 2))
WIDE = StepTable(TWO, TWO, TWO, TWO, SQUARE, TWO, TWO, TWO, TWO, SQUARE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"decode_s": np.array([TINY, 1.0]), "mixed_s": np.array([1.0, TINY])}, None),
        ({"decode_s": np.array([1.0, 0.0])}, "decode_s and mixed_s must be positive"),
        ({"mixed_s": np.array([0.0, 1.0])}, "decode_s and mixed_s must be positive"),
        ({"head_s": np.zeros(2), "prefill_attention_s": np.zeros((2, 2)), "request_s": 0.0}, None),
        ({"head_s": np.array([1.0, -TINY])}, "head_s must hold finite numbers of at least 0"),
        ({"request_s": -TINY}, "request_s must hold finite numbers of at least 0"),
        ({"request_s": inf}, "request_s must hold finite numbers of at least 0"),
        ({"decode_attention_s": np.array([[nan, 1.0], [1.0, 1.0]])}, "decode_attention_s must hold finite"),
        ({"past_knots": np.zeros(0)}, "past_knots must hold finite numbers"),
        ({"context_knots": np.array([0.0, TINY])}, None),
        ({"context_knots": np.zeros(2)}, "context_knots must ascend"),
        ({"token_knots": np.array([2.0, 1.0])}, "token_knots must ascend"),
        ({"new_knots": np.array([TINY, 1.0])}, None),
        ({"new_knots": np.array([0.0, 1.0])}, "new_knots must be positive"),
        ({"sequence_knots": np.array([0.0, 1.0])}, None),
        ({"head_s": np.ones(3)}, r"head_s has shape \(3,\), but its knots have shape \(2,\)"),
        ({"prefill_attention_s": np.ones((2, 3))}, r"prefill_attention_s has shape \(2, 3\)"),
    ],
)
def test_a_step_table_holds_times_on_ascending_knots(change, words):
    with expected(words):
        check_step_table(replace(WIDE, **change))


@pytest.mark.parametrize(
    ("id_tokens", "tier", "words"),
    [
        (16, OffloadTier(0, 0.0), None),
        (48, OffloadTier(5, TINY), None),
        (24, OffloadTier(0, 0.0), "stands for 24 tokens"),
        (0, OffloadTier(0, 0.0), "stands for 0 tokens"),
        (16, OffloadTier(-1, 0.0, "host"), "an offload tier needs .*name=.host"),
        (16, OffloadTier(1, -TINY, "host"), "an offload tier needs .*name=.host"),
        (16, OffloadTier(1, nan, "host"), "an offload tier needs .*name=.host"),
    ],
)
def test_ids_stand_for_whole_blocks_and_tiers_for_what_they_hold(id_tokens, tier, words):
    with expected(words):
        check_prefix_caching(PrefixCaching(id_tokens, tiers=(tier,)), 16)


def test_a_load_is_one_number_and_its_requests_fit_into_the_context():
    check_load(Load(600, 400, concurrency=MOST_IN_FLIGHT), 1000)
    check_load(Load(600, 400, request_rate=1.0), 1000)
    for load, words in (
        (Load(600, 400), "give either --concurrency N or --request-rate R"),
        (Load(600, 400, concurrency=1, request_rate=1.0), "give either --concurrency N or --request-rate R"),
        (Load(600, 400, concurrency=MOST_IN_FLIGHT + 1), "is out of range"),
        (Load(600, 401, concurrency=1), "1001"),
    ):
        with pytest.raises(InputError, match=words):
            check_load(load, 1000)
