"""Attention whose queries, keys and values pass through short convolutions: ZAYA1 and Inkling 2."""

from dataclasses import replace

from capplan.families.config import Config
from capplan.families.parts.blocks import (
    Heads,
    attention,
    attention_output,
    decoder,
    heads,
    qkv,
    routed,
    router,
)
from capplan.model.network import Experts, Layer, Network, Projection, ShortConvolution

_KINDS = {"hybrid": "full", "hybrid_sliding": "sliding"}


def _expert(config: Config, experts: int, hidden: int) -> Experts:
    width = config.dimension("moe_intermediate_size")
    return routed(config, experts, config.dimension("num_experts_per_tok"), hidden, width)


def read_zaya(config: Config, name: str) -> Network:
    """Return a ZAYA1: convolutions over queries and keys, values half of the token before, experts chosen by a small network.

    Source: Zyphra 2025, "Compressed Convolutional Attention", arXiv:2510.04476; the class of transformers has the shapes.
    """
    shape, count = heads(config), config.layers()
    hidden, bias = shape.hidden_size, config.flag("attention_bias")
    kinds = config.kinds("layer_types", layers=count, known=_KINDS, default=["full"] * count)
    window = config.dimension("sliding_window") if "sliding" in kinds else None
    depthwise, grouped = config.dimension("cca_time0"), config.dimension("cca_time1")
    keys = shape.kv_heads * shape.head_dim
    channels = shape.query_heads * shape.head_dim + keys
    kept = channels * (depthwise + grouped - 2) + keys // 2
    taps = channels * (depthwise + 1) + channels * (shape.head_dim * grouped + 1)
    small, experts = config.dimension("router_hidden_size"), config.dimension("num_experts")
    choosing = (
        Projection("router_in", "router", hidden, small, "none", bias=small),
        Projection("router_1", "router", small, small, "none", bias=small),
        Projection("router_2", "router", small, small, "none", bias=small),
        router(small, experts + 1),  # one expert is none at all
    )
    expert = _expert(config, experts, hidden)
    mixing = (qkv(shape, bias=bias), attention_output(shape, bias=bias), *choosing)
    vectors = 2 * hidden + 2 * 4 * hidden + shape.kv_heads + small
    layers = []
    for index, kind in enumerate(kinds):
        mixer = attention(shape, window if kind == "sliding" else None, query_key_norms="head")
        mixer = replace(mixer, convolved_elements=kept)
        norms = vectors + (small if index else 0)
        layers.append(Layer((mixer,), mixing, expert, norms, state_parameters=taps))
    network = decoder(
        config, name, layers, hidden=hidden, tied_default=True, head_bias=config.flag("lm_head_bias")
    )
    return replace(network, other_parameters=network.other_parameters + 2 * hidden)


def read_inkling2_text(config: Config, name: str) -> Network:
    """Return the text half of an Inkling 2: convolutions behind keys, values and both blocks, and residuals that attend to earlier blocks."""
    hidden, count = config.dimension("hidden_size"), config.layers()
    kinds = config.kinds(
        "layer_types",
        layers=count,
        known=_KINDS,
        default=["sliding" if (i + 1) % 6 else "full" for i in range(count)],
    )
    shapes = {"full": heads(config), "sliding": _sliding(config)}
    window, reach = (
        config.optional("sliding_window_size", "sliding_window") or 1024,
        config.dimension("rel_extent"),
    )
    kernel, every = config.dimension("conv_kernel_size"), config.dimension("n_layers_per_attn_res_block")
    experts = config.dimension("n_routed_experts")
    expert = _expert(config, experts, hidden)
    layers = []
    for index, kind in enumerate(kinds):
        shape, full = shapes[kind], kind == "full"
        values = 2 * shape.kv_heads * shape.head_dim
        mixers = (
            attention(shape, None if full else window, query_key_norms="head"),
            ShortConvolution(values + 2 * hidden, kernel),
        )
        matmuls = (*_inkling2_attention(config, shape), router(hidden, experts))
        if full:
            matmuls += (Projection("taps", "attention", hidden, 2 * shape.kv_heads * kernel, "columns"),)
        relative, extent = config.dimension("d_rel"), reach if full else window
        matmuls += (
            Projection(
                "relative_bias",
                "attention",
                shape.query_heads * relative,
                extent,
                "columns",
                owns_weights=False,
            ),  # one small matrix for all heads, whose weights are among the vectors
        )
        residuals = (1 + (3 if full else 1) * bool(index)) * hidden
        vectors = (4 if full else 2) * hidden + residuals + shape.query_heads * (shape.head_dim + relative)
        layers.append(
            Layer(
                mixers, matmuls, expert, vectors + relative * extent,
                state_parameters=kernel * (values + 2 * hidden), residual_streams=1 + index // every,
            )
        )  # fmt: skip
    network = decoder(config, name, layers, hidden=hidden, final_norm=3 * hidden, tied=False)
    scored = config.dimension("unpadded_vocab_size")
    return replace(network, lm_head=replace(network.lm_head, outputs=scored))


def _sliding(config: Config) -> Heads:
    """Return the heads of the layers with a window."""
    query_heads = config.dimension("swa_num_attention_heads", most=100_000)
    kv_heads, width = config.dimension("swa_num_key_value_heads"), config.dimension("swa_head_dim")
    config.divisible("swa_num_attention_heads", query_heads, "swa_num_key_value_heads", kv_heads)
    return Heads(config.dimension("hidden_size"), query_heads, kv_heads, width, width)


def _inkling2_attention(config: Config, shape: Heads) -> tuple[Projection, ...]:
    """Return queries, keys and values with a gate of the output, sinks that depend on the token, and its relative states."""
    hidden, inner = shape.hidden_size, shape.query_heads * shape.head_dim
    relative = shape.query_heads * config.dimension("d_rel")
    return (
        qkv(shape, gate_outputs=inner),
        attention_output(shape),
        Projection("sinks", "attention", hidden, shape.query_heads, "columns"),
        Projection("relative", "attention", hidden, relative, "columns"),
    )
