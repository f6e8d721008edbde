"""Qwen 2, 2.5, 3 and 3-VL: dense and with experts."""

from dataclasses import replace

from capplan.families.config import Config
from capplan.families.parts.blocks import Heads, Part, heads, with_vision
from capplan.families.parts.stacks import (
    Dense,
    dense_decoder,
    dense_mlp,
    layer_windows,
    mixture,
    sparse_decoder,
)
from capplan.families.parts.vision import qwen2_5_vision, qwen2_vision, qwen3_vision
from capplan.model.network import Network


def windows_in_use(config: Config, layers: int) -> tuple[int | None, ...]:
    """Return the window of each layer: use_sliding_window decides, max_window_layers says from which layer on."""
    window = config.optional("sliding_window", least=0)
    if not config.flag("use_sliding_window", default=False) or not window:
        return (None,) * layers
    first = config.count("max_window_layers", default=28)
    return layer_windows(config, layers, window, default=[i >= first for i in range(layers)])


def read_qwen2(config: Config, name: str) -> Network:
    """Return a Qwen 2 or 2.5: biases on queries, keys and values."""
    traits = Dense(qkv_bias=config.flag("qkv_bias", default=True))
    return dense_decoder(config, name, traits, windows=windows_in_use(config, config.layers()))


def _qwen3_traits(config: Config) -> Dense:
    bias = config.flag("attention_bias", default=False)
    return Dense(qkv_bias=bias, output_bias=bias, head_norms=True)


def read_qwen3(config: Config, name: str) -> Network:
    """Return a Qwen 3: a norm on each head of queries and keys, heads of 128 whatever the width."""
    shape = heads(config, default_head_dim=128)
    windows = windows_in_use(config, config.layers())
    return dense_decoder(config, name, _qwen3_traits(config), shape=shape, windows=windows)


def _parts(config: Config, shape: Heads, traits: Dense, layers: int, shared: int) -> list[Part]:
    dense_layers = set(config.whole_numbers("mlp_only_layers") or ())
    step = config.dimension("decoder_sparse_step") if config.has("decoder_sparse_step") else 1
    sparse = mixture(
        config,
        shape.hidden_size,
        experts=config.dimension("num_experts", "num_local_experts"),
        per_token=config.dimension("num_experts_per_tok"),
        intermediate=config.dimension("moe_intermediate_size"),
        shared=shared,
        shared_gate=shared > 0,
    )
    is_dense = [i in dense_layers or (i + 1) % step != 0 for i in range(layers)]
    dense = dense_mlp(config, shape, traits) if any(is_dense) else sparse
    return [dense if flat else sparse for flat in is_dense]


def read_qwen2_moe(config: Config, name: str) -> Network:
    """Return a Qwen 1.5 or 2 with experts: a gated shared expert beside them."""
    shape = heads(config)
    layers = config.layers()
    traits = Dense(qkv_bias=config.flag("qkv_bias", default=True))
    parts = _parts(config, shape, traits, layers, config.count("shared_expert_intermediate_size"))
    return sparse_decoder(config, name, traits, parts, shape=shape, windows=windows_in_use(config, layers))


def read_qwen3_moe(config: Config, name: str) -> Network:
    """Return a Qwen 3 with experts, none of them shared."""
    shape = heads(config, default_head_dim=128 if "head_dim" not in config.values else None)
    layers = config.layers()
    traits = _qwen3_traits(config)
    parts = _parts(config, shape, traits, layers, 0)
    return sparse_decoder(config, name, traits, parts, shape=shape, windows=windows_in_use(config, layers))


def read_qwen3_vl(config: Config, name: str) -> Network:
    """Return a Qwen 3-VL: a Qwen 3 with a vision tower; its tie is said outside the text section."""
    text = config.section("text_config")
    if text is None:
        raise config.missing("text_config")
    reader = read_qwen3_moe if text.has("num_experts") else read_qwen3
    tied = config.flag("tie_word_embeddings", default=text.flag("tie_word_embeddings", default=False))
    inner = Config(
        {**text.values, "tie_word_embeddings": tied},
        text.place,
        text.section_path,
        text.keys_used,
        text.notes,
    )
    network = reader(inner, name)
    vision = config.section("vision_config")
    return with_vision(network, config, qwen3_vision(vision) if vision else 0)


def read_qwen2_vl(config: Config, name: str) -> Network:
    """Return a Qwen 2-VL or 2.5-VL; its older files hold the text keys beside the vision section."""
    text = config.section("text_config")
    network = read_qwen2(text or config, name)
    tied = config.flag("tie_word_embeddings", default=network.tied_embeddings)
    vision = config.section("vision_config")
    tower = qwen2_vision if config.model_type == "qwen2_vl" else qwen2_5_vision
    size = tower(vision, network.hidden_size) if vision else 0
    return with_vision(replace(network, tied_embeddings=tied), config, size)
