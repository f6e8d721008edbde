"""Routed experts: how many of them receive a token, how uneven ranks are, and grouped matmuls with routing, sorting and combining."""

from dataclasses import dataclass

import numpy as np

from capplan.numbers import Number
from capplan.operators.roofline import TiledKernelRates, TiledProduct, quicker_vector_s, tiled_time_s


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
        v, variance of the experts' popularity (gamma-distributed) over its mean squared; 0 for uniform
        draws, -1 for perfect balance.

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


UNFORESEEN_SKEW = 0.08
"""Share of the variance of the experts' popularity that a load balancer does not foresee (an assumption). With it the mean over the busiest
rank of 32 ranks with 32 redundant experts is 0.77; LMSYS saw prefill at 0.85 of its rate with even routing, where experts and their all-to-all
take about 0.6 of a step: https://lmsys.org/blog/2025-05-05-large-scale-ep/."""

_GAMMA = 0.5772156649015329
"""Euler's constant."""


def heaviest_copy_load(experts: Number, copies: Number, router_skew: Number = 0.0) -> Number:
    """Return the load of the most popular expert over the mean of all, once the most popular ones have redundant copies.

        p = 1 + v (ln(1 + E / max(R, e^-g)) - 1),   at least 1

    Exponential popularity (v = 1): copies are added until no copy has more than p, and the experts beyond p, 2 p, ... need
    E (e^-p + e^-2p + ...) = R of them. Without copies p is the mean of the largest of E, ln(E) + g.

    Parameters
    ----------
    experts : [-]
        E, different experts of a layer.
    copies : [-]
        R, redundant ones.
    router_skew : [-]
        v, of `experts_hit`; 0 or less: balanced.

    Returns
    -------
    [-]
        p; g is Euler's constant.

    Examples
    --------
    >>> [round(float(heaviest_copy_load(256.0, copies, 1.0)), 2) for copies in (0.0, 32.0)]
    [6.12, 2.2]

    References
    ----------
    DeepSeek-AI 2025, "Expert Parallelism Load Balancer", https://github.com/deepseek-ai/eplb.
    """
    tail = np.log1p(experts / np.maximum(copies, np.exp(-_GAMMA)))
    return np.maximum(1.0, 1.0 + np.maximum(router_skew, 0.0) * (tail - 1.0))


def balanced_imbalance(
    ranks: Number, experts: Number, copies: Number, experts_per_token: Number, router_skew: Number = 0.0
) -> Number:
    """Return the load of the busiest rank over the mean, when a balancer places experts and their redundant copies by their popularity.

        r = max(r_0(u v), p n / E),   at most all tokens on one rank

    r_0 is `rank_imbalance` of the share u of the variance that the balancer does not foresee, p n / E a rank with one copy of the most
    popular expert.

    Parameters
    ----------
    ranks : [-]
        n, of the expert group.
    experts : [-]
        E, different experts of a layer.
    copies : [-]
        R, redundant ones; p: see `heaviest_copy_load`.
    experts_per_token : [-]
        k.
    router_skew : [-]
        v, of `experts_hit`; 0 or less: balanced.

    Returns
    -------
    [-]
        r, at least 1. u is `UNFORESEEN_SKEW`, an assumption.

    Examples
    --------
    >>> [round(float(balanced_imbalance(72.0, 256.0, copies, 8.0, 1.1)), 2) for copies in (0.0, 32.0)]
    [1.87, 1.53]

    References
    ----------
    DeepSeek-AI 2025, "Expert Parallelism Load Balancer", https://github.com/deepseek-ai/eplb.
    """
    left = rank_imbalance(ranks, experts + copies, experts_per_token, UNFORESEEN_SKEW * router_skew)
    heaviest = heaviest_copy_load(experts, copies, router_skew) * ranks / experts
    all_on_one = np.maximum(1.0, np.minimum(experts_per_token, experts / ranks) * ranks / experts_per_token)
    return np.minimum(np.maximum(left, heaviest), all_on_one)


EXPERT_TILES = ((8.0, 128.0), (16.0, 128.0), (32.0, 128.0), (64.0, 128.0), (128.0, 128.0))
"""Output tiles (rows, columns) that grouped matmuls choose from."""
PARTIAL_TILES = 0.5
"""Tiles of an expert beyond those that its rows fill, in the mean: the last one is filled in part (an assumption)."""
_NEVER = 1e12
"""Count of tiles that rules a tile size out."""


