"""Whether one replica fits: the memory budget of a device, the sequences it holds, and changes that make it fit."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capplan.fleet.search.candidates import Layout, layout_reason
from capplan.hardware.device import Device, engine_memory_bytes
from capplan.hardware.weight_kernel import multiplies
from capplan.memory.capacity import stages_of
from capplan.memory.plan import TOO_MANY_SEQUENCES, MemoryPlan
from capplan.model.network import Network
from capplan.model.sharding import Sharding, adapter_bytes_per_rank
from capplan.model.weight_format import FORMATS, in_weight_format, kv_bytes_per_element
from capplan.replica.plans import engine_scheduling, tightest_card
from capplan.replica.replica import memory_of
from capplan.replica.spec import ReplicaSpec, served_context_tokens

_DEGREES = (1, 2, 4, 8, 16, 32, 64)
_WEIGHTS = ("fp8", "int8", "nvfp4", "mxfp4", "int4")
_CACHES = ("fp8", "int8")
_SHORTEST_CONTEXT = 512
"""A shorter context than this is not suggested."""
_FEWEST_STEP_TOKENS = 512
"""Steps of fewer tokens than this are not suggested."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The memory of one replica."""

    spec: ReplicaSpec
    plan: MemoryPlan
    fits: bool
    device_memory_bytes: float
    """Total that a process sees."""
    longest_context_tokens: int
    """Longest context of a single sequence, at most the model's maximum."""
    changes: tuple[dict[str, Any], ...] = ()
    """Rows of the smallest changes that would make it fit: command-line flags, GPUs and sequences of the maximum context; none if it fits."""


def fit(spec: ReplicaSpec, others: Sequence[Device] = ()) -> Fit:
    """Return the memory of a replica and, if it does not fit, the changes that would make it fit.

    Parameters
    ----------
    spec : the replica
    others : devices to suggest if this one is too small

    Returns
    -------
    bytes [B] of the fullest device, sequences [-], contexts [tokens]
    """
    plan = memory_of(spec)
    fits = bool(plan.fits)
    return Fit(
        spec=spec,
        plan=plan,
        fits=fits,
        device_memory_bytes=engine_memory_bytes(tightest_card(spec)[0].device),
        longest_context_tokens=longest_context_tokens(spec),
        changes=() if fits else changes_that_fit(spec, others),
    )


def longest_context_tokens(spec: ReplicaSpec) -> int:
    """Return the longest context that fits for a single sequence, at most the model's maximum; 0 if none fits.

    Parameters
    ----------
    spec : the replica; its `max_model_len` is ignored

    Returns
    -------
    [tokens]
    """
    most = spec.network.max_context_tokens or served_context_tokens(spec)

    def overflows(tokens: int) -> bool:
        return not bool(memory_of(replace(spec, max_model_len=tokens)).fits)

    return most if not overflows(most) else bisect_left(range(1, most), True, key=overflows)


def adapter_bytes_on_fullest_rank(network: Network, sharding: Sharding) -> float:
    """Return the bytes of one LoRA adapter on a device of the pipeline stage that holds most of it [B]."""
    stages = stages_of(network, int(sharding.pipeline))
    return max(float(adapter_bytes_per_rank(stage.network, sharding)) for stage in stages)


def changes_that_fit(spec: ReplicaSpec, others: Sequence[Device] = ()) -> tuple[dict[str, Any], ...]:
    """Return the smallest change of each kind that makes a replica fit; a pair of changes if no single one does.

    Parameters
    ----------
    spec : a replica that does not fit
    others : devices to suggest

    Returns
    -------
    changes, fewest devices first
    """
    kinds = [
        list(_wider(spec)),
        list(_lighter_weights(spec)),
        list(_lighter_caches(spec)),
        list(_larger(spec, others)),
    ]
    alone = [change for kind in kinds if (change := _first_that_fits(kind))]
    shorter = longest_context_tokens(spec)
    if _SHORTEST_CONTEXT <= shorter < served_context_tokens(spec):
        tokens = shorter - shorter % 16 or shorter
        alone.append(_change(f"--max-model-len {tokens}", replace(spec, max_model_len=tokens)))
    if (fewer := _fewer_sequences(spec)) is not None:
        alone.append(fewer)
    if (smaller := _first_that_fits(list(_smaller_steps(spec)))) is not None:
        alone.append(smaller)
    if alone:
        return tuple(sorted(alone, key=lambda change: float(change["gpus"])))
    pairs = [
        (f"{first} {second}", both)
        for first, changed in kinds[0]
        for second, both in (*_lighter_weights(changed), *_larger(changed, others))
    ]
    pairs.sort(key=lambda pair: pair[1].devices)
    both = _first_that_fits(pairs)
    return (both,) if both else ()


