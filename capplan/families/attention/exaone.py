"""EXAONE 4 and K-EXAONE."""

from capplan.families.config import Config
from capplan.families.parts.blocks import heads
from capplan.families.parts.stacks import (
    Traits,
    block_decoder,
    counted_mixture,
    dense_mlp,
    layer_windows,
    parts_after,
)
from capplan.model.network import Network


def _slides(config: Config, layers: int) -> list[bool]:
    """Return which layers slide, from a pattern such as "LLLG" or the number of layers in one round."""
    key, pattern = config.first_present("sliding_window_pattern")
    if isinstance(pattern, str):
        if not pattern or set(pattern) - {"L", "G"}:
            raise config.error(
                key, f"{pattern!r} is not a pattern", "allowed: letters L (local) and G (global), as LLLG"
            )
        return [pattern[i % len(pattern)] == "L" for i in range(layers)]
    every = config.optional(key) or 4
    return [(i + 1) % every != 0 for i in range(layers)]


def read_exaone4(config: Config, name: str) -> Network:
    """Return an EXAONE 4: norms after attention and feed-forward, head norms, windows in the larger model."""
    layers = config.layers()
    window = config.optional("sliding_window", least=0) or None
    windows: tuple[int | None, ...] = (None,) * layers
    if window:
        windows = layer_windows(config, layers, window, default=_slides(config, layers))
    return block_decoder(config, name, Traits(head_norms=True), windows=windows)


def read_exaone_moe(config: Config, name: str) -> Network:
    """Return a K-EXAONE: norms before attention and feed-forward, shared and routed experts."""
    shape = heads(config)
    layers = config.layers()
    width = config.dimension("moe_intermediate_size")
    sparse = counted_mixture(
        config, shape.hidden_size, width, shared=config.count("num_shared_experts", default=1) * width
    )
    traits = Traits(head_norms=True)
    parts = parts_after(
        config,
        dense_mlp(config, shape, traits),
        sparse,
        layers,
        config.count("first_k_dense_replace", default=1),
    )
    window = config.optional("sliding_window", least=0) or None
    windows = layer_windows(config, layers, window, default=_slides(config, layers)) if window else None
    return block_decoder(config, name, traits, parts, shape=shape, windows=windows)
