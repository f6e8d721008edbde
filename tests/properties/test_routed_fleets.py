"""What `simulate` is told about the operation of a fleet reaches the simulator and comes back."""

import json

import pytest
from typer.testing import CliRunner

from capplan.cli.main import app

PLAN = (
    "simulate", "scenarios/support-chat.yaml", "--hardware", "h100-sxm", "-tp", "4",
    "--until", "20s", "--offline", "--format", "json",
)  # fmt: skip


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
    apart = answer("--prefill-replicas", "3", "--decode-replicas", "1", "--kv-link", "nvlink4")
    slow = answer("--prefill-replicas", "3", "--decode-replicas", "1", "--kv-link", "pcie")
    assert apart["replicas"] == 4
    assert apart["itl_s"]["p99"] < answer()["itl_s"]["p99"]
    assert slow["tpot_s"]["mean"] > apart["tpot_s"]["mean"]


def test_an_autoscaled_fleet_stays_within_its_limits() -> None:
    operation = answer("--autoscale", "1:3")["operation"]
    assert {use["replica"] for use in operation["replicas"]} <= {0, 1, 2}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--fail", "1"), "write it as '1@5 min'"),
        (("--fail", "7@1 s"), "numbered from 0 to 1"),
        (("--autoscale", "3"), "write it as '2:8'"),
        (("--autoscale", "3:2"), "upwards"),
        (("--kv-link", "pcie"), "belong together"),
        (("--prefill-replicas", "1", "--decode-replicas", "1", "--kv-link", "carrier"), "unknown link"),
        (("--routing", "prefix_aware"), "block ids"),
        (
            ("--hedge", "1 s", "--prefill-replicas", "1", "--decode-replicas", "1", "--kv-link", "pcie"),
            "are not modelled where",
        ),
    ],
)
def test_an_operation_that_cannot_be_is_refused_by_name(flags, words: str) -> None:
    result = ran(*flags)
    assert result.exit_code not in {0, 4}
    assert words in result.output + str(result.exception)
