"""What a simulation measures, against plain sums over all stretches of time and all requests, those without an answer too."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.live.python_core import python_engine
from capplan.cli.main import main
from capplan.engine.profile import Scheduling
from capplan.fleet.simulation import statistic_of, target_values, undecided
from capplan.numbers import Spread
from capplan.serving.engine_parts import Gauges
from capplan.serving.outcome import (
    FINISHED,
    SHED,
    UNFINISHED,
    WeightedHistogram,
    histogram_spread,
    joint_timeline,
    spread,
    timeline_of,
    weighted_percentile,
)
from capplan.serving.requests import Requests
from capplan.serving.simulator import simulate
from capplan.serving.terms import EngineSetup
from capplan.workload.request_class import STATISTICS, Slo, Target
from tests.constant_steps import constant_steps
from tests.files import written_to
from tests.nearness import near

values = st.floats(1e-4, 1e3)
weighted = st.lists(st.tuples(values, st.integers(1, 5)), min_size=1, max_size=40)
stretches = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 900), st.integers(0, 90), st.integers(0, 40)), min_size=1, max_size=30
)  # fmt: skip


def histogram_of(pairs):
    histogram = WeightedHistogram()
    for value, weight in pairs:
        histogram.add(value, float(weight))
    return histogram


@given(weighted, weighted)
def test_a_histogram_has_the_mean_and_the_percentiles_of_the_list(first, second):
    """Bins are half a percent wide, so a percentile is a quarter of a percent off at most."""
    histogram, other = histogram_of(first), histogram_of(second)
    listed = np.repeat([v for v, _ in first + second], [w for _, w in first + second])
    histogram.merge(other)
    found = histogram_spread(histogram)
    assert found.mean == near(listed.mean())
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
        expected = np.quantile(listed, share, method="inverted_cdf")
        assert getattr(found, name) == pytest.approx(expected, rel=0.0026)
    assert other.weight == sum(w for _, w in second)  # a merge takes nothing away


def test_gaps_of_no_time_are_counted_and_an_empty_histogram_knows_nothing():
    histogram = histogram_of([(0.0, 3), (2.0, 1)])
    assert (histogram.percentile(0.75), histogram.mean()) == (0.0, 0.5)
    assert histogram.percentile(0.76) == pytest.approx(2.0, rel=0.0026)
    assert np.isnan(WeightedHistogram().mean())
    assert np.isnan(WeightedHistogram().percentile(0.5))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.floats(0.01, 1.0))
def test_a_weighted_percentile_is_that_of_the_repeated_places(weights, share):
    weights = np.array(weights)
    places = np.repeat(np.arange(weights.size), weights)
    expected = np.quantile(places, share, method="inverted_cdf") if places.size else 0
    assert weighted_percentile(weights.astype(float), share) == expected


@given(st.lists(st.one_of(values, st.just(float("nan"))), min_size=1, max_size=50))
def test_a_spread_leaves_out_what_was_not_measured(listed):
    known = [v for v in listed if not np.isnan(v)]
    found = spread(np.array(listed))
    if not known:
        assert np.isnan([found.mean, found.p50, found.p90, found.p95, found.p99]).all()
        return
    assert found.mean == near(np.mean(known))
    assert (found.p50, found.p90, found.p95, found.p99) == near(
        tuple(np.quantile(known, [0.5, 0.9, 0.95, 0.99]))
    )


def measured(rows, capacity=40):
    """Return gauges and the same stretches as (start, end, sequences, blocks) in seconds."""
    gauges, now, listed = Gauges(capacity), 0.0, []
    for idle, busy, sequences, blocks in rows:
        start = now + idle * 1e-3
        now = start + busy * 1e-3
        gauges.add(start, now - start, sequences, blocks)
        listed.append((start, now, sequences, blocks))
    return gauges, listed


@given(stretches)
def test_gauges_are_integrals_over_time(rows):
    gauges, listed = measured(rows)
    lasting = np.array([end - start for start, end, _, _ in listed])
    sequences, blocks = (np.array([row[k] for row in listed], dtype=float) for k in (2, 3))
    assert gauges.busy_s == near(lasting.sum())
    assert gauges.block_seconds == near(blocks @ lasting)
    assert np.array(gauges.batch_s) @ np.arange(len(gauges.batch_s)) == near(sequences @ lasting)
    for count in set(sequences.astype(int).tolist()):
        assert gauges.batch_s[count] == near(lasting[sequences == count].sum())
    occupied = np.array(gauges.occupancy_s)
    assert occupied.sum() == near(lasting.sum())
    assert occupied @ np.arange(occupied.size) / (occupied.size - 1) == near(blocks @ lasting / 40)


@given(stretches)
def test_a_timeline_holds_the_mean_of_every_span(rows):
    gauges, listed = measured(rows)
    until = listed[-1][1]
    timeline = timeline_of(gauges, until)
    starts, span = timeline.start_s, timeline.span_s
    assert span == near(1e-3 * 2.0 ** round(np.log2(span / 1e-3)))
    spans = len(gauges.by_busy)
    assert until < span * spans <= max(2 * until, 1e-3 * spans) * (1 + 1e-9)
    assert starts == near(np.arange(starts.size) * span)
    assert starts[-1] <= until < starts[-1] + span
    for name, weights in (
        ("batch_sequences", [r[2] for r in listed]), ("kv_blocks", [r[3] for r in listed]), ("busy_fraction", [1.0] * len(listed)),
    ):  # fmt: skip
        expected = np.zeros(starts.size)
        for (begin, end, _, _), weight in zip(listed, weights, strict=True):
            expected += weight * np.clip(
                np.minimum(end, starts + span) - np.maximum(begin, starts), 0.0, None
            )
        assert getattr(timeline, name) * span == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(stretches, stretches)
def test_timelines_of_engines_are_added_on_the_coarsest_spans(first, second):
    engines = [measured(rows) for rows in (first, second)]
    until = max(listed[-1][1] for _, listed in engines)
    apart = [timeline_of(gauges, until) for gauges, _ in engines]
    joint = joint_timeline(apart)
    assert joint.span_s == max(t.span_s for t in apart)
    for name in ("batch_sequences", "kv_blocks"):
        whole = sum(float(getattr(t, name).sum()) * t.span_s for t in apart)
        assert float(getattr(joint, name).sum()) * joint.span_s == near(whole)
    busy = sum(gauges.busy_s for gauges, _ in engines)
    assert float(joint.busy_fraction.sum()) * joint.span_s == near(busy / 2)
    assert joint_timeline(apart[:1]) is apart[0]


TABLE = constant_steps(0.25, 0.5)


def engine(policy="mixed", seats=4, blocks=10**4, tokens=64):
    return EngineSetup(TABLE, Scheduling(policy, seats, tokens), blocks)


def drawn(seed, count=40, load=1.0):
    rng = np.random.default_rng(seed)
    return Requests(
        rng.integers(1, 60, count), rng.integers(1, 9, count), np.cumsum(rng.exponential(1.0 / load, count)),
        class_index=rng.integers(0, 2, count),
    )  # fmt: skip


@pytest.mark.parametrize("policy", ["mixed", "prefill_first", "static"])
@given(seed=st.integers(0, 10**6))
def test_sequences_in_the_engine_are_rate_times_time_in_it(policy, seed):
    """Little's law over the whole run: what came has left, so both sides are the same integral."""
    outcome = simulate(drawn(seed), engine(policy))
    assert outcome.count(FINISHED) == 40
    inside = np.sum(outcome.e2e_s - outcome.queue_s)
    assert outcome.batch_mean * outcome.busy_fraction * outcome.seconds == pytest.approx(inside, rel=1e-6)
    assert outcome.seconds == near(np.max(outcome.arrival_s + outcome.e2e_s))
    assert outcome.requests_per_s * outcome.seconds == near(40)
    assert float(outcome.timeline.busy_fraction.sum()) * outcome.timeline.span_s == near(
        outcome.busy_fraction * outcome.seconds
    )
    # Every token after the first of its request has a gap; mean gaps and times per token are the same time.
    after = outcome.output_tokens - 1
    assert outcome.itl.weight == near(after.sum())
    if policy != "static":
        assert outcome.itl.total == near(np.sum(outcome.e2e_s - outcome.ttft_s))
    many = after > 0
    assert outcome.tpot_s[many] * after[many] == near((outcome.e2e_s - outcome.ttft_s)[many])
    assert np.isnan(outcome.tpot_s[~many]).all()


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 9.0)), max_size=6), st.data())
def test_sequences_that_leave_take_their_own_gap_along(groups, data):
    ones = np.ones(18, dtype=np.int64)
    table = constant_steps()
    core = python_engine(Requests(ones, ones), EngineSetup(table, Scheduling("mixed", 18, 64), 100))
    core.now_s, listed = 10.0, []
    for count, since in groups:
        core.group(count, since)
        for _ in range(count):
            core.decode_from_here(len(listed))
            listed.append((len(listed), since))
    for _ in range(data.draw(st.integers(0, len(listed)))):
        row, since = listed.pop(data.draw(st.integers(0, len(listed) - 1)))
        assert core.gap_since_s(row) == since
        core.forget_gap(row)
        core.leave(row)
    core.end_groups()
    assert (core.itl_weight, core.itl_total) == near((len(listed), sum(10.0 - since for _, since in listed)))
    assert core.groups == 0


