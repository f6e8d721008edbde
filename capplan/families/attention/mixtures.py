"""Decoders with softmax attention and mixtures of experts, and their dense relatives: Qwen, GLM, ERNIE, Hunyuan, MiMo, MiniMax M2, Step, Trinity, Ling."""

from dataclasses import replace
from typing import Literal

from capplan.families.attention.deepseek import reuses_index
from capplan.families.config import Config
from capplan.families.parts.blocks import (
    Heads,
    Part,
    attention,
    attention_output,
    decoder,
    decoder_layer,
    gated_mlp,
    heads,
    hyper_connections,
    latent_attention,
    routed,
    router,
    stream_head,
    with_tower,
    with_vision,
)
from capplan.families.parts.stacks import (
    Traits,
    block,
    block_decoder,
    deepseek_mixture,
    dense_mlp,
    layer_windows,
    mixtral_mixture,
    mixture,
    once_each,
    parts_after,
    parts_by_layer,
    routed_by,
    with_biases,
    with_next_token_layers,
)
from capplan.families.parts.towers import encoder_block, linear
from capplan.families.parts.vision import (
    ernie_vision,
    minimax_vision,
    molmo2_adapter,
    molmo2_vision,
    qwen2_5_vision,
    qwen2_vision,
    qwen3_vision,
    step_vision,
)
from capplan.model.network import Attention, Layer, Network, Projection


def read_afmoe(config: Config, name: str) -> Network:
    """Return a Trinity: gated attention with head norms, windows in three of four layers; the balancing bias of the router counts as a parameter there."""
    shape = heads(config)
    layers = config.layers()
    traits = with_biases(config, Traits(norms=4, head_norms=True, output_gate="channels"))
    width = config.dimension("moe_intermediate_size")
    sparse = mixture(
        config, shape.hidden_size, width, shared=config.count("num_shared_experts") * width, router_bias=True
    )
    first = config.count("num_dense_layers")
    parts = parts_by_layer(config, shape, traits, sparse, [i >= first for i in range(layers)])
    every = config.dimension("global_attn_every_n_layers")
    config.unused("route_scale", "mup_enabled")
    default = [(i + 1) % every != 0 for i in range(layers)]
    windows = layer_windows(config, layers, config.optional("sliding_window"), default=default)
    return block_decoder(config, name, traits, parts, shape=shape, windows=windows)


def read_bailing(config: Config, name: str) -> Network:
    """Return a Ling or Ring; version 2 has a norm on each head of queries and keys."""
    shape = heads(config)
    layers = config.layers()
    traits = Traits(
        qkv_bias=config.flag("use_qkv_bias"),
        output_bias=config.flag("use_bias"),
        head_norms=config.flag("use_qk_norm", default=config.model_type == "bailing_moe_v2"),
    )
    width = config.dimension("moe_intermediate_size")
    shared_width = config.optional("moe_shared_expert_intermediate_size") or width
    sparse = mixture(
        config, shape.hidden_size, width, shared=config.count("num_shared_experts") * shared_width
    )
    config.unused("intermediate_size", "norm_head", "norm_softmax", "moe_router_enable_expert_bias")
    first = config.count("first_k_dense_replace")
    dense = dense_mlp(config, shape, traits) if first else sparse
    parts = parts_after(config, dense, sparse, layers, first)
    return block_decoder(config, name, traits, parts, shape=shape)


def _windows_in_use(config: Config, layers: int) -> tuple[int | None, ...]:
    """Return the window of each layer: use_sliding_window switches windows on, max_window_layers is the first layer with one."""
    config.unused("sliding_window", "max_window_layers", "layer_types")
    window = None
    if config.flag("use_sliding_window"):
        window = config.optional("sliding_window", least=0)
    if not window:
        return (None,) * layers
    first = config.count("max_window_layers", default=28)
    return layer_windows(config, layers, window, default=[i >= first for i in range(layers)])


def read_qwen2(config: Config, name: str) -> Network:
    """Return a Qwen 2 or 2.5: biases on queries, keys and values."""
    traits = Traits(qkv_bias=config.flag("qkv_bias", default=True))
    return block_decoder(config, name, traits, windows=_windows_in_use(config, config.layers()))


