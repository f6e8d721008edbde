"""The serving flags of a command line -> one replica as it is asked for, checked before anything is computed."""

from dataclasses import dataclass
from pathlib import Path

from capplan.assumption import Assumption
from capplan.engine.lookup import profile
from capplan.fleet.candidates import Layout
from capplan.fleet.refusal import refuse_illegal
from capplan.hardware.device import Device
from capplan.hardware.efficiency import Efficiency
from capplan.memory.cache_dtype import cache_dtype
from capplan.memory.packed_pool import layout_assumptions
from capplan.model.network import Network
from capplan.model.sharding import Sharding
from capplan.model.weight_format import in_weight_format, weight_format_assumptions
from capplan.readers.calibration.host import refitted_profile
from capplan.readers.calibration.measured_device import efficiency_from_calibration, named_device
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.model import read_model
from capplan.replica.spec import ReplicaSpec, network_as_run


@dataclass(frozen=True, slots=True)
class Asked:
    """A replica with what was assumed to complete it."""

    spec: ReplicaSpec
    assumptions: tuple[Assumption, ...] = ()
    warnings: tuple[str, ...] = ()


def asked_replica(
    model: str,
    hardware: str,
    *,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    expert_parallel: int = 1,
    data_parallel: int = 1,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    engine: str = "vllm",
    engine_version: str | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    gpu_memory_utilization: float | None = None,
    calibration: Path | None = None,
    revision: str | None = None,
    offline: bool = False,
) -> Asked:
    """Return the replica that the shared flags describe.

    Parameters
    ----------
    model : path, shipped id or alias, or hub id
    hardware : catalogue name or alias, or path of a hardware YAML
    tensor_parallel, pipeline_parallel, expert_parallel, data_parallel : [-]
        parallelism; what cannot be cut that way is refused
    weight_dtype : None keeps what the config says
    kv_dtype : None takes the checkpoint's, else that of the activations
    engine, engine_version : whose rules count
    max_model_len : [tokens]
        None is the model's maximum
    max_num_seqs, max_num_batched_tokens : [-], [tokens]
        None are the engine's defaults
    gpu_memory_utilization : [-]
        None is the engine's default
    calibration : file of measured efficiencies
    revision, offline : how to look the model up

    Returns
    -------
    the replica, its assumptions and warnings

    Raises
    ------
    InputError
        Something is unknown, unreadable, or cannot be built that way.
    """
    network = read_model(model, revision=revision, offline=offline)
    rules = profile(engine, engine_version)
    target = named_device(hardware, calibration)
    rules, host_assumptions, host_warnings = refitted_profile(calibration, rules, target)
    format_assumptions = weight_format_assumptions(network, weight_dtype) if weight_dtype else ()
    served = network_as_run(in_weight_format(network, weight_dtype) if weight_dtype else network, rules)
    kv_format, assumptions = cache_dtype(network, kv_dtype)
    sharding = Sharding(
        float(tensor_parallel), float(pipeline_parallel), float(expert_parallel), float(data_parallel)
    )
    refuse_illegal(served, Layout(target, sharding, weight_dtype or "auto", kv_format), rules)
    spec = ReplicaSpec(
        network=served,
        device=target,
        efficiency=_efficiency(target, calibration),
        profile=rules,
        sharding=sharding,
        kv_format=kv_format,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        gpu_memory_utilization=gpu_memory_utilization,
    )
    return Asked(
        spec,
        (
            *assumptions,
            *layout_assumptions(served, rules.memory),
            *format_assumptions,
            *rules.assumptions,
            *host_assumptions,
            *_memory_assumptions(target),
        ),
        (*_warnings(network, max_model_len), *host_warnings),
    )


def _efficiency(target: Device, calibration: Path | None) -> Efficiency:
    if calibration is None:
        return efficiency_for(target)
    return efficiency_from_calibration(calibration, target)


def _memory_assumptions(target: Device) -> tuple[Assumption, ...]:
    if target.reported_memory_bytes is not None:
        return ()
    return (
        Assumption(
            f"the memory that a process is given on {target.name}, from the datasheet less what drivers keep",
            "memory.engine_total in a hardware YAML of your own",
        ),
    )


def _warnings(network: Network, max_model_len: int | None) -> tuple[str, ...]:
    limit = network.max_context_tokens
    if max_model_len is None or limit is None or max_model_len <= limit:
        return ()
    return (f"context {max_model_len} is over the model's maximum of {limit} tokens",)
