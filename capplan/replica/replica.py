"""One replica: what it holds and how long its steps take. Everything that predicts passes through here."""

from dataclasses import dataclass

import numpy as np

from capplan.assumption import Label
from capplan.engine.profile import Scheduling
from capplan.errors import DoesNotFitError
from capplan.memory.budget import memory_plan
from capplan.memory.capacity import engine_reserved_bytes_per_sequence, token_capacity
from capplan.memory.plan import MemoryPlan
from capplan.memory.usable import engine_memory_bytes, has_fast_links, padded_inputs_multiple
from capplan.model.sharding import Sharding
from capplan.model.weight_format import kv_bytes_per_element
from capplan.replica.rates import LabelledRates, step_rates
from capplan.replica.spec import ReplicaSpec, scheduling_of, served_context_tokens
from capplan.replica.tables import (
    DeviceTables,
    context_bends,
    device_tables,
    step_knots,
    table_of_plan,
    with_host,
)
from capplan.serving.step_table import StepTable


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica that runs: its step times, its scheduler, its cache."""

    spec: ReplicaSpec
    memory: MemoryPlan
    scheduling: Scheduling
    table: StepTable
    device_tables: DeviceTables
    """Step times without the host: what a fit of host times starts from."""
    kv_blocks: int
    """Blocks of `scheduling.block_tokens` tokens in the cache of the whole replica."""
    rates: LabelledRates

    @property
    def label(self) -> Label:
        """Return measured where every kernel was fitted on this device, else assumed."""
        return self.rates.label


def memory_of(spec: ReplicaSpec) -> MemoryPlan:
    """Return what one device of the replica holds."""
    own = scheduling_of(spec)
    groups = int(spec.sharding.data)
    return memory_plan(
        spec.network,
        spec.sharding,
        engine_memory_bytes(spec.device),
        spec.profile,
        kv_bytes_per_element=kv_bytes_per_element(spec.kv_format),
        max_model_len=served_context_tokens(spec),
        max_num_seqs=own.max_num_seqs // groups,
        max_num_batched_tokens=own.max_num_batched_tokens // (groups * int(spec.sharding.pipeline)),
        gpu_memory_utilization=spec.gpu_memory_utilization,
        fast_links=has_fast_links(spec.device),
        padded_inputs=padded_inputs_multiple(spec.device),
    )


def cubed(sharding: Sharding) -> Sharding:
    """Return the parallelism as arrays of shape (1, 1, 1), as step tables want it."""
    return Sharding(
        *(
            np.full((1, 1, 1), float(np.asarray(value)))
            for value in (sharding.tensor, sharding.pipeline, sharding.expert, sharding.data)
        )
    )


def device_tables_of(spec: ReplicaSpec, rates: LabelledRates, own: Scheduling) -> DeviceTables:
    """Return the step times of the replica's device, without its host."""
    longest, bends = served_context_tokens(spec), context_bends(spec.network)
    knots = step_knots(own.max_num_seqs, own.max_num_batched_tokens, longest, bends)
    kv_bytes = kv_bytes_per_element(spec.kv_format)
    return device_tables(
        spec.network, cubed(spec.sharding), rates.rates, kv_bytes, knots, offline=spec.offline
    )


def step_table_of(device: DeviceTables, spec: ReplicaSpec) -> StepTable:
    """Return the step times of the replica."""
    layers = len(spec.network.layers)
    return table_of_plan(with_host(device, spec.profile.host, layers, offline=spec.offline), 0)


def cache_tokens(spec: ReplicaSpec, memory: MemoryPlan) -> float:
    """Return the tokens that the cache of the whole replica holds in sequences of the usual length.

    For layers of one kind that is what the engine prints; for hybrid models the printed figure belongs to
    the maximum context.
    """
    longest = served_context_tokens(spec)
    context = float(min(spec.typical_context_tokens or longest, longest))
    groups = float(np.asarray(spec.sharding.data))
    step_tokens = scheduling_of(spec).max_num_batched_tokens / (
        groups * float(np.asarray(spec.sharding.pipeline))
    )
    reserved = engine_reserved_bytes_per_sequence(
        spec.network, spec.sharding, spec.profile, context, kv_bytes_per_element(spec.kv_format), step_tokens
    )
    return float(np.asarray(token_capacity(memory.kv_bytes_available, reserved, context))) * groups


def replica_of(spec: ReplicaSpec) -> Replica:
    """Return the running replica, or raise the error that says why it does not fit."""
    memory = memory_of(spec)
    own = scheduling_of(spec)
    room = float(np.asarray(memory.kv_bytes_available)) > 0
    blocks = int(cache_tokens(spec, memory)) // own.block_tokens if room else 0
    if blocks < 1:
        reasons = "; ".join(memory.limits) or "no room for the KV cache"
        raise DoesNotFitError(
            f"{spec.network.name} does not fit on {spec.devices} x {spec.device.name}: {reasons}\n"
            f"  see what would make it fit: capplan fit"
        )
    rates = step_rates(
        spec.network,
        spec.device,
        spec.efficiency,
        profile=spec.profile,
        kv_format=spec.kv_format,
    )
    device = device_tables_of(spec, rates, own)
    return Replica(spec, memory, own, step_table_of(device, spec), device, blocks, rates)
