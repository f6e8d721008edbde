"""Qwen3-Next, Qwen3.5 and OLMo Hybrid: gated delta net in three of four layers, attention in the fourth."""

from dataclasses import replace

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
    with_tower,
)
from capplan.families.parts.stacks import Traits, block, dense_mlp
from capplan.families.parts.state_blocks import gated_delta_net, layer_kinds
from capplan.families.parts.vision import qwen3_vision
from capplan.model.network import Layer, Network, Projection
from capplan.model.parameters import layer_parameters

_KINDS = {"linear_attention": "state", "full_attention": "attention"}


def sparse_feed_forward(config: Config, hidden: int) -> Part:
    """Return routed experts with a gated shared expert."""
    experts = config.dimension("num_experts")
    expert = routed(
        config,
        experts,
        config.dimension("num_experts_per_tok"),
        hidden,
        config.dimension("moe_intermediate_size"),
    )
    shared = (
        *gated_mlp(hidden, config.count("shared_expert_intermediate_size"), tensor_class="shared_expert"),
        Projection("shared_gate", "router", hidden, 1, "none"),
    )
    return (router(hidden, experts), *shared), expert


def _dense(config: Config, hidden: int) -> Part:
    return gated_mlp(hidden, config.dimension("intermediate_size")), None


def _is_dense(config: Config, index: int) -> bool:
    only = config.items("mlp_only_layers") or ()
    step = config.count("decoder_sparse_step", default=1)
    return index in only or step == 0 or (index + 1) % step != 0


def read_qwen3_next(config: Config, name: str) -> Network:
    """Return a Qwen3-Next or the text half of a Qwen3.5, dense or with experts."""
    hidden = config.dimension("hidden_size")
    config.unused("intermediate_size", "attn_output_gate")
    count = config.layers()
    shape = heads(config, hidden=hidden, default_head_dim=256)
    bias = config.flag("attention_bias", default=False)
    delta = gated_delta_net(config, hidden)
    attending = (
        # queries come with a gate of the same width
        qkv(shape, bias=bias, gate_outputs=shape.query_heads * shape.head_dim),
        attention_output(shape, bias=bias),
    )
    sparse = (
        sparse_feed_forward(config, hidden)
        if config.has("num_experts") and config.count("num_experts")
        else None
    )

    def layer(kind: str, index: int) -> Layer:
        part = _dense(config, hidden) if sparse is None or _is_dense(config, index) else sparse
        if kind == "attention":
            norms = 2 * hidden + 2 * shape.head_dim
            return Layer((attention(shape),), (*attending, *part[0]), part[1], norms)
        return delta.layer(2 * hidden, part)

    interval = config.optional("full_attention_interval") or 4
    default = ["state" if (index + 1) % interval else "attention" for index in range(count)]
    kinds = layer_kinds(config, ("layer_types",), count, _KINDS, default)
    network = decoder(config, name, [layer(kind, index) for index, kind in enumerate(kinds)], hidden=hidden)
    return _with_mtp(config, network, layer("attention", count - 1), hidden)


def _with_mtp(config: Config, network: Network, layer: Layer, hidden: int) -> Network:
    """Return the network with its multi-token-prediction layers: attention layers after one joining matmul."""
    depth = config.count("mtp_num_hidden_layers", "num_nextn_predict_layers")
    if not depth:
        return network
    joining = 2 * hidden * hidden + 3 * hidden
    experts = layer.experts and replace(layer.experts, experts=layer.experts.experts * depth)
    return replace(network, mtp_parameters=joining + depth * layer_parameters(layer), mtp_experts=experts)


def read_qwen3_5(config: Config, name: str) -> Network:
    """Return a Qwen3.5 (3.6, ...): text decoder and vision tower."""
    text = config.section("text_config")
    if text is None:
        return read_qwen3_next(config, name)
    network = read_qwen3_next(text, name)
    return with_tower(network, config, lambda vision, _: qwen3_vision(vision))


def read_olmo_hybrid(config: Config, name: str) -> Network:
    """Return an OLMo Hybrid: norms before a gated delta net, after attention, and over all its queries and keys."""
    shape = heads(config)
    count, hidden = config.layers(), shape.hidden_size
    traits = Traits(wide_norms=True)
    bias = config.flag("attention_bias", default=False)
    part = dense_mlp(config, shape, traits)
    attended = block(shape, replace(traits, qkv_bias=bias, output_bias=bias), part)
    key_heads = config.optional("linear_num_key_heads") or shape.query_heads
    delta = gated_delta_net(
        config,
        hidden,
        default_heads=(shape.query_heads, shape.query_heads),
        default_key_dim=max(1, 3 * hidden // (4 * key_heads)),
    )
    stated = delta.layer(2 * hidden, part)
    default = ["state" if index % 4 != 3 else "attention" for index in range(count)]
    default[-1] = default[-1] if "attention" in default else "attention"
    kinds = layer_kinds(config, ("layer_types",), count, _KINDS, default)
    layers = [attended if kind == "attention" else stated for kind in kinds]
    return decoder(config, name, layers, hidden=hidden)
