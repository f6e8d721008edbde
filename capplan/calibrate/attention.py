"""Attention in torch: grouped-query attention, and latent attention, expanded in prefill and absorbed in decode."""

import torch
from torch.nn import functional


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """Return softmax attention of (sequence, head, token, width) tensors whose KV heads may be fewer.

    Uses flash kernels where the device has them. A decode step with one query token folds the query heads of a
    KV head into rows, as decode kernels do.
    """
    if query.is_cuda:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
        with sdpa_kernel(backends, set_priority=True):
            return functional.scaled_dot_product_attention(
                query, key, value, is_causal=causal, enable_gqa=True
            )
    grouped = query.shape[1] != key.shape[1]
    if grouped and query.shape[2] == 1:
        folded = query.reshape(query.shape[0], key.shape[1], -1, query.shape[3])
        return functional.scaled_dot_product_attention(folded, key, value).reshape(query.shape)
    return functional.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)


def expanded_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return causal attention whose values are narrower than its keys.

    Flash kernels need one width, so values are padded; engines with such kernels pay for the extra work too.
    """
    missing = key.shape[-1] - value.shape[-1]
    padded = functional.pad(value, (0, missing))
    return attention(query, key, padded, causal=True)[..., : value.shape[-1]]


def absorbed_attention(query: torch.Tensor, cache: torch.Tensor, latent: int) -> torch.Tensor:
    """Return decode attention of all heads over one latent cache.

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
