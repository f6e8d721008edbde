"""Decode steps in CUDA graphs: a batch is padded to the next captured one, as TensorRT-LLM does it."""

from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.memory.launch import Launch
from capplan.replica.tables import device_tables, graph_jumps, padded_batch, step_knots
from capplan.serving.step_table import piecewise_linear
from tests.properties.test_replica_steps import NETWORK, RATES

SIZES = st.lists(st.integers(1, 512), min_size=1, max_size=8, unique=True).map(sorted)


def captured(sizes, most):
    """Return the graphs of an engine: those that fit its largest batch, and that batch where a larger one was asked for."""
    fitting = [size for size in sizes if size <= most]
    return fitting if len(fitting) == len(sizes) or most in fitting else [*fitting, most]


@given(SIZES, st.integers(1, 600), st.data())
def test_a_batch_runs_in_the_next_captured_graph_or_as_it_is(sizes, most, data):
    batch = data.draw(st.integers(1, most))
    graphs = captured(sizes, most)
    place = bisect_left(graphs, batch)
    expected = graphs[place] if place < len(graphs) else batch
    assert padded_batch(float(batch), sizes, float(most)) == expected


def test_without_captured_sizes_nothing_is_padded():
    assert padded_batch(np.array([1.0, 7.0]), (), 64.0).tolist() == [1.0, 7.0]


@pytest.mark.parametrize(("data", "pipeline"), [(1.0, 1.0), (4.0, 1.0), (1.0, 2.0)])
def test_a_padded_step_takes_the_time_of_the_captured_batch_between_all_knots(data, pipeline):
    """Every group of attention and every micro-batch is padded by itself; prompts and cached tokens are not."""
    sizes, engines = (1.0, 8.0, 64.0, 128.0), int(data * pipeline)
    launch = Launch(1.0, 1.0, data, pipeline, 80e9, 2.0, 4096.0, 96.0, 2048.0, 0.9, 16.0).as_columns()
    knots = step_knots(96.0 * engines, 2048.0, 4096.0, (), graph_jumps(sizes, launch))
    padded = device_tables(NETWORK, launch, RATES, knots, sizes).kernels
    plain = device_tables(NETWORK, launch, RATES, step_knots(96.0 * engines, 2048.0, 4096.0)).kernels
    batches = np.arange(1.0, 96.0) * engines
    there = padded_batch(batches / engines, sizes, 96.0) * engines
    held = device_tables(
        NETWORK, launch, RATES, step_knots(96.0 * engines, 2048.0, 4096.0, (), there)
    ).kernels
    found = piecewise_linear(knots.sequences, padded.decode_s[0], batches)
    assert found == pytest.approx(piecewise_linear(held.sequence_knots, held.decode_s[0], there))
    assert np.all(found >= piecewise_linear(held.sequence_knots, held.decode_s[0], batches))
    assert padded.mixed_s[0] == pytest.approx(plain.mixed_s[0])
    assert padded.head_s[0] == pytest.approx(
        piecewise_linear(plain.sequence_knots, plain.head_s[0], knots.sequences)
    )
