"""Step times of one replica, or of an array of replicas, as the tables that the serving room reads.

One call of the step formulas covers all plans and all knots. Every command that needs step times
(estimate, fleet, simulate, validate) reads these tables.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.engine.profile import HostOverhead, Ratios
from capplan.hardware.device import LayerSplit
from capplan.memory.capacity import stage_shares
from capplan.memory.launch import Launch
from capplan.model.network import Network, layer_counts
from capplan.model.sharding import Sharding
from capplan.numbers import Array, Number, distinct
from capplan.operators.llamacpp import split_prompt_ratio
from capplan.phases.cost import OperatorCost, StepRates, floor_s, total_s, unsaved_s
from capplan.phases.step import decode_attention_costs, prefill_attention_costs, token_costs
from capplan.phases.token_work import head_costs, shared_costs
from capplan.replica.offload import PartRates
from capplan.serving.step_table import StepTable, decode_pipeline_pass_s

PACKED_TOKENS = 2048.0
PACKED_PROMPTS = 16.0
"""Short prompts are packed into one step: attention over a prompt is priced as one of several, up to PACKED_PROMPTS, with
PACKED_TOKENS tokens together."""


EXCESS_SHARE = 1.0 / 3.0
"""Excess of a kernel over its floor, as a fraction of its time, in a long prefill: the scale of excess ratios above 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Knots:
    """Where step times are computed; between knots they are interpolated linearly."""

    sequences: Array
    contexts: Array
    tokens: Array
    new: Array
    past: Array


def _geometric(last: float, per_octave: int, first: float = 1.0) -> Array:
    """Return ascending whole numbers from `first` to `last`, `per_octave` per doubling."""
    count = max(2, int(np.ceil(np.log2(max(last, first + 1.0) / first) * per_octave)) + 1)
    return distinct(np.round(np.geomspace(first, max(last, first + 1.0), count)))


def context_limits(network: Network) -> tuple[float, ...]:
    """Return the contexts beyond which attention in some layer reads no more tokens: sliding windows, sparse selection."""
    mixers = (mixer for layer, _ in layer_counts(network) for mixer in layer.mixers)
    return tuple(sorted({bend for mixer in mixers for bend in mixer.description.read_limits}))


def chunk_limits(network: Network) -> tuple[float, ...]:
    """Return the lengths of aligned chunks, at whose end attention of some layer starts again."""
    mixers = (mixer for layer, _ in layer_counts(network) for mixer in layer.mixers)
    parts = (part for mixer in mixers for part in mixer.description.cache_parts if part.chunked)
    return tuple(sorted({float(part.window_tokens) for part in parts}))


CHUNK_KNOTS = (0.0, 0.5, 0.75, 15.0 / 16.0)
"""Cached tokens before a prompt chunk at which its attention is computed, in aligned chunks: it grows until the chunk ends in the next one."""


def padded_batch(sequences: Number, graph_sizes: Sequence[float], max_num_seqs: Number) -> Array:
    """Return the batch that a decode step computes: the smallest captured CUDA graph that holds it.

        b' = min(min {c : c >= b}, B)

    Parameters
    ----------
    sequences : [-]
        b, of one engine.
    graph_sizes : [-]
        c, batches that are captured; none: batches are computed as they are.
    max_num_seqs : [-]
        B, of one engine; it is captured too where a larger size was asked for.

    Returns
    -------
    [-]
        b', never below b; b itself where no graph holds it.

    Examples
    --------
    >>> padded_batch(np.array([3.0, 130.0, 200.0, 250.0]), (2, 4, 128, 256), 224.0).tolist()
    [4.0, 224.0, 224.0, 250.0]

    References
    ----------
    `_filter_cuda_graph_batch_sizes` and `_maybe_pad_batch` of TensorRT-LLM, tensorrt_llm/_torch/pyexecutor
    """
    batch = np.asarray(sequences, dtype=np.float64)
    held = np.full(batch.shape, np.inf)
    for size in graph_sizes:
        held = np.where(size >= batch, np.minimum(held, size), held)
    return np.where(np.isfinite(held), np.maximum(np.minimum(held, max_num_seqs), batch), batch)


