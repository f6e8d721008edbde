"""The time of one engine step, as tables: all that the serving room knows of models and devices.

An engine with p stages keeps up to p micro-batches in flight. Each holds its part of the decoding sequences and passes
through the stages one after the other; a stage that has passed one on starts the next. A step of the simulator is one
turn: every micro-batch passes through all stages once. Decoding sequences fill all micro-batches, so their turn takes as
long as one micro-batch needs for all stages. Prompts are split into chunks of at most the token budget of a stage and
fill one micro-batch per chunk: a lone chunk has the pipeline to itself and overlaps with nothing.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from capplan.errors import InputError
from capplan.numbers import Array, Number


@dataclass(frozen=True)
class StepTable:
    """Step times of one replica; all times in seconds, knots ascending."""

    sequence_knots: Array
    """Decoding sequences of the replica, shape (s,); starts at 0 or 1."""
    decode_s: Array
    """D: a decode step without attention over the KV cache, shape (s,)."""
    head_s: Array
    """H: LM head, sampling and per-sequence host work of a mixed step, by sequences that need logits, shape (s,)."""
    context_knots: Array
    """Mean tokens in the cache per decoding sequence, shape (c,)."""
    decode_attention_s: Array
    """A, shape (s, c)."""
    token_knots: Array
    """Tokens in a mixed step, shape (t,)."""
    mixed_s: Array
    """M: a mixed step without attention and LM head, shape (t,)."""
    new_knots: Array
    """New tokens of one prefill chunk, shape (n,)."""
    past_knots: Array
    """Tokens cached before the chunk, shape (p,)."""
    prefill_attention_s: Array
    """P, shape (n, p)."""
    request_s: float = 0.0
    """Time of the front end, once per request before its first token."""
    prompt_token_s: float = 0.0
    """Time of the front end per prompt token. It handles prompts in the order in which they come."""
    stages: Number = 1.0
    """Pipeline stages."""
    stage_fraction: Number = 1.0
    """Time of the slowest stage over the time of all stages, in a step with prompts."""
    launch_s: Array | None = None
    """L: least time of a mixed step, which waits until all of its kernels are launched, by its tokens, shape (t,); None: 0."""
    separate_prefill_pass: bool = False
    """A mixed step computes its prompts and then its decoding sequences, each by themselves (llama.cpp's server)."""
    shared_s: Array | None = None
    """Part of M that all groups of data-parallel attention compute together, the routed experts, shape (t,); None: nothing."""
    groups: Number = 1.0
    """Groups of data-parallel attention. M, P and L are those of tokens that are spread evenly over them, but a prompt belongs to one."""

    @property
    def knots(self) -> tuple[Array, ...]:
        """Where times are stated: sequences, contexts, tokens of a step, new and past tokens of a chunk."""
        return self.sequence_knots, self.context_knots, self.token_knots, self.new_knots, self.past_knots

    @cached_property
    def clock(self) -> StepClock:
        """The times of one replica one number at a time, which all of its simulations share."""
        return StepClock(self)

    def slower(self, factor: float) -> StepTable:
        """Return the table of a replica all of whose times are longer by a factor."""
        times = {field.name: getattr(self, field.name) for field in fields(self) if field.name.endswith("_s")}
        return replace(self, **{name: factor * time for name, time in times.items() if time is not None})


def check_step_table(table: StepTable) -> None:
    """Refuse a table with mismatched shapes, knots that do not ascend, or times that are not positive.

    Raises
    ------
    InputError
        names the field and what is wrong with it
    """
    shapes = {
        "decode_s": (table.sequence_knots.size,),
        "head_s": (table.sequence_knots.size,),
        "decode_attention_s": (table.sequence_knots.size, table.context_knots.size),
        "mixed_s": (table.token_knots.size,),
        "shared_s": (table.token_knots.size,),
        "launch_s": (table.token_knots.size,),
        "prefill_attention_s": (table.new_knots.size, table.past_knots.size),
    }
    for field in fields(table):
        if getattr(table, field.name) is None:
            continue
        values = np.asarray(getattr(table, field.name), dtype=np.float64)
        if values.size == 0 or not np.all(np.isfinite(values)) or np.any(values < 0.0):
            raise InputError(f"step table: {field.name} must hold finite numbers of at least 0")
        if field.name.endswith("_knots") and np.any(np.diff(values) <= 0.0):
            raise InputError(f"step table: {field.name} must ascend")
        if field.name == "new_knots" and values[0] <= 0.0:
            raise InputError("step table: new_knots must be positive: a chunk without tokens takes no time")
        if field.name in shapes and values.shape != shapes[field.name]:
            raise InputError(
                f"step table: {field.name} has shape {values.shape}, but its knots have shape {shapes[field.name]}"
            )
    if np.any(table.decode_s <= 0.0) or np.any(table.mixed_s <= 0.0):
        raise InputError("step table: decode_s and mixed_s must be positive")


def bracket(knots: Array, x: Number) -> tuple[NDArray[np.intp], NDArray[np.intp], Array]:
    """Return the knots around x and the weight of the upper one.

        w = max(0, (x - k_i) / (k_{i+1} - k_i)),   above 1 beyond the last knot

    Parameters
    ----------
    knots : [-]
        k, ascending, at least one.
    x : [-]
        position; arrays broadcast.

    Returns
    -------
    index of the lower knot, index of the upper knot, weight of the upper one [-]

    Examples
    --------
    >>> lower, upper, weight = bracket(np.array([0.0, 10.0, 30.0]), 15.0)
    >>> int(lower), int(upper), float(weight)
    (1, 2, 0.25)

    References
    ----------
    Press et al. 2007, "Numerical Recipes", section 3.1 (table search before interpolation).
    """
    last = knots.size - 1
    lower = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, max(last - 1, 0))
    upper = np.minimum(lower + 1, last)
    width = np.where(upper > lower, knots[upper] - knots[lower], 1.0)
    weight = np.where(upper > lower, np.maximum((x - knots[lower]) / width, 0.0), 0.0)
    return lower, upper, weight


