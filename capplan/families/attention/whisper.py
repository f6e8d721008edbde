"""Whisper: an encoder reads thirty seconds of sound, a decoder with cross-attention writes what was said."""

from dataclasses import replace

from capplan.families.config import Config
from capplan.families.head import stated_class
from capplan.families.parts.blocks import Heads, attention_output, decoder, plain_mlp, qkv
from capplan.families.parts.blocks import attention as self_attention
from capplan.families.parts.towers import encoder_block, linear
from capplan.model.images import Tower
from capplan.model.network import CROSS_KV, CrossAttention, Encoder, Layer, Network


def read_whisper(config: Config, name: str) -> Network:
    """Return a Whisper; keys have no bias, and norms stand before self-attention, cross-attention and feed-forward."""
    stated = stated_class(config)
    if stated and stated not in ("WhisperForConditionalGeneration", "WhisperModel"):
        raise config.error(
            "architectures",
            f"{stated!r} is a part of Whisper that is not modelled by itself",
            "allowed: WhisperForConditionalGeneration, WhisperModel",
        )
    hidden, source = config.dimension("d_model"), config.dimension("max_source_positions")
    shape = _heads(config, hidden, "decoder_attention_heads")
    wide, count = config.dimension("decoder_ffn_dim"), config.layers("decoder_layers")
    layer = _layer(shape, wide, source)
    positions = config.dimension("max_target_positions")
    rows = config.dimension("vocab_size") + positions
    network = decoder(
        config, name, [layer] * count, hidden=hidden, final_norm=2 * hidden, embedding_parameters=rows * hidden, tied_default=True
    )  # fmt: skip
    bins, inner, depth = (
        config.dimension("num_mel_bins"),
        config.dimension("encoder_ffn_dim"),
        config.layers("encoder_layers"),
    )
    tower = Tower(
        layers=depth,
        hidden_size=hidden,
        intermediate_size=inner,
        heads=_heads(config, hidden, "encoder_attention_heads").query_heads,
        gated=False,
        patch_inputs=2 * 3 * bins + 3 * hidden,
        merger=(),
    )
    convolutions = linear(3 * bins, hidden) + linear(3 * hidden, hidden)
    size = convolutions + depth * encoder_block(hidden, inner, biased=3) + 2 * hidden + source * hidden
    config.unused(*(key for key in config.values if key.startswith("mask_")), "apply_spec_augment")
    config.unused("classifier_proj_size", "use_weighted_layer_sum", "median_filter_width", "scale_embedding")
    config.notes.append(
        f"an encoder-decoder: every sequence holds keys and values of {source:,} positions of its source besides those of its text"
    )
    return replace(
        network,
        max_context_tokens=positions,
        encoder=Encoder(source, tower),
        vision_parameters=size,
        notes=tuple(config.notes),
        keys_used=tuple(config.keys_used),
    )


def _heads(config: Config, hidden: int, key: str) -> Heads:
    heads = config.dimension(key, most=100_000)
    head_dim = config.divisible("d_model", hidden, key, heads)
    return Heads(hidden, heads, heads, head_dim, head_dim)


def _layer(shape: Heads, wide: int, source: int) -> Layer:
    """Return a layer of the decoder; the encoder's pass multiplies the matrix of its cross-attention that makes keys and values."""
    hidden = shape.hidden_size
    fused = replace(qkv(shape), bias=2 * hidden)
    queries = replace(fused, name="cross_q", outputs=hidden, bias=hidden, kv_outputs=0, kv_heads=0)
    keys = replace(fused, name=CROSS_KV, outputs=2 * hidden, bias=hidden, matmul=False)
    back = attention_output(shape, bias=True)
    matmuls = (
        fused, back, queries, keys, replace(back, name="cross_o"), *plain_mlp(hidden, wide, bias=True),
    )  # fmt: skip
    mixers = (self_attention(shape), CrossAttention(shape.query_heads, shape.head_dim, source))
    return Layer(mixers, matmuls, None, 3 * 2 * hidden)
