"""LFM2: gated short convolutions, a few attention layers, dense or expert feed-forward."""

from capplan.families.config import Config
from capplan.families.parts.blocks import (
    Part,
    attention,
    attention_output,
    decoder,
    gated_mlp,
    heads,
    qkv,
    routed,
    router,
)
from capplan.families.parts.state_blocks import layer_kinds
from capplan.model.network import Layer, Network, Projection, ShortConvolution

_KINDS = {"conv": "conv", "short_conv": "conv", "full_attention": "attention"}


def read_lfm2(config: Config, name: str) -> Network:
    """Return a dense LFM2."""
    width = config.dimension("block_ff_dim", "intermediate_size")
    config.unused(
        "block_dim",
        "conv_dim",
        "conv_dim_out",
        "conv_use_xavier_init",
        "block_use_swiglu",
        "block_use_xavier_init",
    )
    if config.flag("block_auto_adjust_ff_dim", default=True):
        multiple = config.dimension("block_multiple_of", default=256)
        width = int(2 * width / 3)
        width = int(_multiplier(config) * width)
        width = multiple * -(-width // multiple)
    part: Part = (gated_mlp(config.dimension("hidden_size"), width), None)
    return _network(config, name, [part] * config.layers())


def _multiplier(config: Config) -> float:
    key, value = config.first_present("block_ffn_dim_multiplier")
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1000:
        raise config.error(key, f"{value!r} is not a factor", "allowed: a number above 0")
    return float(value)


def read_lfm2_moe(config: Config, name: str) -> Network:
    """Return an LFM2 with experts after its first dense layers."""
    hidden = config.dimension("hidden_size")
    dense: Part = (gated_mlp(hidden, config.dimension("intermediate_size")), None)
    experts = config.dimension("num_experts")
    expert = routed(
        config,
        experts,
        config.dimension("num_experts_per_tok"),
        hidden,
        config.dimension("moe_intermediate_size"),
    )
    sparse: Part = ((router(hidden, experts),), expert)
    first = config.count("num_dense_layers", default=2)
    return _network(config, name, [dense if index < first else sparse for index in range(config.layers())])


def _network(config: Config, name: str, parts: list[Part]) -> Network:
    shape = heads(config, default_kv_heads=8)
    hidden = shape.hidden_size
    kernel = config.dimension("conv_L_cache", default=3, most=64)
    bias = config.flag("conv_bias", default=False)
    convolving = (
        Projection("in_proj", "attention", hidden, 3 * hidden, "columns", bias=3 * hidden if bias else 0),
        Projection("out_proj", "attention", hidden, hidden, "rows", bias=hidden if bias else 0),
    )
    layers = []
    for kind, (matmuls, experts) in zip(_kinds(config, len(parts)), parts, strict=True):
        if kind == "attention":
            mixing = (qkv(shape), attention_output(shape))
            norms = 2 * hidden + 2 * shape.head_dim
            layers.append(Layer((attention(shape),), (*mixing, *matmuls), experts, norms))
        else:
            taps = hidden * kernel + (hidden if bias else 0)
            mixer = ShortConvolution(hidden, kernel)
            layers.append(
                Layer((mixer,), (*convolving, *matmuls), experts, 2 * hidden, state_parameters=taps)
            )
    tied = config.ties_embeddings(True, "tie_embedding", "tie_word_embeddings")
    return decoder(config, name, layers, hidden=hidden, tied=tied)


def _kinds(config: Config, count: int) -> list[str]:
    if config.has("layer_types"):
        return layer_kinds(config, ("layer_types",), count, _KINDS)
    attending = config.items("full_attn_idxs")
    if attending is None:
        raise config.missing("layer_types", "full_attn_idxs")
    return ["attention" if index in attending else "conv" for index in range(count)]
