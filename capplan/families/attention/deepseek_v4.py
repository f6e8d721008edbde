"""DeepSeek V4: a window and compressed entries in every layer, several residual streams, hashed and routed experts."""

from dataclasses import replace

from capplan.families.config import Config
from capplan.families.parts.blocks import Part, decoder, gated_mlp, routed, router, stream_head, stream_mixing
from capplan.families.parts.stacks import with_next_token_layers
from capplan.model.network import CompressedAttention, Layer, Network, Projection

_KINDS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
"""Tokens per entry of the kinds that newer configs name in `layer_types`."""
_UNCALIBRATED = (
    "compressed attention: the time of its kernels is a formula with the rates of latent attention; "
    "no measured kernel backs it"
)


def read_deepseek_v4(config: Config, name: str) -> Network:
    """Return a DeepSeek V4: each layer reads a window and entries that compress 4 or 128 earlier tokens each.

    Matrices that its checkpoints leave in 16 bits (compressors, head weights of the indexer, stream mixing) are of
    class "other", so that no quantiser converts them.
    """
    hidden, layers = config.dimension("hidden_size"), config.layers()
    part = _mixture(config, hidden)
    ratios = _entry_tokens(config, layers)
    made = {ratio: _layer(config, hidden, ratio, part) for ratio in dict.fromkeys((*ratios, 0))}
    streams = config.dimension("hc_mult", default=4)
    head = stream_head(hidden, streams)
    config.notes.append(_UNCALIBRATED)
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


def _mixture(config: Config, hidden: int) -> Part:
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
    mixes, mixed = stream_mixing(hidden, streams, (2 + streams) * streams, scales=3)
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


def _layer(config: Config, hidden: int, ratio: int, part: Part) -> Layer:
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
