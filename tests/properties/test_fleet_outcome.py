"""What a fleet did is what its replicas did together: counts, rates, shares, and who got which request."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engine.profile import Scheduling
from capplan.errors import InputError
from capplan.fleet.simulation import (
    Stream,
    capacity_per_s,
    fleet_outcome,
    goodput_limits,
    middle_rate,
    split_by_prefix,
    split_round_robin,
)
from capplan.serving.fleet_simulator import simulate_fleet
from capplan.serving.outcome import FINISHED, SHED, joint_timeline
from capplan.serving.requests import Admission, Requests
from capplan.serving.simulator import simulate
from capplan.serving.terms import EngineSetup
from capplan.workload.request_class import Slo, Target
from tests.constant_steps import constant_steps

FEW = settings(max_examples=30, deadline=None)
TABLE = constant_steps(0.25, 0.5)
SLO = Slo(
    (
        Target("ttft", "p95", 1.5),
        Target("ttft", "p50", 1.0),
        Target("e2e", "p99", 4.0),
        Target("itl", "p99", 0.6),
    )
)
BOTH, CHAT = Stream(None, ("chat", "code")), Stream(None, ("chat",))
seeds = st.integers(0, 10**6)


def near(value):
    return pytest.approx(value, rel=1e-9, nan_ok=True)


def drawn(seed, count=60, rate=3.0):
    rng = np.random.default_rng(seed)
    inputs = rng.integers(2, 60, count)
    return Requests(
        inputs, rng.integers(1, 9, count), np.cumsum(rng.exponential(1 / rate, count)),
        np.where(rng.random(count) < 0.3, inputs // 2, 0), rng.integers(0, 2, count),
    )  # fmt: skip


def parts_of(seed, replicas=3):
    engine = EngineSetup(TABLE, Scheduling("mixed", 3, 64), 20)
    patient = Admission(deadline_s=(3.0, 1.0))
    return [
        simulate(own, engine, admission=patient, until_s=25.0)
        for own in split_round_robin(drawn(seed), replicas)
    ]


@FEW
@given(seeds)
def test_figures_are_those_of_all_rows_together(seed):
    parts = parts_of(seed)
    found = fleet_outcome(parts, BOTH, SLO)
    assert found.seconds == max(part.seconds for part in parts)
    rows = {name: np.concatenate([getattr(part, name) for part in parts]) for name in (
        "status", "ttft_s", "tpot_s", "e2e_s", "queue_s", "output_tokens", "class_index", "arrival_s",
    )}  # fmt: skip
    seconds = rows[
        "arrival_s"
    ].max()  # the load ends with the last arrival, and what finishes later is the drain
    assert (found.from_s, found.until_s) == (rows["arrival_s"].min(), seconds)
    seconds -= found.from_s
    finished = rows["status"] == FINISHED
    # The loosest target of a metric is what each request is held to; gaps have no limit of their own.
    good = finished & (rows["ttft_s"] <= 1.5) & (rows["e2e_s"] <= 4.0)
    in_time = finished & (rows["arrival_s"] + rows["e2e_s"] <= found.until_s)
    for figures, mine in (
        (found.all, np.ones(finished.size, dtype=bool)),
        (found.classes["chat"], rows["class_index"] == 0),
        (found.classes["code"], rows["class_index"] == 1),
    ):
        total = int(mine.sum())
        assert (figures.requests, figures.finished) == (total, int(finished[mine].sum()))
        assert figures.shed == int((rows["status"][mine] == SHED).sum())
        assert figures.requests == figures.finished + figures.shed + figures.unfinished
        assert figures.requests_per_s == near((in_time & mine).sum() / seconds)
        assert figures.output_tokens_per_s == near(rows["output_tokens"][mine & in_time].sum() / seconds)
        assert figures.goodput_requests_per_s == near((good & in_time & mine).sum() / seconds)
        assert figures.slo_met_fraction == near(good[mine].sum() / total if total else 0.0)
        for name in ("ttft_s", "tpot_s", "e2e_s", "queue_s"):
            known = rows[name][mine][np.isfinite(rows[name][mine])]
            expected = (known.mean(), *np.quantile(known, [0.5, 0.99])) if known.size else (np.nan,) * 3
            spread = getattr(figures, name)
            assert (spread.mean, spread.p50, spread.p99) == near(expected)


@FEW
@given(seeds)
def test_totals_are_sums_over_replicas(seed):
    parts = parts_of(seed)
    found = fleet_outcome(parts, BOTH, SLO)
    cached, worked = (
        sum(getattr(part, name) for part in parts) for name in ("cached_tokens", "prefill_tokens")
    )
    assert found.all.prefix_hit_fraction == near(cached / (cached + worked) if cached + worked else 0.0)
    assert found.all.preemptions == sum(part.preemptions for part in parts)
    assert found.all.preemptions == sum(figures.preemptions for figures in found.classes.values())
    for index, name in enumerate(("chat", "code")):
        totals = [part.class_totals[index] for part in parts if index in part.class_totals]
        prompts = sum(t.prompt_tokens for t in totals)
        share = sum(t.cached_tokens for t in totals) / prompts if prompts else 0.0
        assert found.classes[name].prefix_hit_fraction == near(share)
    assert found.kv_occupancy_p99 == max(part.kv_occupancy_p99 for part in parts)
    gaps = sum(part.itl.total for part in parts) / sum(part.itl.weight for part in parts)
    assert found.itl_s.mean == near(gaps)
    assert (found.replicas, found.parts) == (3, tuple(parts))


@FEW
@given(seeds, st.floats(0.05, 0.9))
def test_every_figure_leaves_the_warm_up_out(seed, warm):
    """A run of which the first part is left out is the run whose first part nobody looked at, by share or by time."""
    parts = parts_of(seed)
    arrival, first = (np.concatenate([getattr(p, name) for p in parts]) for name in ("arrival_s", "ttft_s"))
    begin = float(np.quantile(arrival, warm))
    late, same = (
        fleet_outcome(parts, replace(CHAT, **{name: value}), SLO)
        for name, value in (("warm_up_share", warm), ("warm_up_s", begin))
    )
    assert repr((late.all, late.from_s)) == repr((same.all, same.from_s))
    seen = arrival >= begin
    assert late.from_s == begin
    assert late.all.requests == np.count_nonzero(seen)
    assert late.all.ttft_s.mean == near(first[seen & np.isfinite(first)].mean())
    status = np.concatenate([part.status for part in parts])
    ends = arrival + np.concatenate([part.e2e_s for part in parts])
    done = (status == FINISHED) & (ends > begin) & (ends <= late.until_s)
    if done.any():
        assert late.all.requests_per_s == near(done.sum() / (late.until_s - begin))


def test_targets_are_missed_where_their_own_statistic_is_above_the_limit():
    found = fleet_outcome(parts_of(1), CHAT, SLO)
    missed = found.missed(SLO)
    for target, value in zip(
        SLO.targets,
        (found.all.ttft_s.p95, found.all.ttft_s.p50, found.all.e2e_s.p99, found.itl_s.p99), strict=True,
    ):  # fmt: skip
        assert found.value(target) == value
        assert (target in missed) == (not value <= target.limit_s)
        for limit, kept in ((value, True), (value * 0.999, False)):
            assert (found.missed(Slo((replace(target, limit_s=limit),))) == ()) == kept
    assert goodput_limits(SLO) == {"ttft_s": 1.5, "tpot_s": np.inf, "e2e_s": 4.0}


@FEW
@given(seeds, st.integers(1, 5))
def test_every_request_is_dealt_out_once_in_turn(seed, replicas):
    requests = drawn(seed, 23)
    dealt = split_round_robin(requests, replicas)
    assert max(len(own) for own in dealt) - min(len(own) for own in dealt) <= 1
    for place in range(23):
        own, row = dealt[place % replicas], place // replicas
        for name in ("input_tokens", "output_tokens", "arrival_s", "cached_tokens", "class_index"):
            assert getattr(own, name)[row] == getattr(requests, name)[place]


def test_fewer_requests_than_replicas_are_refused():
    assert len(split_round_robin(drawn(1, 3), 3)) == 3
    with pytest.raises(InputError, match="3 requests for 4 replicas"):
        split_round_robin(drawn(1, 3), 4)


def chats(people, turns, apart_s, prompt=100):
    """Prompts of 4, 8, 12 ... blocks of one's own; everybody after the other, turn after turn."""
    rows = [
        (turn * people + person, [1000 * person + block for block in range(4 * (turn + 1))])
        for turn in range(turns)
        for person in range(people)
    ]
    return Requests(
        np.full(len(rows), prompt), np.full(len(rows), 10), np.array([apart_s * place for place, _ in rows]),
        block_ids=np.array([block for _, own in rows for block in own]),
        block_counts=np.array([len(own) for _, own in rows]),
    )  # fmt: skip


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_chat_stays_where_its_prefix_is_as_long_as_loads_are_even(replicas):
    requests = chats(6, 5, 1.0)
    dealt = split_by_prefix(requests, replicas)
    homes = [{block // 1000 for block in own.block_ids.tolist()} for own in dealt]
    assert sum(len(home) for home in homes) == 6  # nobody is in two places
    assert sum(len(own) for own in dealt) == 30
    assert sum(own.block_ids.size for own in dealt) == requests.block_ids.size
    assert [len(home) for home in homes] == [6 // replicas] * replicas


def test_one_prefix_that_all_share_is_spread_when_its_replica_has_too_much_to_do():
    """Of 40 prompts with the same blocks at once, a replica gets no more than its share and a quarter, and two more."""
    same = Requests(
        np.full(40, 100),
        np.full(40, 10),
        np.zeros(40),
        block_ids=np.tile(np.arange(4), 40),
        block_counts=np.full(40, 4),
    )
    sizes = sorted(len(own) for own in split_by_prefix(same, 4))
    assert sum(sizes) == 40
    assert sizes[-1] <= 10 * 1.25 + 2
    # Far apart in time nobody has anything to do, so all stay: but then three replicas have none, and turns are taken.
    apart = replace(same, arrival_s=np.arange(40) * 600.0)
    assert [len(own) for own in split_by_prefix(apart, 4)] == [10] * 4
    plain = replace(same, block_ids=None, block_counts=None)
    assert [len(own) for own in split_by_prefix(plain, 4)] == [10] * 4


def test_requests_without_a_prefix_are_dealt_in_turn_next_to_those_that_stay_with_theirs():
    """Their arrivals at a replica are as regular as those of a plan; the largest prompts do not keep others away."""
    tokens = np.where(np.arange(60) % 7 == 0, 5000, 50)
    chatting = np.arange(60) % 5 == 0
    mixed = Requests(
        tokens,
        np.full(60, 10),
        np.arange(60.0),
        block_ids=np.arange(np.count_nonzero(chatting)) % 3,
        block_counts=chatting.astype(np.int64),
        class_index=chatting.astype(np.int64),
    )
    dealt = split_by_prefix(mixed, 4)
    assert [int(np.sum(own.class_index == 0)) for own in dealt] == [12, 12, 12, 12]
    arrived = [own.arrival_s[own.class_index == 0] for own in dealt]
    # of five requests in five seconds one chats, so the fourth of the others comes five or six seconds later
    assert all(np.diff(times).max() <= 6.0 for times in arrived)


def test_what_was_given_is_forgotten_within_minutes():
    """A large prompt long ago weighs less than a small one just now; right after it, it weighs more."""
    tokens, blocks = np.array([1000, 100, 10, 10]), np.arange(4)

    def homes(gap_s):
        arrival = np.array([0.0, gap_s, gap_s, gap_s])
        found = split_by_prefix(
            Requests(tokens, np.full(4, 1), arrival, block_ids=blocks, block_counts=np.full(4, 1)), 2
        )
        return [own.block_ids.tolist() for own in found]

    assert homes(1.0) == [[0], [1, 2, 3]]
    assert homes(300.0) == [[0, 2, 3], [1]]  # 1000 exp(-5) is 7 tokens
    assert homes(60.0) == [[0], [1, 2, 3]]  # 1000 / e is 368


def test_the_middle_of_a_run_tells_the_rate_without_its_start_and_its_end():
    ends = np.concatenate(([0.1] * 25, np.linspace(1.0, 26.0, 51), [90.0] * 24))
    outcome = SimpleNamespace(
        arrival_s=np.zeros(100), e2e_s=ends, finished=np.ones(100, dtype=bool), requests_per_s=9.0
    )
    assert middle_rate(outcome) == near(2.0)
    outcome.finished = np.arange(100) < 3
    assert middle_rate(outcome) == 9.0
    same = SimpleNamespace(
        arrival_s=np.zeros(8), e2e_s=np.ones(8), finished=np.ones(8, dtype=bool), requests_per_s=7.0
    )
    assert middle_rate(same) == 7.0


@pytest.mark.parametrize(("seats", "expected"), [(1, 1 / (0.5 + 3 * 0.25)), (4, None)])
def test_the_capacity_is_what_engines_reach_that_are_never_idle(seats, expected):
    """One seat: a prefill and three decode steps for each. More: no fewer requests than one seat serves."""
    engine = EngineSetup(TABLE, Scheduling("mixed", seats, 64), 1000)
    requests = Requests(np.full(400, 10), np.full(400, 4), np.arange(400) * 50.0)
    found = capacity_per_s(engine, requests)
    if expected:
        assert found == pytest.approx(expected, rel=1e-6)
    else:
        # Four requests of 10 tokens of prompt and 3 decode steps: between all in one prefill and each with its own.
        assert 4 / (4 * 0.5 + 3 * 0.25) * 0.99 <= found <= 4 / (0.5 + 3 * 0.25) * 1.01
    # It does not depend on when requests come.
    assert capacity_per_s(engine, replace(requests, arrival_s=np.zeros(400))) == found


@FEW
@given(seeds, st.integers(2, 5))
def test_no_span_of_replicas_that_end_at_different_times_is_busy_for_longer_than_it_lasts(seed, replicas):
    engine = EngineSetup(TABLE, Scheduling("mixed", 3, 64), 20)
    parts = [
        simulate(own.between(0, 5 + 9 * number), engine)
        for number, own in enumerate(split_round_robin(drawn(seed), replicas))
    ]
    line = joint_timeline([part.timeline for part in parts])
    assert line.busy_fraction.max() <= 1.0 + 1e-9
    assert line.start_s[-1] <= max(part.seconds for part in parts) < line.start_s[-1] + line.span_s
    busy = sum(part.busy_fraction * part.seconds for part in parts)
    assert line.busy_fraction.sum() * line.span_s * replicas == near(busy)


@FEW
@given(seeds, st.integers(2, 5))
def test_a_fleet_dealt_out_beforehand_is_as_busy_as_one_behind_a_router_that_deals_in_turn(seed, replicas):
    """The same requests in the same replicas, each of which is there until the last request of all has ended.

    Blocks are counted as the mean of the first and the last step of a run of steps, which the router cuts at every arrival: within 2 %.
    """
    engine, requests = EngineSetup(TABLE, Scheduling("mixed", 3, 64), 20), drawn(seed, count=23)
    parts = [simulate(own, engine) for own in split_round_robin(requests, replicas)]
    together = simulate_fleet(requests, engine, replicas).outcome
    dealt, routed = fleet_outcome(parts, BOTH, SLO), fleet_outcome([together], BOTH, SLO)
    for name in ("seconds", "busy_fraction", "batch_mean"):
        assert getattr(dealt, name) == pytest.approx(getattr(routed, name), rel=0.01)
    assert dealt.kv_occupancy_mean == pytest.approx(routed.kv_occupancy_mean, rel=0.02)
