"""Phi 1 to 4 and Phi-3.5-MoE."""

from capplan.families.config import Config
from capplan.families.parts.blocks import Heads, decoder, heads, plain_mlp
from capplan.families.parts.stacks import Traits, block, block_decoder, layer_windows, mixtral_mixture
from capplan.model.network import Network


def read_phi(config: Config, name: str) -> Network:
    """Return a Phi-1, 1.5 or 2, under its current keys or those of phi-msft."""
    hidden = config.dimension("hidden_size", "n_embd")
    query_heads = config.dimension("num_attention_heads", "n_head", most=100_000)
    kv_heads = config.optional("num_key_value_heads", "n_head_kv") or query_heads
    config.divisible("num_attention_heads", query_heads, "num_key_value_heads", kv_heads)
    head_dim = config.divisible("hidden_size", hidden, "num_attention_heads", query_heads)
    intermediate = config.optional("intermediate_size", "n_inner") or 4 * hidden
    traits = Traits(qkv_bias=True, output_bias=True, mlp_bias=True, gated=False, norms=1, norm_bias=True)
    shape = Heads(hidden, query_heads, kv_heads, head_dim, head_dim)
    layer = block(shape, traits, (plain_mlp(hidden, intermediate, bias=True), None))
    if config.flag("qk_layernorm", default=False):
        raise config.error("qk_layernorm", "true is not modelled", "allowed: false")
    return decoder(
        config,
        name,
        [layer] * config.layers("num_hidden_layers", "n_layer"),
        hidden=hidden,
        final_norm=2 * hidden,
        head_bias=True,
    )


def read_phi3(config: Config, name: str) -> Network:
    """Return a Phi-3, 3.5 or 4; the window of the 128k models covers their whole context."""
    windows = layer_windows(config, config.layers(), config.optional("sliding_window", least=0) or None)
    return block_decoder(config, name, Traits(), windows=windows)


def read_phi_with_towers(config: Config, name: str) -> Network:
    """Return the text model of a Phi-3 or 3.5 Vision or of a Phi-4 Multimodal as it was first published, without towers and adapters."""
    config.uncounted("the towers and their adapters are not counted")
    config.unused("img_processor", "embd_layer", "audio_processor", "vision_lora", "speech_lora", "embed_layer",
                  "image_embd_layer", "audio_embd_layer")  # fmt: skip
    return read_phi3(config, name)


def read_phimoe(config: Config, name: str) -> Network:
    """Return a Phi-3.5-MoE: sixteen experts, layer norms, biases where the file says so."""
    bias = config.flag("attention_bias", default=False)
    shape = heads(config)
    layers = config.layers()
    part = mixtral_mixture(config, shape.hidden_size)
    return block_decoder(
        config,
        name,
        Traits(qkv_bias=bias, output_bias=bias, norm_bias=True),
        [part] * layers,
        shape=shape,
        windows=layer_windows(config, layers, config.optional("sliding_window", least=0) or None),
        head_bias=config.flag("lm_head_bias", default=False),
    )
