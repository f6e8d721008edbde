"""GPT and decoders like it: GPT-2, GPT-J, OPT, BLOOM, MPT, DBRX, StarCoder2 and Falcon, Phi 1 to 4, and gpt-oss."""

from dataclasses import replace

from capplan.families.config import Config
from capplan.families.parts.blocks import (
    Heads,
    decoder,
    heads,
    plain_mlp,
)
from capplan.families.parts.stacks import (
    Traits,
    block,
    block_decoder,
    layer_windows,
    mixtral_mixture,
    mixture,
)
from capplan.model.network import Layer, Network, Projection

_BIASED = Traits(qkv_bias=True, output_bias=True, mlp_bias=True, gated=False, norm_bias=True)


def _even_heads(config: Config, hidden: int, *keys: str, kv_heads: int | None = None) -> Heads:
    """Return heads that split the hidden size evenly."""
    query_heads = config.dimension(*keys, most=100_000)
    head_dim = config.divisible("hidden size", hidden, keys[0], query_heads)
    return Heads(hidden, query_heads, kv_heads or query_heads, head_dim, head_dim)


def _plain_layer(config: Config, shape: Heads, traits: Traits, *keys: str) -> Layer:
    """Return a layer whose feed-forward is four times as wide as the hidden size unless a key states its width."""
    intermediate = (config.optional(*keys) if keys else None) or 4 * shape.hidden_size
    return block(shape, traits, (plain_mlp(shape.hidden_size, intermediate, bias=traits.mlp_bias), None))


def read_gpt2(config: Config, name: str) -> Network:
    """Return a GPT-2, or a GPT-BigCode, whose queries share one key-value head."""
    hidden = config.dimension("n_embd", "hidden_size", "hidden_dim")
    if config.flag("add_cross_attention"):
        raise config.error("add_cross_attention", "true is not modelled", "allowed: false")
    shared = config.model_type == "gpt_bigcode" and config.flag("multi_query")
    shape = _even_heads(config, hidden, "n_head", "num_attention_heads", kv_heads=1 if shared else None)
    layer = _plain_layer(config, shape, _BIASED, "n_inner", "ffn_embed_dim")
    positions = config.dimension("n_positions", "n_ctx", "max_position_embeddings", "max_seq_len")
    layers = [layer] * config.layers("n_layer", "num_hidden_layers", "num_layers")
    table = (config.dimension("vocab_size") + positions) * hidden
    return decoder(
        config,
        name,
        layers,
        hidden=hidden,
        tied_default=True,
        final_norm=2 * hidden,
        embedding_parameters=table,
    )


def read_gpt_neox(config: Config, name: str) -> Network:
    """Return a GPT-NeoX or Pythia."""
    bias = config.flag("attention_bias")
    traits = replace(_BIASED, qkv_bias=bias, output_bias=bias)
    hidden = config.dimension("hidden_size")
    shape = _even_heads(config, hidden, "num_attention_heads")
    layer = _plain_layer(config, shape, traits, "intermediate_size")
    return decoder(config, name, [layer] * config.layers(), hidden=hidden, final_norm=2 * hidden)


def read_gptj(config: Config, name: str) -> Network:
    """Return a GPT-J: one norm, attention without biases, an LM head with one."""
    traits = replace(_BIASED, qkv_bias=False, output_bias=False, norms=1)
    hidden = config.dimension("n_embd", "hidden_size", "hidden_dim")
    shape = _even_heads(config, hidden, "n_head", "num_attention_heads")
    layer = _plain_layer(config, shape, traits, "n_inner", "ffn_embed_dim")
    return decoder(
        config,
        name,
        [layer] * config.layers("n_layer", "num_hidden_layers", "num_layers"),
        hidden=hidden,
        final_norm=2 * hidden,
        head_bias=True,
    )


