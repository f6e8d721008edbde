"""Replica.

What `capplan kv-size` shows.

What `capplan model` shows.

What `capplan hardware` and `capplan list` show of what is known.

What commands show of one replica: what it delivers (`estimate`), what its memory holds (`fit`), and what drafts gain (`spec`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from capplan.accuracy.bounded import BoundedEstimate
from capplan.accuracy.intervals import LEAST_GROUPS, LEAST_SOURCES
from capplan.assumption import Assumption
from capplan.families.gguf import quantisation
from capplan.fleet.fit import Fit, adapter_bytes_on_fullest_rank
from capplan.hardware.device import Device
from capplan.memory.kv_size import KvSize, KvSizes
from capplan.model.adapters import network_adapter_elements
from capplan.model.network import Network
from capplan.model.parameters import summary, weight_bytes_by_class, weight_elements_by_class
from capplan.model.stored_tensor import StoredModel
from capplan.model.weight_format import in_weight_format, weight_format_assumptions
from capplan.replica.estimate import Estimate
from capplan.replica.plans import engine_scheduling, replica_scheduling
from capplan.replica.replica import Replica
from capplan.replica.spec import Load, ReplicaSpec, served_context_tokens
from capplan.replica.speculation import DraftModel, Speculation
from capplan.report.answer import Answer, Table, flattened

_KV_SIZE_SHOWN = (
    "context_tokens", "kv_bytes_per_token", "kv_bytes_per_sequence", "state_bytes_per_sequence",
    "engine_reserved_bytes_per_sequence", "kv_bytes_total", "kv_bytes_per_gpu", "engine_reserved_bytes_per_gpu",
)  # fmt: skip
_RESERVED = ("engine_reserved_bytes_per_sequence", "engine_reserved_bytes_per_gpu")
_RESTS_ON = {
    "kv_dtype": tuple(name for name in _KV_SIZE_SHOWN if "kv_bytes" in name or "reserved" in name),
    "max_num_batched_tokens": _RESERVED,
    "engine_version": _RESERVED,
}
"""Setting that was assumed -> the columns that rest on it."""
_KV_SIZE_TITLES = {
    "kv_bytes_per_token": "growth",
    "kv_bytes_per_sequence": "used",
    "engine_reserved_bytes_per_sequence": "allocated",
    "kv_bytes_total": "total",
    "kv_bytes_per_gpu": "used",
    "engine_reserved_bytes_per_gpu": "allocated",
}


def kv_answer(sizes: KvSizes) -> Answer:
    """Return the sizes, with a warning for each context longer than the model supports."""
    rows = [asdict(size) for size in sizes.rows]
    first, network, engine = sizes.rows[0], sizes.network, sizes.engine
    limit = network.max_context_tokens
    noun = "sequence" if first.sequences == 1 else "sequences"
    headline = (
        f"{network.name}: KV cache in {first.kv_dtype}, {first.sequences} {noun}, TP {first.tensor_parallel}"
    )
    if network.bidirectional:
        headline = f"{network.name}: no KV cache: an encoder reads a prompt whole and keeps nothing of it"
    columns = {name for a in sizes.assumptions for name in _RESTS_ON.get(a.key, ())}
    return Answer(
        command="kv-size",
        result={
            "model": network.name,
            "engine": engine.engine,
            "engine_version": engine.version,
            "rows": rows,
        },
        tables=(
            Table(
                rows,
                shown=_informative(sizes.rows),
                titles=_KV_SIZE_TITLES,
                assumed=frozenset((i, name) for i in range(len(rows)) for name in columns if rows[i][name]),
            ),
        ),
        headline=headline,
        assumptions=sizes.assumptions,
        warnings=tuple(
            f"a context of {size.context_tokens} tokens exceeds the model's maximum of {limit}"
            for size in sizes.rows
            if limit is not None and size.context_tokens > limit
        ),
    )


def _informative(sizes: Sequence[KvSize]) -> tuple[str, ...]:
    """Return the columns that say something: totals of one sequence on one device repeat what is there."""
    silent: set[str] = set()
    if not any(size.state_bytes_per_sequence for size in sizes):
        silent.add("state_bytes_per_sequence")
    if sizes[0].sequences == 1:
        silent.add("kv_bytes_total")
    if sizes[0].sequences == 1 and sizes[0].tensor_parallel == 1:
        silent |= {"kv_bytes_per_gpu", "engine_reserved_bytes_per_gpu"}
    return tuple(name for name in _KV_SIZE_SHOWN if name not in silent)


_MODEL_LISTED = (
    "model",
    "model_type",
    "layers",
    "parameters",
    "active_parameters",
    "weight_bytes",
    "max_context_tokens",
)


def models_answer(networks: Sequence[Network], refused: Sequence[str]) -> Answer:
    """Return the shipped models as one table."""
    rows = [asdict(summary(network)) for network in networks]
    return Answer(
        command="model",
        result={"models": rows, "not_modelled": list(refused)},
        tables=(Table(rows, shown=_MODEL_LISTED),),
        closing=(
            "any Hugging Face id or config.json of these families works too",
            *([f"known but not modelled: {', '.join(refused)}"] if refused else ()),
        ),
    )


def model_answer(network: Network, weight_dtype: str | None, stored: StoredModel | None) -> Answer:
    """Return a model's figures, and its weights by class of tensor.

    Parameters
    ----------
    network : as its config says
    weight_dtype : dtype to count the weights in; None keeps what the config says
    stored : the tensors of a GGUF file, where it was read from one
    """
    held = in_weight_format(network, weight_dtype) if weight_dtype else network
    assumptions = weight_format_assumptions(network, weight_dtype) if weight_dtype else ()
    figures = asdict(summary(held))
    elements, sizes = weight_elements_by_class(held), weight_bytes_by_class(held)
    classes = [
        {"tensor_class": name, "parameters": elements[name], "weight_bytes": sizes[name]} for name in elements
    ]
    return Answer(
        command="model",
        result={
            **figures,
            "tensor_classes": classes,
            "notes": list(network.notes),
            "keys_used": list(network.keys_used),
            **({"gguf": _file(stored)} if stored else {}),
        },
        tables=(
            Table([figures], upright=True, assumed=frozenset({(0, "weight_bytes")} if assumptions else ())),
            Table(classes, title="Weights by class of tensor"),
            *([Table(quantisation(stored), title="Tensors of the file by type")] if stored else []),
        ),
        headline=network.name,
        closing=tuple(f"note: {note}" for note in network.notes),
        assumptions=assumptions,
    )


def _file(stored: StoredModel) -> dict[str, Any]:
    """Return what a GGUF file holds: every tensor with its type and exact bytes."""
    tensors = [
        {
            "name": tensor.name,
            "weight_dtype": tensor.dtype or None,
            "shape": list(tensor.shape),
            "elements": tensor.elements,
            "weight_bytes": tensor.size_bytes,
        }
        for tensor in stored.tensors
    ]
    return {
        "architecture": stored.metadata.get("general.architecture"),
        "parts": stored.parts,
        "tensor_bytes": stored.tensor_bytes,
        "types": quantisation(stored),
        "tensors": tensors,
    }


if TYPE_CHECKING:
    from capplan.readers.catalogue.offer_terms import KnownMachine

_CATALOGUE_LISTED = (
    "name", "architecture", "memory_bytes", "memory_bytes_per_s", "peak_flop_per_s.bf16", "peak_flop_per_s.fp8",
    "peak_flop_per_s.fp4", "link", "link_bytes_per_s", "link_domain_devices", "tdp_w",
)  # fmt: skip
_FOOTNOTES = ("labels", "figure_sources", "sources", "traps", "partition", "emulated")
_SLICE = (
    "name",
    "per_device",
    "multiprocessors",
    "reported_memory_bytes",
    "memory_bytes_per_s",
    "peak_flop_per_s.bf16",
    "starts",
)
_CATALOGUE_TITLES = {
    "starts": "may begin at memory slice",
}


def devices_answer(devices: Sequence[Device]) -> Answer:
    """Return the catalogue as one table; figures without a source are starred."""
    rows = [_figures(device) for device in devices]
    assumed = frozenset(
        (index, name)
        for index, device in enumerate(devices)
        for name, label in device.labels.items()
        if label == "assumed"
    )
    return Answer(
        command="hardware",
        result={"devices": [asdict(device) for device in devices]},
        tables=(Table(rows, shown=_CATALOGUE_LISTED, titles=_CATALOGUE_TITLES, assumed=assumed),),
        closing=("rates are dense; capplan hardware NAME shows every figure with its source",),
        assumptions=(_unsourced("FILE.yaml"),) if assumed else (),
    )


def machine_answer(machine: "KnownMachine") -> Answer:
    """Return one machine: what it is, and its prices by region and commitment with their sources."""
    record = machine.record
    facts = {
        "machine": record.sku,
        "provider": machine.provider,
        "hardware": record.device,
        "gpus": record.gpus,
        "vcpus": record.vcpus,
        "memory_bytes": record.memory,
        "disk_bytes": record.disk,
        "network_bytes_per_s": record.network,
        "network_kind": record.network_kind,
        "link": record.link,
        "watts": record.power,
        "rack_units": record.rack_units,
        "usd_to_buy": record.purchase.price if record.purchase else None,
        "source": machine.sources.get(record.source or ""),
    }
    offers = [
        {
            "region": offer.region,
            "commitment": offer.commitment,
            "usd_per_hour": offer.price,
            "usd_per_gpu_hour": offer.price / record.gpus,
            "date": offer.date,
            "source": machine.sources[offer.source],
        }
        for offer in record.offers
    ]
    known = {key: value for key, value in facts.items() if value is not None}
    tables = [Table([known], title=record.sku, titles=_CATALOGUE_TITLES, upright=True)]
    if offers:
        shown = ("region", "commitment", "usd_per_hour", "usd_per_gpu_hour", "date", "source")
        tables.append(Table(offers, title="Prices", shown=shown))
    return Answer(command="hardware", result={**facts, "offers": offers}, tables=tuple(tables))


def device_answer(device: Device, slices: Sequence[Device] = ()) -> Answer:
    """Return one device: every figure with its label and where it was read, and the slices that it can be cut into."""
    figures = _figures(device)
    titles = {source.key: source for source in device.sources}
    sources = [
        {"source": s.key, "title": s.title, "url": s.url, "checked": s.checked, "note": s.note}
        for s in device.sources
    ]
    assumed = frozenset((0, name) for name, label in device.labels.items() if label == "assumed")
    keys = {name: ", ".join(k for k in used if k in titles) for name, used in device.figure_sources.items()}
    return Answer(
        command="hardware",
        result={**asdict(device), "slices": [item.name for item in slices]},
        tables=(
            Table(
                [figures],
                upright=True,
                titles=_CATALOGUE_TITLES,
                assumed=assumed,
                beside={"label": dict(device.labels), "source": keys},
            ),
            *_slices(slices),
            Table(sources, title="Sources"),
        ),
        headline=device.title,
        closing=tuple(f"caveat: {trap}" for trap in device.traps),
        assumptions=(_unsourced(f"{device.name}.yaml"),) if assumed else (),
    )


def _slices(slices: Sequence[Device]) -> tuple[Table, ...]:
    """Return the slices of a device in one table; none where it cannot be cut."""
    rows = [
        {
            **_figures(item),
            "per_device": item.partition.per_device,
            "starts": ", ".join(map(str, item.partition.starts)),
        }
        for item in slices
        if item.partition
    ]
    title = "MIG slices, each a device of its own: --hardware NAME"
    return (Table(rows, title=title, shown=_SLICE, titles=_CATALOGUE_TITLES),) if rows else ()


def _figures(device: Device) -> dict[str, Any]:
    return flattened({key: value for key, value in asdict(device).items() if key not in _FOOTNOTES})


def _unsourced(file: str) -> Assumption:
    return Assumption(
        "figures marked * have no source that can be opened", f"your own hardware YAML, --hardware {file}"
    )


_CATALOGUE_SHOWN = {
    "scenarios": ("scenario", "model", "about"),
    "models": ("model", "quantization"),
    "machines": ("machine", "provider", "hardware", "gpus", "usd_per_hour", "region", "date"),
    "apis": (
        "api",
        "input_usd_per_million_tokens",
        "cache_read_usd_per_million_tokens",
        "output_usd_per_million_tokens",
        "date",
        "remark",
    ),
    "prices": ("hardware", "provider", "commitment", "usd_per_gpu_hour", "region", "date"),
}
_NEXT = {
    "scenarios": "capplan fleet NAME answers one; capplan init FILE --from NAME copies it",
    "models": "capplan model NAME shows one; any Hugging Face id or config.json of these families works too",
    "hardware": "capplan hardware NAME shows every figure with its source",
    "machines": "capplan hardware SKU shows its prices and sources; fleet.machines and fleet.providers of a scenario name what may be ordered",
    "apis": "capplan compare SCENARIO --api NAME compares a fleet with it; capplan cache --api NAME prices its prompt cache",
    "engines": "a version between two of these is taken as the one below it",
    "prices --check": "plans take these prices unless prices.per_gpu_hour, prices.provider or prices.file say otherwise",
    "apis --check": "hosted.file of a scenario takes a newer list; a name that is not in the list has nothing to be checked against",
    "prices": "prices.per_gpu_hour and prices.file of a scenario take your own",
}


def listing_answer(kind: str, rows: Sequence[Mapping[str, Any]]) -> Answer:
    """Return one list, with what to do with a name of it."""
    return Answer(
        command="list",
        result={"rows": list(rows)},
        tables=(Table(rows, shown=_CATALOGUE_SHOWN.get(kind, ())),),
        closing=(_NEXT[kind],),
    )


_BREAKDOWN = ("phase", "operator", "seconds", "flop", "bytes", "flop_per_byte", "bound")
_LENGTHS = Assumption(
    "every request has the mean input and output length", "capplan simulate with a scenario"
)


def estimate_answer(
    replica: Replica,
    load: Load,
    bounded: BoundedEstimate,
    assumptions: Sequence[Assumption],
    warnings: Sequence[str],
) -> Answer:
    """Return latency, throughput and the operators they are made of."""
    estimated, spec = bounded.estimate, replica.spec
    spreads = {"ttft_s": bounded.ttft_s, "tpot_s": bounded.tpot_s, "e2e_s": bounded.e2e_s}
    latency = [
        {"quantity": name.removesuffix("_s").upper()}
        | {f"{key}_s": value for key, value in asdict(spread).items()}
        for name, spread in spreads.items()
    ]
    figures = _estimated_figures(estimated)
    breakdown = [
        {**asdict(row), "flop_per_byte": row.flop / row.bytes if row.bytes else None}
        for row in estimated.breakdown
    ]
    place = {
        "model": spec.network.name,
        "hardware": spec.device.name,
        "gpus": spec.devices,
        "label": replica.label,
    }
    bounds = {
        "output_tokens_per_s_low": estimated.output_tokens_per_s * bounded.throughput.low_ratio,
        "output_tokens_per_s_high": estimated.output_tokens_per_s * bounded.throughput.high_ratio,
    }
    result = {**place, **{name: asdict(spread) for name, spread in spreads.items()}, **bounds, **figures}
    asked = f"concurrency {load.concurrency}" if load.concurrency else f"{load.request_rate:g} req/s"
    out = load.output_tokens if spec.network.generates else "a vector or a score"
    steps = (
        "Prefill of one prompt, and one decode step" if spec.network.generates else "Prefill of one prompt"
    )
    return Answer(
        command="estimate",
        result={**result, "breakdown": breakdown},
        tables=(
            Table(
                latency, title="Latency (low and high: 80 % interval of the mean)", spare=("p90_s", "p50_s")
            ),
            Table([figures], title="Throughput", upright=True),
            Table(breakdown, title=steps, shown=_BREAKDOWN),
        ),
        csv_rows=(result,),
        headline=(
            f"{spec.network.name} on {spec.devices} x {spec.device.name}, {spec.profile.engine} "
            f"{spec.profile.version}: {asked}, {load.input_tokens} tokens in, {out} out"
        ),
        assumptions=(_LENGTHS, *assumptions, *replica.rates.assumptions),
        warnings=(*warnings, *_problems(load, bounded)),
    )


def _estimated_figures(estimated: Estimate) -> dict[str, Any]:
    return {
        "output_tokens_per_s": estimated.output_tokens_per_s,
        "total_tokens_per_s": estimated.total_tokens_per_s,
        "requests_per_s": estimated.requests_per_s,
        "output_tokens_per_s_per_gpu": estimated.output_tokens_per_s_per_gpu,
        "concurrency": estimated.concurrency,
        "bottleneck": estimated.bottleneck,
        "saturated": estimated.saturated,
        "kv_occupancy_fraction": estimated.kv_occupancy_fraction,
        "preemptions": estimated.preemptions,
    }


def _problems(load: Load, bounded: BoundedEstimate) -> list[str]:
    problems = []
    if bounded.estimate.saturated:
        problems.append(
            f"{load.request_rate:g} req/s is more than the replica can serve: it saturates at "
            f"{bounded.estimate.requests_per_s:.3g} req/s, and the queue grows without bound"
        )
    if bounded.unmeasured:
        problems.append(
            "no measured result is close to this operating point: the intervals are at their widest"
        )
    elif bounded.fewest_models < LEAST_GROUPS or bounded.fewest_sources < LEAST_SOURCES:
        few = f"{bounded.fewest_models} model{'s' if bounded.fewest_models > 1 else ''}"
        if bounded.fewest_models >= LEAST_GROUPS:
            few = "one source"
        problems.append(
            f"an interval rests on measured results of {few} only, so it is at least as wide as that of wider regimes"
        )
    return problems


DOES_NOT_FIT = 3


def fit_answer(fit: Fit, assumptions: Sequence[Assumption], warnings: Sequence[str]) -> Answer:
    """Return the budget of the fullest device, the capacity, and what would make it fit where it does not."""
    figures = _memory_figures(fit)
    spec = fit.spec
    place = f"{spec.devices} x {spec.device.name}"
    verdict = "fits" if fit.fits else "does not fit"
    changes = [asdict(change) for change in fit.changes]
    steps = waterfall(fit)
    hidden = _IN_WATERFALL | (_OF_CACHES if spec.network.bidirectional else set())
    tables = [
        Table(
            [figures],
            upright=True,
            shown=tuple(k for k in figures if k not in hidden),
            titles=_WATERFALL_TITLES,
        ),
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


def _memory_figures(fit: Fit) -> dict[str, Any]:
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
_WATERFALL_TITLES = {
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


_INDEPENDENT = Assumption(
    "every draft token is accepted with the same probability, whatever its position and the other tokens",
    "--acceptance as measured by the engine",
)
MOST_ROUNDS = 16
"""Rounds shown one by one; more are shown only by their speedup."""

_REPLICA_SHOWN = (
    "batch", "draft_tokens", "expected_tokens_per_round", "draft_s", "verify_s", "round_s", "target_step_s",
    "speedup", "fits",
)  # fmt: skip
_SPEC_TITLES = {
    "draft_tokens": "drafts",
    "fits": "fits in memory",
}


def spec_answer(
    speculated: Speculation,
    target: ReplicaSpec | float,
    draft: DraftModel | float,
    assumptions: Sequence[Assumption],
    warnings: Sequence[str],
) -> Answer:
    """Return rounds by batch and draft length, the best of each batch, and the memory of both models."""
    rows = [asdict(row) for row in speculated.rows]
    best = [asdict(row) for row in speculated.best]
    shown = tuple(name for name in _REPLICA_SHOWN if name != "fits" or speculated.memory is not None)
    memory = _memory_rows(speculated)
    tables = []
    if len(best) > 1 and len(rows) > len(best):
        tables.append(
            Table(best, title="Best draft length at every batch size", shown=shown, titles=_SPEC_TITLES)
        )
    if len(rows) > MOST_ROUNDS:
        tables.append(_speedups(rows))
    else:
        tables.append(Table(rows, title="Rounds", shown=shown, titles=_SPEC_TITLES))
    if memory:
        tables.append(Table([memory], title="Memory of one GPU", upright=True, titles=_MEMORY_TITLES))
    result: dict[str, Any] = {
        "target": _name(target),
        "draft": _name(draft),
        "label": speculated.label,
        "rows": rows,
        "best_draft_tokens": speculated.best_draft_tokens,
        "best": best,
        "breakeven_batch": speculated.breakeven_batch,
        "largest_batch": speculated.largest_batch,
        "memory": memory,
    }
    return Answer(
        command="spec",
        result=result,
        tables=tuple(tables),
        csv_rows=rows,
        headline=_headline(speculated, target, draft),
        closing=(_closing(speculated, stated=isinstance(target, float)),),
        assumptions=(_INDEPENDENT, *assumptions, *speculated.assumptions),
        warnings=tuple(warnings),
    )


def _speedups(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return one line per batch with the speedup of every draft length; CSV and JSON have every round."""
    lines: dict[int, dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(row["batch"], {"batch": row["batch"]})
        line[f"drafts {row['draft_tokens']}"] = row["speedup"]
    return Table(list(lines.values()), title="Speedup by batch size and draft tokens")


def _name(part: ReplicaSpec | DraftModel | float) -> str | None:
    if isinstance(part, float):
        return None
    return part.spec.network.name if isinstance(part, DraftModel) else part.network.name


def _headline(speculated: Speculation, target: ReplicaSpec | float, draft: DraftModel | float) -> str:
    first = speculated.best[0]
    what = f"{_name(draft) or 'a draft of given step time'} drafting for {_name(target) or 'a target of given step time'}"
    place = "" if isinstance(target, float) else f" on {target.devices} x {target.device.name}"
    at = "" if isinstance(target, float) else f" at batch {first.batch}"
    return (
        f"{what}{place}: {first.speedup:.3g}x{at} with {first.draft_tokens} draft "
        f"{'token' if first.draft_tokens == 1 else 'tokens'} per round"
    )


def _closing(speculated: Speculation, *, stated: bool) -> str:
    batch, most = speculated.breakeven_batch, speculated.largest_batch
    if stated:
        return (
            "speculation does not pay off"
            if batch is not None
            else "speculation pays off at any batch size, because the step times given do not depend on it"
        )
    if batch is None:
        return f"speculation pays off at every batch size that fits, up to {most}"
    if batch > most:
        return (
            f"speculation pays off at every batch size that fits, up to {most}; from {batch} on it would not"
        )
    return f"from batch size {batch} on, speculation does not pay off"


_MEMORY_TITLES = {
    "kv_bytes_available_per_gpu": "available for the caches of target and draft",
    "context_tokens": "context of a sequence",
    "max_concurrency": "concurrent sequences with the draft",
}


def _memory_rows(speculated: Speculation) -> dict[str, Any] | None:
    both = speculated.memory
    if both is None:
        return None
    return {
        "target_weight_bytes_per_gpu": both.target_weight_bytes,
        "draft_weight_bytes_per_gpu": both.draft_weight_bytes,
        "kv_bytes_available_alone_per_gpu": both.kv_bytes_alone,
        "kv_bytes_available_per_gpu": both.kv_bytes_left,
        "target_kv_bytes_per_sequence_per_gpu": both.target_bytes_per_sequence,
        "draft_kv_bytes_per_sequence_per_gpu": both.draft_bytes_per_sequence,
        "context_tokens": both.context_tokens,
        "max_concurrency_alone": both.max_sequences_alone,
        "max_concurrency": both.max_sequences,
    }
