"""What is claimed of open loops is observed of those that were left out, and the shipped distribution is that of the runs."""

from dataclasses import replace
from math import log
from statistics import NormalDist

import numpy as np
import pytest

from calibrate.host_rows import items_of, replica_with
from calibrate.reliability import BOTH, MEASURED, certainty_section, observed
from calibrate.slow_runs import SLOWNESSES, slow_runs, slow_runs_text, slow_values, slowness_at
from calibrate.slowness_fit import (
    HOSTS_S,
    RELATIVE,
    SlowRun,
    fitted_host_s,
    left_out_claims,
    questions,
    regime_of,
    slowness_table,
    slowness_text,
)
from capplan.accuracy.replay import Servers, replayed_columns
from capplan.accuracy.slowness import PROBABILITIES, slowness_of
from capplan.questions.validation import BUILT_IN_POINTS
from capplan.readers.catalogue.efficiency import SLOWNESS_FILE, shipped_slowness
from capplan.recorded.measured import measured_table
from capplan.workload.request_class import Target
from tests.files import written_to

JUDGED = (0.5, 0.7, 0.8, 0.9)
OFF = 0.07
"""Claimed and observed may differ by this much."""


@pytest.fixture(scope="module")
def runs():
    return questions(slow_runs())


@pytest.fixture(scope="module")
def claims_without(runs):
    host_s = shipped_slowness().host_s
    return {left_out: left_out_claims(runs, left_out, host_s) for left_out in ("group", "model")}


def of(claims, names, load=""):
    return [
        claim
        for claim in claims
        if claim.run.regime.rpartition("/")[0] in names and claim.run.regime.endswith(load)
    ]


@pytest.mark.parametrize("names", [MEASURED, BOTH], ids=["one latency", "both at once"])
@pytest.mark.parametrize(
    ("left_out", "load"), [("group", ""), ("group", "/open"), ("group", "/overload"), ("model", "")]
)
def test_limits_hold_as_often_as_claimed(claims_without, left_out, names, load):
    claims = of(claims_without[left_out], tuple(names.values()), load)
    found = observed(claims)
    assert {level: found[level] for level in JUDGED if abs(found[level] - level) > OFF} == {}


def usual_of(run):
    """Return the shipped distribution for what a run says, by the target that asks it."""
    latencies, part, load = run.regime.split("/")
    statistic = {"middle": "p50"}.get(part, part)
    metrics = ("ttft", "tpot") if latencies == "both" else (latencies,)
    targets = [Target(metric, statistic, 1.0) for metric in metrics]
    return slowness_of(shipped_slowness(), targets, network_class="dense", step_s=run.step_s, load=load)


def test_shipped_claims_hold_on_measured_runs(measured):
    """Replayed here with the shipped host numbers: all runs where the whole table is at hand, drawn ones in a clone."""
    rows = [row for row in measured.table("runs") if row["kind"] == "online_rate"]
    rows += (
        []
        if measured.whole
        else [r for r in measured_table(BUILT_IN_POINTS)[1] if r["kind"] == "online_rate"]
    )
    items = items_of({row["id"]: row for row in rows}.values())
    found = [run for item in items for run in questions(slow_values(item, item.replica.spec.profile.host))]
    asked = [run for run in found if run.measured and run.regime.rpartition("/")[0] in MEASURED.values()]
    assert len(items) == (101 if measured.whole else 13)
    for level in (0.1, *JUDGED):
        held = np.mean([run.log_slowness <= log(usual_of(run).quantile(level)) for run in asked])
        # 13 runs whose values move together: two standard errors of a share are a quarter.
        assert held >= level - (OFF if measured.whole else 0.25), level
        assert held <= level + (OFF if measured.whole else 0.3), level


@pytest.mark.long
def test_the_shipped_distribution_is_that_of_the_runs(runs):
    values = slow_runs()
    host_s = fitted_host_s(runs)
    assert host_s in HOSTS_S[1:-1], "the host's part is at the end of what is tried"
    assert slowness_text(slowness_table(values, host_s)) == SLOWNESS_FILE.read_text(encoding="utf-8")


def test_what_is_written_is_read_again(tmp_path):
    path = written_to(tmp_path / "slowness.csv", slow_runs_text(slow_runs()))
    assert slow_runs(path) == slow_runs()


def test_a_known_distribution_is_found_and_held():
    """Groups drawn from one normal distribution: its median and width come back, and claims hold on groups left out."""
    rng = np.random.default_rng(11)
    drawn = [
        SlowRun("both/p95/open", f"s|m{k % 40}|d", 0.02, x) for k, x in enumerate(rng.normal(0.1, 0.3, 4000))
    ]
    found = regime_of(drawn, 0.0)
    known = [NormalDist(0.1, 0.3 * (1 + 1 / 40)).inv_cdf(p) for p in PROBABILITIES]
    assert RELATIVE * np.array(found.quantiles) == pytest.approx(known, abs=0.02)
    claims = left_out_claims(drawn, "group", 0.0)
    for level, share in observed(claims).items():
        assert share == pytest.approx(level, abs=0.025)


def test_a_measured_95th_percentile_stands_and_another_one_is_placed():
    """A slow 99th percentile, of a cold start for one, says nothing of a 95th that was measured."""
    base = next(v for v in slow_runs() if v.load == "open")
    values = {"ttft_ms_p50": 1.1, "ttft_ms_p95": 1.2, "ttft_ms_p99": 7.5}
    own = [replace(base, column=column, slowness=slowness) for column, slowness in values.items()]
    parts = {run.regime: run.log_slowness for run in questions(own)}
    assert parts["ttft/p95/open"] == pytest.approx(log(1.2))
    assert parts["ttft/p99/open"] == pytest.approx(log(7.5))
    placed = {run.regime: run.log_slowness for run in questions([own[0], own[2]])}
    assert log(1.2) < placed["ttft/p95/open"] < log(7.5)


def test_fewer_groups_are_wider():
    rng = np.random.default_rng(12)
    drawn = [
        SlowRun("both/p95/open", f"s|m|d{k % 40}", 0.02, x) for k, x in enumerate(rng.normal(0.0, 0.3, 400))
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
