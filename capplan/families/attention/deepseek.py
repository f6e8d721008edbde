"""DeepSeek V2 to V4.1 and models built like them, from Kimi K2 and GLM-5 to DeepSeek-OCR: latent and compressed attention with indexers.

Sources: the reference code published with the models (inference/model.py of deepseek-ai/DeepSeek-V4.1-Flash); for towers vLLM
(`deepseek_vl2.py`, `deepseek_ocr.py`), https://github.com/vllm-project/vllm.
"""

from dataclasses import replace
from typing import TypeAlias

from capplan.families.config import Config
from capplan.families.parts.blocks import (
    Heads,
    Part,
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
    block_decoder,
    deepseek_mixture,
    dense_mlp,
    layer_windows,
    mixture,
    once_each,
    parts_after,
    routed_by,
    with_next_token_layers,
)
from capplan.families.parts.towers import clip_of_ocr, encoder_block, linear, segment_anything
from capplan.families.parts.vision import moonvit
from capplan.model.network import CompressedAttention, LatentAttention, Layer, Network, Projection
from capplan.model.parameters import layer_parameters


def read_latent(config: Config, name: str, *, indexer: bool = False) -> Network:
    """Return a network of latent attention, dense feed-forward first, then shared and routed experts."""
    hidden = config.dimension("hidden_size")
    layers = config.layers()
    bias = config.flag("attention_bias")
    parts = _parts(config, hidden, layers)
    reuses = reuses_index(config, layers)

    def layer(part: Part, reused: object) -> Layer:
        mixer, mixing, norms = latent_attention(
            config, hidden, attention_bias=bias, indexer=indexer, index_cached=not reused
        )
        return decoder_layer(mixer, mixing, part, 2 * hidden + norms)

    stack = once_each(layer, zip(parts, reuses, strict=True))
    network = decoder(config, name, stack, hidden=hidden)
    return with_next_token_layers(config, network, stack[-1])


def read_deepseek_v2(config: Config, name: str) -> Network:
    """Return a DeepSeek V2, or one of its small kin without latent attention (DeepSeek-OCR, VL2 Tiny): every head has keys and values."""
    plain = config.model_type == "deepseek" or not config.flag("use_mla", default=True)
    if not plain and config.stated("qk_nope_head_dim"):
        plain = config.count("qk_nope_head_dim") + config.count("qk_rope_head_dim") == 0
    if not plain:
        return read_latent(config, name)
    config.unused(
        "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "head_dim"
    )
    query_heads = config.dimension("num_attention_heads", most=100_000)
    hidden = config.dimension("hidden_size")
    width = config.divisible("hidden_size", hidden, "num_attention_heads", query_heads)
    kv_heads = config.optional("num_key_value_heads") or query_heads
    config.divisible("num_attention_heads", query_heads, "num_key_value_heads", kv_heads)
    shape = Heads(hidden, query_heads, kv_heads, width, width)
    bias = config.flag("attention_bias")
    parts = _parts(config, hidden, config.layers())
    return block_decoder(config, name, Traits(qkv_bias=bias, output_bias=bias), parts, shape=shape)


def read_axk1(config: Config, name: str) -> Network:
    """Return an A.X-K1: a DeepSeek V3 with a norm behind its experts."""
    network = read_latent(config, name)
    hidden = network.hidden_size
    normed = {
        id(layer): replace(layer, norm_parameters=layer.norm_parameters + hidden if layer.experts else layer.norm_parameters)
        for layer in network.layers
    }  # fmt: skip
    return replace(network, layers=tuple(normed[id(layer)] for layer in network.layers))