def step_knots(
    max_sequences: float,
    max_tokens: float,
    max_context: float,
    bends: Sequence[float] = (),
    batches: Sequence[float] = (),
    graph_ends: Sequence[float] = (),
    chunks: Sequence[float] = (),
) -> Knots:
    """Return knots up to the given sequences, tokens per step and context.

    Four knots per doubling for batches and tokens, where tiles and waves make step times jump; two for contexts, in which
    attention is linear except at its bends, each of which is a knot. Tokens reach the longest context whatever the
    token budget: without chunked prefill a prompt is one step. `past` has a knot at 1, because cached latents are expanded
    again as soon as there is one cached token. `batches` are further knots for sequences: where padded batches jump;
    `graph_ends` are further knots for tokens: on both sides of where a step no longer runs under CUDA graphs. Between the
    first and the last token of each of `chunks` attention is linear.
    """
    starts = [np.arange(0.0, max_context, chunk) for chunk in chunks]
    ends = np.concatenate([np.zeros(0), *(first for first in starts), *(first + 1.0 for first in starts)])
    parts = [
        first + part * chunk for first, chunk in zip(starts, chunks, strict=True) for part in CHUNK_KNOTS
    ]
    inner_bends = np.array([bend for bend in bends if bend < max_context])
    tokens = _geometric(max_tokens, 4)
    if max_context > max_tokens:
        tokens = distinct(np.append(tokens, _geometric(max(max_context, 2.0 * max_tokens), 4, tokens[-1])))
    jumps = [batch for batch in batches if batch <= max_sequences]
    behind = [end for end in graph_ends if 1.0 < end < tokens[-1]]
    return Knots(
        sequences=distinct(np.concatenate([_geometric(max_sequences, 4), jumps])),
        contexts=distinct(np.concatenate([[0.0], _geometric(max_context, 2, 64.0), inner_bends, ends])),
        tokens=distinct(np.append(tokens, behind)),
        new=distinct(np.append(tokens, inner_bends)),
        past=distinct(np.concatenate([[0.0, 1.0], _geometric(max_context, 2, 256.0), inner_bends, *parts])),
    )


def graph_jumps(graph_sizes: Sequence[float], launch: Launch) -> tuple[float, ...]:
    """Return the batches of whole replicas at which the padded batch of some plan jumps, and those right behind them."""
    engines = distinct(np.asarray(launch.data) * np.asarray(launch.pipeline))
    held = np.outer(engines, np.asarray(graph_sizes, dtype=np.float64))
    return tuple(distinct(np.concatenate([held, held + engines[:, None]])).tolist())


def graph_ends(graph_tokens: Array, launch: Launch) -> tuple[float, ...]:
    """Return the largest steps of whole replicas that run under CUDA graphs, and those of one token more."""
    captured = distinct(graph_tokens * np.ravel(launch.data))
    return tuple(distinct(np.concatenate([captured, captured + 1.0])).tolist())


