"""Mistral, Ministral, Mixtral, and Mistral Small 4 and Large 4 with latent attention."""

from dataclasses import replace

from capplan.families.attention.deepseek import read_latent, reuses_index
from capplan.families.config import Config
from capplan.families.parts.blocks import (
    decoder,
    decoder_layer,
    gated_mlp,
    heads,
    latent_attention,
    with_tower,
)
from capplan.families.parts.stacks import (
    Traits,
    block_decoder,
    deepseek_mixture,
    layer_windows,
    mixtral_mixture,
    parts_after,
)
from capplan.families.parts.vision import (
    pixtral,
)
from capplan.model.network import Network, Projection

_WINDOW_OF_MISTRAL = 4096

_DELAY_RANK = 32
"""Rank of the delay matrices in Voxtral Realtime; no key states it."""


def read_mistral(config: Config, name: str) -> Network:
    """Return a Mistral; a null sliding_window means none, a missing one the 4096 tokens of version 0.1."""
    window = config.optional("sliding_window", least=0)
    if "sliding_window" not in config.values and config.model_type == "mistral":
        window = _WINDOW_OF_MISTRAL
        config.notes.append(
            f"{config.section_path}sliding_window is missing: {window}, as in Mistral 7B v0.1"
        )
    windows = layer_windows(config, config.layers(), window or None)
    return block_decoder(config, name, Traits(), windows=windows)


def read_cwm(config: Config, name: str) -> Network:
    """Return a Code World Model: a Llama with a window in three of four layers."""
    layers = config.layers()
    slides = [bool(index % 4) for index in range(layers)]
    windows = layer_windows(config, layers, config.optional("sliding_window"), default=slides)
    return block_decoder(config, name, Traits(), windows=windows)


def read_ministral3(config: Config, name: str) -> Network:
    """Return a Ministral 3, from its text section where it has one."""
    text = config.section("text_config")
    if text is None:
        return block_decoder(config, name, Traits())
    if config.has("vision_config"):
        config.uncounted("the vision tower is not counted: model_type names the text model")
    return read_mistral(text, name)


def read_mistral3(config: Config, name: str) -> Network:
    """Return a Mistral with a Pixtral vision tower."""
    text = config.needed_section("text_config")
    kind = text.text("model_type", default="mistral")
    network = read_mistral4(text, name) if kind == "mistral4" else read_mistral(text, name)
    return with_tower(network, config, lambda vision, hidden: pixtral(vision, hidden, config))


def read_voxtral_realtime(config: Config, name: str) -> Network:
    """Return the text half of a Voxtral Realtime: a Mistral with two narrow matrices in each layer that turn the delay into a scale."""
    hidden = config.dimension("hidden_size")
    windows = layer_windows(config, config.layers(), config.optional("sliding_window", least=0) or None)
    network = block_decoder(config, name, Traits(tied=True), windows=windows)
    delay = (  # multiplied once for a request
        Projection("delay_in", "other", hidden, _DELAY_RANK, "none", matmul=False),
        Projection("delay_out", "other", _DELAY_RANK, hidden, "none", matmul=False),
    )
    layers = tuple(replace(layer, projections=(*layer.projections, *delay)) for layer in network.layers)
    return replace(network, layers=layers)


def read_mixtral(config: Config, name: str) -> Network:
    """Return a Mixtral: eight experts in every layer, two per token."""
    shape = heads(config)
    layers = config.layers()
    part = mixtral_mixture(config, shape.hidden_size)
    windows = layer_windows(config, layers, config.optional("sliding_window", least=0) or None)
    return block_decoder(config, name, Traits(), [part] * layers, shape=shape, windows=windows)


def read_mistral4(config: Config, name: str) -> Network:
    """Return a Mistral Small 4: latent attention and experts as in DeepSeek."""
    return read_latent(config.section("text_config") or config, name)


def read_mistral_large4(config: Config, name: str) -> Network:
    """Return a Mistral Large 4: text decoder and Pixtral tower."""
    network = read_mistral_large4_text(config.needed_section("text_config"), name)
    return with_tower(network, config, lambda vision, hidden: pixtral(vision, hidden, config))


def read_mistral_large4_text(config: Config, name: str) -> Network:
    """Return the text half of a Mistral Large 4: sparse latent attention with scales for each head, no positions in every fourth layer."""
    hidden, count = config.dimension("hidden_size"), config.layers()
    config.unused("layer_types", "indexer_types")
    if config.optional("q_lora_rank"):
        raise config.error("q_lora_rank", "a latent of queries is not modelled", "allowed: null")
    sources = config.whole_numbers("kv_source_layers")
    if sources is not None and list(sources) != list(range(count)):
        raise config.error("kv_source_layers", "layers that read the cache of others are not modelled")
    bias = config.flag("attention_bias")
    dense = gated_mlp(hidden, config.dimension("intermediate_size")), None
    first = config.count("first_k_dense_replace")
    parts = parts_after(config, dense, deepseek_mixture(config, hidden), count, first)
    every = (
        config.dimension("no_rope_layer_interval", default=4) if config.has("no_rope_layer_interval") else 4
    )
    rotary = config.whole_numbers("no_rope_layers") or [(index + 1) % every for index in range(count)]
    layers = []
    for part, reused, rotated in zip(parts, reuses_index(config, count), rotary, strict=True):
        mixer, attending, norms = latent_attention(
            config, hidden, attention_bias=bias, indexer=True, index_cached=not reused, rotary=bool(rotated)
        )
        scales = 2 * mixer.query_heads
        if not reused:
            scales += 2 * hidden + 2 * mixer.index_heads
        layers.append(decoder_layer(mixer, attending, part, 2 * hidden + norms + scales))
    frequencies = (config.dimension("qk_rope_head_dim") + 1) // 2  # a trained factor for each
    return decoder(config, name, layers, hidden=hidden, final_norm=hidden + frequencies)