def _normed_heads(config: Config) -> Traits:
    return with_biases(config, Traits(head_norms=True))


def read_qwen3(config: Config, name: str) -> Network:
    """Return a Qwen 3: a norm on each head of queries and keys, heads of 128 whatever the width."""
    shape = heads(config, default_head_dim=128)
    windows = _windows_in_use(config, config.layers())
    return block_decoder(config, name, _normed_heads(config), shape=shape, windows=windows)


def _qwen_parts(config: Config, shape: Heads, traits: Traits, layers: int, shared: int | None) -> list[Part]:
    dense_layers = set(config.whole_numbers("mlp_only_layers") or ())
    step = config.dimension("decoder_sparse_step") if config.has("decoder_sparse_step") else 1
    sparse = mixture(
        config,
        shape.hidden_size,
        "moe_intermediate_size",
        experts=("num_experts", "num_local_experts"),
        shared=shared or 0,
        shared_gate=shared is not None,
    )
    is_sparse = [i not in dense_layers and (i + 1) % step == 0 for i in range(layers)]
    return parts_by_layer(config, shape, traits, sparse, is_sparse)


def read_qwen2_moe(config: Config, name: str) -> Network:
    """Return a Qwen 1.5 or 2 with experts: a gated shared expert next to them."""
    shape = heads(config)
    layers = config.layers()
    traits = Traits(qkv_bias=config.flag("qkv_bias"))
    parts = _qwen_parts(config, shape, traits, layers, config.count("shared_expert_intermediate_size"))
    return block_decoder(config, name, traits, parts, shape=shape, windows=_windows_in_use(config, layers))


def read_qwen3_moe(config: Config, name: str) -> Network:
    """Return a Qwen 3 with experts, none of them shared."""
    shape = heads(config)
    layers = config.layers()
    traits = _normed_heads(config)
    parts = _qwen_parts(config, shape, traits, layers, None)
    return block_decoder(config, name, traits, parts, shape=shape, windows=_windows_in_use(config, layers))


def read_kolibri1(config: Config, name: str) -> Network:
    """Return a Kolibri 1: norms before and after both blocks, four sliding layers and a full one, a shared expert."""
    shape, layers = heads(config), config.layers()
    part = mixture(
        config,
        shape.hidden_size,
        config.dimension("moe_intermediate_size"),
        shared=config.dimension("shared_expert_intermediate_size"),
    )
    slides = [bool((index + 1) % 5) for index in range(layers)]
    windows = layer_windows(config, layers, config.optional("sliding_window"), default=slides)
    traits = Traits(head_norms=True, norms=4)
    return block_decoder(config, name, traits, [part] * layers, shape=shape, windows=windows)


def read_mellum(config: Config, name: str) -> Network:
    """Return a Mellum 2: a Qwen 3 with experts, some layers of which slide."""
    shape, layers, traits = heads(config), config.layers(), _normed_heads(config)
    if config.count("num_nextn_predict_layers"):
        raise config.error("num_nextn_predict_layers", "a layer that predicts further tokens is not modelled")
    width = config.dimension("moe_intermediate_size")
    sparse = mixture(config, shape.hidden_size, width)
    config.unused("intermediate_size", "mtp_layer_types", "mtp_mlp_layer_types", "sliding_window")
    dense = dense_mlp(config, shape, traits) if "dense" in (config.items("mlp_layer_types") or ()) else sparse
    parts = parts_after(config, dense, sparse, layers, 0)
    window = config.optional("sliding_window")
    windows = layer_windows(config, layers, window, default=[False] * layers)
    return block_decoder(config, name, traits, parts, shape=shape, windows=windows)


