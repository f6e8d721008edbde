"""Libraries of engines as far as they are called: same names, checks of what they are given, and a time."""

import importlib.machinery
import sys
from types import ModuleType

import torch

FASTER = 0.5
"""Over torch's attention."""


def _module(name, monkeypatch, **functions):
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    for key, value in functions.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, name, module)


def _quiet(function):
    """Return a function whose own calls of torch take no time."""

    def run(*words, **more):
        with torch._C.DisableTorchFunction():
            return function(*words, **more)

    return run


def _decode_of(state):
    class Decode:
        def __init__(self, _space, layout, **buffers):
            assert layout == "NHD"
            assert set(buffers) >= {
                "paged_kv_indptr_buffer",
                "paged_kv_indices_buffer",
                "paged_kv_last_page_len_buffer",
            }

        def plan(self, starts, table, _last, heads, kv_heads, width, page, **more):
            assert set(more) == {"q_data_type", "kv_data_type"}
            self.sizes = (starts.shape[0] - 1, heads, kv_heads, width, table.shape[0] * page)

        @_quiet
        def run(self, query, cache):
            sequences, heads, kv_heads, width, keys = self.sizes
            assert cache.shape[1:] == (2, 16, kv_heads, width)
            seconds = state.truth.attention_s(
                (sequences, heads, 1, width), (kv_heads, keys // sequences), 0, "CUDNN_ATTENTION"
            )
            state.kernel(FASTER * seconds)
            return torch.empty_like(query)

    return Decode


def _prefill_of(state):
    class Prefill:
        def __init__(self, _space, layout):
            assert layout == "NHD"

        def plan(self, starts, _key_starts, heads, kv_heads, width, **more):
            assert set(more) == {"causal", "window_left", "q_data_type"}
            self.sizes = (starts.shape[0] - 1, heads, kv_heads, width)

        @_quiet
        def run(self, query, key, _value):
            sequences, heads, kv_heads, width = self.sizes
            tokens, keys = query.shape[0] // sequences, key.shape[0] // sequences
            seconds = state.truth.attention_s(
                (sequences, heads, tokens, width), (kv_heads, keys), 0, "CUDNN_ATTENTION"
            )
            state.kernel(FASTER * seconds)
            return torch.empty_like(query)

    return Prefill


def _flash_attention(monkeypatch, state):
    @_quiet
    def with_kvcache(query, key, value, *, cache_seqlens, page_table, causal, window_size):
        sequences, tokens, heads, width = query.shape
        keys = page_table.shape[1] * key.shape[1]
        state.kernel(
            FASTER
            * state.truth.attention_s(
                (sequences, heads, tokens, width), (key.shape[2], keys), 0, "CUDNN_ATTENTION"
            )
        )
        return torch.empty_like(query)

    _module("flash_attn_interface", monkeypatch, flash_attn_with_kvcache=with_kvcache)


def _flash_mla(monkeypatch, state):
    @_quiet
    def mla(query, cache, table, lengths, latent, schedule, splits, *, causal):
        assert cache.shape[1:3] == (64, 1)
        state.kernel(2e-5 + cache.numel() * 2.0 / state.truth.device.memory_bytes_per_s)
        return torch.empty((*query.shape[:3], latent), device="meta"), None

    _module(
        "flash_mla", monkeypatch, flash_mla_with_kvcache=mla, get_mla_metadata=lambda *_words: (None, None)
    )


def _deep_gemm(monkeypatch, state):
    @_quiet
    def gemm(first, second, result):
        (activations, row_scales), (weights, block_scales) = first, second
        assert row_scales.shape == (activations.shape[0], -(-activations.shape[1] // 128))
        assert block_scales.shape == (-(-weights.shape[0] // 128), -(-weights.shape[1] // 128))
        state.kernel(state.truth.matmul_s(*activations.shape, weights.shape[0], "fp8_block", 1.0, 1.0))

    _module("deep_gemm", monkeypatch, fp8_gemm_nt=gemm)


def _vllm(monkeypatch, state):
    @_quiet
    def quantise(wide, scale):
        return torch.empty(wide.shape, dtype=torch.float8_e4m3fn, device="meta"), scale

    @_quiet
    def scaled(first, second, _one, _two, dtype):
        state.kernel(
            state.truth.matmul_s(first.shape[0], first.shape[1], second.shape[1], "fp8", 1.0, 1.0, True)
        )
        return torch.empty((first.shape[0], second.shape[1]), dtype=dtype, device="meta")

    @_quiet
    def fused(tokens, gate_up, down, weights, ids):
        assert gate_up.shape[2] == tokens.shape[1] == down.shape[1]
        assert ids.dtype == torch.int32
        state.kernel(3e-5 + ids.numel() * down[0].numel() * 6.0 / state.truth.device.memory_bytes_per_s)
        return torch.empty_like(tokens)

    _module("vllm", monkeypatch)
    _module("vllm._custom_ops", monkeypatch, scaled_fp8_quant=quantise, cutlass_scaled_mm=scaled)
    _module("vllm.model_executor.layers.fused_moe", monkeypatch, fused_experts=fused)


def install(monkeypatch, state):
    """Make the engines' libraries importable."""
    _module(
        "flashinfer",
        monkeypatch,
        BatchDecodeWithPagedKVCacheWrapper=_decode_of(state),
        BatchPrefillWithRaggedKVCacheWrapper=_prefill_of(state),
    )
    _flash_attention(monkeypatch, state)
    _flash_mla(monkeypatch, state)
    _deep_gemm(monkeypatch, state)
    _vllm(monkeypatch, state)