def read_axk2(config: Config, name: str) -> Network:
    """Return an A.X-K2: an indexed latent attention with an output gate, and norms with a low-rank gate."""
    network = read_indexed(config, name)
    hidden, rank, latent = (
        network.hidden_size,
        config.dimension("gated_norm_rank"),
        config.dimension("q_lora_rank"),
    )
    config.unused("layer_types")
    gates = (
        Projection("norm_gate_down", "other", hidden, rank, "none"),
        Projection("norm_gate_up", "other", rank, hidden, "none"),
    )
    made = {}
    for layer, _ in network.distinct_layers:
        (mixer,) = layer.mixers
        assert isinstance(mixer, LatentAttention)
        outputs = mixer.query_heads * (mixer.nope_head_dim + mixer.rope_head_dim + mixer.value_head_dim)
        matmuls = tuple(
            replace(p, inputs=2 * latent, outputs=outputs) if p.name == "q_b" else p
            for p in layer.projections
        )
        made[layer] = replace(layer, projections=matmuls + gates * (2 if layer.experts else 1))
    return replace(
        network, layers=tuple(made[layer] for layer in network.layers), keys_used=tuple(config.keys_used)
    )


def read_indexed(config: Config, name: str) -> Network:
    """Return a DeepSeek V3.2 or GLM-5: latent attention over the tokens that its indexer selects."""
    return read_latent(config, name, indexer=True)


_ONE_DENSE = ("axk1", "axk2", "glm4_moe_lite")
"""Types whose first layer is dense where a file does not say."""


def _parts(config: Config, hidden: int, layers: int) -> list[Part]:
    experts = config.optional("n_routed_experts", least=0)
    if not experts:
        return [(gated_mlp(hidden, config.dimension("intermediate_size")), None)] * layers
    sparse = deepseek_mixture(config, hidden)
    config.unused("intermediate_size")
    first = config.count("first_k_dense_replace", default=1 if config.model_type in _ONE_DENSE else 0)
    dense = sparse
    if first or config.has("mlp_layer_types"):
        dense = gated_mlp(hidden, config.dimension("intermediate_size")), None
    every = config.dimension("moe_layer_freq") if config.has("moe_layer_freq") else 1
    if every != 1:
        raise config.error("moe_layer_freq", f"{every} is not modelled", "allowed: 1")
    return parts_after(config, dense, sparse, layers, first)


def reuses_index(config: Config, layers: int) -> list[bool]:
    """Return which layers take the tokens that an earlier layer's indexer selected."""
    if not config.has("indexer_types"):
        return _scheduled_reuses(config, layers)
    return config.kinds("indexer_types", layers=layers, known={"full": False, "shared": True})


def _scheduled_reuses(config: Config, layers: int) -> list[bool]:
    """Return which layers reuse an index by a pattern of letters, or by a frequency after the first layers."""
    pattern = config.text("index_topk_pattern")
    if pattern:
        if len(pattern) < layers or set(pattern) - {"F", "S"}:
            raise config.error(
                "index_topk_pattern", f"{pattern!r} is not a pattern", "allowed: F or S for each layer"
            )
        return [letter == "S" for letter in pattern[:layers]]
    every = max(config.count("index_topk_freq", default=1), 1)
    offset = config.count("index_skip_topk_offset", default=2)
    return [max(i - offset + 1, 0) % every != 0 for i in range(layers)]


def read_kimi_k25(config: Config, name: str) -> Network:
    """Return a Kimi K2.5 or later: Kimi K2 with a MoonViT vision tower."""
    network = read_latent(config.needed_section("text_config"), name)
    return with_tower(network, config, lambda vision, hidden: moonvit(vision, config, hidden))