def piecewise_linear(knots: Array, values: Array, x: Number) -> Array:
    """Return the value at x of a piecewise linear table.

        f = (1 - w) v_i + w v_{i+1}

    Parameters
    ----------
    knots : [-]
        ascending.
    values : [any]
        v, at the knots.
    x : [-]
        position; arrays broadcast. Below the first knot the first value holds, above the last one the last slope.

    Returns
    -------
    [unit of values]
        f.

    Examples
    --------
    >>> piecewise_linear(np.array([0.0, 10.0]), np.array([1.0, 3.0]), np.array([-5.0, 5.0, 20.0]))
    array([1., 2., 5.])

    References
    ----------
    Press et al. 2007, "Numerical Recipes", section 3.2.
    """
    lower, upper, weight = bracket(knots, x)
    result: Array = np.asarray((1.0 - weight) * values[lower] + weight * values[upper])
    return result


def bilinear(x_knots: Array, y_knots: Array, values: Array, x: Number, y: Number) -> Array:
    """Return the value at (x, y) of a bilinear table.

        f = (1-w)(1-u) v_ij + w(1-u) v_{i+1,j} + (1-w)u v_{i,j+1} + wu v_{i+1,j+1}

    Parameters
    ----------
    x_knots, y_knots : [-]
        ascending.
    values : [any]
        v, shape (x, y).
    x, y : [-]
        position; arrays broadcast against each other.

    Returns
    -------
    [unit of values]
        f.

    Examples
    --------
    >>> table = np.array([[0.0, 2.0], [4.0, 6.0]])
    >>> float(bilinear(np.array([0.0, 1.0]), np.array([0.0, 1.0]), table, 0.5, 0.5))
    3.0

    References
    ----------
    Press et al. 2007, "Numerical Recipes", section 3.6, equations 3.6.4 and 3.6.5.
    """
    i, i_next, w = bracket(x_knots, x)
    j, j_next, u = bracket(y_knots, y)
    low = (1.0 - w) * values[i, j] + w * values[i_next, j]
    high = (1.0 - w) * values[i, j_next] + w * values[i_next, j_next]
    result: Array = np.asarray((1.0 - u) * low + u * high)
    return result


