"""Speculative decoding: tokens and time of one round of drafting and verification."""

from collections.abc import Sequence

import numpy as np

from capplan.numbers import Number


def expected_tokens_per_round(acceptance_fraction: Number, draft_tokens: Number) -> Number:
    """Return the tokens that one round adds to a sequence, the bonus token included.

        E = (1 - a^(g+1)) / (1 - a),   g + 1 at a = 1

    Parameters
    ----------
    acceptance_fraction : [-]
        a, the chance that one draft token is accepted given that all before it were, 0 to 1
    draft_tokens : [tokens]
        g, drafted in one round

    Returns
    -------
    [tokens]
        E, between 1 and g + 1; assumes that acceptances are independent

    Examples
    --------
    >>> round(float(expected_tokens_per_round(0.9, 4.0)), 4)
    4.0951
    >>> float(expected_tokens_per_round(1.0, 4.0))
    5.0

    References
    ----------
    Leviathan, Kalman, Matias 2023, "Fast Inference from Transformers via Speculative Decoding",
    arXiv:2211.17192, equation 1.
    """
    acceptance, drafts = np.broadcast_arrays(
        np.asarray(acceptance_fraction, dtype=np.float64), np.asarray(draft_tokens, dtype=np.float64)
    )
    certain = acceptance >= 1.0
    miss = np.where(certain, 1.0, 1.0 - acceptance)
    logarithm = np.log(
        np.maximum(acceptance, np.finfo(float).tiny)
    )  # 1 - alpha^(gamma+1) has no digits left where alpha is almost 1
    tokens: Number = np.where(certain, drafts + 1.0, -np.expm1((drafts + 1.0) * logarithm) / miss)[()]
    return tokens


def expected_tokens_by_position(acceptance_fractions: Sequence[float]) -> float:
    """Return the tokens that one round adds to a sequence, where acceptance differs by position.

        E = 1 + a_1 + a_1 a_2 + ... + a_1 a_2 ... a_g

    Parameters
    ----------
    acceptance_fractions : [-]
        a_i, the chance that the i-th draft is accepted given that all before it were: conditional, so not the share of rounds that
        reach position i, which is a_1 ... a_i

    Returns
    -------
    [tokens]
        E, the bonus token included

    Examples
    --------
    >>> round(expected_tokens_by_position([0.8, 0.5]), 4)
    2.2

    References
    ----------
    Leviathan, Kalman, Matias 2023, arXiv:2211.17192, equation 1 with an acceptance for each position.
    """
    return 1.0 + float(np.cumprod(np.asarray(acceptance_fractions, dtype=np.float64)).sum())


def acceptance_of_round(tokens_per_round: float, draft_tokens: float) -> float:
    """Return the acceptance with which rounds yield as many tokens as were counted: the inverse of expected_tokens_per_round.

        (1 - a^(g+1)) / (1 - a) = E

    The accepted share of all drafts, which engines print, is not it: that counts drafts behind a rejected one too.

    Parameters
    ----------
    tokens_per_round : [tokens]
        E, the bonus token included; 1 to g + 1
    draft_tokens : [tokens]
        g, the mean where rounds differ

    Returns
    -------
    [-]
        a, the same for all positions, found by halving

    Examples
    --------
    >>> round(acceptance_of_round(3.68928, 5.0), 6)
    0.8
    >>> round(acceptance_of_round(6.0, 5.0), 6), round(acceptance_of_round(1.0, 5.0), 6)
    (1.0, 0.0)

    References
    ----------
    Leviathan, Kalman, Matias 2023, arXiv:2211.17192, equation 1, solved for alpha.
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        enough = float(expected_tokens_per_round(middle, draft_tokens)) >= tokens_per_round
        low, high = (low, middle) if enough else (middle, high)
    return high


def round_tokens(acceptance_fractions: Sequence[float], draft_tokens: int) -> float:
    """Return the tokens of a round with one acceptance for all positions, or one for each of the first.

    Examples
    --------
    >>> round_tokens([0.5], 2), round_tokens([0.5, 0.5], 1)
    (1.75, 1.5)
    """
    if len(acceptance_fractions) == 1:
        return float(expected_tokens_per_round(acceptance_fractions[0], float(draft_tokens)))
    return expected_tokens_by_position(acceptance_fractions[:draft_tokens])


def round_time_s(draft_tokens: Number, draft_step_s: Number, verify_s: Number) -> Number:
    """Return the time of one round: the drafts in sequence, then one verification.

        t = g t_d + t_v

    Parameters
    ----------
    draft_tokens : [tokens]
        g
    draft_step_s : [s]
        t_d, one decode step of the draft
    verify_s : [s]
        t_v, one step of the target over g + 1 tokens of every sequence

    Returns
    -------
    [s]
        t, without rejection sampling

    Examples
    --------
    >>> round(round_time_s(5.0, 0.002, 0.035), 6)
    0.045

    References
    ----------
    Leviathan, Kalman, Matias 2023, arXiv:2211.17192, section 3.2.
    """
    return draft_tokens * draft_step_s + verify_s


def speculative_speedup_ratio(expected_tokens: Number, round_s: Number, target_step_s: Number) -> Number:
    """Return how many times faster a sequence decodes with drafts than without.

        speedup = E t_t / t

    Parameters
    ----------
    expected_tokens : [tokens]
        E, of one round
    round_s : [s]
        t, of one round
    target_step_s : [s]
        t_t, of one plain decode step of the target at the same batch

    Returns
    -------
    [-]
        below 1 where drafting costs more than it saves

    Examples
    --------
    >>> speculative_speedup_ratio(3.0, 0.045, 0.030)
    2.0

    References
    ----------
    Leviathan, Kalman, Matias 2023, arXiv:2211.17192, theorem 3.8.
    """
    return expected_tokens * target_step_s / round_s
