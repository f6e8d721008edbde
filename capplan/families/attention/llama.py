"""Llama, and decoders that differ from it in norms, windows, widths, searched layers or a picture tower: OLMo, Command R, EXAONE, Llama 4, Nemotron NAS."""

from collections.abc import Sequence
from dataclasses import replace

from capplan.families.config import Config
from capplan.families.parts.blocks import (
    Heads,
    attention,
    attention_output,
    decoder,
    gated_mlp,
    heads,
    qkv,
    with_tower,
)
from capplan.families.parts.stacks import (
    Traits,
    block,
    block_decoder,
    dense_mlp,
    layer_windows,
    mixtral_mixture,
    mixture,
    once_each,
    parts_after,
    with_biases,
)
from capplan.families.parts.towers import linear
from capplan.families.parts.vision import (
    image_positions,
    llama4_vision,
    mllama_vision,
    muse_vision,
)
from capplan.model.network import Layer, Mixer, Network, Projection


def _biased(config: Config) -> Traits:
    return replace(with_biases(config), mlp_bias=config.flag("mlp_bias"))


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
    """Return an Apertus: head norms, no gate, an activation with two parameters in each layer, and in 1.5 perhaps a narrower head."""
    traits = replace(_biased(config), gated=False, head_norms=True)
    network = block_decoder(config, name, traits)
    layer = replace(network.layers[0], norm_parameters=network.layers[0].norm_parameters + 2)
    scored = config.optional("output_vocab_size") or network.vocabulary_size
    if network.tied_embeddings and scored != network.vocabulary_size:
        raise config.error("output_vocab_size", f"{scored} with a tied head is not modelled", "allowed: null")
    head = replace(network.lm_head, outputs=scored)
    return replace(network, layers=(layer,) * len(network.layers), lm_head=head)


def read_exaone(config: Config, name: str) -> Network:
    """Return an EXAONE 3 or 3.5: a Llama whose depth is `num_layers`."""
    shape, traits = heads(config), _biased(config)
    part = dense_mlp(config, shape, traits)
    layers = config.layers("num_layers", "num_hidden_layers")
    return block_decoder(config, name, traits, [part] * layers, shape=shape)


def read_hyperclovax(config: Config, name: str) -> Network:
    """Return a HyperCLOVA X: a Granite with a norm behind each block too."""
    norms = 4 if config.flag("use_post_norm") else 2
    return block_decoder(config, name, replace(_biased(config), norms=norms))


def read_nanochat(config: Config, name: str) -> Network:
    """Return a nanochat: norms without parameters, an ungated feed-forward of squared ReLU."""
    traits = with_biases(config, Traits(gated=False, norms=0, final_norm=False))
    return block_decoder(config, name, traits)


def read_minicpm(config: Config, name: str) -> Network:
    """Return a MiniCPM 1 or 2: a Llama with scaled residuals and a tied LM head."""
    config.unused("scale_emb", "dim_model_base", "scale_depth", "mup_denominator", "sparse_config")
    return block_decoder(config, name, Traits(tied=True))


def read_internlm(config: Config, name: str) -> Network:
    """Return an InternLM: Llama with a different bias key."""
    bias = config.flag("bias")
    return block_decoder(config, name, Traits(qkv_bias=bias, output_bias=bias))


def read_smollm3(config: Config, name: str) -> Network:
    """Return a SmolLM3: Llama where every fourth layer has no positions."""
    traits = replace(_biased(config), tied=True)
    layers = config.layers()
    config.unused("sliding_window", "use_sliding_window", "max_window_layers")
    every = config.optional("no_rope_layer_interval") or 4
    listed = config.whole_numbers("no_rope_layers")
    rotary = listed if listed is not None else tuple((i + 1) % every for i in range(layers))
    window = config.optional("sliding_window", least=0) if config.flag("use_sliding_window") else None
    if config.has("layer_types"):
        window = config.optional("sliding_window", least=0)
    windows = layer_windows(config, layers, window, default=[window is not None and not r for r in rotary])
    return block_decoder(config, name, traits, windows=windows)


