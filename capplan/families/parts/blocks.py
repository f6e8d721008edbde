"""The building blocks that families share: attention, feed-forward, norms, the whole decoder, and the tokens that an image becomes.

Limits of images in pixels are those of the published processors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from capplan.families.config import Config
from capplan.model.images import ImageRule, Tower
from capplan.model.network import (
    Attention,
    Experts,
    LatentAttention,
    Layer,
    Mixer,
    Network,
    Projection,
    TensorClass,
)

_QWEN2_LIMITS = (3136, 12_845_056)
"""Pixels of Qwen 2-VL and 2.5-VL: preprocessor_config.json of Qwen/Qwen2.5-VL-7B-Instruct."""
_QWEN3_LIMITS = (65_536, 16_777_216)
"""Pixels of Qwen 3-VL: preprocessor_config.json of Qwen/Qwen3-VL-8B-Instruct."""
_GEMMA3_TOKENS = 256
_PIXTRAL_EDGE = 1540
_QWEN2_5_WINDOW, _QWEN2_5_WHOLE = 112, 4
"""Side of a window in pixels, and layers without one, where the file does not say."""

Rule = Callable[[Config, Config, int], ImageRule]
"""The file, its vision section, hidden size of the text -> rule."""


def _stated(config: Config, key: str, otherwise: int) -> int:
    """Return a key that changes no parameter, if it is a size."""
    value = config.values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else otherwise


def _qwen2(_config: Config, vision: Config, text: int) -> ImageRule:
    hidden = vision.dimension("embed_dim", default=1280)
    wide = int(hidden * vision.ratio("mlp_ratio", default=4.0))
    return _resized(vision, text, (hidden, wide, vision.dimension("depth")), _QWEN2_LIMITS)


def _qwen2_5(_config: Config, vision: Config, text: int) -> ImageRule:
    sizes = (
        vision.dimension("hidden_size", default=1280),
        vision.dimension("intermediate_size", default=3420),
        vision.dimension("depth"),
    )
    listed = vision.values.get("fullatt_block_indexes")
    side = _stated(vision, "window_size", _QWEN2_5_WINDOW) // vision.dimension("patch_size")
    whole = len(listed) if isinstance(listed, list) else _QWEN2_5_WHOLE
    return _resized(vision, text, sizes, _QWEN2_LIMITS, gated=True, windows=(side * side, whole))


def _qwen3(_config: Config, vision: Config, _text: int) -> ImageRule:
    sizes = (
        vision.dimension("hidden_size"),
        vision.dimension("intermediate_size"),
        vision.layers("depth"),
    )
    mergers = 1 + len(vision.items("deepstack_visual_indexes") or ())
    return _resized(
        vision, vision.dimension("out_hidden_size"), sizes, _QWEN3_LIMITS, patch_size=16, mergers=mergers
    )


def _resized(
    vision: Config,
    out: int,
    sizes: tuple[int, int, int],
    limits: tuple[int, int],
    *,
    gated: bool = False,
    windows: tuple[int, int] = (0, 0),
    patch_size: int = 14,
    mergers: int = 1,
) -> ImageRule:
    """Return the rule of Qwen's towers, which keep the shape of an image: hidden size, width of the feed-forward, layers."""
    hidden, wide, layers = sizes
    patch = vision.dimension("patch_size", default=patch_size)
    merge = vision.dimension("spatial_merge_size", default=2)
    frames = vision.dimension("temporal_patch_size", default=2)
    channels = vision.dimension("in_channels", "in_chans", default=3)
    merged = hidden * merge * merge
    tower = Tower(
        layers,
        hidden,
        wide,
        _stated(vision, "num_heads", 16),
        gated,
        channels * frames * patch * patch,
        ((merged, merged), (merged, out)) * mergers,
        *windows,
    )
    return ImageRule("resized", patch * merge, patch, tower, least_pixels=limits[0], most_pixels=limits[1])


def _gemma3(config: Config, vision: Config, text: int) -> ImageRule:
    hidden = vision.dimension("hidden_size")
    patch = vision.dimension("patch_size")
    wide = vision.dimension("intermediate_size")
    tower = Tower(vision.layers(), hidden, wide, _stated(vision, "num_attention_heads", 12), False, 3 * patch * patch, ((hidden, text),))  # fmt: skip
    tokens = _stated(config, "mm_tokens_per_image", _GEMMA3_TOKENS)
    side = vision.dimension("image_size")
    return ImageRule("fixed", patch, patch, tower, side_pixels=side, fixed_tokens=tokens)


