"""Attention kernels in torch: softmax attention with each of its backends, and latent attention expanded in prefill and absorbed in decode."""

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch.nn import functional

from capplan.calibrate.kernels.case import Kernel, Shape, Way
from capplan.calibrate.machine import Abilities
from capplan.calibrate.timing import ELEMENT_BYTES, Call, random_operand, torch_dtype

PAGE_TOKENS = 256
"""Tokens of a page: FlashAttention 2 reads pages of multiples of 256."""
BACKENDS = {
    "sdpa flash": "FLASH_ATTENTION",
    "sdpa cudnn": "CUDNN_ATTENTION",
    "sdpa efficient": "EFFICIENT_ATTENTION",
}


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool, backend: str = ""
) -> torch.Tensor:
    """Return softmax attention of (sequence, head, token, width) tensors whose KV heads may be fewer.

    Parameters
    ----------
    query : (sequences, query heads, tokens, width)
    key : (sequences, KV heads, tokens, width)
    value : (sequences, KV heads, tokens, width)
    causal : with a mask that ends at the last key
    backend : one of `BACKENDS`; empty: the first of them that runs
    """
    if query.is_cuda:
        return _on_card(query, key, value, causal=causal, backend=backend)
    grouped = query.shape[1] != key.shape[1]
    if grouped and query.shape[2] == 1:
        # a decode step folds the query heads of a KV head into rows, as decode kernels do
        folded = query.reshape(query.shape[0], key.shape[1], -1, query.shape[3])
        return functional.scaled_dot_product_attention(folded, key, value).reshape(query.shape)
    return functional.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)


def _on_card(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool, backend: str
) -> torch.Tensor:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    names = [BACKENDS[backend]] if backend else list(BACKENDS.values())
    backends = [getattr(SDPBackend, name) for name in names]
    grouped = query.shape[1] != key.shape[1]
    if grouped and backend == "sdpa efficient":
        return _ungrouped(query, key, value, causal=causal)
    offset = causal and query.shape[2] != key.shape[2]
    mask: Any = causal_lower_right(query.shape[2], key.shape[2]) if offset else None
    with sdpa_kernel(backends, set_priority=len(backends) > 1):
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal and not offset, enable_gqa=grouped
        )


