"""Plans of a fleet: how replicas, devices and dollars follow from rates and targets, and which loads are looked at."""

from dataclasses import replace
from pathlib import Path

import pytest

from capplan.fleet.review import phase_times, plan_details
from capplan.fleet.search.layouts import search
from capplan.fleet.search.steady_plans import LOADS
from capplan.fleet.sweep import Contender, Point, between, summaries, swept
from capplan.questions.fleet_answer import fleet_for
from capplan.replica.replica import replica_of
from capplan.serving.step_table import decode_step_s, mixed_step_s
from capplan.workload.request_class import Slo, Target
from tests.asked import asked_of, fleet_of
from tests.files import written_to

pytestmark = pytest.mark.usefixtures("shared_runs")
SCENARIO = """name: small
model: Qwen/Qwen2.5-0.5B
traffic:
  - {name: chat, request_rate: 30 req/s, input_tokens: 900, output_tokens: 120}
  - {name: users, users: 600, think_time: 20 s, input_tokens: {mean: 400, p95: 900}, output_tokens: 60}
slo: {ttft_p95: 1 s, tpot_p95: 40 ms, e2e_p99: 12 s}
fleet: {hardware: [l4, a100-sxm-80gb], tensor_parallel: [1, 2], pipeline_parallel: 1, headroom: 0.25, spare_replicas: 2}
prices:
  per_gpu_hour: {l4: 0.7 $/h, a100-sxm-80gb: 1.9 $/h}
"""
PRICE = {"l4": 0.7, "a100-sxm-80gb": 1.9}


def near(value, rel=1e-9):
    return pytest.approx(value, rel=rel)


def place(found):
    return found.layout.device.name, found.layout.sharding.tensor


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    path = written_to(tmp_path_factory.mktemp("plans") / "small.yaml", SCENARIO)
    return asked_of(path)


@pytest.fixture(scope="module")
def plans(asked):
    found = fleet_for(asked).plans
    assert len(found) >= 2
    assert {plan.single.layout.device.name for plan in found} == set(PRICE)
    return found


def test_a_fleet_carries_its_peak_with_headroom_and_spares(asked, plans):
    for plan in plans:
        busy = plan.replicas - plan.spare_replicas
        assert plan.spare_replicas == 2
        # Users wait for their answers, so their rate follows from the response time.
        total = 30.0 + 600.0 / (20.0 + plan.class_e2e_mean_s[1])
        assert plan.single.request_rate_per_replica * busy == near(
            total, 0.04
        )  # drawn: 3 % is one standard error of 1,000 thoughts
        assert plan.slo_met_probability >= 0.79
        assert set(plan.target_probabilities) == {"ttft_p95", "tpot_p95", "e2e_p99"}
        assert plan.single.concurrency_per_replica == near(
            plan.single.request_rate_per_replica * plan.e2e_s.mean
        )
        assert plan.gpus == plan.replicas * int(plan.single.layout.sharding.tensor)
        limits = [(plan.ttft_s.p95, 1.0), (plan.tpot_s.p95, 0.04), (plan.e2e_s.p99, 12.0)]
        assert all(value <= limit for value, limit in limits)


