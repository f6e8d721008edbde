"""Steps of an engine whose layers are cut into pipeline stages: which of its micro-batches overlap.

An engine of p stages keeps up to p micro-batches in flight. Each holds its part of the decoding sequences, goes through
the stages one after the other and takes the time of all layers; a stage that has passed one on begins the next. A step of
the simulator is one turn of all of them. Decoding sequences fill all micro-batches, so their turn takes as long as one
micro-batch needs for all stages. Prompts fill only as many as they are, cut to the tokens that an engine takes at once:
a lone chunk has all stages to itself and overlaps with nothing.
"""

import numpy as np

from capplan.numbers import Number


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
        n, of the longest of them
    room_tokens : [tokens]
        R, that a micro-batch takes beside its decoding sequences; infinite where prompts are not cut
    stages : [-]
        p

    Returns
    -------
    [tokens]
        g; the prompts fill N / g micro-batches, at most p. Prompts that wait together are taken to lie in different ones

    Examples
    --------
    A prompt alone stays in one piece, a longer one is cut, several are dealt out:

    >>> [float(prompt_micro_batch(*tokens, 4096.0, 4.0)) for tokens in ((3000.0, 3000.0), (8192.0, 8192.0), (8000.0, 2000.0))]
    [3000.0, 4096.0, 2000.0]

    References
    ----------
    Agrawal et al. 2024, "Sarathi-Serve", section 3.3 (pipeline bubbles of micro-batches of unequal length), arXiv:2403.02310;
    vLLM, `step_with_batch_queue` in vllm/v1/engine/core.py (as many batches in flight as stages).
    """
    largest: Number = np.maximum(new_tokens / stages, np.minimum(longest_tokens, room_tokens))
    return largest


def turn_ratio(micro_batches: Number, before: Number, stage_fraction: Number) -> Number:
    """Return how long a turn with prompts takes, in times that one micro-batch needs for all stages.

        r = 1 + (m - 1) f - min((max(m_0, 1) - 1) f, 1 - f)

    The first micro-batch takes all stages, each further one leaves a time f behind it. Over turns that follow one another
    the stages are filled once: with p equal stages, f = 1 / p, M micro-batches take (M + p - 1) / p.

    Parameters
    ----------
    micro_batches : [-]
        m, that hold prompts
    before : [-]
        m_0, that held prompts in the turn before; 0 where none did
    stage_fraction : [-]
        f, part of the slowest stage in the time of all; 1 without a pipeline

    Returns
    -------
    [-]
        r, 1 without a pipeline

    Examples
    --------
    Four chunks on two stages in two turns fill the stages five half times:

    >>> float(turn_ratio(2.0, 0.0, 0.5) + turn_ratio(2.0, 2.0, 0.5))
    2.5

    A lone chunk goes through one stage after the other:

    >>> float(turn_ratio(1.0, 0.0, 0.5))
    1.0

    References
    ----------
    Huang et al. 2019, "GPipe", arXiv:1811.06965, section 2.3 (bubble of (p - 1) / (M + p - 1)).
    """
    filled = (np.maximum(before, 1.0) - 1.0) * stage_fraction
    ratio: Number = 1.0 + (micro_batches - 1.0) * stage_fraction - np.minimum(filled, 1.0 - stage_fraction)
    return ratio


def decode_turn_s(
    layers_s: Number, head_s: Number, largest_fraction: Number, last_fraction: Number, micro_batches: Number
) -> Number:
    """Return the time between two tokens of a sequence while several micro-batches go round.

        t = max(l + h, m max(f l, f_p l + h))

    A micro-batch comes round once it has been through all stages, and once the slowest stage has worked on all others.

    Parameters
    ----------
    layers_s : [s]
        l, of one micro-batch in all layers
    head_s : [s]
        h, of the same in the LM head, which the last stage has besides its layers
    largest_fraction : [-]
        f, layers of the fullest stage over all layers
    last_fraction : [-]
        f_p, of the last stage
    micro_batches : [-]
        m, in flight

    Returns
    -------
    [s]
        t, with equal stages and no head l + h for up to p micro-batches; layers are taken as equal

    Examples
    --------
    Two stages of 4 and 4 + 1 ms, with one micro-batch and with two:

    >>> [float(decode_turn_s(8.0, 1.0, 0.5, 0.5, flying)) for flying in (1.0, 2.0)]
    [9.0, 10.0]

    References
    ----------
    Karp 1978, "A characterization of the minimum cycle mean in a digraph", doi:10.1016/0012-365X(78)90011-0: the longest
    of the cycles that a micro-batch and that a stage go through.
    """
    slowest = np.maximum(largest_fraction * layers_s, last_fraction * layers_s + head_s)
    turn: Number = np.maximum(layers_s + head_s, micro_batches * slowest)
    return turn
