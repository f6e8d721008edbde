"""The speed of llama.cpp: by hand, against the physics of a device, and against published rows where the table is at hand."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from capplan.accuracy.score import scores_by_metric
from capplan.engine.lookup import profile
from capplan.errors import InputError
from capplan.library import estimate
from capplan.model.network import layer_counts
from capplan.operators.device_rates import device_rates
from capplan.operators.llamacpp import rate_class
from capplan.questions.gguf_speeds import gguf_row_predictions, replica_of_run, tokens_per_s
from capplan.questions.validation import validation
from capplan.readers.catalogue.efficiency import efficiency_for, shipped_intervals
from capplan.readers.catalogue.hardware import device, device_names
from capplan.readers.catalogue.llamacpp import family_of, speed_file
from capplan.recorded.gguf_speeds import GgufRun, run_of_row
from capplan.replica.best_split import fastest_split, holds_its_sequences, split_replica
from capplan.replica.replica import replica_of
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from tests.tables import table

RUN = GgufRun(
    model="meta-llama/Llama-2-7b-hf",
    weight_dtype="q4_0",
    hardware="rtx-3090",
    backend=None,
    build=None,
    kv_dtype="fp16",
    prompt_tokens=0,
    depth_tokens=0,
    generated_tokens=0,
    parallel=1,
    ubatch_tokens=512,
)
LLAMA_2_7B_Q4_0_BYTES = 3.56 * 2**30
"""What llama-bench prints of this file; its embedding, 4,096 x 32,000 weights in 4.5 bits, is looked up and not read."""
EMBEDDING_BYTES = 4096 * 32000 * 4.5 / 8


def known_devices():
    found = {name: family_of(device(name)) for name in device_names()}
    return [name for name, family in found.items() if family and speed_file().families[family].backends]


def test_a_generated_token_is_worked_out_by_hand():
    """32 layers of 4 matrices and the LM head read the file at a part of 936 GB/s; each operator starts once.

    A layer has four matrices, two norms, the rotary embedding, the activation and attention; the head has a norm less and samples.
    """
    file = speed_file()
    own, start_s = file.families["ampere"].backends["cuda"], 1e-6 * file.start_us["cuda"]
    fraction = own.memory * file.formats["legacy"].memory
    read_s = (LLAMA_2_7B_Q4_0_BYTES - EMBEDDING_BYTES) / (936e9 * fraction)
    begun_s = (32 * 9 + 2) * start_s
    assert 1.0 / tokens_per_s(RUN) == pytest.approx(read_s + begun_s, rel=0.02)


def test_a_prompt_is_worked_out_by_hand():
    """512 tokens of 6.6 billion weights, the LM head for one of them, and a few percent of attention, norms and starts."""
    file = speed_file()
    own = file.families["ampere"].backends["cuda"]
    peak = 35.6e12 * file.families["ampere"].matrix_ratio
    flop = 2.0 * 512 * (6.738e9 - 2 * 4096 * 32000)
    least_s = flop / (peak * own.compute * file.formats["legacy"].compute)
    assert least_s < 512 / tokens_per_s(replace(RUN, prompt_tokens=512)) < 1.15 * least_s


@pytest.mark.parametrize("dtype", ["q4_0", "q4_k_m", "q8_0", "fp16"])
@pytest.mark.parametrize("hardware", known_devices())
def test_nothing_beats_the_bandwidth_or_the_peak_of_a_device(hardware, dtype):
    """At the whole bandwidth the matrices are read once a token; at the whole peak each weight is two operations a token."""
    card, run = (
        device(hardware),
        replace(RUN, hardware=hardware, weight_dtype=dtype, model="meta-llama/Llama-3.2-1B"),
    )
    network = replica_of_run(run).spec.network
    matrices = [p for layer, count in layer_counts(network) for p in layer.projections for _ in range(count)]
    size = sum(p.inputs * p.outputs for p in matrices)
    bits = {"q4_0": 4.5, "q4_k_m": 4.5, "q8_0": 8.5, "fp16": 16.0}[dtype]
    assert tokens_per_s(run) < card.memory_bytes_per_s / (size * bits / 8)
    family = speed_file().families[family_of(card)]
    peak = card.peak_flop_per_s["fp32"] * family.matrix_ratio
    assert tokens_per_s(replace(run, prompt_tokens=2048)) < peak / (2.0 * size)


@pytest.mark.parametrize(
    "slower",
    [
        {"depth_tokens": 8192},
        {"weight_dtype": "q8_0"},
        {"build": "b2000"},
        {"model": "meta-llama/Llama-2-13b-hf"},
    ],
    ids=str,
)
@pytest.mark.parametrize("prompt_tokens", [0, 1024])
def test_more_to_read_or_compute_is_slower(slower, prompt_tokens):
    run = replace(RUN, prompt_tokens=prompt_tokens)
    changed = replace(run, **slower)
    if prompt_tokens and "weight_dtype" in slower:
        return  # unpacking is part of the peak that a format reaches, so more bits may be faster
    assert tokens_per_s(changed) < tokens_per_s(run)


def test_slots_share_the_reading_of_the_weights():
    """Four sequences generate more together, and each of them less, than one by itself."""
    alone, four = tokens_per_s(RUN), tokens_per_s(replace(RUN, parallel=4))
    assert alone < four < 4.0 * alone


def test_a_narrow_cache_is_read_faster_at_depth():
    deep = replace(RUN, depth_tokens=16384)
    assert tokens_per_s(deep) < tokens_per_s(replace(deep, kv_dtype="q8_0"))


def test_experts_are_read_as_far_as_they_are_active():
    """3.3 of 30.5 billion weights are active: a token takes far less than the file does at the bandwidth."""
    run = replace(RUN, model="Qwen/Qwen3-30B-A3B", weight_dtype="q4_k_m")
    assert tokens_per_s(run) > 3.0 * 936e9 / (30.5e9 * 4.8 / 8)


def test_classes_of_formats_cover_every_recipe():
    network = replica_of_run(replace(RUN, weight_dtype="iq4_xs")).spec.network
    found = {rate_class(p.weight_format) for layer, _ in layer_counts(network) for p in layer.projections}
    assert found <= set(speed_file().formats)


ROW = {
    "id": "r1",
    "source": "a bench",
    "tool": "llama-bench",
    "backend": "cuda",
    "device": "NVIDIA GeForce RTX 3090",
    "device_count": "1",
    "model": "llama 7B Q4_0",
    "quant": "Q4_0",
    "prompt_tokens": "0",
    "depth_tokens": "0",
    "gen_tokens": "128",
    "parallel": "1",
    "tok_s": "120",
}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model": "Unheard 9B"}, "is not shipped"),
        ({"device": "GeForce 256"}, "is not in the catalogue"),
        ({"tool": "ik_llama.cpp llama-bench"}, "another program"),
        ({"notes": "with MTP draft n-max 2"}, "the rate with drafts"),
        ({"notes": "PCIe x1 host"}, "starves the device"),
        ({"device_count": "2", "device": "RTX 5080 16GB + Gizmo"}, "unequal devices"),
        ({"device_count": "2", "notes": "split mode tensor"}, "prompts of one pair of cards were published"),
        ({"quant": "Q4-XYZ-v2"}, "no mixture of llama-quantize"),
        ({"kv_type": "turbo3"}, "a cache in 'turbo3'"),
        ({"backend": "sycl"}, "no speed of llama.cpp is known of ampere devices with sycl"),
        ({"tok_s": "-1"}, "out of range"),
        ({"model": "LLaMA 3 70B", "quant": "Q8_0"}, "does not fit"),
        ({"tok_s_stddev": "30"}, "repeats differ"),
    ],
    ids=str,
)
def test_a_row_that_is_not_predicted_says_why(changed, reason):
    (prediction,) = next(gguf_row_predictions([{**ROW, **changed}], shipped_intervals()))
    assert prediction.predicted is None
    assert reason in prediction.reason


def test_a_row_is_predicted_as_estimate_predicts_it(capplan):
    """The middle of 128 tokens after nothing: 64 tokens of context; `estimate` has the mean over its own."""
    (prediction,) = next(gguf_row_predictions([ROW], shipped_intervals()))
    told = capplan.result(
        "estimate llama-2-7b --engine llamacpp --hardware rtx-3090 --weight-dtype q4_0 --concurrency 1",
        "--input-tokens",
        1,
        "--output-tokens",
        128,
        "--offline",
    )
    assert prediction.predicted == pytest.approx(1.0 / told["tpot_s"]["mean"], rel=0.005)
    assert prediction.low < prediction.predicted < prediction.high


def test_memory_is_counted_where_no_speed_is_known(capplan):
    flags = [
        "--engine",
        "llamacpp",
        "--backend",
        "metal",
        "--weight-dtype",
        "q4_k_m",
        "--max-model-len",
        "8192",
    ]
    assert capplan("fit", "llama-3.1-8b", "--hardware", "rtx-3090", *flags).code == 0


@pytest.mark.long
def test_published_speeds_are_met_as_well_as_the_page_says(shared):
    """The open half of the table, with the numbers that were fitted on it: the floor of what left-out devices show."""
    found = validation(
        [shared / "data" / "gguf_published.csv"], kind="llamacpp", intervals=shipped_intervals()
    )
    scores = scores_by_metric(found.scored)
    assert scores["generation_tok_s"].median_ape < 0.12
    assert scores["prompt_tok_s"].median_ape < 0.20
    assert all(score.interval_coverage > 0.75 for score in scores.values())
    assert found.predicted > 900


def test_a_row_of_local_names_becomes_a_run():
    run = run_of_row(
        {
            **ROW,
            "model": "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf",
            "quant": "Q4_K - Medium",
            "batch": "2048/ub1024",
        }
    )
    assert (run.weight_dtype, run.ubatch_tokens, run.hardware) == ("q4_k_m", 1024, "rtx-3090")


def test_backends_of_other_engines_are_refused(capplan):
    words = ["--hardware", "rtx-3090", "--backend", "cuda", "--concurrency", "1", "--max-model-len", "4096"]
    assert "has no backends" in capplan.refused("estimate", "llama-3.2-1b", *words)
    with pytest.raises(InputError, match="unknown backend"):
        replica_of_run(replace(RUN, backend="opencl"))


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_token_passes_the_devices_one_after_the_other(devices):
    """Layers in turn generate no faster: a token takes the time of one device, and a hand-over for each further one."""
    split = replace(RUN, devices=devices)
    file = speed_file().several
    longer_s = 1.0 / tokens_per_s(split) - 1.0 / tokens_per_s(RUN)
    assert longer_s == pytest.approx(1e-6 * file.hand_over_us * (devices - 1), rel=1e-6)


def test_pieces_of_a_prompt_follow_each_other_over_the_devices():
    """A prompt of one piece gains nothing; of many at most what four pieces in flight do, on eight devices too."""
    rates = {
        (tokens, devices): tokens_per_s(replace(RUN, prompt_tokens=tokens, devices=devices))
        for tokens in (512, 8192)
        for devices in (1, 2, 4, 8)
    }
    assert rates[512, 4] == pytest.approx(rates[512, 1], rel=1e-3)
    gains = [rates[8192, devices] / rates[8192, 1] for devices in (2, 4, 8)]
    assert 1.0 < gains[0] < 2.0 < gains[1] <= gains[2] < 4.0


def test_several_devices_hold_what_one_does_not(capplan):
    """70 billion weights in 4.8 bits are 42 GB: two cards of 24 GB, each with half of the layers."""
    line = ["llama-3.1-70b", "--engine", "llamacpp", "--hardware", "rtx-3090", "--weight-dtype", "q4_k_m", "--max-model-len", "4096", "--offline"]  # fmt: skip
    assert capplan("fit", *line).code == 3
    told = capplan.result("fit", *line, "-pp", 2)
    assert told["fits"]
    assert 42.5e9 / 2 < told["weight_bytes_per_gpu"] < 44e9 / 2


OFFLOADED = replace(
    RUN, model="Qwen/Qwen3-30B-A3B", weight_dtype="q4_k_m", cpu_experts=24, host_bytes_per_s=80e9
)


def test_an_offloaded_token_is_worked_out_by_hand():
    """Eight experts of each of 24 layers, three matrices of 2,048 x 768, are read at a part of 80 GB/s instead of on the card."""
    inside = replace(OFFLOADED, cpu_experts=None, host_bytes_per_s=None)
    size = 24 * 8 * 3 * 2048 * 768 * 4.85 / 8  # q4_k, and q6_k for half of the down projections
    file = speed_file()
    own = file.families["ampere"].backends["cuda"].memory * file.experts.memory
    host_s, card_s = size / (80e9 * file.offload.host), size / (936e9 * own)
    longer_s = 1.0 / tokens_per_s(OFFLOADED) - 1.0 / tokens_per_s(inside)
    assert longer_s == pytest.approx(host_s - card_s, rel=0.1)


@pytest.mark.parametrize("prompt_tokens", [0, 512])
def test_more_in_the_memory_of_the_host_is_never_faster(prompt_tokens):
    experts = [replace(OFFLOADED, cpu_experts=count, prompt_tokens=prompt_tokens) for count in (8, 24, 48)]
    dense = replace(RUN, host_bytes_per_s=80e9, prompt_tokens=prompt_tokens)
    layers = [replace(dense, device_layers=count) for count in (32, 17, 2)]
    for runs in (experts, layers):
        rates = list(map(tokens_per_s, runs))
        assert rates == sorted(rates, reverse=True)
        assert rates[0] < tokens_per_s(
            replace(runs[0], cpu_experts=None, device_layers=None, host_bytes_per_s=None)
        )


DOES_NOT_FIT = ["qwen3-30b-a3b", "--engine", "llamacpp", "--hardware", "rtx-3090", "--weight-dtype", "q8_0", "--max-model-len", "8192", "--offline"]  # fmt: skip
HOST = ["--host-bandwidth", "80 GB/s"]


def test_the_fastest_split_that_fits_is_found(capplan):
    """32 GB of weights on a card of 24 GB: one layer less on the host does not fit, one more is slower, whole layers are slower."""
    told = capplan.result("fit", *DOES_NOT_FIT, *HOST)["split"]
    experts = told["n_cpu_moe"]
    assert told["n_gpu_layers"] == 49
    assert capplan("fit", *DOES_NOT_FIT, *HOST, "--n-cpu-moe", experts - 1).code == 3
    for other in (["--n-cpu-moe", experts + 1], ["--n-gpu-layers", 49 - experts]):
        slower = capplan.result("fit", *DOES_NOT_FIT, *HOST, *other)["split"]
        assert slower["half_context_tokens_per_s"] < told["half_context_tokens_per_s"]
    stated = capplan.result("fit", *DOES_NOT_FIT, *HOST, "--n-cpu-moe", experts)["split"]
    assert stated == told


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "dtype"), [("Qwen/Qwen3-30B-A3B", "q8_0"), ("meta-llama/Llama-3.1-70B", "q4_k_m")]
)
def test_no_split_that_fits_is_faster(model, dtype):
    """Every eighth split of the grid of layers and experts, asked one by one; whole layers and experts may both be on the host."""
    flags = ServingFlags(engine="llamacpp", weight_dtype=dtype, max_model_len=8192, offline=True)
    whole = asked_replica(model, "rtx-3090", flags).spec
    best, layers = fastest_split(whole, 80e9), len(whole.network.layers)
    experts = range(0, layers + 1, 8) if any(layer.experts for layer in whole.network.layers) else (0,)

    def token_s(spec):
        return replica_of(spec).clock.row(1).step_s(4096)

    tried = 0
    for split in product(range(layers + 1, 1, -8), experts):
        if (spec := split_replica(whole, split, 80e9)).offload is not None and holds_its_sequences(spec):
            assert token_s(spec) >= 0.999 * token_s(best), split
            tried += 1
    assert tried > 3


def test_a_split_leaves_room_for_the_sequences_that_are_asked_for(capplan):
    """Eight sequences of 8,192 tokens, 96 KiB each token, need 6.4 GB of cache; a dense model keeps layers on the host."""
    few, many = (
        capplan.result("fit", *DOES_NOT_FIT, *HOST, "--max-num-seqs", count)["split"] for count in (1, 8)
    )
    assert many["n_cpu_moe"] > few["n_cpu_moe"]
    dense = ["llama-3.1-70b", *DOES_NOT_FIT[1:]]
    assert 1 < capplan.result("fit", *dense, *HOST)["split"]["n_gpu_layers"] < 81


def test_nothing_is_split_that_fits_and_a_host_without_room_is_refused(capplan):
    small = ["llama-3.2-1b", *DOES_NOT_FIT[1:]]
    assert "split" not in capplan.result("fit", *small, *HOST)
    assert "everything fits on the device" in capplan("fit", *small, *HOST).out
    assert "do not fit into the 4.0 GB" in capplan("fit", *DOES_NOT_FIT, *HOST, "--host-memory", "4 GB").err
    assert "finds the fastest split" in capplan("fit", *DOES_NOT_FIT).out


def test_offloaded_weights_leave_the_memory_of_the_card(capplan):
    model = [
        "qwen3-30b-a3b",
        "--engine",
        "llamacpp",
        "--hardware",
        "rtx-3090",
        "--weight-dtype",
        "q8_0",
        "--max-model-len",
        "8192",
    ]
    assert capplan("fit", *model, "--offline").code == 3
    fits = capplan("fit", *model, "--offline", "--n-cpu-moe", "32", "--host-bandwidth", "80 GB/s")
    assert fits.code == 0


def test_a_row_with_offloaded_experts_is_predicted():
    row = {
        **ROW,
        "backend": "cuda+cpu",
        "model": "Qwen3-30B-A3B",
        "quant": "Q4_K_M",
        "n_gpu_layers": "99",
        "n_cpu_moe": "24",
    }
    (refused,) = next(gguf_row_predictions([row], shipped_intervals()))
    assert "whose bandwidth is not known" in refused.reason
    (prediction,) = next(gguf_row_predictions([row | {"host_bandwidth_gb_s": "80"}], shipped_intervals()))
    assert prediction.metric == "offloaded_generation_tok_s"
    assert prediction.predicted == pytest.approx(tokens_per_s(replace(OFFLOADED, generated_tokens=128)))


def test_the_backend_of_a_scenario_is_that_of_the_flag(capplan):
    """Vulkan reads less of an RTX 3090's bandwidth than CUDA; a family of which nobody published a backend is refused."""
    asked = ["fleet", "llama-3.1-8b", "--engine", "llamacpp", "--weight-dtype", "q4_k_m", "--hardware", "rtx-3090", "--request-rate", "0.2 req/s", "--input-tokens", "500", "--output-tokens", "100", "--set", "max_model_len=4096", "--set", "prices.per_gpu_hour={rtx-3090: 0.3 $/h}", "--offline"]  # fmt: skip
    tpot_s = {
        name: capplan.result(*asked, "--backend", name)["chosen"]["tpot_s"]["mean"]
        for name in ("cuda", "vulkan")
    }
    assert capplan.result(*asked, "--set", "backend=vulkan")["chosen"]["tpot_s"]["mean"] == tpot_s["vulkan"]
    assert tpot_s["vulkan"] > tpot_s["cuda"]
    assert "with metal, so none is predicted" in capplan(*asked, "--backend", "metal").err
    assert "has no backends" in capplan(*asked, "--backend", "cuda", "--set", "engine=vllm").err