def read_laguna(config: Config, name: str) -> Network:
    """Return a Laguna: gated attention whose layers differ in heads and windows, then shared and routed experts."""
    shape, layers = heads(config), config.layers()
    bias, hidden = config.flag("attention_bias"), shape.hidden_size
    _, gating = config.first_present("gating")
    if gating not in (True, "per-head", "per-element", False):
        raise config.error("gating", f"{gating!r} is not known", "allowed: true, per-head, per-element")
    gate: Literal["heads", "channels"] = "heads" if gating in (True, "per-head") else "channels"
    traits = Traits(qkv_bias=bias, output_bias=bias, head_norms=True, output_gate=gate)
    width = config.dimension("moe_intermediate_size")
    shared = config.dimension("shared_expert_intermediate_size")
    sparse = mixture(config, hidden, width, shared=shared, router_bias=True)
    parts = parts_after(config, dense_mlp(config, shape, traits), sparse, layers, 1)
    windows = layer_windows(config, layers, config.optional("sliding_window"), default=[False] * layers)
    counts = config.per_layer("num_attention_heads_per_layer", layers=layers, default=shape.query_heads)
    for count in counts:
        config.divisible("num_attention_heads_per_layer", count, "num_key_value_heads", shape.kv_heads)
    stack = once_each(
        lambda count, part, window: block(replace(shape, query_heads=count), traits, part, window=window),
        zip(counts, parts, windows, strict=True),
    )
    return decoder(config, name, stack, hidden=hidden)


def read_jetmoe(config: Config, name: str) -> Network:
    """Return a JetMoE: queries and output are those of the experts that a router chooses, as are the feed-forwards.

    An expert of attention has the two matrices of a feed-forward without a gate, so each block is two layers here.
    """
    hidden, count = config.dimension("hidden_size"), config.layers()
    kv_heads, width = config.dimension("num_key_value_heads"), config.dimension("kv_channels")
    experts, chosen = config.dimension("num_local_experts"), config.dimension("num_experts_per_tok")
    config.unused("num_attention_heads")
    shape = Heads(hidden, kv_heads * chosen, kv_heads, width, width)
    keys_and_values = Projection(
        "kv", "attention", hidden, 2 * kv_heads * width, "columns", kv_outputs=2 * kv_heads * width, kv_heads=kv_heads
    )  # fmt: skip
    attending = routed(config, experts, chosen, hidden, kv_heads * width, gated=False)
    first = decoder_layer(
        attention(shape), (keys_and_values, router(hidden, experts)), ((), attending), 2 * hidden
    )
    matmuls, feeding = mixtral_mixture(config, hidden)
    second = Layer((), matmuls, feeding, 2 * hidden)
    return decoder(config, name, [first, second] * count, hidden=hidden, tied_default=True)


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


def read_molmo2_text(config: Config, name: str) -> Network:
    """Return the text half of a Molmo 2: a Qwen 3 or an OLMo with embeddings of more tokens than it scores."""
    kind = config.text("qk_norm_type", default="qwen3")
    traits = Traits(
        qkv_bias=config.flag("attention_bias"),
        head_norms=kind == "qwen3",
        qk_norm_over_all_heads=kind != "qwen3",
    )
    config.unused("norm_after", "rope_scaling_layers")
    network = block_decoder(config, name, traits)
    more = config.count("additional_vocab_size", default=128)
    if more and network.tied_embeddings:
        raise config.error("tie_word_embeddings", "true is not modelled", "allowed: false")
    embedded = network.embedding_parameters + more * network.hidden_size
    return replace(network, embedding_parameters=embedded)


def read_molmo2(config: Config, name: str) -> Network:
    """Return a Molmo 2: its text half, its tower up to the last layer that is read, and the adapter that pools patches."""
    network = read_molmo2_text(config.needed_section("text_config"), name)
    vision = config.needed_section("vision_config", "vit_config")
    adapter = config.needed_section("adapter_config")
    layers = vision.layers()
    read = [
        one for one in adapter.items("vision_feature_layer", "vit_layers") or (-3, -9) if isinstance(one, int)
    ]
    if "vit_config" in config.values and "vision_config" not in config.values:
        layers = max(one % layers for one in read) + 1
    size = molmo2_vision(vision, layers) + molmo2_adapter(adapter, len(read), network.hidden_size)
    return with_vision(network, config, size)


def read_glm(config: Config, name: str) -> Network:
    """Return a dense GLM-4 (9B, and the later 32B with norms after attention and feed-forward too); GLM-OCR has no biases."""
    older = config.model_type == "glm"
    bias = config.model_type != "glm_ocr_text" and config.flag("attention_bias", default=True)
    norms = 2 if older else 4
    shape = heads(config)
    return block_decoder(config, name, Traits(qkv_bias=bias, norms=norms), shape=shape)


