"""How the tables of expert timings spread tokens over experts: evenly, or by popularities that follow a power law.

A timing is of the rank with the most tokens; five draws of a power law were averaged.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from capplan.numbers import Array
from capplan.operators.experts import EXPERT_TILES

POWER_LAWS = {"power_law_1.01": 1.01, "power_law_1.2": 1.2}
"""Router of a timing -> exponent of the density of popularities."""
LARGEST_POPULARITY = 0.8
"""Step of the quantiles of the power laws, in tokens; at least one token."""
FEW = (0.01, 2.0)
"""Least and largest popularity where there are fewer choices than experts."""
DRAWS = 5


@dataclass(frozen=True, slots=True)
class RankLoad:
    """Load of the timed rank."""

    routed: float
    """Tokens, one for each expert that a token chose."""
    hit: float
    """Experts that get a token."""
    row_tiles: tuple[float, ...]
    """Tiles that the rows of all experts fill, by tile of `EXPERT_TILES`."""


def _even_counts(tokens: int, experts: int, experts_per_token: int) -> Array:
    """Return the tokens of each expert where consecutive tokens take consecutive experts."""
    stride = -(-experts // experts_per_token)
    first = np.arange(tokens, dtype=np.float64)[:, None]
    if tokens < stride:
        first = first * stride / tokens
    chosen = np.floor(first + stride * np.arange(experts_per_token)).astype(np.int64) % experts
    return np.bincount(chosen.ravel(), minlength=experts).astype(np.float64)


def _uneven_counts(tokens: int, experts_per_token: int, exponent: float, quantiles: Array) -> Array:
    """Return the tokens of each expert for popularities at these quantiles (ranks, experts) of the power law.

    The remainder of rounding goes to the ranks in turn, to their experts with the fewest tokens.
    """
    choices = tokens * experts_per_token
    low, high = (1.0, LARGEST_POPULARITY * tokens) if choices > quantiles.size else FEW
    power = 1.0 - exponent
    popularity = (low**power + quantiles * (high**power - low**power)) ** (1.0 / power)
    counts = np.minimum(np.round(popularity / popularity.sum() * choices), tokens)
    in_turn = np.arange(counts.size) % counts.shape[0]
    while (missing := int(choices - counts.sum())) != 0:
        sign = np.sign(missing)
        place = np.argsort(sign * counts, axis=1, kind="stable").T.ravel()
        taken = counts[in_turn, place]
        (able,) = (taken < tokens if missing > 0 else taken > 0).nonzero()
        turn = able[: abs(missing)]
        counts[in_turn[turn], place[turn]] += sign
    return np.asarray(counts, dtype=np.float64)


@lru_cache(maxsize=20000)
def rank_load(tokens: int, experts: int, experts_per_token: int, ranks: int, router: str) -> RankLoad:
    """Return the mean load of the timed rank.

    Parameters
    ----------
    tokens : routed in the whole group [-]
    experts : of the layer [-]
    experts_per_token : chosen by the router [-]
    ranks : that hold the experts [-]
    router : balanced, power_law_1.01, power_law_1.2

    Returns
    -------
    the load

    Examples
    --------
    >>> rank_load(64, 8, 2, 1, "balanced")
    RankLoad(routed=128.0, hit=8.0, row_tiles=(16.0, 8.0, 8.0, 8.0, 8.0))
    """
    random = np.random.default_rng(0)
    if router in POWER_LAWS:
        quantiles = (np.arange(experts) + 0.5) / experts
        drawn = [random.permutation(quantiles).reshape(ranks, -1) for _ in range(DRAWS if ranks > 1 else 1)]
        per_draw = [
            max(_uneven_counts(tokens, experts_per_token, POWER_LAWS[router], each), key=np.sum)
            for each in drawn
        ]
    else:
        per_draw = [_even_counts(tokens, experts, experts_per_token).reshape(ranks, -1)[0]]
    return RankLoad(
        float(np.mean([counts.sum() for counts in per_draw])),
        float(np.mean([(counts > 0).sum() for counts in per_draw])),
        tuple(
            float(np.mean([np.ceil(counts / rows).sum() for counts in per_draw])) for rows, _ in EXPERT_TILES
        ),
    )
