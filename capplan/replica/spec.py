"""One replica as it is asked for: the model, the device, the engine, and how they are put together."""

from dataclasses import dataclass, replace

from capplan.engine.profile import EngineProfile
from capplan.errors import InputError
from capplan.hardware.device import Device
from capplan.hardware.efficiency import Efficiency
from capplan.model.network import Attention, Network
from capplan.model.sharding import Sharding


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """Everything that decides what a replica holds and how long its steps take."""

    network: Network
    """In the weight format that is served."""
    device: Device
    efficiency: Efficiency
    profile: EngineProfile
    sharding: Sharding
    """Numbers, not arrays."""
    kv_format: str
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    typical_context_tokens: int | None = None
    """Prompt and answer of the usual request, which decides what the cache of a hybrid model holds; None: the longest."""
    offline: bool = False
    """The offline class of the engine instead of its API server: larger steps, no HTTP."""

    @property
    def devices(self) -> int:
        """Devices of the replica."""
        return int(self.sharding.devices)


def network_as_served(network: Network, profile: EngineProfile) -> Network:
    """Return the model as an engine runs it: without windows where its kernels read all tokens by default."""
    if profile.window_kernels:
        return network
    layers = tuple(
        replace(
            layer,
            mixers=tuple(
                replace(mixer, window_tokens=None) if isinstance(mixer, Attention) else mixer
                for mixer in layer.mixers
            ),
        )
        for layer in network.layers
    )
    return replace(network, layers=layers)


def served_context_tokens(spec: ReplicaSpec) -> int:
    """Return the longest context that the replica accepts."""
    tokens = spec.max_model_len or spec.network.max_context_tokens
    if tokens is None:
        raise InputError(
            f"{spec.network.name}: its config names no longest context\n  give one: --max-model-len 8192"
        )
    return tokens
