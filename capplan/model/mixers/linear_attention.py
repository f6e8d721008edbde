"""Attention with a recurrent state instead of a cache."""

from dataclasses import dataclass
from typing import Literal

from capplan.model.cache_parts import StatePart
from capplan.model.mixers.description import Description, Heads
from capplan.model.mixers.short_convolution import convolution_columns


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Attention with a recurrent state instead of a cache: gated delta net, lightning, KDA."""

    kind: Literal["gated_delta", "lightning", "kda"]
    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_channels: int = 0
    conv_kernel: int = 0
    state_elements: int = 0
    """Recurrent state of one sequence in this layer."""
    state_format: str = "fp32"
    state_stated: bool = False
    """Engines store the state in `state_format`, whatever the dtype of the model."""

    @property
    def description(self) -> Description:
        """The mixer as other rooms read it."""
        states = [
            StatePart(
                self.state_elements,
                self.state_elements,
                self.state_format,
                recurrent=True,
                stated=self.state_stated,
            )
        ]
        if self.conv_channels:
            states.append(convolution_columns(self.conv_channels, self.conv_kernel))
        return Description(self.kind, (Heads(self.value_heads),), state_parts=tuple(states))
