"""Llama 4: chunked attention in three of four layers, experts in all or in every second layer."""

from capplan.families.config import Config
from capplan.families.parts.blocks import decoder, heads, with_tower
from capplan.families.parts.stacks import Traits, block, dense_mlp, mixture
from capplan.families.parts.vision import llama4_vision
from capplan.model.network import Layer, Network


def _chunked(config: Config, layers: int) -> list[bool]:
    """Return which layers see only their chunk: those with rotary positions, none where the chunk size is null."""
    if "attention_chunk_size" in config.values and not config.has("attention_chunk_size"):
        return [False] * layers
    kinds = config.items("layer_types", length=layers)
    config.unused("no_rope_layers", "no_rope_layer_interval", "use_qk_norm")
    if kinds:
        return [kind == "chunked_attention" for kind in kinds[:layers]]
    rotary = config.items("no_rope_layers")
    if rotary:
        return [bool(flag) for flag in (config.items("no_rope_layers", length=layers) or ())[:layers]]
    every = config.optional("no_rope_layer_interval") or 4
    return [(i + 1) % every != 0 for i in range(layers)]


def read_llama4_text(config: Config, name: str) -> Network:
    """Return the text model of a Llama 4."""
    bias = config.flag("attention_bias", default=False)
    shape = heads(config, default_head_dim=128)
    layers = config.layers()
    traits = Traits(qkv_bias=bias, output_bias=bias)
    width = config.dimension("intermediate_size")
    mixed = mixture(
        config,
        shape.hidden_size,
        experts=config.dimension("num_local_experts"),
        per_token=config.dimension("num_experts_per_tok", default=1),
        intermediate=width,
        shared=width,
    )
    step = config.optional("interleave_moe_layer_step") or 1
    listed = config.whole_numbers("moe_layers")  # those that the model has not are none
    mixed_layers = set(range(step - 1, layers, step)) if listed is None else {*listed} & {*range(layers)}
    config.unused("intermediate_size_mlp", "interleave_moe_layer_step")
    dense = dense_mlp(config, shape, traits, "intermediate_size_mlp") if len(mixed_layers) < layers else mixed
    chunk = config.optional("attention_chunk_size") or 8192
    made: dict[tuple[bool, bool], Layer] = {}
    stack = []
    for i, chunked in enumerate(_chunked(config, layers)):
        key = (chunked, i in mixed_layers)
        if key not in made:
            made[key] = block(
                shape, traits, mixed if key[1] else dense, window=chunk if chunked else None, chunked=chunked
            )
        stack.append(made[key])
    tied = config.flag(
        "tie_word_embeddings", default=False
    )  # the text model of the class shares them by itself
    return decoder(config, name, stack, hidden=shape.hidden_size, tied=tied)


def read_llama4(config: Config, name: str) -> Network:
    """Return a Llama 4, with its vision tower where the file describes one."""
    return with_tower(read_llama4_text(config.needed_section("text_config"), name), config, llama4_vision)
