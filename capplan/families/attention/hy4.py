"""Hy 4: sparse latent attention with sinks and an output gate, residual streams, shared and routed experts."""

from dataclasses import replace

from capplan.families.attention.deepseek import reuses_index
from capplan.families.config import Config
from capplan.families.parts.blocks import decoder, decoder_layer, gated_mlp, latent_attention
from capplan.families.parts.stacks import deepseek_mixture, parts_after, with_next_token_layers
from capplan.families.parts.streams import stream_head, stream_mixing
from capplan.model.network import Network, Projection


def read_hy4(config: Config, name: str) -> Network:
    """Return a Hy 4."""
    hidden, count = config.dimension("hidden_size"), config.layers()
    streams = config.dimension("hc_mult", default=4)
    bias = config.flag("attention_bias", default=False)
    config.unused("layer_types")
    dense = gated_mlp(hidden, config.dimension("intermediate_size")), None
    parts = parts_after(config, dense, deepseek_mixture(config, hidden), count, min(1, count))
    mixes, mixed = stream_mixing(hidden, streams, 2 * streams, scales=2)
    reuses = [bool(index and (index - 1) % 4) for index in range(count)]
    if config.has("indexer_types"):
        reuses = reuses_index(config, count)
    layers = []
    for (matmuls, experts), reused in zip(parts, reuses, strict=True):
        mixer, attending, norms = latent_attention(
            config, hidden, attention_bias=bias, indexer=True, index_cached=not reused
        )
        gate = Projection("gate", "attention", hidden, mixer.query_heads * mixer.value_head_dim, "columns")
        vectors = 2 * hidden + norms + mixer.query_heads + mixed
        layer = decoder_layer(mixer, (*attending, gate), ((*mixes, *matmuls), experts), vectors)
        layers.append(replace(layer, residual_streams=streams))
    network = decoder(config, name, layers, hidden=hidden)
    network = with_next_token_layers(config, network, layers[-1])
    return replace(network, other_parameters=stream_head(hidden, streams))
