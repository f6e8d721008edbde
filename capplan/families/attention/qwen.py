"""Qwen 2, 2.5, 3 and 3-VL: dense and with experts."""

from capplan.families.config import Config
from capplan.families.parts.blocks import Heads, Part, heads, with_tower
from capplan.families.parts.stacks import (
    Traits,
    block_decoder,
    layer_windows,
    mixture,
    parts_by_layer,
)
from capplan.families.parts.vision import qwen2_5_vision, qwen2_vision, qwen3_vision
from capplan.model.network import Network


def _windows_in_use(config: Config, layers: int) -> tuple[int | None, ...]:
    """Return the window of each layer: use_sliding_window switches windows on, max_window_layers is the first layer with one."""
    config.unused("sliding_window", "max_window_layers", "layer_types")
    window = None
    if config.flag("use_sliding_window", default=False):
        window = config.optional("sliding_window", least=0)
    if not window:
        return (None,) * layers
    first = config.count("max_window_layers", default=28)
    return layer_windows(config, layers, window, default=[i >= first for i in range(layers)])


def read_qwen2(config: Config, name: str) -> Network:
    """Return a Qwen 2 or 2.5: biases on queries, keys and values."""
    traits = Traits(qkv_bias=config.flag("qkv_bias", default=True))
    return block_decoder(config, name, traits, windows=_windows_in_use(config, config.layers()))


def _qwen3_traits(config: Config) -> Traits:
    bias = config.flag("attention_bias", default=False)
    return Traits(qkv_bias=bias, output_bias=bias, head_norms=True)


def read_qwen3(config: Config, name: str) -> Network:
    """Return a Qwen 3: a norm on each head of queries and keys, heads of 128 whatever the width."""
    shape = heads(config, default_head_dim=128)
    windows = _windows_in_use(config, config.layers())
    return block_decoder(config, name, _qwen3_traits(config), shape=shape, windows=windows)


def _parts(config: Config, shape: Heads, traits: Traits, layers: int, shared: int | None) -> list[Part]:
    dense_layers = set(config.whole_numbers("mlp_only_layers") or ())
    step = config.dimension("decoder_sparse_step") if config.has("decoder_sparse_step") else 1
    sparse = mixture(
        config,
        shape.hidden_size,
        experts=config.dimension("num_experts", "num_local_experts"),
        per_token=config.dimension("num_experts_per_tok"),
        intermediate=config.dimension("moe_intermediate_size"),
        shared=shared or 0,
        shared_gate=shared is not None,
    )
    is_sparse = [i not in dense_layers and (i + 1) % step == 0 for i in range(layers)]
    return parts_by_layer(config, shape, traits, sparse, is_sparse)


def read_qwen2_moe(config: Config, name: str) -> Network:
    """Return a Qwen 1.5 or 2 with experts: a gated shared expert next to them."""
    shape = heads(config)
    layers = config.layers()
    traits = Traits(qkv_bias=config.flag("qkv_bias", default=True))
    parts = _parts(config, shape, traits, layers, config.count("shared_expert_intermediate_size"))
    return block_decoder(config, name, traits, parts, shape=shape, windows=_windows_in_use(config, layers))


def read_qwen3_moe(config: Config, name: str) -> Network:
    """Return a Qwen 3 with experts, none of them shared."""
    shape = heads(config)
    layers = config.layers()
    traits = _qwen3_traits(config)
    parts = _parts(config, shape, traits, layers, None)
    return block_decoder(config, name, traits, parts, shape=shape, windows=_windows_in_use(config, layers))


def read_qwen3_vl(config: Config, name: str) -> Network:
    """Return a Qwen 3-VL: a Qwen 3 with a vision tower."""
    text = config.needed_section("text_config")
    reader = read_qwen3_moe if text.has("num_experts") else read_qwen3
    return with_tower(reader(text, name), config, lambda vision, _: qwen3_vision(vision))


def read_qwen2_vl(config: Config, name: str) -> Network:
    """Return a Qwen 2-VL or 2.5-VL; older files have the text keys next to the vision section."""
    text = config.section("text_config")
    network = read_qwen2(text or config, name)
    tower = qwen2_vision if config.model_type == "qwen2_vl" else qwen2_5_vision
    return with_tower(network, config, tower)
