"""DeepSeek V4.1: entries that later layers share, an index of two levels, hashed tables of n-grams, streams, experts, a drafter of its own.

Shapes after the reference code that is published with the model (inference/model.py of deepseek-ai/DeepSeek-V4.1-Flash).
"""

from dataclasses import dataclass, replace

from capplan.families.attention.deepseek_v4 import streamed_attention
from capplan.families.config import Config
from capplan.families.parts.blocks import Part, decoder, gated_mlp, routed, router, with_vision
from capplan.families.parts.towers import linear
from capplan.model.network import Layer, Network, Projection
from capplan.model.parameters import layer_parameters

_UNCALIBRATED = "compressed attention: the time of its kernels is a formula with the rates of latent attention; no measured kernel backs it"
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
    plan = _Sources.read(config, count)
    part = _mixture(
        config, hidden, config.dimension("n_routed_experts"), config.dimension("num_experts_per_tok")
    )
    made = {}
    layers = []
    for index in range(count):
        form = plan.of(index)
        if form not in made:
            made[form] = _layer(config, hidden, form, part)
        layers.append(made[form])
    for index, rows in _tables(config, count):
        matmuls, vectors = _ngrams(config, hidden, rows)
        layer = layers[index]
        layers[index] = replace(
            layer, projections=(*matmuls, *layer.projections), norm_parameters=layer.norm_parameters + vectors
        )
    config.notes.append(_UNCALIBRATED)
    config.unused(
        "num_key_value_heads", "intermediate_size", "dspark_block_size", "engram_compressed_vocab_size", "hc_pre_from_prev_sublayer",
        "q_head_norm", "candidate_topk_blocks", "candidate_block_size", "candidate_source_layer_id", "candidate_source_layer",
        "expert_dtype", "first_k_dense_replace",
    )  # fmt: skip
    network = decoder(config, name, layers, hidden=hidden)
    return _with_drafter(config, network, hidden)


@dataclass(frozen=True, slots=True)
class _Form:
    """What one layer reads beyond its window, and what of it is its own."""

    ratio: int
    """Tokens per entry; 0: window only."""
    compresses: bool = False
    indexes: bool = False


@dataclass(frozen=True, slots=True)
class _Sources:
    ratios: tuple[int, ...]
    entries: frozenset[int]
    """Layers that make entries and index keys."""
    selections: frozenset[int]
    """Layers that select entries."""

    @classmethod
    def read(cls, config: Config, count: int) -> "_Sources":
        """Return the tokens per entry of each layer and the layers that later ones read from."""
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
        return cls(ratios, *listed)

    def of(self, index: int) -> _Form:
        """Return the form of one layer."""
        ratio = self.ratios[index]
        return _Form(ratio, bool(ratio) and index in self.entries, bool(ratio) and index in self.selections)


def _mixture(config: Config, hidden: int, experts: int, per_token: int) -> Part:
    width = config.dimension("moe_intermediate_size")
    shared = config.count("n_shared_experts", default=1)
    if shared != 1:  # the reference builds one whatever the key says
        raise config.error("n_shared_experts", f"{shared} is not modelled", "allowed: 1")
    matmuls = (router(hidden, experts), *gated_mlp(hidden, width, tensor_class="shared_expert"))
    return matmuls, routed(config, experts, per_token, hidden, width)


def _layer(config: Config, hidden: int, form: _Form, part: Part) -> Layer:
    plain, rank, matmuls, vectors = streamed_attention(config, hidden, form.ratio)
    width, streams = plain.head_dim, config.dimension("hc_mult", default=4)
    index_heads, index_dim = config.dimension("index_n_heads"), config.dimension("index_head_dim")
    mixer = replace(
        plain,
        index_heads=index_heads if form.indexes else 0,
        index_head_dim=index_dim if form.indexes else 0,
        index_top_entries=config.dimension("index_topk") if form.ratio else 0,
        shared_entries=True,
        owns_entries=form.compresses,
    )
    if form.compresses:
        series = 2 if form.ratio > 1 else 1  # values, and their gates where there is something to pool
        matmuls += (
            Projection("compress", "other", hidden, series * width, "none"),
            Projection("index_k", "other", width, index_dim, "none"),
        )
        vectors += width + index_dim
    if form.indexes:
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
    part = _mixture(config, hidden, experts, per_token)
    layer = _layer(config, hidden, _Form(0), part)
    targets = config.whole_numbers("dspark_target_layer_ids") or ()
    around = len(targets) * hidden * hidden + 2 * hidden
    around += 2 * rank * network.vocabulary_size + hidden + rank
    held = layer.experts and replace(layer.experts, experts=experts * depth)
    return replace(network, mtp_parameters=around + depth * layer_parameters(layer), mtp_experts=held)


def _tower(vision: Config, text: int) -> int:
    """Return the parameters of the vision tower, of what joins it to the text, and of three delimiters of images."""
    hidden, wide = (
        vision.dimension("hidden_size", default=1024),
        vision.dimension("intermediate_size", default=2816),
    )
    patch, merged = (
        vision.dimension("patch_size", default=14),
        vision.dimension("downsample_ratio", default=3),
    )
    vision.unused("num_attention_heads", "max_image_tokens", "max_num_tokens", "min_pixels", "max_wh_ratio")
    block = linear(hidden, 3 * hidden) + linear(hidden, hidden) + 3 * hidden * wide + 2 * hidden
    tower = linear(3 * patch * patch, hidden) + vision.dimension("num_hidden_layers") * block + hidden
    return tower + linear(hidden * merged * merged, text) + linear(text, text) + 3 * text
