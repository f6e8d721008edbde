"""Networks whose layers were searched one by one: Nemotron NAS (Super, Ultra 253B) and DeciLM-7B."""

from collections.abc import Sequence
from dataclasses import replace

from capplan.families.config import Config
from capplan.families.parts.blocks import attention, attention_output, decoder, gated_mlp, heads, qkv
from capplan.families.parts.stacks import Traits, block, dense_mlp
from capplan.model.network import Layer, Mixer, Network, Projection


def _feed_forward_width(ratio: float, hidden: int) -> int:
    """Return two thirds of four times the width times the ratio, rounded up to a multiple of 256."""
    width = int(2 * ratio * hidden / 3)
    return -(-width // 256) * 256


def _block(config: Config, entry: Config, hidden: int, query_heads: int, head_dim: int) -> Layer:
    """Return one layer: attention with its own head groups, a matrix, or nothing; the same for the feed-forward."""
    mixers: tuple[Mixer, ...] = ()
    matmuls: tuple[Projection, ...] = ()
    norms = 0
    mixing, feeding = entry.needed_section("attention"), entry.needed_section("ffn")
    if not mixing.flag("no_op", default=False):
        norms += hidden
        if mixing.flag("replace_with_linear", default=False):
            matmuls += (Projection("linear_attention", "attention", hidden, hidden, "columns"),)
        else:
            group = mixing.dimension("n_heads_in_group")
            kv_heads = mixing.divisible("n_heads_in_group", query_heads, "n_heads_in_group", group)
            shape = replace(
                heads(config, hidden=hidden), kv_heads=kv_heads, head_dim=head_dim, value_head_dim=head_dim
            )
            window = mixing.optional("window_length")
            mixers = (attention(shape, window),)
            matmuls += (qkv(shape), attention_output(shape))
    if not feeding.flag("no_op", default=False):
        norms += hidden
        if feeding.flag("replace_with_linear", default=False):
            matmuls += (Projection("linear_ffn", "ffn", hidden, hidden, "columns"),)
        else:
            width = feeding.optional("intermediate_size") or _feed_forward_width(
                feeding.ratio("ffn_mult"), hidden
            )
            matmuls += gated_mlp(hidden, width)
    return Layer(mixers, matmuls, None, norms)


def read_nemotron_nas(config: Config, name: str) -> Network:
    """Return a Nemotron NAS, layer by layer."""
    entries: Sequence[object] | None = config.items("block_configs", length=config.layers())
    if entries is None:
        return read_decilm(config, name)
    hidden = config.dimension("hidden_size")
    query_heads = config.dimension("num_attention_heads")
    head_dim = config.optional("head_dim") or config.divisible(
        "hidden_size", hidden, "num_attention_heads", query_heads
    )
    stack = []
    for i, entry in enumerate(entries[: config.layers()]):
        if not isinstance(entry, dict):
            raise config.error(
                f"block_configs[{i}]", "is not an object", "allowed: {attention: ..., ffn: ...}"
            )
        section = Config(entry, config.place, f"{config.section_path}block_configs[{i}].", {}, config.notes)
        stack.append(_block(config, section, hidden, query_heads, head_dim))
    return decoder(config, name, stack, hidden=hidden)


def read_decilm(config: Config, name: str) -> Network:
    """Return a DeciLM-7B: a Llama with a different number of key-value heads in each layer."""
    layers = config.layers()
    kv_heads = config.per_layer("num_key_value_heads_per_layer", layers=layers)
    usual = heads(config)
    part = dense_mlp(config, usual, Traits())
    stack = []
    for count in kv_heads:
        config.divisible("num_attention_heads", usual.query_heads, "num_key_value_heads_per_layer", count)
        stack.append(block(replace(usual, kv_heads=count), Traits(), part))
    return decoder(config, name, stack, hidden=usual.hidden_size)
