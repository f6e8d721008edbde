"""The serving flags of a command line -> one replica, checked before anything is computed; LoRA adapters as a scenario or flags state them."""

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from capplan.assumption import Assumption
from capplan.engine.lookup import own_sequences, profile
from capplan.engine.profile import EngineProfile
from capplan.errors import InputError, unknown
from capplan.families.model_config import pooled
from capplan.fleet.search.candidates import SPLIT_MATRICES, Layout, refuse_illegal
from capplan.hardware.device import HOST, Device, Efficiency
from capplan.memory.kv_sizes import cache_dtype
from capplan.memory.layer_groups import narrow_states
from capplan.memory.pool import layout_assumptions
from capplan.model.network import Adapters, LoraTerms, Network
from capplan.model.sharding import MODULES, Sharding, adapted_matrices
from capplan.model.weight_format import in_weight_format, stored_formats, weight_format_assumptions
from capplan.operators.device_rates import no_speed_reason
from capplan.operators.llamacpp import ENGINE as LLAMACPP
from capplan.operators.matmul import sequences_with_slots
from capplan.readers.calibration.refitted import refitted_profile, refuse_kernels_of_torch
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import named_device
from capplan.readers.catalogue.models import read_model
from capplan.replica.spec import ReplicaSpec, network_as_served, profile_as_served, served_context_tokens
from capplan.scenario.flags import ServingFlags

if TYPE_CHECKING:
    from capplan.scenario.reading import Reading
    from capplan.scenario.scenario_file import Lora

ANSWERED = "a vector or a score comes with the prefill of its prompt: no decode, no cache kept after it"
UNMEASURED = "no run of embeddings or rerankers was measured: intervals are those of the prompts of models that generate"

DEFAULT_RANK = 16


def lora_terms(reading: "Reading", lora: "Lora | None") -> LoraTerms | None:
    """Return the adapters of a scenario; None where it has none."""
    if lora is None:
        return None
    slots = lora.adapters if lora.max_loras is None else lora.max_loras
    if slots > lora.adapters:
        raise reading.refuse(
            ("lora", "max_loras"),
            f"{slots} slots are more than the {lora.adapters} adapters; give at most as many, or leave it out",
        )
    if lora.max_lora_rank is None:
        reading.assume(f"adapters of rank {DEFAULT_RANK}", "lora.max_lora_rank")
    return LoraTerms(
        adapters=lora.adapters,
        slots=slots,
        rank=lora.max_lora_rank or DEFAULT_RANK,
        modules=None if lora.modules is None else tuple(dict.fromkeys(lora.modules)),
        fully_sharded=bool(lora.fully_sharded),
        adapted_fraction=1.0 if lora.share is None else lora.share,
    )


def with_adapters(network: Network, terms: LoraTerms, prompt_tokens: float | None = None) -> Network:
    """Return a network with its adapters.

    Parameters
    ----------
    network : in the weight format it is served in
    terms : its adapters
    prompt_tokens : [tokens]
        computed in the mean for a request

    Raises
    ------
    InputError
        the network has no such matrix
    """
    if network.encoder is not None:
        raise InputError(
            f"{network.name}: adapters of an encoder-decoder are not modelled, since they stand next to its encoder too\n  leave them out"
        )
    modules = terms.modules or MODULES
    known = _modules_of(network)
    wrong = next((name for name in terms.modules or () if name not in known), None)
    if wrong is not None:
        raise unknown("module", wrong, known, place="lora.modules")
    if not known.intersection(modules):
        raise InputError(
            f"{network.name}: lora.modules: none of {', '.join(modules)} is a matrix of this model\n  it has: {', '.join(sorted(known))}"
        )
    return replace(
        network,
        adapters=Adapters(
            terms.adapters,
            terms.slots,
            terms.rank,
            tuple(name for name in modules if name in known),
            terms.fully_sharded,
            terms.adapted_fraction,
            network.activation_format,
            prompt_tokens,
        ),
    )


def _modules_of(network: Network) -> set[str]:
    """Return the names of the matrices of a network that an adapter can stand next to."""
    names = {f"{matrix.name}_proj" for layer in network.layers for matrix in layer.projections}
    every = (*MODULES, *names)
    return {
        name
        for name in dict.fromkeys(every)
        for layer in dict.fromkeys(network.layers)
        if adapted_matrices(layer, (name,))
    }