def read_longcat(config: Config, name: str) -> Network:
    """Return a LongCat Flash: each layer has two attention blocks, two dense feed-forward blocks and one mixture of experts.

    It becomes two layers here, because each attention block has a separate cache. The router can also choose
    experts that return their input; those have no weights, so a token uses fewer real experts.
    """
    hidden = config.dimension("hidden_size")
    mixer, mixing, norms = latent_attention(config, hidden, attention_bias=config.flag("attention_bias"))
    dense = gated_mlp(hidden, config.dimension("ffn_hidden_size"))
    experts = config.dimension("n_routed_experts")
    idle = config.count("zero_expert_num")
    chosen = config.dimension("moe_topk")
    real = max(1, round(chosen * experts / (experts + idle)))
    config.notes.append(f"{chosen} of {experts} + {idle} experts per token; {real} of them real on average")
    biased = config.flag("router_bias")
    mixed = (
        (router(hidden, experts + idle, bias=biased), *dense),
        routed(config, experts, real, hidden, config.dimension("expert_ffn_hidden_size")),
    )
    first = decoder_layer(mixer, mixing, mixed, 2 * hidden + norms)
    second = decoder_layer(mixer, mixing, (dense, None), 2 * hidden + norms)
    return decoder(config, name, [first, second] * config.layers("num_layers"), hidden=hidden)


def read_dots1(config: Config, name: str) -> Network:
    """Return a dots.llm1: head norms, dense layers first, then shared and routed experts."""
    bias = config.flag("attention_bias")
    shape = heads(config)
    layers = config.layers()
    sparse = deepseek_mixture(config, shape.hidden_size)
    traits = Traits(qkv_bias=bias, output_bias=bias, head_norms=True)
    first = config.count("first_k_dense_replace")
    config.unused("intermediate_size")
    dense = dense_mlp(config, shape, traits) if first or config.has("mlp_layer_types") else sparse
    window = config.optional("sliding_window", least=0) or None
    from_layer = config.count("max_window_layers", default=layers)
    sliding = [window is not None and i >= from_layer for i in range(layers)]
    parts = parts_after(config, dense, sparse, layers, first)
    windows = layer_windows(config, layers, window, default=sliding)
    return block_decoder(config, name, traits, parts, shape=shape, windows=windows)


def read_deepseek_vl2(config: Config, name: str) -> Network:
    """Return a DeepSeek-VL2 or a DeepSeek-OCR, whose files have the same model_type and other towers."""
    text = config.needed_section("language_config", "text_config")
    text.unused("lm_head", "rm_head")
    network = read_deepseek_v2(text, name)
    config.unused(
        *(key for key in config.values if key in text.values),
        "candidate_resolutions",
        "tile_tag",
        "global_view_pos",
    )
    named = config.items("architectures") or ()
    marks = 2 * network.hidden_size  # a line break and what separates an image from its tiles
    if "DeepseekOCR2ForCausalLM" in named:
        config.unused("vision_config", "projector_config")
        config.uncounted("the towers of vision_config are not counted")
        return with_vision(network, config, 0)
    vision = config.needed_section("vision_config")
    vision.unused(*vision.values)
    widths = vision.values.get("width")
    tower = _ocr(vision.needed_section("width")) if isinstance(widths, dict) else _siglip(vision)
    return with_vision(network, config, tower + _projector(config) + marks)


