"""Kernel rates of one network on one device, for every format of its weights."""

from dataclasses import dataclass, replace

from capplan.assumption import Assumption, Label
from capplan.engine.profile import EngineProfile, HostOverhead
from capplan.hardware.device import MERGED, Device, Efficiency, not_measured
from capplan.model.network import Network, layer_counts
from capplan.operators.device_rates import DeviceRates, device_rates
from capplan.phases.cost import StepRates
from capplan.phases.mixer_work import borrowed_rates
from capplan.phases.token_work import ACTIVATION_BYTES


@dataclass(frozen=True, slots=True)
class LabelledRates:
    """Kernel rates, and what was assumed for lack of measurements."""

    rates: StepRates
    assumptions: tuple[Assumption, ...]

    @property
    def label(self) -> Label:
        """Whether all rates were measured on the device."""
        return "assumed" if any(a.key != MERGED for a in self.assumptions) else "measured"


def _formats(network: Network) -> tuple[list[str], list[str]]:
    dense = {head.weight_format for head in (network.lm_head, network.pooler) if head is not None}
    if network.adapters is not None:
        dense.add(network.adapters.format)
    if network.image_work or network.encoder is not None:
        dense.add(network.vision_format)
    experts = set()
    for layer, _ in layer_counts(network):
        dense |= {p.multiplied_in or p.weight_format for p in layer.projections}
        if layer.experts:
            experts.add(layer.experts.weight_format)
    return sorted(dense), sorted(experts)


def at_rates(device: Device, host: HostOverhead) -> Device:
    """Return the device at the rates that results of an engine showed; the device itself where they showed none.

    Launches keep their time: an efficiency record states it apart from rates.
    """
    compute, memory, links = host.rate_ratios
    if host.rate_ratios == (1.0, 1.0, 1.0):
        return device

    def scaled(rate: float | None) -> float | None:
        return None if rate is None else rate * links

    return replace(
        device,
        peak_flop_per_s={name: rate * compute for name, rate in device.peak_flop_per_s.items()},
        memory_bytes_per_s=device.memory_bytes_per_s * memory,
        link_bytes_per_s=scaled(device.link_bytes_per_s),
        pcie_bytes_per_s=scaled(device.pcie_bytes_per_s),
        network_bytes_per_s=scaled(device.network_bytes_per_s),
    )


def step_rates(
    network: Network,
    device: Device,
    efficiency: Efficiency,
    *,
    profile: EngineProfile,
    kv_format: str,
    spread: bool = False,
) -> LabelledRates:
    """Return the rates of all kernels in a step of the network on the device, whose experts are spread over ranks or not."""
    device = at_rates(device, profile.host)
    dense_formats, expert_formats = _formats(network)

    def of(weight_format: str, expert_format: str | None = None) -> DeviceRates:
        return device_rates(
            device,
            efficiency,
            weight_format=weight_format,
            kv_format=kv_format,
            engine=profile.engine,
            expert_format=expert_format,
            expert_kernel=profile.expert_kernel(
                device.architecture,
                expert_format or weight_format,
                spread=spread,
                routing=network.routing,
            ),
            fuses_quantise=profile.fuses_quantise,
        )

    dense = {name: of(name) for name in dense_formats}
    experts = {name: of(dense_formats[0], name) for name in expert_formats}
    read = {name: rates.expert_activation_bytes for name, rates in experts.items()}
    every = [*dense.values(), *experts.values()]
    first = every[0]
    assumptions = dict.fromkeys(item for rates in every for item in rates.assumptions)
    assumptions |= dict.fromkeys(map(not_measured, borrowed_rates(network)))
    return LabelledRates(
        rates=StepRates(
            matmul={name: rates.matmul for name, rates in dense.items()},
            experts={name: rates.experts for name, rates in experts.items()},
            attention=replace(first.attention, decode_group_exponent=profile.decode_group_exponent),
            latent_attention=first.latent_attention,
            linear_attention=first.linear_attention,
            elementwise=first.elementwise,
            link=first.link,
            activation_bytes={name: rates.matmul_activation_bytes for name, rates in dense.items()},
            expert_activation_bytes=read,
            gathered_bytes=read if profile.gathers_quantised else dict.fromkeys(read, ACTIVATION_BYTES),
        ),
        assumptions=tuple(assumptions),
    )
