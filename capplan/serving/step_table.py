"""The time of one engine step, as tables: all that the serving room knows about a network and its devices.

A step holds S decoding sequences at mean context c, and prefill chunks of n_i new tokens after p_i cached ones:

    decode only   t = D(S) + A(S, c)
    mixed         t = M(T) + H(S + chunks) + A(S, c) + sum_i P(n_i, p_i),   T = S / stages + sum_i n_i

with D, M, H piecewise linear, A bilinear, and P = n times a bilinear time per token: attention over a prompt grows with
the square of its length and its time per token linearly, so P follows the square between the knots and beyond the last
one. Below its first knot a table keeps the first value, above its last knot the last slope; A is zero without decoding
sequences. For a pipeline these are the times of one micro-batch in all stages, except that S and D are those of all
micro-batches in flight; `pipeline.py` says which overlap.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from capplan.errors import InputError
from capplan.numbers import Array, Number


@dataclass(frozen=True, slots=True)
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
    """Time of the front end (HTTP, tokenisation), once per request before its first token."""
    stages: Number = 1.0
    """Pipeline stages."""
    stage_fraction: Number = 1.0
    """Time of the slowest stage over the time of all stages, in a step with prompts."""


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
        "prefill_attention_s": (table.new_knots.size, table.past_knots.size),
    }
    for field in fields(table):
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
    attention = bilinear(
        table.sequence_knots, table.context_knots, table.decode_attention_s, sequences, context_tokens
    )
    step = piecewise_linear(table.sequence_knots, table.decode_s, sequences) + attention
    return np.where(np.asarray(sequences) > 0.0, step, 0.0)


def mixed_step_s(
    table: StepTable,
    sequences: Number,
    context_tokens: Number,
    chunks: Number,
    new_tokens: Number,
    past_tokens: Number,
) -> Array:
    """Return the time of a mixed step with decoding sequences and equal prefill chunks.

        t = M(S / stages + m n) + H(S + m) + A(S, c) + m P(n, p),   P = n P'(n, p)

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
    attention = np.where(
        np.asarray(sequences) > 0.0,
        bilinear(
            table.sequence_knots, table.context_knots, table.decode_attention_s, sequences, context_tokens
        ),
        0.0,
    )
    prefill = new_tokens * bilinear(*prefill_attention_per_token_s(table), new_tokens, past_tokens)
    tokens = piecewise_linear(
        table.token_knots, table.mixed_s, sequences / table.stages + chunks * new_tokens
    )
    head = piecewise_linear(table.sequence_knots, table.head_s, sequences + chunks)
    result: Array = np.asarray(tokens + head + attention + chunks * prefill)
    return result