def _siglip(vision: Config) -> int:
    """Return the parameters of SigLIP with its pooling, as timm's `vit_so400m_patch14_siglip_384` has it."""
    hidden = vision.dimension("width", default=1152)
    wide = int(hidden * vision.ratio("mlp_ratio", default=3.7362))
    patch = vision.dimension("patch_size", default=14)
    patches = (vision.dimension("image_size", default=384) // patch) ** 2
    block = encoder_block(hidden, wide)
    tower = linear(3 * patch * patch, hidden) + patches * hidden + 2 * hidden
    pooling = hidden + block - 2 * hidden
    return tower + vision.layers("layers") * block + pooling


def _ocr(widths: Config) -> int:
    """Return the parameters of the two towers of DeepSeek-OCR, one behind the other."""
    clip = widths.needed_section("clip-l-14-224")
    whole = widths.needed_section("sam_vit_b")
    widths.unused(*widths.values)
    for section in (clip, whole):
        section.unused(*section.values)
    downsampled = whole.whole_numbers("downsample_channels") or (512, 1024)
    map_encoder = segment_anything(
        whole.layers("layers"), whole.dimension("width"), whole.dimension("heads"), 256, downsampled
    )
    sizes = (clip.dimension(key) for key in ("width", "patch_size", "image_size"))
    return map_encoder + clip_of_ocr(clip.layers("layers"), *sizes)


def _projector(config: Config) -> int:
    """Return the parameters of what joins tower and text: one matrix, or several around pixels that were merged."""
    section = config.needed_section("projector_config")
    section.unused(*section.values)
    inputs, outputs = section.dimension("input_dim"), section.dimension("n_embed")
    kind = section.text("projector_type", default="downsample_mlp_gelu")
    if kind == "linear":
        return linear(inputs, outputs)
    if kind != "downsample_mlp_gelu":
        raise section.error(
            "projector_type", f"{kind!r} is not modelled", "allowed: linear, downsample_mlp_gelu"
        )
    inner = outputs * section.dimension("mlp_ratio", default=1)
    first = linear(inputs * section.dimension("downsample_ratio", default=2) ** 2, inner)
    between = (section.dimension("depth", default=2) - 2) * linear(inner, inner)
    return first + between + linear(inner, outputs)


_KINDS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
"""Tokens per entry of the kinds that newer configs name in `layer_types`."""
_V4_UNCALIBRATED = (
    "compressed attention: the time of its kernels is a formula with the rates of latent attention; "
    "no measured kernel backs it"
)


def read_deepseek_v4(config: Config, name: str) -> Network:
    """Return a DeepSeek V4: each layer reads a window and entries that compress 4 or 128 earlier tokens each.

    Matrices that its checkpoints leave in 16 bits (compressors, head weights of the indexer, stream mixing) are of
    class "other", so that no quantiser converts them.
    """
    hidden, layers = config.dimension("hidden_size"), config.layers()
    part = _v4_mixture(config, hidden)
    ratios = _entry_tokens(config, layers)
    made = {ratio: _v4_layer(config, hidden, ratio, part) for ratio in dict.fromkeys((*ratios, 0))}
    streams = config.dimension("hc_mult", default=4)
    head = stream_head(hidden, streams)
    config.notes.append(_V4_UNCALIBRATED)
    network = decoder(config, name, [made[ratio] for ratio in ratios], hidden=hidden)
    network = with_next_token_layers(config, network, made[0])
    return replace(
        network,
        other_parameters=head,
        mtp_parameters=network.mtp_parameters + head * (network.mtp_parameters > 0),
    )


def _entry_tokens(config: Config, layers: int) -> list[int]:
    """Return the tokens per entry of each layer; further entries belong to multi-token-prediction layers."""
    rates = config.section("compress_rates")
    config.unused("mlp_layer_types")
    for key, entry_tokens in (("compressed_sparse_attention", 4), ("heavily_compressed_attention", 128)):
        stated = rates.optional(key) if rates else None
        if rates and stated not in (None, entry_tokens):
            raise rates.error(key, f"{stated} is not modelled", f"allowed: {entry_tokens}")
    ratios = config.items("compress_ratios", length=layers)
    if ratios is None:
        kinds = config.items("layer_types", length=layers)
        if kinds is None:
            raise config.missing("compress_ratios", "layer_types")
        ratios = [_KINDS.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]
    for i, ratio in enumerate(ratios[:layers]):
        if isinstance(ratio, bool) or ratio not in (0, 4, 128):
            raise config.error(
                f"compress_ratios[{i}]", f"{ratio!r} is not modelled", "allowed: 0 (window only), 4, 128"
            )
    return list(ratios[:layers])


def _v4_mixture(config: Config, hidden: int) -> Part:
    """Return router, shared and routed experts; the first layers look up their experts by token instead."""
    experts, width = config.dimension("n_routed_experts"), config.dimension("moe_intermediate_size")
    shared = config.count("n_shared_experts", default=1)
    if shared != 1:  # the class builds one whatever the key says
        raise config.error("n_shared_experts", f"{shared} is not modelled", "allowed: 1")
    matmuls = (router(hidden, experts), *gated_mlp(hidden, width, tensor_class="shared_expert"))
    return matmuls, routed(config, experts, config.dimension("num_experts_per_tok"), hidden, width)


def streamed_attention(
    config: Config, hidden: int, entry_tokens: int
) -> tuple[CompressedAttention, int, tuple[Projection, ...], int]:
    """Return attention without compressor and indexer: the mixer, the rank of its queries, its matmuls and those of the streams, their vectors."""
    heads = config.dimension("num_attention_heads", most=100_000)
    width, rope = config.dimension("head_dim"), config.dimension("qk_rope_head_dim", default=64)
    rank, out_rank = config.dimension("q_lora_rank"), config.dimension("o_lora_rank")
    groups, streams = config.dimension("o_groups"), config.dimension("hc_mult", default=4)
    grouped = config.divisible("num_attention_heads", heads, "o_groups", groups) * width
    mixes, mixed = hyper_connections(hidden, streams, (2 + streams) * streams, scales=3)
    mixer = CompressedAttention(
        heads, width, rope, config.dimension("sliding_window"), groups, entry_tokens=entry_tokens
    )
    matmuls = (
        Projection("q_a", "attention", hidden, rank, "none"),
        Projection("kv_a", "attention", hidden, width, "none"),
        Projection("q_b", "attention", rank, heads * width, "columns"),
        # Block-diagonal: each group of heads has a separate matrix, so the inputs are those of one group.
        Projection("o_a", "attention", grouped, groups * out_rank, "columns"),
        Projection("o", "attention", groups * out_rank, hidden, "rows"),
        *mixes,
    )
    return mixer, rank, matmuls, 2 * hidden + rank + width + heads + mixed


def _v4_layer(config: Config, hidden: int, ratio: int, part: Part) -> Layer:
    mixer, rank, matmuls, vectors = streamed_attention(config, hidden, ratio)
    width, streams = mixer.head_dim, config.dimension("hc_mult", default=4)
    if ratio == 128:
        matmuls += (Projection("compress", "other", hidden, 2 * width, "none"),)
        vectors += ratio * width + width
    elif ratio == 4:
        mixer, indexing, more = _indexed(config, mixer, hidden, rank)
        matmuls += (Projection("compress", "other", hidden, 4 * width, "none"), *indexing)
        vectors += ratio * 2 * width + width + more
    feed_forward, experts = part
    return Layer((mixer,), (*matmuls, *feed_forward), experts, vectors, residual_streams=streams)


def _indexed(
    config: Config, mixer: CompressedAttention, hidden: int, rank: int
) -> tuple[CompressedAttention, tuple[Projection, ...], int]:
    """Return the mixer with its indexer, the indexer's matmuls and its vectors."""
    heads, width = config.dimension("index_n_heads"), config.dimension("index_head_dim")
    chooses = replace(
        mixer,
        overlapping=True,
        index_heads=heads,
        index_head_dim=width,
        index_top_entries=config.dimension("index_topk"),
    )
    matmuls = (
        Projection("index_compress", "other", hidden, 4 * width, "none"),
        Projection("index_q", "attention", rank, heads * width, "none"),
        Projection("index_weights", "other", hidden, heads, "none"),
    )
    return chooses, matmuls, mixer.entry_tokens * 2 * width + width


_V41_UNCALIBRATED = "compressed attention: the time of its kernels is a formula with the rates of latent attention; no measured kernel backs it"
_MOST_ROWS = 10_000_000_000
"""Limit above any published table of n-grams; a larger number is a mistake."""
_TABLES = "tables of n-grams are held by the devices, split over the ranks; an engine may keep them in host memory instead"


def read_deepseek_v41(config: Config, name: str) -> Network:
    """Return a DeepSeek V4.1: text decoder, vision tower and drafter."""
    text = config.section("text_config")
    if text is None:
        return read_deepseek_v41_text(config, name)
    network = read_deepseek_v41_text(text, name)
    vision = config.section("vision_config")
    if vision is None:
        config.uncounted("no vision_config: the vision tower is not counted")
        return with_vision(network, config, 0)
    return with_vision(network, config, _tower(vision, network.hidden_size))


def read_deepseek_v41_text(config: Config, name: str) -> Network:
    """Return the text half of a DeepSeek V4.1.

    Matrices that its checkpoints leave in 16 or 32 bits (compressors, keys and head weights of the indexer, stream mixing) are
    of class "other", so that no quantiser converts them.
    """
    hidden, count = config.dimension("hidden_size"), config.layers()
    forms = _forms(config, count)
    part = _v41_mixture(
        config, hidden, config.dimension("n_routed_experts"), config.dimension("num_experts_per_tok")
    )
    made = {form: _v41_layer(config, hidden, form, part) for form in dict.fromkeys(forms)}
    layers = [made[form] for form in forms]
    for index, rows in _tables(config, count):
        matmuls, vectors = _ngrams(config, hidden, rows)
        layer = layers[index]
        layers[index] = replace(
            layer, projections=(*matmuls, *layer.projections), norm_parameters=layer.norm_parameters + vectors
        )
    config.notes.append(_V41_UNCALIBRATED)
    config.unused(
        "num_key_value_heads", "intermediate_size", "dspark_block_size", "engram_compressed_vocab_size", "hc_pre_from_prev_sublayer",
        "q_head_norm", "candidate_topk_blocks", "candidate_block_size", "candidate_source_layer_id", "candidate_source_layer",
        "expert_dtype", "first_k_dense_replace",
    )  # fmt: skip
    network = decoder(config, name, layers, hidden=hidden)
    return _with_drafter(config, network, hidden)


_Form: TypeAlias = tuple[int, bool, bool]
"""Tokens per entry of what one layer reads beyond its window (0: window only), whether it makes the entries, and whether it selects them."""


def _forms(config: Config, count: int) -> list[_Form]:
    """Return what each layer reads beyond its window, and what of it is its own."""
    ratios = config.per_layer("compress_ratios", layers=count)
    for index, ratio in enumerate(ratios):
        if ratio not in (0, 1, 2):
            raise config.error(
                f"compress_ratios[{index}]", f"{ratio} is not modelled", "allowed: 0 (window only), 1, 2"
            )
    listed = []
    for key, other in (
        ("kv_source_layer_ids", "kv_source_layers"),
        ("index_source_layer_ids", "index_source_layers"),
    ):
        found = config.whole_numbers(key, other)
        if found is None:
            raise config.missing(key)
        listed.append(frozenset(found))
    for index, ratio in enumerate(ratios):
        earlier = [max((one for one in layers if one <= index), default=None) for layers in listed]
        if ratio and (None in earlier or ratios[earlier[0] or 0] != ratio):
            raise config.error(
                "kv_source_layer_ids",
                f"layer {index} has no source of entries of {ratio} tokens before it",
            )
    if not listed[0] <= listed[1]:
        raise config.error("index_source_layer_ids", "a layer that makes entries has to select them too")
    entries, selections = listed
    return [
        (ratio, bool(ratio) and index in entries, bool(ratio) and index in selections)
        for index, ratio in enumerate(ratios)
    ]


def _v41_mixture(config: Config, hidden: int, experts: int, per_token: int) -> Part:
    width = config.dimension("moe_intermediate_size")
    shared = config.count("n_shared_experts", default=1)
    if shared != 1:  # the reference builds one whatever the key says
        raise config.error("n_shared_experts", f"{shared} is not modelled", "allowed: 1")
    matmuls = (router(hidden, experts), *gated_mlp(hidden, width, tensor_class="shared_expert"))
    return matmuls, routed(config, experts, per_token, hidden, width)


def _v41_layer(config: Config, hidden: int, form: _Form, part: Part) -> Layer:
    ratio, compresses, indexes = form
    plain, rank, matmuls, vectors = streamed_attention(config, hidden, ratio)
    width, streams = plain.head_dim, config.dimension("hc_mult", default=4)
    index_heads, index_dim = config.dimension("index_n_heads"), config.dimension("index_head_dim")
    mixer = replace(
        plain,
        index_heads=index_heads if indexes else 0,
        index_head_dim=index_dim if indexes else 0,
        index_top_entries=config.dimension("index_topk") if ratio else 0,
        shared_entries=True,
        owns_entries=compresses,
    )
    if compresses:
        series = 2 if ratio > 1 else 1  # values, and their gates where there is something to pool
        matmuls += (
            Projection("compress", "other", hidden, series * width, "none"),
            Projection("index_k", "other", width, index_dim, "none"),
        )
        vectors += width + index_dim
    if indexes:
        matmuls += (
            Projection("index_q", "attention", rank, index_heads * index_dim, "none"),
            Projection("index_weights", "other", hidden, index_heads, "none"),
        )
    feed_forward, experts = part
    return Layer((mixer,), (*matmuls, *feed_forward), experts, vectors, residual_streams=streams)


def _tables(config: Config, count: int) -> list[tuple[int, int]]:
    """Return the layers with a table of n-grams, and its rows."""
    layers = config.whole_numbers("engram_layer_ids") or ()
    if not layers:
        return []
    config.notes.append(_TABLES)
    rows = config.whole_numbers("engram_num_embeddings", most=_MOST_ROWS) or ()
    if len(rows) != len(layers) or max(layers) >= count:
        raise config.error(
            "engram_num_embeddings", f"{len(rows)} tables for the layers {list(layers)} of {count}"
        )
    return list(zip(layers, rows, strict=True))


def _ngrams(config: Config, hidden: int, rows: int) -> tuple[tuple[Projection, ...], int]:
    """Return the table, whose rows are kept in fp8 with a scale for 32 elements, the matmul after it, and its norms."""
    streams, width = config.dimension("hc_mult", default=4), config.dimension("engram_head_dim")
    columns = (config.dimension("engram_max_ngram_size", least=2) - 1) * config.dimension("engram_n_heads")
    config.unused("engram_vocab_size")
    matmuls = (
        Projection("ngram_table", "embedding", rows, width, "rows", matmul=False, weight_format="mxfp8"),
        Projection("ngram_kv", "ffn", columns * width, (streams + 1) * hidden, "none"),
    )
    return matmuls, 2 * streams * hidden


def _with_drafter(config: Config, network: Network, hidden: int) -> Network:
    """Return the network with the blocks that draft tokens (DSpark): layers of a window, a Markov head, a head of confidence."""
    depth = config.count("num_nextn_predict_layers")
    if not depth:
        return network
    experts, rank = config.dimension("dspark_n_routed_experts"), config.dimension("dspark_markov_rank")
    per_token = config.dimension("dspark_num_experts_per_tok", "dspark_n_activated_experts")
    part = _v41_mixture(config, hidden, experts, per_token)
    layer = _v41_layer(config, hidden, (0, False, False), part)
    targets = config.whole_numbers("dspark_target_layer_ids") or ()
    around = len(targets) * hidden * hidden + 2 * hidden
    around += 2 * rank * network.vocabulary_size + hidden + rank
    held = layer.experts and replace(layer.experts, experts=experts * depth)
    return replace(network, mtp_parameters=around + depth * layer_parameters(layer), mtp_experts=held)


def _tower(vision: Config, text: int) -> int:
    """Return the parameters of the vision tower, of what joins it to the text, and of three delimiters of images."""
    hidden = vision.dimension("hidden_size", default=1024)
    wide = vision.dimension("intermediate_size", default=2816)
    patch = vision.dimension("patch_size", default=14)
    merged = vision.dimension("downsample_ratio", default=3)
    vision.unused("num_attention_heads", "max_image_tokens", "max_num_tokens", "min_pixels", "max_wh_ratio")
    block = linear(hidden, 3 * hidden) + linear(hidden, hidden) + 3 * hidden * wide + 2 * hidden
    tower = linear(3 * patch * patch, hidden) + vision.dimension("num_hidden_layers") * block + hidden
    return tower + linear(hidden * merged * merged, text) + linear(text, text) + 3 * text


_DOTS3_SLIDING = {
    "num_attention_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}
"""Sizes of the sliding layers of a dots3-note whose file states none: those of its class in transformers 5.24."""


def read_dots3(config: Config, name: str) -> Network:
    """Return a dots3-note: layers of sparse latent attention, and layers with a window and latents of their own sizes."""
    hidden, count = config.dimension("hidden_size"), config.layers()
    whole = (
        "full_attention" if config.stated("use_dsa") and not config.flag("use_dsa") else "indexed_attention"
    )
    slides = config.flag("use_sliding_window", default=True)
    default = [whole if not slides or i < 2 or i % 4 == 1 else "sliding_attention" for i in range(count)]
    kinds = [
        whole if kind == "full_attention" and config.flag("use_dsa") else kind
        for kind in config.kinds("layer_types", layers=count, known=_DOTS3_KINDS, default=default)
    ]
    config.unused("mlp_bias", "num_local_experts", "num_key_value_heads", "head_dim")
    if not config.has("mlp_layer_types") and (config.first_present("moe_layer_freq")[1] or 1) != 1:
        raise config.error(
            "moe_layer_freq", "another value than 1 is not modelled", "allowed: 1, or mlp_layer_types"
        )
    window = config.optional("sliding_window", "sliding_window_size") or 512
    width = config.dimension("moe_intermediate_size")
    shared = config.dimension("shared_experts_intermediate_size", "moe_shared_expert_intermediate_size")
    experts, chosen = config.dimension("n_routed_experts"), config.dimension("num_experts_per_tok")
    shared *= config.count("n_shared_experts")
    sparse = mixture(config, hidden, width, experts=experts, chosen=chosen, shared=shared)
    dense = gated_mlp(hidden, config.dimension("intermediate_size")), None
    parts = parts_after(
        config, dense, routed_by(sparse, "grouped"), count, config.count("first_k_dense_replace", default=1)
    )
    layers = []
    for index, (kind, part) in enumerate(zip(kinds, parts, strict=True)):
        sizes = _dots3_sizes(config, index, sliding=kind == "sliding_attention")
        mixer, matmuls, norms = latent_attention(
            sizes, hidden, attention_bias=config.flag("attention_bias"), indexer=kind == "indexed_attention"
        )
        if kind == "sliding_attention":
            mixer = replace(mixer, window_tokens=window)
        gate = Projection("gate", "attention", hidden, mixer.query_heads, "columns")
        vectors = 2 * hidden + norms + mixer.rope_head_dim
        layers.append(decoder_layer(mixer, (*matmuls, gate), part, vectors))
    return decoder(config, name, layers, hidden=hidden)


_DOTS3_KINDS = {name: name for name in ("full_attention", "indexed_attention", "sliding_attention")}


def _dots3_sizes(config: Config, index: int, *, sliding: bool) -> Config:
    """Return the file with the sizes of one layer: those stated for it, for all sliding layers, or of the class."""
    listed = config.first_present("per_layer_config")[1]
    own = {int(at): one for at, one in listed.items()} if isinstance(listed, dict) else None
    given = {} if own is None else dict(own.get(index) or {})
    prefixed = {
        key: f"swa_{key}" for key in (*_DOTS3_SLIDING, "head_dim", "qk_rope_head_dim", "num_key_value_heads")
    }
    config.unused(*prefixed.values())
    if sliding and own is None:
        given = _DOTS3_SLIDING | {
            key: config.values[old] for key, old in prefixed.items() if config.values.get(old) is not None
        }
        head = given.pop("head_dim", 256)
        given.setdefault("qk_rope_head_dim", head - given["qk_nope_head_dim"])
    return replace(config, values={**config.values, **given})
