"""Step 3 with queries of low rank and one key-value head; Step3-VL; Step 3.5 and 3.7 Flash with gated heads and windows in three of four layers."""

from dataclasses import replace

from capplan.families.attention.qwen import read_qwen3
from capplan.families.config import Config
from capplan.families.parts.blocks import (
    Heads,
    Part,
    attention,
    attention_output,
    decoder,
    decoder_layer,
    heads,
    with_tower,
    with_vision,
)
from capplan.families.parts.stacks import Traits, block, mixture, parts_by_layer
from capplan.families.parts.towers import encoder_block, linear
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


_MIXED_OF_STEP3 = range(4, 60)
"""Layers of Step 3 with routed experts, where the file does not list them."""


def read_step3_text(config: Config, name: str) -> Network:
    """Return the text model of a Step 3: multi-matrix factorization attention, whose only KV head every rank holds."""
    hidden, head_dim = config.dimension("hidden_size"), config.dimension("head_dim", default=256)
    query_heads, width = (
        config.dimension("num_attention_heads"),
        config.dimension("share_q_dim", default=2048),
    )
    if config.dimension("num_attention_groups", default=1) != 1:
        raise config.error("num_attention_groups", "more than one KV head is not modelled", "allowed: 1")
    shape = Heads(hidden, query_heads, 1, head_dim, head_dim)
    layers = config.layers()
    listed = config.whole_numbers("moe_layers_enum")
    mixed_layers = set(_MIXED_OF_STEP3 if listed is None else listed)
    mixed = mixture(
        config,
        hidden,
        experts=config.dimension("moe_num_experts"),
        per_token=config.dimension("moe_top_k"),
        intermediate=config.dimension("moe_intermediate_size"),
        shared=config.count("share_expert_dim"),
    )
    parts = parts_by_layer(config, shape, Traits(), mixed, [i in mixed_layers for i in range(layers)])
    mixing = (
        Projection("q_a", "attention", hidden, width, "none"),
        Projection("kv", "attention", hidden, 2 * head_dim, "none"),
        Projection("q_b", "attention", width, query_heads * head_dim, "columns"),
        attention_output(shape),
    )
    config.unused("max_position_embedding", "norm_expert_weight")
    stack = [decoder_layer(attention(shape), mixing, part, 2 * hidden + width) for part in parts]
    return decoder(config, name, stack, hidden=hidden)


def read_step3(config: Config, name: str) -> Network:
    """Return a Step 3 with its tower, after vLLM's `Step3VLForConditionalGeneration`."""
    network = read_step3_text(config.needed_section("text_config"), name)

    def tower(vision: Config, text: int) -> int:
        hidden, out = vision.dimension("hidden_size"), vision.dimension("output_hidden_size")
        patch = vision.dimension("patch_size")
        patches = (vision.dimension("image_size") // patch) ** 2
        inputs = vision.dimension("num_channels", default=3) * patch * patch
        blocks = vision.layers() * encoder_block(hidden, vision.dimension("intermediate_size"))
        embedded = linear(inputs, hidden) + hidden + (patches + 1) * hidden
        down = linear(4 * hidden, out) + linear(9 * out, 2 * out)
        return (
            embedded + blocks + down + linear(2 * out, text, bias=_has_projector_bias(config, default=True))
        )

    return with_tower(network, config, tower)


def read_step3_vl(config: Config, name: str) -> Network:
    """Return a Step3-VL: a Qwen 3 with the tower of Step 3.7."""
    text = config.needed_section("text_config")
    network = read_qwen3(text, name)
    biased = _has_projector_bias(config, default=False)

    def tower(vision: Config, hidden: int) -> int:
        return step_vision(vision, hidden) + (hidden if biased else 0)

    return with_tower(network, config, tower)


def _has_projector_bias(config: Config, *, default: bool) -> bool:
    config.unused(
        "understand_projector_stride",
        "image_token_len",
        "patch_token_len",
        "hidden_size",
        "vocab_size",
        "max_position_embeddings",
    )
    return config.flag("projector_bias", default=default)