def read_glm4_moe(config: Config, name: str) -> Network:
    """Return a GLM-4.5 or 4.6: dense layers first, then shared and routed experts."""
    shape = heads(config)
    layers = config.layers()
    traits = Traits(
        qkv_bias=config.flag("attention_bias"),
        head_norms=config.flag("use_qk_norm", default=config.model_type == "sarvam_moe"),
    )
    sparse = deepseek_mixture(config, shape.hidden_size, shared_experts=1)
    first = config.count("first_k_dense_replace", default=0 if config.model_type == "solar_open" else 1)
    dense = dense_mlp(config, shape, traits) if first else sparse
    parts = parts_after(config, dense, sparse, layers, first)
    network = block_decoder(config, name, traits, parts, shape=shape)
    return with_next_token_layers(config, network, network.layers[-1])


def read_chatglm(config: Config, name: str) -> Network:
    """Return a ChatGLM: a few shared key-value heads, a gated feed-forward, a padded vocabulary."""
    if not config.flag("rmsnorm", default=True):
        raise config.error("rmsnorm", "false is not modelled", "allowed: true")
    hidden = config.dimension("hidden_size")
    query_heads = config.dimension("num_attention_heads", most=100_000)
    head_dim = config.optional("kv_channels") or config.divisible(
        "hidden_size", hidden, "num_attention_heads", query_heads
    )
    shared = config.flag("multi_query_attention")
    kv_heads = config.dimension("multi_query_group_num") if shared else query_heads
    config.divisible("num_attention_heads", query_heads, "multi_query_group_num", kv_heads)
    bias = config.flag("add_bias_linear")
    traits = Traits(qkv_bias=bias or config.flag("add_qkv_bias"), output_bias=bias, mlp_bias=bias)
    shape = Heads(hidden, query_heads, kv_heads, head_dim, head_dim)
    layer = block(shape, traits, dense_mlp(config, shape, traits, "ffn_hidden_size"))
    layers = [layer] * config.layers("num_layers", "num_hidden_layers")
    norm = hidden if config.flag("post_layer_norm", default=True) else 0
    rows = config.dimension("padded_vocab_size", "vocab_size")
    return decoder(config, name, layers, hidden=hidden, final_norm=norm, vocabulary=rows)


def _ernie_traits(config: Config) -> Traits:
    bias = config.flag("use_bias")
    return Traits(qkv_bias=bias, output_bias=bias, mlp_bias=bias, tied=True)


def read_ernie(config: Config, name: str) -> Network:
    """Return a dense ERNIE 4.5."""
    return block_decoder(config, name, _ernie_traits(config), shape=heads(config, default_head_dim=128))


def read_ernie_moe(config: Config, name: str) -> Network:
    """Return an ERNIE 4.5 with experts; the balancing bias of the router counts as a parameter there."""
    shape = heads(config)
    layers = config.layers()
    width = config.dimension("moe_intermediate_size")
    traits = _ernie_traits(config)
    experts = config.dimension("moe_num_experts")
    shared = _shared_experts(config, shape.hidden_size, width, bias=traits.mlp_bias)
    matmuls = (router(shape.hidden_size, experts, bias=True), *shared)
    sparse: Part = matmuls, routed(config, experts, config.dimension("moe_k"), shape.hidden_size, width)
    first = config.count("moe_layer_start_index")
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
    traits = _ernie_traits(config)
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


def read_hunyuan_dense(config: Config, name: str) -> Network:
    """Return a dense Hunyuan: a norm on each head of queries and keys."""
    return block_decoder(config, name, _normed_heads(config))


