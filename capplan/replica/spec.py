"""The specification of one replica: model, device, engine, parallelism and limits."""

from dataclasses import dataclass, replace

from capplan.engine.lookup import with_chunked_prefill
from capplan.engine.profile import EngineProfile
from capplan.errors import InputError
from capplan.hardware.device import Device
from capplan.hardware.efficiency import Efficiency
from capplan.model.network import Attention, Network
from capplan.model.sharding import Sharding


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """Everything that memory and step times of a replica depend on."""

    network: Network
    """In the weight format it is served in."""
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
    """Input plus output of a typical request, for the cache capacity of hybrid models; None: the longest context."""
    offline: bool = False
    """Offline inference instead of the API server: larger steps, no HTTP."""

    @property
    def devices(self) -> int:
        """Number of devices of the replica."""
        return int(self.sharding.devices)

    @property
    def ranks(self) -> float:
        """Devices that one copy of the model is split over: tensor and pipeline ranks."""
        return float(self.sharding.tensor * self.sharding.pipeline)


def network_as_served(network: Network, profile: EngineProfile) -> Network:
    """Return the model as an engine runs it: with the context that it derives, without windows that its kernels ignore by default."""
    if not profile.derives_context and network.stated_context_tokens is not None:
        network = replace(network, max_context_tokens=network.stated_context_tokens)
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


def profile_as_served(
    profile: EngineProfile, network: Network, chunked_prefill: bool | None
) -> EngineProfile:
    """Return the engine with or without chunked prefill, as asked; encoders read every prompt whole.

    Parameters
    ----------
    profile : of the engine version
    network : the model
    chunked_prefill : as asked; None: the engine's default

    Raises
    ------
    InputError
        An encoder is asked to read its prompts in chunks.

    References
    ----------
    vLLM, "Pooling models default to using chunked prefill & prefix caching if supported" (causal attention alone supports
    them): https://github.com/vllm-project/vllm/pull/20930.
    """
    if chunked_prefill and network.bidirectional:
        raise InputError(
            f"{network.name} reads prompts in both directions, so they cannot be cut into chunks; leave chunked prefill out"
        )
    if network.bidirectional or chunked_prefill is False:
        return with_chunked_prefill(profile, on=False)
    return with_chunked_prefill(profile, on=True) if chunked_prefill else profile


def refuse_prefixes(network: Network, hit_fraction: float) -> None:
    """Raise the error for prompts of an encoder that are said to share prefixes: nothing of a prompt is kept for another."""
    if network.bidirectional and hit_fraction > 0.0:
        raise InputError(
            f"{network.name} reads prompts in both directions and keeps nothing of them, so none can reuse a prefix; leave it out"
        )


def served_context_tokens(spec: ReplicaSpec) -> int:
    """Return the longest context that the replica accepts."""
    tokens = spec.max_model_len or spec.network.max_context_tokens
    if tokens is None:
        raise InputError(
            f"{spec.network.name}: its config states no maximum context\n  give one: --max-model-len 8192"
        )
    return tokens
