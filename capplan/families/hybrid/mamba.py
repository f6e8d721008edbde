"""Mamba by itself (Mamba, Mamba-2, Falcon Mamba: no cache grows), and next to attention (Jamba, Bamba, Falcon-H1, Granite 4, Zamba2)."""

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
)
from capplan.families.parts.stacks import Traits, block
from capplan.families.parts.state_blocks import Mamba2Shape, StateBlock, layer_kinds, mamba1, mamba2, rank_of
from capplan.model.network import Layer, Network, Projection

_KINDS = {
    "mamba": "state", "linear_attention": "state", "attention": "attention", "full_attention": "attention",
}  # fmt: skip


def _network(config: Config, name: str, block: StateBlock, hidden: int, *, tied_default: bool) -> Network:
    layers = [block.layer(hidden)] * config.layers("num_hidden_layers", "n_layer")
    return decoder(config, name, layers, hidden=hidden, tied_default=tied_default)


def read_mamba(config: Config, name: str) -> Network:
    """Return a Mamba-1 network (Mamba, Falcon Mamba)."""
    hidden = config.dimension("hidden_size", "d_model")
    expand = config.dimension("expand", default=2, most=64)
    inner = config.optional("intermediate_size", "d_inner") or expand * hidden
    block = mamba1(
        hidden,
        inner=inner,
        state=config.dimension("state_size", default=16),
        kernel=config.dimension("conv_kernel", default=4, most=64),
        dt_rank=rank_of(config, "time_step_rank", hidden),
        bias=config.flag("use_bias", default=False),
        conv_bias=config.flag("use_conv_bias", default=True),
    )
    return _network(config, name, block, hidden, tied_default=True)


def read_mamba2(config: Config, name: str) -> Network:
    """Return a Mamba-2 network (Codestral Mamba)."""
    hidden = config.dimension("hidden_size", "d_model")
    heads = config.dimension("num_heads", default=128)
    head_dim = config.dimension("head_dim", default=64)
    expand = config.dimension("expand", default=2, most=64)
    if heads * head_dim != expand * hidden:
        raise config.error(
            "num_heads",
            f"{heads} heads of {head_dim} are not {expand} x {hidden} wide",
            "allowed: num_heads x head_dim = expand x hidden_size",
        )
    block = mamba2(
        config,
        hidden,
        Mamba2Shape(
            heads,
            head_dim,
            state=config.dimension("state_size", default=128),
            groups=config.dimension("n_groups", default=8),
            kernel=config.dimension("conv_kernel", default=4, most=64),
        ),
        bias=config.flag("use_bias", default=False),
        conv_bias=config.flag("use_conv_bias", default=True),
    )
    return _network(config, name, block, hidden, tied_default=False)


def _mamba2_of(
    config: Config, hidden: int, inner: int, *, output_bias: bool | None = None, gated_norm: bool = True
) -> StateBlock:
    heads_count = config.dimension("mamba_n_heads", default=128)
    head_dim = config.first_present("mamba_d_head")[1]
    if head_dim is None or head_dim == "auto":
        head_dim = config.divisible("mamba_expand * hidden_size", inner, "mamba_n_heads", heads_count)
    else:
        head_dim = config.dimension("mamba_d_head")
    return mamba2(
        config,
        hidden,
        Mamba2Shape(
            heads_count,
            head_dim,
            state=config.dimension("mamba_d_state", default=256),
            groups=config.dimension("mamba_n_groups", default=1),
            kernel=config.dimension("mamba_d_conv", default=4, most=64),
        ),
        bias=config.flag("mamba_proj_bias", default=False),
        conv_bias=config.flag("mamba_conv_bias", default=True),
        output_bias=output_bias,
        gated_norm=gated_norm,
    )


def _inner(config: Config, hidden: int) -> int:
    return config.dimension("mamba_expand", default=2, most=64) * hidden