def read_hunyuan_moe(config: Config, name: str) -> Network:
    """Return a Hunyuan with experts; their counts may be given layer by layer."""
    shape = heads(config)
    layers = config.layers()
    experts = config.per_layer("num_experts", layers=layers)
    chosen = config.per_layer("moe_topk", "num_experts_per_tok", layers=layers)
    shared = config.per_layer("num_shared_expert", layers=layers, default=1)
    width = config.dimension("intermediate_size")
    widths = config.per_layer("moe_intermediate_size", layers=layers, default=width)
    parts = once_each(
        lambda count, top, beside, expert_width: mixture(
            config, shape.hidden_size, expert_width, experts=count, chosen=top, shared=beside * width
        ),
        zip(experts, chosen, shared, widths, strict=True),
    )
    return block_decoder(config, name, _normed_heads(config), parts, shape=shape)


def read_hy3(config: Config, name: str) -> Network:
    """Return a Hy3: one dense layer, then shared and routed experts."""
    shape = heads(config)
    layers = config.layers()
    width = config.dimension("moe_intermediate_size", "expert_hidden_dim")
    # the class gives shared experts of no width that of a dense layer
    shared = config.count("num_shared_experts") * width or config.dimension("intermediate_size")
    sparse = mixture(config, shape.hidden_size, width, shared=shared)
    traits = _normed_heads(config)
    dense = dense_mlp(config, shape, traits)
    parts = parts_after(config, dense, sparse, layers, config.count("first_k_dense_replace", default=1))
    return block_decoder(config, name, traits, parts, shape=shape)


def read_hy4(config: Config, name: str) -> Network:
    """Return a Hy 4."""
    hidden, count = config.dimension("hidden_size"), config.layers()
    streams = config.dimension("hc_mult")
    bias = config.flag("attention_bias")
    config.unused("layer_types")
    dense = gated_mlp(hidden, config.dimension("intermediate_size")), None
    parts = parts_after(config, dense, deepseek_mixture(config, hidden), count, min(1, count))
    mixes, mixed = hyper_connections(hidden, streams, 2 * streams, scales=2)
    reuses = [bool(index and (index - 1) % 4) for index in range(count)]
    if config.has("indexer_types"):
        reuses = reuses_index(config, count)
    layers = []
    for (matmuls, experts), reused in zip(parts, reuses, strict=True):
        mixer, attending, norms = latent_attention(
            config, hidden, attention_bias=bias, indexer=True, index_cached=not reused
        )
        gate = Projection("gate", "attention", hidden, mixer.query_heads * mixer.value_head_dim, "columns")
        vectors = 2 * hidden + norms + mixer.query_heads + mixed
        layer = decoder_layer(mixer, (*attending, gate), ((*mixes, *matmuls), experts), vectors)
        layers.append(replace(layer, residual_streams=streams))
    network = decoder(config, name, layers, hidden=hidden)
    network = with_next_token_layers(config, network, layers[-1])
    return replace(network, other_parameters=stream_head(hidden, streams))


def read_mimo(config: Config, name: str) -> Network:
    """Return a MiMo-7B: a Qwen 2 with a multi-token-prediction layer."""
    network = read_qwen2(config, name)
    network = with_next_token_layers(config, network, network.layers[-1])
    return replace(network, keys_used=tuple(config.keys_used))


def _mimo_parts(config: Config, shape: Heads, layers: int) -> list[Part]:
    mixed = deepseek_mixture(config, shape.hidden_size)
    kinds = config.items("mlp_layer_types", length=layers)
    if kinds is not None:
        is_mixed = [kind == "sparse" for kind in kinds[:layers]]
    elif not config.has("moe_layer_freq"):
        is_mixed = [i > 0 for i in range(layers)]
    else:
        is_mixed = [flag != 0 for flag in config.per_layer("moe_layer_freq", layers=layers)]
    return parts_by_layer(config, shape, Traits(), mixed, is_mixed)


def _sliding(config: Config, layers: int) -> list[bool]:
    kinds = config.items("layer_types", length=layers)
    if kinds is not None:
        return [kind == "sliding_attention" for kind in kinds[:layers]]
    if not config.has("hybrid_layer_pattern"):
        return [i > 0 and (i + 1) % 6 != 0 for i in range(layers)]
    return [flag == 1 for flag in config.per_layer("hybrid_layer_pattern", layers=layers)]


