"""Routed experts: grouped matmuls with routing, sorting and combining."""

from dataclasses import dataclass

import numpy as np

from capplan.numbers import Number
from capplan.operators.roofline import roofline_time_s


@dataclass(frozen=True, slots=True)
class ExpertRates:
    """What a device reaches in grouped expert matmuls of one weight format and engine."""

    flop_per_s: Number
    """Datasheet peak of the compute dtype, dense."""
    bytes_per_s: Number
    """Datasheet memory bandwidth."""
    multiprocessors: Number
    compute_fraction: Number
    memory_fraction: Number
    tile_rows: Number
    """Tokens of one expert are padded to a multiple of this."""
    routing_bytes_per_s: Number
    """Rate at which routed tokens are sorted, gathered and combined."""
    sharpness: Number
    floor_s: Number
    """Routing, sorting and combining of a handful of tokens."""
    router_skew: Number
    """Share by which an uneven router lowers the number of experts hit; 0 is uniform."""


def experts_hit(
    tokens: Number, experts: Number, experts_per_token: Number, router_skew: Number = 0.0
) -> Number:
    """Return how many experts at least one token is routed to.

        hit = E (1 - (1 - k / E)^(T (1 - s)))

    Parameters
    ----------
    tokens : [-]
        T, routed together.
    experts : [-]
        E.
    experts_per_token : [-]
        k.
    router_skew : [-]
        s, 0 for a router that draws uniformly.

    Returns
    -------
    [-]
        hit, between k and E.

    Examples
    --------
    >>> float(experts_hit(1.0, 8.0, 2.0))
    2.0

    References
    ----------
    Expected occupied boxes: https://en.wikipedia.org/wiki/Coupon_collector%27s_problem
    """
    share = np.clip(experts_per_token / experts, 0.0, 1.0)
    hit = experts * (1.0 - (1.0 - share) ** (tokens * (1.0 - router_skew)))
    return np.asarray(np.where(tokens > 0.0, np.maximum(hit, np.minimum(experts_per_token, experts)), 0.0))[
        ()
    ]


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
    """Return the least traffic of the routed experts on one rank: weights of the experts hit, tokens in and out.

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
    """Return the time of the routed experts of one layer on one rank.

        t = softmax-roofline(F pad, Q) + routed (d) / R + t_0

    Parameters
    ----------
    tokens : [-]
        routed in the whole expert group.
    experts : [-]
        of the layer.
    experts_on_rank : [-]
        held by this rank.
    experts_per_token : [-]
        chosen by the router.
    inputs : [-]
        width that an expert reads and writes.
    intermediate_size_on_rank : [-]
        inner width on this rank.
    gated : [-]
        1 for three matrices, 0 for two.
    weight_bytes_per_element : [B]
        scales included.
    activation_bytes_per_element : [B]
        as the kernel reads them.
    rates : what the device reaches

    Returns
    -------
    [s]
        t, routing, sorting and combining included, without the router matmul and communication.

    Examples
    --------
    >>> rates = ExpertRates(1e9, 1e3, 100.0, 1.0, 1.0, 1.0, 1e12, 8.0, 0.0, 0.0)
    >>> round(float(experts_time_s(1.0, 8.0, 8.0, 2.0, 3.0, 5.0, 1.0, 1.0, 2.0, rates)), 6)
    0.154

    References
    ----------
    Gale et al. 2022, "MegaBlocks", section 4, https://arxiv.org/abs/2211.15841
    """
    flop = experts_flop(
        tokens, experts, experts_on_rank, experts_per_token, inputs, intermediate_size_on_rank, gated
    )
    moved_bytes = experts_bytes(
        tokens, experts, experts_on_rank, experts_per_token, inputs, intermediate_size_on_rank, gated,
        weight_bytes_per_element, activation_bytes_per_element, rates.router_skew,
    )  # fmt: skip
    routed = tokens * experts_per_token * experts_on_rank / experts
    hit = experts_hit(tokens, experts, experts_per_token, rates.router_skew) * experts_on_rank / experts
    padded = np.maximum(routed, 0.5 * hit * rates.tile_rows + 0.5 * routed) / np.maximum(routed, 1e-9)
    kernel_s = roofline_time_s(
        flop * padded,
        moved_bytes,
        rates.flop_per_s * rates.compute_fraction,
        rates.bytes_per_s * rates.memory_fraction,
        rates.sharpness,
        rates.floor_s,
    )
    return kernel_s + routed * inputs * 4.0 / rates.routing_bytes_per_s
