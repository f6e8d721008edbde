"""Hybrids with linear attention other than the gated delta net of Qwen: Kimi Linear, Kimi K3, Ling 2.5 and 3, GLM-5.3, MiniMax-Text-01 and M1."""

from dataclasses import replace

from capplan.families.attention.deepseek import reuses_index
from capplan.families.config import Config
from capplan.families.parts.blocks import (
    Part,
    attention,
    attention_output,
    decoder,
    decoder_layer,
    gated_mlp,
    heads,
    hyper_connections,
    latent_attention,
    qkv,
    routed,
    router,
    with_tower,
    with_vision,
)
from capplan.families.parts.stacks import (
    deepseek_mixture,
    mixture,
    parts_after,
    with_next_token_layers,
)
from capplan.families.parts.state_blocks import StateBlock
from capplan.families.parts.vision import glm_ocr_vision
from capplan.model.network import Layer, LinearAttention, Network, Projection

_KIMI_LINEAR_KINDS = {"linear_attention": "state", "full_attention": "attention"}


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


def _kimi_linear_delta(config: Config, hidden: int) -> StateBlock:
    section = config.section("linear_attn_config")
    whole = bool(section and section.flag("use_full_rank_gate"))
    return delta_attention(hidden, *delta_sizes(config, 32), whole_gate=whole)


def _sparse(config: Config, hidden: int) -> tuple[Part, int]:
    """Return routed and shared experts and their norm; Kimi K3 routes a narrower latent."""
    experts = config.dimension("num_experts", "num_local_experts")
    latent = config.optional("routed_expert_hidden_size")
    width = config.dimension("moe_intermediate_size")
    chosen = config.dimension("num_experts_per_token", "num_experts_per_tok")
    expert = routed(config, experts, chosen, latent or hidden, width)
    shared = config.count("num_shared_experts", "n_shared_experts", default=1)
    matmuls: tuple[Projection, ...] = (router(hidden, experts),)
    if latent:
        matmuls += (
            Projection("latent_down", "ffn", hidden, latent, "none"),
            Projection("latent_up", "ffn", latent, hidden, "none"),
        )
    if shared:
        matmuls += gated_mlp(hidden, shared * width, tensor_class="shared_expert")
    norm = latent if latent and config.flag("latent_moe_use_norm") else 0
    return (matmuls, expert), norm


def read_kimi_linear(config: Config, name: str) -> Network:
    """Return a Kimi Linear, or the text half of a Kimi K3."""
    hidden = config.dimension("hidden_size")
    count = config.layers()
    delta = _kimi_linear_delta(config, hidden)
    bias = config.flag("attention_bias")
    latent, attending, latent_norms = latent_attention(config, hidden, attention_bias=bias)
    if config.flag("mla_use_output_gate"):
        gate = Projection("g", "attention", hidden, latent.query_heads * latent.value_head_dim, "columns")
        attending = (*attending, gate)
    dense: Part = (gated_mlp(hidden, config.dimension("intermediate_size")), None)
    sparse, sparse_norms = _sparse(config, hidden)
    first = config.count("first_k_dense_replace", default=1)
    every = config.dimension("moe_layer_freq", most=1000) if config.has("moe_layer_freq") else 1
    usual = [sparse if index >= first and index % every == 0 else dense for index in range(count)]
    parts = parts_after(config, dense, sparse, count, 0) if config.has("mlp_layer_types") else usual
    layers = []
    for part, kind in zip(parts, _kimi_linear_kinds(config, count), strict=True):
        norms = 2 * hidden + (sparse_norms if part is sparse else 0)
        if kind == "attention":
            layers.append(Layer((latent,), (*attending, *part[0]), part[1], norms + latent_norms))
        else:
            layers.append(delta.layer(norms, part))
    return decoder(config, name, layers, hidden=hidden)


def _kimi_linear_kinds(config: Config, count: int) -> list[str]:
    """Return what each layer is; `full_attn_layers` counts layers from one."""
    if config.has("layer_types"):
        return config.kinds("layer_types", layers=count, known=_KIMI_LINEAR_KINDS)
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


_BAILING_KINDS = {"linear_attention": "state", "full_attention": "attention"}


def read_bailing_hybrid(config: Config, name: str) -> Network:
    """Return a Ling 3 (delta attention) or 2.5 (lightning attention, as vLLM's `BailingMoELinearAttention` has it)."""
    hidden, count = config.dimension("hidden_size"), config.layers()
    older = _is_2_5(config)
    mixer, attending, norms = latent_attention(
        config, hidden, attention_bias=not older and config.flag("attention_bias")
    )
    if not older:
        attending += (Projection("gate", "attention", hidden, mixer.query_heads, "columns"),)
    stated = _lightning(config, hidden) if older else _bailing_delta(config, hidden)
    dense = gated_mlp(hidden, config.dimension("intermediate_size")), None
    width = config.dimension("moe_intermediate_size")
    shared = config.optional("moe_shared_expert_intermediate_size") or width
    sparse = mixture(config, hidden, width, shared=config.count("num_shared_experts") * shared)
    first = config.count("first_k_dense_replace")
    parts = parts_after(config, dense, sparse, count, first)
    attended = [decoder_layer(mixer, attending, part, 2 * hidden + norms) for part in parts]
    group = config.dimension("layer_group_size")
    whole_groups = count // group * group if older else count
    default = [
        "state" if (index + 1) % group and index < whole_groups else "attention" for index in range(count)
    ]
    kinds = config.kinds("layer_types", layers=count, known=_BAILING_KINDS, default=default)
    layers = [
        layer if kind == "attention" else stated.layer(2 * hidden, part)
        for layer, part, kind in zip(attended, parts, kinds, strict=True)
    ]
    return with_next_token_layers(config, decoder(config, name, layers, hidden=hidden), attended[-1])