def prefill_attention_per_token_s(table: StepTable) -> tuple[Array, Array, Array]:
    """Return the knots of new and past tokens, and P' at the knots: prefill attention per new token.

        P'(n, p) = P(n, p) / n

    Parameters
    ----------
    table : step times of the replica, or of several along leading axes

    Returns
    -------
    new tokens, past tokens [tokens], and P' [s] with the leading axes of the table; there is one more knot of new tokens
    than in the table, so that the time per token never falls beyond its last knot

    Examples
    --------
    >>> one, two = np.array([1.0]), np.array([10.0, 20.0])
    >>> table = StepTable(one, one, one, one, one[None], one, one, two, one, np.array([[1.0], [4.0]]))
    >>> [values.ravel().tolist() for values in prefill_attention_per_token_s(table)]
    [[10.0, 20.0, 30.0], [1.0], [0.1, 0.2, 0.30000000000000004]]

    References
    ----------
    Dao 2023, "FlashAttention-2", section 3 (queries times keys), https://arxiv.org/abs/2307.08691.
    """
    new, each = table.new_knots, table.prefill_attention_s / table.new_knots[:, None]
    if new.size > 1:
        last = each[..., -1:, :]
        each = np.concatenate([each, last + np.maximum(last - each[..., -2:-1, :], 0.0)], axis=-2)
        new = np.append(new, 2.0 * new[-1] - new[-2])
    return new, table.past_knots, np.asarray(each)


def decode_step_s(table: StepTable, sequences: Number, context_tokens: Number) -> Array:
    """Return the time of a decode step.

        t = D(S) + A(S, c)

    Parameters
    ----------
    table : step times of the replica
    sequences : [-]
        S; a step without sequences takes no time.
    context_tokens : [tokens]
        c, cached before the step, mean over the sequences.

    Returns
    -------
    [s]
        t.

    Examples
    --------
    >>> one = np.array([1.0])
    >>> table = StepTable(np.array([1.0, 3.0]), np.array([2.0, 4.0]), np.array([0.0, 0.0]), np.array([0.0, 10.0]),
    ...     np.array([[0.0, 1.0], [0.0, 3.0]]), one, one, one, one, np.array([[0.0]]))
    >>> float(decode_step_s(table, 2.0, 10.0))
    5.0

    References
    ----------
    Agrawal et al. 2024, "Vidur", section 4 (step time as attention and token-level operators), arXiv:2405.05465.
    """
    attention = _decode_attention_s(table, sequences, context_tokens)
    step = piecewise_linear(table.sequence_knots, table.decode_s, sequences) + attention
    return np.where(np.asarray(sequences) > 0.0, step, 0.0)


def _decode_attention_s(table: StepTable, sequences: Number, context_tokens: Number) -> Array:
    """Return A, the attention of decoding sequences of a mean context."""
    return bilinear(
        table.sequence_knots, table.context_knots, table.decode_attention_s, sequences, context_tokens
    )


def mixed_step_s(
    table: StepTable,
    sequences: Number,
    context_tokens: Number,
    chunks: Number,
    new_tokens: Number,
    past_tokens: Number,
) -> Array:
    """Return the time of a mixed step with decoding sequences and equal prefill chunks.

        t = max(M(y) - E(y) + E(x) + H(S + m) + A(S, c) + r m P(n, p), L(y)),   P = n P'(n, p)
        x = S / stages + m n,   y = S / stages + r m n,   r = g / min(max(m, 1), g)
        t = t(S = 0) + D(S) + A(S, c) if prompts and sequences take a pass each

    Parameters
    ----------
    table : step times of the replica
    sequences : [-]
        S, decoding.
    context_tokens : [tokens]
        c, mean over the decoding sequences.
    chunks : [-]
        m, prefill chunks in the step; may be a fraction (a mean).
    new_tokens : [tokens]
        n of each chunk.
    past_tokens : [tokens]
        p, cached before each chunk.

    Returns
    -------
    [s]
        t; for a pipeline, the time of one micro-batch in all stages. Without chunks it is still a mixed step, which differs
        from decode_step_s.

    Examples
    --------
    >>> one = np.array([1.0])
    >>> table = StepTable(one, one, np.array([0.5]), one, np.array([[0.25]]), np.array([0.0, 100.0]),
    ...     np.array([1.0, 2.0]), one, one, np.array([[0.1]]))
    >>> float(mixed_step_s(table, 10.0, 5.0, 2.0, 20.0, 0.0))
    6.25

    References
    ----------
    Agrawal et al. 2024, "Vidur", section 4 (step time as attention and token-level operators), arXiv:2405.05465.
    """
    if table.separate_prefill_pass and np.any(np.asarray(sequences) > 0.0):
        prompts_s = mixed_step_s(table, 0.0, 0.0, chunks, new_tokens, past_tokens)
        return np.asarray(prompts_s + decode_step_s(table, sequences, context_tokens))
    decoding = np.asarray(sequences) > 0.0
    attention = np.where(decoding, _decode_attention_s(table, sequences, context_tokens), 0.0)
    prefill = new_tokens * bilinear(*prefill_attention_per_token_s(table), new_tokens, past_tokens)
    skew, beside = idle_ratio(table.groups, chunks), sequences / table.stages
    even, tokens = beside + chunks * new_tokens, beside + skew * chunks * new_tokens
    head = piecewise_linear(table.sequence_knots, table.head_s, sequences + chunks)
    working = _mixed_at_s(table, even, tokens) + head + attention + skew * chunks * prefill
    return np.asarray(working if table.launch_s is None else np.maximum(working, launching_s(table, tokens)))


