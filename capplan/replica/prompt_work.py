"""Work of a replica that comes with the prompts of requests, beside the prefill of their tokens."""

from capplan.errors import InputError
from capplan.model.adapters import adapter_bytes_per_rank
from capplan.phases.cost import total_s
from capplan.phases.rates import StepRates
from capplan.phases.vision_work import tower_costs
from capplan.replica.spec import ReplicaSpec


def prompt_work_s_per_token(spec: ReplicaSpec, rates: StepRates) -> float:
    """Return the time that a token of a prompt adds to a prefill beside its own, mean over the traffic [s].

    Raises
    ------
    InputError
        the link of the device to its host is not known, and adapters come over it
    """
    return _adapter_s(spec) + _tower_s(spec, rates)


def _adapter_s(spec: ReplicaSpec) -> float:
    """Return the time of copying adapters that are not resident from the memory of the host, on every device at once."""
    adapters = spec.network.adapters
    if adapters is None or not adapters.missing_fraction or not adapters.prompt_tokens:
        return 0.0
    if spec.device.pcie_bytes_per_s is None:
        raise InputError(
            f"{spec.device.name}: the rate between host and device is not known, and adapters without a slot come over it\n"
            "  give every adapter a slot (max_loras), or pcie in your own hardware YAML"
        )
    held = float(adapter_bytes_per_rank(spec.network, spec.sharding))
    return adapters.missing_fraction * held / spec.device.pcie_bytes_per_s / adapters.prompt_tokens


def _tower_s(spec: ReplicaSpec, rates: StepRates) -> float:
    """Return the time of the vision tower; attention-data-parallel groups read different images at once."""
    network, seconds = spec.network, 0.0
    if network.images is None:
        return seconds
    for image in network.image_work:
        costs = tower_costs(network.images.tower, image, network.vision_format, spec.sharding.tensor, rates)
        seconds += image.per_prompt_token * float(total_s(costs)) / float(spec.sharding.data)
    return seconds