def test_matrix_units_make_prompts_quicker_and_tokens_not():
    """The M5 has matrix units in its GPU; what it reads for a token is as much."""
    flat = replace(
        device("rtx-3090"), architecture="apple-m4", name="apple-m4-10core", peak_flop_per_s={"fp32": 4e12}
    )
    rates = [
        device_rates(
            card,
            efficiency_for(card, profile("llamacpp", None, "metal")),
            weight_format="q4_k",
            kv_format="fp16",
            engine="llamacpp",
        ).matmul
        for card in (flat, replace(flat, architecture="apple-m5"))
    ]
    assert rates[1].compute_fraction == pytest.approx(4.0 * rates[0].compute_fraction)
    assert rates[1].memory_fraction == rates[0].memory_fraction
    assert rates[1].vector_fraction == rates[0].vector_fraction


def test_the_embedding_is_in_the_memory_of_the_host(capplan):
    """Published: Llama 3 8B in F16, a file of 14.96 GiB of which 0.98 are the embedding, ran on cards of 16 GB with all layers."""
    line = [
        "--engine",
        "llamacpp",
        "--weight-dtype",
        "fp16",
        "--hardware",
        "l4",
        "--max-model-len",
        "4096",
        "--offline",
    ]
    told = capplan.result("fit", "llama-3.1-8b", *line)
    assert told["weight_bytes_per_gpu"] / 2**30 == pytest.approx(14.96 - 128256 * 4096 * 2 / 2**30, rel=0.005)