def read_opt(config: Config, name: str) -> Network:
    """Return an OPT; the 350M model embeds in a narrower width and projects into and out of the layers."""
    bias = config.flag("enable_bias")
    affine = config.flag("layer_norm_elementwise_affine", default=True)
    hidden = config.dimension("hidden_size", "hidden_dim")
    traits = replace(_BIASED, qkv_bias=bias, output_bias=bias, mlp_bias=bias, norms=2 if affine else 0)
    shape = _even_heads(config, hidden, "num_attention_heads", "n_head")
    layer = _plain_layer(config, shape, traits, "ffn_dim", "ffn_embed_dim")
    stack = [layer] * config.layers("num_hidden_layers", "num_layers")
    narrow = config.optional("word_embed_proj_dim") or hidden
    if narrow != hidden:
        into = Projection("project_in", "other", narrow, hidden, "none")
        out = Projection("project_out", "other", hidden, narrow, "none")
        stack[0] = replace(layer, projections=(into, *layer.projections))
        stack[-1] = replace(stack[-1], projections=(*stack[-1].projections, out))
    before = config.flag("do_layer_norm_before")
    removed = config.flag("_remove_final_layer_norm")
    positions = config.dimension("max_position_embeddings", "max_seq_len") + 2
    network = decoder(
        config,
        name,
        stack,
        hidden=hidden,
        tied_default=True,
        final_norm=2 * hidden if before and affine and not removed else 0,
        embedding_parameters=config.dimension("vocab_size") * narrow + positions * hidden,
    )
    return replace(network, lm_head=replace(network.lm_head, inputs=narrow))


def read_bloom(config: Config, name: str) -> Network:
    """Return a BLOOM: a norm after the embedding, positions as attention bias."""
    hidden = config.dimension("hidden_size", "n_embed", "hidden_dim")
    shape = _even_heads(config, hidden, "n_head", "num_attention_heads")
    layer = _plain_layer(config, shape, _BIASED)
    layers = [layer] * config.layers("n_layer", "num_hidden_layers", "num_layers")
    return decoder(config, name, layers, hidden=hidden, tied_default=True, final_norm=4 * hidden)


def read_mpt(config: Config, name: str) -> Network:
    """Return an MPT without biases."""
    if not config.flag("no_bias", default=True):
        raise config.error("no_bias", "false is not modelled", "allowed: true")
    hidden = config.dimension("d_model", "hidden_size")
    attention_config = config.section("attn_config")
    kv_heads = attention_config.optional("kv_n_heads") if attention_config else None
    shape = _even_heads(config, hidden, "n_heads", "num_attention_heads", kv_heads=kv_heads)
    if (ratio := config.dimension("expansion_ratio")) != 4:
        raise config.error(
            "expansion_ratio",
            f"{ratio} is not modelled: transformers builds 4, vLLM what the key says",
            "allowed: 4",
        )
    intermediate = 4 * hidden
    layer = block(shape, Traits(gated=False), (plain_mlp(hidden, intermediate), None))
    layers = config.layers("n_layers", "num_hidden_layers")
    return decoder(config, name, [layer] * layers, hidden=hidden, tied_default=True)


def read_starcoder2(config: Config, name: str) -> Network:
    """Return a StarCoder2: GQA and a window with the biases and the feed-forward of GPT-2."""
    bias = config.flag("use_bias", default=True)
    traits = replace(_BIASED, qkv_bias=bias, output_bias=bias, mlp_bias=bias, tied=True)
    windows = layer_windows(config, config.layers(), config.optional("sliding_window", least=0) or None)
    return block_decoder(config, name, traits, shape=heads(config), windows=windows)


