"""Kernel rates, memory and step times of plans for one network, as arrays over plans and loads."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np

from capplan.assumption import Assumption, Label
from capplan.engine.lookup import scheduling
from capplan.engine.profile import EngineProfile, HostOverhead, Scheduling, tile_of
from capplan.errors import CapplanError, InputError
from capplan.hardware.device import (
    HOST,
    MERGED,
    Device,
    Efficiency,
    engine_memory_bytes,
    has_fast_links,
    not_measured,
    padded_inputs_multiple,
)
from capplan.memory.capacity import (
    reserved_bytes_per_sequence,
    stage_shares,
    starts_with_states,
    token_capacity,
)
from capplan.memory.launch import Launch, default_memory_fractions, engine_launch, prefill_graphs
from capplan.memory.plan import MemoryPlan, memory_plan
from capplan.model.network import Network, layer_counts
from capplan.model.sharding import WHOLE, Sharding
from capplan.model.weight_format import kv_bytes_per_element
from capplan.numbers import Array, Number, stacked
from capplan.operators.attention import AttentionRates
from capplan.operators.device_rates import DeviceRates, SharedRates, device_rates
from capplan.operators.expert_exchange import (
    dispatched_bytes,
    exchange_assumption,
    exchange_kernels,
    exchange_rates,
    is_captured,
)
from capplan.operators.latent_attention import SparsePrefill
from capplan.operators.matmul import sequences_with_slots
from capplan.phases.cost import StepRates, total_s
from capplan.phases.mixer_work import borrowed_rates
from capplan.phases.step import token_costs
from capplan.phases.token_work import ACTIVATION_BYTES
from capplan.replica.offload import PartRates, host_devices
from capplan.replica.spec import ReplicaSpec, cards_of, prompt_work_s_per_token, served_context_tokens
from capplan.replica.tables import (
    DeviceTables,
    Knots,
    chunk_limits,
    context_limits,
    device_tables,
    graph_ends,
    graph_jumps,
    layers_in_turn,
    stacked_tables,
    step_knots,
    table_of_plan,
    with_host,
    with_plan,
)
from capplan.serving.steady_state import (
    Lengths,
    StepFunction,
    mean_context_tokens,
    prefill_tokens_per_prompt,
)
from capplan.serving.step_table import (
    StepTable,
    bracket,
    idle_ratio,
    pipeline_pass_ratio,
    prefill_attention_per_token_s,
    prompt_micro_batch,
)


@dataclass(frozen=True, slots=True)
class LabelledRates:
    """Kernel rates, and what was assumed for lack of measurements."""

    rates: StepRates
    assumptions: tuple[Assumption, ...]

    @property
    def label(self) -> Label:
        """Whether all rates were measured on the device."""
        return "assumed" if any(a.key != MERGED for a in self.assumptions) else "measured"


def _formats(network: Network) -> tuple[list[str], list[str]]:
    dense = {head.weight_format for head in (network.lm_head, network.pooler) if head is not None}
    if network.adapters is not None:
        dense.add(network.adapters.format)
    if network.image_work or network.encoder is not None:
        dense.add(network.vision_format)
    experts = set()
    for layer, _ in layer_counts(network):
        dense |= {p.multiplied_in or p.weight_format for p in layer.projections}
        if layer.experts:
            experts.add(layer.experts.weight_format)
    return sorted(dense), sorted(experts)


def at_rates(device: Device, host: HostOverhead) -> Device:
    """Return the device at the rates that results of an engine showed; the device itself where they showed none.

    Launches keep their time: an efficiency record states it apart from rates.
    """
    compute, memory, links = host.rate_ratios
    if host.rate_ratios == (1.0, 1.0, 1.0):
        return device

    def scaled(rate: float | None) -> float | None:
        return None if rate is None else rate * links

    return replace(
        device,
        peak_flop_per_s={name: rate * compute for name, rate in device.peak_flop_per_s.items()},
        memory_bytes_per_s=device.memory_bytes_per_s * memory,
        link_bytes_per_s=scaled(device.link_bytes_per_s),
        pcie_bytes_per_s=scaled(device.pcie_bytes_per_s),
        network_bytes_per_s=scaled(device.network_bytes_per_s),
    )


def _sparse_prefill(profile: EngineProfile, architecture: str, kv_format: str) -> SparsePrefill:
    """Return the kernels that an engine runs for prompts of sparse attention on a device with a cache of a format."""
    tile_heads, above = tile_of(profile.tiled_heads, architecture, kv_format)
    compressed, _ = tile_of(profile.compressed_tiles, architecture, kv_format)
    masks = architecture.lower() in profile.masks_prompts
    return SparsePrefill(tile_heads, above, compressed, float(profile.expands_short_prompts), float(masks))


def _attention_of(profile: EngineProfile, network: Network, rates: AttentionRates) -> AttentionRates:
    """Return what a device reaches in the decode kernels of an engine, whose graphs are captured for no longer context than the network has."""
    captured = min(profile.captured_tokens, network.max_context_tokens or profile.captured_tokens)
    return replace(rates, decode_group_exponent=profile.decode_group_exponent, captured_tokens=captured)


def step_rates(
    network: Network,
    device: Device,
    efficiency: Efficiency,
    *,
    profile: EngineProfile,
    kv_format: str,
    sharding: Sharding = WHOLE,
    exchange: tuple[str, str] = ("", ""),
) -> LabelledRates:
    """Return the rates of all kernels in a step of the network on the device; `exchange`: as `exchange_kernels` returns them."""
    device = at_rates(device, profile.host)
    dense_formats, expert_formats = _formats(network)

    def of(weight_format: str, expert_format: str | None = None) -> DeviceRates:
        run_in, spread = expert_format or weight_format, sharding.spreads_experts
        kernel = profile.expert_kernel(device.architecture, run_in, spread=spread, routing=network.routing)
        return device_rates(
            device,
            efficiency,
            weight_format=weight_format,
            kv_format=kv_format,
            engine=profile.engine,
            expert_format=expert_format,
            expert_kernel=kernel,
            fuses_quantise=profile.fuses_quantise,
        )

    dense = {name: of(name) for name in dense_formats}
    experts = {name: of(dense_formats[0], name) for name in expert_formats}
    every = [*dense.values(), *experts.values()]
    first, (decode, prefill) = every[0], exchange
    shared = {each.name: getattr(first, each.name) for each in fields(SharedRates)}
    read = {name: rates.expert_activation_bytes for name, rates in experts.items()}
    ranks, reach = sharding.tensor * sharding.data, first.link.domain_devices
    halved = profile.overlapped_steps if ranks > reach else frozenset()
    assumptions = dict.fromkeys(item for rates in every for item in rates.assumptions)
    assumptions |= dict.fromkeys(map(not_measured, borrowed_rates(network)))
    assumptions |= dict.fromkeys([exchange_assumption(decode, prefill)] if decode else [])
    return LabelledRates(
        rates=StepRates(
            matmul={name: rates.matmul for name, rates in dense.items()},
            experts={name: rates.experts for name, rates in experts.items()},
            **shared | {"attention": _attention_of(profile, network, first.attention)},
            activation_bytes={name: rates.matmul_activation_bytes for name, rates in dense.items()},
            expert_activation_bytes=read,
            decode_exchange=exchange_rates(decode, device, first.link, overlapping="decode" in halved),
            prefill_exchange=exchange_rates(prefill, device, first.link, overlapping="prefill" in halved),
            dispatched_bytes=dispatched_bytes(prefill, expert_formats),
            sparse_prefill=_sparse_prefill(profile, device.architecture, kv_format),
            ubatch_tokens=profile.ubatch_tokens,
            gathered_bytes=read if profile.gathers_quantised else dict.fromkeys(read, ACTIVATION_BYTES),
        ),
        assumptions=tuple(assumptions),
    )


@dataclass(frozen=True, slots=True)
class Plans:
    """One replica per plan, all of one network under one engine."""

    specs: tuple[ReplicaSpec, ...]
    """All have the network, engine, KV dtype and context of the first."""
    launch: Launch
    """The specs as arrays, with the limits of one engine."""
    schedulings: tuple[Scheduling, ...]
    """Scheduling of each whole replica."""

    def selected(self, rows: Sequence[int]) -> "Plans":
        """Return the plans in some rows."""
        return Plans(
            tuple(self.specs[row] for row in rows),
            self.launch.selected(np.asarray(rows, dtype=np.intp)),
            tuple(self.schedulings[row] for row in rows),
        )

    @property
    def max_num_seqs(self) -> Array:
        """Maximum sequences of each whole replica."""
        return np.array([float(scheduling.max_num_seqs) for scheduling in self.schedulings])

    @property
    def max_num_batched_tokens(self) -> Array:
        """Token budget per step of each whole replica."""
        return np.array([float(scheduling.max_num_batched_tokens) for scheduling in self.schedulings])


@dataclass(frozen=True, slots=True)
class PlansTables:
    """Step times of plans; tables have a leading axis of plans."""

    device: DeviceTables
    """Device time only: the input for fitting host times."""
    table: StepTable
    rates: tuple[LabelledRates, ...]
    """Kernel rates of each plan's device."""


