"""gpt-oss: alternating windows, attention sinks, biases everywhere, experts in every layer."""

from capplan.families.config import Config
from capplan.families.parts.blocks import heads
from capplan.families.parts.stacks import Traits, block_decoder, layer_windows, mixture
from capplan.model.network import Network


def read_gpt_oss(config: Config, name: str) -> Network:
    """Return a gpt-oss; every second layer slides, beginning with the first."""
    bias = config.flag("attention_bias", default=True)
    shape = heads(config, default_head_dim=64)
    layers = config.layers()
    part = mixture(
        config,
        shape.hidden_size,
        experts=config.dimension("num_local_experts", "num_experts"),
        per_token=config.dimension("num_experts_per_tok", "experts_per_token"),
        intermediate=config.dimension("intermediate_size"),
        router_bias=True,
        expert_bias=True,
    )
    window = config.dimension("sliding_window", default=128)
    windows = layer_windows(config, layers, window, default=[i % 2 == 0 for i in range(layers)])
    traits = Traits(qkv_bias=bias, output_bias=bias, sinks=True)
    return block_decoder(config, name, traits, [part] * layers, shape=shape, windows=windows)
