"""Muse Glimmer: gated attention with windows in three of four layers, norms around both blocks."""

from capplan.families.config import Config
from capplan.families.parts.blocks import heads, with_tower
from capplan.families.parts.stacks import Traits, block_decoder, layer_windows
from capplan.families.parts.vision import muse_vision
from capplan.model.network import Network


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
