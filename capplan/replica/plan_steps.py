"""Step times of an array of plans at an array of loads: the step tables reduced to the lengths of one workload."""

from dataclasses import dataclass

import numpy as np

from capplan.numbers import Array, Number
from capplan.serving.closed_form.steady_steps import (
    Lengths,
    StepFunction,
    mean_context_tokens,
    prefill_tokens_per_prompt,
)
from capplan.serving.pipeline import prompt_micro_batch, turn_ratio
from capplan.serving.step_table import StepTable, bracket, prefill_attention_per_token_s


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


@dataclass(frozen=True, slots=True)
class _Line:
    """One table of one variable per plan."""

    knots: Array
    values: Array

    def at(self, x: Array) -> Array:
        """Return the values at x of shape (plans, loads)."""
        lower, upper, weight = bracket(self.knots, x)
        plans = np.arange(self.values.shape[0])[:, None]
        low = self.values[plans, lower]
        values_at: Array = low + (self.values[plans, upper] - low) * weight
        return values_at


def _attention_along_prompt(tables: StepTable, lengths: Lengths) -> _Line:
    """Return prefill attention per new token of one chunk, halfway through its prompt."""
    new, knots, values = prefill_attention_per_token_s(tables)
    plans, columns = np.arange(values.shape[0])[:, None], np.arange(new.size)
    cached = np.broadcast_to(np.reshape(lengths.cached_tokens, (-1, 1)), plans.shape)
    past = cached + np.maximum(prefill_tokens_per_prompt(lengths).reshape(-1, 1) - new, 0.0) / 2.0
    lower, upper, weight = bracket(knots, past)
    cut: Array = values[plans, columns, lower] * (1.0 - weight) + values[plans, columns, upper] * weight
    return _Line(new, cut)


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
    argument is ignored. Every pipeline step is assumed to follow one with as many prompts, so that the pipeline is full
    """
    attention = _attention_at_context(tables, mean_context_tokens(lengths))
    decode = _Line(tables.sequence_knots, tables.decode_s + attention)
    head = _Line(tables.sequence_knots, tables.head_s)
    cache = _Line(tables.sequence_knots, attention)
    mixed = _Line(tables.token_knots, tables.mixed_s)
    chunk = _attention_along_prompt(tables, lengths)
    stages, stage_fraction = (
        np.broadcast_to(value, tables.decode_s.shape[:1])[:, None]
        for value in (tables.stages, tables.stage_fraction)
    )

    def step_s(sequences: Array, context_tokens: Array, prefill_tokens: Array, prompts: Array) -> Array:
        del context_tokens
        plain = decode.at(sequences) * (sequences > 0.0)
        if not np.any(prefill_tokens > 0.0):
            return plain
        chunks = np.maximum(prompts, 1e-9)
        tokens = query_tokens * sequences
        room = np.maximum((budget_tokens - tokens) / stages, 1.0)
        longest = np.minimum(prefill_tokens / chunks, prefill_tokens)
        largest = np.maximum(prompt_micro_batch(prefill_tokens, longest, room, stages), 1e-9)
        micro_batches = np.maximum(prefill_tokens / largest, 1.0)
        busy = (
            mixed.at(tokens / stages + largest)
            + head.at(sequences + chunks)
            + cache.at(sequences) * (sequences > 0.0)
            + prefill_tokens / micro_batches * chunk.at(prefill_tokens / chunks)
        ) * turn_ratio(micro_batches, micro_batches, stage_fraction)
        return np.where(prefill_tokens > 0.0, busy, plain)

    return step_s