@dataclass(frozen=True, slots=True)
class ExpertRates(TiledKernelRates):
    """What a device achieves in grouped expert matmuls of one weight format and engine.

    The fixed cost is that of routing, sorting and combining a handful of tokens.
    """

    routed_passes: Number
    """Passes of 2 bytes over the tokens that this rank's experts receive: gather, activation, scatter."""
    token_passes: Number
    """Passes of 2 bytes over all tokens of the group, wherever they are routed: quantise, combine. Of libraries that keep
    rows of only this rank's pairs."""
    router_skew: Number
    """Variance of the experts' popularity over its mean squared: 0 uniform, -1 perfectly even. See
    `experts_hit`."""
    tile_load_ratio: Number = 0.0
    """Minimum rows of a tile, relative to the tokens an expert of this rank would receive if all tokens were routed to
    this rank: kernels choose their tile before they know the routing. 0: every product takes the fastest tile."""
    largest_tile_rows: Number = 128.0
    """Rows of the largest tile that the library has."""
    expert_s: Number = 0.0
    """Sorting and aligning of the tokens, for each expert."""
    pair_passes: Number = 0.0
    """Passes of 2 bytes over a row of every pair of a token and an expert, on this rank or not, where a library keeps all of them on
    every rank (Triton, Marlin): zeros of experts that are elsewhere, activation, the sum over the experts of a token."""


def experts_flop(
    tokens: Number,
    experts: Number,
    experts_on_rank: Number,
    experts_per_token: Number,
    inputs: Number,
    intermediate_size_on_rank: Number,
    gated: Number,
) -> Number:
    """Return the arithmetic of the routed experts on one rank.

        F = 2 T k (E_r / E) (3 or 2) d f

    Parameters
    ----------
    tokens : [-]
        T, routed in the whole expert group.
    experts : [-]
        E.
    experts_on_rank : [-]
        E_r.
    experts_per_token : [-]
        k.
    inputs : [-]
        d.
    intermediate_size_on_rank : [-]
        f.
    gated : [-]
        1 for three matrices (gate, up, down), 0 for two.

    Returns
    -------
    [FLOP]
        F.

    Examples
    --------
    One token, two experts, three matrices of 3 x 5:

    >>> experts_flop(1.0, 8.0, 8.0, 2.0, 3.0, 5.0, 1.0)
    180.0

    References
    ----------
    Shazeer 2020, "GLU variants", https://arxiv.org/abs/2002.05202; Fedus et al. 2021, "Switch
    Transformers", section 2, https://arxiv.org/abs/2101.03961
    """
    routed = tokens * experts_per_token * experts_on_rank / experts
    return 2.0 * routed * (2.0 + gated) * inputs * intermediate_size_on_rank


def experts_bytes(
    tokens: Number,
    experts: Number,
    experts_on_rank: Number,
    experts_per_token: Number,
    inputs: Number,
    intermediate_size_on_rank: Number,
    gated: Number,
    weight_bytes_per_element: Number,
    activation_bytes_per_element: Number,
    router_skew: Number = 0.0,
) -> Number:
    """Return the minimum traffic of the routed experts on one rank: weights of the experts hit, tokens in and out.

        Q = hit (E_r / E) (3 or 2) d f w + T k (E_r / E) (d + f) (a + 2)

    Parameters
    ----------
    tokens : [-]
        T, routed in the whole expert group.
    experts : [-]
        E.
    experts_on_rank : [-]
        E_r.
    experts_per_token : [-]
        k.
    inputs : [-]
        d.
    intermediate_size_on_rank : [-]
        f.
    gated : [-]
        1 for three matrices, 0 for two.
    weight_bytes_per_element : [B]
        w, scales included.
    activation_bytes_per_element : [B]
        a.
    router_skew : [-]
        of `experts_hit`.

    Returns
    -------
    [B]
        Q.

    Examples
    --------
    Two experts of 45 one-byte weights, and 8 elements in and out of each in 2 bytes:

    >>> float(experts_bytes(1.0, 8.0, 8.0, 2.0, 3.0, 5.0, 1.0, 1.0, 2.0))
    154.0

    References
    ----------
    Shazeer 2020, "GLU variants", https://arxiv.org/abs/2002.05202
    """
    share = experts_on_rank / experts
    hit = experts_hit(tokens, experts, experts_per_token, router_skew) * share
    weights = hit * (2.0 + gated) * inputs * intermediate_size_on_rank * weight_bytes_per_element
    routed = tokens * experts_per_token * share
    return weights + routed * (inputs + intermediate_size_on_rank) * (activation_bytes_per_element + 2.0)


