"""State space models: Mamba-1 and Mamba-2."""

from dataclasses import dataclass
from typing import Literal

from capplan.model.cache_parts import StatePart
from capplan.model.mixers.description import Description, Heads
from capplan.model.mixers.short_convolution import convolution_columns


@dataclass(frozen=True, slots=True)
class StateSpace:
    """Mamba-1 (`version` 1) or Mamba-2 (`version` 2)."""

    version: Literal[1, 2]
    inner_size: int
    heads: int
    head_dim: int
    state_size: int
    groups: int
    conv_channels: int
    conv_kernel: int
    state_format: str = "fp32"
    state_stated: bool = False
    """Engines store the state in `state_format`, whatever the dtype of the model."""

    @property
    def description(self) -> Description:
        """The mixer as other rooms read it.

        Mamba-2 also convolves B and C of each group; groups are replicated where ranks outnumber them
        (Dao, Gu 2024, "Transformers are SSMs", arXiv:2405.21060, section 8.2).
        """
        size = self.inner_size * self.state_size
        recurrent = StatePart(size, size, self.state_format, recurrent=True, stated=self.state_stated)
        shared = 2 * self.groups * self.state_size if self.version == 2 else 0
        columns = [convolution_columns(self.conv_channels - shared, self.conv_kernel)]
        if shared:
            columns.append(convolution_columns(shared, self.conv_kernel, self.groups))
        heads = Heads(self.heads) if self.version == 2 else Heads(self.inner_size, "channels")
        return Description(f"mamba{self.version}", (heads,), state_parts=(*columns, recurrent))
