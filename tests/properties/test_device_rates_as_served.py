"""What was timed together with a matmul and does not run in serving is taken out of its numbers."""

import pytest

from capplan.operators.device_rates import LEAST_FLOOR_S, device_rates
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device

H200 = device("h200-sxm")
FITS = efficiency_for(H200).fits


def matmul_of(engine, **more):
    own = efficiency_for(H200)
    return device_rates(H200, own, weight_format="fp8", kv_format="fp8", engine=engine, **more).matmul


def test_scales_of_checkpoints_are_known():
    """TensorRT-LLM's fp8 matmuls were timed with the kernel that finds the scale of their inputs."""
    timed, scale = FITS["matmul/fp8@trtllm"].numbers, FITS["elementwise/scale@trtllm"].numbers
    found = matmul_of("trtllm")
    assert found.floor_s == pytest.approx(timed["floor_s"] - scale["floor_s"])
    assert found.quantise_passes == pytest.approx(timed["quantise_passes"] - 2.0 / scale["memory_fraction"])
    assert found.compute_fraction == timed["compute_fraction"]


def test_what_remains_is_a_matmul_in_sixteen_bits_and_one_kernel_that_quantises():
    """The sum that gives the timings away: 12 us are 3 of a matmul, 7 of the scale and 1.4 of quantising."""
    whole = FITS["matmul/bf16"].numbers["floor_s"] + FITS["elementwise/quantise@trtllm"].numbers["floor_s"]
    assert matmul_of("trtllm").floor_s == pytest.approx(whole, abs=1e-6)


def test_a_fused_engine_quantises_in_the_kernel_before():
    assert matmul_of("trtllm", fuses_quantise=True).quantise_passes == 0.0
    assert LEAST_FLOOR_S <= matmul_of("trtllm", fuses_quantise=True).floor_s < matmul_of("trtllm").floor_s


def test_other_engines_keep_what_was_timed():
    timed = FITS["matmul/fp8@vllm"].numbers
    assert matmul_of("vllm").floor_s == timed["floor_s"]
    assert matmul_of("vllm").quantise_passes == timed["quantise_passes"]
