"""Zamba2: Mamba-2 layers, and a few attention blocks whose weights many layers share."""

from dataclasses import replace

from capplan.families.config import Config
from capplan.families.parts.blocks import attention, attention_output, decoder, heads, qkv
from capplan.families.parts.state_blocks import Mamba2Shape, StateBlock, layer_kinds, mamba2
from capplan.model.network import Layer, Network, Projection

_KINDS = {"mamba": "state", "linear_attention": "state", "hybrid": "hybrid"}


def read_zamba2(config: Config, name: str) -> Network:
    """Return a Zamba2: a hybrid layer runs a shared transformer block on twice the width, then a Mamba-2 that is not shared."""
    hidden = config.dimension("hidden_size")
    config.unused("kv_channels", "mamba_headdim", "num_query_groups")
    count = config.layers()
    blocks = config.dimension("num_mem_blocks", default=1)
    kinds = layer_kinds(config, ("layers_block_type", "layer_types"), count, _KINDS)
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