def read_mimo_v2_flash(config: Config, name: str) -> Network:
    """Return a MiMo V2 Flash: keys of 192, values of 128, sinks in the sliding layers."""
    hidden, layers = config.dimension("hidden_size"), config.layers()
    usual = heads(config)
    full = replace(usual, value_head_dim=config.dimension("v_head_dim"))
    slide = Heads(
        hidden,
        config.optional("swa_num_attention_heads") or full.query_heads,
        config.optional("swa_num_key_value_heads") or 2 * full.kv_heads,
        config.optional("swa_head_dim") or full.head_dim,
        config.optional("swa_v_head_dim") or full.value_head_dim,
    )
    window = config.dimension("sliding_window")
    bias = config.flag("attention_bias")
    full_traits = Traits(qkv_bias=bias, sinks=config.flag("add_full_attention_sink_bias"))
    slide_traits = Traits(qkv_bias=bias, sinks=config.flag("add_swa_attention_sink_bias", default=True))

    stack = once_each(
        lambda part, slides: (
            block(slide, slide_traits, part, window=window) if slides else block(full, full_traits, part)
        ),
        zip(_mimo_parts(config, full, layers), _sliding(config, layers), strict=True),
    )
    return decoder(config, name, stack, hidden=hidden)


def read_minimax_m2(config: Config, name: str) -> Network:
    """Return a MiniMax M2: norms over all queries and all keys, experts in every layer, which engines route in fp32."""
    shape = heads(config, default_head_dim=128)
    part = mixture(
        config, shape.hidden_size, "intermediate_size", experts="num_local_experts", router_in="fp32"
    )
    if config.text("qk_norm_type", default="per_layer") != "per_layer":
        raise config.error("qk_norm_type", "is not modelled", "allowed: per_layer")
    traits = Traits(qk_norm_over_all_heads=config.flag("use_qk_norm", default=True))
    return block_decoder(config, name, traits, [routed_by(part, "sigmoid")] * config.layers(), shape=shape)


def _sparse_attention(layer: Layer, config: Config, hidden: int) -> Layer:
    """Return the layer with the indexer that selects the blocks of keys it reads."""
    index_heads = config.dimension("sparse_num_index_heads", "index_n_heads")
    index_dim = config.dimension("sparse_index_dim", "index_head_dim")
    top = config.dimension("sparse_topk_blocks", "index_topk_blocks") * config.dimension(
        "sparse_block_size", "index_block_size"
    )
    mixer = layer.mixers[0]
    assert isinstance(mixer, Attention)
    return replace(
        layer,
        mixers=(replace(mixer, index_heads=index_heads, index_head_dim=index_dim, index_top_tokens=top),),
        projections=(
            *layer.projections[:2],
            Projection("index_q", "attention", hidden, index_heads * index_dim, "none"),
            Projection("index_k", "attention", hidden, index_dim, "none"),
            *layer.projections[2:],
        ),
        norm_parameters=layer.norm_parameters + 2 * index_dim,
    )


_WHICH_BLOCKS = (
    "sparse_local_block", "sparse_init_block", "sparse_score_type", "sparse_disable_index_value", "use_sparse_attention"
)  # fmt: skip
"""Keys that say which blocks a sparse layer reads, not how many keys it caches."""


def _indexed_layers(config: Config, indexing: Config, layers: int) -> list[bool]:
    """Return which layers have an indexer, from `layer_types` or from the list of older files."""
    if config.has("layer_types"):
        known = {"full_attention": False, "minimax_m3_sparse": True}
        return config.kinds("layer_types", layers=layers, known=known)
    if not indexing.has("sparse_attention_freq"):
        return [False] * layers
    return [flag > 0 for flag in indexing.per_layer("sparse_attention_freq", layers=layers)]


