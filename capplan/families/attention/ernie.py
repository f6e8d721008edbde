"""ERNIE 4.5: dense and with experts."""

from capplan.families.config import Config
from capplan.families.parts.blocks import heads
from capplan.families.parts.stacks import Traits, block_decoder, mixture, parts_by_layer
from capplan.model.network import Network


def _traits(config: Config) -> Traits:
    bias = config.flag("use_bias", default=False)
    return Traits(qkv_bias=bias, output_bias=bias, mlp_bias=bias, tied=True)


def read_ernie(config: Config, name: str) -> Network:
    """Return a dense ERNIE 4.5."""
    return block_decoder(config, name, _traits(config), shape=heads(config, default_head_dim=128))


def read_ernie_moe(config: Config, name: str) -> Network:
    """Return an ERNIE 4.5 with experts; the balancing bias of the router counts as a parameter there."""
    shape = heads(config)
    layers = config.layers()
    width = config.dimension("moe_intermediate_size")
    traits = _traits(config)
    sparse = mixture(
        config,
        shape.hidden_size,
        experts=config.dimension("moe_num_experts"),
        per_token=config.dimension("moe_k"),
        intermediate=width,
        shared=config.count("moe_num_shared_experts") * width,
        router_bias=True,
    )
    first = config.count("moe_layer_start_index", default=1)
    last = config.optional("moe_layer_end_index", least=-1)
    last = layers - 1 if last is None or last < 0 else last
    step = config.dimension("moe_layer_interval") if config.has("moe_layer_interval") else 1
    is_sparse = [(i + 1) % step == 0 and first <= i <= last for i in range(layers)]
    parts = parts_by_layer(config, shape, traits, sparse, is_sparse)
    return block_decoder(config, name, traits, parts, shape=shape)
