"""Latent attention (MLA) in torch: expanded in prefill, absorbed in decode, and the batched products around it."""

from collections.abc import Callable

import torch
from torch.nn import functional

from capplan.calibrate.kernels.arena import ELEMENT_BYTES, random_operand, torch_dtype
from capplan.calibrate.kernels.attention import attention
from capplan.calibrate.kernels.case import Kernel, Shape, Way
from capplan.calibrate.machine import Abilities
from capplan.calibrate.timing import Call


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


def _on_a_card(able: Abilities, _shape: Shape) -> bool:
    return able.is_card


def _on_a_processor(able: Abilities, _shape: Shape) -> bool:
    return not able.is_card


def _on_nvidia(able: Abilities, _shape: Shape) -> bool:
    return able.is_card and not able.is_amd


def _decode_bytes(shape: Shape, dtype: str) -> float:
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


def _prefill_bytes(shape: Shape, dtype: str) -> float:
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
    _decode_bytes,
    {"bmm softmax bmm": Way(_decode), "sdpa efficient": Way(_folded, _on_a_card)},
    ("context_tokens", "sequences"),
)
LATENT_PREFILL = Kernel(
    _prefill_bytes,
    {
        "sdpa": _prefill("", _on_a_processor),
        "sdpa flash": _prefill("sdpa flash", _on_a_card),
        "sdpa cudnn": _prefill("sdpa cudnn", _on_nvidia),
        "sdpa efficient": _prefill("sdpa efficient", _on_a_card),
    },
    ("new_tokens",),
)
LATENT_BMM = Kernel(_bmm_bytes, {"torch.bmm": Way(_bmm)}, ("tokens",))