def _ungrouped(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """Return grouped attention in the backend that knows no groups, the only one of V100 and T4.

    One query token folds the heads of a group into rows; a prompt repeats the keys, as engines do on those cards.
    """
    if query.shape[2] == 1:
        folded = query.reshape(query.shape[0], key.shape[1], -1, query.shape[3])
        mixed = _on_card(folded, key, value, causal=False, backend="sdpa efficient")
        return mixed.reshape(*query.shape[:3], value.shape[3])
    times = query.shape[1] // key.shape[1]
    keys, values = key.repeat_interleave(times, dim=1), value.repeat_interleave(times, dim=1)
    return _on_card(query, keys, values, causal=causal, backend="sdpa efficient")


def _heads(shape: Shape) -> tuple[float, float, float, float]:
    return shape["sequences"], shape["query_heads"], shape["kv_heads"], shape["head_dim"]


def _attention_prefill_bytes(shape: Shape, dtype: str) -> float:
    sequences, query_heads, kv_heads, head_dim = _heads(shape)
    new, past = shape["new_tokens"], shape.get("past_tokens", 0.0)
    width = 2.0 * query_heads * new + 2.0 * kv_heads * (new + past)
    return sequences * head_dim * width * ELEMENT_BYTES[dtype]


def _attention_decode_bytes(shape: Shape, dtype: str) -> float:
    sequences, query_heads, kv_heads, head_dim = _heads(shape)
    queries = shape.get("query_tokens", 1.0)
    width = 2.0 * (query_heads * queries + kv_heads * shape["context_tokens"])
    return sequences * head_dim * width * ELEMENT_BYTES[dtype]


def tokens_of(shape: Shape) -> tuple[float, float]:
    """Return new tokens and keys of each sequence, in prefill or decode."""
    if "new_tokens" in shape:
        return shape["new_tokens"], shape["new_tokens"] + shape.get("past_tokens", 0.0)
    return shape.get("query_tokens", 1.0), shape["context_tokens"]


def _dense(backend: str) -> Callable[[Shape, str, torch.device], Call]:
    def built(shape: Shape, dtype: str, device: torch.device) -> Call:
        sequences, query_heads, kv_heads, head_dim = _heads(shape)
        new, keys = tokens_of(shape)
        query = random_operand((sequences, query_heads, new, head_dim), dtype, device)
        key = random_operand((sequences, kv_heads, keys, head_dim), dtype, device)
        value = random_operand((sequences, kv_heads, keys, head_dim), dtype, device)
        return lambda: attention(query, key, value, causal=new > 1, backend=backend)

    return built


def _varlen(shape: Shape, dtype: str, device: torch.device) -> Call:
    """FlashAttention of torch over packed sequences: with windows, cached tokens and pages."""
    varlen_attn = import_module("torch.nn.attention.varlen").varlen_attn
    sequences, query_heads, kv_heads, head_dim = (int(size) for size in _heads(shape))
    new, keys = (int(size) for size in tokens_of(shape))
    query = random_operand((sequences * new, query_heads, head_dim), dtype, device)
    starts = _starts(sequences, new, device)
    window = int(shape.get("window_tokens", 0.0))
    words: dict[str, Any] = {"window_size": (window - 1 if window else -1, 0)}
    if query_heads != kv_heads and "enable_gqa" in signature(varlen_attn).parameters:
        words["enable_gqa"] = True  # torch 2.11 shares heads without being asked
    if shape.get("page_tokens"):
        page = int(shape["page_tokens"])
        pages = -(-keys // page)
        pool: tuple[int, ...] = (sequences * pages, page, kv_heads, head_dim)
        words["seqused_k"] = torch.full((sequences,), keys, dtype=torch.int32, device=device)
        words["block_table"] = shuffled_pages(sequences, pages, device)
        key_starts = None
    else:
        pool = (sequences * keys, kv_heads, head_dim)
        key_starts = _starts(sequences, keys, device)
    key, value = random_operand(pool, dtype, device), random_operand(pool, dtype, device)
    return lambda: varlen_attn(query, key, value, starts, key_starts, new, keys, **words)


def _starts(sequences: int, tokens: int, device: torch.device) -> torch.Tensor:
    return torch.arange(0, (sequences + 1) * tokens, tokens, dtype=torch.int32, device=device)


def shuffled_pages(sequences: int, pages: int, device: torch.device) -> torch.Tensor:
    """Return a block table whose pages lie anywhere in the pool, as after hours of serving."""
    order = torch.randperm(sequences * pages, dtype=torch.int32)
    return order.reshape(sequences, pages).to(device)


def _is_plain(shape: Shape) -> bool:
    return not shape.get("page_tokens") and not shape.get("window_tokens")


def _attention_on_a_card(able: Abilities, shape: Shape) -> bool:
    return able.is_card and _is_plain(shape)


def _has_varlen(able: Abilities, shape: Shape) -> bool:
    if not able.varlen:
        return False
    try:
        varlen_attn = import_module("torch.nn.attention.varlen").varlen_attn
    except ImportError:
        return False
    pages = not shape.get("page_tokens") or "block_table" in signature(varlen_attn).parameters
    return pages and shape["head_dim"] <= 256


_WAYS = {
    "sdpa": Way(_dense(""), lambda able, shape: not able.is_card and _is_plain(shape)),
    "sdpa flash": Way(_dense("sdpa flash"), _attention_on_a_card),
    "sdpa cudnn": Way(
        _dense("sdpa cudnn"), lambda able, shape: _attention_on_a_card(able, shape) and not able.is_amd
    ),
    "sdpa efficient": Way(_dense("sdpa efficient"), _attention_on_a_card),
    "varlen flash": Way(_varlen, _has_varlen),
}
PREFILL = Kernel(_attention_prefill_bytes, _WAYS, ("sequences", "new_tokens"))
DECODE = Kernel(_attention_decode_bytes, _WAYS, ("context_tokens", "sequences"))


def expanded_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, backend: str = ""
) -> torch.Tensor:
    """Return causal attention whose values are narrower than its keys.

    Flash kernels need one width, so values are padded; engines with such kernels pay for the extra work too.
    """
    missing = key.shape[-1] - value.shape[-1]
    padded = functional.pad(value, (0, missing))
    return attention(query, key, padded, causal=True, backend=backend)[..., : value.shape[-1]]


def absorbed_attention(query: torch.Tensor, cache: torch.Tensor, latent: int) -> torch.Tensor:
    """Return decode attention of all heads over one latent cache, in two products and a softmax.

    Parameters
    ----------
    query : (sequences, heads, latent + rope), already multiplied with the key expansion
    cache : (sequences, context, latent + rope)
    latent : width of the part that serves as the value [-]

    Returns
    -------
    (sequences, heads, latent)
    """
    scale = query.shape[-1] ** -0.5
    scores = torch.bmm(query, cache.transpose(1, 2)).mul_(scale)
    return torch.bmm(torch.softmax(scores, dim=-1), cache[..., :latent])


def folded_attention(query: torch.Tensor, cache: torch.Tensor, latent: int) -> torch.Tensor:
    """Return the same in one fused kernel that reads the cache once: the heads are rows of a single KV head.

    Parameters
    ----------
    query : (sequences, heads, latent + rope)
    cache : (sequences, context, latent + rope)
    latent : width of the value [-]
    """
    rows, keys = query.unsqueeze(1), cache.unsqueeze(1)
    return attention(rows, keys, keys[..., :latent], causal=False, backend="sdpa efficient").squeeze(1)


def _latent_on_a_card(able: Abilities, _shape: Shape) -> bool:
    return able.is_card


def _latent_decode_bytes(shape: Shape, dtype: str) -> float:
    cached = shape["sequences"] * shape["context_tokens"] * (shape["latent"] + shape["rope"])
    return cached * ELEMENT_BYTES[dtype]


def _decode(shape: Shape, dtype: str, device: torch.device) -> Call:
    query, cache = _decode_operands(shape, dtype, device)
    return lambda: absorbed_attention(query, cache, int(shape["latent"]))


def _folded(shape: Shape, dtype: str, device: torch.device) -> Call:
    query, cache = _decode_operands(shape, dtype, device)
    return lambda: folded_attention(query, cache, int(shape["latent"]))


def _decode_operands(shape: Shape, dtype: str, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    width = shape["latent"] + shape["rope"]
    query = random_operand((shape["sequences"], shape["query_heads"], width), dtype, device)
    return query, random_operand((shape["sequences"], shape["context_tokens"], width), dtype, device)


def _latent_prefill_bytes(shape: Shape, dtype: str) -> float:
    width = 2.0 * (shape["nope"] + shape["rope"]) + 2.0 * shape["value"]
    return shape["sequences"] * shape["new_tokens"] * shape["query_heads"] * width * ELEMENT_BYTES[dtype]


def _prefill(backend: str, suits: Callable[[Abilities, Shape], bool]) -> Way:
    def built(shape: Shape, dtype: str, device: torch.device) -> Call:
        sizes = (shape["sequences"], shape["query_heads"], shape["new_tokens"])
        query = random_operand((*sizes, shape["nope"] + shape["rope"]), dtype, device)
        key = random_operand((*sizes, shape["nope"] + shape["rope"]), dtype, device)
        value = random_operand((*sizes, shape["value"]), dtype, device)
        return lambda: expanded_attention(query, key, value, backend)

    return Way(built, suits)


def _bmm_bytes(shape: Shape, dtype: str) -> float:
    sizes = shape["inputs"] * shape["outputs"] + shape["tokens"] * (shape["inputs"] + shape["outputs"])
    return shape["query_heads"] * sizes * ELEMENT_BYTES[dtype]


def _bmm(shape: Shape, dtype: str, device: torch.device) -> Call:
    heads, tokens, inputs, outputs = (
        int(shape[name]) for name in ("query_heads", "tokens", "inputs", "outputs")
    )
    activations = random_operand((heads, tokens, inputs), dtype, device)
    weights = random_operand((heads, inputs, outputs), dtype, device)
    result = torch.empty((heads, tokens, outputs), dtype=torch_dtype(dtype, device), device=device)
    return lambda: torch.bmm(activations, weights, out=result)


LATENT_DECODE = Kernel(
    _latent_decode_bytes,
    {"bmm softmax bmm": Way(_decode), "sdpa efficient": Way(_folded, _latent_on_a_card)},
    ("context_tokens", "sequences"),
)
LATENT_PREFILL = Kernel(
    _latent_prefill_bytes,
    {
        "sdpa": _prefill("", lambda able, _shape: not able.is_card),
        "sdpa flash": _prefill("sdpa flash", _latent_on_a_card),
        "sdpa cudnn": _prefill("sdpa cudnn", lambda able, _shape: able.is_card and not able.is_amd),
        "sdpa efficient": _prefill("sdpa efficient", _latent_on_a_card),
    },
    ("new_tokens",),
)
LATENT_BMM = Kernel(_bmm_bytes, {"torch.bmm": Way(_bmm)}, ("tokens",))