def read_seed_oss(config: Config, name: str) -> Network:
    """Return a Seed-OSS: biases on queries, keys and values, a head width that does not follow from the hidden size."""
    traits = Traits(
        qkv_bias=config.flag("attention_bias"),
        output_bias=config.flag("attention_out_bias"),
        mlp_bias=config.flag("mlp_bias"),
    )
    return block_decoder(config, name, traits, shape=heads(config, default_head_dim=128))


def read_internlm3(config: Config, name: str) -> Network:
    """Return an InternLM 3: Llama with one key for the biases of attention and another for the rest."""
    traits = Traits(
        qkv_bias=config.flag("attention_bias", "qkv_bias"),
        output_bias=config.flag("attention_bias", "bias"),
        mlp_bias=config.flag("mlp_bias", "bias"),
    )
    return block_decoder(config, name, traits)


def read_stablelm(config: Config, name: str) -> Network:
    """Return a StableLM: layer norms with biases, one norm where attention and feed-forward run side by side."""
    if config.flag("qk_layernorm"):
        raise config.error("qk_layernorm", "true is not modelled", "allowed: false")
    norms = 1 if config.flag("use_parallel_residual") else 2
    traits = Traits(qkv_bias=config.flag("use_qkv_bias"), norms=norms, norm_bias=True)
    return block_decoder(config, name, traits)


def read_plain(config: Config, name: str) -> Network:
    """Return an Arcee (AFM) or Nemotron (Minitron): Llama with an ungated feed-forward of squared ReLU."""
    traits = replace(_biased(config), gated=False, norm_bias=config.model_type == "nemotron")
    return block_decoder(config, name, traits)


def read_granite_moe(config: Config, name: str) -> Network:
    """Return a Granite with experts in every layer; the shared variant has a dense part next to them."""
    traits, shape = with_biases(config), heads(config)
    part = mixtral_mixture(config, shape.hidden_size, shared=config.count("shared_intermediate_size"))
    return block_decoder(config, name, traits, [part] * config.layers(), shape=shape)


def read_olmo(config: Config, name: str) -> Network:
    """Return an OLMo 1, whose norms have no parameters."""
    return block_decoder(config, name, with_biases(config, Traits(norms=0, final_norm=False)))


def read_olmo2(config: Config, name: str) -> Network:
    """Return an OLMo 2 or 3: norms after attention and feed-forward, and over all queries and keys."""
    traits = with_biases(config, Traits(qk_norm_over_all_heads=True))
    layers = config.layers()
    windows: tuple[int | None, ...] = (None,) * layers
    if config.model_type == "olmo3":
        default = [(i + 1) % 4 != 0 for i in range(layers)]
        windows = layer_windows(config, layers, config.dimension("sliding_window"), default=default)
    return block_decoder(config, name, traits, windows=windows)


def read_olmoe(config: Config, name: str) -> Network:
    """Return an OLMoE: experts in every layer."""
    traits = with_biases(config, Traits(qk_norm_over_all_heads=True))
    shape = heads(config)
    part = mixture(config, shape.hidden_size, "intermediate_size")
    return block_decoder(config, name, traits, [part] * config.layers(), shape=shape)


def read_cohere(config: Config, name: str) -> Network:
    """Return a Command R; the larger ones have a norm on each head of queries and keys."""
    traits = with_biases(config, Traits(norms=1, tied=True))
    shape = heads(config)
    network = block_decoder(config, name, traits, shape=shape)
    if not config.flag("use_qk_norm"):
        return network
    extra = (shape.query_heads + shape.kv_heads) * shape.head_dim
    layer = replace(network.layers[0], norm_parameters=network.layers[0].norm_parameters + extra)
    return replace(network, layers=(layer,) * len(network.layers))


def read_cohere2(config: Config, name: str) -> Network:
    """Return a Command R7B or Command A: three sliding layers, then a full one."""
    traits = with_biases(config, Traits(norms=1, tied=True))
    layers = config.layers()
    pattern = config.optional("sliding_window_pattern", "_sliding_window_pattern") or 4
    default = [(i + 1) % pattern != 0 for i in range(layers)]
    windows = layer_windows(config, layers, config.dimension("sliding_window"), default=default)
    return block_decoder(config, name, traits, windows=windows)


