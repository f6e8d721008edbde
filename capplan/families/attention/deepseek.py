"""DeepSeek V2, V3, V3.2 and models built like them: Kimi K2, GLM-4.7 Flash, GLM-5, LongCat Flash, dots.llm1, DeepSeek-VL2 and DeepSeek-OCR.

Towers of DeepSeek-VL2 and DeepSeek-OCR as vLLM builds them (`deepseek_vl2.py`, `deepseek_ocr.py`): https://github.com/vllm-project/vllm.
"""

from capplan.families.config import Config
from capplan.families.parts.blocks import (
    Heads,
    Part,
    decoder,
    decoder_layer,
    gated_mlp,
    heads,
    latent_attention,
    routed,
    router,
    with_tower,
    with_vision,
)
from capplan.families.parts.stacks import (
    Traits,
    block_decoder,
    deepseek_mixture,
    dense_mlp,
    layer_windows,
    parts_after,
    with_next_token_layers,
)
from capplan.families.parts.towers import clip_of_ocr, encoder_block, linear, segment_anything
from capplan.families.parts.vision import moonvit
from capplan.model.network import Layer, Network


def read_latent(config: Config, name: str, *, indexer: bool = False) -> Network:
    """Return a network of latent attention, dense feed-forward first, then shared and routed experts."""
    hidden = config.dimension("hidden_size")
    layers = config.layers()
    bias = config.flag("attention_bias", default=False)
    parts = _parts(config, hidden, layers)
    reuses = reuses_index(config, layers)
    made: dict[tuple[int, bool], Layer] = {}
    stack = []
    for part, reused in zip(parts, reuses, strict=True):
        key = (id(part), reused)
        if key not in made:
            mixer, mixing, norms = latent_attention(
                config, hidden, attention_bias=bias, indexer=indexer, index_cached=not reused
            )
            made[key] = decoder_layer(mixer, mixing, part, 2 * hidden + norms)
        stack.append(made[key])
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
    bias = config.flag("attention_bias", default=False)
    parts = _parts(config, hidden, config.layers())
    return block_decoder(config, name, Traits(qkv_bias=bias, output_bias=bias), parts, shape=shape)


def read_indexed(config: Config, name: str) -> Network:
    """Return a DeepSeek V3.2 or GLM-5: latent attention over the tokens that its indexer selects."""
    return read_latent(config, name, indexer=True)


def _parts(config: Config, hidden: int, layers: int) -> list[Part]:
    experts = config.optional("n_routed_experts", least=0)
    if not experts:
        return [(gated_mlp(hidden, config.dimension("intermediate_size")), None)] * layers
    sparse = deepseek_mixture(config, hidden)
    config.unused("intermediate_size")
    first = config.count("first_k_dense_replace", default=1 if config.model_type == "glm4_moe_lite" else 0)
    dense = sparse
    if first or config.has("mlp_layer_types"):
        dense = gated_mlp(hidden, config.dimension("intermediate_size")), None
    every = config.dimension("moe_layer_freq", default=1) if config.has("moe_layer_freq") else 1
    if every != 1:
        raise config.error("moe_layer_freq", f"{every} is not modelled", "allowed: 1")
    return parts_after(config, dense, sparse, layers, first)


def reuses_index(config: Config, layers: int) -> list[bool]:
    """Return which layers take the tokens that an earlier layer's indexer selected."""
    kinds = config.items("indexer_types", length=layers)
    if kinds is None:
        return _scheduled_reuses(config, layers)
    for i, kind in enumerate(kinds[:layers]):
        if kind not in ("full", "shared"):
            raise config.error(f"indexer_types[{i}]", f"{kind!r} is not known", "allowed: full, shared")
    return [kind == "shared" for kind in kinds[:layers]]


def _scheduled_reuses(config: Config, layers: int) -> list[bool]:
    """Return which layers reuse an index by a pattern of letters, or by a frequency after the first layers."""
    pattern = config.text("index_topk_pattern", default="")
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
    mixer, mixing, norms = latent_attention(
        config, hidden, attention_bias=config.flag("attention_bias", default=False)
    )
    dense = gated_mlp(hidden, config.dimension("ffn_hidden_size"))
    experts = config.dimension("n_routed_experts")
    idle = config.count("zero_expert_num")
    chosen = config.dimension("moe_topk")
    real = max(1, round(chosen * experts / (experts + idle)))
    config.notes.append(f"{chosen} of {experts} + {idle} experts per token; {real} of them real on average")
    biased = config.flag("router_bias", default=False)
    mixed = (
        (router(hidden, experts + idle, bias=biased), *dense),
        routed(config, experts, real, hidden, config.dimension("expert_ffn_hidden_size")),
    )
    first = decoder_layer(mixer, mixing, mixed, 2 * hidden + norms)
    second = decoder_layer(mixer, mixing, (dense, None), 2 * hidden + norms)
    return decoder(config, name, [first, second] * config.layers("num_layers"), hidden=hidden)


def read_dots1(config: Config, name: str) -> Network:
    """Return a dots.llm1: head norms, dense layers first, then shared and routed experts."""
    bias = config.flag("attention_bias", default=False)
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
    return block_decoder(
        config,
        name,
        traits,
        parts_after(config, dense, sparse, layers, first),
        shape=shape,
        windows=layer_windows(config, layers, window, default=sliding),
    )


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
    return map_encoder + clip_of_ocr(
        clip.layers("layers"),
        clip.dimension("width"),
        clip.dimension("patch_size"),
        clip.dimension("image_size"),
    )


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