def adapter_assumptions(network: Network, place: str) -> tuple[Assumption, ...]:
    """Return what is assumed about the adapters of a network, which a key or flag replaces; nothing without them."""
    adapters = network.adapters
    if adapters is None:
        return ()
    said = [
        Assumption(
            f"all {adapters.adapters} adapters are equally popular, which is the most of them in a step, and stand next to "
            f"{', '.join(adapters.modules)} in {adapters.format}; prefixes are shared by requests of one adapter only",
            place,
        ),
        Assumption(
            "kernels of adapters reach the bandwidth of kernels that move bytes, and the rate of plain products; not measured",
            place,
        ),
    ]
    if any(layer.experts for layer in network.layers):
        said.append(Assumption("routed experts have no adapters", place))
    if adapters.missing_fraction:
        most = float(sequences_with_slots(adapters.adapters, adapters.slots, adapters.adapted_fraction))
        said.append(
            Assumption(
                f"with {adapters.slots} slots {adapters.missing_fraction:.0%} of the requests have their adapter copied from the host first, "
                f"and at most {max(int(most), 1):,} sequences run, which use {adapters.slots} adapters in the mean",
                f"{place}.max_loras",
            )
        )
    return tuple(said)


@dataclass(frozen=True, slots=True)
class CompletedReplica:
    """A replica, with the assumptions that complete it."""

    spec: ReplicaSpec
    assumptions: tuple[Assumption, ...] = ()
    warnings: tuple[str, ...] = ()


def asked_replica(
    model: str, hardware: str, flags: ServingFlags, *, drafts: bool = False
) -> CompletedReplica:
    """Return the replica that the flags describe.

    Parameters
    ----------
    model : path, shipped id or alias, or hub id
    hardware : catalogue name or alias, or path of a hardware YAML
    flags : how it is sharded, stored and run; capplan rejects parallelism that the model cannot be split by
    drafts : tokens are drafted and verified

    Raises
    ------
    InputError
        A name is unknown, a file is unreadable, or the replica cannot be built.
    """
    network = read_model(model, revision=flags.revision, offline=flags.offline)
    network = pooled(network) if flags.runner == "pooling" else network
    rules = _asked_engine(flags, network)
    _refuse_short_steps(flags, network)
    target = _used_device(named_device(hardware, flags.calibration), flags)
    rules, host_assumptions, host_warnings = refitted_profile(flags.calibration, rules, target)
    format_assumptions = weight_format_assumptions(network, flags.weight_dtype) if flags.weight_dtype else ()
    served = _served(network, rules, flags)
    kv_format, assumptions = cache_dtype(network, flags.kv_dtype, rules, target.architecture.lower())
    proportions = _proportions(target, flags)
    sharding = _sharding(flags, stages=1 if proportions else flags.pipeline_parallel)
    seats, seats_assumed = _seats(flags, rules, network, drafts=drafts)
    refuse_illegal(served, Layout(target, sharding, flags.weight_dtype or "auto", kv_format), rules)
    whole = ReplicaSpec(
        network=served,
        device=target,
        efficiency=_efficiency(target, flags, rules),
        profile=rules,
        sharding=sharding,
        kv_format=kv_format,
        max_model_len=flags.max_model_len,
        max_num_seqs=seats,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        gpu_memory_utilization=flags.gpu_memory_utilization,
        tensor_split=proportions,
    )
    spec = _offloaded(whole, flags)
    return CompletedReplica(
        spec,
        (
            *assumptions,
            *seats_assumed,
            *network.doubts,
            *layout_assumptions(served, rules.memory),
            *narrow_states(served, rules.memory, rules.engine),
            *format_assumptions,
            *_served_assumptions(served),
            *rules.assumptions,
            *host_assumptions,
            *_placed_assumptions(spec, flags),
        ),
        (*_warnings(served, flags.max_model_len, rules.engine), *_shared_ranks(flags), *host_warnings),
    )


def _served(network: Network, rules: EngineProfile, flags: ServingFlags) -> Network:
    """Return the network in the formats of the flags as an engine serves it, with its adapters."""
    formatted = in_weight_format(network, flags.weight_dtype) if flags.weight_dtype else network
    served = _with_adapters(network_as_served(formatted, rules), flags)
    return replace(served, whole_towers=flags.whole_towers)


def _asked_engine(flags: ServingFlags, network: Network) -> EngineProfile:
    """Return the engine of the flags as it serves a network."""
    engine = profile(flags.engine, flags.engine_version, flags.backend)
    return profile_as_served(engine, network, flags.chunked_prefill, flags.cuda_graphs)


def _sharding(flags: ServingFlags, stages: int) -> Sharding:
    """Return the parallelism of the flags with a number of pipeline stages."""
    degrees = flags.tensor_parallel, stages, flags.expert_parallel, flags.data_parallel
    return Sharding(*map(float, degrees))


