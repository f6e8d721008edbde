"""Time and money outside the GPUs, worked out by hand; targets that include them are those of the engine with less to spend."""

import csv
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.questions.levers.answer import asked_levers, levers_of
from capplan.workload.request_class import answer_s
from tests.asked import fleet_of

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
CHAT = {"name": "chat", "request_rate": "20 req/s", "input_tokens": {"mean": 400, "p95": 1200}, "output_tokens": {"mean": 100, "p95": 300}}  # fmt: skip
AGENT = {"name": "agent", "request_rate": "5 req/s", "turns": 4, "think_time": "2 s", "added_tokens": 200, "input_tokens": 400, "output_tokens": 100}  # fmt: skip
MONTH_S = 730 * 3600


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("outside") / "s.yaml"


@pytest.fixture
def written(path):
    """Return the words that follow a command for these lines of traffic."""

    def scenario(*traffic, **more):
        keys = {
            "name": "s", "model": "qwen3-0.6b", "engine_version": "0.21.0", "max_model_len": 4096, "traffic": traffic,
            "slo": {"ttft_p95": "300 ms", "tpot_p95": "15 ms"},
            "fleet": {"hardware": ["l40s"], "tensor_parallel": 1, "pipeline_parallel": 1},
            "prices": {"per_gpu_hour": {"l40s": "1 $/h"}},
        }  # fmt: skip
        path.write_text(json.dumps(keys | more))
        return path, "--offline"

    return scenario


@pytest.fixture
def result(capplan):
    def of(command, words, *more):
        return capplan.result(command, *words, *more)

    return of


def chosen(words, *settings):
    return fleet_of(words[0], *settings).chosen


def test_money_by_hand(result, written):
    """Chat: 20 requests a second at 0.0002 $ and two calls of 0.001 $; agents: 5 turns a second, three of four after 1.5 calls."""
    chat = CHAT | {"outside": {"time": "90 ms", "usd_per_request": 0.0002, "tool_calls": 2, "tool_time": "5 ms", "usd_per_tool_call": 0.001}}  # fmt: skip
    agent = AGENT | {"outside": {"tool_calls": 1.5, "usd_per_tool_call": "0.002 $"}}
    words = written(chat, agent)
    rows = {row["name"]: row for row in result("fleet", words)["outside"]}
    assert rows["chat"]["usd_per_month"] == pytest.approx(20 * MONTH_S * (0.0002 + 2 * 0.001))
    assert rows["chat"]["wait_s"] == pytest.approx(0.09 + 2 * 0.005)
    assert rows["agent"]["usd_per_month"] == pytest.approx(5 * MONTH_S * 0.75 * 1.5 * 0.002)
    assert rows["agent"]["wait_s"] == 0.0
    plan = result("fleet", words)["chosen"]
    each = plan["outside"]
    assert each["usd_per_month"] == pytest.approx(sum(row["usd_per_month"] for row in rows.values()))
    assert each["mean_wait_s"] == pytest.approx(0.1 * 20 / 25)
    for statistic, engine in plan["ttft_s"].items():
        if statistic in each["seen_ttft_s"]:  # 80 of 100 requests wait 0.1 s, the others nothing
            assert engine < each["seen_ttft_s"][statistic] <= engine + 0.1 + 1e-9
    assert each["seen_e2e_s"]["mean"] == pytest.approx(plan["e2e_s"]["mean"] + 0.08, abs=0.002)
    # four turns, and two seconds of tools before each but the first
    assert rows["agent"]["answer_s"] == pytest.approx(4 * plan["class_e2e_mean_s"][1] + 3 * 2.0)
    assert rows["chat"]["answer_s"] is None


def test_the_bill_and_focus_have_it_and_a_comparison_has_it_on_both_sides(result, written, capplan, tmp_path):
    words = written(
        CHAT | {"tenant": "support", "outside": {"usd_per_request": 0.0002}},
        CHAT | {"name": "other", "tenant": "support"},
    )
    outside = 20 * MONTH_S * 0.0002
    with_it = result("bill", words)
    assert [row["outside_usd"] for row in with_it["classes"]] == pytest.approx([outside, 0.0])
    plain = written(CHAT | {"tenant": "support"}, CHAT | {"name": "other", "tenant": "support"})
    without = result("bill", plain)
    assert with_it["usd_per_month"] == pytest.approx(without["usd_per_month"] + outside)
    assert sum(row["with_idle_usd"] for row in with_it["classes"]) == pytest.approx(with_it["usd_per_month"])
    assert with_it["tenants"][0]["with_idle_usd"] == pytest.approx(with_it["usd_per_month"])
    own = result("compare", plain, "--api", "openai/gpt-5-mini")
    words = written(
        CHAT | {"tenant": "support", "outside": {"usd_per_request": 0.0002}},
        CHAT | {"name": "other", "tenant": "support"},
    )
    both = result("compare", words, "--api", "openai/gpt-5-mini")
    for before, after in ((own["own"], both["own"]), (own["apis"][0], both["apis"][0])):
        assert after["usd_per_month"] == pytest.approx(before["usd_per_month"] + outside)
    assert both["breakeven_request_rate"] == pytest.approx(own["breakeven_request_rate"])
    file = tmp_path / "bill.csv"
    assert capplan("bill", *words, "--focus", file, "--month", "2026-12").code == 0
    rows = list(csv.DictReader(file.open()))
    assert sum(float(row["BilledCost"]) for row in rows) == pytest.approx(
        with_it["usd_per_month"] * 744 / 730
    )
    (paid,) = (row for row in rows if row["SkuMeter"] == "Requests")
    assert float(paid["ConsumedQuantity"]) == pytest.approx(20 * 744 * 3600)
    assert float(paid["ListUnitPrice"]) == pytest.approx(0.0002)