def _fewer_sequences(spec: ReplicaSpec) -> dict[str, Any] | None:
    """Return the most sequences per step with which a hybrid model starts; None where that is not what fails."""
    plan = memory_of(spec)
    if int(plan.limit_codes) != TOO_MANY_SEQUENCES:
        return None
    most = int(plan.state_blocks)
    return _first_that_fits([(f"--max-num-seqs {most}", replace(spec, max_num_seqs=most))])


def _smaller_steps(spec: ReplicaSpec) -> Iterator[tuple[str, ReplicaSpec]]:
    """Yield the replica with fewer tokens in a step, where it splits prompts: halves of the default, the largest first."""
    if not spec.profile.chunked:
        return
    tokens = engine_scheduling(spec).max_num_batched_tokens
    while (tokens := tokens // 2) >= _FEWEST_STEP_TOKENS:
        smaller = replace(spec, max_num_batched_tokens=tokens)
        if spec.max_num_seqs is None:
            smaller = replace(smaller, max_num_seqs=min(tokens, engine_scheduling(spec).max_num_seqs))
        yield f"--max-num-batched-tokens {tokens}", smaller


def _first_that_fits(variants: Sequence[tuple[str, ReplicaSpec]]) -> dict[str, Any] | None:
    for flags, variant in variants:
        if _is_legal(variant) and bool(memory_of(variant).fits):
            return _change(flags, variant)
    return None


def _change(flags: str, spec: ReplicaSpec) -> dict[str, Any]:
    concurrency = int(spec.sharding.data) * float(memory_of(spec).max_concurrency)
    return {"change": flags, "gpus": spec.devices, "max_concurrency": concurrency}


def _is_legal(spec: ReplicaSpec) -> bool:
    layout = Layout(spec.device, spec.sharding, _largest_dtype(spec), spec.kv_format)
    return layout_reason(spec.network, layout, spec.profile) is None


def _largest_dtype(spec: ReplicaSpec) -> str:
    """Return the dtype of most weights, which the device must support."""
    sizes: dict[str, int] = {}
    for layer in spec.network.layers:
        for projection in layer.projections:
            dtype = FORMATS[projection.weight_format].dtype
            sizes[dtype] = sizes.get(dtype, 0) + projection.parameters
        if layer.experts:
            dtype = FORMATS[layer.experts.weight_format].dtype
            sizes[dtype] = sizes.get(dtype, 0) + layer.experts.parameters
    return max(sizes, key=sizes.__getitem__, default=spec.network.activation_format)


def _wider(spec: ReplicaSpec) -> Iterator[tuple[str, ReplicaSpec]]:
    sharding = spec.sharding
    for degree in _DEGREES:
        if degree > sharding.tensor:
            wide = Sharding(float(degree), sharding.pipeline, sharding.expert, sharding.data)
            yield f"--tensor-parallel {degree}", replace(spec, sharding=wide)


def _lighter_weights(spec: ReplicaSpec) -> Iterator[tuple[str, ReplicaSpec]]:
    held = FORMATS[_largest_dtype(spec)].bytes_per_element
    for dtype in _WEIGHTS:
        if FORMATS[dtype].bytes_per_element < 0.9 * held and multiplies(spec.device, dtype):
            lighter = in_weight_format(spec.network, dtype)
            yield f"--weight-dtype {dtype}", replace(spec, network=lighter)


def _lighter_caches(spec: ReplicaSpec) -> Iterator[tuple[str, ReplicaSpec]]:
    held = kv_bytes_per_element(spec.kv_format)
    for dtype in _CACHES:
        if kv_bytes_per_element(dtype) < held:
            yield f"--kv-dtype {dtype}", replace(spec, kv_format=dtype)


def _larger(spec: ReplicaSpec, others: Sequence[Device]) -> Iterator[tuple[str, ReplicaSpec]]:
    memory_bytes = engine_memory_bytes(spec.device)
    larger = [
        device
        for device in others
        if engine_memory_bytes(device) > memory_bytes and device.vendor == spec.device.vendor
    ]
    for device in sorted(larger, key=engine_memory_bytes):
        yield f"--hardware {device.name}", replace(spec, device=device)
