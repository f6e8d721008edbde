"""All-to-all of experts against published timings, and the memory of its layouts against published starts; each with its error."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.engine.lookup import profile
from capplan.hardware.device import fit_of
from capplan.hardware.exchange_kernel import EXCHANGE_KERNELS
from capplan.memory.rank import GROUPED_ROWS, expert_workspace_bytes, low_latency_buffer_bytes
from capplan.model.sharding import Sharding
from capplan.operators.device_rates import kernel_rates
from capplan.operators.expert_exchange import (
    GROUPED_DOMAINS,
    exchange_rates,
    exchange_time_s,
    exposed_exchange_s,
    link_copies,
    network_copies,
)
from capplan.operators.experts import balanced_imbalance, rank_imbalance
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.models import read_model
from capplan.replica.plans import plans_of, plans_tables
from capplan.replica.replica import memory_of
from capplan.replica.spec import ReplicaSpec
from tests.tables import table

FP8, BF16, MXFP8, NVFP4 = 7392.0, 14336.0, 7392.0, 4032.0
"""Bytes of a token of 7,168 elements: fp8 with a scale for each 128, bf16, mxfp8, nvfp4 with a scale for each 16."""


def reached(places):
    """Return the places that the experts of a token are at, eight of them drawn evenly."""
    return places * (1 - (1 - 1 / places) ** 8)


def of_rates(ranks, dispatch, combine, copies):
    """Return the times of 4,096 tokens [us] of a table that states rates in GB/s, local copies included."""
    return (
        ranks,
        4096,
        *(4096 * copies * size / rate / 1e3 for size, rate in ((FP8, dispatch), (BF16, combine))),
    )


# kernel, device, bytes dispatched of a token: (ranks, tokens of a rank, dispatch us, combine us, error of both)
LEGACY = [(8, 77, 114), (16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369), (256, 194, 360)]
TIMINGS = [
    # DeepEP, docs/legacy.md: H800, an InfiniBand card of 400 Gb/s each
    ("deepep_low_latency", "h800-sxm", FP8, [(ranks, 128, there, back) for ranks, there, back in LEGACY], 0.12),
    ("deepep_normal", "h800-sxm", FP8, [
        of_rates(8, 153, 158, reached(8)), of_rates(16, 43, 43, reached(2)), of_rates(32, 58, 57, reached(4)), of_rates(64, 51, 50, reached(4)),
    ], 0.08),
    # NVIDIA, aiconfigurator: eight ranks of one server
    ("deepep_low_latency", "h100-sxm", FP8, [(8, 1, 13, 14), (8, 32, 18, 26), (8, 128, 37, 67)], 0.11),
    ("deepep_low_latency", "h200-sxm", FP8, [(8, 1, 12, 13), (8, 32, 16, 25), (8, 128, 35, 68)], 0.23),
    ("deepep_low_latency", "b200", FP8, [(8, 1, 22, 22), (8, 32, 24, 26), (8, 128, 33, 41)], 0.05),
    ("deepep_low_latency", "gb200", FP8, [(8, 1, 17, 18), (8, 32, 19, 19), (8, 128, 27, 36)], 0.15),
    ("deepep_normal", "h100-sxm", FP8, [(8, 1024, 154, 296), (8, 8192, 972, 1839), (8, 16384, 1936, 3599)], 0.08),
    ("deepep_normal", "b200", FP8, [(8, 1024, 154, 264), (8, 8192, 833, 1395), (8, 16384, 1637, 2634)], 0.10),
    ("deepep_normal", "gb200", FP8, [(8, 1024, 121, 196), (8, 8192, 671, 1120), (8, 16384, 1290, 2169)], 0.11),
    # TensorRT-LLM, one-sided kernel on GB200
    ("nvlink_one_sided", "gb200", BF16, [
        (8, 1, 18.9, 31.0), (8, 2048, 311.8, 322.6), (32, 2048, 373.7, 369.5), (64, 2048, 399.0, 372.0),
    ], 0.08),
    ("nvlink_one_sided", "gb200", BF16, [(8, 128, 31.7, 38.1)], 0.33),
    ("nvlink_one_sided", "gb200", MXFP8, [(8, 2048, 172.2, 322.6)], 0.07),
    ("nvlink_one_sided", "gb200", NVFP4, [(8, 2048, 101.7, 322.6)], 0.07),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "gpu", "sent", "timings", "error"), TIMINGS)
def test_an_exchange_takes_as_long_as_was_timed(kernel, gpu, sent, timings, error):
    of = device(gpu)
    fit, fmt = fit_of(efficiency_for(of), "link", ("bf16",), "vllm")
    rates = exchange_rates(kernel, of, kernel_rates("link", of, fmt, fit))
    ranks, tokens, there_us, back_us = np.array(timings, dtype=float).T
    for size, floor_s, timed_us in (
        (sent, rates.dispatch_floor_s, there_us), (BF16, rates.combine_floor_s, back_us),
    ):  # fmt: skip
        found_us = 1e6 * exchange_time_s(tokens, ranks, 8.0, size, floor_s, rates, GROUPED_DOMAINS)
        assert np.max(np.abs(found_us / timed_us - 1)) <= error, (found_us / timed_us - 1).round(2)


@pytest.mark.parametrize("ranks", [8.0, 16.0, 64.0])
def test_copies_are_those_of_tokens_whose_experts_are_drawn(ranks):
    draws = np.random.default_rng(7).integers(0, int(ranks), (200_000, 8))
    near = draws // 8 == 0
    assert link_copies(ranks, 8.0, 8.0, 1.0) == pytest.approx(
        (near & (draws != 0)).sum(axis=1).mean(), rel=0.02
    )
    assert network_copies(ranks, 8.0, 8.0, 1.0) == pytest.approx((~near).sum(axis=1).mean(), rel=0.02)
    servers = sum((draws // 8 == server).any(axis=1) for server in range(1, int(ranks) // 8))
    assert network_copies(ranks, 8.0, 8.0, 0.0) == pytest.approx(np.mean(servers), rel=0.02)


def test_the_bytes_of_a_token_are_those_that_engines_send():
    kernels = EXCHANGE_KERNELS
    assert kernels["deepep_normal"].dispatched_bytes["fp8_block"] * 7168 == FP8
    one_sided = kernels["nvlink_one_sided"].dispatched_bytes
    assert [one_sided[name] * 7168 for name in ("mxfp8", "nvfp4")] == [MXFP8, NVFP4]


@table
def test_low_latency_buffers_are_those_that_deepep_allocates(tokens, slots, width, gib):
    """vLLM, issue 57894 (384 experts and 64 redundant ones); DeepEP, issue 28 (2.1 GB, an earlier layout)."""
    assert low_latency_buffer_bytes(tokens, slots, width) / 2**30 == pytest.approx(gib, rel=0.1)


@table
def test_the_workspace_of_tokens_that_are_sent_is_that_of_the_pairs_of_one_rank(
    width, inner, held, tokens, gib
):
    """vLLM, pull request 57270: GLM-4.6 and GLM-5 on 16 ranks, balanced, each expert filled up to whole tiles."""
    found = expert_workspace_bytes(8.0 * tokens + GROUPED_ROWS * held, 1.0, 2.0 * inner, width) / 2**30
    assert found == pytest.approx(gib, rel=0.05)


def spec(model, gpu, sharding, **limits):
    of = device(gpu)
    return ReplicaSpec(
        read_model(model, offline=True),
        of,
        efficiency_for(of),
        profile("vllm"),
        sharding,
        "bf16",
        8192,
        **limits,
    )


@pytest.mark.parametrize(
    ("model", "sharding", "gib", "error"),
    [
        ("zai-org/GLM-5.2-FP8", Sharding(1.0, 1.0, 16.0, 16.0), 65.1, 0.03),  # llm-d, guide to wide EP
        ("moonshotai/Kimi-K2-Instruct", Sharding(1.0, 1.0, 16.0, 16.0), 71.3, 0.04),  # UCCL, issue 925
        ("deepseek-ai/DeepSeek-V3", Sharding(16.0, 1.0, 16.0), 38.7, 0.12),  # UCCL, issue 924
    ],
)
def test_the_weights_of_a_rank_of_sixteen_are_those_that_were_printed(model, sharding, gib, error):
    weights = memory_of(spec(model, "h200-sxm", sharding)).weight_bytes / 2**30
    assert weights == pytest.approx(gib, rel=error)


def test_the_cache_of_two_servers_is_that_of_the_guide():
    """llm-d, GLM-5.2-FP8 on H200: 5.2 million tokens a server on 16 ranks, utilization 0.80; decode pools run with steps of 512 to 1,024 tokens."""
    asked = spec(
        "zai-org/GLM-5.2-FP8", "h200-sxm", Sharding(1.0, 1.0, 16.0, 16.0), gpu_memory_utilization=0.80,
        max_num_batched_tokens=512, max_num_seqs=128,
    )  # fmt: skip
    tokens = 8 * memory_of(replace(asked, kv_format="fp8", max_model_len=65536)).kv_cache_tokens
    assert tokens == pytest.approx(5.2e6, rel=0.05)
    # Low-latency buffers of 1,024 tokens, 12 GiB of the 16 that the guide gives to them.
    larger = memory_of(replace(asked, max_num_batched_tokens=1024))
    assert larger.non_torch_bytes - memory_of(replace(asked, max_num_batched_tokens=512)).non_torch_bytes == (
        pytest.approx(low_latency_buffer_bytes(512.0, 256.0, 6144.0))
    )


V3 = "deepseek-ai/DeepSeek-V3"


def decode_step_s(gpu, ranks, batch, context, engine):
    """Return the time of a decode step of DeepSeek-V3 with experts on all ranks, and an attention group on each."""
    asked = spec(
        V3,
        gpu,
        Sharding(1.0, 1.0, float(ranks), float(ranks)),
        max_num_seqs=batch,
        max_num_batched_tokens=1024,
    )
    table = plans_tables(plans_of([replace(asked, profile=profile(engine))])).table
    cache = [np.interp(context, table.context_knots, row) for row in table.decode_attention_s[0]]
    return np.interp(ranks * batch, table.sequence_knots, table.decode_s[0] + cache)


@pytest.mark.parametrize(
    ("gpu", "ranks", "batch", "context", "engine", "rate", "error"),
    [
        # LMSYS, 96 H100: two-batch overlap, 32 redundant experts
        ("h100-sxm", 72, 256, 2050, "sglang", 2785, 0.1),
        # DeepSeek, profile and production on H800
        ("h800-sxm", 128, 128, 4096, "sglang", 2325, 0.25), ("h800-sxm", 144, 88, 4989, "sglang", 1850, 0.1),
        # vLLM, H200, bars of a chart
        ("h200-sxm", 32, 256, 3000, "vllm", 2180, 0.1), ("h200-sxm", 72, 256, 3000, "vllm", 2070, 0.1), ("h200-sxm", 96, 256, 3000, "vllm", 1975, 0.1),
        # LMSYS, GB200: one NVLink domain, no overlap
        ("gb200", 48, 1408, 2050, "sglang", 7583, 0.2),
    ],
)  # fmt: skip
def test_decode_over_servers_has_the_published_rate_of_a_gpu(gpu, ranks, batch, context, engine, rate, error):
    assert batch / decode_step_s(gpu, ranks, batch, context, engine) == pytest.approx(rate, rel=error)


def test_a_balancer_gains_what_lmsys_saw():
    """Prefill on 32 ranks 1.49 times as fast, decode on 72 ranks 2.54 times, both with 32 redundant experts: experts wait for the busiest rank."""
    gains = [
        float(rank_imbalance(ranks, 256.0, 8.0, 1.1) / balanced_imbalance(ranks, 256.0, 32.0, 8.0, 1.1))
        for ranks in (32.0, 72.0)
    ]
    assert gains[0] > 1.49  # a part of the step
    assert gains == pytest.approx([1.8, 2.54], rel=0.1)


times = st.floats(0.0, 1.0)


@given(times, times, times, times, st.floats(0.0, 0.5))
def test_an_overlapped_exchange_is_never_longer_than_a_plain_one(whole, half, work, half_work, busy):
    assert 0.0 <= exposed_exchange_s(whole, half, work, half_work, busy) <= whole


def test_deepseek_v3_starts_on_two_h100_servers_with_an_attention_group_for_each_gpu():
    """Activations took 36 GB while every rank was taken to gather the tokens of all."""
    found = memory_of(spec("deepseek-ai/DeepSeek-V3", "h100-sxm", Sharding(1.0, 1.0, 16.0, 16.0)))
    assert found.fits
    assert found.activation_bytes < 8.5e9


def test_normal_kernels_keep_decode_steps_of_vllm_out_of_graphs():
    """Over servers vLLM starts kernels of one kind; the host waits for normal ones in every layer, so that a decode step takes its launches."""

    def steps_s(engine, tokens):
        wide = spec(
            V3, "h200-sxm", Sharding(1.0, 1.0, 32.0, 32.0), max_num_seqs=512, max_num_batched_tokens=tokens
        )
        wide = replace(wide, profile=profile(engine))
        return plans_tables(plans_of([wide])).table.decode_s[0]

    captured, launched = steps_s("vllm", 1024), steps_s("vllm", 8192)
    assert launched[0] > 2.0 * captured[0]
    assert launched[0] == pytest.approx(steps_s("vllm", 2048)[0], rel=1e-9)
    assert steps_s("sglang", 8192)[0] < launched[0] / 2.0
