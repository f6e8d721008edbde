"""Multi-head latent attention in torch: expanded in prefill, absorbed in decode."""

import torch
from torch.nn import functional

from capplan.calibrate.kernels import attention


def expanded_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return causal attention whose values are narrower than its keys.

    Flash kernels want one width, so values are padded to it; the extra work is part of what such an engine pays.
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
    latent : width of the part that serves as values [-]

    Returns
    -------
    (sequences, heads, latent)
    """
    scale = query.shape[-1] ** -0.5
    scores = torch.bmm(query, cache.transpose(1, 2)).mul_(scale)
    return torch.bmm(torch.softmax(scores, dim=-1), cache[..., :latent])
