"""Ling 2.5 and 3: lightning or delta attention in most layers, latent attention in the others, shared and routed experts."""

from capplan.families.config import Config
from capplan.families.hybrid.kimi_linear import delta_attention
from capplan.families.parts.blocks import decoder, decoder_layer, gated_mlp, latent_attention
from capplan.families.parts.stacks import counted_mixture, parts_after, with_next_token_layers
from capplan.families.parts.state_blocks import StateBlock, layer_kinds
from capplan.model.network import LinearAttention, Network, Projection

_KINDS = {"linear_attention": "state", "full_attention": "attention"}


def read_bailing_hybrid(config: Config, name: str) -> Network:
    """Return a Ling 3 (delta attention) or 2.5 (lightning attention, as vLLM's `BailingMoELinearAttention` has it)."""
    hidden, count = config.dimension("hidden_size"), config.layers()
    older = _is_2_5(config)
    mixer, attending, norms = latent_attention(
        config, hidden, attention_bias=not older and config.flag("attention_bias", default=False)
    )
    if not older:
        attending += (Projection("gate", "attention", hidden, mixer.query_heads, "columns"),)
    stated = _lightning(config, hidden) if older else _delta(config, hidden)
    dense = gated_mlp(hidden, config.dimension("intermediate_size")), None
    width = config.dimension("moe_intermediate_size")
    shared = config.optional("moe_shared_expert_intermediate_size") or width
    sparse = counted_mixture(
        config, hidden, width, shared=config.count("num_shared_experts", default=1) * shared
    )
    first = config.count("first_k_dense_replace", default=2)
    parts = parts_after(config, dense, sparse, count, first)
    attended = [decoder_layer(mixer, attending, part, 2 * hidden + norms) for part in parts]
    group = config.dimension("layer_group_size", default=6)
    whole_groups = count // group * group if older else count
    default = [
        "state" if (index + 1) % group and index < whole_groups else "attention" for index in range(count)
    ]
    kinds = layer_kinds(config, ("layer_types",), count, _KINDS, default)
    layers = [
        layer if kind == "attention" else stated.layer(2 * hidden, part)
        for layer, part, kind in zip(attended, parts, kinds, strict=True)
    ]
    return with_next_token_layers(config, decoder(config, name, layers, hidden=hidden), attended[-1])


def _is_2_5(config: Config) -> bool:
    named = config.items("architectures") or ()
    config.unused(
        "short_conv_kernel_size",
        "kda_safe_gate",
        "kda_lower_bound",
        "group_norm_size",
        "linear_silu",
        "norm_head",
        "norm_softmax",
        "linear_rope",
    )
    return "BailingMoeV2_5ForCausalLM" in named or config.stated("group_norm_size", "linear_silu")


def _delta(config: Config, hidden: int) -> StateBlock:
    heads = config.optional("linear_num_heads") or config.dimension("num_attention_heads", most=100_000)
    kernel = config.optional("linear_conv_kernel_dim") or config.dimension(
        "short_conv_kernel_size", default=4, most=64
    )
    width = config.optional("linear_head_dim") or config.dimension("head_dim", default=128)
    return delta_attention(hidden, heads, width, kernel, whole_forget=True, whole_gate=True)


def _lightning(config: Config, hidden: int) -> StateBlock:
    heads = config.dimension("num_attention_heads", most=100_000)
    width = config.optional("head_dim") or config.divisible(
        "hidden_size", hidden, "num_attention_heads", heads
    )
    inner = heads * width
    bias = config.flag("use_bias", default=False)
    all_bias = bias or config.flag("use_qkv_bias", default=False)
    mixer = LinearAttention(
        "lightning", heads, heads, width, width, state_elements=heads * width**2, state_format="fp32",
    )  # fmt: skip
    projections = (
        Projection("qkv", "attention", hidden, 3 * inner, "columns", bias=3 * inner if all_bias else 0),
        Projection("output_gate", "attention", hidden, inner, "columns"),
        Projection("out_proj", "attention", inner, hidden, "rows", bias=hidden if bias else 0),
    )
    norms = inner + (2 * width if config.flag("use_qk_norm", default=False) else 0)
    return StateBlock(mixer, projections, 0, norms, inner)