def _placed_assumptions(spec: ReplicaSpec, flags: ServingFlags) -> tuple[Assumption, ...]:
    """Return what is assumed of the memory of a device, and of weights in that of its host."""
    said = _memory_assumptions(spec.device)
    return (*said, *_offload_assumptions(spec, flags)) if flags.host_bandwidth else said


def _used_device(target: Device, flags: ServingFlags) -> Device:
    """Return the device that runs: of a machine of cards one, where --split-mode is none."""
    if flags.split_mode not in ("layer", "none"):
        if flags.split_mode == "row":
            raise InputError(
                f"--split-mode row: {SPLIT_MATRICES}\n  leave it out: layers in turn are modelled"
            )
        raise unknown("--split-mode", flags.split_mode, ("layer", "none"))
    if flags.main_gpu is not None and flags.split_mode != "none":
        raise InputError(
            "--main-gpu: chooses the card that runs by itself\n  add --split-mode none, or leave it out"
        )
    if flags.split_mode == "layer":
        return target
    at, cards = flags.main_gpu or 0, target.cards
    if flags.pipeline_parallel > 1:
        raise InputError("--split-mode none: runs on one device\n  leave it out, or --pipeline-parallel")
    if cards and at >= len(cards):
        raise InputError(f"--main-gpu {at}: {target.name} has {len(cards)} cards, counted from 0")
    return cards[at] if cards else target


def _proportions(target: Device, flags: ServingFlags) -> tuple[float, ...]:
    """Return the parts of the layers for each card of a machine; nothing where its memory decides, or where there is one device."""
    said, cards = flags.tensor_split, target.cards
    if said is None:
        return (1.0,) * len(cards) if 1 < len(cards) == flags.pipeline_parallel else ()
    if not cards:
        raise InputError(
            f"--tensor-split: {target.name} is one device\n  name the cards of the machine: --hardware {target.name}+rtx-3060:12gb"
        )
    if said == "fastest":
        return ()
    try:
        parts = tuple(float(part) for part in said.replace("/", ",").split(","))
    except ValueError:
        parts = ()
    if len(parts) > len(cards) or not all(part >= 0.0 for part in parts) or not 0.0 < sum(parts) < inf:
        raise InputError(
            f"--tensor-split: {said!r} is no list of parts for the {len(cards)} cards of {target.name}\n  e.g. --tensor-split 3,1, or fastest"
        )
    return (*parts, *(0.0,) * (len(cards) - len(parts)))


NOT_NEXT_TO_CARDS = "weights on the host next to several devices are not modelled; give one device"
OFFLOADING = ("n_gpu_layers", "n_cpu_moe", "host_bandwidth", "host_memory")
"""Flags of weights in the memory of the host."""


def _offloaded(spec: ReplicaSpec, flags: ServingFlags) -> ReplicaSpec:
    """Return the replica with what llama.cpp keeps on each card of a machine or in the memory of the host: as the flags say, or the fastest split that fits."""
    if flags.tensor_split == "fastest":
        from capplan.replica.best_split import fastest_cards

        spec = fastest_cards(spec)
    stated = [name for name in OFFLOADING if getattr(flags, name) is not None]
    if flags.n_gpu_layers == 0 and spec.profile.engine == LLAMACPP:
        if spec.device.architecture == HOST:
            return spec
        raise InputError(
            f"--n-gpu-layers 0: {spec.device.name} is no processor, and reads prompts of a model on the host itself\n"
            "  name the processor: --hardware ryzen-9-7950x:64gb"
        )
    layers = [name for name in stated if not name.startswith("host")]
    if not stated:
        return spec
    flag, engine = f"--{stated[0].replace('_', '-')}", spec.profile.engine
    if engine != LLAMACPP:
        raise InputError(
            f"{flag}: {engine} keeps all weights on the device; --engine llamacpp offloads, or leave it out"
        )
    if flags.host_bandwidth is None:
        raise InputError(
            f"{flag}: the bandwidth of the memory of the host decides\n  give it: --host-bandwidth '80 GB/s'"
        )
    from capplan.replica.best_split import fastest_split, split_replica

    if spec.device.cards:
        raise InputError(NOT_NEXT_TO_CARDS)
    if not layers:
        split = fastest_split(spec, flags.host_bandwidth)
    else:
        split = split_replica(spec, (flags.n_gpu_layers, flags.n_cpu_moe), flags.host_bandwidth)
    if layers and split.offload is None:
        raise InputError(
            f"{flag}: nothing is kept in the memory of the host\n  e.g. --n-cpu-moe 8, or leave it out"
        )
    size = split.offload.weight_bytes if split.offload else 0.0
    if flags.host_memory is not None and size > flags.host_memory:
        raise InputError(
            f"{spec.network.name}: {size / 1e9:.1f} GB of weights do not fit into the {flags.host_memory / 1e9:.1f} GB of --host-memory\n"
            "  choose a smaller --weight-dtype"
        )
    return split


