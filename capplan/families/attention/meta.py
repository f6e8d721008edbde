"""Models of Meta with a vision tower: Llama 4 in chunks and experts, Llama 3.2 Vision with cross-attention, Muse Glimmer with windows and gates."""

from dataclasses import replace

from capplan.families.config import Config
from capplan.families.parts.blocks import Heads, attention_output, decoder, gated_mlp, heads, qkv, with_tower
from capplan.families.parts.stacks import Traits, block, block_decoder, dense_mlp, layer_windows, mixture
from capplan.families.parts.towers import linear
from capplan.families.parts.vision import image_positions, llama4_vision, mllama_vision, muse_vision
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


IMAGE_TOKENS = 8
"""Rows of the embedding for special image tokens, which the LM head cannot produce."""


_CROSSING = range(3, 39, 5)
"""Layers that read the image where the file does not list them."""


def read_mllama(config: Config, name: str) -> Network:
    """Return a Llama 3.2 Vision; its KV cache is that of a request without an image, and a remark says what an image adds."""
    text = config.needed_section("text_config")
    network = read_mllama_text(text, name)
    shape = heads(text)
    crossed = sum(not layer.mixers for layer in network.layers)

    def tower(vision: Config, hidden: int) -> int:
        tokens = vision.dimension("max_num_tiles") * image_positions(vision)
        held = 2 * crossed * tokens * shape.kv_heads * shape.head_dim
        config.uncounted(
            f"an image of a request keeps the keys and values of up to {tokens:,} positions in {crossed} cross-attention layers: "
            f"{held:,} elements next to the KV cache of the text, the only one in the figures"
        )
        return mllama_vision(vision) + linear(vision.dimension("vision_output_dim"), hidden)

    return with_tower(network, config, tower)


def read_mllama_text(config: Config, name: str) -> Network:
    """Return the text model of a Llama 3.2 Vision."""
    shape = heads(config)
    listed = config.whole_numbers("cross_attention_layers")
    crossing = set(
        _CROSSING if listed is None and not config.stated("cross_attention_layers") else listed or ()
    )
    width = config.dimension("intermediate_size")
    plain = block(shape, Traits(), (gated_mlp(shape.hidden_size, width), None))
    crossed = _cross_layer(shape, width)
    stack = [crossed if i in crossing else plain for i in range(config.layers())]
    rows = config.dimension("vocab_size") + IMAGE_TOKENS
    hidden = shape.hidden_size
    return decoder(config, name, stack, hidden=hidden, embedding_parameters=rows * hidden)


def _cross_layer(shape: Heads, width: int) -> Layer:
    """Return a layer whose keys and values come from the image: nothing is cached for text."""
    fused = qkv(shape)
    queries = replace(fused, name="q", outputs=fused.outputs - fused.kv_outputs, kv_outputs=0, kv_heads=0)
    image = replace(fused, name="kv", outputs=fused.kv_outputs, matmul=False)
    matmuls = (queries, image, attention_output(shape), *gated_mlp(shape.hidden_size, width))
    gates = 2
    return Layer((), matmuls, None, 2 * shape.hidden_size + 2 * shape.head_dim + gates)


def read_muse_glimmer(config: Config, name: str) -> Network:
    """Return a Muse Glimmer: text decoder and vision tower."""
    network = read_muse_glimmer_text(config.needed_section("text_config"), name)
    return with_tower(network, config, lambda vision, hidden: muse_vision(vision, hidden, config))


def read_muse_glimmer_text(config: Config, name: str) -> Network:
    """Return the text half of a Muse Glimmer."""
    layers, bias = config.layers(), config.flag("attention_bias", default=False)
    traits = Traits(qkv_bias=bias, output_bias=bias, norms=4, output_gate="channels")
    config.unused("layer_scale_init_value")
    windows = layer_windows(
        config, layers, config.optional("sliding_window"), default=[i % 4 != 3 for i in range(layers)]
    )
    return block_decoder(config, name, traits, shape=heads(config, default_head_dim=128), windows=windows)
