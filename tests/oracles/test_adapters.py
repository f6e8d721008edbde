"""LoRA adapters against the counts that training runs print, simulated draws, sums by hand, and laws."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.model.network import Adapters
from capplan.model.sharding import (
    MODULES,
    Sharding,
    adapter_bytes_per_rank,
    network_adapter_elements,
)
from capplan.operators.matmul import adapters_in_step, sequences_with_slots
from capplan.readers.catalogue.models import read_model
from capplan.replica.replica import replica_of
from capplan.replica.spec import prompt_work_s_per_token
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica

pytestmark = pytest.mark.usefixtures("shared_runs")
TRAINED = [
    ("llama-2-7b", 8, ("q_proj", "v_proj"), 4_194_304),
    ("llama-3.1-8b", 16, MODULES, 41_943_040),
    ("llama-3.2-1b", 16, MODULES, 11_272_192),
    ("llama-3.2-3b", 16, MODULES, 24_313_856),
    ("qwen2.5-7b", 16, MODULES, 40_370_176),
]
"""Trainable parameters as PEFT (https://github.com/huggingface/peft, `print_trainable_parameters`) and Unsloth
(https://docs.unsloth.ai, its notebooks of these models) print them."""
BASE = {
    "name": "s",
    "model": "llama-3.1-8b",
    "traffic": [{"request_rate": "6 req/s", "input_tokens": 500, "output_tokens": 100}],
    "fleet": {"hardware": ["h100-sxm"], "tensor_parallel": 1, "pipeline_parallel": 1},
}


@pytest.fixture
def fleet(capplan, tmp_path):
    """Return the chosen plan of the base scenario with adapters; None: without."""

    def run(lora, **fleet_keys):
        path = tmp_path / "s.yaml"
        keys = {"lora": lora} if lora else {}
        path.write_text(json.dumps(BASE | keys | {"fleet": BASE["fleet"] | fleet_keys}))
        return capplan.result("fleet", path, "--offline")["chosen"]

    return run


@pytest.mark.parametrize(("model", "rank", "modules", "count"), TRAINED)
def test_an_adapter_has_as_many_elements_as_training_prints(model, rank, modules, count):
    network = read_model(model, offline=True)
    assert network_adapter_elements(network, Adapters(1, 1, rank, modules)) == count


def test_slots_come_off_the_memory_of_the_cache(capplan):
    """Eight adapters of 41,943,040 elements in 16 bits are 671 MB, which the cache lacks."""
    line = ("fit", "llama-3.1-8b", "--hardware", "h100-sxm", "--offline", "--format", "json")
    plain, adapted = (capplan.result(*line, *more) for more in ((), ("--max-loras", 8)))
    assert adapted["lora_bytes_per_gpu"] == 8 * 2 * 41_943_040
    for name, sign in (("weight_bytes_per_gpu", 1), ("kv_bytes_available_per_gpu", -1)):
        assert adapted[name] - plain[name] == pytest.approx(sign * 8 * 2 * 41_943_040)
    most = adapted["adapters_that_fit"]
    full, over = (capplan(*line, "--max-loras", count) for count in (most, most + 1))
    assert (full.code, over.code) == (0, 3)


def test_ranks_hold_one_of_the_two_matrices_whole_unless_both_are_split():
    """Of 8 x 12 with rank 3 on four ranks: 3 x 8 whole and 3 x 12 / 4; by rows 3 x 8 / 4 and 3 x 12 whole."""
    network = read_model("llama-3.1-8b", offline=True)
    hidden, heads, wide = 4096, 1024, 14336
    adapters = Adapters(1, 1, 16, MODULES)
    columns = 3 * hidden + (hidden + 2 * heads) / 4 + 2 * hidden + 2 * wide / 4
    rows = hidden / 4 + hidden + wide / 4 + hidden
    served = replace(network, adapters=adapters)
    assert adapter_bytes_per_rank(served, Sharding(tensor=4.0)) == 2 * 32 * 16 * (columns + rows)
    whole = replace(network, adapters=replace(adapters, fully_sharded=True))
    assert adapter_bytes_per_rank(whole, Sharding(tensor=4.0)) == 2 * 41_943_040 / 4


@given(adapters=st.integers(2, 60), sequences=st.integers(1, 80), share=st.sampled_from((1.0, 0.5)))
def test_different_adapters_are_those_of_drawn_sequences(adapters, sequences, share):
    """With half of the sequences adapted, as many as are drawn for half of them in the mean."""
    drawn = np.random.default_rng(7).integers(0, adapters, (4000, max(round(share * sequences), 1)))
    distinct = np.mean([len(set(row)) for row in drawn[:1500].tolist()])
    used = adapters_in_step(drawn.shape[1] / share, adapters, share)
    assert used == pytest.approx(distinct, rel=0.03)
    assert used <= min(adapters, drawn.shape[1]) + 1e-9


@given(adapters=st.integers(2, 500), slots=st.integers(1, 500), share=st.floats(0.05, 1.0))
def test_as_many_sequences_run_as_use_the_slots(adapters, slots, share):
    if slots < adapters:
        most = sequences_with_slots(adapters, slots, share)
        assert adapters_in_step(most, adapters, share) == pytest.approx(slots)
    else:
        assert sequences_with_slots(adapters, slots, share) == np.inf


def test_steps_take_longer_the_more_the_adapters_hold():
    def steps(**flags):
        table = replica_of(
            asked_replica("llama-3.1-8b", "h100-sxm", ServingFlags(offline=True, **flags)).spec
        ).table
        return np.concatenate((table.decode_s, table.mixed_s))

    plain, small, large = steps(), steps(max_loras=4), steps(max_loras=4, max_lora_rank=64)
    assert np.all(small > plain)
    assert np.all(large > small)
    many = steps(max_loras=64)
    assert np.all(many >= small)


def test_an_adapter_without_a_slot_is_copied_before_its_prompt(fleet):
    """84 MB over PCIe at 63 GB/s take 1.3 ms, for half of the requests, each of 500 tokens."""
    spec = asked_replica("llama-3.1-8b", "h100-sxm", ServingFlags(offline=True)).spec
    rates = replica_of(spec).rates.rates

    def copied_s(slots, tokens=500.0):
        adapters = Adapters(40, slots, 16, MODULES, prompt_tokens=tokens)
        return prompt_work_s_per_token(replace(spec, network=replace(spec.network, adapters=adapters)), rates)

    assert copied_s(20) * 500 == pytest.approx(0.5 * 2 * 41_943_040 / 63e9)
    assert copied_s(40) == 0.0
    plain, busy = (
        replica_of(replace(spec, network=replace(spec.network, adapters=Adapters(40, 20, 16, MODULES, prompt_tokens=tokens)))).table
        for tokens in (None, 500.0)
    )  # fmt: skip
    added = busy.prefill_attention_s - plain.prefill_attention_s
    assert added == pytest.approx(np.broadcast_to(copied_s(20) * busy.new_knots[:, None], added.shape))
    few, all_of_them = fleet({"adapters": 40, "max_loras": 20}), fleet({"adapters": 40})
    assert few["kv_cache_tokens"] > all_of_them["kv_cache_tokens"]


def test_requests_without_an_adapter_pay_only_for_the_memory(fleet):
    plain, few, all_of_them = fleet(None), fleet({"adapters": 8, "share": 0.001}), fleet({"adapters": 8})
    assert few["kv_cache_tokens"] == all_of_them["kv_cache_tokens"] < plain["kv_cache_tokens"]
    assert plain["tpot_s"]["mean"] < few["tpot_s"]["mean"] < all_of_them["tpot_s"]["mean"]


def test_a_device_whose_link_to_the_host_is_unknown_is_left_out_not_the_search(capplan, tmp_path):
    path = tmp_path / "s.yaml"
    both = {"hardware": ["h100-sxm", "tpu-v5e"], "tensor_parallel": 1, "pipeline_parallel": 1}
    path.write_text(json.dumps(BASE | {"lora": {"adapters": 40, "max_loras": 20}, "fleet": both}))
    result = capplan.result("fleet", path, "--offline")
    assert result["chosen"]["hardware"] == "h100-sxm"
    assert [row["code"] for row in result["rejected"] if row["hardware"] == "tpu-v5e"] == ["adapters"]
