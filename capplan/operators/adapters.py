"""LoRA adapters in a step: every token is multiplied by the two low-rank matrices of its own adapter, next to the matrix itself."""

import numpy as np

from capplan.numbers import Number
from capplan.operators.matmul import ElementwiseRates, MatmulRates


def adapters_in_step(sequences: Number, adapters: Number, adapted_fraction: Number = 1.0) -> Number:
    """Return how many different adapters the sequences of a step use, if all adapters are equally popular.

        D = A (1 - (1 - 1 / A)^(s n))

    Parameters
    ----------
    sequences : [-]
        n.
    adapters : [-]
        A, of the traffic, at least 1.
    adapted_fraction : [-]
        s, of the sequences that use one.

    Returns
    -------
    [-]
        D, in the mean; the most for this many sequences, because popular adapters would be met again.

    Examples
    --------
    >>> float(adapters_in_step(2.0, 2.0)), float(adapters_in_step(1.0, 8.0))
    (1.5, 1.0)

    References
    ----------
    Johnson, Kotz 1977, "Urn Models and Their Application", section 3.1: the classical occupancy problem.
    """
    return adapters * (
        1.0 - (1.0 - 1.0 / np.asarray(adapters, dtype=np.float64)) ** (adapted_fraction * sequences)
    )


def sequences_with_slots(adapters: Number, slots: Number, adapted_fraction: Number = 1.0) -> Number:
    """Return the sequences that use as many different adapters as there are slots, in the mean.

        n = ln(1 - S / A) / (s ln(1 - 1 / A))

    Parameters
    ----------
    adapters : [-]
        A, of the traffic, equally popular.
    slots : [-]
        S, resident on a replica.
    adapted_fraction : [-]
        s, of the sequences that use an adapter, above 0.

    Returns
    -------
    [-]
        n; infinite where every adapter has its slot.

    Examples
    --------
    >>> float(sequences_with_slots(2.0, 1.0)), float(sequences_with_slots(4.0, 4.0))
    (1.0, inf)

    References
    ----------
    Johnson, Kotz 1977, "Urn Models and Their Application", section 3.1, solved for the number of draws.
    """
    share = np.minimum(np.asarray(slots, dtype=np.float64) / adapters, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = np.log1p(-share) / (
            adapted_fraction * np.log1p(-1.0 / np.asarray(adapters, dtype=np.float64))
        )
    return np.where(share >= 1.0, np.inf, drawn)[()]


def adapter_flop(tokens: Number, elements: Number) -> Number:
    """Return the arithmetic of the low-rank matrices next to one matrix.

        F = 2 T e

    Parameters
    ----------
    tokens : [-]
        T, with an adapter.
    elements : [-]
        e, of one adapter next to this matrix, on this rank.

    Returns
    -------
    [FLOP]
        F.

    Examples
    --------
    >>> adapter_flop(3.0, 100.0)
    600.0

    References
    ----------
    Hu et al. 2021, "LoRA", section 4.1, arXiv:2106.09685.
    """
    return 2.0 * tokens * elements


def adapter_bytes(
    tokens: Number,
    adapters: Number,
    elements: Number,
    inputs: Number,
    outputs: Number,
    rank: Number,
    bytes_per_element: Number,
) -> Number:
    """Return the traffic of the low-rank matrices next to one matrix.

        Q = D e b + T (2 k + 8 r + 4 n)

    Every adapter in the step is read once; a token reads its inputs in 2 bytes, writes and reads what is between the two in 4,
    and adds to the outputs of the matrix, which reads and writes 2.

    Parameters
    ----------
    tokens : [-]
        T, with an adapter.
    adapters : [-]
        D, different ones in the step.
    elements : [-]
        e, of one adapter next to this matrix, on this rank.
    inputs, outputs : [-]
        k and n of the rank.
    rank : [-]
        r, of all parts together.
    bytes_per_element : [B]
        b.

    Returns
    -------
    [B]
        Q.

    Examples
    --------
    >>> adapter_bytes(1.0, 2.0, 100.0, 10.0, 20.0, 4.0, 2.0)
    532.0

    References
    ----------
    Chen et al. 2023, "Punica", sections 4 and 5, arXiv:2310.18547.
    """
    return adapters * elements * bytes_per_element + tokens * (2.0 * inputs + 8.0 * rank + 4.0 * outputs)


def adapter_time_s(
    flop: Number, moved_bytes: Number, elementwise: ElementwiseRates, matmul: MatmulRates
) -> Number:
    """Return the time of the two kernels of the adapters next to one matrix.

        t = max(F / (P c), Q / (B e)) + 2 t_0

    An assumption: nobody measured these kernels here; their rates are those of kernels that move bytes, and of plain products.

    Parameters
    ----------
    flop : [FLOP]
        F.
    moved_bytes : [B]
        Q.
    elementwise : bandwidth B, reached fraction e and start t_0
    matmul : rate P of 16-bit products, and reached fraction c

    Returns
    -------
    [s]
        t, inside a CUDA graph.

    Examples
    --------
    >>> from capplan.operators.matmul import ElementwiseRates
    >>> rates = MatmulRates(1e15, 1e9, 4.0, 1.0, 1.0, 8.0, 0.0)
    >>> float(adapter_time_s(10.0, 500.0, ElementwiseRates(1000.0, 1.0, 0.25), rates))
    1.0

    References
    ----------
    Chen et al. 2023, "Punica", section 4 (one kernel that shrinks, one that expands), arXiv:2310.18547.
    """
    reached_s = moved_bytes / (elementwise.bytes_per_s * elementwise.memory_fraction)
    return (
        np.maximum(flop / (matmul.flop_per_s * matmul.compute_fraction), reached_s)
        + 2.0 * elementwise.floor_s
    )
