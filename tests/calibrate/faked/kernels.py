"""What each function of torch does on a virtual card: results without values, and the time of its kernel."""

import torch

NOT_SUPPORTED = "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul`"
VIEWS = frozenset(
    [
        "reshape",
        "view",
        "t",
        "transpose",
        "permute",
        "expand",
        "unsqueeze",
        "squeeze",
        "chunk",
        "flatten",
        "size",
        "dim",
        "numel",
        "element_size",
        "stride",
        "shape",
        "is_contiguous",
        "__len__",
        "__get__",
        "type_as",
        "unbind",
        "narrow",
        "as_strided",
        "detach",
        "storage_offset",
        "data_ptr",
        "is_meta",
    ]
)
"""Functions that start no kernel."""
TO_HOST = frozenset(["item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__"])


def _size(tensor):
    return tensor.numel() * tensor.element_size()


def _fp8_format(scale):
    if scale.dtype == torch.float8_e8m0fnu:
        return "fp8_block", 1.03125
    if scale.dtype == torch.float8_e4m3fn:
        return "nvfp4", 0.5625
    return ("fp8_block", 1.0) if scale.dim() == 2 and scale.shape[1] > 1 else ("fp8", 1.0)


def duration_of(state, func, name, args, kwargs, *, on_card):
    """Run a function of torch on meta tensors, and let its time pass."""
    if not on_card and kwargs.get("device") != "meta":
        return func(*args, **kwargs)
    state.calls[name] = state.calls.get(name, 0) + 1
    if name in TO_HOST:
        state.synchronize()
        return [2] * args[0].numel() if name == "tolist" else 1
    if name == "scaled_dot_product_attention":
        return _attention(state, args, kwargs)
    if name in {"_grouped_mm", "grouped_mm"}:
        return _grouped(state, func, args, kwargs)
    if name == "_convert_weight_to_int4pack":
        n, half = args[0].shape
        return torch.empty((n // 8, half * 2 // 128, 32, 4), dtype=torch.int32, device="meta")
    if name == "_weight_int4pack_mm":
        rows, inputs = args[0].shape
        outputs = args[1].shape[0] * 8
        state.kernel(state.truth.matmul_s(rows, inputs, outputs, "bf16", 0.53, 2.0))
        return torch.empty((rows, outputs), dtype=args[0].dtype, device="meta")
    if name in state.gaps:
        raise RuntimeError(NOT_SUPPORTED)
    if name in {"to", "copy_"} and state.capturing is not None and not args[0].is_meta:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    if name == "bincount":
        state.synchronize()
        return torch.zeros(kwargs.get("minlength", 1), dtype=torch.int64, device="meta")
    result = func(*args, **kwargs)
    if name in VIEWS or not on_card:
        return result
    state.kernel(_seconds(state.truth, name, args, kwargs, result))
    return result


def _seconds(truth, name, args, kwargs, result):
    if name in {"mm", "_int_mm", "addmm"}:
        first, second = args[-2:] if name == "addmm" else args[:2]
        width = 1.0 if name == "_int_mm" else 2.0
        fmt = "int8" if name == "_int_mm" else "bf16"
        return truth.matmul_s(first.shape[0], first.shape[1], second.shape[1], fmt, width, width)
    if name == "_scaled_mm":
        first, second = args[:2]
        fmt, width = _fp8_format(kwargs["scale_a"])
        inputs = first.shape[1] * (2 if fmt == "nvfp4" else 1)
        # the cast before it has its own time, except what it starts with
        quantise = fmt != "nvfp4"
        return truth.matmul_s(first.shape[0], inputs, second.shape[1], fmt, width, width, quantise)
    if name == "bmm":
        first, second = args[:2]
        return truth.bmm_s(first.shape[0], first.shape[1], first.shape[2], second.shape[2])
    if name == "to" and result.dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz):
        return 0.0  # the truth of fp8 products includes it
    if name == "__getitem__":
        picks = args[1] if isinstance(args[1], tuple) else (args[1],)
        return truth.moved_s(2.0 * _size(result)) if any(isinstance(p, torch.Tensor) for p in picks) else 0.0
    if name in {"__setitem__", "index_add_"}:
        return truth.moved_s(3.0 * _size(args[-1]))
    moved = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
    if isinstance(result, torch.Tensor) and not any(result is t for t in moved):
        moved.append(result)
    return truth.moved_s(float(sum(map(_size, moved))))


def _attention(state, args, kwargs):
    query, key, value = args[:3]
    width = query.shape[-1]
    old, uneven = state.capability < (8, 0), value.shape[-1] != width
    offset = 1 < query.shape[-2] < key.shape[-2]
    missing = {
        "FLASH_ATTENTION": width > 256 or uneven or old,
        "CUDNN_ATTENTION": width > 128 or old or offset or uneven,
        "EFFICIENT_ATTENTION": query.shape[1] != key.shape[1],
    }
    backend = next((name for name in state.backends if not missing[name]), None)
    if backend is None:
        raise RuntimeError("No available kernel. Aborting execution.")
    if query.shape[1] != key.shape[1] and not kwargs.get("enable_gqa"):
        raise RuntimeError("the heads of query and key differ")
    sizes = (query.shape[0], query.shape[1], query.shape[2], query.shape[3])
    state.kernel(state.truth.attention_s(sizes, (key.shape[1], key.shape[2]), 0, backend))
    return torch.empty((*query.shape[:-1], value.shape[-1]), dtype=query.dtype, device="meta")


def varlen(state):
    """Return what stands in for torch's varlen_attn."""

    def varlen_attn(
        query, key, value, starts, key_starts, max_q, max_k,
        window_size=(-1, -1), enable_gqa=False, seqused_k=None, block_table=None,
    ):  # fmt: skip
        with torch._C.DisableTorchFunction():
            paged = block_table is not None
            if paged and (seqused_k is None or key.shape[1] % 256):
                raise RuntimeError("paged KV cache block size must be divisible by 256")
            sequences = starts.numel() - 1
            kv_heads = key.shape[2] if paged else key.shape[1]
            if query.shape[1] != kv_heads and not enable_gqa:
                raise ValueError("Expect query and key/value to have the same number of heads")
            window = window_size[0] + 1
            sizes = (sequences, query.shape[1], max_q, query.shape[2])
            state.kernel(state.truth.attention_s(sizes, (kv_heads, max_k), window, "varlen"))
            return torch.empty(query.shape, dtype=query.dtype, device="meta")

    return varlen_attn


def _grouped(state, func, args, kwargs):
    rows, weights = args[:2]
    experts, inputs, outputs = weights.shape
    if state.capability not in {(9, 0), (10, 0)} and state.capturing is not None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    hit = min(experts, rows.shape[0])
    seconds = hit * inputs * outputs * 2.0 / (0.8 * state.truth.device.memory_bytes_per_s)
    seconds += 2.0 * rows.shape[0] * inputs * outputs / (0.5 * state.truth.device.peak_flop_per_s["bf16"])
    state.kernel(seconds + 8e-6)
    return torch.empty((rows.shape[0], outputs), dtype=rows.dtype, device="meta")