def _mixed_at_s(table: StepTable, even: Number, tokens: Number) -> Array:
    """Return M of so many tokens in the fullest group times the groups, and of so many in all of them for what they compute together."""
    mixed = piecewise_linear(table.token_knots, table.mixed_s, tokens)
    if table.shared_s is None:
        return mixed
    together, all_s = (piecewise_linear(table.token_knots, table.shared_s, x) for x in (even, tokens))
    return np.asarray(mixed - all_s + together)


def idle_ratio(groups: Number, prompts: Number) -> Number:
    """Return how often the tokens of the fullest group of data-parallel attention are the mean of all groups.

        r = g / min(max(m, 1), g)

    A prompt is computed by one group, while groups without one wait for it: all meet in the experts of every layer.

    Parameters
    ----------
    groups : [-]
        g
    prompts : [-]
        m, of equal length, in the step; may be a fraction (a mean)

    Returns
    -------
    [-]
        r, 1 without groups

    Examples
    --------
    >>> [float(idle_ratio(8.0, prompts)) for prompts in (0.5, 1.0, 2.0, 16.0)]
    [8.0, 8.0, 4.0, 1.0]

    References
    ----------
    vLLM, "Data Parallel Deployment" (each rank has its own requests, and ranks without any run empty steps):
    https://docs.vllm.ai/en/latest/serving/data_parallel_deployment.html; SGLang, `prepare_mlp_sync_batch`, srt/managers/scheduler.py.
    """
    ratio: Number = groups / np.minimum(np.maximum(prompts, 1.0), groups)
    return ratio


def launching_s(table: StepTable, tokens: Number) -> Array:
    """Return the least time of a mixed step: that of its launches [s].

    Parameters
    ----------
    table : step times of the replica
    tokens : in the step, of one stage

    Examples
    --------
    >>> one = np.array([1.0])
    >>> table = StepTable(one, one, one, one, one[None], np.array([512.0, 513.0]), one, one, one, one[None], launch_s=np.array([0.01, 0.02]))
    >>> launching_s(table, np.array([100.0, 2000.0])).tolist()
    [0.01, 0.02]
    """
    if table.launch_s is None:
        return np.zeros(np.shape(tokens))
    return piecewise_linear(table.token_knots, table.launch_s, np.minimum(tokens, table.token_knots[-1]))


def prompt_micro_batch(
    new_tokens: Number, longest_tokens: Number, room_tokens: Number, stages: Number
) -> Number:
    """Return the prompt tokens in the largest micro-batch of a step.

        g = max(N / p, min(n, R))

    Parameters
    ----------
    new_tokens : [tokens]
        N, of all prompts of the step
    longest_tokens : [tokens]
        n, of the longest prompt
    room_tokens : [tokens]
        R, budget of a micro-batch left next to its decoding sequences; infinite without chunked prefill
    stages : [-]
        p

    Returns
    -------
    [tokens]
        g; the prompts fill N / g micro-batches, at most p. Prompts of one step are assumed to go to different micro-batches

    Examples
    --------
    A short prompt stays whole, a long one is split, several are spread over the micro-batches:

    >>> [float(prompt_micro_batch(*tokens, 4096.0, 4.0)) for tokens in ((3000.0, 3000.0), (8192.0, 8192.0), (8000.0, 2000.0))]
    [3000.0, 4096.0, 2000.0]

    References
    ----------
    Agrawal et al. 2024, "Sarathi-Serve", section 3.3, arXiv:2403.02310;
    vLLM, `step_with_batch_queue` in vllm/v1/engine/core.py.
    """
    largest: Number = np.maximum(new_tokens / stages, np.minimum(longest_tokens, room_tokens))
    return largest


