"""Which tensor parallelism the heads of a network can be split over."""

from collections.abc import Callable

from capplan.errors import InputError, Reason, Refusal
from capplan.model.network import Network, layer_counts

_MOST_RANKS = 64


def head_reason(network: Network, tensor_parallel: int) -> Reason | None:
    """Return why the heads of the network cannot be split over this many ranks, or None if they can.

    Query heads must divide evenly; KV heads must divide or replicate evenly; groups of heads that share an output matrix
    must stay whole.

    Examples
    --------
    12 query heads and 4 KV heads on 8 ranks:

    >>> from capplan.model.network import Attention, Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 64, 1000, "columns")
    >>> network = Network("n", "t", 64, 1000, (Layer((Attention(12, 4, 64, 64),), ()),), head, True, 64000)
    >>> head_reason(network, 4), head_reason(network, 8).words
    (None, '12 heads do not divide over tensor-parallel 8')
    """
    divided = (
        part
        for layer, _ in layer_counts(network)
        for mixer in layer.mixers
        for part in mixer.description.heads
    )
    for heads in dict.fromkeys(divided):
        if heads.count % tensor_parallel == 0:
            continue
        over = f"over tensor-parallel {tensor_parallel}"
        if not heads.replicable:
            return Reason(Refusal.HEADS, f"{heads.count} {heads.name} do not divide {over}")
        if tensor_parallel % heads.count:
            return Reason(Refusal.HEADS, f"{heads.count} {heads.name} neither divide nor replicate {over}")
    return None


def refuse_heads(network: Network, tensor_parallel: int, flag: str = "--tensor-parallel") -> None:
    """Raise InputError for a tensor parallelism that the heads cannot be split over."""
    reason = head_reason(network, tensor_parallel)
    if reason:
        allowed = listed_degrees(lambda n: head_reason(network, n) is None, _MOST_RANKS)
        raise InputError(f"{flag} {tensor_parallel}: {network.name}: {reason.words}\n  allowed: {allowed}")


def listed_degrees(legal: Callable[[int], bool], most: int) -> str:
    """Return the degrees up to the most that are legal, as a list in words."""
    return ", ".join(str(n) for n in range(1, most + 1) if legal(n))
