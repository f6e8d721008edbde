"""Llama and the families that are Llama with other keys: RMS norm, rotary, GQA, gated feed-forward."""

from capplan.inputs.families.blocks import (
    attention,
    attention_output,
    decoder,
    decoder_layer,
    gated_mlp,
    heads,
    qkv,
)
from capplan.inputs.families.config import Config
from capplan.inputs.families.registry import Family
from capplan.model.network import Network


def read_llama(config: Config, name: str) -> Network:
    """Return a Llama (1 to 3.3, Code Llama, Yi and other clones)."""
    shape = heads(config)
    bias = config.flag("attention_bias", default=False)
    mlp = gated_mlp(
        shape.hidden_size, config.dimension("intermediate_size"), bias=config.flag("mlp_bias", default=False)
    )
    layer = decoder_layer(
        attention(shape),
        (qkv(shape, bias=bias), attention_output(shape, bias=bias)),
        (mlp, None),
        2 * shape.hidden_size,
    )
    return decoder(config, name, [layer] * config.layers(), hidden=shape.hidden_size)


FAMILIES: dict[str, Family] = {"llama": read_llama}
