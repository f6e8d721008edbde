"""What is claimed of runs is observed of those that were left out, and the shipped distribution is that of the runs."""

from dataclasses import replace
from math import log
from statistics import NormalDist

import numpy as np
import pytest

from calibrate.host_rows import items_of, replica_with
from calibrate.open_loops import runs_in_client
from calibrate.reliability import BOTH, MEASURED, certainty_section, claims_of, claims_on, observed
from calibrate.slow_runs import SLOWNESSES, slow_runs, slow_runs_text, slow_values, slowness_at
from calibrate.slowness_fit import (
    RELATIVE,
    SlowRun,
    left_out_claims,
    questions,
    regime_of,
    slowness_table,
    slowness_text,
    votes_of,
)
from capplan.accuracy.replay import Servers, replayed_columns
from capplan.accuracy.slowness import PROBABILITIES
from capplan.questions.validation import BUILT_IN_POINTS
from capplan.readers.catalogue.efficiency import SLOWNESS_FILE, shipped_slowness
from capplan.recorded.measured import measured_table
from tests.files import written_to

JUDGED = (0.5, 0.7, 0.8, 0.9)
OFF = 0.07
"""Claimed and observed may differ by this much."""


@pytest.fixture(scope="module")
def runs():
    return questions(slow_runs())


@pytest.fixture(scope="module")
def claims_without(runs):
    return {
        left_out: claims_of(runs, left_out, shipped_slowness()) for left_out in ("group", "model", "source")
    }


@pytest.mark.parametrize("names", [MEASURED, BOTH], ids=["one latency", "both at once"])
@pytest.mark.parametrize("left_out", ["group", "model"])
def test_limits_hold_as_often_as_claimed(claims_without, left_out, names):
    claims = claims_on(claims_without[left_out], tuple(names.values()))
    found = observed(claims)
    assert {level: found[level] for level in JUDGED if abs(found[level] - level) > OFF} == {}


@pytest.mark.parametrize("left_out", ["group", "model", "source"])
def test_limits_of_open_loops_by_themselves_hold_as_often_as_claimed(claims_without, left_out):
    """Plans are mostly of open loops, and closed ones are predicted more closely."""
    found = observed(claims_on(claims_without[left_out], tuple(BOTH.values()), is_open=True))
    assert {level: found[level] for level in JUDGED if found[level] < level - OFF} == {}


def test_a_group_has_eight_votes_at_most_and_open_loops_half_of_all():
    runs = [SlowRun("r", "tpot/p95", f"s|m|{group}", 0.02, 0.1, is_open) for group, is_open, count in (
        ("many", False, 100), ("few", False, 2), ("open", True, 4)) for _ in range(count)]  # fmt: skip
    votes = votes_of(runs)
    assert votes[:100].sum() == pytest.approx(0.5 * 2 * 8 / 10)
    assert votes[100:102].sum() == pytest.approx(0.5 * 2 * 2 / 10)
    assert votes[102:].sum() == pytest.approx(votes[:102].sum())


def test_slowness_that_is_kept_is_what_a_replay_gives_today(measured):
    """Each open loop is replayed here with the shipped host numbers; kept is that with the numbers of the other groups, which are much the same."""
    kept = {(value.row, value.column): value.slowness for value in slow_runs() if value.is_open}
    own = [
        row
        for row in measured.table("runs")
        if row["kind"] == "online_rate" and not runs_in_client(row) and (row["id"], "tpot_ms_mean") in kept
    ]
    found = [value for item in items_of(own) for value in slow_values(item, item.replica.spec.profile.host)]
    assert len(found) >= (30 if measured.whole else 6)
    for value in found:
        assert value.slowness == pytest.approx(kept[value.row, value.column], rel=0.05), (
            value.row,
            value.column,
        )


def test_the_shipped_distribution_is_that_of_the_runs():
    shipped = replace(slowness_table(slow_runs()), published=shipped_slowness().published)
    assert slowness_text(shipped) == SLOWNESS_FILE.read_text(encoding="utf-8")