def engine_scheduling(spec: ReplicaSpec) -> Scheduling:
    """Return the scheduling of one engine of a replica: the spec's limits, else the engine's defaults.

    Adapters without a slot wait, so no more sequences run than use the resident ones in the mean.
    """
    engine = scheduling(
        spec.profile,
        engine_memory_bytes(spec.device),
        spec.device.architecture,
        offline=spec.offline,
        max_model_len=served_context_tokens(spec),
        max_num_seqs=spec.max_num_seqs,
        max_num_batched_tokens=spec.max_num_batched_tokens,
    )
    adapters = spec.network.adapters
    if adapters is None:
        return engine
    resident = sequences_with_slots(adapters.adapters, adapters.slots, adapters.adapted_fraction)
    return replace(engine, max_num_seqs=max(int(min(engine.max_num_seqs, resident)), 1))


def exchange_of(spec: ReplicaSpec) -> tuple[str, str]:
    """Return the all-to-all kernels that a replica is started with, of decode steps and of steps with prompts."""
    step = float(engine_scheduling(spec).max_num_batched_tokens)
    return exchange_kernels(spec.profile, spec.device, spec.sharding, step)


def graph_sequences(spec: ReplicaSpec) -> float:
    """Return the sequences of the largest decode step of one engine that runs as a CUDA graph: infinite without a limit, 0 where none does."""
    if not is_captured(exchange_of(spec)[0]):
        return 0.0
    most = spec.profile.most_graph_sequences
    return np.inf if most is None else float(most)