def test_kernels_of_torch_are_refused_and_what_an_offload_rests_on_is_said(capplan):
    """A calibration was passed over without a word, and so were the fractions of the host."""
    asked = ("llama-3.1-8b", "--engine", "llamacpp", "--weight-dtype", "q4_k_m", "--hardware", "h100-sxm", "--concurrency", "1", "--offline")  # fmt: skip
    path = Path(__file__).parents[2] / "calibrate" / "devices" / "h100-sxm.calibration.yaml"
    assert "its kernels are those of torch, and llama.cpp has others" in capplan.refused("estimate", *asked, "--calibration", path)  # fmt: skip
    told = capplan("estimate", *asked, "--n-gpu-layers", "20", "--host-bandwidth", "80 GB/s").out
    assert "weights on the host are read at 34% of its bandwidth" in told


HOME = """name: home
model: meta-llama/Llama-3.1-8B-Instruct
weight_dtype: q4_k_m
engine: llamacpp
traffic: [{name: chat, users: 2, think_time: 30 s, input_tokens: INPUT, output_tokens: 150}]
slo: {ttft_p95: 60 s, tpot_p95: 500 ms}
fleet: {hardware: HARDWARE, spare_replicas: 0}
prices: {per_gpu_hour: {rtx-4090: 0.4 $/h, rtx-4090+rtx-3060: 0.6 $/h}}
"""