def _pixtral(config: Config, vision: Config, text: int) -> ImageRule:
    hidden = vision.dimension("hidden_size")
    patch = vision.dimension("patch_size")
    merge = config.dimension("spatial_merge_size")
    wide = vision.dimension("intermediate_size")
    merger = ((merge * merge * hidden, hidden), (hidden, text), (text, text))
    tower = Tower(
        vision.layers(), hidden, wide, _stated(vision, "num_attention_heads", 16), True, 3 * patch * patch, merger
    )  # fmt: skip
    edge = _stated(vision, "image_size", _PIXTRAL_EDGE)
    return ImageRule("rows", patch * merge, patch, tower, side_pixels=edge)


_RULES: dict[str, Rule] = {
    "gemma3": _gemma3,
    "mistral3": _pixtral,
    "qwen2_vl": _qwen2,
    "qwen2_5_vl": _qwen2_5,
    "qwen3_vl": _qwen3,
    "qwen3_vl_moe": _qwen3,
}
FAMILIES = tuple(_RULES)
"""`model_type` of the families whose images are modelled."""


def image_rule(config: Config, vision: Config, text_hidden_size: int) -> ImageRule | None:
    """Return how a file's images become tokens; None for a family that is not modelled.

    Parameters
    ----------
    config : the file
    vision : its section of the tower
    text_hidden_size : [-]
        width of the tokens of the text model
    """
    rule = _RULES.get(config.model_type)
    return None if rule is None else rule(config, vision, text_hidden_size)


Part = tuple[tuple[Projection, ...], Experts | None]
"""A feed-forward: its matmuls in order, and its routed experts if it has any."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of grouped-query attention; their divisibility is checked."""

    hidden_size: int
    query_heads: int
    kv_heads: int
    head_dim: int
    value_head_dim: int


def heads(
    config: Config,
    *,
    hidden: int | None = None,
    default_kv_heads: int | None = None,
    head_dim_keys: Sequence[str] = ("head_dim",),
    default_head_dim: int | None = None,
) -> Heads:
    """Return the heads under the usual keys; KV heads default to query heads, head_dim to hidden / heads.

    Examples
    --------
    >>> llama = Config({"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}, "config.json")
    >>> heads(llama)
    Heads(hidden_size=4096, query_heads=32, kv_heads=8, head_dim=128, value_head_dim=128)
    """
    hidden = hidden or config.dimension("hidden_size")
    query_heads = config.dimension("num_attention_heads", most=100_000)
    kv_heads = config.optional("num_key_value_heads") or default_kv_heads or query_heads
    config.divisible("num_attention_heads", query_heads, "num_key_value_heads", kv_heads)
    head_dim = config.optional(*head_dim_keys) or default_head_dim
    if head_dim is None:
        head_dim = config.divisible("hidden_size", hidden, "num_attention_heads", query_heads)
    return Heads(hidden, query_heads, kv_heads, head_dim, head_dim)


def qkv(shape: Heads, *, bias: bool = False, gate_outputs: int = 0) -> Projection:
    """Return query, key and value as one matmul; with `gate_outputs` columns of an output gate.

    Examples
    --------
    Llama-3-8B: 4096 columns of queries, 1024 of keys and 1024 of values.

    >>> qkv(Heads(4096, 32, 8, 128, 128)).outputs, qkv(Heads(4096, 32, 8, 128, 128)).kv_outputs
    (6144, 2048)
    """
    kv_outputs = shape.kv_heads * (shape.head_dim + shape.value_head_dim)
    outputs = shape.query_heads * shape.head_dim + gate_outputs + kv_outputs
    return Projection(
        "qkv",
        "attention",
        shape.hidden_size,
        outputs,
        "columns",
        bias=outputs if bias else 0,
        kv_outputs=kv_outputs,
        kv_heads=shape.kv_heads,
    )


def attention_output(shape: Heads, *, bias: bool = False) -> Projection:
    """Return the matmul that brings the heads back to the hidden size."""
    inputs = shape.query_heads * shape.value_head_dim
    return Projection(
        "o", "attention", inputs, shape.hidden_size, "rows", bias=shape.hidden_size if bias else 0
    )


def attention(
    shape: Heads,
    window_tokens: int | None = None,
    *,
    chunked: bool = False,
    cached: bool = True,
    query_key_norms: Literal["none", "head", "wide"] = "none",
    causal: bool = True,
) -> Attention:
    """Return the mixer of these heads."""
    return Attention(
        shape.query_heads,
        shape.kv_heads,
        shape.head_dim,
        shape.value_head_dim,
        window_tokens=window_tokens,
        chunked=chunked,
        cached=cached,
        query_key_norms=query_key_norms,
        causal=causal,
    )