def prefill_graph_tokens(spec: ReplicaSpec) -> float:
    """Return the tokens of the largest step with prompts of one engine that runs under piecewise CUDA graphs; 0 where none does."""
    capture = spec.profile.memory.prefill_capture
    if capture is None:
        return spec.profile.host.graph_tokens
    kind = prefill_graphs(
        spec.network,
        spec.profile,
        pipelined=float(spec.sharding.pipeline) > 1.0,
        grouped=float(spec.sharding.data) > 1.0,
        cuda=spec.device.vendor.lower() == "nvidia",
    )
    if kind == "none" or graph_sequences(spec) == 0.0:
        return 0.0
    step = float(engine_scheduling(spec).max_num_batched_tokens)
    return min(step, float(capture.latent_tokens)) if kind == "latent" else step


def rates_of(spec: ReplicaSpec) -> LabelledRates:
    """Return the rates of all kernels in a step of a replica; of a machine of cards those of the card with the LM head."""
    _refuse_unpublished_context(spec)
    head = cards_of(spec)[-1]
    return step_rates(
        spec.network,
        head.device,
        replace(head.efficiency, borrowed=spec.efficiency.borrowed),
        profile=spec.profile,
        kv_format=spec.kv_format,
        sharding=spec.sharding,
        exchange=exchange_of(spec),
    )


def without_speed(spec: ReplicaSpec) -> CapplanError | None:
    """Return the error that says why no speed of a replica is predicted; None where one is."""
    try:
        rates_of(spec)
        parts_of(spec)
    except CapplanError as error:
        return error
    return None


