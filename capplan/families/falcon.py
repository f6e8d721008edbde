"""Falcon: both decoders, the one of 7B with one key-value head and the one of 40B and 180B with groups."""

from capplan.families.config import Config
from capplan.families.parts.blocks import Heads, decoder, plain_mlp
from capplan.families.parts.stacks import Dense, block
from capplan.families.registry import Family
from capplan.model.network import Network


def read_falcon(config: Config, name: str) -> Network:
    """Return a Falcon (model types falcon, RefinedWeb, RefinedWebModel)."""
    hidden = config.dimension("hidden_size")
    query_heads = config.dimension("num_attention_heads", "n_head", most=100_000)
    head_dim = config.divisible("hidden_size", hidden, "num_attention_heads", query_heads)
    new = config.flag("new_decoder_architecture", default=config.model_type == "RefinedWeb")
    kv_heads = query_heads
    if new:
        kv_heads = config.dimension("num_kv_heads", "n_head_kv")
        config.divisible("num_attention_heads", query_heads, "num_kv_heads", kv_heads)
    elif config.flag("multi_query", default=True):
        kv_heads = 1
    bias = config.flag("bias", default=False)
    parallel = config.flag("parallel_attn", default=True)
    norms = 1 if parallel else 2
    if new:
        norms = config.optional("num_ln_in_parallel_attn") or 2
    traits = Dense(qkv_bias=bias, output_bias=bias, gated=False, norms=norms, norm_bias=True)
    shape = Heads(hidden, query_heads, kv_heads, head_dim, head_dim)
    intermediate = config.optional("ffn_hidden_size") or 4 * hidden
    layer = block(shape, traits, (plain_mlp(hidden, intermediate, bias=bias), None))
    return decoder(
        config,
        name,
        [layer] * config.layers("num_hidden_layers", "n_layer"),
        hidden=hidden,
        tied_default=True,
        final_norm=2 * hidden,
    )


FAMILIES: dict[str, Family] = {
    "falcon": read_falcon,
    "RefinedWeb": read_falcon,
    "RefinedWebModel": read_falcon,
}
