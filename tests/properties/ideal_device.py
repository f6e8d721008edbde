"""A device that is infinitely fast and starts at once: tests slow it down in one thing at a time."""

from dataclasses import replace

import numpy as np

from capplan.operators.attention import AttentionRates
from capplan.operators.collective import LinkRates
from capplan.operators.experts import ExpertRates
from capplan.operators.latent_attention import LatentAttentionRates
from capplan.operators.linear_attention import LinearAttentionRates
from capplan.operators.matmul import ElementwiseRates, MatmulRates
from capplan.phases.cost import StepRates

INF = np.inf
NEVER = 1e30  # the start of an algorithm that is not to be chosen
MATMUL = MatmulRates(INF, INF, 4.0, 1.0, 1.0, INF, 0.0)
ATTENTION = AttentionRates(
    INF, INF, 4.0, 1.0, 1.0, 0.0, 0.0, 0.0, INF, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.5, 0.0
)
LATENT = LatentAttentionRates(
    INF, INF, 4.0, 1.0, 1.0, 0.0, 0.0, 0.0, INF, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.5, 0.0, 1.0, 1.0, 0.0
)
EXPERTS = ExpertRates(INF, INF, 4.0, 1.0, 1.0, INF, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
LINEAR = LinearAttentionRates(INF, INF, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)
ELEMENTWISE = ElementwiseRates(INF, 1.0, 0.0)
RING = LinkRates(
    INF, INF, 8.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, NEVER, 1.0, 0.0, 1.0, 0.0, NEVER, 1.0, 0.0, NEVER, 0.0, 1.0,
    0.0, 0.0, 1.0, 0.0,
)  # fmt: skip


def ideal_rates(link_bytes_per_s=INF, **slow):
    """Return the rates of all kernels, where `flop_per_s` or `bytes_per_s` may be finite."""

    def own(record):
        return replace(record, **slow)

    memory = {name: value for name, value in slow.items() if name == "bytes_per_s"}
    return StepRates(
        matmul={"bf16": own(MATMUL), "fp8": own(MATMUL)}, experts={"bf16": own(EXPERTS), "fp8": own(EXPERTS)},
        attention=own(ATTENTION), latent_attention=own(LATENT), linear_attention=own(LINEAR),
        elementwise=replace(ELEMENTWISE, **memory), link=replace(RING, link_bytes_per_s=link_bytes_per_s),
        activation_bytes={"bf16": 2.0, "fp8": 1.0}, expert_activation_bytes={"bf16": 2.0, "fp8": 1.0}, gathered_bytes={"bf16": 2.0, "fp8": 2.0},
    )  # fmt: skip
