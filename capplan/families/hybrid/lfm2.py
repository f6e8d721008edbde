"""LFM2 and LFM3: gated short convolutions, a few attention layers, dense or expert feed-forward."""

from typing import Literal

from capplan.families.config import Config
from capplan.families.parts.blocks import Part, decoder, gated_mlp, heads, routed, router
from capplan.families.parts.stacks import Traits, block
from capplan.families.parts.state_blocks import layer_kinds
from capplan.model.network import Layer, Network, Projection, ShortConvolution

_KINDS = {"conv": "conv", "short_conv": "conv", "full_attention": "attention"}
_KINDS_OF_3 = {"conv": "conv", "full_attention": "attention", "sliding_attention": "window"}


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


def read_lfm3(config: Config, name: str) -> Network:
    """Return an LFM3: windows in some of its attention layers, a gate on each head, norms around both blocks."""
    shape, count = heads(config, default_kv_heads=4, default_head_dim=128), config.layers()
    hidden, bias = shape.hidden_size, config.flag("attention_bias", default=False)
    norms = 4 if config.flag("use_sandwich_norm", default=True) else 2
    gate: Literal["heads", "none"] = "heads" if config.flag("use_attention_gate", default=True) else "none"
    traits = Traits(qkv_bias=bias, output_bias=bias, norms=norms, head_norms=True, output_gate=gate)
    part: Part = gated_mlp(hidden, config.dimension("intermediate_size")), None
    convolved = _convolution(config, hidden, part, norms)
    default = [
        {2: "attention", 0: "window" if index else "conv"}.get(index % 4, "conv") for index in range(count)
    ]
    kinds = layer_kinds(config, ("layer_types",), count, _KINDS_OF_3, default)
    config.unused("sliding_window")
    window = config.dimension("sliding_window") if "window" in kinds else None
    made = {
        "conv": convolved,
        "attention": block(shape, traits, part),
        "window": block(shape, traits, part, window=window),
    }
    return decoder(config, name, [made[kind] for kind in kinds], hidden=hidden, tied_default=True)


def _convolution(config: Config, hidden: int, part: Part, norms: int = 2) -> Layer:
    """Return a layer of a gated short convolution."""
    kernel = config.dimension("conv_L_cache", default=3, most=64)
    bias = config.flag("conv_bias", default=False)
    matmuls, experts = part
    convolving = (
        Projection("in_proj", "attention", hidden, 3 * hidden, "columns", bias=3 * hidden if bias else 0),
        Projection("out_proj", "attention", hidden, hidden, "rows", bias=hidden if bias else 0),
    )
    taps = hidden * kernel + (hidden if bias else 0)
    mixer = ShortConvolution(hidden, kernel)
    return Layer((mixer,), (*convolving, *matmuls), experts, norms * hidden, state_parameters=taps)


def _network(config: Config, name: str, parts: list[Part]) -> Network:
    shape = heads(config, default_kv_heads=8)
    hidden = shape.hidden_size
    layers = []
    for kind, part in zip(_kinds(config, len(parts)), parts, strict=True):
        if kind == "attention":
            layers.append(block(shape, Traits(head_norms=True), part))
        else:
            layers.append(_convolution(config, hidden, part))
    tied = config.ties_embeddings(True, "tie_embedding", "tie_word_embeddings")
    return decoder(config, name, layers, hidden=hidden, tied=tied)


def _kinds(config: Config, count: int) -> list[str]:
    if config.has("layer_types"):
        return layer_kinds(config, ("layer_types",), count, _KINDS)
    attending = config.items("full_attn_idxs")
    if attending is None:
        raise config.missing("layer_types", "full_attn_idxs")
    return ["attention" if index in attending else "conv" for index in range(count)]
