"""MiniMax M2 and M3: attention in every layer, experts, from M3 on a block-sparse indexer."""

from dataclasses import replace

from capplan.families.config import Config
from capplan.families.parts.blocks import decoder, gated_mlp, heads, with_tower
from capplan.families.parts.stacks import Traits, block, block_decoder, mixture, parts_after, routed_by
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
    return block_decoder(config, name, traits, [routed_by(part, "sigmoid")] * config.layers(), shape=shape)


def _sparse_attention(layer: Layer, config: Config, hidden: int) -> Layer:
    """Return the layer with the indexer that selects the blocks of keys it reads."""
    index_heads = config.dimension("sparse_num_index_heads", "index_n_heads")
    index_dim = config.dimension("sparse_index_dim", "index_head_dim")
    top = config.dimension("sparse_topk_blocks", "index_topk_blocks") * config.dimension(
        "sparse_block_size", "index_block_size"
    )
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


_WHICH_BLOCKS = (
    "sparse_local_block", "sparse_init_block", "sparse_score_type", "sparse_disable_index_value", "use_sparse_attention"
)  # fmt: skip
"""Keys that say which blocks a sparse layer reads, not how many keys it caches."""


def _indexed_layers(config: Config, indexing: Config, layers: int) -> list[bool]:
    """Return which layers have an indexer, from `layer_types` or from the list of older files."""
    kinds = config.items("layer_types", length=layers)
    if kinds is not None:
        for i, kind in enumerate(kinds[:layers]):
            if kind not in ("full_attention", "minimax_m3_sparse"):
                raise config.error(
                    f"layer_types[{i}]",
                    f"{kind!r} is not known",
                    "allowed: full_attention, minimax_m3_sparse",
                )
        return [kind == "minimax_m3_sparse" for kind in kinds[:layers]]
    if not indexing.has("sparse_attention_freq"):
        return [False] * layers
    return [flag > 0 for flag in indexing.per_layer("sparse_attention_freq", layers=layers)]


def read_minimax_m3(config: Config, name: str) -> Network:
    """Return the text model of a MiniMax M3: dense and mixed, full and block-sparse layers."""
    shape = heads(config, default_head_dim=128)
    hidden, layers = shape.hidden_size, config.layers()
    width = config.dimension("moe_intermediate_size", "intermediate_size")
    shared_width = config.count("shared_intermediate_size", default=width)
    scored = mixture(
        config,
        hidden,
        experts=config.dimension("num_local_experts"),
        per_token=config.dimension("num_experts_per_tok"),
        intermediate=width,
        shared=config.count("n_shared_experts", default=1) * shared_width,
    )
    mixed = routed_by(scored, "sigmoid")
    sparse_layers = [part is mixed for part in parts_after(config, ((), None), mixed, layers, 0)]
    if not config.has("mlp_layer_types") and config.has("moe_layer_freq"):
        sparse_layers = [flag > 0 for flag in config.per_layer("moe_layer_freq", layers=layers)]
    dense = gated_mlp(hidden, config.dimension("dense_intermediate_size")), None
    indexing = config.section("sparse_attention_config") or config
    config.unused(
        "index_local_blocks", "index_n_heads", "index_head_dim", "index_block_size", "index_topk_blocks"
    )
    indexing.unused(*_WHICH_BLOCKS)
    indexed = _indexed_layers(config, indexing, layers)
    traits = Traits(head_norms=config.flag("use_qk_norm", default=True))
    made: dict[tuple[bool, bool], Layer] = {}
    stack = []
    for routed, chooses in zip(sparse_layers, indexed, strict=True):
        key = (routed, chooses)
        if key not in made:
            layer = block(shape, traits, mixed if routed else dense)
            made[key] = _sparse_attention(layer, indexing, hidden) if chooses else layer
        stack.append(made[key])
    return decoder(config, name, stack, hidden=hidden)


def read_minimax_m3_vl(config: Config, name: str) -> Network:
    """Return a MiniMax M3 with its vision tower."""
    network = read_minimax_m3(config.needed_section("text_config"), name)
    if vision := config.section("vision_config"):
        vision.unused(
            "image_size",
            "projection_dim",
            "rope_mode",
            "vocab_size",
            "vision_segment_max_frames",
            "img_token_compression_config",
        )
    return with_tower(network, config, lambda vision, hidden: minimax_vision(vision, config, hidden))
