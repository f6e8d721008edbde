"""Many replicas at once: memory and step times of every layout of one network, as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capplan.engine.lookup import scheduling
from capplan.engine.profile import EngineProfile
from capplan.hardware.device import Device
from capplan.hardware.efficiency import Efficiency
from capplan.memory.budget import memory_plan
from capplan.memory.capacity import engine_reserved_bytes_per_sequence, token_capacity
from capplan.memory.plan import MemoryPlan
from capplan.memory.usable import engine_memory_bytes, has_fast_links, padded_inputs_multiple
from capplan.model.network import Network
from capplan.model.sharding import Sharding
from capplan.model.weight_format import kv_bytes_per_element
from capplan.numbers import Array
from capplan.phases.rates import stacked_rates
from capplan.replica.rates import step_rates
from capplan.replica.tables import context_bends, device_tables, step_knots, with_host
from capplan.serving.step_table import StepTable


@dataclass(frozen=True, slots=True)
class Settings:
    """What all plans of a search share."""

    profile: EngineProfile
    kv_format: str
    max_model_len: int
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """Scheduler limits of each plan, for its whole replica."""

    max_num_seqs: Array
    max_num_batched_tokens: Array


def _columns(shardings: Sequence[Sharding], shape: tuple[int, ...]) -> Sharding:
    def column(name: str) -> Array:
        return np.array([float(getattr(s, name)) for s in shardings]).reshape(shape)

    return Sharding(column("tensor"), column("pipeline"), column("expert"), column("data"))


def plan_limits(devices: Sequence[Device], shardings: Sequence[Sharding], settings: Settings) -> PlanLimits:
    """Return how many sequences and tokens a step of each plan takes; groups and stages have batches of their own."""
    rows = [
        scheduling(
            settings.profile,
            engine_memory_bytes(device),
            device.architecture,
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
        )
        for device in devices
    ]
    data = np.array([float(s.data) for s in shardings])
    stages = np.array([float(s.pipeline) for s in shardings])
    return PlanLimits(
        max_num_seqs=np.array([row.max_num_seqs for row in rows]) * data,
        max_num_batched_tokens=np.array([row.max_num_batched_tokens for row in rows]) * data * stages,
    )


def plans_memory(
    network: Network, devices: Sequence[Device], shardings: Sequence[Sharding], settings: Settings
) -> MemoryPlan:
    """Return the memory of one device of every plan, arrays over plans."""
    limits = plan_limits(devices, shardings, settings)
    columns = _columns(shardings, (len(shardings),))
    return memory_plan(
        network,
        columns,
        np.array([engine_memory_bytes(device) for device in devices]),
        settings.profile,
        kv_bytes_per_element(settings.kv_format),
        float(settings.max_model_len),
        limits.max_num_seqs / columns.data,
        limits.max_num_batched_tokens / (columns.data * columns.pipeline),
        settings.gpu_memory_utilization,
        fast_links=np.array([has_fast_links(device) for device in devices]),
        padded_inputs=np.array([padded_inputs_multiple(device) for device in devices]),
    )


def plans_cache_tokens(
    network: Network,
    devices: Sequence[Device],
    shardings: Sequence[Sharding],
    settings: Settings,
    memory: MemoryPlan,
    context_tokens: float,
) -> Array:
    """Return the tokens that the caches of the whole replicas hold in sequences of one length, by plan."""
    limits = plan_limits(devices, shardings, settings)
    columns = _columns(shardings, (len(shardings),))
    reserved = engine_reserved_bytes_per_sequence(
        network,
        columns,
        settings.profile,
        context_tokens,
        kv_bytes_per_element(settings.kv_format),
        limits.max_num_batched_tokens / (columns.data * columns.pipeline),
    )
    tokens = token_capacity(memory.kv_bytes_available, reserved, context_tokens) * columns.data
    held: Array = np.maximum(tokens, 0.0)
    return held


def plans_tables(
    network: Network,
    devices: Sequence[Device],
    efficiencies: Sequence[Efficiency],
    shardings: Sequence[Sharding],
    settings: Settings,
) -> tuple[StepTable, list[str]]:
    """Return the step tables of every plan, with a leading axis of plans, and each plan's label."""
    unique = list(
        {device.name: (device, own) for device, own in zip(devices, efficiencies, strict=True)}.values()
    )
    labelled = [
        step_rates(network, device, own, profile=settings.profile, kv_format=settings.kv_format)
        for device, own in unique
    ]
    place = {device.name: i for i, (device, _) in enumerate(unique)}
    index = np.array([place[device.name] for device in devices], dtype=np.intp).reshape(-1, 1, 1)
    limits = plan_limits(devices, shardings, settings)
    knots = step_knots(
        float(limits.max_num_seqs.max()),
        float(limits.max_num_batched_tokens.max()),
        settings.max_model_len,
        context_bends(network),
    )
    tables = device_tables(
        network,
        _columns(shardings, (-1, 1, 1)),
        stacked_rates([entry.rates for entry in labelled], index),
        kv_bytes_per_element(settings.kv_format),
        knots,
    )
    labels: list[str] = [labelled[i].label for i in index.ravel()]
    return with_host(tables, settings.profile.host, len(network.layers)), labels
