"""Gated delta net in most layers: Qwen3-Next, Qwen3.5 and OLMo Hybrid with attention in the fourth, Qwen 4 with block-sparse attention and streams.

Caches and states of Qwen 4 after vLLM, `vllm/models/qwen4_exp` (`QSAKeyStateCache`, `QSACompressedKeyCache`, `Qwen4ExpPLELayer`).
"""

from dataclasses import dataclass, replace
from itertools import count, islice
from math import isqrt

from capplan.families.config import Config
from capplan.families.parts.blocks import (
    Heads,
    Part,
    attention,
    attention_output,
    decoder,
    gated_mlp,
    heads,
    qkv,
    with_tower,
)
from capplan.families.parts.stacks import Traits, block, dense_mlp, mixture
from capplan.families.parts.state_blocks import gated_delta_net
from capplan.families.parts.vision import qwen3_vision
from capplan.model.network import Attention, Layer, Mixer, Network, Projection, ShortConvolution
from capplan.model.parameters import layer_parameters

_KINDS = {"linear_attention": "state", "full_attention": "attention"}


def sparse_feed_forward(config: Config, hidden: int) -> Part:
    """Return routed experts with a gated shared expert."""
    matmuls, experts = mixture(
        config, hidden, "moe_intermediate_size", shared="shared_expert_intermediate_size"
    )
    return (*matmuls, Projection("shared_gate", "router", hidden, 1, "none")), experts


def _is_dense(config: Config, index: int) -> bool:
    only = config.items("mlp_only_layers") or ()
    step = config.count("decoder_sparse_step", default=1)
    return index in only or step == 0 or (index + 1) % step != 0


def read_qwen3_next(config: Config, name: str) -> Network:
    """Return a Qwen3-Next or the text half of a Qwen3.5, dense or with experts."""
    hidden = config.dimension("hidden_size")
    config.unused("intermediate_size", "attn_output_gate")
    count = config.layers()
    shape = heads(config, hidden=hidden, default_head_dim=256)
    bias = config.flag("attention_bias")
    delta = gated_delta_net(config, hidden)
    attending = (
        # queries come with a gate of the same width
        qkv(shape, bias=bias, gate_outputs=shape.query_heads * shape.head_dim),
        attention_output(shape, bias=bias),
    )
    sparse = (
        sparse_feed_forward(config, hidden)
        if config.has("num_experts") and config.count("num_experts")
        else None
    )

    def layer(kind: str, index: int) -> Layer:
        part = sparse
        if part is None or _is_dense(config, index):
            part = gated_mlp(hidden, config.dimension("intermediate_size")), None
        if kind == "attention":
            norms = 2 * hidden + 2 * shape.head_dim
            return Layer((attention(shape),), (*attending, *part[0]), part[1], norms)
        return delta.layer(2 * hidden, part)

    interval = config.optional("full_attention_interval") or 4
    default = ["state" if (index + 1) % interval else "attention" for index in range(count)]
    kinds = config.kinds("layer_types", layers=count, known=_KINDS, default=default)
    network = decoder(config, name, [layer(kind, index) for index, kind in enumerate(kinds)], hidden=hidden)
    return _with_mtp(config, network, layer("attention", count - 1), hidden)


def _with_mtp(config: Config, network: Network, layer: Layer, hidden: int) -> Network:
    """Return the network with its multi-token-prediction layers: attention layers after one joining matmul."""
    depth = config.count("mtp_num_hidden_layers", "num_nextn_predict_layers")
    if not depth:
        return network
    joining = 2 * hidden * hidden + 3 * hidden
    experts = layer.experts and replace(layer.experts, experts=layer.experts.experts * depth)
    return replace(network, mtp_parameters=joining + depth * layer_parameters(layer), mtp_experts=experts)


def read_qwen3_5(config: Config, name: str) -> Network:
    """Return a Qwen3.5 (3.6, ...): text decoder and vision tower."""
    text = config.section("text_config")
    if text is None:
        return read_qwen3_next(config, name)
    network = read_qwen3_next(text, name)
    return with_tower(network, config, lambda vision, _: qwen3_vision(vision))


