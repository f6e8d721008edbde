"""Which kernels an engine's version runs, and what follows for its steps."""

from dataclasses import replace

import numpy as np
import pytest

from capplan.engine.lookup import embedded, profile
from capplan.hardware.device import Efficiency, Fit, fit_of
from capplan.model.sharding import Sharding
from capplan.operators.device_rates import device_rates
from capplan.phases.token_work import projection_cost
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.models import read_model
from capplan.replica.plans import plans_of, plans_tables, step_rates
from capplan.replica.replica import replica_of
from capplan.replica.spec import network_as_served
from capplan.replica.tables import table_of_plan
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from capplan.serving.step_table import decode_step_s
from tests.tables import table


def rates_of(model, hardware, engine, version, *, spread=False):
    of, network = device(hardware), read_model(model, offline=True)
    own = profile(engine, version)
    sharding = Sharding(8.0, expert=8.0 if spread else 1.0)
    return step_rates(network, of, efficiency_for(of), profile=own, kv_format="bf16", sharding=sharding).rates


def fitted(hardware, kernel):
    """Return the numbers of the one fitted kernel whose key has all of these parts."""
    fits = efficiency_for(device(hardware)).fits
    (found,) = [fit for key, fit in fits.items() if all(part in key for part in kernel)]
    return found.numbers


@pytest.mark.parametrize(
    ("version", "kernel"),
    [("0.11.2", ("w4a16_mxfp4@vllm", "marlin")), ("0.13.0", ("w4a16_mxfp4@vllm", "triton_oai"))],
)
def test_mxfp4_experts_on_hopper_run_with_what_the_version_brings(version, kernel):
    own = rates_of("openai/gpt-oss-120b", "h100-sxm", "vllm", version).experts["mxfp4"]
    numbers = fitted("h100-sxm", kernel)
    assert (own.floor_s, own.compute_fraction) == (numbers["floor_s"], numbers["compute_fraction"])


@table
def test_experts_in_blocks_of_fp8_run_on_hopper_with_the_kernel_of_their_layout(version, spread, kernel):
    """FlashInfer only if asked for to 0.14, whatever the layout in 0.15 and 0.16, and for experts that are spread over ranks since 0.17."""
    own = rates_of("MiniMaxAI/MiniMax-M2.5", "h200-sxm", "vllm", version, spread=spread).experts["fp8_block"]
    numbers = fitted("h200-sxm", ("fp8_block@vllm", kernel))
    assert (own.floor_s, own.compute_fraction) == (numbers["floor_s"], numbers["compute_fraction"])


@table
def test_experts_on_blackwell_run_with_the_kernel_that_can_route_their_tokens(model, version, fmt, kernel):
    """trtllm-gen's kernel routes by groups and by softmax to 0.17, and is off unless asked for to 0.14 (`fused_moe/oracle`, `fused_moe/experts`)."""
    own = rates_of(model, "b200", "vllm", version).experts[fmt]
    numbers = fitted("b200", ("experts", *kernel))
    assert (own.floor_s, own.compute_fraction) == (numbers["floor_s"], numbers["compute_fraction"])


def test_plans_of_one_search_have_the_kernel_of_their_layout():
    asked = asked_replica("MiniMaxAI/MiniMax-M2.5", "h200-sxm", ServingFlags(tensor_parallel=8)).spec
    specs = [replace(asked, sharding=Sharding(8.0, 1.0, experts)) for experts in (1.0, 8.0)]
    both = plans_tables(plans_of(specs)).table
    for place, spec in enumerate(specs):
        alone = plans_tables(plans_of([spec])).table
        own, other = (
            decode_step_s(table_of_plan(t, at), 32.0, 1000.0) for t, at in ((alone, 0), (both, place))
        )
        assert other == pytest.approx(own, rel=1e-12)


def test_that_kernel_is_for_hopper_alone():
    old, new = (
        rates_of("openai/gpt-oss-120b", "b200", "vllm", v).experts["mxfp4"] for v in ("0.11.2", "0.13.0")
    )
    assert old == new


@pytest.mark.parametrize("hardware", ["b200", "b300"])
def test_tensorrt_llm_runs_nvfp4_experts_with_cutlass(hardware):
    own = rates_of("nvidia/MiniMax-M2.5-NVFP4", hardware, "trtllm", "1.1.0").experts["nvfp4"]
    assert own.floor_s == fitted("b200", ("experts/nvfp4@vllm", "cutlass"))["floor_s"]


@pytest.mark.parametrize(
    ("engine", "version", "narrow"),
    [("trtllm", "1.1.0", True), ("trtllm", "0.14.0", False), ("vllm", "0.20.0", False)],
)
def test_tensorrt_llm_quantises_tokens_before_it_gathers_them_for_the_experts(engine, version, narrow):
    rates = rates_of("nvidia/MiniMax-M2.5-NVFP4", "b200", engine, version)
    assert rates.gathered_bytes["nvfp4"] == (rates.expert_activation_bytes["nvfp4"] if narrow else 2.0)
    assert rates.expert_activation_bytes["nvfp4"] < 1.0


def test_a_kernel_asked_for_by_name_never_changes_the_format():
    numbers = Efficiency(
        "x",
        {
            "experts/mxfp4@vllm:own": Fit({"floor_s": 1.0}),
            "experts/nvfp4@vllm:cutlass": Fit({"floor_s": 2.0}),
            "experts/nvfp4@trtllm:own": Fit({"floor_s": 3.0}),
        },
    )
    assert fit_of(numbers, "experts", ("mxfp4", "nvfp4"), "trtllm", "cutlass")[1] == "mxfp4"
    assert fit_of(numbers, "experts", ("nvfp4",), "trtllm", "cutlass")[0].numbers == {"floor_s": 2.0}
    assert fit_of(numbers, "experts", ("nvfp4",), "trtllm", "")[0].numbers == {"floor_s": 3.0}