def _seats(
    flags: ServingFlags, rules: EngineProfile, network: Network, *, drafts: bool
) -> tuple[int | None, tuple[Assumption, ...]]:
    """Return the limit on running sequences: the asked one, or that of the engine for the model or for drafts; None for its usual one."""
    own = own_sequences(rules, network.model_type, drafts=drafts)
    if flags.max_num_seqs is not None or own is None:
        return flags.max_num_seqs, ()
    of = network.model_type if network.model_type in rules.model_sequences else "drafts"
    what = f"{own} sequences at once, the limit of {rules.engine} with {of}"
    return max(own // flags.data_parallel, 1), (Assumption(what, "--max-num-seqs", "max_num_seqs"),)


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


def _served_assumptions(network: Network) -> tuple[Assumption, ...]:
    """Return what is assumed about a network that is served for vectors or scores, or with adapters."""
    answered = (Assumption(ANSWERED, "--runner"), Assumption(UNMEASURED, "--calibration"))
    return (*(answered if network.pooled else ()), *adapter_assumptions(network, "--max-loras"))


def _efficiency(target: Device, flags: ServingFlags, engine: EngineProfile) -> Efficiency:
    calibration = flags.calibration
    if calibration is not None and engine.engine == LLAMACPP:
        from capplan.readers.calibration.file import read_calibration_file

        refuse_kernels_of_torch(calibration, read_calibration_file(calibration).kernels)
    if calibration is None or engine.engine == LLAMACPP:
        return efficiency_for(target, engine)
    from capplan.readers.calibration.measured_device import efficiency_from_calibration

    return efficiency_from_calibration(calibration, target)


def _memory_assumptions(target: Device) -> tuple[Assumption, ...]:
    if target.cards:
        one = f"the cards of {target.name} count as one GPU"
        return (
            Assumption(one, "--hardware"),
            *(item for card in target.cards for item in _memory_assumptions(card)),
        )
    if target.architecture == HOST:
        fastest = f"{target.name} has {target.memory_kind} in all channels, the fastest that it supports, with all of it for the model"
        return (Assumption(fastest, "memory.bandwidth in your own hardware YAML"),)
    if target.reported_memory_bytes is not None:
        return ()
    return (
        Assumption(
            f"memory visible to a process on {target.name}: that of the datasheet, less a typical driver reserve",
            "memory.engine_total in your own hardware YAML",
        ),
    )


def _offload_assumptions(spec: ReplicaSpec, flags: ServingFlags) -> tuple[Assumption, ...]:
    """Return which split was chosen, and what is assumed of weights that are in the memory of the host."""
    if spec.offload is None:
        return (
            Assumption("everything fits on the device, and nothing is kept on the host", "--n-gpu-layers"),
        )
    from capplan.readers.catalogue.llamacpp import speed_file
    from capplan.replica.best_split import split_words

    of = speed_file().offload
    what = f"weights on the host are read at {of.host:.0%} of its bandwidth, by a processor that keeps up, and cross PCIe for prompts at {of.pcie:.0%} of its rate: fitted on three hosts"
    said = (Assumption(what, "--host-bandwidth"),)
    if flags.n_gpu_layers or flags.n_cpu_moe:
        return said
    words = " ".join(split_words(spec.offload))
    cache = f"{spec.max_num_seqs or 1} x {served_context_tokens(spec):,} tokens of cache"
    chosen = f"{words}, the fastest split that leaves room for {cache}, at half of that context"
    return (Assumption(chosen, "--n-gpu-layers, --n-cpu-moe"), *said)


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


def _warnings(network: Network, max_model_len: int | None, engine: str) -> tuple[str, ...]:
    limit = network.max_context_tokens
    said = []
    if max_model_len is not None and limit is not None and max_model_len > limit:
        said.append(f"max_model_len {max_model_len} exceeds the model's maximum of {limit} tokens")
    alone = no_speed_reason(stored_formats(network), engine)
    if alone:
        said.append(f"only memory is modelled with these weights, not speed: {alone}")
    return tuple(said)
