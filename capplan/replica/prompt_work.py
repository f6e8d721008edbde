"""Work of a replica that comes with the prompts of requests, beside the prefill of their tokens."""

from capplan.errors import InputError
from capplan.model.adapters import adapter_bytes_per_rank
from capplan.replica.spec import ReplicaSpec


def prompt_work_s_per_token(spec: ReplicaSpec) -> float:
    """Return the time that a token of a prompt adds to a prefill beside its own, mean over the traffic [s].

    An adapter that is not resident is copied from the memory of the host before its request starts, on every device at once.

    Raises
    ------
    InputError
        the link of the device to its host is not known
    """
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