def parts_of(spec: ReplicaSpec) -> tuple[PartRates, ...]:
    """Return the layers of a replica that are elsewhere than its LM head, with their rates: on other cards, or in the memory of the host."""
    cards = [(card.network, rates_of(card).rates) for card in cards_of(spec)[:-1]]
    parts = [PartRates(network, rates, rates) for network, rates in cards]
    held = spec.offload
    if held is None:
        return tuple(parts)
    token, prompt = (
        step_rates(
            held.network,
            target,
            replace(spec.efficiency, fits=spec.efficiency.offloaded[kind]),
            profile=spec.profile,
            kv_format=spec.kv_format,
        ).rates
        for kind, target in zip(("token", "prompt"), host_devices(spec.device, held.bytes_per_s), strict=True)
    )
    return (*parts, PartRates(held.network, token, prompt, on_host=True))


def replica_scheduling(engine: Scheduling, sharding: Sharding) -> Scheduling:
    """Return the scheduling of a whole replica.

    Every attention-data-parallel group runs a separate batch, so all limits are multiplied by the groups. The token budget
    is also multiplied by the pipeline stages, each of which holds a micro-batch of that size. Engines with pipeline stages
    do not schedule asynchronously.

    Examples
    --------
    >>> engine = Scheduling("mixed", max_num_seqs=256, max_num_batched_tokens=8192)
    >>> whole = replica_scheduling(engine, Sharding(tensor=2.0, pipeline=2.0, expert=1.0, data=4.0))
    >>> whole.max_num_seqs, whole.max_num_batched_tokens
    (1024, 65536)
    """
    groups, stages = int(sharding.data), int(sharding.pipeline)
    return replace(
        engine,
        max_num_seqs=engine.max_num_seqs * groups,
        max_num_batched_tokens=engine.max_num_batched_tokens * groups * stages,
        hold_tokens=engine.hold_tokens * groups,
        hold_prompts=engine.hold_prompts * groups,
        hold_seats=engine.hold_seats * groups,
        asynchronous=engine.asynchronous and stages == 1,
    )


def plans_of(specs: Sequence[ReplicaSpec], *, lowered: bool = True) -> Plans:
    """Return the plans of these replicas, which are all of one network.

    Where nobody states a limit of sequences and the engine does not start a hybrid model with its own, the limit is lowered to the most that
    it starts with. With `lowered` false, the engine's default stays, as for a launch that is tried as it stands.
    """
    first = specs[0]
    schedulings = [engine_scheduling(spec) for spec in specs]

    def column(name: str) -> Array:
        return np.array([float(getattr(spec.sharding, name)) for spec in specs])

    sharding = Sharding(*map(column, ("tensor", "pipeline", "expert", "data", "context")))
    memory_bytes = np.array([engine_memory_bytes(spec.device) for spec in specs])
    kernels = [exchange_of(spec)[1] for spec in specs]
    sent = np.array([bool(kernel) for kernel in kernels])
    fraction: Number | None = first.gpu_memory_utilization
    if fraction is None:
        cuda = np.array([float(spec.device.vendor.lower() == "nvidia") for spec in specs])
        fraction = default_memory_fractions(first.profile, memory_bytes, sharding, first.network, cuda)
        if first.profile.memory.sent_fraction is not None:
            fraction = np.where(sent, first.profile.memory.sent_fraction, fraction)
    launch = engine_launch(
        first.profile,
        sharding,
        memory_bytes,
        kv_bytes_per_element(first.kv_format),
        float(served_context_tokens(first)),
        np.array([float(scheduling.max_num_seqs) for scheduling in schedulings]),
        np.array([float(scheduling.max_num_batched_tokens) for scheduling in schedulings]),
        fraction,
        fast_links=np.array([float(has_fast_links(spec.device)) for spec in specs]),
        padded_inputs=np.array([padded_inputs_multiple(spec.device) for spec in specs]),
    )
    launch = replace(
        launch,
        sent=sent.astype(np.float64),
        holds_embedding=np.array([float(spec.device.architecture == HOST) for spec in specs]),
        one_sided=np.array([float(kernel == "nvlink_one_sided") for kernel in kernels]),
    )
    if lowered and starts_with_states(first.network, first.profile):
        blocks = np.broadcast_to(memory_plan(first.network, launch, first.profile).state_blocks, len(specs))
        schedulings = [
            one
            if spec.max_num_seqs
            else replace(one, max_num_seqs=int(max(min(one.max_num_seqs, most), 1.0)))
            for one, spec, most in zip(schedulings, specs, blocks.tolist(), strict=True)
        ]
        launch = replace(launch, max_num_seqs=np.array([float(one.max_num_seqs) for one in schedulings]))
    whole = [replica_scheduling(one, spec.batching) for one, spec in zip(schedulings, specs, strict=True)]
    return Plans(tuple(specs), launch.as_columns(), tuple(whole))


