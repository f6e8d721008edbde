"""Errors for illegal replicas: the reason, and the legal degrees."""

from capplan.engine.profile import EngineProfile
from capplan.errors import InputError
from capplan.fleet.search.candidates import Layout, layout_reason
from capplan.model.heads import listed_degrees, refuse_heads
from capplan.model.network import Network


def refuse_illegal(network: Network, layout: Layout, engine: EngineProfile) -> None:
    """Raise InputError for an illegal replica, with the legal degrees."""
    tensor, expert = int(layout.sharding.tensor), int(layout.sharding.expert)
    refuse_heads(network, tensor)
    ranks = int(layout.sharding.tensor * layout.sharding.data)
    if ranks % expert:
        raise InputError(
            f"--expert-parallel {expert}: tensor x data parallel {ranks} ranks do not divide into {expert} groups\n"
            f"  allowed: {listed_degrees(lambda n: ranks % n == 0, ranks)}"
        )
    reason = layout_reason(network, layout, engine)
    if reason:
        raise InputError(f"{network.name} on {layout.device.name}: {reason.words}")
