"""Routed experts in torch: tokens sorted by expert, one grouped product per matrix, results combined."""

import torch
from torch.nn import functional


def routed_experts(
    tokens: torch.Tensor,
    scores: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    experts_per_token: int,
) -> torch.Tensor:
    """Return the output of the routed experts of one layer.

    Parameters
    ----------
    tokens : (tokens, width)
    scores : (tokens, experts), of the router
    gate_up : (experts, width, 2 x inner)
    down : (experts, inner, width)
    experts_per_token : chosen by the router [-]

    Returns
    -------
    (tokens, width)
    """
    weight, expert = torch.topk(scores, experts_per_token, dim=-1)
    weight = torch.softmax(weight, dim=-1).to(tokens.dtype)
    order = torch.argsort(expert.flatten())
    source = order // experts_per_token
    counts = torch.bincount(expert.flatten(), minlength=gate_up.shape[0]) if not tokens.is_cuda else None
    ends = torch.cumsum(counts, 0).to(torch.int32) if counts is not None else _ends(expert, gate_up.shape[0])
    hidden = _grouped(tokens[source], gate_up, ends)
    gate, up = hidden.chunk(2, dim=-1)
    routed = _grouped(functional.silu(gate) * up, down, ends)
    combined = torch.zeros_like(tokens)
    return combined.index_add_(0, source, routed * weight.flatten()[order].unsqueeze(-1))


def _ends(expert: torch.Tensor, experts: int) -> torch.Tensor:
    """Return where the rows of each expert end; without a copy to the host, so that a CUDA graph can contain it."""
    ids = torch.arange(experts, device=expert.device)
    return torch.searchsorted(torch.sort(expert.flatten()).values, ids, right=True).to(torch.int32)


def _grouped(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return each expert's rows times its matrix."""
    if rows.is_cuda and hasattr(torch, "_grouped_mm"):
        return torch._grouped_mm(rows, weights, offs=ends)  # noqa: SLF001 - torch has no public name for it
    result = torch.empty((rows.shape[0], weights.shape[2]), dtype=rows.dtype, device=rows.device)
    start = 0
    for expert, end in enumerate(ends.tolist()):
        if end > start:
            torch.mm(rows[start:end], weights[expert], out=result[start:end])
        start = end
    return result