def _is_2_5(config: Config) -> bool:
    named = config.items("architectures") or ()
    return "BailingMoeV2_5ForCausalLM" in named or config.stated("group_norm_size", "linear_silu")


def _bailing_delta(config: Config, hidden: int) -> StateBlock:
    heads = config.optional("linear_num_heads") or config.dimension("num_attention_heads", most=100_000)
    kernel = config.optional("linear_conv_kernel_dim") or config.dimension("short_conv_kernel_size", most=64)
    width = config.optional("linear_head_dim") or config.dimension("head_dim")
    return delta_attention(hidden, heads, width, kernel, whole_forget=True, whole_gate=True)


def _lightning(config: Config, hidden: int) -> StateBlock:
    heads = config.dimension("num_attention_heads", most=100_000)
    width = config.optional("head_dim") or config.divisible(
        "hidden_size", hidden, "num_attention_heads", heads
    )
    inner = heads * width
    bias = config.flag("use_bias")
    all_bias = bias or config.flag("use_qkv_bias")
    mixer = LinearAttention(
        "lightning", heads, heads, width, width, state_elements=heads * width**2, state_format="fp32",
    )  # fmt: skip
    projections = (
        Projection("qkv", "attention", hidden, 3 * inner, "columns", bias=3 * inner if all_bias else 0),
        Projection("output_gate", "attention", hidden, inner, "columns"),
        Projection("out_proj", "attention", inner, hidden, "rows", bias=hidden if bias else 0),
    )
    norms = inner + (2 * width if config.flag("use_qk_norm") else 0)
    return StateBlock(mixer, projections, 0, norms, inner)


_GLM5_NEXT_KINDS = {"linear_attention": "state"} | dict.fromkeys(
    ("indexed_attention", "deepseek_sparse_attention", "full_attention"), "attention"
)


def read_glm5_next(config: Config, name: str) -> Network:
    """Return a GLM-5.3: text decoder and vision tower."""
    network = read_glm5_next_text(config.needed_section("text_config"), name)
    return with_tower(network, config, lambda vision, _: glm_ocr_vision(vision))


def read_glm5_next_text(config: Config, name: str) -> Network:
    """Return the text half of a GLM-5.3."""
    hidden, count = config.dimension("hidden_size"), config.layers()
    streams = config.dimension("hc_mult")
    config.unused("layer_types", "index_kpool_always_select_tail", "first_k_dense_replace")
    if (stated := config.section("linear_attn_config")) is not None and config.stated("layer_types"):
        stated.unused("kda_layers", "full_attn_layers")
    delta = delta_attention(hidden, *delta_sizes(config, 64))
    dense = gated_mlp(hidden, config.dimension("intermediate_size")), None
    parts = parts_after(config, dense, deepseek_mixture(config, hidden), count, min(3, count))
    mixes, mixed = hyper_connections(hidden, streams, (2 + streams) * streams, scales=3)
    default = ["attention" if index % 4 == 3 else "state" for index in range(count)]
    kinds = config.kinds("layer_types", layers=count, known=_GLM5_NEXT_KINDS, default=default)
    layers = []
    for part, kind, reused in zip(parts, kinds, reuses_index(config, count), strict=True):
        matmuls = (*mixes, *part[0])
        norms = 2 * hidden + mixed
        if kind == "attention":
            layer = _attending(config, hidden, norms, (matmuls, part[1]), reused=reused)
        else:
            layer = delta.layer(norms, (matmuls, part[1]))
        layers.append(replace(layer, residual_streams=streams))
    network = decoder(config, name, layers, hidden=hidden)
    return with_next_token_layers(config, network, layers[-1])


def _attending(config: Config, hidden: int, norms: int, part: Part, *, reused: bool) -> Layer:
    """Return a layer of latent attention whose index keys each stand for a pool of tokens."""
    if config.dimension("qk_rope_head_dim", least=0):
        raise config.error("qk_rope_head_dim", "a rotary part is not modelled", "allowed: 0")
    pool = config.dimension("index_kpool")
    mixer, matmuls, latent_norms = latent_attention(
        config, hidden, indexer=True, index_cached=not reused,
        attention_bias=config.flag("attention_bias"),
    )  # fmt: skip
    mixer = replace(mixer, index_pool_tokens=pool)
    if not reused:
        matmuls += (Projection("index_gate", "other", hidden, mixer.index_head_dim, "none"),)
        latent_norms += pool * mixer.index_head_dim
    return Layer((mixer,), (*matmuls, *part[0]), part[1], norms + latent_norms)


_MINIMAX_KINDS = {"linear_attention": "state", "full_attention": "attention"}


def read_minimax(config: Config, name: str) -> Network:
    """Return a MiniMax-Text-01 or MiniMax-M1."""
    shape = heads(config)
    hidden = shape.hidden_size
    inner = shape.query_heads * shape.head_dim
    count = config.layers()
    (scoring,), expert = mixture(
        config, hidden, "intermediate_size", experts=("num_local_experts", "num_experts"), router_in="fp32"
    )
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
    layers = [stated if kind == "state" else attended for kind in _minimax_kinds(config, count)]
    return decoder(config, name, layers, hidden=hidden)


def _minimax_kinds(config: Config, count: int) -> list[str]:
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
    return config.kinds("layer_types", layers=count, known=_MINIMAX_KINDS, default=default)