def read_cohere2_moe(config: Config, name: str) -> Network:
    """Return a Command A with experts: dense layers first, windows as in the dense models."""
    shape = heads(config)
    layers = config.layers()
    traits = with_biases(config, Traits(norms=1, tied=True))
    width = config.dimension("intermediate_size")
    shared = config.count("num_shared_experts")
    sparse = mixture(config, shape.hidden_size, width, shared=shared * width)
    config.unused("prefix_dense_intermediate_size", "prefix_dense_sliding_window_pattern", "rms_norm_eps")
    config.unused("shared_expert_combination_strategy", "expert_selection_fn", "sliding_window_pattern")
    first = config.count("first_k_dense_replace")
    dense_width = config.optional("prefix_dense_intermediate_size") or width
    dense = gated_mlp(shape.hidden_size, dense_width), None
    every = config.optional("sliding_window_pattern") or 4
    prefix = config.optional("prefix_dense_sliding_window_pattern") or 1
    default = [(i + 1) % prefix != 0 if i < first else (i - first + 1) % every != 0 for i in range(layers)]
    windows = layer_windows(config, layers, config.optional("sliding_window"), default=default)
    parts = parts_after(config, dense, sparse, layers, first)
    return block_decoder(config, name, traits, parts, shape=shape, windows=windows)


def _slides(config: Config, layers: int) -> list[bool]:
    """Return which layers slide, from a pattern such as "LLLG" or the number of layers in one round."""
    key, pattern = config.first_present("sliding_window_pattern")
    if isinstance(pattern, str):
        if not pattern or set(pattern) - {"L", "G"}:
            raise config.error(
                key, f"{pattern!r} is not a pattern", "allowed: letters L (local) and G (global), as LLLG"
            )
        return [pattern[i % len(pattern)] == "L" for i in range(layers)]
    every = config.optional(key) or 4
    return [(i + 1) % every != 0 for i in range(layers)]


def read_exaone4(config: Config, name: str) -> Network:
    """Return an EXAONE 4: norms after attention and feed-forward, head norms, windows in the larger model."""
    layers = config.layers()
    window = config.optional("sliding_window", least=0) or None
    windows: tuple[int | None, ...] = (None,) * layers
    if window:
        windows = layer_windows(config, layers, window, default=_slides(config, layers))
    return block_decoder(config, name, Traits(head_norms=True), windows=windows)


def read_exaone_moe(config: Config, name: str) -> Network:
    """Return a K-EXAONE: norms before attention and feed-forward, shared and routed experts."""
    shape = heads(config)
    layers = config.layers()
    width = config.dimension("moe_intermediate_size")
    sparse = mixture(config, shape.hidden_size, width, shared=config.count("num_shared_experts") * width)
    traits = Traits(head_norms=True)
    dense, first = dense_mlp(config, shape, traits), config.count("first_k_dense_replace")
    parts = parts_after(config, dense, sparse, layers, first)
    window = config.optional("sliding_window", least=0) or None
    windows = layer_windows(config, layers, window, default=_slides(config, layers)) if window else None
    return block_decoder(config, name, traits, parts, shape=shape, windows=windows)


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
    traits = with_biases(config)
    shape = heads(config, default_head_dim=128)
    layers = config.layers()
    width = config.dimension("intermediate_size")
    mixed = mixture(config, shape.hidden_size, width, experts="num_local_experts", shared=width)
    step = config.optional("interleave_moe_layer_step") or 1
    listed = config.whole_numbers("moe_layers")  # those that the model has not are none
    mixed_layers = set(range(step - 1, layers, step)) if listed is None else {*listed} & {*range(layers)}
    config.unused("intermediate_size_mlp", "interleave_moe_layer_step")
    dense = dense_mlp(config, shape, traits, "intermediate_size_mlp") if len(mixed_layers) < layers else mixed
    chunk = config.optional("attention_chunk_size") or 8192
    stack = once_each(
        lambda part, chunked: block(shape, traits, part, window=chunk if chunked else None, chunked=chunked),
        (
            (mixed if i in mixed_layers else dense, chunked)
            for i, chunked in enumerate(_chunked(config, layers))
        ),
    )
    tied = config.flag("tie_word_embeddings")  # the text model of the class shares them by itself
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
    layers, bias = config.layers(), config.flag("attention_bias")
    traits = Traits(qkv_bias=bias, output_bias=bias, norms=4, output_gate="channels")
    config.unused("layer_scale_init_value")
    windows = layer_windows(
        config, layers, config.optional("sliding_window"), default=[i % 4 != 3 for i in range(layers)]
    )
    return block_decoder(config, name, traits, shape=heads(config, default_head_dim=128), windows=windows)