def home_scenario(folder, hardware, input_tokens=500):
    path = folder / "home.yaml"
    path.write_text(HOME.replace("HARDWARE", hardware).replace("INPUT", str(input_tokens)))
    return path


@table
def test_a_fleet_leaves_out_devices_without_a_speed_and_says_why(
    capplan, tmp_path, hardware, input_tokens, why
):
    told = capplan.result(
        "fleet", home_scenario(tmp_path, hardware, input_tokens), "--offline", "--set", "fleet.max_gpus=1"
    )
    assert [plan["groups"][0]["hardware"] for plan in told["plans"]] == ["rtx-4090"]
    assert any(why in row["reason"] for row in told["rejected"])


@pytest.mark.long
@pytest.mark.parametrize("hardware", ["[rtx-4090]", "['rtx-4090+rtx-3060:12gb']"])
def test_levers_and_the_review_page_of_llamacpp_are_made(capplan, tmp_path, hardware):
    scenario, page = home_scenario(tmp_path, hardware), tmp_path / "page.md"
    said = capplan("levers", scenario, "--offline", "--lever", "device").out
    assert re.search(
        r"another device, of \d+ with a price \(\d+ more have no known speed of llamacpp\)", said
    )
    assert capplan("report", scenario, "--offline", "-o", page).code == 0
    assert "## Where the time goes" in page.read_text()
    assert "Roofline" not in page.read_text()
    assert "from the memory of one rtx-4090;" in page.read_text()


