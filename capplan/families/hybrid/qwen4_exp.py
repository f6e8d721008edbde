"""Qwen 4 (Qwen3.8-Flash-Next): gated delta net and block-sparse attention between residual streams, with tables of n-grams.

Caches and states after vLLM, `vllm/models/qwen4_exp` (`QSAKeyStateCache`, `QSACompressedKeyCache`, `Qwen4ExpPLELayer`).
"""

from dataclasses import dataclass, replace
from itertools import count, islice
from math import isqrt

from capplan.families.config import Config
from capplan.families.hybrid.qwen3_next import sparse_feed_forward
from capplan.families.parts.blocks import Heads, attention, attention_output, decoder, heads, qkv, with_tower
from capplan.families.parts.state_blocks import gated_delta_net, layer_kinds
from capplan.families.parts.vision import qwen3_vision
from capplan.model.network import Attention, Layer, Mixer, Network, Projection, ShortConvolution
from capplan.model.parameters import layer_parameters

_KINDS = {"linear_attention": "state", "indexed_attention": "attention", "full_attention": "attention"}
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
    kinds = layer_kinds(config, ("layer_types",), layers, _KINDS, default)
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
    bias = config.flag("attention_bias", default=False)
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
    longest = config.dimension("ngram_size", default=3, least=2)
    tables = (longest - 1) * config.dimension("heads_per_ngram", default=8)
    if layers * tables > MOST_TABLES:
        raise config.error(
            "heads_per_ngram",
            f"{layers * tables} hashed tables",
            f"allowed: up to {MOST_TABLES} in all layers",
        )
    each = config.divisible("ple_embed_dim", width, "n-gram heads", tables)
    primes = primes_from(config.dimension("ngram_vocab_size_base", default=20_000_000), layers * tables)
    multiple = config.dimension("make_ngram_vocab_size_divisible_by", default=128)
    sums = [sum(primes[one * tables : (one + 1) * tables]) for one in range(layers)]
    return [-(-rows // multiple) * multiple for rows in sums], each


def _ngrams(
    config: Config, streams: _Streams, rows: int, each: int
) -> tuple[Mixer, tuple[Projection, ...], int]:
    """Return the convolution, the table, the matmuls and the norms of the features of n-grams in one layer."""
    width, taps = (
        config.optional("ple_embed_dim") or streams.hidden,
        config.dimension("ple_conv_kernel_size", default=4),
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
    mixer = ShortConvolution(streams.width, taps, dilation=config.dimension("ngram_size", default=3))
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
