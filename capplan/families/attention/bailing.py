"""Ling (Bailing MoE), versions 1 and 2: dense layers first, then shared and routed experts."""

from capplan.families.config import Config
from capplan.families.parts.blocks import heads
from capplan.families.parts.stacks import Traits, block_decoder, counted_mixture, dense_mlp, parts_after
from capplan.model.network import Network


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
