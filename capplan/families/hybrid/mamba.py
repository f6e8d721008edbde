"""Hybrids with a state space, a recurrence or a short convolution: Mamba, Jamba, Bamba, Falcon-H1, Granite 4, Zamba2, Nemotron-H, RecurrentGemma, LFM."""

from dataclasses import dataclass, replace
from typing import Literal

from capplan.families.config import Config
from capplan.families.parts.blocks import (
    Part,
    attention,
    attention_output,
    decoder,
    gated_mlp,
    heads,
    plain_mlp,
    qkv,
    routed,
    router,
)
from capplan.families.parts.stacks import Traits, block, mixture
from capplan.families.parts.state_blocks import (
    Mamba2Shape,
    StateBlock,
    mamba1,
    mamba2,
    rank_of,
    state_format,
)
from capplan.model.network import Experts, Layer, Network, Projection, ShortConvolution, StateSpace
from capplan.model.parameters import layer_parameters

_MAMBA_KINDS = {
    "mamba": "state", "linear_attention": "state", "attention": "attention", "full_attention": "attention",
}  # fmt: skip


def _mamba_network(
    config: Config, name: str, block: StateBlock, hidden: int, *, tied_default: bool
) -> Network:
    layers = [block.layer(hidden)] * config.layers("num_hidden_layers", "n_layer")
    return decoder(config, name, layers, hidden=hidden, tied_default=tied_default)


def read_mamba(config: Config, name: str) -> Network:
    """Return a Mamba-1 network (Mamba, Falcon Mamba)."""
    hidden = config.dimension("hidden_size", "d_model")
    expand = config.dimension("expand", most=64)
    inner = config.optional("intermediate_size", "d_inner") or expand * hidden
    block = mamba1(
        hidden,
        inner=inner,
        state=config.dimension("state_size"),
        kernel=config.dimension("conv_kernel", most=64),
        dt_rank=rank_of(config, "time_step_rank", hidden),
        bias=config.flag("use_bias"),
        conv_bias=config.flag("use_conv_bias"),
    )
    return _mamba_network(config, name, block, hidden, tied_default=True)


def read_mamba2(config: Config, name: str) -> Network:
    """Return a Mamba-2 network (Codestral Mamba)."""
    hidden = config.dimension("hidden_size", "d_model")
    heads = config.dimension("num_heads")
    head_dim = config.dimension("head_dim")
    expand = config.dimension("expand", most=64)
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
            state=config.dimension("state_size"),
            groups=config.dimension("n_groups"),
            kernel=config.dimension("conv_kernel", most=64),
            chunk=config.dimension("chunk_size"),
        ),
        bias=config.flag("use_bias"),
        conv_bias=config.flag("use_conv_bias"),
    )
    return _mamba_network(config, name, block, hidden, tied_default=False)


def _mamba2_of(
    config: Config, hidden: int, inner: int, *, output_bias: bool | None = None, gated_norm: bool = True
) -> StateBlock:
    heads_count = config.dimension("mamba_n_heads")
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
            state=config.dimension("mamba_d_state"),
            groups=config.dimension("mamba_n_groups"),
            kernel=config.dimension("mamba_d_conv", most=64),
            chunk=config.dimension("mamba_chunk_size"),
        ),
        bias=config.flag("mamba_proj_bias"),
        conv_bias=config.flag("mamba_conv_bias"),
        output_bias=output_bias,
        gated_norm=gated_norm,
    )


def _inner(config: Config, hidden: int) -> int:
    return config.dimension("mamba_expand", most=64) * hidden


