"""The pooled fit of kernel numbers: it finds what made the timings, and lends to kernels with few of them."""

from dataclasses import fields, replace

import numpy as np
import pytest

from calibrate.kernel_parts import START_AND_RANGE, Timing, record_numbers
from calibrate.kernel_pools import expert_library, known_numbers, pool_of
from calibrate.pooled_fit import interval_80, pooled_fits, stacked_rows
from capplan.accuracy.kernels import PARTS, KernelCase, part_time_s
from capplan.hardware.device import Fit
from capplan.operators.device_rates import kernel_rates
from capplan.readers.catalogue.hardware import device

DEVICES = {name: device(name) for name in ("h100-sxm", "b200")}
BASE = {name: start for name, (start, _, _) in START_AND_RANGE.items()}
TRUE = {"memory_fraction": 0.6, "floor_s": 4e-6}


def _timings(name, count, **numbers):
    """Return timings of a kernel that moves bytes, as numbers that we know would make them."""
    fit = Fit({**record_numbers("elementwise", BASE), **numbers})
    rates = kernel_rates("elementwise", DEVICES[name], "quantise", fit)
    found = []
    for moved in np.geomspace(1e4, 1e9, count):
        case = KernelCase(
            name, "elementwise", "quantise", "vllm", "", "elementwise", {"moved_bytes": float(moved)}
        )
        seconds = float(part_time_s(PARTS["elementwise", "elementwise"], case.arguments, rates, 0.0, 1.0))
        found.append(Timing(case, seconds, "kernels_more", "1", "quantise"))
    return found


def test_numbers_that_made_the_timings_are_found_again():
    groups = {("h100-sxm", "elementwise/quantise@vllm"): _timings("h100-sxm", 30, **TRUE)}
    fit = next(iter(pooled_fits(DEVICES, groups, {}, held_out=True).values()))
    assert fit.numbers["memory_fraction"] == pytest.approx(0.6, rel=0.002)
    assert fit.numbers["floor_s"] == pytest.approx(4e-6, rel=0.002)
    assert np.median(fit.errors) < 0.0005
    assert np.nanmedian(fit.held_out_errors) < 0.0005


@pytest.mark.parametrize("kernel", ["matmul", "experts", "attention", "link"])
def test_rates_of_some_rows_are_those_of_the_rows_in_every_field(kernel):
    """Fields of a base class too: a fit without a part of the rows must not keep their datasheet figures."""
    fmt = "bf16"
    rates = kernel_rates(kernel, DEVICES["b200"], fmt, Fit(record_numbers(kernel, BASE)))
    columns = {
        name: np.arange(4.0) + index for index, name in enumerate(field.name for field in fields(rates))
    }
    chosen = stacked_rows(replace(rates, **columns), np.array([1, 3]))
    for name, column in columns.items():
        assert getattr(chosen, name).tolist() == column[[1, 3]].tolist()


def test_one_outlier_does_not_move_the_numbers():
    own = _timings("h100-sxm", 30, **TRUE)
    own[10] = replace(own[10], seconds=own[10].seconds * 20.0)
    fit = next(iter(pooled_fits(DEVICES, {("h100-sxm", "x"): own}, {}, held_out=False).values()))
    assert fit.numbers["memory_fraction"] == pytest.approx(0.6, rel=0.005)
    assert np.median(fit.errors) < 0.005


def test_a_kernel_with_few_timings_takes_after_its_pool():
    """Four small messages tell the start and nothing of the bandwidth: that comes from the other device."""
    rich = {("h100-sxm", "a"): _timings("h100-sxm", 40, **TRUE)}
    poor = _timings("b200", 40, **TRUE)[:4]
    alone = pooled_fits(DEVICES, {("b200", "a"): poor}, {}, held_out=False)["b200", "a"]
    lent = pooled_fits(DEVICES, {**rich, ("b200", "a"): poor}, {}, held_out=False)["b200", "a"]
    assert abs(lent.numbers["memory_fraction"] - 0.6) < abs(alone.numbers["memory_fraction"] - 0.6)


def test_a_number_that_is_given_is_not_fitted():
    groups = {("h100-sxm", "a"): _timings("h100-sxm", 10, **TRUE)}
    fit = pooled_fits(DEVICES, groups, {("h100-sxm", "a"): {"floor_s": 1e-6}}, held_out=False)[
        "h100-sxm", "a"
    ]
    assert "floor_s" not in fit.numbers


def test_an_interval_holds_four_in_five_of_the_held_out_ratios():
    ratios = np.exp(np.random.default_rng(0).normal(0.0, 0.1, 1000))
    low, high = interval_80(ratios, ratios)
    assert np.mean((ratios >= low) & (ratios <= high)) == pytest.approx(0.8, abs=0.01)
    few = np.full(5, np.nan)
    assert interval_80(few, ratios) == (low, high)


def test_kernels_of_one_library_share_a_pool_whatever_their_engine_and_device():
    def case(variant, fmt, name="h100-sxm"):
        return KernelCase(name, "experts", fmt, "sglang", variant, "experts", {})

    assert pool_of(case("marlin_moe", "w4a16")) == pool_of(case("x_marlinexperts", "w4a16_mxfp4", "b200"))
    assert expert_library("fp8moe_triton_tritonexperts", "fp8_block") == "triton"
    assert known_numbers(case("marlin_moe", "w4a16"), {})["largest_tile_rows"] == 64.0


def test_experts_of_triton_tell_how_long_marlin_sorts_tokens_among_experts():
    marlin = KernelCase("h100-sxm", "experts", "w4a16", "sglang", "marlin_moe", "experts", {})
    triton = replace(marlin, format="bf16", variant="fused_moe_triton")
    assert pool_of(triton) < pool_of(marlin)
    told = {"experts/bf16@sglang:flashinfer_cutlass_moe": {"expert_s": 1e-8}, triton.key: {"expert_s": 3e-8}}
    assert known_numbers(marlin, told)["expert_s"] == 3e-8
    assert "expert_s" not in known_numbers(triton, told | {triton.key: {}})
    assert "expert_s" not in known_numbers(marlin, {})


@pytest.mark.parametrize(("variant", "passes"), [("fused_moe_triton", "token_passes"), ("marlin_moe", "token_passes"), ("flashinfer_cutlass_moe", "pair_passes")])  # fmt: skip
def test_a_library_has_passes_over_tokens_or_over_pairs(variant, passes):
    case = KernelCase("h100-sxm", "experts", "bf16", "sglang", variant, "experts", {})
    assert known_numbers(case, {})[passes] == 0.0
    assert {"token_passes", "pair_passes"} - known_numbers(case, {}).keys()


def test_a_ring_is_told_by_nccl_before_engines_use_it():
    case = KernelCase("h100-sxm", "link", "bf16", "vllm", "", "direct", {})
    nccl = replace(case, engine="nccl", part="nccl")
    assert pool_of(nccl) < pool_of(case)
    known = known_numbers(case, {"link/bf16@nccl": {"ring_floor_s": 7e-6, "loop_l2_ratio": 2.0}})
    assert known == {"ring_floor_s": 7e-6}
