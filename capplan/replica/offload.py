"""Layers, or their experts, that llama.cpp keeps in the memory of the host: which these are, and what a step takes for them.

A generated token reads them at the bandwidth of the host. A piece of a prompt brings them over PCIe, and the device computes:

    t_token = Q / (B_h m_h) + t_0,   t_piece = Q / (B_p m_p) + F / (P c)
"""

from dataclasses import dataclass, replace

from capplan.errors import InputError
from capplan.hardware.device import Device
from capplan.model.network import Layer, Network
from capplan.model.parameters import weight_bytes_by_class
from capplan.phases.cost import StepRates

EVERY_LAYER = 10_000
"""Layers that no model has: all are on the device."""


@dataclass(frozen=True, slots=True)
class Offload:
    """What is in the memory of the host."""

    network: Network
    """Its layers; of a layer only whose experts are there, these experts."""
    bytes_per_s: float
    """Peak bandwidth of the memory of the host."""
    gpu_layers: int | None = None
    """Layers on the device, the LM head counted as the last; None: all."""
    cpu_experts: int | None = None
    """First layers whose routed experts are on the host; None: none are."""

    @property
    def weight_bytes(self) -> float:
        """Weights that the host holds: its layers and experts, and the embedding, whose rows it looks up [B]."""
        sizes = weight_bytes_by_class(self.network)
        return sum(size for name, size in sizes.items() if name != "lm_head")


@dataclass(frozen=True, slots=True)
class PartRates:
    """Layers that are elsewhere than the LM head: on another card, or in the memory of the host; and the rates of their operators."""

    network: Network
    token: StepRates
    """Rates of steps that generate, which a host computes itself."""
    prompt: StepRates
    """Rates of prompts, for which weights of a host cross PCIe to the device."""
    on_host: bool = False
    """Whether these layers are in the memory of the host."""


def split_network(network: Network, gpu_layers: int, cpu_experts: int) -> tuple[Network, Network | None]:
    """Return what is on the device and what is in the memory of the host; None where nothing is.

    Parameters
    ----------
    network : the model
    gpu_layers : [-]
        last layers on the device, of which the LM head counts as one (`--n-gpu-layers`)
    cpu_experts : [-]
        first layers whose routed experts are in the memory of the host (`--n-cpu-moe`)

    Raises
    ------
    InputError
        experts are to be offloaded, and there are none

    References
    ----------
    llama.cpp, `load_tensors` in src/llama-model.cpp and `--n-cpu-moe` in common/arg.cpp: https://github.com/ggml-org/llama.cpp. The LM head is the
    first to be on the device since December 2025: https://github.com/ggml-org/llama.cpp/pull/18148.
    """
    if cpu_experts and not any(layer.experts for layer in network.layers):
        raise InputError(
            f"--n-cpu-moe: {network.name} has no routed experts\n  --n-gpu-layers keeps whole layers on the host"
        )
    first = max(len(network.layers) + 1 - gpu_layers, 0)
    held: list[Layer] = list(network.layers[:first])
    kept: list[Layer] = []
    for index, layer in enumerate(network.layers[first:], first):
        moved = layer.experts is not None and index < cpu_experts
        kept.append(replace(layer, experts=None) if moved else layer)
        if moved:
            held.append(Layer((), (), layer.experts))
    if not held:
        return network, None
    return replace(network, layers=tuple(kept)), replace(network, layers=tuple(held))


def host_devices(device: Device, bytes_per_s: float) -> tuple[Device, Device]:
    """Return the device as tokens and as prompts see it for weights of the host: with the bandwidth of the host, and of PCIe.

    Arithmetic of the host is taken to be as quick as its memory.
    """
    if device.pcie_bytes_per_s is None:
        raise InputError(
            f"{device.name}: it shares the memory of its host, or its link to it is not known: nothing is offloaded"
        )
    unbounded = {"fp32": 1e30}
    return (
        replace(device, memory_bytes_per_s=bytes_per_s, peak_flop_per_s=unbounded),
        replace(device, memory_bytes_per_s=device.pcie_bytes_per_s),
    )
