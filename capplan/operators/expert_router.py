"""Where a router sends its tokens: how many experts receive one, and how uneven ranks are."""

import numpy as np

from capplan.numbers import Number


def experts_hit(
    tokens: Number, experts: Number, experts_per_token: Number, router_skew: Number = 0.0
) -> Number:
    """Return the expected number of experts that receive at least one token.

        hit = E (1 - (1 + v l)^(-1 / v)),  l = -T ln(1 - k / E);  E (1 - (1 - k / E)^T) for v = 0

    Parameters
    ----------
    tokens : [-]
        T, routed together.
    experts : [-]
        E.
    experts_per_token : [-]
        k.
    router_skew : [-]
        v, variance of the experts' popularity over its mean squared (gamma-distributed popularity makes
        the count of an expert negative binomial); 0 for a router that draws uniformly, -1 for one that balances perfectly.

    Returns
    -------
    [-]
        hit, between k and E.

    Examples
    --------
    >>> round(float(experts_hit(1.0, 8.0, 2.0)), 9), round(float(experts_hit(1000.0, 8.0, 2.0)), 9)
    (2.0, 8.0)

    References
    ----------
    Greenwood, Yule 1920, "An inquiry into the nature of frequency distributions", doi:10.2307/2341080.
    """
    share = np.clip(experts_per_token / experts, 0.0, 1.0 - 1e-9)
    mean = -tokens * np.log1p(-share)
    skew = np.where(np.abs(router_skew) < 1e-6, 1e-6, router_skew)
    missed = np.maximum(1.0 + skew * mean, 1e-300) ** (-1.0 / skew)
    fewest = np.minimum(tokens, 1.0) * np.minimum(experts_per_token, experts)
    most = np.minimum(experts, tokens * experts_per_token)
    return np.asarray(np.clip(experts * (1.0 - missed), fewest, most))[()]


def rank_imbalance(
    ranks: Number, experts: Number, experts_per_token: Number, router_skew: Number = 0.0
) -> Number:
    """Return the load of the busiest rank over the mean, when experts are spread over ranks.

        r = 1 + x + x^2 / 2,  x = (2 v ln(n) n / E)^(1/2), at most all tokens on one rank

    Parameters
    ----------
    ranks : [-]
        n, of the expert group.
    experts : [-]
        E, placed evenly.
    experts_per_token : [-]
        k.
    router_skew : [-]
        v, of `experts_hit`; 0 or less: balanced.

    Returns
    -------
    [-]
        r, at least 1.

    Examples
    --------
    >>> float(rank_imbalance(8.0, 256.0, 8.0)), round(float(rank_imbalance(8.0, 256.0, 8.0, 1.0)), 2)
    (1.0, 1.43)

    References
    ----------
    Boucheron, Lugosi, Massart 2013, "Concentration Inequalities", corollary 2.6 (maximum of sub-gamma
    variables), doi:10.1093/acprof:oso/9780199535255.001.0001.
    """
    spread = np.sqrt(2.0 * np.maximum(router_skew, 0.0) * np.log(np.maximum(ranks, 1.0)) * ranks / experts)
    all_on_one = np.minimum(experts_per_token, experts / ranks) * ranks / experts_per_token
    return np.minimum(1.0 + spread + spread**2 / 2.0, np.maximum(1.0, all_on_one))
