"""Starts of hybrid models that vLLM refused for their sequences per step, as its message printed the blocks."""

import json
import re

import pytest

from tests.files import written_to

WORDS = ("fit", "Qwen/Qwen3.6-27B", "--hardware", "h100", "--gpu-memory-utilization")
REFUSED = [
    (("0.95", "--weight-dtype", "fp8", "--engine-version", "0.21.0"), 856),
    (("0.92", "--max-model-len", "32768"), 348),
]
"""vllm-project/recipes, pull request 551; a launch of a Qwen3.5-27B in bf16 on an 80 GB device."""


@pytest.mark.parametrize(("words", "blocks"), REFUSED)
def test_more_sequences_than_state_blocks_do_not_start(capplan, words, blocks):
    ran = capplan(*WORDS, *words, "--format", "json")
    assert ran.code == 3, ran.err
    result = json.loads(ran.out)["result"]
    assert any("state blocks" in limit for limit in result["limits"])
    (flags,) = [row["change"] for row in result["changes"] if "--max-num-seqs" in row["change"]]
    most = int(flags.split()[-1])
    assert most == pytest.approx(blocks, rel=0.03)
    assert capplan(*WORDS, *words, *flags.split()).code == 0
    assert capplan(*WORDS, *words, "--max-num-seqs", str(most + 300)).code == 3


SCENARIO = """name: hyb
model: Qwen/Qwen3.6-27B
traffic:
  - {name: chat, request_rate: 6 req/s, input_tokens: {mean: 1500, p95: 4500}, output_tokens: {mean: 300, p95: 800}}
slo: {ttft_p95: 2 s, tpot_p95: 60 ms}
fleet: {hardware: [h100-sxm], tensor_parallel: 2, pipeline_parallel: 1}
"""
WAYS = (
    "fleet.disaggregation=off",
    "fleet.disaggregation=only",
    "speculation={method: ngram, acceptance: 0.6}",
)


@pytest.mark.parametrize("way", WAYS)
def test_every_exported_engine_of_a_hybrid_starts_with_its_sequences(tmp_path, capplan, way):
    """`fit`, which knows the refused starts, accepts the number that is exported; both pools state one, and drafts take states of their own."""
    scenario, plan = tmp_path / "hyb.yaml", tmp_path / "plan.json"
    scenario.write_text(SCENARIO)
    assert capplan("fleet", str(scenario), "--offline", "--set", way, "-o", str(plan)).code == 0
    exported = capplan("export", "--plan", str(plan), "--target", "vllm").out
    commands = exported.split("vllm serve")[1:]
    numbers = [int(found) for found in re.findall(r"--max-num-seqs (\d+)", exported)]
    assert len(numbers) == len(commands) >= (2 if "only" in way else 1)
    context = re.search(r"--max-model-len (\d+)", exported).group(1)
    given = ("fit", "Qwen/Qwen3.6-27B", "--hardware", "h100", "-tp", "2", "--max-model-len", context)
    for most in numbers:
        assert capplan(*given, "--max-num-seqs", str(most)).code == 0
    refused = capplan(*given, "--max-num-seqs", "1024", "--format", "json")
    if refused.code:
        (row,) = [
            row for row in json.loads(refused.out)["result"]["changes"] if "--max-num-seqs" in row["change"]
        ]
        blocks = int(row["change"].split()[-1])
        assert max(numbers) <= (0.6 * blocks if "ngram" in way else blocks)


def test_levers_of_a_hybrid_start_from_the_sequences_with_which_it_starts(tmp_path, capplan):
    scenario = written_to(tmp_path / "hyb.yaml", SCENARIO.replace("tensor_parallel: 2", "tensor_parallel: 1"))
    ran = capplan("levers", str(scenario), "--offline", "--lever", "max-num-seqs", "--format", "json")
    assert ran.code == 0, ran.err
    now = {int(found) for found in re.findall(r"max_num_seqs (\d+) ->", ran.out)}
    assert now
    assert max(now) <= 356


@pytest.mark.parametrize(("model", "said"), [("Qwen/Qwen3.6-27B", True), ("Qwen/Qwen3-32B", False)])
def test_fit_says_that_the_profile_run_of_an_image_encoder_is_counted_too_small(capplan, model, said):
    """Four of four logged starts of Qwen3.5 and Qwen3.6 had smaller caches than predicted."""
    ran = capplan("fit", model, "--hardware", "h200", "--format", "json")
    assert any("image encoder" in line for line in json.loads(ran.out)["warnings"]) is said
