"""dots.llm1."""

from capplan.families.config import Config
from capplan.families.parts.blocks import heads
from capplan.families.parts.stacks import (
    Dense,
    deepseek_mixture,
    dense_mlp,
    layer_windows,
    parts_after,
    sparse_decoder,
)
from capplan.families.registry import Family
from capplan.model.network import Network


def read_dots1(config: Config, name: str) -> Network:
    """Return a dots.llm1: head norms, dense layers first, then shared and routed experts."""
    bias = config.flag("attention_bias", default=False)
    shape = heads(config)
    layers = config.layers()
    sparse = deepseek_mixture(config, shape.hidden_size)
    traits = Dense(qkv_bias=bias, output_bias=bias, head_norms=True)
    first = config.count("first_k_dense_replace")
    dense = dense_mlp(config, shape, traits) if first else sparse
    window = config.optional("sliding_window", least=0) or None
    from_layer = config.count("max_window_layers", default=layers)
    sliding = [window is not None and i >= from_layer for i in range(layers)]
    return sparse_decoder(
        config,
        name,
        traits,
        parts_after(config, dense, sparse, layers, first),
        shape=shape,
        windows=layer_windows(config, layers, window, default=sliding),
    )


FAMILIES: dict[str, Family] = {"dots1": read_dots1}