def read_jamba(config: Config, name: str) -> Network:
    """Return a Jamba: one attention layer in eight, experts in every second layer."""
    shape = heads(config)
    hidden = shape.hidden_size
    intermediate = config.dimension("intermediate_size")
    experts = config.dimension("num_experts")
    mixer = mamba1(
        hidden,
        inner=_inner(config, hidden),
        state=config.dimension("mamba_d_state"),
        kernel=config.dimension("mamba_d_conv", most=64),
        dt_rank=rank_of(config, "mamba_dt_rank", hidden),
        bias=config.flag("mamba_proj_bias"),
        conv_bias=config.flag("mamba_conv_bias"),
        inner_norms=True,
    )
    dense: Part = (gated_mlp(hidden, intermediate), None)
    sparse = mixture(config, hidden, intermediate, experts=experts)
    attention_period = config.dimension("attn_layer_period")
    attention_offset = config.count("attn_layer_offset")
    expert_period = config.dimension("expert_layer_period")
    expert_offset = config.count("expert_layer_offset")
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
    bias = config.flag("mlp_bias")
    part: Part = (gated_mlp(hidden, config.dimension("intermediate_size"), bias=bias), None)
    mixer = _mamba2_of(config, hidden, _inner(config, hidden))
    attending = config.items("attn_layer_indices") or ()
    bias = config.flag("attention_bias")
    attended = block(shape, Traits(qkv_bias=bias, output_bias=bias), part)
    stated = mixer.layer(2 * hidden, part)
    layers = [attended if index in attending else stated for index in range(config.layers())]
    return decoder(config, name, layers, hidden=hidden)


def read_falcon_h1(config: Config, name: str) -> Network:
    """Return a Falcon-H1: attention and Mamba-2 side by side in every layer."""
    shape = heads(config, default_kv_heads=8)
    hidden = shape.hidden_size
    inner = config.optional("mamba_d_ssm") or _inner(config, hidden)
    output_bias, gated_norm = config.flag("projectors_bias"), config.flag("mamba_rms_norm")
    mixer = _mamba2_of(config, hidden, inner, output_bias=output_bias, gated_norm=gated_norm)
    bias = config.flag("attention_bias")
    mlp = gated_mlp(hidden, config.dimension("intermediate_size"), bias=config.flag("mlp_bias"))
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
    experts = config.count("num_local_experts")
    shared = config.dimension("shared_intermediate_size")
    mlp = gated_mlp(hidden, shared, tensor_class="shared_expert" if experts else "ffn")
    part: Part = (mlp, None)
    if experts:
        per_token = config.dimension("num_experts_per_tok")
        expert = routed(config, experts, per_token, hidden, config.dimension("intermediate_size"))
        part = ((router(hidden, experts), *mlp), expert)
    mixer = _mamba2_of(config, hidden, _inner(config, hidden))
    bias = config.flag("attention_bias")
    attended = block(shape, Traits(qkv_bias=bias, output_bias=bias), part)
    stated = mixer.layer(2 * hidden, part)
    kinds = config.kinds(
        "layer_types", "layers_block_type", layers=count, known=_MAMBA_KINDS, default=["state"] * count
    )
    layers = [attended if kind == "attention" else stated for kind in kinds]
    return decoder(config, name, layers, hidden=hidden)


_KINDS_OF_ZAMBA = {"mamba": "state", "linear_attention": "state", "hybrid": "hybrid"}


def read_zamba2(config: Config, name: str) -> Network:
    """Return a Zamba2: a hybrid layer runs a shared transformer block on twice the width, then a Mamba-2 that is not shared."""
    hidden = config.dimension("hidden_size")
    config.unused("kv_channels", "mamba_headdim", "num_query_groups")
    count = config.layers()
    blocks = config.dimension("num_mem_blocks")
    kinds = config.kinds("layers_block_type", "layer_types", layers=count, known=_KINDS_OF_ZAMBA)
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
    inner = config.dimension("mamba_expand", most=64) * hidden
    heads_count = config.dimension("n_mamba_heads")
    return mamba2(
        config,
        hidden,
        Mamba2Shape(
            heads_count,
            config.divisible("mamba_expand * hidden_size", inner, "n_mamba_heads", heads_count),
            state=config.dimension("mamba_d_state"),
            groups=config.dimension("mamba_ngroups"),
            kernel=config.dimension("mamba_d_conv", most=64),
            chunk=config.dimension("chunk_size"),
        ),
        bias=config.flag("add_bias_linear"),
        conv_bias=True,
    )