def read_jamba(config: Config, name: str) -> Network:
    """Return a Jamba: one attention layer in eight, experts in every second layer."""
    shape = heads(config)
    hidden = shape.hidden_size
    intermediate = config.dimension("intermediate_size")
    experts = config.dimension("num_experts", default=16)
    mixer = mamba1(
        hidden,
        inner=_inner(config, hidden),
        state=config.dimension("mamba_d_state", default=16),
        kernel=config.dimension("mamba_d_conv", default=4, most=64),
        dt_rank=rank_of(config, "mamba_dt_rank", hidden),
        bias=config.flag("mamba_proj_bias", default=False),
        conv_bias=config.flag("mamba_conv_bias", default=True),
        inner_norms=True,
    )
    dense: Part = (gated_mlp(hidden, intermediate), None)
    sparse: Part = (
        (router(hidden, experts),),
        routed(config, experts, config.dimension("num_experts_per_tok", default=2), hidden, intermediate),
    )
    attention_period = config.dimension("attn_layer_period", default=8)
    attention_offset = config.count("attn_layer_offset", default=4)
    expert_period = config.dimension("expert_layer_period", default=2)
    expert_offset = config.count("expert_layer_offset", default=1)
    layers = []
    for index in range(config.layers()):
        part = sparse if experts > 1 and index % expert_period == expert_offset else dense
        attends = index % attention_period == attention_offset
        layers.append(block(shape, Traits(), part) if attends else mixer.layer(2 * hidden, part))
    return decoder(config, name, layers, hidden=hidden)


def read_bamba(config: Config, name: str) -> Network:
    """Return a Bamba: Mamba-2 with a few attention layers, dense feed-forward."""
    shape = heads(config, default_kv_heads=8)
    hidden = shape.hidden_size
    bias = config.flag("mlp_bias", default=False)
    part: Part = (gated_mlp(hidden, config.dimension("intermediate_size"), bias=bias), None)
    mixer = _mamba2_of(config, hidden, _inner(config, hidden))
    attending = config.items("attn_layer_indices") or ()
    bias = config.flag("attention_bias", default=False)
    attended = block(shape, Traits(qkv_bias=bias, output_bias=bias), part)
    stated = mixer.layer(2 * hidden, part)
    layers = [attended if index in attending else stated for index in range(config.layers())]
    return decoder(config, name, layers, hidden=hidden)


def read_falcon_h1(config: Config, name: str) -> Network:
    """Return a Falcon-H1: attention and Mamba-2 side by side in every layer."""
    shape = heads(config, default_kv_heads=8)
    hidden = shape.hidden_size
    inner = config.optional("mamba_d_ssm") or _inner(config, hidden)
    mixer = _mamba2_of(
        config,
        hidden,
        inner,
        output_bias=config.flag("projectors_bias", default=False),
        gated_norm=config.flag("mamba_rms_norm", default=False),
    )
    bias = config.flag("attention_bias", default=False)
    mlp = gated_mlp(
        hidden, config.dimension("intermediate_size"), bias=config.flag("mlp_bias", default=False)
    )
    layer = Layer(
        (attention(shape), mixer.mixer),
        (qkv(shape, bias=bias), attention_output(shape, bias=bias), *mixer.projections, *mlp),
        None,
        2 * hidden + mixer.norm_parameters,
        state_parameters=mixer.state_parameters,
        split_norm_parameters=mixer.split_norm_parameters,
    )
    return decoder(config, name, [layer] * config.layers(), hidden=hidden)


def read_granite_hybrid(config: Config, name: str) -> Network:
    """Return a Granite 4: Mamba-2 and attention layers, routed experts next to a shared feed-forward."""
    shape = heads(config)
    hidden = shape.hidden_size
    count = config.layers()
    experts = config.count("num_local_experts", default=8)
    shared = config.dimension("shared_intermediate_size", default=1024)
    mlp = gated_mlp(hidden, shared, tensor_class="shared_expert" if experts else "ffn")
    part: Part = (mlp, None)
    if experts:
        per_token = config.dimension("num_experts_per_tok", default=2)
        expert = routed(config, experts, per_token, hidden, config.dimension("intermediate_size"))
        part = ((router(hidden, experts), *mlp), expert)
    mixer = _mamba2_of(config, hidden, _inner(config, hidden))
    bias = config.flag("attention_bias", default=False)
    attended = block(shape, Traits(qkv_bias=bias, output_bias=bias), part)
    stated = mixer.layer(2 * hidden, part)
    kinds = layer_kinds(config, ("layer_types", "layers_block_type"), count, _KINDS, ["state"] * count)
    layers = [attended if kind == "attention" else stated for kind in kinds]
    return decoder(config, name, layers, hidden=hidden)


