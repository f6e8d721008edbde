"""Llama and the families that are Llama with other keys: RMS norm, rotary positions, gated feed-forward."""

from dataclasses import replace

from capplan.families.config import Config
from capplan.families.parts.blocks import gated_mlp, heads
from capplan.families.parts.stacks import Traits, block_decoder, dense_mlp, layer_windows, mixtral_mixture
from capplan.model.network import Network


def _biased(config: Config) -> Traits:
    bias = config.flag("attention_bias", default=False)
    return Traits(qkv_bias=bias, output_bias=bias, mlp_bias=config.flag("mlp_bias", default=False))


def read_llama(config: Config, name: str) -> Network:
    """Return a Llama (1 to 3.3, Code Llama, Yi, Granite and other clones)."""
    return block_decoder(config, name, _biased(config))


def read_granite_swa(config: Config, name: str) -> Network:
    """Return a Granite with sinks in every layer, windows in three of four, dense or with experts."""
    layers, shape = config.layers(), heads(config)
    slides = [bool(index % 4) for index in range(layers)]
    config.unused("layer_rope_theta")
    windows = layer_windows(config, layers, config.optional("sliding_window"), default=slides)
    traits = replace(_biased(config), sinks=True)
    if config.model_type == "granite_swa":
        return block_decoder(config, name, traits, shape=shape, windows=windows)
    part = mixtral_mixture(config, shape.hidden_size, shared=config.count("shared_intermediate_size"))
    return block_decoder(config, name, traits, [part] * layers, shape=shape, windows=windows)


def read_bitnet(config: Config, name: str) -> Network:
    """Return a BitNet: a Llama with a norm before the last matmul of attention and of the feed-forward; no bias in the latter."""
    network = block_decoder(config, name, replace(_biased(config), mlp_bias=False))
    more = config.dimension("hidden_size") + config.dimension("intermediate_size")
    layer = replace(network.layers[0], norm_parameters=network.layers[0].norm_parameters + more)
    return replace(network, layers=(layer,) * len(network.layers))


def read_qwen(config: Config, name: str) -> Network:
    """Return a Qwen 1: biases on queries, keys and values; gate and up are half of `intermediate_size` each."""
    if not config.flag("no_bias", default=True):
        raise config.error("no_bias", "false is not modelled", "allowed: true")
    shape = heads(config, head_dim_keys=("kv_channels",))
    wide = config.divisible("intermediate_size", config.dimension("intermediate_size"), "2", 2)
    part = gated_mlp(shape.hidden_size, wide), None
    config.unused("seq_length", "max_position_embeddings")
    network = block_decoder(config, name, Traits(qkv_bias=True), [part] * config.layers(), shape=shape)
    return replace(network, max_context_tokens=config.optional("seq_length", "max_position_embeddings"))


def read_helium(config: Config, name: str) -> Network:
    """Return a Helium: a Llama without a bias behind its attention."""
    network = block_decoder(config, name, replace(_biased(config), output_bias=False))
    (output,) = {p.inputs for layer, _ in network.distinct_layers for p in layer.projections if p.name == "o"}
    if output != network.hidden_size:
        raise config.error(
            "head_dim",
            f"heads of {output} together do not run: the class multiplies them by hidden_size = {network.hidden_size}",
        )
    return network


def read_apertus(config: Config, name: str) -> Network:
    """Return an Apertus: head norms, no gate, and an activation with two parameters in each layer."""
    traits = replace(_biased(config), gated=False, head_norms=True)
    network = block_decoder(config, name, traits)
    layer = replace(network.layers[0], norm_parameters=network.layers[0].norm_parameters + 2)
    return replace(network, layers=(layer,) * len(network.layers))


def read_exaone(config: Config, name: str) -> Network:
    """Return an EXAONE 3 or 3.5: a Llama whose depth is `num_layers`."""
    shape = heads(config)
    part = dense_mlp(config, shape, Traits())
    layers = config.layers("num_layers", "num_hidden_layers")
    return block_decoder(config, name, Traits(), [part] * layers, shape=shape)


def read_minicpm(config: Config, name: str) -> Network:
    """Return a MiniCPM 1 or 2: a Llama with scaled residuals and a tied LM head."""
    config.unused("scale_emb", "dim_model_base", "scale_depth", "mup_denominator", "sparse_config")
    return block_decoder(config, name, Traits(tied=True))


def read_internlm(config: Config, name: str) -> Network:
    """Return an InternLM: Llama with a different bias key."""
    bias = config.flag("bias", default=False)
    return block_decoder(config, name, Traits(qkv_bias=bias, output_bias=bias))


def read_smollm3(config: Config, name: str) -> Network:
    """Return a SmolLM3: Llama where every fourth layer has no positions."""
    traits = replace(_biased(config), tied=True)
    layers = config.layers()
    config.unused("sliding_window", "use_sliding_window", "max_window_layers")
    every = config.optional("no_rope_layer_interval") or 4
    listed = config.whole_numbers("no_rope_layers")
    rotary = listed if listed is not None else tuple((i + 1) % every for i in range(layers))
    window = (
        config.optional("sliding_window", least=0)
        if config.flag("use_sliding_window", default=False)
        else None
    )
    if config.has("layer_types"):
        window = config.optional("sliding_window", least=0)
    windows = layer_windows(config, layers, window, default=[window is not None and not r for r in rotary])
    return block_decoder(config, name, traits, windows=windows)


def read_seed_oss(config: Config, name: str) -> Network:
    """Return a Seed-OSS: biases on queries, keys and values, a head width that does not follow from the hidden size."""
    traits = Traits(
        qkv_bias=config.flag("attention_bias", default=True),
        output_bias=config.flag("attention_out_bias", default=False),
        mlp_bias=config.flag("mlp_bias", default=False),
    )
    return block_decoder(config, name, traits, shape=heads(config, default_head_dim=128))


def read_internlm3(config: Config, name: str) -> Network:
    """Return an InternLM 3: Llama with one key for the biases of attention and another for the rest."""
    traits = Traits(
        qkv_bias=config.flag("attention_bias", "qkv_bias", default=False),
        output_bias=config.flag("attention_bias", "bias", default=False),
        mlp_bias=config.flag("mlp_bias", "bias", default=False),
    )
    return block_decoder(config, name, traits)


def read_stablelm(config: Config, name: str) -> Network:
    """Return a StableLM: layer norms with biases, one norm where attention and feed-forward run side by side."""
    if config.flag("qk_layernorm", default=False):
        raise config.error("qk_layernorm", "true is not modelled", "allowed: false")
    norms = 1 if config.flag("use_parallel_residual", default=False) else 2
    traits = Traits(qkv_bias=config.flag("use_qkv_bias", default=False), norms=norms, norm_bias=True)
    return block_decoder(config, name, traits)


def read_plain(config: Config, name: str) -> Network:
    """Return an Arcee (AFM) or Nemotron (Minitron): Llama with an ungated feed-forward of squared ReLU."""
    traits = replace(_biased(config), gated=False, norm_bias=config.model_type == "nemotron")
    return block_decoder(config, name, traits)


def read_granite_moe(config: Config, name: str) -> Network:
    """Return a Granite with experts in every layer; the shared variant has a dense part next to them."""
    bias = config.flag("attention_bias", default=False)
    shape = heads(config)
    part = mixtral_mixture(config, shape.hidden_size, shared=config.count("shared_intermediate_size"))
    return block_decoder(
        config, name, Traits(qkv_bias=bias, output_bias=bias), [part] * config.layers(), shape=shape
    )
