"""What `simulate` is told about the operation of a fleet reaches the simulator and comes back."""

import json
import shlex

import pytest
from typer.testing import CliRunner

from capplan.cli.main import app
from tests.tables import table

PLAN = shlex.split(
    "simulate scenarios/support-chat.yaml --hardware h100-sxm -tp 4 --until 20s --offline --format json"
)


RACK = ("--hardware", "gb200")
"""72 devices on one link, which joins pools of several replicas."""


def ran(*flags: str):
    """Return a run of two replicas, but where the flags say how many there are of each kind."""
    alike = () if "--prefill-replicas" in flags else ("--replicas", "2")
    return CliRunner().invoke(app, [*PLAN, *alike, *flags])


def answer(*flags: str) -> dict:
    result = ran(*flags)
    assert result.exit_code in {0, 4}, result.output
    return json.loads(result.stdout)["result"]


def test_nothing_asked_for_is_nothing_said() -> None:
    assert "operation" not in answer()


def test_a_replica_that_fails_leaves_its_requests_to_the_other() -> None:
    found = answer("--fail", "1@10 s", "--routing", "least_loaded")
    operation = found["operation"]
    assert operation["rerouted_requests"] > 0
    # the step under way is finished: 8,192 tokens of prompts take a third of a second
    assert operation["replicas"][1]["until_s"] == pytest.approx(10.0, abs=0.4)
    assert found["ttft_s"]["mean"] > answer("--routing", "least_loaded")["ttft_s"]["mean"]


def test_prefill_and_decode_apart_decode_without_prompts_between() -> None:
    pools = (*RACK, "--prefill-replicas", "3", "--decode-replicas", "1", "--kv-link")
    apart, slow = answer(*pools, "nvlink5"), answer(*pools, "network")
    assert apart["replicas"] == 4
    assert apart["itl_s"]["p99"] < answer(*RACK)["itl_s"]["p99"]
    assert slow["ttft_s"]["mean"] > apart["ttft_s"]["mean"]


def test_an_autoscaled_fleet_stays_within_its_limits() -> None:
    operation = answer("--autoscale", "1:3")["operation"]
    assert {use["replica"] for use in operation["replicas"]} <= {0, 1, 2}


@table
def test_an_operation_that_cannot_be_is_refused_by_name(flags, words: str) -> None:
    result = ran(*flags)
    assert result.exit_code not in {0, 4}
    assert words in result.output + str(result.exception)


def text(*flags: str) -> str:
    shown = CliRunner().invoke(app, [*PLAN[:-2], *flags])
    assert shown.exit_code in {0, 4}, shown.output
    return shown.stdout


def test_an_autoscaled_fleet_has_one_count_of_its_replicas() -> None:
    """From how many to how many, and how many on average: at the top and below, and nowhere another number."""
    flags = ("--autoscale", "2:8", "--replicas", "4")
    operation = answer(*flags[:2])["operation"]
    there = sum(use["until_s"] - use["from_s"] for use in operation["replicas"])
    ends = max(use["until_s"] for use in operation["replicas"])
    assert operation["replicas_mean"] == pytest.approx(there / ends)
    shown = text(*flags)
    headline, closing = shown.splitlines()[0], shown.partition("the plan given: ")[2].splitlines()[0]
    count = headline.partition(" on ")[2].partition(", each")[0]
    assert count.startswith("2 to 8 replicas, ")
    assert closing == count
    assert "4 replicas" not in shown


def test_both_pools_call_their_replicas_by_their_own_name() -> None:
    flags = (*RACK, "--prefill-replicas", "2", "--decode-replicas", "1", "--kv-link", "nvlink5")
    replicas = answer(*flags)["operation"]["replicas"]
    assert [(use["pool"], use["replica"]) for use in replicas] == [
        ("prefill", 0),
        ("prefill", 1),
        ("decode", 0),
    ]
    shown = text(*flags)
    assert "on 2 prefill and 1 decode replicas, each (gb200 TP4" in shown
    rows = [line for line in shown.splitlines() if line.startswith(("prefill ", "decode "))]
    assert [line.split()[:2] for line in rows if line.split()[1].isdigit()] == [
        ["prefill", "0"],
        ["prefill", "1"],
        ["decode", "0"],
    ]
    assert {use["pool"] for use in answer("--routing", "least_loaded")["operation"]["replicas"]} == {None}


@pytest.mark.parametrize(
    ("flags", "count"), [(("--replicas", "3"), "3 replicas"), ((), "1 replica (replace")]
)
def test_the_count_of_a_named_plan_is_that_which_is_simulated(flags, count: str) -> None:
    shown = text(*flags)
    assert f"the plan given: {count}" in shown
    assert f"on {count[0]} x (h100-sxm TP4" in shown