def pipeline_pass_ratio(micro_batches: Number, before: Number, stage_fraction: Number) -> Number:
    """Return the time of a turn with prompts over the time that one micro-batch takes for all stages.

        r = 1 + (m - 1) f - min((max(m_0, 1) - 1) f, 1 - f)

    Each further micro-batch leaves the last stage a time f later, and consecutive turns fill the pipeline
    only once: with p equal stages, f = 1 / p, M micro-batches take (M + p - 1) / p.

    Parameters
    ----------
    micro_batches : [-]
        m, that hold prompts
    before : [-]
        m_0, that held prompts in the previous turn; 0 if none did
    stage_fraction : [-]
        f, time of the slowest stage over the time of all stages; 1 without a pipeline

    Returns
    -------
    [-]
        r, 1 without a pipeline

    Examples
    --------
    Four chunks on two stages, in two turns, take (4 + 2 - 1) / 2:

    >>> float(pipeline_pass_ratio(2.0, 0.0, 0.5) + pipeline_pass_ratio(2.0, 2.0, 0.5))
    2.5

    A lone chunk takes the time of all stages:

    >>> float(pipeline_pass_ratio(1.0, 0.0, 0.5))
    1.0

    References
    ----------
    Huang et al. 2019, "GPipe", arXiv:1811.06965, section 2.3.
    """
    filled = (np.maximum(before, 1.0) - 1.0) * stage_fraction
    ratio: Number = 1.0 + (micro_batches - 1.0) * stage_fraction - np.minimum(filled, 1.0 - stage_fraction)
    return ratio


def decode_pipeline_pass_s(
    layers_s: Number, head_s: Number, largest_fraction: Number, last_fraction: Number, micro_batches: Number
) -> Number:
    """Return the time between two tokens of a sequence while several micro-batches circulate in the pipeline.

        t = max(l + h, m max(f l, f_p l + h))

    A micro-batch starts its next step when it has passed all stages and the slowest stage has served all the others.

    Parameters
    ----------
    layers_s : [s]
        l, time of one micro-batch in all layers
    head_s : [s]
        h, its time in the LM head, which is on the last stage
    largest_fraction : [-]
        f, layers of the largest stage over all layers
    last_fraction : [-]
        f_p, the same for the last stage
    micro_batches : [-]
        m, in flight

    Returns
    -------
    [s]
        t; with equal stages and no head it is l for up to p micro-batches. All layers are assumed to take the same time

    Examples
    --------
    Two stages of 4 and 4 + 1 ms, with one micro-batch and with two:

    >>> [float(decode_pipeline_pass_s(8.0, 1.0, 0.5, 0.5, in_flight)) for in_flight in (1.0, 2.0)]
    [9.0, 10.0]

    References
    ----------
    Karp 1978, "A characterization of the minimum cycle mean in a digraph", doi:10.1016/0012-365X(78)90011-0.
    """
    slowest = np.maximum(largest_fraction * layers_s, last_fraction * layers_s + head_s)
    turn: Number = np.maximum(layers_s + head_s, micro_batches * slowest)
    return turn


class DecodeRow:
    """Decode steps of one number of sequences: t(c) = base + attention(c), linear between the knots of c."""

    __slots__ = ("base_s", "knots", "slopes_s", "values_s")

    def __init__(self, base_s: float, knots: list[float], values_s: list[float]) -> None:
        """Store knots, values and the slope after each knot; the last slope is extrapolated."""
        if knots[0] > 0.0:
            knots, values_s = [0.0, *knots], [values_s[0], *values_s]
        slopes = [(values_s[i + 1] - values_s[i]) / (knots[i + 1] - knots[i]) for i in range(len(knots) - 1)]
        self.base_s = base_s
        self.knots = knots
        self.values_s = values_s
        self.slopes_s = [*slopes, slopes[-1] if slopes else 0.0]

    def step_s(self, context: float) -> float:
        """Return the time of one step at mean context c."""
        i = bisect_right(self.knots, context) - 1
        return self.base_s + self.values_s[i] + self.slopes_s[i] * (context - self.knots[i])


