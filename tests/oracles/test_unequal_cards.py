"""Cards of one machine that are not alike: which layers each has, what fits, and the speed that follows."""

import re
from dataclasses import replace

import pytest

from capplan.errors import InputError
from capplan.hardware.device import engine_memory_bytes
from capplan.model.parameters import weight_bytes
from capplan.questions.gguf_speeds import generated_tokens_per_s, gguf_row_predictions, prompt_tokens_per_s
from capplan.readers.catalogue.efficiency import shipped_intervals
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.llamacpp import speed_file
from capplan.recorded.gguf_speeds import run_of_row
from capplan.replica.replica import memory_of, replica_of
from capplan.replica.spec import cards_of, layers_by_card
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from tests.tables import table

PAIR = "rtx-4090+rtx-3060:12gb"
FLAGS = ServingFlags(engine="llamacpp", weight_dtype="q4_k_m", max_model_len=8192, offline=True)


def spec_of(model, hardware, **changed):
    return asked_replica(model, hardware, replace(FLAGS, **changed)).spec


@pytest.mark.parametrize(
    ("proportions", "layers"),
    [((24, 12), (22, 11)), ((1, 1), (17, 16)), ((3, 1), (25, 8)), ((1, 0), (33, 0)), ((0, 2), (0, 33))],
)
def test_layers_follow_the_proportions_as_in_llamacpp(proportions, layers):
    """Layer i of 33, the LM head the last, goes to the first card whose cumulative part exceeds i / 33."""
    assert layers_by_card(32, proportions) == layers


def test_free_memory_is_the_usual_proportion():
    parts = [part.network for part in cards_of(spec_of("qwen3-32b", PAIR))]
    counts = [len(part.layers) for part in parts]
    memory = [engine_memory_bytes(device(name)) for name in PAIR.split("+")]
    assert sum(counts) == 64
    assert counts[0] / 64 == pytest.approx(memory[0] / sum(memory), abs=0.02)
    assert [bool(part.lm_head.outputs) for part in parts] == [False, True]


def test_a_token_takes_the_time_of_both_parts_and_a_hand_over():
    """Each card by itself, with its layers, is a replica of one device; the LM head is a fiftieth of this model."""
    model, short = "meta-llama/Llama-2-7b-hf", {"max_model_len": 4096}
    spec = spec_of(model, PAIR, **short)
    token_s = [
        1.0 / generated_tokens_per_s(replica_of(spec_of(model, name, **short)), 1, 1024.0)
        for name in PAIR.split("+")
    ]
    counts = [len(part.network.layers) for part in cards_of(spec)]
    seconds = 1.0 / generated_tokens_per_s(replica_of(spec), 1, 1024.0)
    between_s = 1e-6 * speed_file().several.hand_over_us
    expected_s = sum(each * count / 32 for each, count in zip(token_s, counts, strict=True))
    assert seconds - between_s == pytest.approx(expected_s, rel=0.03)
    assert min(token_s) < seconds < max(token_s)


def test_equal_cards_by_name_are_those_by_number():
    named, counted = (
        replica_of(spec)
        for spec in (
            spec_of("llama-3.1-8b", "rtx-3090+rtx-3090"),
            spec_of("llama-3.1-8b", "rtx-3090", pipeline_parallel=2),
        )
    )
    for rate in (lambda r: generated_tokens_per_s(r, 1, 512.0), lambda r: prompt_tokens_per_s(r, 4096, 0)):
        assert rate(named) == pytest.approx(rate(counted), rel=0.05)
    assert float(named.memory.kv_cache_tokens) == pytest.approx(
        float(counted.memory.kv_cache_tokens), rel=0.1
    )


def test_long_prompts_are_quicker_than_on_the_slower_card_and_no_quicker_than_both_together():
    pair = replica_of(spec_of("qwen3-8b", PAIR))
    fast, slow = (
        prompt_tokens_per_s(replica_of(spec_of("qwen3-8b", name)), 8192, 0) for name in PAIR.split("+")
    )
    assert slow < prompt_tokens_per_s(pair, 8192, 0) < fast + slow


def test_the_tightest_card_decides():
    """Two thirds of the layers on a card with a third of the memory: it is the one that is full."""
    balanced, pushed = (memory_of(spec_of("qwen3-32b", PAIR, tensor_split=split)) for split in (None, "1,2"))
    assert bool(balanced.fits)
    assert not bool(pushed.fits)


def test_the_fastest_split_fills_the_fast_card(capplan):
    by_memory, fastest = (
        replica_of(spec_of("qwen3-32b", PAIR, tensor_split=split)) for split in (None, "fastest")
    )
    assert generated_tokens_per_s(fastest, 1, 4096.0) > generated_tokens_per_s(by_memory, 1, 4096.0)
    assert len(cards_of(fastest.spec)[0].network.layers) > len(cards_of(by_memory.spec)[0].network.layers)


def test_one_card_of_a_machine_is_that_card():
    one = spec_of("qwen3-8b", PAIR, split_mode="none", main_gpu=1)
    assert one.device == device("rtx-3060:12gb")


