"""GLM-4 and GLM-4.5: dense, and with experts."""

from capplan.families.config import Config
from capplan.families.deepseek import with_next_token_layers
from capplan.families.parts.blocks import heads, with_vision
from capplan.families.parts.stacks import (
    Dense,
    deepseek_mixture,
    dense_decoder,
    dense_mlp,
    parts_after,
    sparse_decoder,
)
from capplan.families.parts.vision import glm4v_vision
from capplan.families.registry import Family
from capplan.model.network import Network


def read_glm(config: Config, name: str) -> Network:
    """Return a dense GLM-4 (9B, and the later 32B with norms behind attention and feed-forward too)."""
    older = config.model_type == "glm"
    bias = config.flag("attention_bias", default=True)
    norms = 2 if older else 4
    shape = heads(config, default_head_dim=128)
    return dense_decoder(config, name, Dense(qkv_bias=bias, norms=norms), shape=shape)


def read_glm4_moe(config: Config, name: str) -> Network:
    """Return a GLM-4.5 or 4.6: dense layers first, then shared and routed experts."""
    shape = heads(config)
    layers = config.layers()
    traits = Dense(
        qkv_bias=config.flag("attention_bias", default=config.model_type == "glm4v_moe_text"),
        head_norms=config.flag("use_qk_norm", default=False),
    )
    sparse = deepseek_mixture(config, shape.hidden_size, shared_experts=1)
    first = config.count("first_k_dense_replace", default=0 if config.model_type == "solar_open" else 1)
    dense = dense_mlp(config, shape, traits) if first else sparse
    parts = parts_after(config, dense, sparse, layers, first)
    network = sparse_decoder(config, name, traits, parts, shape=shape)
    return with_next_token_layers(config, network, network.layers[-1])


def read_glm4v_moe(config: Config, name: str) -> Network:
    """Return a GLM-4.5V or 4.6V: GLM-4.5 Air with a vision tower."""
    text = config.section("text_config")
    if text is None:
        raise config.missing("text_config")
    network = read_glm4_moe(text, name)
    vision = config.section("vision_config")
    return with_vision(network, config, glm4v_vision(vision) if vision else 0)


FAMILIES: dict[str, Family] = {
    "glm": read_glm,
    "glm4": read_glm,
    "glm4_moe": read_glm4_moe,
    "glm4v_moe": read_glm4v_moe,
    "glm4v_moe_text": read_glm4_moe,
    "solar_open": read_glm4_moe,
}
