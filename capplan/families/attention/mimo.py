"""MiMo: the dense 7B and V2 Flash, whose sliding layers have more key-value heads than the full ones."""

from dataclasses import replace

from capplan.families.attention.qwen import read_qwen2
from capplan.families.config import Config
from capplan.families.parts.blocks import Heads, Part, decoder, heads
from capplan.families.parts.stacks import (
    Traits,
    block,
    deepseek_mixture,
    parts_by_layer,
    with_next_token_layers,
)
from capplan.model.network import Layer, Network


def read_mimo(config: Config, name: str) -> Network:
    """Return a MiMo-7B: a Qwen 2 with a multi-token-prediction layer."""
    network = read_qwen2(config, name)
    network = with_next_token_layers(config, network, network.layers[-1])
    return replace(network, keys_used=tuple(config.keys_used))


def _parts(config: Config, shape: Heads, layers: int) -> list[Part]:
    mixed = deepseek_mixture(config, shape.hidden_size)
    kinds = config.items("mlp_layer_types", length=layers)
    if kinds is not None:
        is_mixed = [kind == "sparse" for kind in kinds[:layers]]
    elif not config.has("moe_layer_freq"):
        is_mixed = [i > 0 for i in range(layers)]
    else:
        is_mixed = [flag != 0 for flag in config.per_layer("moe_layer_freq", layers=layers)]
    return parts_by_layer(config, shape, Traits(), mixed, is_mixed)


def _sliding(config: Config, layers: int) -> list[bool]:
    kinds = config.items("layer_types", length=layers)
    if kinds is not None:
        return [kind == "sliding_attention" for kind in kinds[:layers]]
    if not config.has("hybrid_layer_pattern"):
        return [i > 0 and (i + 1) % 6 != 0 for i in range(layers)]
    return [flag == 1 for flag in config.per_layer("hybrid_layer_pattern", layers=layers)]


def read_mimo_v2_flash(config: Config, name: str) -> Network:
    """Return a MiMo V2 Flash: keys of 192, values of 128, sinks in the sliding layers."""
    hidden, layers = config.dimension("hidden_size"), config.layers()
    usual = heads(config)
    full = replace(usual, value_head_dim=config.dimension("v_head_dim"))
    slide = Heads(
        hidden,
        config.optional("swa_num_attention_heads") or full.query_heads,
        config.optional("swa_num_key_value_heads") or 2 * full.kv_heads,
        config.optional("swa_head_dim") or full.head_dim,
        config.optional("swa_v_head_dim") or full.value_head_dim,
    )
    window = config.dimension("sliding_window")
    bias = config.flag("attention_bias", default=False)
    full_traits = Traits(qkv_bias=bias, sinks=config.flag("add_full_attention_sink_bias", default=False))
    slide_traits = Traits(qkv_bias=bias, sinks=config.flag("add_swa_attention_sink_bias", default=True))
    made: dict[tuple[int, bool], Layer] = {}
    stack = []
    for part, sliding in zip(_parts(config, full, layers), _sliding(config, layers), strict=True):
        key = (id(part), sliding)
        if key not in made:
            made[key] = (
                block(slide, slide_traits, part, window=window) if sliding else block(full, full_traits, part)
            )
        stack.append(made[key])
    return decoder(config, name, stack, hidden=hidden)
