"""Families whose files keep keys of their own: ChatGLM 2, 3 and GLM-4-9B-Chat, and DBRX."""

from capplan.families.config import Config
from capplan.families.parts.blocks import Heads, decoder
from capplan.families.parts.stacks import Dense, block, dense_mlp, mixture
from capplan.families.registry import Family
from capplan.model.network import Network


def read_chatglm(config: Config, name: str) -> Network:
    """Return a ChatGLM: a few shared key-value heads, a gated feed-forward, a padded vocabulary."""
    if not config.flag("rmsnorm", default=True):
        raise config.error("rmsnorm", "false is not modelled", "allowed: true")
    hidden = config.dimension("hidden_size")
    query_heads = config.dimension("num_attention_heads", most=100_000)
    head_dim = config.optional("kv_channels") or config.divisible(
        "hidden_size", hidden, "num_attention_heads", query_heads
    )
    shared = config.flag("multi_query_attention", default=False)
    kv_heads = config.dimension("multi_query_group_num") if shared else query_heads
    config.divisible("num_attention_heads", query_heads, "multi_query_group_num", kv_heads)
    bias = config.flag("add_bias_linear", default=False)
    traits = Dense(
        qkv_bias=bias or config.flag("add_qkv_bias", default=False), output_bias=bias, mlp_bias=bias
    )
    shape = Heads(hidden, query_heads, kv_heads, head_dim, head_dim)
    layer = block(shape, traits, dense_mlp(config, shape, traits, "ffn_hidden_size"))
    return decoder(
        config,
        name,
        [layer] * config.layers("num_layers", "num_hidden_layers"),
        hidden=hidden,
        vocabulary=config.dimension("padded_vocab_size", "vocab_size"),
    )


def read_dbrx(config: Config, name: str) -> Network:
    """Return a DBRX: sixteen experts, four per token, norms without biases."""
    hidden = config.dimension("d_model")
    query_heads = config.dimension("n_heads", most=100_000)
    head_dim = config.divisible("d_model", hidden, "n_heads", query_heads)
    attending, feeding = config.section("attn_config"), config.section("ffn_config")
    if attending is None or feeding is None:
        raise config.missing("attn_config" if attending is None else "ffn_config")
    kv_heads = attending.dimension("kv_n_heads")
    config.divisible("n_heads", query_heads, "attn_config.kv_n_heads", kv_heads)
    part = mixture(
        feeding,
        hidden,
        experts=feeding.dimension("moe_num_experts"),
        per_token=feeding.dimension("moe_top_k"),
        intermediate=feeding.dimension("ffn_hidden_size"),
    )
    layer = block(Heads(hidden, query_heads, kv_heads, head_dim, head_dim), Dense(), part)
    return decoder(config, name, [layer] * config.layers("n_layers"), hidden=hidden)


FAMILIES: dict[str, Family] = {"chatglm": read_chatglm, "dbrx": read_dbrx}
