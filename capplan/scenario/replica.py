"""The serving flags of a command line -> one replica, checked before anything is computed."""

from dataclasses import dataclass
from pathlib import Path

from capplan.assumption import Assumption
from capplan.engine.lookup import profile
from capplan.errors import InputError
from capplan.families.head import pooled
from capplan.fleet.scenario import LoraTerms
from capplan.fleet.search.candidates import Layout, refuse_illegal
from capplan.hardware.device import Device
from capplan.hardware.efficiency import Efficiency
from capplan.hardware.weight_kernel import no_kernel_reason
from capplan.memory.layer_groups import narrow_states
from capplan.memory.plan import cache_dtype
from capplan.memory.pool import layout_assumptions
from capplan.model.network import Network
from capplan.model.sharding import Sharding
from capplan.model.weight_format import in_weight_format, stored_formats, weight_format_assumptions
from capplan.readers.calibration.host import refitted_profile
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import named_device
from capplan.readers.catalogue.model import read_model
from capplan.replica.spec import ReplicaSpec, network_as_served, profile_as_served
from capplan.scenario.flags import ServingFlags
from capplan.scenario.records.lora import DEFAULT_RANK, adapter_assumptions, with_adapters
from capplan.scenario.records.traffic_line import ANSWERED, UNMEASURED


@dataclass(frozen=True, slots=True)
class Asked:
    """A replica, with the assumptions that complete it."""

    spec: ReplicaSpec
    assumptions: tuple[Assumption, ...] = ()
    warnings: tuple[str, ...] = ()


def asked_replica(model: str, hardware: str, flags: ServingFlags) -> Asked:
    """Return the replica that the flags describe.

    Parameters
    ----------
    model : path, shipped id or alias, or hub id
    hardware : catalogue name or alias, or path of a hardware YAML
    flags : how it is sharded, stored and run; parallelism that the model cannot be split by is refused

    Returns
    -------
    the replica, its assumptions and warnings

    Raises
    ------
    InputError
        A name is unknown, a file is unreadable, or the replica cannot be built.
    """
    weight_dtype = flags.weight_dtype
    network = read_model(model, revision=flags.revision, offline=flags.offline)
    network = pooled(network) if flags.runner == "pooling" else network
    rules = profile_as_served(profile(flags.engine, flags.engine_version), network, flags.chunked_prefill)
    _refuse_short_steps(flags, network)
    target = named_device(hardware, flags.calibration)
    rules, host_assumptions, host_warnings = refitted_profile(flags.calibration, rules, target)
    format_assumptions = weight_format_assumptions(network, weight_dtype) if weight_dtype else ()
    served = network_as_served(in_weight_format(network, weight_dtype) if weight_dtype else network, rules)
    served = _with_adapters(served, flags)
    kv_format, assumptions = cache_dtype(network, flags.kv_dtype)
    sharding = _sharding(flags)
    refuse_illegal(served, Layout(target, sharding, weight_dtype or "auto", kv_format), rules)
    spec = ReplicaSpec(
        network=served,
        device=target,
        efficiency=_efficiency(target, flags.calibration),
        profile=rules,
        sharding=sharding,
        kv_format=kv_format,
        max_model_len=flags.max_model_len,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        gpu_memory_utilization=flags.gpu_memory_utilization,
    )
    return Asked(
        spec,
        (
            *assumptions,
            *network.doubts,
            *layout_assumptions(served, rules.memory),
            *narrow_states(served, rules.memory, rules.engine),
            *format_assumptions,
            *_served_assumptions(served),
            *rules.assumptions,
            *host_assumptions,
            *_memory_assumptions(target),
        ),
        (*_warnings(served, flags.max_model_len), *_shared_ranks(flags), *host_warnings),
    )


def _refuse_short_steps(flags: ServingFlags, network: Network) -> None:
    """Raise the error for steps that never take the longest prompts, which are not cut into chunks."""
    budget, context = flags.max_num_batched_tokens, flags.max_model_len
    if network.whole_prompts:
        context = context or network.max_context_tokens
    whole = network.whole_prompts or flags.chunked_prefill is False
    if whole and budget is not None and context is not None and budget < context:
        raise InputError(
            f"--max-num-batched-tokens: {budget} is below the context of {context}, and prompts are not cut into chunks, "
            "so the longest would never start"
        )


def _with_adapters(network: Network, flags: ServingFlags) -> Network:
    """Return the network with the adapters of the flags, one for each slot."""
    if flags.max_loras is None:
        if flags.max_lora_rank is not None:
            raise InputError(
                "--max-lora-rank: is that of the slots, and there are none; e.g. --max-loras 8, or leave it out"
            )
        return network
    rank, modules = flags.max_lora_rank or DEFAULT_RANK, flags.lora_modules
    terms = LoraTerms(flags.max_loras, flags.max_loras, rank, modules, flags.fully_sharded_loras)
    return with_adapters(network, terms)


def _sharding(flags: ServingFlags) -> Sharding:
    degrees = (flags.tensor_parallel, flags.pipeline_parallel, flags.expert_parallel, flags.data_parallel)
    return Sharding(*map(float, degrees))


def _served_assumptions(network: Network) -> tuple[Assumption, ...]:
    """Return what is assumed about a network that is served for vectors or scores, or with adapters."""
    answered = (Assumption(ANSWERED, "--runner"), Assumption(UNMEASURED, "--calibration"))
    return (*(answered if network.pooled else ()), *adapter_assumptions(network, "--max-loras"))


def _efficiency(target: Device, calibration: Path | None) -> Efficiency:
    if calibration is None:
        return efficiency_for(target)
    from capplan.readers.calibration.measured_device import efficiency_from_calibration

    return efficiency_from_calibration(calibration, target)


def _memory_assumptions(target: Device) -> tuple[Assumption, ...]:
    if target.reported_memory_bytes is not None:
        return ()
    return (
        Assumption(
            f"memory visible to a process on {target.name}: that of the datasheet, less a typical driver reserve",
            "memory.engine_total in your own hardware YAML",
        ),
    )


def _shared_ranks(flags: ServingFlags) -> tuple[str, ...]:
    """Return what SGLang means by the same numbers: its attention groups divide the tensor-parallel ranks, here they multiply them."""
    tensor, data = flags.tensor_parallel, flags.data_parallel
    if flags.engine != "sglang" or min(tensor, data) < 2 or tensor % data:
        return ()
    devices = tensor * data * flags.pipeline_parallel
    return (
        f"--tensor-parallel {tensor} --data-parallel {data} are {devices} devices here: {data} attention groups of {tensor} ranks; "
        f"SGLang's --tp-size {tensor} --dp-size {data} --enable-dp-attention, which share {tensor} devices, are "
        f"--tensor-parallel {tensor // data} --data-parallel {data}",
    )


def _warnings(network: Network, max_model_len: int | None) -> tuple[str, ...]:
    limit = network.max_context_tokens
    said = []
    if max_model_len is not None and limit is not None and max_model_len > limit:
        said.append(f"max_model_len {max_model_len} exceeds the model's maximum of {limit} tokens")
    alone = next(filter(None, map(no_kernel_reason, stored_formats(network))), "")
    if alone:
        said.append(f"memory alone is modelled with these weights, not speed: {alone}")
    return tuple(said)
