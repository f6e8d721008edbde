"""Trinity (AFMoE) and Ling (Bailing): dense layers first, then shared and routed experts."""

from capplan.families.config import Config
from capplan.families.parts.blocks import heads
from capplan.families.parts.stacks import (
    Traits,
    block_decoder,
    counted_mixture,
    dense_mlp,
    layer_windows,
    parts_after,
    parts_by_layer,
)
from capplan.model.network import Network


def read_afmoe(config: Config, name: str) -> Network:
    """Return a Trinity: gated attention with head norms, windows in three of four layers; the balancing bias of the router counts as a parameter there."""
    shape = heads(config)
    layers = config.layers()
    bias = config.flag("attention_bias", default=False)
    traits = Traits(qkv_bias=bias, output_bias=bias, norms=4, head_norms=True, output_gate="channels")
    width = config.dimension("moe_intermediate_size")
    sparse = counted_mixture(
        config, shape.hidden_size, width, shared=config.count("num_shared_experts") * width, router_bias=True
    )
    first = config.count("num_dense_layers")
    parts = parts_by_layer(config, shape, traits, sparse, [i >= first for i in range(layers)])
    every = config.dimension("global_attn_every_n_layers", default=4)
    config.unused("route_scale", "mup_enabled")
    default = [(i + 1) % every != 0 for i in range(layers)]
    windows = layer_windows(config, layers, config.optional("sliding_window"), default=default)
    return block_decoder(config, name, traits, parts, shape=shape, windows=windows)


def read_bailing(config: Config, name: str) -> Network:
    """Return a Ling or Ring; version 2 has a norm on each head of queries and keys."""
    shape = heads(config)
    layers = config.layers()
    traits = Traits(
        qkv_bias=config.flag("use_qkv_bias", default=False),
        output_bias=config.flag("use_bias", default=False),
        head_norms=config.flag("use_qk_norm", default=config.model_type == "bailing_moe_v2"),
    )
    width = config.dimension("moe_intermediate_size")
    shared_width = config.optional("moe_shared_expert_intermediate_size") or width
    sparse = counted_mixture(
        config, shape.hidden_size, width, shared=config.count("num_shared_experts") * shared_width
    )
    config.unused("intermediate_size", "norm_head", "norm_softmax", "moe_router_enable_expert_bias")
    first = config.count("first_k_dense_replace")
    dense = dense_mlp(config, shape, traits) if first else sparse
    parts = parts_after(config, dense, sparse, layers, first)
    return block_decoder(config, name, traits, parts, shape=shape)
