"""Granite with experts; the dense Granite is a Llama with scalar multipliers."""

from capplan.families.config import Config
from capplan.families.parts.blocks import heads
from capplan.families.parts.stacks import Traits, block_decoder, mixtral_mixture
from capplan.model.network import Network


def read_granite_moe(config: Config, name: str) -> Network:
    """Return a Granite with experts in every layer; the shared variant has a dense part beside them."""
    bias = config.flag("attention_bias", default=False)
    shape = heads(config)
    part = mixtral_mixture(config, shape.hidden_size, shared=config.count("shared_intermediate_size"))
    return block_decoder(
        config, name, Traits(qkv_bias=bias, output_bias=bias), [part] * config.layers(), shape=shape
    )
