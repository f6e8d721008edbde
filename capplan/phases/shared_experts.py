"""Shared experts of a step: on a stream of their own while the routed ones run, or as one more expert of the same kernel."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from capplan.model.network import Layer
from capplan.numbers import Number
from capplan.phases.cost import OperatorCost, StepRates, floor_s, total_s

ROUTED = frozenset({"router", "latent_down", "latent_up", "experts"})
"""Operators that run one after another on the stream of the routed experts."""

SHARED_ACTIVATION = "shared_activation"


def on_two_streams(
    layer: Layer, costs: Sequence[OperatorCost], tokens: Number, rates: StepRates
) -> list[OperatorCost]:
    """Return the products of a decode step whose shared experts run while the routed ones run: only what takes longer remains of them.

        t = max(t_s, t_r, f) - t_r   where n <= m, else t_s

    Parameters
    ----------
    layer : with routed experts
    costs : of its products and experts: t_s of the shared ones, t_r of the routed ones and their router, f the sum of the floors of both
    tokens : [tokens]
        n, of the step
    rates : with m (`EngineProfile.two_streams_tokens`)

    Returns
    -------
    [s]
        the costs, those of shared experts with t in place of t_s

    References
    ----------
    SGLang, `forward_normal_dual_stream` of deepseek_v2.py; vLLM, pull requests 26440 and 28406; TensorRT-LLM, `maybe_execute_in_parallel` of
    modeling_deepseekv3.py.
    """
    names = {p.name for p in layer.projections if p.tensor_class == "shared_expert"} | {SHARED_ACTIVATION}
    shared = [cost for cost in costs if cost.operator in names]
    routed = [cost for cost in costs if cost.operator in ROUTED]
    if not shared:
        return list(costs)
    shared_s, routed_s, least_s = total_s(shared), total_s(routed), floor_s([*shared, *routed])
    left = np.maximum(np.maximum(shared_s, least_s) - routed_s, 0.0) / np.maximum(shared_s, 1e-30)
    part = np.where(np.asarray(tokens) <= rates.two_streams_tokens, np.minimum(left, 1.0), 1.0)
    return [replace(c, seconds=c.seconds * part) if c.operator in names else c for c in costs]