def test_the_last_percentile_of_a_histogram_is_there_whatever_the_order_of_its_sum():
    """Weights that add up differently in another order, in the last digit."""
    rng = np.random.default_rng(3)
    for _ in range(60):
        pairs = list(zip(rng.permutation(30) + 1.0, rng.random(30), strict=True))
        histogram = WeightedHistogram()
        for value, weight in pairs:
            histogram.add(value, weight)
        assert histogram.percentile(1.0) == pytest.approx(30.0, rel=0.005)


NO_GAPS = Spread(0.01, 0.01, 0.01, 0.01, 0.01)
SCENARIO = {
    "name": "s", "model": "llama-3.2-1b", "weight_dtype": "bf16", "kv_dtype": "bf16",
    "traffic": [{"request_rate": "2 req/s", "input_tokens": 100, "output_tokens": 20}],
    "fleet": {"hardware": ["l4"], "tensor_parallel": 1, "pipeline_parallel": 1},
}  # fmt: skip


def columns(status, ttft, arrival=None):
    n = len(status)
    known = np.array(ttft, dtype=float)
    return {
        "status": np.array(status),
        "ttft_s": known,
        "tpot_s": known / 10,
        "e2e_s": np.where(np.array(status) == FINISHED, known * 2, np.nan),
        "arrival_s": np.zeros(n) if arrival is None else np.array(arrival, dtype=float),
    }