def read_minimax_m3(config: Config, name: str) -> Network:
    """Return the text model of a MiniMax M3: dense and mixed, full and block-sparse layers."""
    shape = heads(config, default_head_dim=128)
    hidden, layers = shape.hidden_size, config.layers()
    width = config.dimension("moe_intermediate_size", "intermediate_size")
    shared_width = config.count("shared_intermediate_size", default=width)
    experts, chosen = config.dimension("num_local_experts"), config.dimension("num_experts_per_tok")
    shared = config.count("n_shared_experts", default=1) * shared_width
    scored = mixture(config, hidden, width, experts=experts, chosen=chosen, shared=shared)
    mixed = routed_by(scored, "sigmoid")
    sparse_layers = [part is mixed for part in parts_after(config, ((), None), mixed, layers, 0)]
    if not config.has("mlp_layer_types") and config.has("moe_layer_freq"):
        sparse_layers = [flag > 0 for flag in config.per_layer("moe_layer_freq", layers=layers)]
    dense = gated_mlp(hidden, config.dimension("dense_intermediate_size")), None
    indexing = config.section("sparse_attention_config") or config
    config.unused(
        "index_local_blocks", "index_n_heads", "index_head_dim", "index_block_size", "index_topk_blocks"
    )
    indexing.unused(*_WHICH_BLOCKS)
    indexed = _indexed_layers(config, indexing, layers)
    traits = Traits(head_norms=config.flag("use_qk_norm", default=True))

    def layer(is_routed: object, chooses: object) -> Layer:
        plain = block(shape, traits, mixed if is_routed else dense)
        return _sparse_attention(plain, indexing, hidden) if chooses else plain

    stack = once_each(layer, zip(sparse_layers, indexed, strict=True))
    return decoder(config, name, stack, hidden=hidden)


def read_minimax_m3_vl(config: Config, name: str) -> Network:
    """Return a MiniMax M3 with its vision tower."""
    network = read_minimax_m3(config.needed_section("text_config"), name)
    if vision := config.section("vision_config"):
        vision.unused(
            "image_size",
            "projection_dim",
            "rope_mode",
            "vocab_size",
            "vision_segment_max_frames",
            "img_token_compression_config",
        )
    return with_tower(network, config, lambda vision, hidden: minimax_vision(vision, config, hidden))


def _mixed_layers(config: Config, layers: int) -> list[bool]:
    kinds = config.items("mlp_layer_types", length=layers)
    if kinds is not None:
        return [kind == "sparse" for kind in kinds[:layers]]
    listed = config.whole_numbers("moe_layers_enum")
    if listed is not None:
        return [i in listed for i in range(layers)]
    first = config.count("first_k_dense_replace", default=3)
    return [i >= first for i in range(layers)]


def _step_parts(config: Config, shape: Heads, layers: int) -> list[Part]:
    mixed = mixture(
        config,
        shape.hidden_size,
        "moe_intermediate_size",
        experts=("n_routed_experts", "num_experts", "moe_num_experts"),
        chosen=("num_experts_per_tok", "moe_top_k"),
        shared=("share_expert_dim", "share_expert_dims"),
    )
    return parts_by_layer(config, shape, Traits(), mixed, _mixed_layers(config, layers))


def _layer(shape: Heads, part: Part, window: int | None) -> Layer:
    layer = block(shape, Traits(head_norms=True), part, window=window)
    gate = Projection("head_gate", "attention", shape.hidden_size, shape.query_heads, "columns")
    return replace(layer, projections=(layer.projections[0], gate, *layer.projections[1:]))


def read_step_text(config: Config, name: str) -> Network:
    """Return the text model of a Step 3.5 or 3.7 Flash; sliding layers may have heads of their own."""
    groups = config.optional("num_key_value_heads", "num_attention_groups") or 8
    full = heads(config, default_kv_heads=groups, default_head_dim=128)
    layers = config.layers()
    other = config.section("attention_other_setting")
    more = config.optional("num_sliding_attention_heads")
    slide = replace(full, query_heads=more or full.query_heads)
    if other is not None:
        other.unused("attention_type")
        width = other.optional("head_dim") or full.head_dim
        slide = Heads(
            full.hidden_size,
            more or other.optional("num_attention_heads") or full.query_heads,
            other.optional("num_attention_groups") or full.kv_heads,
            width,
            width,
        )
    window = config.optional("sliding_window")
    kinds = config.items("layer_types", length=layers) or ["full_attention"] * layers
    stack = []
    for part, kind in zip(_step_parts(config, full, layers), kinds, strict=False):
        sliding = kind == "sliding_attention"
        if sliding and window is None:
            raise config.missing("sliding_window")
        stack.append(_layer(slide if sliding else full, part, window if sliding else None))
    if config.count("num_nextn_predict_layers", "num_mtp_layers"):
        config.notes.append("the layers for multi-token prediction are left out")
    return decoder(config, name, stack, hidden=full.hidden_size)