def started_schedulings(plans: Plans) -> list[Scheduling]:
    """Return the scheduling of one engine of each plan as it is started: with the sequences of a step that its state blocks admit."""
    return [
        replace(engine_scheduling(spec), max_num_seqs=whole.max_num_seqs // int(spec.sharding.data))
        for spec, whole in zip(plans.specs, plans.schedulings, strict=True)
    ]


def started_scheduling(spec: ReplicaSpec) -> Scheduling:
    """Return the scheduling of one engine of a replica as it is started."""
    return started_schedulings(plans_of([spec]))[0]


def plans_memory(plans: Plans) -> MemoryPlan:
    """Return the memory of one device of each plan; of a machine of cards that of the tightest."""
    memory = memory_plan(plans.specs[0].network, plans.launch, plans.specs[0].profile)
    if not any(spec.device.cards for spec in plans.specs):
        return memory
    tight = [
        tightest_card(spec)[1] if spec.device.cards else memory.at(plan)
        for plan, spec in enumerate(plans.specs)
    ]
    return MemoryPlan(
        *(np.array([getattr(one, field.name) for one in tight]) for field in fields(MemoryPlan))
    )


def card_plans(spec: ReplicaSpec) -> tuple[tuple[ReplicaSpec, MemoryPlan], ...]:
    """Return each device of a replica that differs from the others, with its memory: the cards of a machine that have layers, or one device."""
    return tuple((card, plans_memory(plans_of([card], lowered=False)).at(0)) for card in cards_of(spec))


def tightest_card(spec: ReplicaSpec) -> tuple[ReplicaSpec, MemoryPlan]:
    """Return the card of a machine whose cache holds the fewest sequences, and its memory; a single device is itself the tightest."""

    def sequences(card: tuple[ReplicaSpec, MemoryPlan]) -> tuple[float, float]:
        held, reserved = float(card[1].max_concurrency), float(card[1].reserved_bytes_per_sequence)
        return np.inf if held and not reserved else held, float(card[1].kv_bytes_available)

    return min(card_plans(spec), key=sequences)


def sequence_cache_bytes(plans: Plans, context_tokens: float) -> Array:
    """Return the KV-cache bytes that one sequence of a length takes on one device of each plan [B]."""
    first = plans.specs[0]
    launch = replace(plans.launch, max_model_len=np.full(len(plans.specs), context_tokens))
    reserved = np.array(reserved_bytes_per_sequence(first.network, launch, first.profile))
    for plan, spec in enumerate(plans.specs):
        if spec.device.cards:
            reserved[plan] = sequence_cache_bytes(plans_of([tightest_card(spec)[0]]), context_tokens)[0]
    return reserved


def plans_cache_tokens(plans: Plans, memory: MemoryPlan, context_tokens: float) -> Array:
    """Return the KV-cache capacity of whole replicas in tokens, filled with sequences of one length.

    For models with one kind of layer this is the figure that the engine prints; for hybrid models the engine prints it for
    sequences of the maximum context. Where nothing is cached, it holds every sequence that the engine runs at once.
    """
    reserved = sequence_cache_bytes(plans, context_tokens)
    if plans.specs[0].network.bidirectional:
        return np.asarray(memory.kv_cache_tokens * plans.launch.data)
    tokens = token_capacity(memory.kv_bytes_available, reserved, context_tokens)
    return np.asarray(tokens * plans.launch.data * plans.launch.context)


def _kernels_of(spec: ReplicaSpec) -> tuple[str, bool, tuple[str, str]]:
    """Return what the kernels of plans of one model and engine depend on."""
    spread = bool(spec.profile.expert_kernels) and spec.sharding.spreads_experts
    return spec.device.name, spread, exchange_of(spec)


def knots_of(plans: Plans) -> Knots:
    """Return where step times of plans are computed, the same object for equal limits."""
    first = plans.specs[0]
    most = first.profile.most_graph_sequences
    sizes = (*first.profile.graph_sizes, *((most,) if most else ()))
    return _knots(
        float(plans.max_num_seqs.max()),
        float(plans.max_num_batched_tokens.max()),
        float(served_context_tokens(first)),
        context_limits(first.network),
        (
            *graph_jumps(sizes, plans.launch),
            *(n for n, _ in first.profile.host.row_ratios),
        ),
        graph_ends(np.array([prefill_graph_tokens(spec) for spec in plans.specs]), plans.launch),
        chunk_limits(first.network),
    )


_knots = lru_cache(maxsize=1024)(step_knots)


def plans_tables(plans: Plans, knots: Knots | None = None) -> PlansTables:
    """Return the step times of each plan at the same knots for all plans, by default those of `knots_of`.

    Raises
    ------
    InputError
        The model generates no tokens, and is not served for vectors or scores.
    """
    first, knots = plans.specs[0], knots or knots_of(plans)
    if not (first.network.generates or first.network.pooled):
        raise InputError(
            f"{first.network.name} has no LM head and generates no tokens, so it has no decode steps\n"
            "  for the vectors or scores of prompts: --runner pooling, or runner: pooling in a scenario"
        )
    places: dict[tuple[str, bool, tuple[str, str]], int] = {}
    labelled: list[LabelledRates] = []
    kernels = [_kernels_of(spec) for spec in plans.specs]
    for spec, of in zip(plans.specs, kernels, strict=True):
        if of not in places:
            places[of] = len(labelled)
            labelled.append(rates_of(spec))
    index = np.array([places[of] for of in kernels], dtype=np.intp)
    rates = stacked([entry.rates for entry in labelled], index.reshape(-1, 1, 1))
    rates = replace(rates, ubatch_tokens=labelled[0].rates.ubatch_tokens)
    device = _device_tables(plans, rates, knots)
    table = with_host(device, first.profile.host, first.network, offline=first.offline)
    each = [
        prompt_work_s_per_token(spec, labelled[at].rates) for spec, at in zip(plans.specs, index, strict=True)
    ]
    beside = np.array(each)[:, None, None]
    prompts = table.prefill_attention_s + beside * knots.new[None, :, None]
    table = replace(table, prefill_attention_s=prompts)
    return PlansTables(device, table, tuple(labelled[place] for place in index.tolist()))


def _device_tables(plans: Plans, rates: StepRates, knots: Knots) -> DeviceTables:
    """Return the step times of the devices of each plan, of several devices with layers in turn as one after the other."""
    first = plans.specs[0]
    split, launch = first.efficiency.layer_split, plans.launch
    alone = launch if split is None else replace(launch, pipeline=np.ones_like(launch.pipeline))
    device = device_tables(
        first.network, alone, rates, knots, first.profile.graph_sizes,
        separate_prefill_pass=first.profile.policy == "slots",
        graph_sequences=np.array([graph_sequences(spec) for spec in plans.specs]),
        graph_tokens=np.array([prefill_graph_tokens(spec) for spec in plans.specs]),
        parts=() if first.device.cards else parts_of(first),
    )  # fmt: skip
    if split is not None:
        devices = np.asarray(launch.pipeline, dtype=np.float64)
        largest, _ = stage_shares(first.network, devices)
        device = layers_in_turn(device, split, largest, devices, first.profile.ubatch_tokens)
    for plan, spec in enumerate(plans.specs):
        if spec.device.cards:
            device = with_plan(device, plan, _tables_of_cards(spec, knots))
    return device


def _refuse_unpublished_context(spec: ReplicaSpec) -> None:
    """Raise the error for contexts that are longer than those of which the speed of a device is known."""
    most = spec.efficiency.longest_context_tokens
    if most is not None and served_context_tokens(spec) > most:
        raise InputError(
            f"{spec.device.name}: the speed of llama.cpp on processors is known to contexts of {most:,} tokens, since attention beyond was published of one processor\n"
            f"  --max-model-len {most}, or capplan fit for the memory"
        )


def _tables_of_cards(spec: ReplicaSpec, knots: Knots) -> DeviceTables:
    """Return the step times of a machine of cards, each of which has layers of its own."""
    main, parts, split = cards_of(spec)[-1], parts_of(spec), spec.efficiency.layer_split
    rates, launch = rates_of(main).rates, plans_of([main]).launch
    device = device_tables(
        main.network, launch, rates, knots, main.profile.graph_sizes, separate_prefill_pass=True, parts=parts
    )
    if split is None:
        return device
    piece = main.profile.ubatch_tokens
    piece_s = [
        float(total_s(token_costs(network, piece, WHOLE, each, decode=False)))
        for network, each in ((main.network, rates), *((part.network, part.prompt) for part in parts))
    ]
    slowest, devices = np.array([max(piece_s) / sum(piece_s)]), np.array([float(len(piece_s))])
    return layers_in_turn(device, split, slowest, devices, piece)


def _attention_at_context(tables: StepTable, context_tokens: Number) -> Array:
    """Return decode attention at one mean context of all plans or of each, shape (plans, sequences)."""
    values = tables.decode_attention_s
    plans = np.arange(values.shape[0])
    lower, upper, weight = bracket(
        tables.context_knots, np.broadcast_to(np.ravel(context_tokens), plans.shape)
    )
    ratio = weight[:, None]
    cut: Array = values[plans, :, lower] * (1.0 - ratio) + values[plans, :, upper] * ratio
    return cut


def _along(knots: Array, values: Array) -> Callable[[Array], Array]:
    """Return a table of one variable per plan as a function of it, at values of shape (plans, loads)."""
    plans = np.arange(values.shape[0])[:, None]

    def at(x: Array) -> Array:
        lower, upper, weight = bracket(knots, x)
        low = values[plans, lower]
        values_at: Array = low + (values[plans, upper] - low) * weight
        return values_at

    return at


def _attention_along_prompt(tables: StepTable, lengths: Lengths) -> Callable[[Array], Array]:
    """Return prefill attention per new token of one chunk, halfway through its prompt."""
    new, knots, values = prefill_attention_per_token_s(tables)
    plans, columns = np.arange(values.shape[0])[:, None], np.arange(new.size)
    cached = np.broadcast_to(np.reshape(lengths.cached_tokens, (-1, 1)), plans.shape)
    past = cached + np.maximum(prefill_tokens_per_prompt(lengths).reshape(-1, 1) - new, 0.0) / 2.0
    lower, upper, weight = bracket(knots, past)
    cut: Array = values[plans, columns, lower] * (1.0 - weight) + values[plans, columns, upper] * weight
    return _along(new, cut)


def plans_step_function(
    tables: StepTable, lengths: Lengths, budget_tokens: Number = np.inf, query_tokens: int = 1
) -> StepFunction:
    """Return a step function for plans along the first axis and loads along the second.

    Parameters
    ----------
    tables : step times with a leading axis of plans
    lengths : of the workload; numbers, the same for all plans, or columns over plans
    budget_tokens : [tokens]
        token budget of a step, a column over plans; a pipeline splits prompts to the part of one stage
    query_tokens : [tokens]
        that a decoding sequence computes in a step

    Returns
    -------
    (decoding sequences, mean context, prefill tokens, prompts) -> step time [s]; the context follows from the lengths, the
    argument is ignored. No step waits for its launches: how many have prompts is left to chance. Every pipeline step is assumed
    to follow one with as many prompts, so that the pipeline is full
    """
    attention = _attention_at_context(tables, mean_context_tokens(lengths))
    decode = _along(tables.sequence_knots, tables.decode_s + attention)
    head = _along(tables.sequence_knots, tables.head_s)
    cache = _along(tables.sequence_knots, attention)
    mixed = _along(tables.token_knots, tables.mixed_s)
    together = None if tables.shared_s is None else _along(tables.token_knots, tables.shared_s)
    chunk = _attention_along_prompt(tables, lengths)
    stages, stage_fraction, groups = (
        np.broadcast_to(value, tables.decode_s.shape[:1])[:, None]
        for value in (tables.stages, tables.stage_fraction, tables.groups)
    )

    def step_s(sequences: Array, context_tokens: Array, prefill_tokens: Array, prompts: Array) -> Array:
        del context_tokens
        plain = decode(sequences) * (sequences > 0.0)
        if not np.any(prefill_tokens > 0.0):
            return plain
        chunks = np.maximum(prompts, 1e-9)
        tokens = query_tokens * sequences
        room = np.maximum((budget_tokens - tokens) / stages, 1.0)
        longest = np.minimum(prefill_tokens / chunks, prefill_tokens)
        largest = np.maximum(prompt_micro_batch(prefill_tokens, longest, room, stages), 1e-9)
        micro_batches = np.maximum(prefill_tokens / largest, 1.0)
        shared = 0.0 if tables.separate_prefill_pass else 1.0
        beside = plain if tables.separate_prefill_pass else cache(sequences) * (sequences > 0.0)
        full = prefill_tokens + tokens >= budget_tokens * (1.0 - 1e-9)
        skew = np.where(full, 1.0, idle_ratio(groups, chunks))
        even = shared * tokens / stages + largest
        fullest = shared * tokens / stages + skew * largest
        busy = (
            mixed(fullest)
            + (0.0 if together is None else together(even) - together(fullest))
            + head(shared * sequences + chunks)
            + beside
            + skew * prefill_tokens / micro_batches * chunk(prefill_tokens / chunks)
        ) * pipeline_pass_ratio(micro_batches, micro_batches, stage_fraction)
        return np.where(prefill_tokens > 0.0, busy, plain)

    return step_s


@dataclass(frozen=True, slots=True)
class PlanTimes:
    """Step times of one plan, and the kernel rates behind them."""

    table: StepTable
    rates: LabelledRates


class StepTimes:
    """Step times of plans, computed once at each knots; those of several plans at equal knots are computed as one array.

    A plan has the same times whichever plans are computed with it, to the last digit.
    """

    def __init__(self, key: Callable[[ReplicaSpec], Hashable] | None = None) -> None:
        """Start empty; the key of a specification is equal for plans with equal step times. Without keys nothing is shared."""
        self._key = key
        self._known: dict[tuple[Hashable, Knots], PlanTimes] = {}

    def together(self, plans: Plans) -> tuple[StepTable, list[LabelledRates]]:
        """Return the step times of plans at the same knots for all, as arrays of plans, and the rates of each."""
        if any(_by_itself(spec) for spec in plans.specs):
            steps = plans_tables(plans)
            return steps.table, list(steps.rates)
        each = self._at(plans, knots_of(plans))
        return stacked_tables([times.table for times in each]), [times.rates for times in each]

    def of_each(self, plans: Plans) -> list[PlanTimes]:
        """Return the step times of each plan at the knots that it has by itself."""
        groups: dict[tuple[Knots, int | None], list[int]] = {}
        for row, spec in enumerate(plans.specs):
            knots = knots_of(plans.selected([row]))
            groups.setdefault((knots, row if _by_itself(spec) else None), []).append(row)
        found: dict[int, PlanTimes] = {}
        for (knots, _), rows in groups.items():
            found.update(zip(rows, self._at(plans.selected(rows), knots), strict=True))
        return [found[row] for row in range(len(plans.specs))]

    def _at(self, plans: Plans, knots: Knots) -> Sequence[PlanTimes]:
        """Return the step times of each plan at some knots."""
        known = self._known if self._key else {}
        keys = [(self._key(spec) if self._key else row, knots) for row, spec in enumerate(plans.specs)]
        missing = [row for row, key in enumerate(keys) if key not in known]
        if missing:
            steps = plans_tables(plans.selected(missing), knots)
            for place, row in enumerate(missing):
                known[keys[row]] = PlanTimes(table_of_plan(steps.table, place), steps.rates[place])
        return [known[key] for key in keys]


def _by_itself(spec: ReplicaSpec) -> bool:
    """Return whether step times are those of cards with layers in turn, which are computed plan by plan."""
    return bool(spec.device.cards) or spec.efficiency.layer_split is not None
