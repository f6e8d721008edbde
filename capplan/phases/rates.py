"""What the devices of a replica achieve in every kernel that a step of a network runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capplan.numbers import Number, stacked
from capplan.operators.attention import AttentionRates
from capplan.operators.collective import LinkRates
from capplan.operators.elementwise import ElementwiseRates
from capplan.operators.experts import ExpertRates
from capplan.operators.latent_attention import LatentAttentionRates
from capplan.operators.linear_attention import LinearAttentionRates
from capplan.operators.matmul import MatmulRates


@dataclass(frozen=True, slots=True)
class StepRates:
    """Rates by kernel; matmuls and experts by the weight format that they read."""

    matmul: Mapping[str, MatmulRates]
    experts: Mapping[str, ExpertRates]
    attention: AttentionRates
    latent_attention: LatentAttentionRates
    linear_attention: LinearAttentionRates
    elementwise: ElementwiseRates
    link: LinkRates
    activation_bytes: Mapping[str, Number]
    """Bytes per element of the activations that a dense kernel reads, by weight format."""
    expert_activation_bytes: Mapping[str, Number]
    """The same for expert kernels."""
    gathered_bytes: Mapping[str, Number]
    """Bytes per element in which the tokens of all groups are gathered for experts, by weight format of the experts."""


def stacked_rates(values: Sequence[StepRates], index: NDArray[np.intp]) -> StepRates:
    """Return rates whose fields are arrays over plans, gathered from the rates of single devices.

    Every value must hold the same formats: plans of one network read the same kernels.
    """
    first = values[0]
    return StepRates(
        matmul={key: stacked([value.matmul[key] for value in values], index) for key in first.matmul},
        experts={key: stacked([value.experts[key] for value in values], index) for key in first.experts},
        attention=stacked([value.attention for value in values], index),
        latent_attention=stacked([value.latent_attention for value in values], index),
        linear_attention=stacked([value.linear_attention for value in values], index),
        elementwise=stacked([value.elementwise for value in values], index),
        link=stacked([value.link for value in values], index),
        # devices that cannot multiply a narrow format widen the weights and read wide activations
        activation_bytes=_gathered([value.activation_bytes for value in values], index),
        expert_activation_bytes=_gathered([value.expert_activation_bytes for value in values], index),
        gathered_bytes=_gathered([value.gathered_bytes for value in values], index),
    )


def _gathered(values: Sequence[Mapping[str, Number]], index: NDArray[np.intp]) -> dict[str, Number]:
    """Return every entry as an array over plans."""
    return {key: np.array([value[key] for value in values], dtype=np.float64)[index] for key in values[0]}
