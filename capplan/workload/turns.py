"""Conversations in a trace: which blocks of a prompt are the output of the previous turn."""

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

LARGEST_BLOCK_TOKENS = 64
"""Tokens of the largest block; the last whole block of a prompt in larger ones does not identify the next turn well enough (an assumption)."""


def output_blocks(
    block_ids: Counts,
    block_counts: Counts,
    input_tokens: Counts,
    output_tokens: Counts,
    block_tokens: int,
) -> tuple[Counts, Counts]:
    """Return the blocks completed by each output, under the ids that the prompt of the next turn gives them.

    A request is the next turn of an earlier one if its prompt starts with all whole blocks of that prompt, the last of
    which first occurred there or in a turn before it, and is long enough to contain that output too.

    Parameters
    ----------
    block_ids : [-]
        of all prompts, concatenated in order of arrival; equal ids stand for equal prefixes.
    block_counts : [blocks]
        of each prompt.
    input_tokens, output_tokens, block_tokens : [tokens]
        of each request, and of one block.

    Returns
    -------
    ids of all outputs, concatenated, and the number of blocks of each [blocks]

    Examples
    --------
    A prompt of two blocks, an output of two more, and the next turn, of five blocks:

    >>> ids, counts = np.array([1, 2, 1, 2, 3, 4, 5]), np.array([2, 5])
    >>> output_blocks(ids, counts, np.array([32, 80]), np.array([32, 8]), 16)
    (array([3, 4]), array([2, 0]))

    References
    ----------
    Alibaba, qwen-bailian-usagetraces-anon: prompts of later turns contain the earlier ones with their outputs,
    https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon.
    """
    ends = np.cumsum(block_counts)
    ids = block_ids.tolist()
    outputs: list[list[int]] = [[] for _ in range(block_counts.size)]
    seen: set[int] = set()
    last: dict[int, int] = {}
    columns = (ends - block_counts, ends, input_tokens, output_tokens)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    ready: list[tuple[int, int]] = []
    for row, (start, end, prompt, output) in enumerate(rows):
        prompt_ids = ids[start:end][: prompt // block_tokens]
        ready.append((len(prompt_ids), prompt + output))
        before = _previous_turn(prompt_ids, last, ready)
        goes_on = False
        if before is not None:
            first, said = ready[before]
            whole, goes_on = said // block_tokens, first == len(prompt_ids) and said <= prompt
            if whole <= len(prompt_ids) and not outputs[before]:
                outputs[before] = prompt_ids[first:whole]
        if prompt_ids and (goes_on or prompt_ids[-1] not in seen):
            last[prompt_ids[-1]] = row
        seen.update(prompt_ids)
    counts = np.array([len(output_ids) for output_ids in outputs], dtype=np.int64)
    return np.array([block for output_ids in outputs for block in output_ids], dtype=np.int64), counts


def _previous_turn(prompt_ids: list[int], last: dict[int, int], ready: list[tuple[int, int]]) -> int | None:
    """Return the row of the longest earlier prompt that this one starts with; None for a first turn.

    `ready` has the whole blocks of each prompt, and its tokens with those of its output.
    """
    for place in range(len(prompt_ids) - 1, -1, -1):
        before = last.get(prompt_ids[place])
        if before is not None and ready[before][0] == place + 1:
            return before
    return None
