"""What multiplies the work of a request (samples, retries, reasoning, padding), and classes split by the length of their prompts or by a share."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from capplan.numbers import Array, Number
from capplan.workload.length import Lengths, empirical, fixed
from capplan.workload.request_class import RequestClass, with_scaled_rate

SLICES = 4096
"""Values of equal weight that stand for a combined length."""
_SEED = 5


def mean_attempts(invalid_fraction: Number, most_attempts: Number) -> Number:
    """Return the mean number of attempts until the output is valid or the limit of attempts is reached.

        a = sum_{k=0..m-1} p^k = (1 - p^m) / (1 - p)

    Parameters
    ----------
    invalid_fraction : [-]
        p, of the outputs, below 1; independent of the attempt.
    most_attempts : [-]
        m, at least 1.

    Returns
    -------
    [-]
        a; 1 / (1 - p) where nobody gives up.

    Examples
    --------
    >>> mean_attempts(0.5, 3.0), mean_attempts(0.0, 3.0)
    (1.75, 1.0)

    References
    ----------
    Johnson, Kemp, Kotz 2005, Univariate Discrete Distributions, section 5.2: the geometric distribution, cut at m.
    """
    return (1.0 - invalid_fraction**most_attempts) / (1.0 - invalid_fraction)


def batch_arrival_cv(arrival_cv: Number, batch: Number) -> Number:
    """Return the coefficient of variation of the times between arrivals that come in batches.

        c_b = sqrt(b (c^2 + 1) - 1)

    Of b times between arrivals b - 1 are zero, and one is that between batches.

    Parameters
    ----------
    arrival_cv : [-]
        c, of the times between batches.
    batch : [-]
        b, arrivals at once.

    Returns
    -------
    [-]
        c_b.

    Examples
    --------
    >>> float(batch_arrival_cv(1.0, 5.0)), float(batch_arrival_cv(2.0, 1.0))
    (3.0, 2.0)

    References
    ----------
    Cox 1962, "Renewal Theory", section 1.2: moments of a mixture of intervals.
    """
    return np.sqrt(batch * (np.square(arrival_cv) + 1.0) - 1.0)


def thinned_arrival_cv(arrival_cv: Number, share_fraction: Number) -> Number:
    """Return the coefficient of variation of the times between arrivals of which a share is kept, each by chance.

        c_s = sqrt(1 + s (c^2 - 1))

    The time between two that are kept is the sum of a geometric number of times between arrivals.

    Parameters
    ----------
    arrival_cv : [-]
        c, of the times between all arrivals.
    share_fraction : [-]
        s, that is kept.

    Returns
    -------
    [-]
        c_s; 1 stays 1, for a share of a Poisson process is one.

    Examples
    --------
    >>> float(thinned_arrival_cv(3.0, 1.0)), float(thinned_arrival_cv(1.0, 0.2)), float(thinned_arrival_cv(3.0, 0.375))
    (3.0, 1.0, 2.0)

    References
    ----------
    Cox 1962, "Renewal Theory", section 1.4 and exercises: a random number of renewals.
    """
    return np.sqrt(1.0 + share_fraction * (np.square(arrival_cv) - 1.0))


def longest_of(lengths: Lengths, batch: int) -> Lengths:
    """Return the distribution of the longest of several lengths, to which a batch is padded.

        Q_b(u) = Q(u^(1/b))

    Parameters
    ----------
    lengths : [tokens]
        quantile function Q.
    batch : [-]
        b, sequences that are padded to the longest of them.

    Returns
    -------
    [tokens]
        as values of equal weight.

    Examples
    --------
    >>> from capplan.workload.length import uniform
    >>> round(longest_of(uniform(0.0, 100.0), 4).mean_tokens, 1)
    80.0

    References
    ----------
    David, Nagaraja 2003, Order Statistics, section 2.1: the distribution function of a maximum is F^b.
    """
    if batch == 1 or lengths.kind == "fixed":
        return lengths
    middles = (np.arange(SLICES) + 0.5) / SLICES
    return empirical(np.maximum(lengths.quantile(middles ** (1.0 / batch)), 1.0))


def padding_fraction(mean_tokens: Number, longest_tokens: Number) -> Number:
    """Return the share of the tokens of padded sequences that is padding.

        w = 1 - I / I_b

    Parameters
    ----------
    mean_tokens : [token]
        I, of the sequences.
    longest_tokens : [token]
        I_b, mean of the longest of a batch.

    Returns
    -------
    [-]
        w.

    Examples
    --------
    >>> padding_fraction(300.0, 400.0)
    0.25

    References
    ----------
    Krell et al. 2021, "Efficient sequence packing without cross-contamination", arXiv:2107.02027, section 1.
    """
    return 1.0 - mean_tokens / longest_tokens


def sum_of(first: Lengths, second: Lengths) -> Lengths:
    """Return the distribution of the sum of two independent lengths, such as reasoning and the answer after it.

    Examples
    --------
    >>> sum_of(fixed(100.0), fixed(20.0)).mean_tokens
    120.0
    """
    if first.kind == "fixed" and second.kind == "fixed":
        return fixed(first.mean_tokens + second.mean_tokens)
    mixed = np.random.default_rng(_SEED).permutation(first.midpoints(SLICES))
    return empirical(mixed + second.midpoints(SLICES))


FEWEST_USERS = 2.0
"""Users of a class of which two parts have one each."""
VALUES = 2000
"""Prompts of equal weight that stand for a distribution."""


def prompt_tokens(lengths: Lengths) -> Array:
    """Return the prompt lengths that stand for a distribution, ascending."""
    return lengths.quantile((np.arange(VALUES) + 0.5) / VALUES)


def split_by_prompt_length(
    item: RequestClass, tokens: float
) -> tuple[RequestClass | None, RequestClass | None]:
    """Return a class cut in two: prompts of at most so many tokens, and longer ones; None for a part without requests."""
    values = prompt_tokens(item.input_tokens)
    parts: list[RequestClass | None] = []
    for name, mine in (("up to", values[values <= tokens]), ("above", values[values > tokens])):
        if not len(mine):
            parts.append(None)
        elif len(mine) == len(values):
            parts.append(item)
        else:
            share = len(mine) / len(values)
            cut = replace(item, name=f"{item.name}, {name} {tokens:g}", input_tokens=empirical(mine))
            parts.append(with_scaled_rate(cut, share))
    return parts[0], parts[1]


def divisible(item: RequestClass) -> bool:
    """Return whether the requests of a class may be divided by length: none of them belongs to another."""
    return item.users is None and item.sessions is None and item.reuse is None


def dealt_by_share(item: RequestClass) -> bool:
    """Return whether a class may be dealt out by weight: request by request, or user by user where there are several users."""
    return item.sessions is None and item.reuse is None and (item.users is None or item.users >= FEWEST_USERS)


def users_of_share(users: float, share: float) -> float:
    """Return the whole users in a share of the users of a class; each user stays in one part.

        n_s = floor(s n + 1/2)

    Parameters
    ----------
    users : [user]
        n, of the class.
    share : [-]
        s, of the users.

    Returns
    -------
    [user]
        n_s; those of s and of 1 - s are all users, unless both end in a half.

    Examples
    --------
    >>> users_of_share(120.0, 0.2), users_of_share(7.0, 0.35), users_of_share(7.0, 0.65)
    (24.0, 2.0, 5.0)

    References
    ----------
    Balinski, Young 2001, "Fair Representation", section 3: a method of divisors that rounds at one half (Webster).
    """
    return float(np.floor(share * users + 0.5))


def share_of(item: RequestClass, share: float) -> RequestClass:
    """Return a share of a class, which a router deals out by weight: each request by chance, or whole users, who stay in their part."""
    if item.users is not None:
        return replace(item, users=users_of_share(item.users, share))
    return replace(
        with_scaled_rate(item, share), arrival_cv=float(thinned_arrival_cv(item.arrival_cv, share))
    )


def part_of_classes(
    classes: Sequence[RequestClass],
    above_tokens: float | None,
    up_to_tokens: float | None,
    share: float | None = None,
) -> tuple[RequestClass, ...]:
    """Return the parts of classes whose prompts have some lengths, or a share of each; classes without such a prompt are left out."""
    kept = tuple(classes if share is None else (share_of(item, share) for item in classes))
    if up_to_tokens is not None:
        kept = tuple(
            part for item in kept if (part := split_by_prompt_length(item, up_to_tokens)[0]) is not None
        )
    if above_tokens is not None:
        kept = tuple(
            part for item in kept if (part := split_by_prompt_length(item, above_tokens)[1]) is not None
        )
    return kept


def thresholds(classes: Sequence[RequestClass], parts: Sequence[float]) -> tuple[float, ...]:
    """Return prompt lengths that these parts of all requests do not exceed, with two significant digits, ascending."""
    values = np.concatenate([prompt_tokens(item.input_tokens) for item in classes])
    weights = np.repeat([item.request_rate_at() / VALUES for item in classes], VALUES)
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    found = [float(values[order][np.searchsorted(reached, part)]) for part in parts]
    rounded = {float(f"{value:.2g}") for value in found}
    least, most = float(values.min()), float(values.max())
    return tuple(sorted(value for value in rounded if least <= value < most))
