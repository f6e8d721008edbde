"""Steps of an engine with pipeline stages: which micro-batches overlap.

An engine with p stages keeps up to p micro-batches in flight. Each holds its part of the decoding sequences and passes
through the stages one after the other; a stage that has passed one on starts the next. A step of the simulator is one
turn: every micro-batch passes through all stages once. Decoding sequences fill all micro-batches, so their turn takes as
long as one micro-batch needs for all stages. Prompts are split into chunks of at most the token budget of a stage and
fill one micro-batch per chunk: a lone chunk has the pipeline to itself and overlaps with nothing.
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
    Agrawal et al. 2024, "Sarathi-Serve", section 3.3 (pipeline bubbles of micro-batches of unequal length), arXiv:2403.02310;
    vLLM, `step_with_batch_queue` in vllm/v1/engine/core.py (as many batches in flight as stages).
    """
    largest: Number = np.maximum(new_tokens / stages, np.minimum(longest_tokens, room_tokens))
    return largest


def turn_ratio(micro_batches: Number, before: Number, stage_fraction: Number) -> Number:
    """Return the time of a turn with prompts over the time that one micro-batch takes for all stages.

        r = 1 + (m - 1) f - min((max(m_0, 1) - 1) f, 1 - f)

    The first micro-batch passes through all stages; each further one leaves the last stage a time f later. Consecutive turns
    fill the pipeline only once: with p equal stages, f = 1 / p, M micro-batches take (M + p - 1) / p.

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

    >>> float(turn_ratio(2.0, 0.0, 0.5) + turn_ratio(2.0, 2.0, 0.5))
    2.5

    A lone chunk takes the time of all stages:

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

    >>> [float(decode_turn_s(8.0, 1.0, 0.5, 0.5, in_flight)) for in_flight in (1.0, 2.0)]
    [9.0, 10.0]

    References
    ----------
    Karp 1978, "A characterization of the minimum cycle mean in a digraph", doi:10.1016/0012-365X(78)90011-0: the larger of
    two cycle times, that of a micro-batch and that of a stage.
    """
    slowest = np.maximum(largest_fraction * layers_s, last_fraction * layers_s + head_s)
    turn: Number = np.maximum(layers_s + head_s, micro_batches * slowest)
    return turn
