"""ChatGLM, GLM-4 and GLM-4.5: dense, and with experts."""

from capplan.families.config import Config
from capplan.families.parts.blocks import Heads, decoder, heads
from capplan.families.parts.stacks import (
    Traits,
    block,
    block_decoder,
    deepseek_mixture,
    dense_mlp,
    parts_after,
    with_next_token_layers,
)
from capplan.model.network import Network


def read_glm(config: Config, name: str) -> Network:
    """Return a dense GLM-4 (9B, and the later 32B with norms after attention and feed-forward too); GLM-OCR has no biases."""
    older = config.model_type == "glm"
    bias = config.model_type != "glm_ocr_text" and config.flag("attention_bias", default=True)
    norms = 2 if older else 4
    shape = heads(config)
    return block_decoder(config, name, Traits(qkv_bias=bias, norms=norms), shape=shape)


def read_glm4_moe(config: Config, name: str) -> Network:
    """Return a GLM-4.5 or 4.6: dense layers first, then shared and routed experts."""
    shape = heads(config)
    layers = config.layers()
    traits = Traits(
        qkv_bias=config.flag("attention_bias", default=config.model_type == "glm4v_moe_text"),
        head_norms=config.flag("use_qk_norm", default=False),
    )
    sparse = deepseek_mixture(config, shape.hidden_size, shared_experts=1)
    first = config.count("first_k_dense_replace", default=0 if config.model_type == "solar_open" else 1)
    dense = dense_mlp(config, shape, traits) if first else sparse
    parts = parts_after(config, dense, sparse, layers, first)
    network = block_decoder(config, name, traits, parts, shape=shape)
    return with_next_token_layers(config, network, network.layers[-1])


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
    traits = Traits(
        qkv_bias=bias or config.flag("add_qkv_bias", default=False), output_bias=bias, mlp_bias=bias
    )
    shape = Heads(hidden, query_heads, kv_heads, head_dim, head_dim)
    layer = block(shape, traits, dense_mlp(config, shape, traits, "ffn_hidden_size"))
    return decoder(
        config,
        name,
        [layer] * config.layers("num_layers", "num_hidden_layers"),
        hidden=hidden,
        final_norm=hidden if config.flag("post_layer_norm", default=True) else 0,
        vocabulary=config.dimension("padded_vocab_size", "vocab_size"),
    )
