"""What vLLM did on an H100 is predicted: its cache, its steps, its launches and its open loops, with nothing fitted on them but launches and graphs."""

import gzip
import json

import numpy as np
import pytest

from calibrate.live.card_table import (
    KEPT,
    decode_rows,
    launch_rows,
    load_rows,
    paces,
    replica,
    steps_of,
    table,
)

MODELS = sorted(path.name for path in KEPT.iterdir() if path.is_dir())
ABOUT = json.loads((KEPT / "about.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def own():
    return {name: replica(name, ABOUT["vllm"]) for name in MODELS}


@pytest.fixture(scope="module")
def steps():
    return {name: steps_of(KEPT / name) for name in MODELS}


@pytest.mark.parametrize("name", MODELS)
def test_the_cache_that_the_engine_printed(name, own):
    tokens = own[name].kv_blocks * own[name].scheduling.block_tokens
    assert tokens == pytest.approx(ABOUT[name]["kv_cache_tokens"], rel=5e-4)


@pytest.mark.parametrize("name", MODELS)
def test_steps_of_every_batch_and_all_of_them_together(name, own, steps):
    """Over the whole run 6 % at most; a batch up to 11 %, but for the smallest model, whose batches beyond 64 are 15 % too slow."""
    assert paces(steps[name], own[name]) == pytest.approx(1.0, abs=0.06)
    ratios = [predicted / seen for _, _, seen, predicted in decode_rows(steps[name], own[name])]
    assert len(ratios) >= 7
    assert np.median(np.abs(np.log(ratios))) < 0.06
    assert max(np.abs(np.log(ratios))) < (0.15 if name.endswith("0.6B") else 0.11)


def test_a_layer_takes_as_long_to_launch_in_models_of_any_width(own, steps):
    """28 layers of 1,024 and 36 of 4,096; layers with routed experts launch more kernels."""
    each = {}
    for name in MODELS:
        host = own[name].spec.profile.host
        layers = len(own[name].spec.network.layers)
        each[name] = np.median(launch_rows(steps[name], host.graph_tokens)["eager"]) / layers
    host = own["Qwen--Qwen3-8B"].spec.profile.host
    assert each["Qwen--Qwen3-0.6B"] == pytest.approx(host.eager_layer_s, rel=0.02)
    assert each["Qwen--Qwen3-8B"] == pytest.approx(host.eager_layer_s, rel=0.02)
    assert each["Qwen--Qwen3-30B-A3B"] == pytest.approx(host.eager_layer_s + host.eager_experts_s, rel=0.02)


@pytest.mark.parametrize("name", MODELS)
def test_open_loops_that_no_fit_saw(name, own):
    records = json.loads(gzip.decompress((KEPT / name / "records.json.gz").read_bytes()))
    for row in load_rows({key: value for key, value in records.items() if key.startswith("open")}, own[name]):
        for key, most in (("tpot_p50", 0.13), ("tpot_p95", 0.2)):
            seen, predicted = row[key]
            assert predicted == pytest.approx(seen, rel=most), (row["load"], key)


def test_the_page_has_the_table_of_today(root):
    """Numbers of the page are those that the kept records and today's predictions give."""
    page = (root / "docs" / "live.md").read_text(encoding="utf-8")
    assert "\n".join(table()) in page
