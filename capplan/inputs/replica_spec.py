"""The serving flags of a command -> the replica that they ask for."""

from dataclasses import dataclass
from pathlib import Path

from capplan.assumption import Assumption, assumption_of
from capplan.engine.lookup import profile, refuse_unsupported, scheduling
from capplan.errors import InputError
from capplan.fleet.candidates import Layout, layout_reason
from capplan.hardware.device import Device
from capplan.hardware.efficiency import Efficiency
from capplan.inputs.efficiency import efficiency_for
from capplan.inputs.hardware import device
from capplan.inputs.model import read_model
from capplan.memory.usable import engine_memory_bytes
from capplan.model.network import Network
from capplan.model.sharding import Sharding
from capplan.model.weight_format import kv_bytes_per_element, stored_dtypes, weight_format_assumptions
from capplan.replica.spec import ReplicaSpec, served_context_tokens


@dataclass(frozen=True, slots=True)
class ServingFlags:
    """What people say of a replica on the command line; None takes the default."""

    model: str
    hardware: str
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    data_parallel: int = 1
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    engine: str = "vllm"
    engine_version: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    calibration: Path | None = None
    revision: str | None = None
    offline: bool = False


@dataclass(frozen=True, slots=True)
class AskedReplica:
    """The replica, what was assumed to get there, and what a reader should be warned of."""

    spec: ReplicaSpec
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]


def efficiency_of(gpu: Device, calibration: Path | None) -> Efficiency:
    """Return the fitted numbers of a device: those of a calibration file where one is given, else the shipped ones."""
    if calibration is None:
        return efficiency_for(gpu)
    from capplan.inputs.calibration import efficiency_from_calibration

    return efficiency_from_calibration(calibration, gpu)


def kv_format_of(network: Network, asked: str | None) -> tuple[str, Assumption | None]:
    """Return the KV dtype and, where nobody asked for one, the assumption behind it."""
    if asked is not None:
        kv_bytes_per_element(asked)
        return asked, None
    if network.kv_format:
        return network.kv_format, Assumption(
            f"KV cache in {network.kv_format}, as the checkpoint asks", "--kv-dtype"
        )
    chosen = network.activation_format
    return chosen, Assumption(f"KV cache in {chosen}, the dtype of the activations", "--kv-dtype")


def asked_replica(flags: ServingFlags) -> AskedReplica:
    """Return the replica that the flags ask for; InputError where it cannot be built."""
    shipped = read_model(flags.model, revision=flags.revision, offline=flags.offline)
    network = shipped
    assumed: list[Assumption] = []
    if flags.weight_dtype:
        network = read_model(
            flags.model, revision=flags.revision, offline=flags.offline, weight_dtype=flags.weight_dtype
        )
        assumed += [assumption_of(text) for text in weight_format_assumptions(shipped, flags.weight_dtype)]
    gpu = device(flags.hardware)
    kv_format, kv_assumption = kv_format_of(network, flags.kv_dtype)
    assumed += [kv_assumption] if kv_assumption else []
    engine = profile(flags.engine, flags.engine_version)
    assumed += [assumption_of(text) for text in engine.assumptions]
    sharding = Sharding(
        float(flags.tensor_parallel),
        float(flags.pipeline_parallel),
        float(flags.expert_parallel),
        float(flags.data_parallel),
    )
    reason = layout_reason(network, Layout(gpu, sharding, "auto", kv_format), engine)
    if reason:
        raise InputError(f"{network.name} on {gpu.name}: {reason}")
    for dtype in sorted(stored_dtypes(network)):
        refuse_unsupported(engine, gpu.architecture, weight_dtype=dtype)
    spec = ReplicaSpec(
        network=network,
        device=gpu,
        efficiency=efficiency_of(gpu, flags.calibration),
        profile=engine,
        sharding=sharding,
        kv_format=kv_format,
        max_model_len=flags.max_model_len,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        gpu_memory_utilization=flags.gpu_memory_utilization,
    )
    return AskedReplica(spec, (*assumed, *_default_limits(spec)), _warnings(spec))


def _default_limits(spec: ReplicaSpec) -> list[Assumption]:
    """Return the limits that the engine chose because nobody did."""
    own = scheduling(
        spec.profile,
        engine_memory_bytes(spec.device),
        spec.device.architecture,
        max_model_len=served_context_tokens(spec),
    )
    version = f"{spec.profile.engine} {spec.profile.version}"
    lines = []
    if spec.max_num_seqs is None:
        lines.append(
            Assumption(f"max_num_seqs {own.max_num_seqs}, the default of {version}", "--max-num-seqs")
        )
    if spec.max_num_batched_tokens is None:
        tokens = own.max_num_batched_tokens
        lines.append(
            Assumption(
                f"max_num_batched_tokens {tokens}, the default of {version}", "--max-num-batched-tokens"
            )
        )
    if spec.max_model_len is None:
        tokens = served_context_tokens(spec)
        lines.append(
            Assumption(f"max_model_len {tokens}, the longest context of the model", "--max-model-len")
        )
    return lines


def _warnings(spec: ReplicaSpec) -> tuple[str, ...]:
    longest = spec.network.max_context_tokens
    if spec.max_model_len and longest and spec.max_model_len > longest:
        return (
            f"max_model_len {spec.max_model_len} is over the model's longest context of {longest} tokens",
        )
    return ()