class StepClock:
    """Times of single steps and runs of steps; see StepTable for the formulas."""

    __slots__ = (
        "_head",
        "_launch",
        "_mixed",
        "_new",
        "_past",
        "_prefill",
        "_rows",
        "_shared",
        "flat_tables",
        "groups",
        "prompt_token_s",
        "request_s",
        "stage_fraction",
        "stages",
        "table",
    )

    def __init__(self, table: StepTable) -> None:
        """Check the table and convert what the simulator needs to lists."""
        check_step_table(table)
        self.table = table
        self._rows: list[DecodeRow | None] = [None] * 64
        self._mixed: list[float] = []
        self._launch: list[float] = []
        self._shared: list[float] = []
        self._head: list[float] = []
        new, past, each = prefill_attention_per_token_s(table)
        self._new: list[float] = new.tolist()
        self._past: list[float] = past.tolist()
        self._prefill: list[list[float]] = each.tolist()
        self.request_s, self.prompt_token_s = float(table.request_s), float(table.prompt_token_s)
        self.stages, self.stage_fraction = int(table.stages), float(table.stage_fraction)
        self.groups = int(table.groups)
        self.flat_tables: dict[tuple[int, int], list[array[float]]] = {}
        """Cached tables of the flat core, by number of sequences and tokens."""

    def row(self, sequences: int) -> DecodeRow:
        """Return the decode steps of this number of sequences."""
        rows = self._rows
        if sequences >= len(rows):
            rows.extend([None] * (2 * sequences - len(rows)))
        row = rows[sequences]
        if row is None:
            table = self.table
            base = float(piecewise_linear(table.sequence_knots, table.decode_s, float(sequences)))
            values = bilinear(
                table.sequence_knots,
                table.context_knots,
                table.decode_attention_s,
                float(sequences),
                table.context_knots,
            )
            row = rows[sequences] = DecodeRow(base, table.context_knots.tolist(), values.tolist())
        return row

    def prefill_attention_s(self, new_tokens: int, past_tokens: int) -> float:
        """Return P(n, p): n times the interpolated time per token."""
        new, past = self._new, self._past
        i, j = bisect_right(new, new_tokens) - 1, bisect_right(past, past_tokens) - 1
        i, j = min(max(i, 0), max(len(new) - 2, 0)), min(max(j, 0), max(len(past) - 2, 0))
        u = v = 0.0
        if new_tokens > new[i] and len(new) > 1:
            u = (new_tokens - new[i]) / (new[i + 1] - new[i])
        if past_tokens > past[j] and len(past) > 1:
            v = (past_tokens - past[j]) / (past[j + 1] - past[j])
        low = self._prefill[i]
        high = self._prefill[i + 1] if u else low
        if not v:
            return new_tokens * (low[j] + u * (high[j] - low[j]))
        at_low = low[j] + v * (low[j + 1] - low[j])
        return new_tokens * (at_low + u * (high[j] + v * (high[j + 1] - high[j]) - at_low))

    def mixed_step_s(
        self, sequences: int, context: float, chunks: Sequence[tuple[int, int]], query_tokens: int = 1
    ) -> float:
        """Return the time of a step with prefill chunks of (new, past) tokens and decoding sequences of `query_tokens` each.

        Groups of data-parallel attention are dealt the chunks in turn.
        """
        if sequences and self.table.separate_prefill_pass:
            return self.mixed_step_s(0, 0.0, chunks) + self.row(sequences).step_s(context)
        tokens, groups = sequences * query_tokens, self.groups
        dealt = [chunks[group::groups] for group in range(min(groups, len(chunks)))]
        even = tokens + sum(new for new, _ in chunks)
        fullest = tokens + groups * max((sum(new for new, _ in part) for part in dealt), default=0)
        seconds = groups * max(
            (sum(self.prefill_attention_s(new, past) for new, past in part) for part in dealt), default=0.0
        )
        if sequences:
            row = self.row(sequences)
            seconds += row.step_s(context) - row.base_s
        seconds += self._mixed_s(fullest) + self._head_s(sequences + len(chunks))
        if self.table.shared_s is not None:
            seconds += self._shared[even] - self._shared[fullest]
        return max(seconds, self._launch[fullest])

    def _mixed_s(self, tokens: int) -> float:
        if tokens >= len(self._mixed):
            size = max(2 * tokens, 1024)
            self._mixed = _dense(self.table.token_knots, self.table.mixed_s, size)
            self._launch = launching_s(self.table, np.arange(size, dtype=np.float64)).tolist()
            if self.table.shared_s is not None:
                self._shared = _dense(self.table.token_knots, self.table.shared_s, size)
        return self._mixed[tokens]

    def _head_s(self, logits: int) -> float:
        if logits >= len(self._head):
            self._head = _dense(self.table.sequence_knots, self.table.head_s, max(2 * logits, 64))
        return self._head[logits]


def _dense(knots: Array, values: Array, size: int) -> list[float]:
    """Return a table of one variable at every whole number below size."""
    result: list[float] = piecewise_linear(knots, values, np.arange(size, dtype=np.float64)).tolist()
    return result
