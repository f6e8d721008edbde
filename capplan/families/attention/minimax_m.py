"""MiniMax M2 and M3: attention in every layer, experts, from M3 on a block-sparse indexer."""

from dataclasses import replace

from capplan.families.config import Config
from capplan.families.parts.blocks import decoder, gated_mlp, heads, with_tower
from capplan.families.parts.stacks import Traits, block, block_decoder, mixture
from capplan.families.parts.vision import minimax_vision
from capplan.model.network import Attention, Layer, Network, Projection


def read_minimax_m2(config: Config, name: str) -> Network:
    """Return a MiniMax M2: norms over all queries and all keys, experts in every layer, which engines route in fp32."""
    shape = heads(config, default_head_dim=128)
    part = mixture(
        config,
        shape.hidden_size,
        experts=config.dimension("num_local_experts"),
        per_token=config.dimension("num_experts_per_tok"),
        intermediate=config.dimension("intermediate_size"),
        router_in="fp32",
    )
    if config.text("qk_norm_type", default="per_layer") != "per_layer":
        raise config.error("qk_norm_type", "is not modelled", "allowed: per_layer")
    traits = Traits(wide_norms=config.flag("use_qk_norm", default=True))
    return block_decoder(config, name, traits, [part] * config.layers(), shape=shape)


def _sparse_attention(layer: Layer, config: Config, hidden: int) -> Layer:
    """Return the layer with the indexer that selects the blocks of keys it reads."""
    index_heads = config.dimension("sparse_num_index_heads")
    index_dim = config.dimension("sparse_index_dim")
    top = config.dimension("sparse_topk_blocks") * config.dimension("sparse_block_size")
    mixer = layer.mixers[0]
    assert isinstance(mixer, Attention)
    return replace(
        layer,
        mixers=(replace(mixer, index_heads=index_heads, index_head_dim=index_dim, index_top_tokens=top),),
        projections=(
            *layer.projections[:2],
            Projection("index_q", "attention", hidden, index_heads * index_dim, "none"),
            Projection("index_k", "attention", hidden, index_dim, "none"),
            *layer.projections[2:],
        ),
        norm_parameters=layer.norm_parameters + 2 * index_dim,
    )


def read_minimax_m3(config: Config, name: str) -> Network:
    """Return the text model of a MiniMax M3: dense and mixed, full and block-sparse layers."""
    shape = heads(config, default_head_dim=128)
    hidden, layers = shape.hidden_size, config.layers()
    width = config.dimension("moe_intermediate_size", "intermediate_size")
    shared_width = config.count("shared_intermediate_size", default=width)
    mixed = mixture(
        config,
        hidden,
        experts=config.dimension("num_local_experts"),
        per_token=config.dimension("num_experts_per_tok"),
        intermediate=width,
        shared=config.count("n_shared_experts", default=1) * shared_width,
    )
    sparse_layers = config.per_layer("moe_layer_freq", layers=layers, default=1)
    dense = gated_mlp(hidden, config.dimension("dense_intermediate_size")), None
    indexing = config.section("sparse_attention_config")
    indexed = (
        indexing.per_layer("sparse_attention_freq", layers=layers, default=0) if indexing else (0,) * layers
    )
    traits = Traits(head_norms=config.flag("use_qk_norm", default=True))
    made: dict[tuple[bool, bool], Layer] = {}
    stack = []
    for routed, chooses in zip(sparse_layers, indexed, strict=True):
        key = (routed > 0, chooses > 0)
        if key not in made:
            layer = block(shape, traits, mixed if routed else dense)
            made[key] = _sparse_attention(layer, indexing, hidden) if chooses and indexing else layer
        stack.append(made[key])
    return decoder(config, name, stack, hidden=hidden)


def read_minimax_m3_vl(config: Config, name: str) -> Network:
    """Return a MiniMax M3 with its vision tower."""
    network = read_minimax_m3(config.needed_section("text_config"), name)
    return with_tower(network, config, lambda vision, hidden: minimax_vision(vision, config, hidden))
