"""What `capplan fit` shows: the waterfall of one device, and what it leaves for sequences."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from capplan.assumption import Assumption
from capplan.fleet.fit import Fit, adapter_bytes_on_fullest_rank
from capplan.model.adapters import network_adapter_elements
from capplan.replica.plans import engine_scheduling, replica_scheduling
from capplan.replica.spec import served_context_tokens
from capplan.report.answer import Answer, Table

DOES_NOT_FIT = 3


def fit_answer(fit: Fit, assumptions: Sequence[Assumption], warnings: Sequence[str]) -> Answer:
    """Return the budget of the fullest device, the capacity, and what would make it fit where it does not."""
    figures = _figures(fit)
    spec = fit.spec
    place = f"{spec.devices} x {spec.device.name}"
    verdict = "fits" if fit.fits else "does not fit"
    changes = [asdict(change) for change in fit.changes]
    steps = waterfall(fit)
    hidden = _IN_WATERFALL | (_OF_CACHES if spec.network.bidirectional else set())
    tables = [
        Table([figures], upright=True, shown=tuple(k for k in figures if k not in hidden), titles=_TITLES),
        Table(steps, title="Memory of one GPU"),
    ]
    if changes:
        tables.append(Table(changes, title="Any of these makes it fit"))
    closing = (
        ()
        if fit.fits or changes
        else ("no single change and no pair of changes makes it fit on one link domain",)
    )
    return Answer(
        command="fit",
        result={**figures, "limits": list(fit.plan.limits), "changes": changes, "waterfall": steps},
        tables=tuple(tables),
        headline=f"{spec.network.name} {verdict} on {place}",
        closing=(*(f"limit: {limit}" for limit in fit.plan.limits), *closing),
        assumptions=tuple(assumptions),
        warnings=tuple(warnings),
        exit_code=0 if fit.fits else DOES_NOT_FIT,
    )


def _figures(fit: Fit) -> dict[str, Any]:
    plan, spec = fit.plan, fit.spec
    scheduling = replica_scheduling(engine_scheduling(spec), spec.sharding)
    amounts = {
        name: float(np.asarray(getattr(plan, name)))
        for name in (
            "weight_bytes", "activation_bytes", "non_torch_bytes", "cuda_graph_bytes", "usable_bytes",
            "kv_bytes_available", "kv_cache_tokens", "max_concurrency", "reserved_bytes_per_sequence",
        )
    }  # fmt: skip
    return {
        "fits": fit.fits,
        "model": spec.network.name,
        "hardware": spec.device.name,
        "gpus": spec.devices,
        "engine": spec.profile.engine,
        "engine_version": spec.profile.asked_version or spec.profile.version,
        "kv_dtype": spec.kv_format,
        "max_model_len": served_context_tokens(spec),
        "max_num_seqs": scheduling.max_num_seqs,
        "max_num_batched_tokens": scheduling.max_num_batched_tokens,
        "device_memory_bytes": fit.device_memory_bytes,
        "usable_bytes_per_gpu": amounts["usable_bytes"],
        "weight_bytes_per_gpu": amounts["weight_bytes"],
        "activation_bytes_per_gpu": amounts["activation_bytes"],
        "non_torch_bytes_per_gpu": amounts["non_torch_bytes"],
        "cuda_graph_bytes_per_gpu": amounts["cuda_graph_bytes"],
        "kv_bytes_available_per_gpu": amounts["kv_bytes_available"],
        "kv_cache_tokens": 0 if spec.network.bidirectional else int(max(0.0, amounts["kv_cache_tokens"])),
        "max_concurrency": max(0.0, amounts["max_concurrency"]),
        "reserved_bytes_per_sequence": amounts["reserved_bytes_per_sequence"],
        "longest_context_tokens": fit.longest_context_tokens,
        **_adapter_figures(fit),
    }


def _adapter_figures(fit: Fit) -> dict[str, Any]:
    """Return the memory of LoRA adapters, and how many would fit next to one sequence; nothing without them."""
    network, plan = fit.spec.network, fit.plan
    if network.adapters is None:
        return {}
    each = adapter_bytes_on_fullest_rank(network, fit.spec.sharding)
    left = float(np.asarray(plan.kv_bytes_available)) - float(np.asarray(plan.reserved_bytes_per_sequence))
    return {
        "adapter_elements": network_adapter_elements(network, network.adapters),
        "adapter_bytes_per_gpu": each,
        "max_loras": network.adapters.slots,
        "lora_bytes_per_gpu": network.adapters.slots * each,
        "adapters_that_fit": max(int(network.adapters.slots + left / each), 0),
    }


_IN_WATERFALL = {
    "device_memory_bytes", "usable_bytes_per_gpu", "weight_bytes_per_gpu", "activation_bytes_per_gpu",
    "non_torch_bytes_per_gpu", "cuda_graph_bytes_per_gpu", "kv_bytes_available_per_gpu",
}  # fmt: skip
_OF_CACHES = {"kv_dtype", "kv_cache_tokens", "reserved_bytes_per_sequence"}
"""Figures that say nothing where nothing is cached."""
_TITLES = {
    "max_model_len": "maximum sequence length",
    "max_num_seqs": "maximum sequences per step",
    "max_num_batched_tokens": "maximum tokens per step",
    "kv_cache_tokens": "capacity of the KV cache",
    "max_concurrency": "concurrent sequences of maximum length",
}


def waterfall(fit: Fit) -> list[dict[str, Any]]:
    """Return what comes off the device's memory, line by line, down to the cache, in the order of the engine."""
    plan, rules = fit.plan, fit.spec.profile.memory
    total = fit.device_memory_bytes
    available = float(np.asarray(plan.kv_bytes_available))
    runtime = ("kernels, handles, collectives", -float(np.asarray(plan.non_torch_bytes)))
    weights = ("weights", -float(np.asarray(plan.weight_bytes)))
    activations = ("peak activations", -float(np.asarray(plan.activation_bytes)))
    if rules.budget == "utilisation":
        expected = rules.budgeted_graph_fraction * float(np.asarray(plan.cuda_graph_bytes))
        graphs = [("CUDA graphs, as the engine estimates them", -expected)] if expected else []
        kept = ("kept free by the memory fraction", float(np.asarray(plan.usable_bytes)) - total)
        steps = [kept, weights, activations, runtime, *graphs]
    elif rules.budget == "static_fraction":
        reserved = float(np.asarray(plan.usable_bytes)) - total - runtime[1]
        steps = [runtime, ("set aside for activations and CUDA graphs", reserved), weights]
    else:
        left = total + runtime[1] + weights[1] + activations[1]
        steps = [runtime, weights, activations, ("kept free by the memory fraction", available - left)]
    left_bytes = total
    rows = [{"what": "visible to a process", "memory_bytes": total, "left_bytes": total}]
    for what, amount in steps:
        left_bytes += amount
        rows.append({"what": what, "memory_bytes": amount, "left_bytes": left_bytes})
    rest = "free: an encoder has no KV cache" if fit.spec.network.bidirectional else "KV cache"
    return [*rows, {"what": rest, "memory_bytes": available, "left_bytes": None}]
