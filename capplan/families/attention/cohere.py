"""Command R and Command A: one norm per layer, attention and feed-forward side by side, tied embeddings."""

from dataclasses import replace

from capplan.families.config import Config
from capplan.families.parts.blocks import gated_mlp, heads
from capplan.families.parts.stacks import Traits, block_decoder, counted_mixture, layer_windows, parts_after
from capplan.model.network import Network


def read_cohere(config: Config, name: str) -> Network:
    """Return a Command R; the larger ones have a norm on each head of queries and keys."""
    bias = config.flag("attention_bias", default=False)
    shape = heads(config)
    network = block_decoder(
        config, name, Traits(qkv_bias=bias, output_bias=bias, norms=1, tied=True), shape=shape
    )
    if not config.flag("use_qk_norm", default=False):
        return network
    extra = (shape.query_heads + shape.kv_heads) * shape.head_dim
    layer = replace(network.layers[0], norm_parameters=network.layers[0].norm_parameters + extra)
    return replace(network, layers=(layer,) * len(network.layers))


def read_cohere2(config: Config, name: str) -> Network:
    """Return a Command R7B or Command A: three sliding layers, then a full one."""
    bias = config.flag("attention_bias", default=False)
    layers = config.layers()
    pattern = config.optional("sliding_window_pattern", "_sliding_window_pattern") or 4
    default = [(i + 1) % pattern != 0 for i in range(layers)]
    windows = layer_windows(config, layers, config.dimension("sliding_window", default=4096), default=default)
    traits = Traits(qkv_bias=bias, output_bias=bias, norms=1, tied=True)
    return block_decoder(config, name, traits, windows=windows)


def read_cohere2_moe(config: Config, name: str) -> Network:
    """Return a Command A with experts: dense layers first, windows as in the dense models."""
    shape = heads(config)
    layers = config.layers()
    bias = config.flag("attention_bias", default=False)
    traits = Traits(qkv_bias=bias, output_bias=bias, norms=1, tied=True)
    width = config.dimension("intermediate_size")
    shared = config.count("num_shared_experts")
    sparse = counted_mixture(config, shape.hidden_size, width, shared=shared * width)
    config.unused("prefix_dense_intermediate_size", "prefix_dense_sliding_window_pattern", "rms_norm_eps")
    config.unused("shared_expert_combination_strategy", "expert_selection_fn", "sliding_window_pattern")
    first = config.count("first_k_dense_replace")
    dense_width = config.optional("prefix_dense_intermediate_size") or width
    dense = gated_mlp(shape.hidden_size, dense_width), None
    every = config.optional("sliding_window_pattern") or 4
    prefix = config.optional("prefix_dense_sliding_window_pattern") or 1
    default = [(i + 1) % prefix != 0 if i < first else (i - first + 1) % every != 0 for i in range(layers)]
    windows = layer_windows(config, layers, config.optional("sliding_window"), default=default)
    parts = parts_after(config, dense, sparse, layers, first)
    return block_decoder(config, name, traits, parts, shape=shape, windows=windows)
