"""Step times of one replica, or of an array of replicas, as the tables that serving reads.

One call of the step formulas over all plans and all knots; everything that asks how long a step takes
(estimate, fleet, simulate, validate) reads these tables.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from capplan.engine.profile import HostOverhead
from capplan.memory.launch import Launch
from capplan.memory.stages import stage_shares
from capplan.model.network import Network
from capplan.model.sharding import Sharding
from capplan.numbers import Array, Number
from capplan.phases.cost import OperatorCost, floor_s, total_s, unsaved_s
from capplan.phases.rates import StepRates
from capplan.phases.step import decode_attention_costs, prefill_attention_costs, token_costs
from capplan.phases.token_work import head_costs
from capplan.serving.pipeline import decode_turn_s
from capplan.serving.step_table import StepTable

CROWD_TOKENS = 2048.0
CROWD_PROMPTS = 16.0
"""Short prompts share a step: attention over one of them is priced as one of so many that make up CROWD_TOKENS."""


EXCESS_SHARE = 1.0 / 3.0
"""What a kernel takes over its floor, as a share of its time, in a long prefill: the measure of ratios above 1."""


@dataclass(frozen=True, slots=True)
class Knots:
    """Where step times are worked out; between knots they are linear."""

    sequences: Array
    contexts: Array
    tokens: Array
    new: Array
    past: Array


def _geometric(last: float, per_octave: int, first: float = 1.0) -> Array:
    """Return ascending whole numbers from `first` to `last`, `per_octave` to each doubling."""
    count = max(2, int(np.ceil(np.log2(max(last, first + 1.0) / first) * per_octave)) + 1)
    knots: Array = np.unique(np.round(np.geomspace(first, max(last, first + 1.0), count)))
    return knots


def context_limits(network: Network) -> tuple[float, ...]:
    """Return the contexts from which attention of some layer reads no more: windows and chosen tokens."""
    mixers = (mixer for layer in set(network.layers) for mixer in layer.mixers)
    return tuple(sorted({bend for mixer in mixers for bend in mixer.description.read_limits}))


def step_knots(
    max_sequences: float, max_tokens: float, max_context: float, bends: Sequence[float] = ()
) -> Knots:
    """Return knots that reach the given sequences, tokens of one step and context.

    Four to the doubling for batches and tokens, where tiles and waves make steps; two for contexts,
    in which attention is linear but for its bends: a chord across one would lie below the cache that is read.
    Tokens reach the longest context whatever the budget of a step is: a prompt that is not cut is one step.
    With the first cached token latents are expanded again, so one of `past` stands for itself.
    """
    turns = np.array([bend for bend in bends if bend < max_context])
    tokens = _geometric(max_tokens, 4)
    if max_context > max_tokens:
        tokens = np.unique(np.append(tokens, _geometric(max(max_context, 2.0 * max_tokens), 4, tokens[-1])))
    return Knots(
        sequences=_geometric(max_sequences, 4),
        contexts=np.unique(np.concatenate([[0.0], _geometric(max_context, 2, 64.0), turns])),
        tokens=tokens,
        new=np.unique(np.append(tokens, turns)),
        past=np.unique(np.concatenate([[0.0, 1.0], _geometric(max_context, 2, 256.0), turns])),
    )


def _spread(time: Number, shape: tuple[int, ...]) -> Array:
    return np.array(np.broadcast_to(time, shape), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class DeviceTables:
    """Step times of the device alone."""

    kernels: StepTable
    """Kernels timed one by one."""
    floors: StepTable
    """Their physical floors."""
    unsaved: StepTable
    """What is left of them if all that can overlap in a CUDA graph does."""


def device_tables(network: Network, launch: Launch, rates: StepRates, knots: Knots) -> DeviceTables:
    """Return the step tables of an array of plans without any host work; tables have a leading axis of plans.

    Parameters
    ----------
    network : the model, in the weight format of these plans
    launch : parallelism and cache dtype, arrays over plans
    rates : fields of shape (plans, 1, 1)
    knots : where times are worked out

    Returns
    -------
    tables [s]; a pipeline of p stages carries p micro-batches at once, so a decode step over S sequences
    takes as long as all stages over S / p, or longer where the stages differ; prompts are those of one
    micro-batch, which goes through one stage after the other
    """
    plans = np.asarray(launch.tensor).size

    def column(value: Number) -> Array:
        return np.asarray(value, dtype=np.float64).reshape(-1, 1, 1)

    sharding = Sharding(*map(column, (launch.tensor, launch.pipeline, launch.expert, launch.data)))
    kv_bytes, stages = column(launch.kv_bytes_per_element), sharding.pipeline
    sequences, contexts = knots.sequences[None, :, None], knots.contexts[None, None, :]
    tokens, new, past = knots.tokens[None, :, None], knots.new[None, :, None], knots.past[None, None, :]
    micro, flying = np.maximum(sequences / stages, 1.0), np.minimum(sequences, stages)
    largest, last = (column(share) for share in stage_shares(network, np.asarray(launch.pipeline)))
    decode = token_costs(network, micro, sharding, rates, decode=True)
    head = head_costs(network, micro, sharding, rates)
    cache = decode_attention_costs(network, micro, contexts, sharding, kv_bytes, rates)
    mixed = token_costs(network, tokens, sharding, rates, decode=False)
    beside = np.clip(CROWD_TOKENS / new, 1.0, CROWD_PROMPTS)
    prefill = prefill_attention_costs(network, beside, new, past, sharding, kv_bytes, rates)
    rows, columns = knots.sequences.size, knots.tokens.size

    def tables(time_s: Callable[[list[OperatorCost]], Number]) -> StepTable:
        return StepTable(
            sequence_knots=knots.sequences,
            decode_s=_spread(
                decode_turn_s(time_s(decode), time_s(head), largest, last, flying), (plans, rows, 1)
            )[..., 0],
            head_s=_spread(time_s(head), (plans, rows, 1))[..., 0],
            context_knots=knots.contexts,
            decode_attention_s=_spread(
                time_s(cache) * np.maximum(flying * largest, 1.0), (plans, rows, knots.contexts.size)
            ),
            token_knots=knots.tokens,
            mixed_s=_spread(time_s(mixed), (plans, columns, 1))[..., 0],
            new_knots=knots.new,
            past_knots=knots.past,
            prefill_attention_s=_spread(time_s(prefill) / beside, (plans, knots.new.size, knots.past.size)),
            stages=_spread(np.ravel(launch.pipeline), (plans,)),
            stage_fraction=_spread(largest.ravel(), (plans,)),
        )

    return DeviceTables(tables(total_s), tables(floor_s), tables(unsaved_s))


def with_host(device: DeviceTables, host: HostOverhead, layers: int, *, offline: bool = False) -> StepTable:
    """Return step tables with what the engine saves of the kernels and what its host adds.

        D = u + r_d (k - u) + t_step + S t_seq,   M = max(f + r_p (k - f), layers t_eager) + t_step

    with k the kernels timed one by one, f their floors, u what cannot overlap. A ratio r above 1 adds
    (r - 1) k EXCESS_SHARE to k instead, so that a faster device is never slower. A decode step runs under CUDA
    graphs; a step with more prompt tokens than graphs were captured for cannot end before its kernels are
    launched, layer by layer. Offline there is no server: no t_request, and t_seq without t_stream.
    """
    kernels = device.kernels

    def remaining(name: str, least_table: StepTable, ratio: float) -> Array:
        whole, least = getattr(kernels, name), getattr(least_table, name)
        longer = max(ratio - 1.0, 0.0) * EXCESS_SHARE
        time: Array = least + min(ratio, 1.0) * (whole - least) + longer * whole
        return time

    decode = (device.unsaved, host.decode_excess_ratio)
    prefill = (device.floors, host.prefill_excess_ratio)
    per_sequence = host.token_s(offline=offline) * kernels.sequence_knots
    launching = np.where(kernels.token_knots > host.graph_tokens, host.eager_layer_s * layers, 0.0)
    return replace(
        kernels,
        decode_s=remaining("decode_s", *decode) + host.step_s + per_sequence,
        head_s=remaining("head_s", *prefill) + per_sequence,
        decode_attention_s=remaining("decode_attention_s", *decode),
        mixed_s=np.maximum(remaining("mixed_s", *prefill), launching) + host.step_s,
        prefill_attention_s=remaining("prefill_attention_s", *prefill),
        request_s=0.0 if offline else host.request_s,
    )


def table_of_plan(tables: StepTable, plan: int) -> StepTable:
    """Return the tables of one plan out of those of an array of plans."""
    return replace(
        tables,
        decode_s=tables.decode_s[plan],
        head_s=tables.head_s[plan],
        decode_attention_s=tables.decode_attention_s[plan],
        mixed_s=tables.mixed_s[plan],
        prefill_attention_s=tables.prefill_attention_s[plan],
        stages=np.broadcast_to(tables.stages, tables.decode_s.shape[:1])[plan],
        stage_fraction=np.broadcast_to(tables.stage_fraction, tables.decode_s.shape[:1])[plan],
    )


def table_of_plans(table: StepTable) -> StepTable:
    """Return the tables of one plan as those of an array of one: the way back from table_of_plan."""
    return replace(
        table,
        decode_s=table.decode_s[None],
        head_s=table.head_s[None],
        decode_attention_s=table.decode_attention_s[None],
        mixed_s=table.mixed_s[None],
        prefill_attention_s=table.prefill_attention_s[None],
    )
