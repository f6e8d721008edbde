"""How a network is spread over the devices of one replica."""

from dataclasses import dataclass

from capplan.numbers import Number


@dataclass(frozen=True, slots=True)
class Sharding:
    """Parallelism of one replica; every field is a number or an array over plans.

    Devices of a replica = tensor x data x pipeline. Attention is cut over `tensor` ranks within each
    of the `data` groups (attention data parallelism: each group holds its own sequences). Experts
    live on tensor x data ranks: dealt out whole to `expert` groups, each expert cut over the
    tensor x data / expert ranks of a group. `expert` = 1 cuts every expert over all ranks.
    """

    tensor: Number = 1.0
    pipeline: Number = 1.0
    expert: Number = 1.0
    data: Number = 1.0

    @property
    def devices(self) -> Number:
        """Devices of one replica."""
        return self.tensor * self.data * self.pipeline
