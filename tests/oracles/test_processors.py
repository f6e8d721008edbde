"""Processors by themselves with llama.cpp: by hand, against what they cannot do, and as published rows state them."""

from dataclasses import replace

import pytest

from capplan.errors import CapplanError, InputError
from capplan.questions.gguf_speeds import generated_tokens_per_s, gguf_row_predictions, prompt_tokens_per_s
from capplan.readers.catalogue.efficiency import shipped_intervals
from capplan.readers.catalogue.hardware import catalogue_name, device
from capplan.readers.catalogue.llamacpp import speed_file
from capplan.recorded.gguf_speeds import run_of_row
from capplan.replica.replica import memory_of, replica_of
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from tests.tables import table

RYZEN = "ryzen-9-7950x:64gb"
FLAGS = ServingFlags(engine="llamacpp", weight_dtype="q8_0", max_model_len=4096, offline=True)


def replica_on(hardware, model="meta-llama/Llama-2-7b-hf", **changed):
    return replica_of(asked_replica(model, hardware, replace(FLAGS, **changed)).spec)


def test_a_token_reads_the_weights_at_a_part_of_the_bandwidth_of_the_memory():
    """6.6 billion weights in 8.5 bits from two channels of DDR5-5200; the starts of operators are a hundredth."""
    own = speed_file().families["host"].backends["cpu"]
    read_s = 6.607e9 * 8.5 / 8 / (83.2e9 * own.memory)
    assert 1.0 / generated_tokens_per_s(replica_on(RYZEN), 1, 0.0) == pytest.approx(read_s, rel=0.02)


def test_a_prompt_takes_the_operations_of_16_cores_with_two_avx2_units():
    """16 cores, 4.5 GHz, 32 operations a cycle; attention and norms are a few percent."""
    file = speed_file()
    own = file.families["host"].backends["cpu"]
    assert device(RYZEN).peak_flop_per_s["fp32"] == 16 * 4.5e9 * 32
    rate = (
        16 * 4.5e9 * 32 * file.families["host"].matrix_ratio * own.compute * file.processors.formats["q8_0"]
    )
    least_s = 2.0 * 512 * 6.476e9 / rate
    assert least_s < 512 / prompt_tokens_per_s(replica_on(RYZEN), 512, 0) < 1.2 * least_s


def test_twice_the_channels_generate_nearly_twice_as_fast_and_read_prompts_no_faster():
    two, eight = replica_on("ryzen-9-3950x:64gb"), replica_on("threadripper-pro-3955wx:64gb")
    gain = generated_tokens_per_s(eight, 1, 0.0) / generated_tokens_per_s(two, 1, 0.0)
    assert 2.0 < gain < 4.0
    cores = prompt_tokens_per_s(eight, 512, 0) / prompt_tokens_per_s(two, 512, 0)
    assert cores == pytest.approx(3.9 / 3.5, rel=0.05)


def test_the_embedding_is_in_the_memory_of_a_processor():
    """128,256 tokens of 4,096 weights, which a card leaves to its host."""
    card, host = (
        memory_of(asked_replica("llama-3.1-8b", name, replace(FLAGS, weight_dtype="fp16")).spec)
        for name in ("rtx-3090", RYZEN)
    )
    assert host.weight_bytes - card.weight_bytes == pytest.approx(128256 * 4096 * 2)


@table
def test_what_is_not_known_of_processors_is_refused(hardware, model, changed, reason):
    with pytest.raises(CapplanError, match=reason):
        replica_on(hardware, model, **changed)


def test_the_memory_is_counted_where_no_speed_is_known(capplan):
    line = ("--engine", "llamacpp", "--weight-dtype", "q4_k_m", "--max-model-len", "32768", "--offline")
    assert capplan.result("fit", "llama-3.1-8b", "--hardware", RYZEN, *line)["fits"]
    assert "DDR5 in all channels" in capplan("fit", "llama-3.1-8b", "--hardware", RYZEN, *line).out


def test_no_layers_on_a_device_is_the_processor_by_itself(capplan):
    assert replica_on(RYZEN, n_gpu_layers=0).spec == replica_on(RYZEN).spec
    line = ("--hardware", RYZEN, "--weight-dtype", "q4_k_m", "--max-model-len", "4096", "--offline")
    written = capplan("export", "--model", "llama-3.1-8b", "--target", "llamacpp", *line).out
    assert "--n-gpu-layers 0" in written
    load = ("--concurrency", "1", "--input-tokens", "64", "--output-tokens", "16", "--offline")
    told = capplan.result("estimate", "--launch", written, "--hardware", RYZEN, *load)
    stated = capplan.result("estimate", "llama-3.1-8b", "--engine", "llamacpp", *line, *load[:-1])
    assert told["tpot_s"]["mean"] == stated["tpot_s"]["mean"]
    low, high = (
        shipped_intervals()["processor_generation/llamacpp"].low_ratio,
        shipped_intervals()["processor_generation/llamacpp"].high_ratio,
    )
    assert stated["tpot_s"]["low"] / stated["tpot_s"]["mean"] == pytest.approx(low, rel=1e-3)
    assert stated["tpot_s"]["high"] / stated["tpot_s"]["mean"] == pytest.approx(high, rel=1e-3)
    assert (
        "PARAMETER num_gpu 0" in capplan("export", "--model", "llama-3.1-8b", "--target", "ollama", *line).out
    )


ROW = {
    "tool": "llama-bench", "build": "b5269", "backend": "cpu", "model": "Llama-3.1-8B-Instruct", "quant": "Q4_0", "prompt_tokens": "512",
    "gen_tokens": "0", "depth_tokens": "0", "n_gpu_layers": "0", "tok_s": "150", "source": "made up",
}  # fmt: skip


@table
def test_a_processor_is_found_by_its_name_before_its_series(printed, known):
    assert catalogue_name(printed.replace("(R)", "").replace("(TM)", "")) == known


@table
def test_a_row_of_a_processor_is_predicted_or_says_why(changed, reason):
    row = ROW | {"device": "AMD Ryzen 9 7950X (CPU)", "threads": "16"}
    (prediction,) = next(gguf_row_predictions([row], shipped_intervals()))
    assert prediction.low < 150 < prediction.high
    assert reason in run_of_row(row | changed)


def test_a_refused_count_of_layers_is_one_line():
    with pytest.raises(InputError, match="name the processor"):
        asked_replica("llama-3.1-8b", "rtx-3090", replace(FLAGS, n_gpu_layers=0))