_KINDS_OF_ZAMBA = {"mamba": "state", "linear_attention": "state", "hybrid": "hybrid"}


def read_zamba2(config: Config, name: str) -> Network:
    """Return a Zamba2: a hybrid layer runs a shared transformer block on twice the width, then a Mamba-2 that is not shared."""
    hidden = config.dimension("hidden_size")
    config.unused("kv_channels", "mamba_headdim", "num_query_groups")
    count = config.layers()
    blocks = config.dimension("num_mem_blocks", default=1)
    kinds = layer_kinds(config, ("layers_block_type", "layer_types"), count, _KINDS_OF_ZAMBA)
    hybrid = tuple(index for index, kind in enumerate(kinds) if kind == "hybrid")
    _refuse_others(config, "attention_hidden_size", config.optional("attention_hidden_size"), 2 * hidden)
    _refuse_others(config, "hybrid_layer_ids", config.whole_numbers("hybrid_layer_ids"), hybrid)
    state = _state_block(config, hidden)
    stated = state.layer(hidden)
    layers = []
    hybrids = 0
    for kind in kinds:
        if kind == "hybrid":
            layers.append(_hybrid_layer(config, stated, hidden, held=hybrids < blocks))
            hybrids += 1
        else:
            layers.append(stated)
    if not config.ties_embeddings(default=True):
        raise config.error(
            "tie_word_embeddings",
            "false is not modelled: the class shares no blocks then either",
            "allowed: true",
        )
    return decoder(config, name, layers, hidden=hidden, tied=True)


def _refuse_others(config: Config, key: str, stated: object, follows: object) -> None:
    """Raise the error for a key that says something else than follows from other keys."""
    if stated not in (None, follows):
        shown = list(follows) if isinstance(follows, tuple) else follows
        raise config.error(
            key, f"{config.values[key]!r} is not modelled", f"allowed: {shown}, as other keys say"
        )


def _state_block(config: Config, hidden: int) -> StateBlock:
    config.unused("use_conv_bias")  # the class gives its convolutions a bias, whatever the file says
    inner = config.dimension("mamba_expand", default=2, most=64) * hidden
    heads_count = config.dimension("n_mamba_heads", default=8)
    return mamba2(
        config,
        hidden,
        Mamba2Shape(
            heads_count,
            config.divisible("mamba_expand * hidden_size", inner, "n_mamba_heads", heads_count),
            state=config.dimension("mamba_d_state", default=64),
            groups=config.dimension("mamba_ngroups", default=1),
            kernel=config.dimension("mamba_d_conv", default=4, most=64),
        ),
        bias=config.flag("add_bias_linear", default=False),
        conv_bias=True,
    )


def _hybrid_layer(config: Config, stated: Layer, hidden: int, *, held: bool) -> Layer:
    """Return a hybrid layer; the first layers of each shared block hold its weights, later ones reuse them."""
    wide = 2 * hidden
    shape = replace(heads(config, hidden=wide), hidden_size=wide)
    rank = config.dimension("adapter_rank", default=128)
    intermediate = config.optional("intermediate_size") or 4 * hidden
    bias = 2 * intermediate if config.flag("add_bias_linear", default=False) else 0
    shared = (
        qkv(shape),
        replace(attention_output(shape), outputs=hidden),
        Projection("gate_up", "ffn", hidden, 2 * intermediate, "columns", bias=bias),
        Projection("down", "ffn", intermediate, hidden, "rows", bias=hidden if bias else 0),
    )
    adapters = [
        Projection("adapter_in", "ffn", hidden, rank, "none"),
        Projection("adapter_out", "ffn", rank, 2 * intermediate, "columns"),
    ]
    if config.flag("use_shared_attention_adapter", default=False):
        adapters += [Projection(f"{one}_adapter_in", "attention", wide, rank, "none") for one in "qkv"]
        adapters += [Projection(f"{one}_adapter_out", "attention", rank, wide, "columns") for one in "qkv"]
    adapters.append(Projection("linear", "ffn", hidden, hidden, "none"))
    return Layer(
        (attention(shape), *stated.mixers),
        (*(replace(projection, held=held) for projection in shared), *adapters, *stated.projections),
        None,
        stated.norm_parameters + (wide + hidden if held else 0),
        state_parameters=stated.state_parameters,
        split_norm_parameters=stated.split_norm_parameters,
    )