@given(st.lists(st.floats(0.001, 100.0), min_size=1, max_size=50), st.sampled_from(STATISTICS))
def test_without_lost_requests_a_statistic_is_the_usual_one(values, statistic):
    found = statistic_of(np.array(values), Target("ttft", statistic, 1.0))
    assert found == pytest.approx(getattr(spread(np.array(values)), statistic), rel=1e-9)


@given(
    st.lists(st.sampled_from([0.1, 0.5, 2.0, np.inf]), min_size=2, max_size=60),
    st.sampled_from(STATISTICS[1:]),
)
def test_a_percentile_holds_only_with_enough_requests_under_its_limit(values, statistic):
    """By the definition of a percentile: at least that share of n - 1 steps up the sorted values is within."""
    share = int(statistic[1:]) / 100
    within = sum(value <= 1.0 for value in values)
    if statistic_of(np.array(values), Target("ttft", statistic, 1.0)) <= 1.0:
        assert within >= np.floor(share * (len(values) - 1)) + 1
    if np.inf in values:
        assert statistic_of(np.array(values), Target("ttft", "mean", 1.0)) == np.inf


@pytest.mark.parametrize("metric", ["ttft", "tpot", "e2e", "itl"])
def test_shed_requests_miss_every_target(metric):
    rows = columns([FINISHED] * 90 + [SHED] * 10, [0.1] * 90 + [np.nan] * 10)
    everyone = np.ones(100, dtype=bool)
    for statistic, missed in (("p50", False), ("p90", True), ("p99", True), ("mean", True)):
        target = Target(metric, statistic, 1.0)
        found = target_values(rows, everyone, Slo((target,)), np.inf, NO_GAPS)[target]
        assert np.isinf(found) == missed, statistic