def read_olmo_hybrid(config: Config, name: str) -> Network:
    """Return an OLMo Hybrid: norms before a gated delta net, after attention, and over all its queries and keys."""
    shape = heads(config)
    count, hidden = config.layers(), shape.hidden_size
    traits = Traits(qk_norm_over_all_heads=True)
    bias = config.flag("attention_bias")
    part = dense_mlp(config, shape, traits)
    attended = block(shape, replace(traits, qkv_bias=bias, output_bias=bias), part)
    key_heads = config.optional("linear_num_key_heads") or shape.query_heads
    delta = gated_delta_net(
        config,
        hidden,
        default_heads=(shape.query_heads, shape.query_heads),
        default_key_dim=max(1, 3 * hidden // (4 * key_heads)),
    )
    stated = delta.layer(2 * hidden, part)
    default = ["state" if index % 4 != 3 else "attention" for index in range(count)]
    default[-1] = default[-1] if "attention" in default else "attention"
    kinds = config.kinds("layer_types", layers=count, known=_KINDS, default=default)
    layers = [attended if kind == "attention" else stated for kind in kinds]
    return decoder(config, name, layers, hidden=hidden)


_KINDS_WITH_INDEX = {
    "linear_attention": "state",
    "indexed_attention": "attention",
    "full_attention": "attention",
}
MOST_TABLES = 1024
"""Hashed tables of all layers; a larger number is a mistake, and its primes would take long."""
_OF_TABLES = (
    "heads_per_ngram", "make_ngram_vocab_size_divisible_by", "ngram_size", "ngram_vocab_size_base", "ple_conv_kernel_size", "ple_embed_dim",
    "ple_embedding_dtype",
)  # fmt: skip
"""Keys that count in models with such tables only."""
_SECTION_POSITIONS = 12
"""Elements of 16 bits that three positions of eight bytes take, which engines keep with a raw index key of a model with images."""


def read_qwen4_exp(config: Config, name: str) -> Network:
    """Return a Qwen 4: text decoder and vision tower."""
    network = read_qwen4_exp_text(config.needed_section("text_config"), name)
    return with_tower(network, config, lambda vision, _: qwen3_vision(vision))


def read_qwen4_exp_text(config: Config, name: str) -> Network:
    """Return the text half of a Qwen 4."""
    hidden, layers = config.dimension("hidden_size"), config.layers()
    shape = heads(config, hidden=hidden, default_head_dim=256)
    streams = _Streams(hidden, config.dimension("hc_count", least=2), config.dimension("hc_lowrank"))
    delta = gated_delta_net(config, hidden)
    part = sparse_feed_forward(config, hidden)
    mixes = streams.mixing()
    attending, matmuls_of_attention = _attending(config, shape)
    interval = config.optional("full_attention_interval") or 4
    default = ["state" if (index + 1) % interval else "attention" for index in range(layers)]
    kinds = config.kinds("layer_types", layers=layers, known=_KINDS_WITH_INDEX, default=default)
    stated = delta.layer(2 * streams.width, ((*mixes, *part[0]), part[1]))
    attention_layer = Layer(
        (attending,),
        (*matmuls_of_attention, *mixes, *part[0]),
        part[1],
        2 * streams.width + 2 * shape.head_dim + 2 * attending.index_head_dim,
    )
    stack = [
        replace(stated if kind == "state" else attention_layer, residual_streams=streams.count)
        for kind in kinds
    ]
    with_tables = _table_layers(config, kinds)
    tables, each = _tables(config, hidden, len(with_tables)) if with_tables else ([], 0)
    for one, rows in zip(with_tables, tables, strict=True):
        mixer, matmuls, vectors = _ngrams(config, streams, rows, each)
        layer = stack[one]
        stack[one] = replace(
            layer,
            mixers=(*layer.mixers, mixer),
            projections=(*matmuls, *layer.projections),
            norm_parameters=layer.norm_parameters + vectors,
        )
    config.unused(
        "seed",
        "split_ngram_parts",
        "mtp_use_dedicated_embeddings",
        "mtp",
        "number_of_conv_states",
        *_OF_TABLES,
    )
    joined = streams.joining("last")
    predicting = replace(attention_layer, residual_streams=streams.count)
    stack[-1] = replace(stack[-1], projections=(*stack[-1].projections, *joined))
    network = decoder(config, name, stack, hidden=hidden, final_norm=streams.width)
    depth = config.count("mtp_num_hidden_layers", "num_nextn_predict_layers")
    if not depth or predicting.experts is None:
        return network
    around = sum(one.parameters for one in joined) + 2 * streams.width + 2 * hidden * hidden + hidden
    return replace(
        network,
        mtp_parameters=around + depth * layer_parameters(predicting),
        mtp_experts=replace(predicting.experts, experts=predicting.experts.experts * depth),
    )


@dataclass(frozen=True, slots=True)
class _Streams:
    """Residual streams, which each block reads through a low-rank mixer and writes with a weight for each stream."""

    hidden: int
    count: int
    rank: int

    @property
    def width(self) -> int:
        """Elements of all streams."""
        return self.hidden * self.count

    def joining(self, block: str) -> tuple[Projection, ...]:
        """Return the matmuls that make the input of a block from all streams."""
        return (
            Projection(f"mix_{block}_down", "other", self.width, self.rank, "none"),
            Projection(f"mix_{block}_up", "other", self.rank, self.width, "none"),
        )

    def mixing(self) -> tuple[Projection, ...]:
        """Return the matmuls of the streams around attention and feed-forward of one layer."""
        return tuple(
            one
            for block in ("attention", "feed_forward")
            for one in (
                *self.joining(block),
                Projection(f"mix_{block}_inject", "other", self.width, self.count, "none"),
            )
        )


def _attending(config: Config, shape: Heads) -> tuple[Attention, tuple[Projection, ...]]:
    """Return attention over the blocks that an indexer chooses by one key each, the mean of its tokens' keys, and its matmuls."""
    bias = config.flag("attention_bias")
    matmuls = (
        qkv(shape, bias=bias, gate_outputs=shape.query_heads * shape.head_dim),
        attention_output(shape, bias=bias),
    )
    index_heads, width = config.dimension("indexer_n_heads"), config.dimension("indexer_head_dim")
    if config.dimension("indexer_kv_heads", default=1) != 1:
        raise config.error("indexer_kv_heads", "more than one key is not modelled", "allowed: 1")
    pool, budget = config.dimension("indexer_compress_ratio"), config.dimension("indexer_budget")
    config.divisible("indexer_budget", budget, "indexer_compress_ratio", pool)
    rotary = config.section("rope_parameters", "rope_scaling")
    of_images = rotary is not None and rotary.has("mrope_section")
    indexed = replace(
        attention(shape, query_key_norms="head"),
        index_heads=index_heads,
        index_head_dim=width,
        index_top_tokens=budget,
        index_pool_tokens=pool,
        index_tail_elements=pool * (width + (_SECTION_POSITIONS if of_images else 0)),
    )
    return indexed, (
        *matmuls,
        Projection("index_qk", "attention", shape.hidden_size, (index_heads + 1) * width, "none"),
    )


def _table_layers(config: Config, kinds: list[str]) -> list[int]:
    """Return the layers that add features of n-grams, counted from 0; files count them from 1."""
    stated = sorted(set(config.whole_numbers("ple_layer_ids") or ()))
    for one in stated:
        if not 1 <= one <= len(kinds) or kinds[one - 1] != "state":
            raise config.error(
                "ple_layer_ids", f"{one} is no layer of linear attention", "allowed: layers, from 1 on"
            )
    return [one - 1 for one in stated]


def _tables(config: Config, hidden: int, layers: int) -> tuple[list[int], int]:
    """Return the rows of the table of each such layer, and the width of a row: a hashed table of a prime size for each head."""
    width = config.optional("ple_embed_dim") or hidden
    longest = config.dimension("ngram_size", least=2)
    tables = (longest - 1) * config.dimension("heads_per_ngram")
    if layers * tables > MOST_TABLES:
        raise config.error(
            "heads_per_ngram",
            f"{layers * tables} hashed tables",
            f"allowed: up to {MOST_TABLES} in all layers",
        )
    each = config.divisible("ple_embed_dim", width, "n-gram heads", tables)
    primes = primes_from(config.dimension("ngram_vocab_size_base"), layers * tables)
    multiple = config.dimension("make_ngram_vocab_size_divisible_by")
    sums = [sum(primes[one * tables : (one + 1) * tables]) for one in range(layers)]
    return [-(-rows // multiple) * multiple for rows in sums], each


def _ngrams(
    config: Config, streams: _Streams, rows: int, each: int
) -> tuple[Mixer, tuple[Projection, ...], int]:
    """Return the convolution, the table, the matmuls and the norms of the features of n-grams in one layer."""
    width, taps = (
        config.optional("ple_embed_dim") or streams.hidden,
        config.dimension("ple_conv_kernel_size"),
    )
    stored = config.text("ple_embedding_dtype", default="bfloat16").removeprefix("torch.")
    matmuls = (
        Projection(
            "ngram_table", "embedding", rows, each, "rows", matmul=False,
            weight_format="fp8" if stored == "float8_e4m3fn" else "bf16",
        ),
        Projection("ngram_key", "other", width, streams.width, "none"),
        Projection("ngram_value", "other", width, streams.hidden, "none"),
    )  # fmt: skip
    mixer = ShortConvolution(streams.width, taps, dilation=config.dimension("ngram_size"))
    return mixer, matmuls, (3 + taps) * streams.width


def primes_from(least: int, wanted: int) -> list[int]:
    """Return so many primes that are not below a number: rows of hashed tables.

    Examples
    --------
    >>> primes_from(20, 3), sum(primes_from(20_000_000, 16))
    ([23, 29, 31], 320001446)
    """
    numbers = (
        number
        for number in count(max(2, least))
        if all(number % divisor for divisor in range(2, isqrt(number) + 1))
    )
    return list(islice(numbers, wanted))
