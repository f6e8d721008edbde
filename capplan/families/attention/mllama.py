"""Llama 3.2 Vision: a Llama whose cross-attention layers read the image; without one, they do nothing."""

from dataclasses import replace

from capplan.families.config import Config
from capplan.families.parts.blocks import Heads, attention_output, decoder, gated_mlp, heads, qkv, with_tower
from capplan.families.parts.stacks import Traits, block
from capplan.families.parts.towers import linear
from capplan.families.parts.vision import image_positions, mllama_vision
from capplan.model.network import Layer, Network

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
