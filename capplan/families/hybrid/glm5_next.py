"""GLM-5.3: delta attention in three of four layers, sparse latent attention over pools of tokens in the fourth, residual streams."""

from dataclasses import replace

from capplan.families.attention.deepseek import reuses_index
from capplan.families.config import Config
from capplan.families.hybrid.kimi_linear import delta_attention, delta_sizes
from capplan.families.parts.blocks import (
    Part,
    decoder,
    gated_mlp,
    latent_attention,
    stream_mixing,
    with_tower,
)
from capplan.families.parts.stacks import deepseek_mixture, parts_after, with_next_token_layers
from capplan.families.parts.state_blocks import layer_kinds
from capplan.families.parts.vision import glm_ocr_vision
from capplan.model.network import Layer, Network, Projection

_KINDS = {"linear_attention": "state"} | dict.fromkeys(
    ("indexed_attention", "deepseek_sparse_attention", "full_attention"), "attention"
)


def read_glm5_next(config: Config, name: str) -> Network:
    """Return a GLM-5.3: text decoder and vision tower."""
    network = read_glm5_next_text(config.needed_section("text_config"), name)
    return with_tower(network, config, lambda vision, _: glm_ocr_vision(vision))


def read_glm5_next_text(config: Config, name: str) -> Network:
    """Return the text half of a GLM-5.3."""
    hidden, count = config.dimension("hidden_size"), config.layers()
    streams = config.dimension("hc_mult", default=4)
    config.unused("layer_types", "index_kpool_always_select_tail", "first_k_dense_replace")
    if (stated := config.section("linear_attn_config")) is not None and config.stated("layer_types"):
        stated.unused("kda_layers", "full_attn_layers")
    delta = delta_attention(hidden, *delta_sizes(config, 64))
    dense = gated_mlp(hidden, config.dimension("intermediate_size")), None
    parts = parts_after(config, dense, deepseek_mixture(config, hidden), count, min(3, count))
    mixes, mixed = stream_mixing(hidden, streams, (2 + streams) * streams, scales=3)
    default = ["attention" if index % 4 == 3 else "state" for index in range(count)]
    kinds = layer_kinds(config, ("layer_types",), count, _KINDS, default)
    layers = []
    for part, kind, reused in zip(parts, kinds, reuses_index(config, count), strict=True):
        matmuls = (*mixes, *part[0])
        norms = 2 * hidden + mixed
        if kind == "attention":
            layer = _attending(config, hidden, norms, (matmuls, part[1]), reused=reused)
        else:
            layer = delta.layer(norms, (matmuls, part[1]))
        layers.append(replace(layer, residual_streams=streams))
    network = decoder(config, name, layers, hidden=hidden)
    return with_next_token_layers(config, network, layers[-1])


def _attending(config: Config, hidden: int, norms: int, part: Part, *, reused: bool) -> Layer:
    """Return a layer of latent attention whose index keys each stand for a pool of tokens."""
    if config.dimension("qk_rope_head_dim", least=0):
        raise config.error("qk_rope_head_dim", "a rotary part is not modelled", "allowed: 0")
    pool = config.dimension("index_kpool", default=16)
    mixer, matmuls, latent_norms = latent_attention(
        config, hidden, indexer=True, index_cached=not reused,
        attention_bias=config.flag("attention_bias", default=False),
    )  # fmt: skip
    mixer = replace(mixer, index_pool_tokens=pool)
    if not reused:
        matmuls += (Projection("index_gate", "other", hidden, mixer.index_head_dim, "none"),)
        latent_norms += pool * mixer.index_head_dim
    return Layer((mixer,), (*matmuls, *part[0]), part[1], norms + latent_norms)