def _hybrid_layer(config: Config, stated: Layer, hidden: int, *, held: bool) -> Layer:
    """Return a hybrid layer; the first layers of each shared block hold its weights, later ones reuse them."""
    wide = 2 * hidden
    shape = replace(heads(config, hidden=wide), hidden_size=wide)
    rank = config.dimension("adapter_rank")
    intermediate = config.optional("intermediate_size") or 4 * hidden
    bias = 2 * intermediate if config.flag("add_bias_linear") else 0
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
    if config.flag("use_shared_attention_adapter"):
        adapters += [Projection(f"{one}_adapter_in", "attention", wide, rank, "none") for one in "qkv"]
        adapters += [Projection(f"{one}_adapter_out", "attention", rank, wide, "columns") for one in "qkv"]
    adapters.append(Projection("linear", "ffn", hidden, hidden, "none"))
    return Layer(
        (attention(shape), *stated.mixers),
        (*(replace(projection, owns_weights=held) for projection in shared), *adapters, *stated.projections),
        None,
        stated.norm_parameters + (wide + hidden if held else 0),
        state_parameters=stated.state_parameters,
        split_norm_parameters=stated.split_norm_parameters,
    )


_LETTERS = {"M": "state", "*": "attention", "-": "mlp", "E": "moe"}
_NAMES = {
    "mamba": "state", "linear_attention": "state", "attention": "attention", "full_attention": "attention",
    "mlp": "mlp", "moe": "moe",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Layers by kind, made on first use: a network without experts has no expert keys."""

    config: Config
    hidden: int

    def layer(self, kind: str) -> Layer:
        """Return the layer of a kind."""
        if kind == "state":
            return self._state()
        if kind == "attention":
            keys = ("head_dim", "attention_head_dim")
            shape = heads(self.config, hidden=self.hidden, head_dim_keys=keys, default_kv_heads=8)
            self.config.unused("attention_bias")  # the class has none
            return block(shape, Traits(norms=1), ((), None))
        bias = self.config.flag("mlp_bias")
        if kind == "mlp":
            matmuls = plain_mlp(self.hidden, self.config.dimension("intermediate_size"), bias=bias)
            return Layer((), matmuls, None, self.hidden)
        return self._experts(bias=bias)

    def _state(self) -> Layer:
        config = self.config
        mixer = mamba2(
            config,
            self.hidden,
            Mamba2Shape(
                config.dimension("mamba_num_heads"),
                config.dimension("mamba_head_dim"),
                state=config.dimension("ssm_state_size"),
                groups=config.dimension("n_groups", "mamba_n_groups"),
                kernel=config.dimension("conv_kernel", "mamba_d_conv", most=64),
                chunk=config.dimension("chunk_size", "mamba_chunk_size"),
            ),
            bias=config.flag("use_bias", "mamba_proj_bias"),
            conv_bias=config.flag("use_conv_bias", "mamba_conv_bias"),
            state_format=state_format(config, "mamba_ssm_cache_dtype"),
            state_stated=True,
        )
        return mixer.layer(self.hidden)

    def _experts(self, *, bias: bool) -> Layer:
        config, hidden = self.config, self.hidden
        experts = config.dimension("n_routed_experts", "num_local_experts")
        latent = config.optional("moe_latent_size")
        chosen, width = config.dimension("num_experts_per_tok"), config.dimension("moe_intermediate_size")
        expert = routed(config, experts, chosen, latent or hidden, width, gated=False)
        config.unused("n_shared_experts")  # the class has one, whatever the key says
        size = config.dimension("moe_shared_expert_intermediate_size")
        shared = plain_mlp(hidden, size, bias=bias, tensor_class="shared_expert")
        into: tuple[Projection, ...] = ()
        if latent:
            into = (
                Projection("latent_down", "ffn", hidden, latent, "none", bias=latent if bias else 0),
                Projection("latent_up", "ffn", latent, hidden, "none", bias=hidden if bias else 0),
            )
        return Layer((), (router(hidden, experts), *into, *shared), expert, hidden)


def read_nemotron_h(config: Config, name: str) -> Network:
    """Return a Nemotron-H, Nemotron 3 (Nano, Super, Ultra) with its multi-token-prediction layers."""
    hidden = config.dimension("hidden_size")
    config.unused("num_hidden_layers", "intermediate_size", "mtp_layers_block_type")
    blocks = _Blocks(config, hidden)
    kinds = _nemotron_h_kinds(config, "layers_block_type", "hybrid_override_pattern")
    by_kind = {kind: blocks.layer(kind) for kind in dict.fromkeys(kinds)}
    network = decoder(config, name, [by_kind[kind] for kind in kinds], hidden=hidden)
    depth = config.count("num_nextn_predict_layers")
    if not depth:
        return replace(network, keys_used=tuple(config.keys_used))
    mtp = [
        blocks.layer(kind)
        for kind in _nemotron_h_kinds(config, "mtp_layers_block_type", "mtp_hybrid_override_pattern")
    ]
    # one matmul joins the last hidden state and the new token's embedding, each with a norm
    joining = 2 * hidden * hidden + 3 * hidden
    experts: Experts | None = next((layer.experts for layer in mtp if layer.experts), None)
    if experts is not None and depth > 1:
        experts = replace(experts, experts=experts.experts * depth)
    return replace(
        network,
        mtp_parameters=depth * (joining + sum(layer_parameters(layer) for layer in mtp)),
        mtp_experts=experts,
        keys_used=tuple(config.keys_used),
    )


def _nemotron_h_kinds(config: Config, list_key: str, pattern_key: str) -> list[str]:
    pattern = config.text(pattern_key)
    if pattern:
        for index, letter in enumerate(pattern):
            if letter not in _LETTERS:
                raise config.error(
                    pattern_key,
                    f"letter {letter!r} at {index} is not known",
                    "allowed: M (Mamba-2), *, - (mlp), E",
                )
        return [_LETTERS[letter] for letter in pattern]
    listed = config.items(list_key)
    if listed is None:
        raise config.missing(pattern_key, list_key)
    return config.kinds(list_key, layers=len(listed), known=_NAMES)


_RECURRENT_GEMMA_KINDS = ("recurrent", "attention")


def read_recurrent_gemma(config: Config, name: str) -> Network:
    """Return a RecurrentGemma; a recurrence is represented as a state space with one state per channel."""
    shape = heads(config)
    hidden = shape.hidden_size
    width = config.optional("lru_width") or hidden
    kernel = config.dimension("conv1d_width", most=64)
    window = config.dimension("attention_window_size")
    # the config states the width of gate and up together
    half = config.divisible("intermediate_size", config.dimension("intermediate_size"), "gate and up", 2)
    mlp = gated_mlp(hidden, half, bias=True)
    block = config.divisible("lru_width", width, "num_attention_heads", shape.query_heads)
    gates = Projection("gates", "state", block, 2 * width, "columns", bias=2 * width)
    recurrent = Layer(
        (StateSpace(1, width, 1, width, 1, 1, width, kernel),),
        (
            Projection("in_proj", "attention", hidden, 2 * width, "columns", bias=2 * width),
            gates,
            Projection("out_proj", "attention", width, hidden, "rows", bias=hidden),
            *mlp,
        ),
        None,
        2 * hidden,
        state_parameters=width * kernel + width + width,
    )
    inner = shape.query_heads * shape.head_dim
    attending = Layer(
        (attention(shape, window),),
        (
            qkv(shape, bias=config.flag("attention_bias")),
            Projection("o", "attention", inner, hidden, "rows", bias=hidden),
            *mlp,
        ),
        None,
        2 * hidden,
    )
    pattern = config.items("block_types", "_block_types") or ["recurrent", "recurrent", "attention"]
    for index, kind in enumerate(pattern):
        if kind not in _RECURRENT_GEMMA_KINDS:
            raise config.error(
                f"block_types[{index}]",
                f"{kind!r} is not known",
                f"allowed: {', '.join(_RECURRENT_GEMMA_KINDS)}",
            )
    layers = [
        attending if pattern[index % len(pattern)] == "attention" else recurrent
        for index in range(config.layers())
    ]
    return decoder(config, name, layers, hidden=hidden, tied_default=True)


_LFM2_KINDS = {"conv": "conv", "short_conv": "conv", "full_attention": "attention"}
_KINDS_OF_3 = {"conv": "conv", "full_attention": "attention", "sliding_attention": "window"}


def read_lfm2(config: Config, name: str) -> Network:
    """Return a dense LFM2."""
    width = config.dimension("block_ff_dim", "intermediate_size")
    if config.flag("block_auto_adjust_ff_dim"):
        multiple = config.dimension("block_multiple_of")
        width = int(2 * width / 3)
        width = int(_multiplier(config) * width)
        width = multiple * -(-width // multiple)
    part: Part = (gated_mlp(config.dimension("hidden_size"), width), None)
    return _lfm2_network(config, name, [part] * config.layers())


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
    sparse = mixture(config, hidden, "moe_intermediate_size")
    first = config.count("num_dense_layers")
    parts = [dense if index < first else sparse for index in range(config.layers())]
    return _lfm2_network(config, name, parts)


def read_lfm3(config: Config, name: str) -> Network:
    """Return an LFM3: windows in some of its attention layers, a gate on each head, norms around both blocks."""
    shape, count = heads(config, default_kv_heads=4, default_head_dim=128), config.layers()
    hidden, bias = shape.hidden_size, config.flag("attention_bias")
    norms = 4 if config.flag("use_sandwich_norm") else 2
    gate: Literal["heads", "none"] = "heads" if config.flag("use_attention_gate") else "none"
    traits = Traits(qkv_bias=bias, output_bias=bias, norms=norms, head_norms=True, output_gate=gate)
    part: Part = gated_mlp(hidden, config.dimension("intermediate_size")), None
    convolved = _convolution(config, hidden, part, norms)
    default = [
        {2: "attention", 0: "window" if index else "conv"}.get(index % 4, "conv") for index in range(count)
    ]
    kinds = config.kinds("layer_types", layers=count, known=_KINDS_OF_3, default=default)
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
    kernel = config.dimension("conv_L_cache", most=64)
    bias = config.flag("conv_bias")
    matmuls, experts = part
    convolving = (
        Projection("in_proj", "attention", hidden, 3 * hidden, "columns", bias=3 * hidden if bias else 0),
        Projection("out_proj", "attention", hidden, hidden, "rows", bias=hidden if bias else 0),
    )
    taps = hidden * kernel + (hidden if bias else 0)
    mixer = ShortConvolution(hidden, kernel)
    return Layer((mixer,), (*convolving, *matmuls), experts, norms * hidden, state_parameters=taps)


def _lfm2_network(config: Config, name: str, parts: list[Part]) -> Network:
    shape = heads(config, default_kv_heads=8)
    hidden = shape.hidden_size
    layers = []
    for kind, part in zip(_lfm2_kinds(config, len(parts)), parts, strict=True):
        if kind == "attention":
            layers.append(block(shape, Traits(head_norms=True), part))
        else:
            layers.append(_convolution(config, hidden, part))
    tied = config.ties_embeddings(True, "tie_embedding", "tie_word_embeddings")
    return decoder(config, name, layers, hidden=hidden, tied=tied)


def _lfm2_kinds(config: Config, count: int) -> list[str]:
    if config.has("layer_types"):
        return config.kinds("layer_types", layers=count, known=_LFM2_KINDS)
    attending = config.items("full_attn_idxs")
    if attending is None:
        raise config.missing("layer_types", "full_attn_idxs")
    return ["attention" if index in attending else "conv" for index in range(count)]
