"""Models of Tencent: Hunyuan, dense and with experts, Hy3, and Hy 4 with sparse latent attention and residual streams."""

from dataclasses import replace

from capplan.families.attention.deepseek import reuses_index
from capplan.families.config import Config
from capplan.families.parts.blocks import (
    Part,
    decoder,
    decoder_layer,
    gated_mlp,
    heads,
    latent_attention,
    stream_head,
    stream_mixing,
)
from capplan.families.parts.stacks import (
    Traits,
    block_decoder,
    counted_mixture,
    deepseek_mixture,
    dense_mlp,
    mixture,
    parts_after,
    with_next_token_layers,
)
from capplan.model.network import Network, Projection


def _traits(config: Config) -> Traits:
    bias = config.flag("attention_bias", default=False)
    return Traits(qkv_bias=bias, output_bias=bias, head_norms=True)


def read_hunyuan_dense(config: Config, name: str) -> Network:
    """Return a dense Hunyuan: a norm on each head of queries and keys."""
    return block_decoder(config, name, _traits(config))


def read_hunyuan_moe(config: Config, name: str) -> Network:
    """Return a Hunyuan with experts; their counts may be given layer by layer."""
    shape = heads(config)
    layers = config.layers()
    experts = config.per_layer("num_experts", layers=layers)
    chosen = config.per_layer("moe_topk", "num_experts_per_tok", layers=layers)
    shared = config.per_layer("num_shared_expert", layers=layers, default=1)
    width = config.dimension("intermediate_size")
    widths = config.per_layer("moe_intermediate_size", layers=layers, default=width)
    made: dict[tuple[int, ...], Part] = {}
    parts = []
    for key in zip(experts, chosen, shared, widths, strict=True):
        if key not in made:
            count, top, beside, expert_width = key
            made[key] = mixture(
                config,
                shape.hidden_size,
                experts=count,
                per_token=top,
                intermediate=expert_width,
                shared=beside * width,
            )
        parts.append(made[key])
    return block_decoder(config, name, _traits(config), parts, shape=shape)


def read_hy3(config: Config, name: str) -> Network:
    """Return a Hy3: one dense layer, then shared and routed experts."""
    shape = heads(config)
    layers = config.layers()
    width = config.dimension("moe_intermediate_size", "expert_hidden_dim")
    # the class gives shared experts of no width that of a dense layer
    shared = config.count("num_shared_experts") * width or config.dimension("intermediate_size")
    sparse = counted_mixture(config, shape.hidden_size, width, shared=shared)
    traits = _traits(config)
    dense = dense_mlp(config, shape, traits)
    parts = parts_after(config, dense, sparse, layers, config.count("first_k_dense_replace", default=1))
    return block_decoder(config, name, traits, parts, shape=shape)


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