def gated_mlp(
    hidden: int, intermediate: int, *, bias: bool = False, tensor_class: TensorClass = "ffn"
) -> tuple[Projection, ...]:
    """Return gate and up as one matmul, and down (SwiGLU, GeGLU); nothing where the width is zero.

    Examples
    --------
    >>> [(matrix.name, matrix.inputs, matrix.outputs) for matrix in gated_mlp(4096, 14336)]
    [('gate_up', 4096, 28672), ('down', 14336, 4096)]
    """
    return _mlp("gate_up", hidden, 2 * intermediate, intermediate, bias, tensor_class)


def plain_mlp(
    hidden: int, intermediate: int, *, bias: bool = False, tensor_class: TensorClass = "ffn"
) -> tuple[Projection, ...]:
    """Return up and down of a feed-forward without a gate; nothing where the width is zero."""
    return _mlp("up", hidden, intermediate, intermediate, bias, tensor_class)


def _mlp(
    name: str, hidden: int, outputs: int, intermediate: int, bias: bool, tensor_class: TensorClass
) -> tuple[Projection, ...]:
    """Return the first matmul of a feed-forward, under its name, and down; nothing where the width is zero."""
    if not intermediate:
        return ()
    prefix = "shared_" if tensor_class == "shared_expert" else ""
    return (
        Projection(f"{prefix}{name}", tensor_class, hidden, outputs, "columns", bias=outputs if bias else 0),
        Projection(f"{prefix}down", tensor_class, intermediate, hidden, "rows", bias=hidden if bias else 0),
    )


def router(hidden: int, experts: int, *, bias: bool = False, multiplied_in: str | None = None) -> Projection:
    """Return the matmul that scores the experts; every rank holds it whole."""
    biases = experts if bias else 0
    return Projection("router", "router", hidden, experts, "none", bias=biases, multiplied_in=multiplied_in)


def routed(
    config: Config,
    experts: int,
    per_token: int,
    hidden: int,
    intermediate: int,
    *,
    gated: bool = True,
    bias: int = 0,
) -> Experts:
    """Return the routed experts, with the number per token checked."""
    if per_token > experts:
        raise config.error(
            "num_experts_per_tok",
            f"{per_token} of {experts} experts",
            f"allowed: a whole number from 1 to {experts}",
        )
    return Experts(experts, per_token, hidden, intermediate, gated=gated, bias=bias)


def latent_attention(
    config: Config,
    hidden: int,
    *,
    attention_bias: bool = False,
    indexer: bool = False,
    index_cached: bool = True,
    rotary: bool = True,
) -> tuple[LatentAttention, tuple[Projection, ...], int]:
    """Return mixer, matmuls and norm parameters of multi-head latent attention.

    Where nothing is rotated, heads have the same width without a shared rotary key.

    The first matmul carries both low-rank inputs (q_a where there is one, and kv_a), as engines fuse
    them; kv_a is replicated on every rank, and so is q_a. The indexer of DeepSeek V3.2 adds its
    queries (from the query latent), its single key per token, and its head weights.
    """
    config.unused("head_dim", "qk_head_dim", "num_key_value_heads")
    query_heads = config.dimension("num_attention_heads", most=100_000)
    rope = config.dimension("qk_rope_head_dim", least=0)
    nope = config.dimension("qk_nope_head_dim")
    if not rotary:
        nope, rope = nope + rope, 0
    value = config.dimension("v_head_dim")
    kv_rank = config.dimension("kv_lora_rank")
    q_rank = config.optional("q_lora_rank")
    q_outputs = query_heads * (nope + rope)
    norm = kv_rank
    kv_a = Projection(
        "kv_a", "attention", hidden, kv_rank + rope, "none", bias=kv_rank + rope if attention_bias else 0
    )
    into: tuple[Projection, ...]
    if q_rank is None:
        into = (Projection("q", "attention", hidden, q_outputs, "columns"), kv_a)
    else:
        norm += q_rank
        q_a = Projection("q_a", "attention", hidden, q_rank, "none", bias=q_rank if attention_bias else 0)
        into = (q_a, kv_a, Projection("q_b", "attention", q_rank, q_outputs, "columns"))
    out = (
        Projection("kv_b", "attention", kv_rank, query_heads * (nope + value), "columns"),
        Projection(
            "o", "attention", query_heads * value, hidden, "rows", bias=hidden if attention_bias else 0
        ),
    )
    index_heads = index_dim = top = 0
    indexing: tuple[Projection, ...] = ()
    if indexer:
        index_heads = config.dimension("index_n_heads")
        index_dim = config.dimension("index_head_dim")
        top = config.dimension("index_topk")
    if indexer and index_cached:
        indexing = (
            Projection("index_q", "attention", q_rank or hidden, index_heads * index_dim, "none"),
            Projection("index_k", "attention", hidden, index_dim, "none"),
            Projection("index_weights", "attention", hidden, index_heads, "none"),
        )
        norm += 2 * index_dim
    mixer = LatentAttention(
        query_heads, kv_rank, rope, nope, value, index_heads, index_dim, top, index_cached=index_cached
    )
    return mixer, into + out + indexing, norm


