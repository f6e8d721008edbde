"""How a network is split over the devices of one replica."""

from dataclasses import dataclass

import numpy as np

from capplan.model.network import Projection
from capplan.numbers import Number


@dataclass(frozen=True, slots=True)
class Sharding:
    """Parallelism of one replica; every field is a number or an array over plans.

    Devices of a replica = tensor x data x pipeline. Attention is split over the `tensor` ranks of each of the
    `data` groups (attention data parallelism: every group serves different sequences). Experts occupy all
    tensor x data ranks: whole experts are distributed over `expert` groups, and each is split over the
    tensor x data / expert ranks of its group. `expert` = 1 splits every expert over all ranks.
    """

    tensor: Number = 1.0
    pipeline: Number = 1.0
    expert: Number = 1.0
    data: Number = 1.0

    @property
    def devices(self) -> Number:
        """Devices of one replica."""
        return self.tensor * self.data * self.pipeline


def rank_inputs(projection: Projection, tensor_parallel: Number) -> Number:
    """Return k of a matmul on one tensor-parallel rank.

        k_rank = k / tp if the matrix is split by rows, else k

    Parameters
    ----------
    projection : the matrix
    tensor_parallel : [-]
        tp, ranks of one attention group

    Returns
    -------
    [elements]
        k on the rank

    Examples
    --------
    >>> rank_inputs(Projection("o", "attention", 64, 32, "rows"), 4.0)
    16.0

    References
    ----------
    Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053, section 3.
    """
    return projection.inputs / tensor_parallel if projection.split == "rows" else float(projection.inputs)


def rank_outputs(projection: Projection, tensor_parallel: Number) -> Number:
    """Return n of a matmul on one tensor-parallel rank; KV heads are replicated once ranks outnumber them.

        n_rank = (n - n_kv) / tp + n_kv max(1 / tp, 1 / kv_heads)     if split by columns, else n

    Parameters
    ----------
    projection : the matrix
    tensor_parallel : [-]
        tp, ranks of one attention group

    Returns
    -------
    [elements]
        n on the rank

    Examples
    --------
    Eight query heads and two KV heads of width one, on four ranks: two query heads, one key, one value.

    >>> rank_outputs(Projection("qkv", "attention", 8, 12, "columns", kv_outputs=4, kv_heads=2), 4.0)
    np.float64(4.0)

    References
    ----------
    Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053, section 3; vLLM QKVParallelLinear replicates KV heads.
    """
    if projection.split != "columns":
        return float(projection.outputs)
    unshared = (projection.outputs - projection.kv_outputs) / tensor_parallel
    if not projection.kv_outputs:
        return unshared
    share = np.maximum(1.0 / tensor_parallel, 1.0 / projection.kv_heads)
    shared: Number = unshared + projection.kv_outputs * share
    return shared
