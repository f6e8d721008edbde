"""Short causal convolutions: the mixer of LFM2, and a part of linear attention and state space models."""

from dataclasses import dataclass

from capplan.model.cache_parts import StatePart
from capplan.model.mixers.description import Description, Heads


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """Gated short convolution (LFM2)."""

    channels: int
    kernel: int

    @property
    def description(self) -> Description:
        """The mixer as other rooms read it."""
        heads = (Heads(self.channels, "channels"),)
        return Description(
            "short_convolution", heads, state_parts=(convolution_columns(self.channels, self.kernel),)
        )


def convolution_columns(channels: int, kernel: int, pieces: int | None = None) -> StatePart:
    """Return the state of a causal convolution: its most recent inputs, which the next token needs again.

        needed = c K, as reference implementations keep them;  held = c (K - 1) in engines

    Parameters
    ----------
    channels : c, convolved channels [-]
    kernel : K, taps [-]
    pieces : indivisible groups of channels under tensor parallelism; None splits evenly

    Returns
    -------
    the state of one layer, in the activation dtype

    Examples
    --------
    >>> columns = convolution_columns(64, 3)
    >>> columns.elements, columns.held_elements
    (192, 128)

    References
    ----------
    vLLM, `MambaStateShapeCalculator`: https://docs.vllm.ai/en/latest/api/vllm/model_executor/layers/mamba/mamba_utils.
    """
    return StatePart(channels * kernel, channels * (kernel - 1), pieces=pieces)