def test_of_a_stopped_run_those_that_are_not_late_yet_are_left_out():
    rows = columns([FINISHED] * 8 + [UNFINISHED] * 2, [0.1] * 8 + [np.nan] * 2, [0.0] * 8 + [9.5, 5.0])
    target = Target("ttft", "p99", 1.0)
    alive = target_values(rows, np.ones(10, dtype=bool), Slo((target,)), 10.0, NO_GAPS)[target]
    assert alive == np.inf  # one has waited for 5 s
    assert undecided(rows, np.ones(10, dtype=bool), Slo((target,)), 10.0) == 1
    assert undecided(rows, np.arange(10) != 8, Slo((target,)), 10.0) == 0
    patient = Target("ttft", "p99", 6.0)
    assert target_values(rows, np.ones(10, dtype=bool), Slo((patient,)), 10.0, NO_GAPS)[
        patient
    ] == pytest.approx(0.1)
    never = target_values(rows, np.ones(10, dtype=bool), Slo((patient,)), np.inf, NO_GAPS)[patient]
    assert never == np.inf  # a run that ended of itself: nobody answers any more
    assert undecided(rows, np.ones(10, dtype=bool), Slo((patient,)), np.inf) == 0


@pytest.mark.parametrize("target", ["ttft_p95", "tpot_p95", "e2e_p95", "itl_p95"])
@pytest.mark.parametrize(
    "words",
    [
        ("--deadline", "1e-12 s"),
        ("--queue-limit", "0", "--deadline", "1e-12 s"),
        ("--fail", "0@1 s"),
        ("--fail", "0@1 s", "--until", "60 s"),
    ],
    ids=" ".join,
)
def test_a_fleet_that_leaves_requests_unanswered_holds_no_target(tmp_path, capsys, target, words):
    path = written_to(tmp_path / "s.json.yaml", {**SCENARIO, "slo": {target: "30 s"}})
    code = main(
        ["simulate", str(path), "--hardware", "l4", "-tp", "1", "--replicas", "1", "--offline", *words]
    )
    said = capsys.readouterr()
    assert code == 4
    assert f"misses {target}" in said.out
    assert "they miss every target" in said.err


def test_a_run_that_is_stopped_says_whom_it_leaves_out(tmp_path, capsys):
    path = written_to(tmp_path / "s.yaml", {**SCENARIO, "slo": {"ttft_p95": "30 s"}})
    words = ["simulate", str(path), "--hardware", "l4", "-tp", "1", "--replicas", "1", "--offline"]
    assert main([*words, "--until", "60 s"]) == 0
    said = capsys.readouterr()
    assert "meets all targets" in said.out
    assert "under way at the end and not late yet" in said.err or "100.0%" in said.out


@pytest.mark.parametrize("traffic", [{"users": 7, "think_time": "0 s"}, {"users": 300, "think_time": "10 s"}])
def test_users_who_wait_let_no_queue_grow_and_no_count_is_negative(tmp_path, capsys, traffic):
    """A page said "-2 of 314,083 requests were shed", and of users who wait for each response that their queue keeps growing."""
    path = tmp_path / "s.yaml"
    path.write_text(
        json.dumps(
            {
                **SCENARIO,
                "slo": {"ttft_p95": "30 s"},
                "traffic": [{"input_tokens": 500, "output_tokens": 60, **traffic}],
            }
        )
    )
    words = ["simulate", str(path), "--hardware", "l4", "-tp", "1", "--replicas", "1", "--offline"]
    assert main([*words, "--until", "60 s"]) in (0, 4)
    said = capsys.readouterr()
    assert "keeps growing" not in said.err + said.out
    assert "warning: -" not in said.err