def test_only_compiled_engines_have_inputs_of_fp8_quantised_before():
    compiled, pytorch = (rates_of("llama-3.1-8b", "h200-sxm", "trtllm", v) for v in ("0.18.0", "0.20.0"))
    shared = compiled.attention.decode_group_exponent
    assert replace(compiled, attention=replace(pytorch.attention, decode_group_exponent=shared)) == compiled
    assert replace(compiled, attention=pytorch.attention) == pytorch  # bf16: nothing to quantise
    network, of = read_model("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8", offline=True), device("h200-sxm")
    own = [
        step_rates(
            network, of, efficiency_for(of), profile=profile("trtllm", v), kv_format="bf16"
        ).rates.matmul["fp8"]
        for v in ("0.18.0", "0.20.0")
    ]
    assert own[0].quantise_passes == 0.0 < own[1].quantise_passes
    assert own[0].floor_s < own[1].floor_s
    assert replace(own[0], quantise_passes=own[1].quantise_passes, floor_s=own[1].floor_s) == own[1]


@pytest.mark.parametrize("name", ["b200", "gb200"])
def test_products_that_an_engine_tunes_lose_no_more_than_under_another_engine(name):
    """Only TensorRT-LLM's in nvfp4, and only what long products lose; what was timed stands otherwise."""
    of, numbers = device(name), efficiency_for(device(name))
    losses = {
        engine: numbers.fits[f"matmul/nvfp4@{engine}"].numbers["sustained_loss"]
        for engine in ("vllm", "sglang", "trtllm")
    }
    found = {
        engine: device_rates(of, numbers, weight_format="nvfp4", kv_format="bf16", engine=engine).matmul
        for engine in losses
    }
    assert found["trtllm"].sustained_loss == min(losses.values()) < losses["trtllm"]
    assert found["vllm"].sustained_loss == losses["vllm"]
    assert found["sglang"].sustained_loss == losses["sglang"]
    timed = fit_of(numbers, "matmul", ("nvfp4",), "trtllm")[0].numbers
    assert found["trtllm"].floor_s == timed["floor_s"]
    assert found["trtllm"].compute_fraction == timed["compute_fraction"]


def test_a_router_held_in_fp32_costs_an_fp32_product():
    """Its arithmetic at the fp32 peak is a floor; the 16-bit product of the same shape is several times faster."""
    network = read_model("MiniMaxAI/MiniMax-M2.5", offline=True)
    (router,) = {p for layer in network.layers for p in layer.projections if p.name == "router"}
    of, tokens = device("b200"), np.array([1.0, 64.0, 8192.0])
    own = step_rates(network, of, efficiency_for(of), profile=profile("vllm"), kv_format="bf16").rates
    wide = projection_cost(router, tokens, Sharding().tensor, own).seconds
    narrow = projection_cost(replace(router, multiplied_in=None), tokens, Sharding().tensor, own).seconds
    flop = 2.0 * tokens * router.inputs * router.outputs
    assert np.all(wide >= flop / of.peak_flop_per_s["fp32"])
    assert np.all(wide > 3.0 * narrow)


def test_streams_cost_an_embedded_engine_each_sequence_and_a_server_nothing():
    spec = asked_replica(
        "llama-3.1-8b", "h100-sxm", ServingFlags(engine_version="0.7.3", max_model_len=8192)
    ).spec
    own = embedded(spec.profile)
    server, inside = (replica_of(replace(spec, profile=p)).table for p in (spec.profile, own))
    offline = replica_of(replace(spec, profile=own, offline=True)).table
    for sequences in (1.0, 64.0):
        longer = float(decode_step_s(inside, sequences, 500.0) - decode_step_s(server, sequences, 500.0))
        assert longer == pytest.approx(sequences * own.host.stream_s, rel=1e-6)
        assert float(decode_step_s(offline, sequences, 500.0)) == pytest.approx(
            float(decode_step_s(server, sequences, 500.0))
        )


@table
def test_attention_of_decode_steps_is_that_of_the_first_generation(engine, version, shares, captured):
    """TensorRT-LLM's read a head for more than one query, and graphs of vLLM's hold the parts of the longest context."""
    attention = rates_of("meta-llama/Llama-3.1-8B", "h100-sxm", engine, version).attention
    assert (attention.decode_group_exponent == 0.0) == shares
    assert 0.0 <= attention.decode_group_exponent < 1.0
    assert attention.captured_tokens == captured
    shorter = rates_of("meta-llama/Llama-2-7b-hf", "h100-sxm", engine, version).attention
    assert shorter.captured_tokens == min(captured, 4096)


@pytest.mark.parametrize(("version", "chunked"), [("0.20.0", False), ("1.1.0", True)])
def test_an_engine_without_kernels_for_windows_reads_whole_contexts_of_chunked_layers(version, chunked):
    scout = read_model("meta-llama/Llama-4-Scout-17B-16E-Instruct", offline=True)
    served = network_as_served(scout, profile("trtllm", version))
    mixers = [mixer for layer in served.layers for mixer in layer.mixers]
    assert any(mixer.chunked for mixer in mixers) == chunked
    assert all(mixer.window_tokens for mixer in mixers if mixer.chunked)
