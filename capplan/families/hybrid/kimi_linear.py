"""Kimi Linear and Kimi K3: delta attention with a state in three of four layers, latent attention in the fourth."""

from dataclasses import replace

from capplan.families.config import Config
from capplan.families.parts.blocks import (
    Part,
    decoder,
    gated_mlp,
    latent_attention,
    routed,
    router,
    with_vision,
)
from capplan.families.parts.stacks import parts_after
from capplan.families.parts.state_blocks import StateBlock, layer_kinds
from capplan.model.network import Layer, LinearAttention, Network, Projection

_KINDS = {"linear_attention": "state", "full_attention": "attention"}


def delta_attention(
    hidden: int,
    heads: int,
    head_dim: int,
    kernel: int,
    *,
    whole_forget: bool = False,
    whole_gate: bool = False,
) -> StateBlock:
    """Return Kimi delta attention: three convolved projections, a forget gate per channel, an output gate.

    Each gate is of low rank, or a whole matrix where the flag says so.
    """
    inner = heads * head_dim
    mixer = LinearAttention(
        "kda", heads, heads, head_dim, head_dim,
        conv_channels=3 * inner, conv_kernel=kernel, state_elements=heads * head_dim**2,
        state_stated=True,
    )  # fmt: skip
    projections = (
        Projection("qkv", "attention", hidden, 3 * inner, "columns"),
        *_gate("f", hidden, head_dim, inner, whole=whole_forget),
        Projection("b", "attention", hidden, heads, "columns"),
        *_gate("g", hidden, head_dim, inner, whole=whole_gate),
        Projection("o", "attention", inner, hidden, "rows"),
    )
    return StateBlock(mixer, projections, 3 * inner * kernel + inner + heads, head_dim)


def _gate(name: str, hidden: int, rank: int, inner: int, *, whole: bool) -> tuple[Projection, ...]:
    if whole:
        return (Projection(name, "attention", hidden, inner, "columns"),)
    return (
        Projection(f"{name}_a", "attention", hidden, rank, "none"),
        Projection(f"{name}_b", "attention", rank, inner, "columns"),
    )


def delta_sizes(config: Config, default_heads: int) -> tuple[int, int, int]:
    """Return heads, their width and taps of delta attention, from `linear_attn_config` or from keys of the file."""
    section = config.section("linear_attn_config")
    source = section or config
    return (
        source.dimension("num_heads" if section else "linear_num_heads", default=default_heads),
        source.dimension("head_dim" if section else "linear_head_dim", default=128),
        source.dimension(
            "short_conv_kernel_size" if section else "linear_conv_kernel_dim", default=4, most=64
        ),
    )


def _delta(config: Config, hidden: int) -> StateBlock:
    section = config.section("linear_attn_config")
    whole = bool(section and section.flag("use_full_rank_gate", default=False))
    return delta_attention(hidden, *delta_sizes(config, 32), whole_gate=whole)


def _sparse(config: Config, hidden: int) -> tuple[Part, int]:
    """Return routed and shared experts and their norm; Kimi K3 routes a narrower latent."""
    experts = config.dimension("num_experts", "num_local_experts")
    latent = config.optional("routed_expert_hidden_size")
    width = config.dimension("moe_intermediate_size")
    expert = routed(
        config,
        experts,
        config.dimension("num_experts_per_token", "num_experts_per_tok"),
        latent or hidden,
        width,
    )
    shared = config.count("num_shared_experts", "n_shared_experts", default=1)
    matmuls: tuple[Projection, ...] = (router(hidden, experts),)
    if latent:
        matmuls += (
            Projection("latent_down", "ffn", hidden, latent, "none"),
            Projection("latent_up", "ffn", latent, hidden, "none"),
        )
    if shared:
        matmuls += gated_mlp(hidden, shared * width, tensor_class="shared_expert")
    norm = latent if latent and config.flag("latent_moe_use_norm", default=False) else 0
    return (matmuls, expert), norm


def read_kimi_linear(config: Config, name: str) -> Network:
    """Return a Kimi Linear, or the text half of a Kimi K3."""
    hidden = config.dimension("hidden_size")
    count = config.layers()
    delta = _delta(config, hidden)
    bias = config.flag("attention_bias", default=False)
    latent, attending, latent_norms = latent_attention(config, hidden, attention_bias=bias)
    if config.flag("mla_use_output_gate", default=False):
        gate = Projection("g", "attention", hidden, latent.query_heads * latent.value_head_dim, "columns")
        attending = (*attending, gate)
    dense: Part = (gated_mlp(hidden, config.dimension("intermediate_size")), None)
    sparse, sparse_norms = _sparse(config, hidden)
    first = config.count("first_k_dense_replace", default=1)
    every = config.dimension("moe_layer_freq", default=1, most=1000) if config.has("moe_layer_freq") else 1
    usual = [sparse if index >= first and index % every == 0 else dense for index in range(count)]
    parts = parts_after(config, dense, sparse, count, 0) if config.has("mlp_layer_types") else usual
    layers = []
    for part, kind in zip(parts, _kinds(config, count), strict=True):
        norms = 2 * hidden + (sparse_norms if part is sparse else 0)
        if kind == "attention":
            layers.append(Layer((latent,), (*attending, *part[0]), part[1], norms + latent_norms))
        else:
            layers.append(delta.layer(norms, part))
    return decoder(config, name, layers, hidden=hidden)


def _kinds(config: Config, count: int) -> list[str]:
    """Return what each layer is; `full_attn_layers` counts layers from one."""
    if config.has("layer_types"):
        return layer_kinds(config, ("layer_types",), count, _KINDS)
    section = config.section("linear_attn_config")
    attending = section.items("full_attn_layers") if section else None
    if section:
        section.unused("kda_layers")  # the other layers
    if attending is None:
        return ["attention" if index and index % 4 == 0 else "state" for index in range(count)]
    return ["attention" if index + 1 in attending else "state" for index in range(count)]


def read_kimi_k3(config: Config, name: str) -> Network:
    """Return a Kimi K3; the vision tower's size is not derived from its config."""
    text = config.needed_section("text_config")
    config.unused("vision_config")
    config.uncounted(
        "no reference implementation counts this model_type: parameters follow its published shapes; the vision "
        "tower is not counted"
    )
    return replace(with_vision(read_kimi_linear(text, name), config, 0), model_type="kimi_k3")
