"""What vLLM did on an H100 is predicted: its cache, its steps, its launches and its open loops, with nothing fitted on them but launches and graphs."""

import gzip
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from calibrate.host_fit import SLOW_HOST
from calibrate.live.card_table import (
    KEPT,
    crowded,
    decode_rows,
    launch_rows,
    load_rows,
    paces,
    replica,
    steps_of,
    table,
    with_cache,
)
from calibrate.live.evidence_files import FOLDER, files

MODELS = sorted(path.name for path in KEPT.iterdir() if path.is_dir())
ABOUT = json.loads((KEPT / "about.json").read_text(encoding="utf-8"))
IN_16_BITS = ["Qwen--Qwen3-0.6B", "Qwen--Qwen3-30B-A3B", "Qwen--Qwen3-8B"]
MEDIAN_ERRORS = {"Qwen--Qwen3-0.6B": 0.1, "Qwen--Qwen3-30B-A3B": 0.14, "Qwen--Qwen3-8B": 0.04}
"""Of TPOT in open loops, at most: the mixture's is 13.9 % too long at 60 %, as on the page."""
CROWDED = ["Qwen--Qwen3-30B-A3B-FP8", "deepseek-ai--DeepSeek-V2-Lite"]
"""Their random weights send all tokens of a step to the same experts."""


@pytest.fixture(scope="module")
def own():
    found = {name: replica(name, ABOUT["vllm"]) for name in MODELS}
    for name, own in found.items():
        if "cache_gib" in ABOUT[name]:
            found[name] = with_cache(own, ABOUT[name]["cache_gib"])
    return found


@pytest.fixture(scope="module")
def steps():
    return {name: steps_of(KEPT / name) for name in MODELS}


@pytest.mark.parametrize("name", MODELS)
def test_the_cache_that_the_engine_printed(name, own):
    tokens = own[name].kv_blocks * own[name].scheduling.block_tokens
    assert tokens == pytest.approx(ABOUT[name]["kv_cache_tokens"], rel=5e-4)


def test_random_weights_that_crowd_the_tokens_on_few_experts_are_found(own, steps):
    """A step of 64 sequences of DeepSeek-V2-Lite takes 5.3 ms; its experts are 28.8 GB, 8.6 ms of reading."""
    assert [name for name in MODELS if crowded(steps[name], own[name])] == CROWDED


@pytest.mark.parametrize("name", IN_16_BITS)
def test_steps_of_every_batch_and_all_of_them_together(name, own, steps):
    """Over the whole run 6 % at most; a batch up to 11 %, but for the smallest model, whose batches beyond 64 are 15 % too slow."""
    assert paces(steps[name], own[name]) == pytest.approx(1.0, abs=0.061)
    ratios = [predicted / seen for _, _, seen, predicted in decode_rows(steps[name], own[name])]
    assert len(ratios) >= 7
    assert np.median(np.abs(np.log(ratios))) < 0.06
    assert max(np.abs(np.log(ratios))) < (0.15 if name.endswith("0.6B") else 0.11)


def test_decode_steps_of_one_sequence(own, steps):
    """One sequence reads its own experts whatever the router does; fp8 in blocks without DeepGEMM is a fifth to a third slower than predicted."""
    for name in MODELS:
        _, _, seen, predicted = next(iter(decode_rows(steps[name], own[name])))
        assert predicted == pytest.approx(seen, rel=0.32 if name.endswith("FP8") else 0.09), name


def test_launches_of_a_layer(own, steps):
    """Layers of 1,024 and 4,096 values take as long to launch; experts, latent attention and products of block-scaled fp8 add to it.

    The numbers are medians of five of these models; the sixth, whose experts are in fp8, was not used, and its launches are predicted 15 % too short.
    What latent attention and block-scaled fp8 add was measured on a slower host than published runs have.
    """
    for name in MODELS:
        spec = own[name].spec
        host, network = spec.profile.host, spec.network
        host = replace(
            host,
            eager_latent_s=SLOW_HOST * host.eager_latent_s,
            eager_scaled_s=SLOW_HOST * host.eager_scaled_s,
        )
        seen = np.median(launch_rows(steps[name], host.graph_tokens)["eager"])
        counts = len(network.layers), network.routed_layers, network.latent_layers, network.scaled_products
        assert host.launch_s(8192.0, *counts) == pytest.approx(
            seen, rel=0.15 if name == "Qwen--Qwen3-30B-A3B-FP8" else 0.03
        ), name


@pytest.mark.parametrize("name", IN_16_BITS)
def test_open_loops_that_no_fit_saw(name, own):
    records = json.loads(gzip.decompress((KEPT / name / "records.json.gz").read_bytes()))
    for row in load_rows({key: value for key, value in records.items() if key.startswith("open")}, own[name]):
        for key, most in (("tpot_p50", MEDIAN_ERRORS[name]), ("tpot_p95", 0.2)):
            seen, predicted = row[key]
            assert predicted == pytest.approx(seen, rel=most), (row["load"], key)


def test_the_files_of_the_page_are_those_of_today():
    """Their numbers are those that the kept records and today's predictions give."""
    for name, text in files().items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, (
            "run: python -m calibrate.live.evidence_files"
        )


def test_rows_that_the_page_quotes_are_those_of_its_file():
    page = (FOLDER / "live.md").read_text(encoding="utf-8")
    rows = str(table()).splitlines()
    quoted = re.findall(r"^\| (?:all steps, measured|closed loops of|open loop at).*", page, re.MULTILINE)
    assert len(quoted) == 4
    assert [row for row in quoted if row not in rows] == []
