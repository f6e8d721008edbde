"""ERNIE 4.5: dense, with experts, and with separate experts for images."""

from capplan.families.config import Config
from capplan.families.parts.blocks import Heads, Part, gated_mlp, heads, routed, router, with_tower
from capplan.families.parts.stacks import (
    Traits,
    block_decoder,
    dense_mlp,
    parts_after,
    parts_by_layer,
)
from capplan.families.parts.vision import ernie_vision
from capplan.model.network import Network, Projection


def _traits(config: Config) -> Traits:
    bias = config.flag("use_bias", default=False)
    return Traits(qkv_bias=bias, output_bias=bias, mlp_bias=bias, tied=True)


def read_ernie(config: Config, name: str) -> Network:
    """Return a dense ERNIE 4.5."""
    return block_decoder(config, name, _traits(config), shape=heads(config, default_head_dim=128))


def read_ernie_moe(config: Config, name: str) -> Network:
    """Return an ERNIE 4.5 with experts; the balancing bias of the router counts as a parameter there."""
    shape = heads(config)
    layers = config.layers()
    width = config.dimension("moe_intermediate_size")
    traits = _traits(config)
    experts = config.dimension("moe_num_experts")
    sparse: Part = (
        (
            router(shape.hidden_size, experts, bias=True),
            *_shared_experts(config, shape.hidden_size, width, bias=traits.mlp_bias),
        ),
        routed(config, experts, config.dimension("moe_k"), shape.hidden_size, width),
    )
    first = config.count("moe_layer_start_index", default=1)
    last = config.optional("moe_layer_end_index", least=-1)
    last = layers - 1 if last is None or last < 0 else last
    step = config.dimension("moe_layer_interval") if config.has("moe_layer_interval") else 1
    is_sparse = [(i + 1) % step == 0 and first <= i <= last for i in range(layers)]
    parts = parts_by_layer(config, shape, traits, sparse, is_sparse)
    return block_decoder(config, name, traits, parts, shape=shape, head_bias=traits.mlp_bias)


def _shared_experts(config: Config, hidden: int, width: int, *, bias: bool) -> tuple[Projection, ...]:
    """Return the shared experts as one dense feed-forward; theirs are the only experts with biases."""
    shared = config.count("moe_num_shared_experts") * width
    return gated_mlp(hidden, shared, bias=bias, tensor_class="shared_expert")


def read_ernie_vl(config: Config, name: str) -> Network:
    """Return an ERNIE 4.5 VL with experts, its vision tower and its resampler."""
    network = read_ernie_vl_text(config.needed_section("text_config"), name)
    return with_tower(network, config, ernie_vision)


def read_ernie_vl_text(config: Config, name: str) -> Network:
    """Return the text model of an ERNIE 4.5 VL: every mixture has as many experts again for the tokens of images."""
    shape = heads(config)
    layers = config.layers()
    traits = _traits(config)
    kinds = config.items("mlp_layer_types", length=layers)
    dense = dense_mlp(config, shape, traits)
    sparse = _mixture_with_image_experts(config, shape, bias=traits.mlp_bias)
    parts = parts_after(config, dense, sparse, layers, 0 if kinds else 1)
    return block_decoder(config, name, traits, parts, shape=shape)


def _mixture_with_image_experts(config: Config, shape: Heads, *, bias: bool) -> Part:
    """Return the experts of text, the shared ones, and those of images, which tokens of text do not pass."""
    hidden = shape.hidden_size
    widths = config.whole_numbers("moe_intermediate_size") or (1536, 512)
    if len(widths) != 2 or 0 in widths:
        raise config.error(
            "moe_intermediate_size", f"{list(widths)} is not a width for text and one for images"
        )
    of_text, of_images = widths
    experts = config.dimension("moe_num_experts")
    routing = router(hidden, experts, bias=True)
    matmuls = (
        routing,
        *_shared_experts(config, hidden, of_text, bias=bias),
        Projection("image_router", "router", hidden, experts, "none", bias=experts, matmul=False),
        Projection("image_gate_up", "expert", hidden, 2 * experts * of_images, "columns", matmul=False),
        Projection("image_down", "expert", experts * of_images, hidden, "rows", matmul=False),
    )
    return matmuls, routed(config, experts, config.dimension("moe_k"), hidden, of_text)
