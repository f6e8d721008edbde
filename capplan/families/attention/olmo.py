"""OLMo 1 to 3 and OLMoE."""

from capplan.families.config import Config
from capplan.families.parts.blocks import heads
from capplan.families.parts.stacks import Traits, block_decoder, layer_windows, mixture
from capplan.model.network import Network


def read_olmo(config: Config, name: str) -> Network:
    """Return an OLMo 1, whose norms have no parameters."""
    bias = config.flag("attention_bias", default=False)
    return block_decoder(config, name, Traits(qkv_bias=bias, output_bias=bias, norms=0, final_norm=False))


def read_olmo2(config: Config, name: str) -> Network:
    """Return an OLMo 2 or 3: norms after attention and feed-forward, and over all queries and keys."""
    bias = config.flag("attention_bias", default=False)
    layers = config.layers()
    windows: tuple[int | None, ...] = (None,) * layers
    if config.model_type == "olmo3":
        default = [(i + 1) % 4 != 0 for i in range(layers)]
        windows = layer_windows(
            config, layers, config.dimension("sliding_window", default=4096), default=default
        )
    return block_decoder(
        config, name, Traits(qkv_bias=bias, output_bias=bias, wide_norms=True), windows=windows
    )


def read_olmoe(config: Config, name: str) -> Network:
    """Return an OLMoE: experts in every layer."""
    bias = config.flag("attention_bias", default=False)
    shape = heads(config)
    part = mixture(
        config,
        shape.hidden_size,
        experts=config.dimension("num_experts"),
        per_token=config.dimension("num_experts_per_tok"),
        intermediate=config.dimension("intermediate_size"),
    )
    traits = Traits(qkv_bias=bias, output_bias=bias, wide_norms=True)
    return block_decoder(config, name, traits, [part] * config.layers(), shape=shape)
