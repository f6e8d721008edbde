"""MiniMax-Text-01 and M1: lightning attention with a fixed state, full attention in a few layers, experts in all."""

from capplan.families.config import Config
from capplan.families.parts.blocks import (
    attention,
    attention_output,
    decoder,
    heads,
    qkv,
    routed,
    router,
)
from capplan.families.parts.state_blocks import layer_kinds
from capplan.model.network import Layer, LinearAttention, Network, Projection

_KINDS = {"linear_attention": "state", "full_attention": "attention"}


def read_minimax(config: Config, name: str) -> Network:
    """Return a MiniMax-Text-01 or MiniMax-M1."""
    shape = heads(config)
    hidden = shape.hidden_size
    inner = shape.query_heads * shape.head_dim
    count = config.layers()
    experts = config.dimension("num_local_experts", "num_experts")
    expert = routed(
        config,
        experts,
        config.dimension("num_experts_per_tok"),
        hidden,
        config.dimension("intermediate_size"),
    )
    scoring = router(hidden, experts, multiplied_in="fp32")
    attended = Layer((attention(shape),), (qkv(shape), attention_output(shape), scoring), expert, 2 * hidden)
    lightning = LinearAttention(
        "lightning", shape.query_heads, shape.query_heads, shape.head_dim, shape.head_dim,
        state_elements=shape.query_heads * shape.head_dim**2, state_format="bf16",
    )  # fmt: skip
    projections = (
        Projection("qkv", "attention", hidden, 3 * inner, "columns"),
        Projection("output_gate", "attention", hidden, inner, "columns"),
        Projection("out_proj", "attention", inner, hidden, "rows"),
        scoring,
    )
    stated = Layer((lightning,), projections, expert, 2 * hidden + inner, split_norm_parameters=inner)
    layers = [stated if kind == "state" else attended for kind in _kinds(config, count)]
    return decoder(config, name, layers, hidden=hidden)


def _kinds(config: Config, count: int) -> list[str]:
    flags = config.items("attn_type_list", length=count)
    if flags is not None:
        for index, flag in enumerate(flags[:count]):
            if flag not in (0, 1):
                raise config.error(
                    f"attn_type_list[{index}]", f"{flag!r} is not known", "allowed: 0 (lightning), 1"
                )
        return ["attention" if flag else "state" for flag in flags[:count]]
    default = ["attention" if (index + 1) % 2 else "state" for index in range(count)]
    if not config.has("layer_types"):
        config.notes.append(
            "layer_types is missing: full and lightning attention alternate, the default of this model_type"
        )
    return layer_kinds(config, ("layer_types",), count, _KINDS, default)