def _feed_forward_width(ratio: float, hidden: int) -> int:
    """Return two thirds of four times the width times the ratio, rounded up to a multiple of 256."""
    width = int(2 * ratio * hidden / 3)
    return -(-width // 256) * 256


def _block(config: Config, entry: Config, hidden: int, query_heads: int, head_dim: int) -> Layer:
    """Return one layer: attention with its own head groups, a matrix, or nothing; the same for the feed-forward."""
    mixers: tuple[Mixer, ...] = ()
    matmuls: tuple[Projection, ...] = ()
    norms = 0
    mixing, feeding = entry.needed_section("attention"), entry.needed_section("ffn")
    if not mixing.flag("no_op"):
        norms += hidden
        if mixing.flag("replace_with_linear"):
            matmuls += (Projection("linear_attention", "attention", hidden, hidden, "columns"),)
        else:
            group = mixing.dimension("n_heads_in_group")
            kv_heads = mixing.divisible("n_heads_in_group", query_heads, "n_heads_in_group", group)
            shape = replace(
                heads(config, hidden=hidden), kv_heads=kv_heads, head_dim=head_dim, value_head_dim=head_dim
            )
            window = mixing.optional("window_length")
            mixers = (attention(shape, window),)
            matmuls += (qkv(shape), attention_output(shape))
    if not feeding.flag("no_op"):
        norms += hidden
        if feeding.flag("replace_with_linear"):
            matmuls += (Projection("linear_ffn", "ffn", hidden, hidden, "columns"),)
        else:
            width = feeding.optional("intermediate_size") or _feed_forward_width(
                feeding.ratio("ffn_mult"), hidden
            )
            matmuls += gated_mlp(hidden, width)
    return Layer(mixers, matmuls, None, norms)


def read_nemotron_nas(config: Config, name: str) -> Network:
    """Return a Nemotron NAS, layer by layer."""
    entries: Sequence[object] | None = config.items("block_configs", length=config.layers())
    if entries is None:
        return read_decilm(config, name)
    hidden = config.dimension("hidden_size")
    query_heads = config.dimension("num_attention_heads")
    head_dim = config.optional("head_dim") or config.divisible(
        "hidden_size", hidden, "num_attention_heads", query_heads
    )
    stack = []
    for i, entry in enumerate(entries[: config.layers()]):
        if not isinstance(entry, dict):
            raise config.error(
                f"block_configs[{i}]", "is not an object", "allowed: {attention: ..., ffn: ...}"
            )
        section = Config(entry, config.place, f"{config.section_path}block_configs[{i}].", {}, config.notes)
        stack.append(_block(config, section, hidden, query_heads, head_dim))
    return decoder(config, name, stack, hidden=hidden)


def read_decilm(config: Config, name: str) -> Network:
    """Return a DeciLM-7B: a Llama with a different number of key-value heads in each layer."""
    layers = config.layers()
    kv_heads = config.per_layer("num_key_value_heads_per_layer", layers=layers)
    usual = heads(config)
    part = dense_mlp(config, usual, Traits())
    stack = []
    for count in kv_heads:
        config.divisible("num_attention_heads", usual.query_heads, "num_key_value_heads_per_layer", count)
        stack.append(block(replace(usual, kv_heads=count), Traits(), part))
    return decoder(config, name, stack, hidden=usual.hidden_size)