@dataclass(frozen=True, slots=True)
class ExpertLoads:
    """The tokens that the routed experts of one rank receive in one step."""

    tokens: Number
    """T, routed in the whole expert group."""
    routed: Number
    """R, pairs of a token and an expert of this rank that it is routed to."""
    hit: Number
    """Experts of this rank that receive a token."""
    row_tiles: tuple[Number, ...]
    """Tiles filled by the rows of all experts, for each of `EXPERT_TILES`."""
    experts: Number
    """E, among which the tokens are sorted."""
    expected_load: Number
    """L, tokens per expert of this rank if all tokens were routed to this rank: T k / E_r."""
    pairs: Number
    """T k, of all tokens and their experts, on this rank or not."""


def grouped_experts_time_s(
    loads: ExpertLoads,
    inputs: Number,
    intermediate_size_on_rank: Number,
    gated: Number,
    weight_bytes_per_element: Number,
    activation_bytes_per_element: Number,
    rates: ExpertRates,
) -> Number:
    """Return the time of the routed experts on one rank, given their loads.

        t = tiled(R tokens, d to f) + tiled(R tokens, f to d) + (x_r R + x_t T) 2 d / B + x_p T k 2 (d + (2 + g) f) / B + t_0

    Tiles have at least min(r L, r_max) rows. A row of a pair has (1 + g) f that the first product writes and the activation reads, f that
    this writes and the second product reads, d that this writes and the sum reads: half of them is a pass.

    Parameters
    ----------
    loads : R, T, L and T k
    inputs, intermediate_size_on_rank : [-]
        d, width that an expert reads and writes, and f, inner width on this rank.
    gated : [-]
        1 for three matrices, 0 for two.
    weight_bytes_per_element, activation_bytes_per_element : [B]
        as the kernel reads them, scales included.
    rates : what the device achieves; x_r is `routed_passes`, x_t `token_passes`, x_p `pair_passes`, r `tile_load_ratio`, r_max `largest_tile_rows`

    Returns
    -------
    [s]
        t, routing, sorting and combining included, without the router matmul and communication.

    Examples
    --------
    >>> rates = ExpertRates(1e12, 1e3, 1.0, 1.0, 1.0, 8.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    >>> loads = ExpertLoads(tokens=1.0, routed=2.0, hit=2.0, row_tiles=(2.0,) * 5, experts=8.0, expected_load=0.25, pairs=2.0)
    >>> round(float(grouped_experts_time_s(loads, 3.0, 5.0, 1.0, 1.0, 2.0, rates)), 3)
    0.674

    References
    ----------
    Gale et al. 2022, "MegaBlocks", section 4, https://arxiv.org/abs/2211.15841
    """
    allowed = _allowed_tiles(loads, rates)
    total_s: Number = 0.0
    widths = ((inputs, (1.0 + gated) * intermediate_size_on_rank), (intermediate_size_on_rank, inputs))
    for width_in, width_out in widths:
        column_bytes = loads.hit * width_in * width_out * weight_bytes_per_element
        column_bytes = column_bytes + 2.0 * loads.routed * width_out
        row_bytes = loads.routed * width_in * activation_bytes_per_element
        product = TiledProduct(allowed, width_in, width_out, row_bytes, column_bytes, groups=loads.hit)
        flop = 2.0 * loads.routed * width_in * width_out
        product_s = tiled_time_s(product, EXPERT_TILES, (1.0,), rates)
        total_s = total_s + quicker_vector_s(product_s, flop, row_bytes + column_bytes, rates)
    moved = (rates.routed_passes * loads.routed + rates.token_passes * loads.tokens) * inputs
    pair_width = inputs + (2.0 + gated) * intermediate_size_on_rank
    moved = moved + rates.pair_passes * loads.pairs * pair_width
    return total_s + moved * 2.0 / rates.bytes_per_s + rates.floor_s + rates.expert_s * loads.experts


def _allowed_tiles(loads: ExpertLoads, rates: ExpertRates) -> tuple[Number, ...]:
    """Return the row tiles of each size, and more than ever pay of sizes that the kernel does not choose at these loads."""
    least_rows = np.minimum(rates.tile_load_ratio * loads.expected_load, rates.largest_tile_rows)
    return tuple(
        np.where((rows >= least_rows) & (rows <= rates.largest_tile_rows), tiles, _NEVER)
        for (rows, _), tiles in zip(EXPERT_TILES, loads.row_tiles, strict=True)
    )


