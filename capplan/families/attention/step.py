"""Step 3.5 and 3.7 Flash: gated heads, windows in three of four layers, shared and routed experts."""

from dataclasses import replace

from capplan.families.config import Config
from capplan.families.parts.blocks import Heads, Part, decoder, heads, with_vision
from capplan.families.parts.stacks import Traits, block, mixture, parts_by_layer
from capplan.families.parts.vision import step_vision
from capplan.model.network import Layer, Network, Projection


def _mixed_layers(config: Config, layers: int) -> list[bool]:
    kinds = config.items("mlp_layer_types", length=layers)
    if kinds is not None:
        return [kind == "sparse" for kind in kinds[:layers]]
    listed = config.whole_numbers("moe_layers_enum")
    if listed is not None:
        return [i in listed for i in range(layers)]
    first = config.count("first_k_dense_replace", default=3)
    return [i >= first for i in range(layers)]


def _parts(config: Config, shape: Heads, layers: int) -> list[Part]:
    mixed = mixture(
        config,
        shape.hidden_size,
        experts=config.dimension("n_routed_experts", "num_experts", "moe_num_experts"),
        per_token=config.dimension("num_experts_per_tok", "moe_top_k"),
        intermediate=config.dimension("moe_intermediate_size"),
        shared=config.count("share_expert_dim", "share_expert_dims"),
    )
    return parts_by_layer(config, shape, Traits(), mixed, _mixed_layers(config, layers))


def _layer(shape: Heads, part: Part, window: int | None) -> Layer:
    layer = block(shape, Traits(head_norms=True), part, window=window)
    gate = Projection("head_gate", "attention", shape.hidden_size, shape.query_heads, "columns")
    return replace(layer, projections=(layer.projections[0], gate, *layer.projections[1:]))


def read_step_text(config: Config, name: str) -> Network:
    """Return the text model of a Step 3.5 or 3.7 Flash; sliding layers may have more query heads."""
    groups = config.optional("num_key_value_heads", "num_attention_groups") or 8
    full = heads(config, default_kv_heads=groups, default_head_dim=128)
    layers = config.layers()
    other = config.section("attention_other_setting")
    more = config.optional("num_sliding_attention_heads")
    if more is None and other is not None:
        more = other.optional("num_attention_heads")
    slide = replace(full, query_heads=more or full.query_heads)
    window = config.optional("sliding_window")
    kinds = config.items("layer_types", length=layers) or ["full_attention"] * layers
    stack = []
    for part, kind in zip(_parts(config, full, layers), kinds, strict=False):
        sliding = kind == "sliding_attention"
        if sliding and window is None:
            raise config.missing("sliding_window")
        stack.append(_layer(slide if sliding else full, part, window if sliding else None))
    if config.count("num_nextn_predict_layers", "num_mtp_layers"):
        config.notes.append("the layers for multi-token prediction are left out")
    return decoder(config, name, stack, hidden=full.hidden_size)


def read_step(config: Config, name: str) -> Network:
    """Return a Step 3.7 Flash with its vision tower; a file without a vision section means the default tower."""
    text = config.section("text_config") or config
    network = read_step_text(text, name)
    vision = config.section("vision_config")
    if vision is None:
        config.notes.append("no vision_config: the vision tower of Step 3.7 Flash is counted")
        vision = Config({}, config.place, "vision_config.", config.keys_used, [], outer=config)
    return with_vision(network, config, step_vision(vision, network.hidden_size))
