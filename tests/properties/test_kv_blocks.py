"""Blocks of sequences that grow together, against counting each sequence by itself."""

from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.serving.engine_parts import KvBlocks


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(-50, 400), st.booleans()), max_size=30),
    st.integers(60, 500),
)
def test_blocks_are_those_of_each_sequence_rounded_up(block, sequences, counter):
    held = KvBlocks(block)
    for base, _ in sequences:
        held.join(base)
    for base, leaves in sequences:
        if leaves:
            held.leave(base)
    stay = [base for base, leaves in sequences if not leaves]
    assert held.sequences == len(stay)
    assert held.tokens == sum(stay)
    for later in range(3 * block):
        assert held.blocks(counter + later) == sum(-(-(base + counter + later) // block) for base in stay)