def experts_time_s(
    tokens: Number,
    experts: Number,
    experts_on_rank: Number,
    experts_per_token: Number,
    inputs: Number,
    intermediate_size_on_rank: Number,
    gated: Number,
    weight_bytes_per_element: Number,
    activation_bytes_per_element: Number,
    rates: ExpertRates,
) -> Number:
    """Return the time of the routed experts of one layer on the busiest rank.

        t = grouped(T, R, hit, tiles) with R = r T k E_r / E and hit of r T tokens

    r is the busiest rank's load over the mean; an expert's tokens fill max(1, tokens / t_m + 1/2) tiles. See
    `grouped_experts_time_s`, `experts_hit`, `rank_imbalance`.

    Parameters
    ----------
    tokens : [-]
        T, routed in the whole expert group.
    experts, experts_on_rank : [-]
        of the layer, and those that this rank holds.
    experts_per_token : [-]
        chosen by the router.
    inputs, intermediate_size_on_rank : [-]
        d, width that an expert reads and writes, and f, inner width on this rank.
    gated : [-]
        1 for three matrices, 0 for two.
    weight_bytes_per_element : [B]
        scales included.
    activation_bytes_per_element : [B]
        as the kernel reads them.
    rates : what the device achieves

    Returns
    -------
    [s]
        t, routing, sorting and combining included, without the router matmul and communication.

    Examples
    --------
    >>> rates = ExpertRates(1e12, 1e3, 1.0, 1.0, 1.0, 8.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    >>> round(float(experts_time_s(1.0, 8.0, 8.0, 2.0, 3.0, 5.0, 1.0, 1.0, 2.0, rates)), 3)
    0.674

    References
    ----------
    Gale et al. 2022, "MegaBlocks", section 4, https://arxiv.org/abs/2211.15841
    """
    loads = busiest_loads(tokens, experts, experts_on_rank, experts_per_token, rates.router_skew)
    return grouped_experts_time_s(
        loads, inputs, intermediate_size_on_rank, gated, weight_bytes_per_element,
        activation_bytes_per_element, rates,
    )  # fmt: skip


def busiest_loads(
    tokens: Number,
    experts: Number,
    experts_on_rank: Number,
    experts_per_token: Number,
    router_skew: Number,
    sent: Number = 0.0,
    copies: Number = 0.0,
) -> ExpertLoads:
    """Return what the experts of the busiest rank receive.

        R = r T k E_r / E

    Parameters
    ----------
    tokens : [-]
        T, routed in the whole expert group.
    experts, experts_on_rank : [-]
        E and E_r, of the layer and of this rank, redundant ones included.
    experts_per_token : [-]
        k.
    router_skew : [-]
        of `experts_hit`.
    sent : [-]
        1: tokens are sent to their experts, which a balancer places (r is `balanced_imbalance`); 0: every rank gathers all (`rank_imbalance`).
    copies : [-]
        redundant experts among E.

    Returns
    -------
    the loads, R pairs of a token and an expert among them

    Examples
    --------
    >>> [(float(of.routed), float(of.pairs)) for of in (busiest_loads(4.0, 8.0, 4.0, 2.0, 0.0, sent) for sent in (0.0, 1.0))]
    [(4.0, 8.0), (4.0, 4.0)]

    References
    ----------
    Gale et al. 2022, "MegaBlocks", section 4, https://arxiv.org/abs/2211.15841
    """
    alone, share, pairs = np.asarray(sent) > 0, experts_on_rank / experts, tokens * experts_per_token
    busiest = rank_imbalance(1.0 / share, experts, experts_per_token, router_skew)
    if np.any(alone):
        balanced = balanced_imbalance(1.0 / share, experts - copies, copies, experts_per_token, router_skew)
        busiest = np.where(alone, balanced, busiest)
    routed = pairs * share * busiest
    hit = experts_hit(tokens * busiest, experts, experts_per_token, router_skew) * share
    hit = np.maximum(np.minimum(hit, experts_on_rank), np.minimum(1.0, routed))
    load = routed / np.maximum(hit, 1e-9)
    row_tiles = tuple(hit * np.maximum(1.0, load / rows + PARTIAL_TILES) for rows, _ in EXPERT_TILES)
    if not np.any(alone):
        return ExpertLoads(tokens, routed, hit, row_tiles, experts, pairs / experts_on_rank, pairs)
    mine = np.where(alone, routed, pairs)
    on_rank = np.where(alone, routed / experts_per_token, tokens)
    counted = np.where(alone, experts_on_rank, experts)
    return ExpertLoads(on_rank, routed, hit, row_tiles, counted, mine / experts_on_rank, mine)
