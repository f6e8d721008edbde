"""Starts of hybrid models that vLLM refused for their sequences per step, as its message printed the blocks."""

import json

import pytest

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