def test_the_inside_of_a_plan_is_one_prompt_and_one_step_at_its_peak(asked, plans):
    plan = plans[0]
    (detail,) = plan_details(plan, [(asked.question, asked.question.demand)])
    assert (detail.load.input_tokens, detail.load.output_tokens) == (
        round(asked.question.demand.lengths.input_tokens), round(asked.question.demand.lengths.output_tokens)
    )  # fmt: skip
    assert detail.load.request_rate == plan.single.request_rate_per_replica
    table = replica_of(detail.spec).table
    assert detail.phase_s["prefill"] == near(
        float(mixed_step_s(table, 0.0, 0.0, 1.0, detail.load.input_tokens, 0.0))
    )
    context = detail.load.input_tokens + detail.load.output_tokens / 2
    assert detail.phase_s["decode"] == near(
        float(decode_step_s(table, max(1.0, plan.single.concurrency_per_replica), context))
    )
    # A prompt of two and a half budgets, a tenth of it cached: chunks of a whole budget, in the middle of the rest.
    replica = replica_of(detail.spec)
    budget = replica.scheduling.max_num_batched_tokens
    long = replace(detail.load, input_tokens=budget * 5 // 2, prefix_hit_fraction=0.1)
    new = 0.9 * long.input_tokens
    chunk = float(mixed_step_s(table, 0.0, 0.0, 1.0, budget, 0.1 * long.input_tokens + (new - budget) / 2))
    assert phase_times(replica, long, 1.0)["prefill"] == near(new / budget * chunk)


def test_the_screening_bounds_every_layout(asked):
    found = search(asked.question)
    assert found.evaluated == LOADS * 4
    # Each that is found holds at one load at least.
    assert sum(found.rejected.values()) <= found.evaluated - len(found.candidates)
    assert {place(f) for f in found.candidates} == {(name, tensor) for name in PRICE for tensor in (1.0, 2.0)}
    strict = Slo(tuple(replace(t, limit_s=t.limit_s * 0.5) for t in asked.question.slo.targets))
    tight = {place(f): f.share_bound for f in search(replace(asked.question, slo=strict)).candidates}
    for entry in found.candidates:
        assert tight.get(place(entry), 0.0) <= entry.share_bound <= entry.share_ceiling
        # Asked to be surer of its targets, a replica takes less.
        bounds = [entry.sure_share_bounds[confidence] for confidence in sorted(entry.sure_share_bounds)]
        assert bounds == sorted(bounds, reverse=True)


def test_targets_that_nobody_holds_say_how_far_off_the_nearest_is(asked):
    never = Slo((Target("ttft", "p95", 1e-4), Target("e2e", "p99", 100.0)))
    result = search(replace(asked.question, slo=never))
    assert not result.candidates
    assert {(r.target, r.limit_s) for r in result.relaxations} == {("ttft_p95", 1e-4)}
    for near_miss in result.relaxations:
        # With the relaxed target there is a load that holds.
        relaxed = Slo((Target("ttft", "p95", near_miss.needed_s * 1.001),))
        again = search(replace(asked.question, slo=relaxed))
        assert place(near_miss) in {place(f) for f in again.candidates}


def rows_up_to(edge, loads, key="request_rate"):
    other = {"request_rate": None, "concurrency": None}
    return [{**other, key: load, "holds": load <= edge} for load in loads]


def test_the_next_load_lies_between_the_last_that_holds_and_the_first_that_does_not():
    assert between(rows_up_to(2.5, [1.0, 2.0, 3.0, 4.0]), whole=False) == 2.5
    assert between(rows_up_to(9.0, [1.0, 2.0]), whole=False) is None
    assert between(rows_up_to(0.5, [1.0, 2.0]), whole=False) is None
    assert between(rows_up_to(8, [4, 8, 16], "concurrency"), whole=True) == 12.0
    assert between(rows_up_to(8, [8, 9], "concurrency"), whole=True) is None
    assert between(rows_up_to(1.0, [1.0, 1.015]), whole=False) is None  # a percent is close enough
    assert between(rows_up_to(1.0, [1.0, 1.03]), whole=False) == near(1.015)
    # A miss below a load that holds is chance.
    odd = [*rows_up_to(3.0, [2.0, 3.0, 4.0]), {"request_rate": 1.0, "concurrency": None, "holds": False}]
    assert between(odd, whole=False) == 3.5


@pytest.mark.parametrize("closed", [False, True])
def test_a_sweep_closes_in_on_the_edge_of_every_plan(closed):
    edges = {"a": 37.0, "b": 90.0}
    asked_for = []

    def run(points):
        for point in points:
            load = point.concurrency if closed else point.request_rate
            asked_for.append((point.contender.name, load))
            yield point, {
                "plan": point.contender.name, "request_rate": point.request_rate, "concurrency": point.concurrency,
                "holds": load <= edges[point.contender.name],
            }  # fmt: skip

    first = [
        Point(
            Contender(name, None),
            None,
            Slo(),
            1,
            **({"concurrency": load} if closed else {"request_rate": float(load)}),
        )
        for name in ("b", "a")
        for load in (64, 32, 128)
    ]
    rows = swept(first, run)
    assert [row["plan"] for row in rows] == sorted(
        (row["plan"] for row in rows), reverse=True
    )  # as asked: b, then a
    key = "concurrency" if closed else "request_rate"
    for name, edge in edges.items():
        loads = [row[key] for row in rows if row["plan"] == name]
        assert loads == sorted(loads)
        assert len(loads) == 3 + 4
        held = max(load for load in loads if load <= edge)
        missed = min(load for load in loads if load > edge)
        assert missed - held <= (64 if name == "b" else 32) / 2**4 + 1
    assert len(asked_for) == len(rows)
    assert len(swept(first, run, refine=False)) == 6


def test_summaries_name_the_knee_and_the_most_that_holds():
    def row(plan, rate, served, e2e, *, holds):
        return {
            "plan": plan, "gpus": 2, "request_rate": rate, "concurrency": None, "requests_per_s": served, "e2e_s": {"mean": e2e},
            "holds": holds, "goodput_requests_per_s": served * 0.9, "output_tokens_per_s_per_gpu": 10 * served,
            "usd_per_million_output_tokens": 100 / served,
        }  # fmt: skip

    rows = [
        row("p", 1.0, 1.0, 1.0, holds=True), row("p", 2.0, 2.0, 1.5, holds=True), row("p", 3.0, 2.9, 2.4, holds=True),
        row("p", 4.0, 3.2, 9.0, holds=False), row("q", 1.0, 1.0, 5.0, holds=False),
    ]  # fmt: skip
    first, second = summaries(rows, Slo((Target("e2e", "mean", 3.0),)), {})
    assert (first["plan"], first["knee_load"], first["knee_requests_per_s"], first["knee_e2e_s"]) == (
        "p",
        2.0,
        2.0,
        1.5,
    )
    assert (first["largest_load_that_holds"], first["most_requests_per_s"]) == (3.0, 3.2)
    assert first["largest_goodput_requests_per_s"] == near(2.9 * 0.9)
    assert first["output_tokens_per_s_per_gpu"] == near(29.0)
    assert first["usd_per_million_output_tokens"] == near(100 / 2.9)
    assert (second["largest_load_that_holds"], second["largest_goodput_requests_per_s"]) == (None, None)
    assert second["output_tokens_per_s_per_gpu"] == 10.0
    assert second["usd_per_million_output_tokens"] == 100.0
    free, _ = summaries(rows, Slo(), {})
    assert free["largest_load_that_holds"] is None
    assert free["output_tokens_per_s_per_gpu"] == 20.0  # of the knee


@pytest.mark.long
@pytest.mark.parametrize("path", ["small-team", "disaggregated"])
def test_a_plan_of_another_size_has_the_cost_and_the_power_of_that_size(path):
    """All that is proportional to the GPUs; what a slower or faster replica would cost is that of another search."""
    plan = fleet_of(Path(path)).chosen
    twice = plan.resized([2 * group.replicas - group.spare_replicas for group in plan.groups])
    assert twice.gpus == 2 * plan.gpus
    for name in ("usd_per_hour", "usd_per_month", "watts"):
        assert getattr(twice, name) == pytest.approx(2.0 * getattr(plan, name))
    assert twice.money.usd_per_million_tokens_at_mean == pytest.approx(
        2.0 * plan.money.usd_per_million_tokens_at_mean
    )
    assert twice.usd_per_month_low is None
    assert plan.resized([group.busy_replicas for group in plan.groups]).usd_per_month == pytest.approx(
        plan.usd_per_month
    )
