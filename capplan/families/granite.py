"""Granite: Llama with scalar multipliers, dense or with experts."""

from capplan.families.config import Config
from capplan.families.parts.blocks import heads
from capplan.families.parts.stacks import Dense, dense_decoder, mixture, sparse_decoder
from capplan.families.registry import Family
from capplan.model.network import Network


def read_granite(config: Config, name: str) -> Network:
    """Return a dense Granite."""
    bias = config.flag("attention_bias", default=False)
    traits = Dense(qkv_bias=bias, output_bias=bias, mlp_bias=config.flag("mlp_bias", default=False))
    return dense_decoder(config, name, traits)


def read_granite_moe(config: Config, name: str) -> Network:
    """Return a Granite with experts in every layer; the shared variant has a dense part beside them."""
    bias = config.flag("attention_bias", default=False)
    shape = heads(config)
    part = mixture(
        config,
        shape.hidden_size,
        experts=config.dimension("num_local_experts"),
        per_token=config.dimension("num_experts_per_tok", default=2),
        intermediate=config.dimension("intermediate_size"),
        shared=config.count("shared_intermediate_size"),
    )
    return sparse_decoder(
        config, name, Dense(qkv_bias=bias, output_bias=bias), [part] * config.layers(), shape=shape
    )


FAMILIES: dict[str, Family] = {
    "granite": read_granite,
    "granitemoe": read_granite_moe,
    "granitemoeshared": read_granite_moe,
}