def test_what_is_written_is_read_again(tmp_path):
    path = written_to(tmp_path / "slowness.csv", slow_runs_text(slow_runs()))
    assert slow_runs(path) == slow_runs()


def test_a_known_distribution_is_found_and_held():
    """Groups drawn from one normal distribution: its median and width come back, and claims hold on groups left out."""
    rng = np.random.default_rng(11)
    drawn = [
        SlowRun("r", "tpot/p95", f"s|m{k % 40}|d", 0.02, x) for k, x in enumerate(rng.normal(0.1, 0.3, 4000))
    ]
    found = regime_of(drawn, 0.0)
    known = [NormalDist(0.1, 0.3 * (1 + 1 / 40)).inv_cdf(p) for p in PROBABILITIES]
    assert RELATIVE * np.array(found.quantiles) == pytest.approx(known, abs=0.02)
    claims = left_out_claims(drawn, "group", 0.0)
    for level, share in observed(claims).items():
        assert share == pytest.approx(level, abs=0.025)


def test_a_measured_95th_percentile_stands_and_another_one_is_placed():
    """A slow 99th percentile, of a cold start for one, says nothing of a 95th that was measured."""
    base = next(v for v in slow_runs() if v.is_open)
    values = {"ttft_ms_p50": 1.1, "ttft_ms_p95": 1.2, "ttft_ms_p99": 7.5}
    own = [replace(base, column=column, slowness=slowness) for column, slowness in values.items()]
    parts = {run.regime: run.log_slowness for run in questions(own)}
    assert parts["ttft/p95"] == pytest.approx(log(1.2))
    assert parts["ttft/p99"] == pytest.approx(log(7.5))
    placed = {run.regime: run.log_slowness for run in questions([own[0], own[2]])}
    assert log(1.2) < placed["ttft/p95"] < log(7.5)


def test_fewer_groups_are_wider():
    rng = np.random.default_rng(12)
    drawn = [
        SlowRun("r", "tpot/p95", f"s|m|d{k % 40}", 0.02, x) for k, x in enumerate(rng.normal(0.0, 0.3, 400))
    ]
    few = [replace(run, group=f"s|m|d{k % 2}") for k, run in enumerate(drawn)]
    few_wide, wide = (np.ptp(regime_of(own, 0.0).quantiles) for own in (few, drawn))
    assert few_wide == pytest.approx(1.5 / (1 + 1 / 40) * wide)


def test_slowness_is_where_the_replay_gives_what_was_measured():
    """A queue that grows steeply: the same slowness comes back for every point of the curve, flat parts included."""
    curve = np.exp(np.maximum(0.0, 8.0 * np.log(SLOWNESSES))) * SLOWNESSES
    for place in range(SLOWNESSES.size):
        assert slowness_at(SLOWNESSES, curve, float(curve[place])) == pytest.approx(
            SLOWNESSES[place], rel=1e-6
        )


@pytest.mark.long
def test_a_replica_that_is_slower_has_that_slowness():
    """The oracle is a replay on a step table whose every time is longer, not the stretched time that the code uses."""
    item = next(i for i in items_of(measured_table(BUILT_IN_POINTS)[1]) if i.benchmark.kind == "online_rate")
    host = item.replica.spec.profile.host
    times = ("decode_s", "head_s", "decode_attention_s", "mixed_s", "prefill_attention_s", "request_s")
    replica = replica_with(item, host)
    table = replace(replica.table, **{name: 1.3 * getattr(replica.table, name) for name in times})
    slow = replayed_columns(item.benchmark, Servers(replace(replica, table=table)))
    row = dict(item.row) | {name: str(value) for name, value in slow.items() if "_ms_" in name}
    for value in slow_values(replace(item, row=row), host):
        assert value.slowness == pytest.approx(1.3, rel=0.02), value.column


def test_the_section_has_every_limit():
    text = certainty_section()
    for words in (*MEASURED, *BOTH):
        assert words in text
