"""Gemma 1, 2 and 3: wide heads, tied embeddings, from Gemma 2 on four norms and alternating windows."""

from capplan.families.config import Config
from capplan.families.parts.blocks import Heads, heads, with_tower
from capplan.families.parts.stacks import Traits, block_decoder, layer_windows
from capplan.families.parts.vision import gemma3_vision
from capplan.model.network import Network


def _heads(config: Config) -> Heads:
    return heads(config, default_head_dim=256)


def read_gemma(config: Config, name: str) -> Network:
    """Return a Gemma 1."""
    bias = config.flag("attention_bias", default=False)
    return block_decoder(
        config, name, Traits(qkv_bias=bias, output_bias=bias, tied=True), shape=_heads(config)
    )


def read_gemma2(config: Config, name: str) -> Network:
    """Return a Gemma 2: every second layer slides, beginning with the first."""
    bias = config.flag("attention_bias", default=False)
    layers = config.layers()
    window = config.dimension("sliding_window", default=4096)
    windows = layer_windows(config, layers, window, default=[i % 2 == 0 for i in range(layers)])
    traits = Traits(qkv_bias=bias, output_bias=bias, norms=4, tied=True)
    return block_decoder(config, name, traits, shape=_heads(config), windows=windows)


def window_of(config: Config, *, both_sides: bool) -> int | None:
    """Return the tokens that a sliding layer caches; a window that looks to both sides is divided between them."""
    window = config.optional("sliding_window")
    return window // 2 + 1 if window and both_sides else window


def read_gemma3_text(config: Config, name: str) -> Network:
    """Return a Gemma 3 without its vision tower: five sliding layers, then a full one."""
    bias = config.flag("attention_bias", default=False)
    layers = config.layers()
    pattern = config.optional("sliding_window_pattern", "_sliding_window_pattern") or 6
    default = [(i + 1) % pattern != 0 for i in range(layers)]
    window = window_of(config, both_sides=config.flag("use_bidirectional_attention", default=False))
    windows = layer_windows(config, layers, window, default=default)
    traits = Traits(qkv_bias=bias, output_bias=bias, norms=4, head_norms=True, tied=True)
    return block_decoder(config, name, traits, windows=windows)


def read_gemma3(config: Config, name: str) -> Network:
    """Return a Gemma 3 with its SigLIP vision tower."""
    return with_tower(read_gemma3_text(config.needed_section("text_config"), name), config, gemma3_vision)