def read_falcon(config: Config, name: str) -> Network:
    """Return a Falcon (model types falcon, RefinedWeb, RefinedWebModel)."""
    hidden = config.dimension("hidden_size")
    query_heads = config.dimension("num_attention_heads", "n_head", most=100_000)
    head_dim = config.divisible("hidden_size", hidden, "num_attention_heads", query_heads)
    config.unused("num_kv_heads", "n_head_kv", "num_ln_in_parallel_attn")
    new = config.flag("new_decoder_architecture", default=config.model_type == "RefinedWeb")
    kv_heads = query_heads
    if new:
        kv_heads = config.dimension("num_kv_heads", "n_head_kv")
        config.divisible("num_attention_heads", query_heads, "num_kv_heads", kv_heads)
    elif config.flag("multi_query", default=True):
        kv_heads = 1
    bias = config.flag("bias")
    parallel = config.flag("parallel_attn", default=True)
    first = config.optional("num_ln_in_parallel_attn") or (2 if new else 1)
    if new is not parallel and (new or first == 2):
        raise config.error(
            "num_ln_in_parallel_attn",
            f"{first} does not run: the class has two norms before attention and feed-forward where both are parallel, and uses "
            "them where new_decoder_architecture is true",
        )
    norms = 2 if first == 2 or not parallel else 1
    traits = Traits(qkv_bias=bias, output_bias=bias, gated=False, norms=norms, norm_bias=True)
    shape = Heads(hidden, query_heads, kv_heads, head_dim, head_dim)
    intermediate = config.optional("ffn_hidden_size") or 4 * hidden
    layer = block(shape, traits, (plain_mlp(hidden, intermediate, bias=bias), None))
    layers = [layer] * config.layers("num_hidden_layers", "n_layer")
    return decoder(config, name, layers, hidden=hidden, tied_default=True, final_norm=2 * hidden)


def read_dbrx(config: Config, name: str) -> Network:
    """Return a DBRX: sixteen experts, four per token, norms without biases."""
    hidden = config.dimension("d_model")
    query_heads = config.dimension("n_heads", most=100_000)
    head_dim = config.divisible("d_model", hidden, "n_heads", query_heads)
    attending, feeding = config.needed_section("attn_config"), config.needed_section("ffn_config")
    kv_heads = attending.dimension("kv_n_heads")
    config.divisible("n_heads", query_heads, "attn_config.kv_n_heads", kv_heads)
    part = mixture(feeding, hidden, "ffn_hidden_size", experts="moe_num_experts", chosen="moe_top_k")
    layer = block(Heads(hidden, query_heads, kv_heads, head_dim, head_dim), Traits(), part)
    return decoder(config, name, [layer] * config.layers("n_layers"), hidden=hidden)


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
    if config.flag("qk_layernorm"):
        raise config.error("qk_layernorm", "true is not modelled", "allowed: false")
    layers = [layer] * config.layers("num_hidden_layers", "n_layer")
    return decoder(config, name, layers, hidden=hidden, final_norm=2 * hidden, head_bias=True)


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
    bias = config.flag("attention_bias")
    shape = heads(config)
    layers = config.layers()
    part = mixtral_mixture(config, shape.hidden_size)
    traits = Traits(qkv_bias=bias, output_bias=bias, norm_bias=True)
    windows = layer_windows(config, layers, config.optional("sliding_window", least=0) or None)
    scored = config.flag("lm_head_bias")
    return block_decoder(
        config, name, traits, [part] * layers, shape=shape, windows=windows, head_bias=scored
    )


def read_gpt_oss(config: Config, name: str) -> Network:
    """Return a gpt-oss; every second layer slides, beginning with the first."""
    bias = config.flag("attention_bias")
    shape = heads(config, default_head_dim=64)
    layers = config.layers()
    part = mixture(
        config,
        shape.hidden_size,
        "intermediate_size",
        experts=("num_local_experts", "num_experts"),
        chosen=("num_experts_per_tok", "experts_per_token"),
        router_bias=True,
        expert_bias=True,
    )
    window = config.dimension("sliding_window")
    windows = layer_windows(config, layers, window, default=[i % 2 == 0 for i in range(layers)])
    traits = Traits(qkv_bias=bias, output_bias=bias, sinks=True)
    return block_decoder(config, name, traits, [part] * layers, shape=shape, windows=windows)