@pytest.mark.parametrize(
    ("metric", "stated_s", "outside_s", "left_s"), [("ttft", 0.3, 0.22, 0.08), ("e2e", 3.0, 1.0, 2.0)]
)
def test_a_target_that_includes_it_is_one_of_the_engine_with_less_to_spend(
    written, metric, stated_s, outside_s, left_s
):
    stated, left = ({f"{metric}_p95": f"{limit} s"} for limit in (stated_s, left_s))
    outside = CHAT | {"outside": {"time": f"{outside_s} s"}}
    included = chosen(written(outside, slo=stated))
    excluded = chosen(written(outside, slo=stated), "slo.outside=excluded")
    less, plain = chosen(written(CHAT, slo=left)), chosen(written(CHAT, slo=stated))
    for mine, other in ((included, less), (excluded, plain)):
        assert mine.outside.longest_wait_s == outside_s
        assert (mine.replicas, mine.ttft_s) == (other.replicas, other.ttft_s)
        assert mine.slo_met_probability == pytest.approx(other.slo_met_probability)
    assert (included.replicas, included.slo_met_probability) != (
        excluded.replicas,
        excluded.slo_met_probability,
    )


def test_nothing_outside_changes_nothing(written):
    plain = chosen(written(CHAT, AGENT))
    nothing = {"outside": {"time": "0 s", "usd_per_request": 0}}
    assert chosen(written(CHAT | nothing, AGENT | nothing)) == plain
    assert plain.outside is None


def test_users_come_back_later_by_as_much(written):
    users = {"name": "chat", "users": 300, "input_tokens": 400, "output_tokens": 100}
    waiting = chosen(
        written(users | {"think_time": "2 s", "outside": {"time": "1 s"}}, slo={"tpot_p95": "15 ms"})
    )
    thinking = chosen(written(users | {"think_time": "3 s"}, slo={"tpot_p95": "15 ms"}))
    assert (waiting.replicas, waiting.e2e_s) == (thinking.replicas, thinking.e2e_s)


def test_the_requests_of_a_job_are_paid_once(result, written):
    """A job of 36,000 requests with four samples each: retrieval once for each request."""
    job = {"requests": 36_000, "within": "2 h", "samples": 4, "input_tokens": 400, "output_tokens": 100, "outside": {"usd_per_request": 0.01}}  # fmt: skip
    plan = result("fleet", written(job, slo={}))["chosen"]
    assert plan["outside"]["usd_per_job"] == pytest.approx(360.0)
    assert plan["outside"]["usd_per_month"] is None


def test_a_simulation_adds_the_wait_to_what_users_see(result, written):
    words = written(CHAT | {"outside": {"time": "100 ms"}}, CHAT | {"name": "other"})
    classes = result("simulate", words, "--hardware", "l40s", "--replicas", "2", "--until", "30s")["classes"]
    for metric in ("ttft_s", "e2e_s"):
        for part, engine in classes["chat"][metric].items():
            assert classes["chat"][f"seen_{metric}"][part] == pytest.approx(engine + 0.1)
    assert "seen_ttft_s" not in classes["other"]


def test_half_of_the_time_outside_is_a_lever_where_the_rest_of_the_target_is_tight(written):
    """Of 160 ms, 110 are outside: the 50 ms that are left to the engine take a larger fleet than 105 ms."""
    slo = {"ttft_p95": "160 ms"}
    words = written(CHAT | {"request_rate": "120 req/s", "outside": {"time": "110 ms"}}, slo=slo)
    asking, base = asked_levers(words[0], None, (), offline=True)
    (row,) = levers_of(asking, base, ["outside"]).rows
    quicker = chosen(written(CHAT | {"request_rate": "120 req/s", "outside": {"time": "55 ms"}}, slo=slo))
    assert row.plan.usd_per_month == quicker.usd_per_month
    assert row.usd_per_month_saved == pytest.approx(base.plan.usd_per_month - quicker.usd_per_month)
    assert row.usd_per_month_saved > 0


def test_without_time_outside_the_lever_says_why(written):
    asking, base = asked_levers(written(CHAT)[0], None, (), offline=True)
    (row,) = levers_of(asking, base, ["outside"]).rows
    assert not row.applicable
    assert "no target includes time outside" in row.reason


def test_pools_have_it_too(written):
    fleet = {
        "hardware": ["l40s"],
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "disaggregation": "only",
        "kv_link": "pcie",
    }
    words = written(CHAT | {"outside": {"time": "50 ms", "usd_per_request": 0.001}}, fleet=fleet)
    plan = chosen(words)
    assert plan.outside.usd == pytest.approx(20 * MONTH_S * 0.001)
    less = chosen(written(CHAT, fleet=fleet, slo={"ttft_p95": "250 ms", "tpot_p95": "15 ms"}))
    assert (plan.replicas, plan.ttft_s) == (less.replicas, less.ttft_s)


SECONDS = st.floats(0.0, 100.0)


@given(st.integers(1, 30), SECONDS, SECONDS, SECONDS)
def test_the_time_of_an_answer_is_that_of_its_turns_one_after_the_other(turns, response, between, wait):
    clock = wait
    for turn in range(turns):
        clock += response + (between if turn < turns - 1 else 0.0)
    assert answer_s(float(turns), response, between, wait) == pytest.approx(clock)
