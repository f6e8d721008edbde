"""Errors for illegal replicas: the reason, and the legal degrees."""

from collections.abc import Callable

from capplan.engine.profile import EngineProfile
from capplan.errors import InputError
from capplan.fleet.search.candidates import Layout, head_reason, layout_reason
from capplan.model.network import Network

_MOST_RANKS = 64


def refuse_illegal(network: Network, layout: Layout, engine: EngineProfile) -> None:
    """Raise InputError for an illegal replica, with the legal degrees."""
    tensor, expert = int(layout.sharding.tensor), int(layout.sharding.expert)
    refuse_heads(network, tensor)
    ranks = int(layout.sharding.tensor * layout.sharding.data)
    if ranks % expert:
        raise InputError(
            f"--expert-parallel {expert}: tensor x data parallel {ranks} ranks do not divide into {expert} groups\n"
            f"  allowed: {_listed(lambda n: ranks % n == 0, ranks)}"
        )
    reason = layout_reason(network, layout, engine)
    if reason:
        raise InputError(f"{network.name} on {layout.device.name}: {reason.words}")


def refuse_heads(network: Network, tensor_parallel: int, flag: str = "--tensor-parallel") -> None:
    """Raise InputError for a tensor parallelism that the heads cannot be split over."""
    reason = head_reason(network, tensor_parallel)
    if reason:
        allowed = _listed(lambda n: head_reason(network, n) is None, _MOST_RANKS)
        raise InputError(f"{flag} {tensor_parallel}: {network.name}: {reason.words}\n  allowed: {allowed}")


def _listed(legal: Callable[[int], bool], most: int) -> str:
    return ", ".join(str(n) for n in range(1, most + 1) if legal(n))