def test_the_library_and_a_picture_of_llamacpp(capplan, tmp_path):
    """The roofline of torch's kernels was asked for, which refused the quantised weights."""
    serving = {"engine": "llamacpp", "weight_dtype": "q4_k_m", "concurrency": 1, "offline": True}
    found = estimate("llama-3.1-8b", "rtx-4090", **serving)
    assert 1.0 / 200.0 < found.data["tpot_s"]["p50"] < 1.0 / 100.0
    assert "<table>" in found._repr_html_()
    line = "estimate llama-3.1-8b --engine llamacpp --hardware rtx-4090 --weight-dtype q4_k_m --concurrency 1 --offline"
    assert "no roofline is drawn" in capplan(*line.split(), "--picture", tmp_path / "x.svg").err


@table
def test_the_length_of_a_prompt_counts_only_where_prompts_were_timed(cells, reason):
    """Rows of LocalScore say `short` in both kinds; the fit counted those of generation, and `validate` refused them."""
    said = {"device": "RTX 4090", "model": "Llama 3.1 8B", "quant": "Q4_K_M"}
    row = said | {"prompt_tokens": "short", "tok_s": "130"}
    ((found,),) = gguf_row_predictions([row | cells], shipped_intervals())
    assert found.reason == reason
    assert (found.predicted is None) == bool(reason)