def read_step(config: Config, name: str) -> Network:
    """Return a Step 3.7 Flash with its vision tower; a file without a vision section means the default tower."""
    text = config.section("text_config") or config
    network = read_step_text(text, name)
    vision = config.section("vision_config")
    if vision is None:
        config.notes.append("no vision_config: the vision tower of Step 3.7 Flash is counted")
        vision = Config({}, config.place, "vision_config.", config.keys_used, [], outer=config)
    return with_vision(network, config, step_vision(vision, network.hidden_size))


_MIXED_OF_STEP3 = range(4, 60)
"""Layers of Step 3 with routed experts, where the file does not list them."""


def read_step3_text(config: Config, name: str) -> Network:
    """Return the text model of a Step 3: multi-matrix factorization attention, whose only KV head every rank holds."""
    hidden, head_dim = config.dimension("hidden_size"), config.dimension("head_dim", default=256)
    query_heads, width = (
        config.dimension("num_attention_heads"),
        config.dimension("share_q_dim", default=2048),
    )
    if config.dimension("num_attention_groups", default=1) != 1:
        raise config.error("num_attention_groups", "more than one KV head is not modelled", "allowed: 1")
    shape = Heads(hidden, query_heads, 1, head_dim, head_dim)
    layers = config.layers()
    listed = config.whole_numbers("moe_layers_enum")
    mixed_layers = set(_MIXED_OF_STEP3 if listed is None else listed)
    mixed = mixture(
        config,
        hidden,
        "moe_intermediate_size",
        experts="moe_num_experts",
        chosen="moe_top_k",
        shared="share_expert_dim",
    )
    parts = parts_by_layer(config, shape, Traits(), mixed, [i in mixed_layers for i in range(layers)])
    mixing = (
        Projection("q_a", "attention", hidden, width, "none"),
        Projection("kv", "attention", hidden, 2 * head_dim, "none"),
        Projection("q_b", "attention", width, query_heads * head_dim, "columns"),
        attention_output(shape),
    )
    config.unused("max_position_embedding", "norm_expert_weight")
    stack = [decoder_layer(attention(shape), mixing, part, 2 * hidden + width) for part in parts]
    return decoder(config, name, stack, hidden=hidden)


def read_step3(config: Config, name: str) -> Network:
    """Return a Step 3 with its tower, after vLLM's `Step3VLForConditionalGeneration`."""
    network = read_step3_text(config.needed_section("text_config"), name)

    def tower(vision: Config, text: int) -> int:
        hidden, out = vision.dimension("hidden_size"), vision.dimension("output_hidden_size")
        patch = vision.dimension("patch_size")
        patches = (vision.dimension("image_size") // patch) ** 2
        inputs = vision.dimension("num_channels", default=3) * patch * patch
        blocks = vision.layers() * encoder_block(hidden, vision.dimension("intermediate_size"))
        embedded = linear(inputs, hidden) + hidden + (patches + 1) * hidden
        down = linear(4 * hidden, out) + linear(9 * out, 2 * out)
        projector = linear(2 * out, text, bias=_has_projector_bias(config, default=True))
        return embedded + blocks + down + projector

    return with_tower(network, config, tower)


def read_step3_vl(config: Config, name: str) -> Network:
    """Return a Step3-VL: a Qwen 3 with the tower of Step 3.7."""
    text = config.needed_section("text_config")
    network = read_qwen3(text, name)
    biased = _has_projector_bias(config, default=False)

    def tower(vision: Config, hidden: int) -> int:
        return step_vision(vision, hidden) + (hidden if biased else 0)

    return with_tower(network, config, tower)


def _has_projector_bias(config: Config, *, default: bool) -> bool:
    config.unused(
        "understand_projector_stride",
        "image_token_len",
        "patch_token_len",
        "hidden_size",
        "vocab_size",
        "max_position_embeddings",
    )
    return config.flag("projector_bias", default=default)