def decoder_layer(
    mixer: Mixer, mixing: Sequence[Projection], feed_forward: Part, norm_parameters: int, **more: int
) -> Layer:
    """Return one block: mixer, its matmuls, its feed-forward."""
    matmuls, experts = feed_forward
    return Layer((mixer,), (*mixing, *matmuls), experts, norm_parameters, **more)


def decoder(
    config: Config,
    name: str,
    layers: Sequence[Layer],
    *,
    hidden: int,
    tied_default: bool = False,
    final_norm: int | None = None,
    embedding_parameters: int | None = None,
    head_bias: bool = False,
    vocabulary: int | None = None,
    tied: bool | None = None,
) -> Network:
    """Return the whole network: token embedding, layers, final norm, LM head."""
    vocabulary = vocabulary or config.dimension("vocab_size")
    if tied is None:
        tied = config.ties_embeddings(tied_default)
    return Network(
        name=name,
        model_type=config.model_type,
        hidden_size=hidden,
        vocabulary_size=vocabulary,
        layers=tuple(layers),
        lm_head=Projection(
            "lm_head", "lm_head", hidden, vocabulary, "columns", bias=vocabulary if head_bias else 0
        ),
        tied_embeddings=tied,
        embedding_parameters=vocabulary * hidden if embedding_parameters is None else embedding_parameters,
        final_norm_parameters=hidden if final_norm is None else final_norm,
        max_context_tokens=config.optional(
            "max_position_embeddings",
            "n_positions",
            "max_seq_len",
            "seq_length",
            "model_max_length",
            "max_sequence_length",
        ),  # in the order of vLLM
        notes=tuple(config.notes),
        keys_used=tuple(config.keys_used),
    )


def with_vision(network: Network, config: Config, vision_parameters: int) -> Network:
    """Return a text network as the text half of a vision model."""
    return replace(
        network,
        model_type=config.model_type,
        vision_parameters=vision_parameters,
        notes=tuple(config.notes),
        keys_used=tuple(config.keys_used),
    )


def with_tower(network: Network, config: Config, tower: Callable[[Config, int], int]) -> Network:
    """Return the network with the tower that `vision_config` describes, or with none where it is missing.

    `tower` returns the parameters of a section for a text model of a hidden size.
    """
    vision = config.section("vision_config")
    if vision is None:
        if config.stated_class is None or "vision_config" in config.stated_class.sections:
            config.uncounted("no vision_config: the vision tower is not counted")
        return with_vision(network, config, 0)
    config.unused("vision_feature_layer")
    vision.unused("num_heads", "num_attention_heads", "vt_num_attention_heads", "vision_feature_layer")
    images = image_rule(config, vision, network.hidden_size)
    return replace(with_vision(network, config, tower(vision, network.hidden_size)), images=images)


def hyper_connections(
    hidden: int, streams: int, mixes: int, *, scales: int
) -> tuple[tuple[Projection, ...], int]:
    """Return the matmuls that mix the streams around attention and feed-forward, and their biases and scales.

    Parameters
    ----------
    hidden : width of one stream [-]
    streams : streams [-]
    mixes : weights that one matmul gives out for all streams [-]
    scales : of these weights [-]

    Examples
    --------
    >>> matmuls, vectors = hyper_connections(4096, 4, 24, scales=3)
    >>> [(one.inputs, one.outputs) for one in matmuls], vectors
    ([(16384, 24), (16384, 24)], 54)
    """
    matmuls = tuple(
        Projection(f"mix_{block}", "other", streams * hidden, mixes, "none")
        for block in ("attention", "feed_forward")
    )
    return matmuls, 2 * (mixes + scales)


def stream_head(hidden: int, streams: int) -> int:
    """Return the parameters of what joins the streams after the last layer: a matrix, its biases and a scale."""
    return streams * streams * hidden + streams + 1