def _spread(time: Number, shape: tuple[int, ...]) -> Array:
    return np.array(np.broadcast_to(time, shape), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class DeviceTables:
    """Step times of the device, without host time.

    A pipeline of p stages keeps p micro-batches in flight, so a decode step with S sequences takes the time of S / p sequences in all
    stages, or longer if the stages differ; prompt times are those of one micro-batch, which passes through the stages one after the other.
    """

    kernels: StepTable
    """Sum of kernel times, each run by itself."""
    floors: StepTable
    """Sum of their roofline times at datasheet rates."""
    unsaved: StepTable
    """Time left if everything that can overlap in a CUDA graph does."""
    ranks: Array
    """Devices that one copy of the model is split over: tensor and pipeline ranks, shape (plans,)."""
    groups: Array
    """Data-parallel groups of attention, each with a host process of its own, shape (plans,)."""
    graph_sequences: Array
    """Sequences of one engine in the largest decode step that runs as a CUDA graph, shape (plans,); 0: all kernels of every step are launched
    one by one."""
    graph_tokens: Array | None = None
    """Tokens of one engine in the largest step with prompts that runs under piecewise CUDA graphs, shape (plans,); None: those of the host."""


def _column(value: Number) -> Array:
    """Return numbers of plans as a column, along which sequences or tokens, and contexts, follow."""
    return np.asarray(value, dtype=np.float64).reshape(-1, 1, 1)


def _costs(
    sharding: Sharding,
    knots: Knots,
    batches: tuple[Array, Array, Array],
    kv_bytes: Array,
    part: PartRates,
) -> tuple[list[OperatorCost], ...]:
    """Return what some layers cost: decoding tokens, their attention, tokens in a mixed step and the attention of prompts.

    The batches are sequences of a micro-batch, those with what fills a CUDA graph, and prompts of one length in a step.
    """
    micro, padded, packed = batches
    contexts, tokens = knots.contexts[None, None, :], knots.tokens[None, :, None]
    new, past = knots.new[None, :, None], knots.past[None, None, :]
    held = part.network
    return (
        token_costs(held, padded, sharding, part.token, decode=True),
        decode_attention_costs(held, micro, contexts, sharding, kv_bytes, part.token),
        token_costs(held, tokens, sharding, part.prompt, decode=False),
        prefill_attention_costs(held, packed, new, past, sharding, kv_bytes, part.prompt),
    )


def _axes(knots: Knots, launch: Launch, largest: Array) -> dict[str, Any]:
    """Return where the times of step tables are given, and how plans divide steps: the same for kernels, floors and what graphs cannot hide."""
    plans = (np.asarray(launch.tensor).size,)
    return {
        "sequence_knots": knots.sequences,
        "context_knots": knots.contexts,
        "token_knots": knots.tokens,
        "new_knots": knots.new,
        "past_knots": knots.past,
        "groups": _spread(np.ravel(launch.data), plans),
        "stages": _spread(np.ravel(launch.pipeline), plans),
        "stage_fraction": _spread(largest, plans),
    }


def device_tables(
    network: Network,
    launch: Launch,
    rates: StepRates,
    knots: Knots,
    graph_sizes: Sequence[float] = (),
    *,
    separate_prefill_pass: bool = False,
    graph_sequences: Array | float = np.inf,
    graph_tokens: Array | None = None,
    parts: Sequence[PartRates] = (),
) -> DeviceTables:
    """Return the step tables of an array of plans without host time; tables have a leading axis of plans.

    Parameters
    ----------
    rates, knots : fields of shape (plans, 1, 1), and where times are computed
    graph_sizes : batches of one engine to which smaller decode steps are padded; their attention is not
    separate_prefill_pass : a step computes its prompts and then its decoding sequences, each by themselves
    graph_sequences : of one engine in the largest decode step that runs as a CUDA graph, numbers over plans
    graph_tokens : of one engine in the largest step with prompts that runs under piecewise CUDA graphs, numbers over plans
    parts : layers that are elsewhere, on other cards or in the memory of the host, each with its rates
    """
    plans, kv_bytes = np.asarray(launch.tensor).size, _column(launch.kv_bytes_per_element)
    split = (launch.tensor, launch.pipeline, launch.expert, launch.data, launch.context)
    sharding = Sharding(*map(_column, split))
    sequences = knots.sequences[None, :, None]
    micro = np.maximum(sequences / sharding.pipeline, 1.0)
    in_flight = np.minimum(sequences, sharding.pipeline)
    largest, last = (_column(share) for share in stage_shares(network, np.asarray(launch.pipeline)))
    padded = _padded(micro, _column(launch.max_num_seqs), sharding.data, graph_sizes)
    head = head_costs(network, micro, sharding, rates)
    decode_head = head if padded is micro else head_costs(network, padded, sharding, rates)
    packed = np.clip(PACKED_TOKENS / knots.new[None, :, None], 1.0, PACKED_PROMPTS)
    everywhere = (PartRates(network, rates, rates), *parts)
    costs = [_costs(sharding, knots, (micro, padded, packed), kv_bytes, part) for part in everywhere]
    decode, cache, mixed, prefill = (list(chain.from_iterable(kind)) for kind in zip(*costs, strict=True))
    by_sequences, by_tokens = (plans, knots.sequences.size), (plans, knots.tokens.size)
    together = shared_costs(mixed, rates.prefill_exchange)
    axes = _axes(knots, launch, largest.ravel()) | {"separate_prefill_pass": separate_prefill_pass}

    def tables(time_s: Callable[[list[OperatorCost]], Number]) -> StepTable:
        pipeline_pass_s = decode_pipeline_pass_s(
            time_s(decode), time_s(decode_head), largest, last, in_flight
        )
        cache_s = time_s(cache) * np.maximum(in_flight * largest, 1.0)
        return StepTable(
            **axes,
            decode_s=_spread(pipeline_pass_s, (*by_sequences, 1))[..., 0],
            head_s=_spread(time_s(head), (*by_sequences, 1))[..., 0],
            decode_attention_s=_spread(cache_s, (*by_sequences, knots.contexts.size)),
            mixed_s=_spread(time_s(mixed), (*by_tokens, 1))[..., 0],
            shared_s=_spread(time_s(together), (*by_tokens, 1))[..., 0],
            prefill_attention_s=_spread(time_s(prefill) / packed, (plans, knots.new.size, knots.past.size)),
        )

    ranks = np.ravel(launch.tensor) * np.ravel(launch.pipeline)
    of_plans = [_spread(value, (plans,)) for value in (ranks, np.ravel(launch.data), graph_sequences)]
    found = DeviceTables(tables(total_s), tables(floor_s), tables(unsaved_s), *of_plans)
    return replace(found, graph_tokens=graph_tokens)


def layers_in_turn(
    device: DeviceTables, split: LayerSplit, largest: Array, devices: Array, piece_tokens: float
) -> DeviceTables:
    """Return the tables of all layers as those of several devices that have them in turn, which all sequences pass together.

    Parameters
    ----------
    device : tables of all layers, each on its device
    split : what further devices cost
    largest : [-]
        part of the time that the slowest device takes, of each plan
    devices : [-]
        of each plan
    piece_tokens : [tokens]
        of a prompt that are computed at once
    """

    def ratio(tokens: Array, shape: tuple[int, ...]) -> Array:
        pieces = np.maximum(tokens / piece_tokens, 1.0)
        return split_prompt_ratio(pieces, largest.reshape(shape), split.stage_ratio)

    def in_turn(table: StepTable) -> StepTable:
        return replace(
            table,
            decode_s=table.decode_s + split.hand_over_s * (devices - 1.0)[:, None],
            mixed_s=table.mixed_s * ratio(table.token_knots, (-1, 1)),
            shared_s=None if table.shared_s is None else table.shared_s * ratio(table.token_knots, (-1, 1)),
            prefill_attention_s=table.prefill_attention_s * ratio(table.new_knots[:, None], (-1, 1, 1)),
        )

    kernels, floors, unsaved = map(in_turn, (device.kernels, device.floors, device.unsaved))
    return replace(device, kernels=kernels, floors=floors, unsaved=unsaved)


def with_plan(tables: DeviceTables, plan: int, one: DeviceTables) -> DeviceTables:
    """Return the tables of an array of plans with those of one plan replaced."""

    def replaced(table: StepTable, other: StepTable) -> StepTable:
        times: dict[str, Any] = {name: values.copy() for name, values in _by_plan(table)}
        for name, values in _by_plan(other):
            times[name][plan] = values[0]
        return replace(table, **times)

    kernels, floors, unsaved = (
        replaced(getattr(tables, name), getattr(one, name)) for name in ("kernels", "floors", "unsaved")
    )
    return replace(tables, kernels=kernels, floors=floors, unsaved=unsaved)


def _padded(sequences: Array, most: Array, groups: Number, graph_sizes: Sequence[float]) -> Array:
    """Return the sequences of a decode step with those that fill the graphs of all attention groups; as they are without graphs."""
    if not graph_sizes:
        return sequences
    return np.asarray(padded_batch(sequences / groups, graph_sizes, most) * groups)


def with_host(
    device: DeviceTables, host: HostOverhead, network: Network, *, offline: bool = False
) -> StepTable:
    """Return step tables with the time that the engine saves on kernels and the time that its host adds.

        D = q(S) (u + r_d (k - u)) + t_step + S t_seq / g,   M = q(T) (f + r_p (k - f)) + t_step,   L = t_launch + t_step

    D is a decode step of S sequences, M a step with T tokens of prompts, L the floor of its launches. k is the sum of kernel times, f that of
    their roofline floors, u the time that cannot overlap. q(n) corrects matrix products with n rows, as measured. g are groups of
    data-parallel attention, each with its own scheduler. t_step includes `ranks_s` if a model is split over several devices. A ratio r
    above 1 adds (r - 1) k EXCESS_SHARE to k instead, so that a faster device is never slower. Attention over contexts of c tokens gains S c t_ctx / g.

    A decode step runs as a CUDA graph. A mixed step takes at least L (`HostOverhead.launch_s`), and so does a decode step beyond the
    largest graph without its attention. Offline there is no t_request, and t_seq has no t_stream.
    """
    kernels = device.kernels

    def remaining(name: str, least_table: StepTable, ratio: float) -> Array:
        whole, least = getattr(kernels, name), getattr(least_table, name)
        longer = max(ratio - 1.0, 0.0) * EXCESS_SHARE
        return np.asarray(least + min(ratio, 1.0) * (whole - least) + longer * whole)

    decode = (device.unsaved, host.decode_excess_ratio)
    prefill = (device.floors, host.prefill_excess_ratio)
    running = kernels.sequence_knots / device.groups[:, None]
    per_sequence, lists_s = host.token_s(offline=offline) * running, host.context_token_s * running[..., None]
    step_s = np.asarray(host.each_step_s(device.ranks))[:, None]
    of_batch, of_tokens = (
        ratio_at(rows, host.row_ratios) for rows in (kernels.sequence_knots, kernels.token_knots)
    )
    layers = len(network.layers) + (network.encoder.tower.layers if network.encoder else 0)
    graphs = device.graph_sequences[:, None]
    captured = kernels.sequence_knots <= graphs * device.groups[:, None] * np.asarray(kernels.stages)[:, None]
    launch_s, eager_s = (
        np.asarray(
            host.launch_s(
                tokens,
                layers,
                network.routed_layers,
                network.latent_layers,
                network.scaled_products,
                captured=None if device.graph_tokens is None else device.graph_tokens[:, None],
            )
        )
        for tokens in (np.where(graphs > 0.0, kernels.token_knots / device.groups[:, None], np.inf), np.inf)
    )
    decode_s = np.maximum(remaining("decode_s", *decode) * of_batch, np.where(captured, 0.0, eager_s))
    return replace(
        kernels,
        decode_s=decode_s + step_s + per_sequence,
        head_s=remaining("head_s", *prefill) * of_batch + per_sequence,
        decode_attention_s=remaining("decode_attention_s", *decode) * host.decode_attention_ratio
        + lists_s * kernels.context_knots,
        mixed_s=remaining("mixed_s", *prefill) * of_tokens + step_s,
        shared_s=None if kernels.shared_s is None else remaining("shared_s", *prefill) * of_tokens,
        launch_s=launch_s + step_s,
        prefill_attention_s=remaining("prefill_attention_s", *prefill),
        request_s=0.0 if offline else host.request_s,
        prompt_token_s=0.0 if offline else host.prompt_token_s,
    )


def ratio_at(size: Number, ratios: Ratios) -> Array:
    """Return the time of a deployment's step of some size over the predicted time.

        ln q(n) = linear in ln n between ln q(n_1), ln q(n_2), ...

    Parameters
    ----------
    size : [-]
        n, sequences or tokens of a step; below the first and beyond the last of the sizes the outermost ratio applies.
    ratios : [-]
        n_1, n_2, ..., in order, each with its q; none: q is 1.

    Returns
    -------
    [-]
        q.

    Examples
    --------
    >>> ratio_at(np.array([1.0, 2.0, 100.0]), ((1, 1.0), (2, 1.2), (4, 0.8))).tolist()
    [1.0, 1.2, 0.8]

    References
    ----------
    Press et al. 2007, "Numerical Recipes", section 3.2.
    """
    sizes, times = np.asarray(ratios or ((1.0, 1.0),), dtype=np.float64).T
    return np.asarray(np.exp(np.interp(np.log(np.maximum(size, 1.0)), np.log(sizes), np.log(times))))


_BY_PLAN = (
    "decode_s",
    "head_s",
    "decode_attention_s",
    "mixed_s",
    "shared_s",
    "launch_s",
    "prefill_attention_s",
)
_NUMBERS = ("stages", "stage_fraction", "groups")
"""Numbers of tables that differ from plan to plan."""


def table_of_plan(tables: StepTable, plan: int) -> StepTable:
    """Return the tables of one plan of an array of plans."""
    times: dict[str, Any] = {name: values[plan] for name, values in _by_plan(tables)}
    plans = tables.decode_s.shape[:1]
    numbers = {name: np.broadcast_to(getattr(tables, name), plans)[plan] for name in _NUMBERS}
    return replace(tables, **times, **numbers)


def tables_of_plans(tables: StepTable, rows: NDArray[np.intp]) -> StepTable:
    """Return the tables of the plans in some rows of an array of plans; a row may come several times."""
    plans = tables.decode_s.shape[:1]
    times: dict[str, Any] = {name: values[rows] for name, values in _by_plan(tables)}
    for name in _NUMBERS:
        times[name] = np.broadcast_to(getattr(tables, name), plans)[rows]
    return replace(tables, **times)


def stacked_tables(tables: Sequence[StepTable]) -> StepTable:
    """Return tables of plans at the same knots as those of an array of plans: the inverse of table_of_plan for all of them."""
    times: dict[str, Any] = {
        name: np.stack([getattr(table, name) for table in tables])
        for name in (*(name for name, _ in _by_plan(tables[0])), *_NUMBERS)
    }
    return replace(tables[0], **times)


def _by_plan(table: StepTable) -> Iterator[tuple[str, Array]]:
    for name in _BY_PLAN:
        if (values := getattr(table, name)) is not None:
            yield name, values