@table
def test_what_is_not_modelled_is_refused(hardware, changed, reason):
    with pytest.raises(InputError, match=reason):
        replica_of(spec_of("qwen3-8b", hardware, **changed))


@table
def test_the_written_command_is_read_back_as_the_same_layers(hardware, more, capplan):
    """By memory, as stated and as found; of equal cards, whose parts are equal; and of one card of the machine."""
    line = ("--hardware", hardware, "--weight-dtype", "q4_k_m", "--max-model-len", "8192", "--offline")
    written = capplan("export", "--model", "qwen3-32b", "--target", "llamacpp", *line, *more).out
    load = ("--concurrency", "1", "--input-tokens", "64", "--output-tokens", "16")
    told = capplan.result("estimate", "--launch", written, "--hardware", hardware, *load, "--offline")
    stated = capplan.result("estimate", "qwen3-32b", "--engine", "llamacpp", *line, *more, *load)
    assert told["tpot_s"]["mean"] == pytest.approx(stated["tpot_s"]["mean"], rel=1e-6)


def test_fit_shows_what_each_card_holds(capplan):
    line = ("--engine", "llamacpp", "--hardware", PAIR, "--weight-dtype", "q4_k_m", "--max-model-len", "8192")
    told = capplan.result("fit", "qwen3-32b", *line, "--offline")
    assert sum(card["layers"] for card in told["cards"]) == 65
    assert min(card["max_concurrency"] for card in told["cards"]) == told["max_concurrency"]
    assert told["device_memory_bytes"] == pytest.approx(engine_memory_bytes(device("rtx-3060:12gb")))
    assert "Memory of the fullest card" in capplan("fit", "qwen3-32b", *line, "--offline").out
    assert "--host-bandwidth" not in capplan("fit", "llama-3.1-70b", *line, "--offline").out


ROW = {
    "tool": "llama-bench", "build": "b7000", "backend": "cuda", "model": "Qwen3-32B", "quant": "Q4_K_M", "gen_tokens": "128", "prompt_tokens": "0",
    "tok_s": "20", "source": "made up",
}  # fmt: skip


@table
def test_a_published_row_of_several_cards_is_a_machine(printed, count, notes, hardware, devices, parts):
    run = run_of_row(ROW | {"device": printed, "device_count": count, "notes": notes})
    assert (run.hardware, run.devices, run.tensor_split) == (hardware, devices, parts)
    (prediction,) = next(
        gguf_row_predictions([ROW | {"device": printed, "device_count": count}], shipped_intervals())
    )
    assert prediction.predicted > 0.0


@table
def test_a_row_of_several_cards_that_is_not_layers_in_turn_says_why(printed, notes, reason):
    assert reason in run_of_row(ROW | {"device": printed, "device_count": "2", "notes": notes})


def test_pairs_whose_matrices_are_split_are_quicker_than_layers_in_turn_can_be():
    """Published rates of Qwen3.8 27B on cards that the notes call a tensor split, beside their whole bandwidth layer by layer."""
    for hardware, dtype, published in (
        ("rtx-5080+rtx-3090", "q4_k_m", 55.6),
        ("rtx-3090+rtx-3090+rtx-3090-ti", "q6_k", 49.1),
    ):
        parts = cards_of(spec_of("qwen3.8-27b", hardware, weight_dtype=dtype))
        least_s = sum(weight_bytes(part.network) / part.device.memory_bytes_per_s for part in parts)
        assert published > 1.0 / least_s


@pytest.mark.long
def test_a_scenario_plans_machines_of_unequal_cards(capplan, tmp_path):
    """A machine is one GPU with one price; its plan is exported with the parts of its cards."""
    scenario = tmp_path / "home.yaml"
    scenario.write_text(
        "name: home\nmodel: Qwen/Qwen3-32B\nweight_dtype: q4_k_m\nengine: llamacpp\n"
        f"fleet: {{hardware: ['{PAIR}'], spare_replicas: 0}}\n"
        "traffic: [{name: chat, request_rate: 0.02 req/s, input_tokens: 1000, output_tokens: 200}]\n"
        "slo: {ttft_p95: 60 s, tpot_p95: 300 ms}\nprices: {per_gpu_hour: {rtx-4090+rtx-3060: 0.5 $/h}}\n"
    )
    plan = tmp_path / "plan.json"
    told = capplan.result("fleet", scenario, "--offline")
    assert told["plans"][0]["usd_per_hour"] == pytest.approx(0.5 * told["plans"][0]["gpus"])
    assert capplan("fleet", scenario, "--offline", "-o", plan).code == 0
    parts = re.search(r"--tensor-split (\d+),(\d+)", capplan("export", plan, "--target", "llamacpp").out)
    assert int(parts[1]) / int(parts[2]) == pytest.approx(24105 / 11776, rel=1e-3)
    carried = capplan.result("capacity", scenario, "--gpus", "1 x rtx-4090+rtx-3060", "--offline")
    assert carried["carried"] is not None
