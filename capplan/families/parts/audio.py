"""Audio towers, counted only, under the keys of their own classes."""

from math import log2

from capplan.families.config import Config
from capplan.families.parts.towers import encoder_block, linear


def _whisper_blocks(audio: Config, biased: int) -> int:
    audio.unused("num_attention_heads", "scale_embedding", "layerdrop", "encoder_layerdrop", "vocab_size")
    hidden = audio.dimension("hidden_size")
    wide = audio.dimension("intermediate_size")
    return audio.layers() * encoder_block(hidden, wide, biased=biased) + 2 * hidden


def _whisper_without_positions(audio: Config) -> int:
    hidden = audio.dimension("hidden_size")
    convolutions = linear(3 * audio.dimension("num_mel_bins"), hidden) + linear(3 * hidden, hidden)
    return convolutions + _whisper_blocks(audio, 3)


def whisper(audio: Config) -> int:
    """Return the parameters of the encoder of Whisper: two convolutions, positions, blocks whose keys have no bias."""
    positions = audio.dimension("max_source_positions") * audio.dimension("hidden_size")
    return _whisper_without_positions(audio) + positions


def qwen2_5_omni(audio: Config) -> int:
    """Return the parameters of the Qwen 2.5 Omni tower: Whisper with computed positions, two marks, a projection."""
    audio.unused("max_source_positions", "n_window")
    outputs = audio.dimension("output_dim")
    return _whisper_without_positions(audio) + 2 * outputs + linear(audio.dimension("hidden_size"), outputs)


def qwen3_omni(audio: Config) -> int:
    """Return the parameters of the Qwen 3 Omni tower: three halvings of time and frequency, blocks, two projections."""
    audio.unused(
        "max_source_positions", "max_position_embeddings", "n_window", "n_window_infer", "conv_chunksize"
    )
    hidden = audio.dimension("hidden_size")
    channels = audio.dimension("downsample_hidden_size")
    bins = audio.dimension("num_mel_bins")
    for _ in range(3):
        bins = (bins + 1) // 2
    convolutions = linear(9, channels) + 2 * linear(9 * channels, channels) + channels * bins * hidden
    projections = linear(hidden, hidden) + linear(hidden, audio.dimension("output_dim"))
    return convolutions + _whisper_blocks(audio, 4) + projections


def voxtral_realtime(audio: Config) -> int:
    """Return the parameters of the Voxtral Realtime tower: two convolutions, RMS norms, windows, gated feed-forward."""
    audio.unused("max_position_embeddings", "sliding_window", "vocab_size")
    hidden, wide = audio.dimension("hidden_size"), audio.dimension("intermediate_size")
    heads = audio.dimension("num_attention_heads")
    inner = heads * (audio.optional("head_dim") or hidden // heads)
    block = 4 * hidden * inner + 2 * inner + hidden + 3 * hidden * wide + hidden + 2 * hidden
    convolutions = linear(3 * audio.dimension("num_mel_bins"), hidden) + linear(3 * hidden, hidden)
    return convolutions + audio.layers() * block + hidden


def _halving_convolutions(channels: int, kernel: int, factor: int) -> int:
    """Return the convolutions that halve time and frequency, depthwise and pointwise, until `factor` frames are one."""
    each = linear(kernel * kernel, channels) + linear(channels, channels)
    return linear(kernel * kernel, channels) + max(int(log2(factor)) - 1, 0) * each


def granite_speech(audio: Config) -> int:
    """Return the parameters of the conformer of Granite Speech, with the outputs for characters that it feeds back."""
    audio.unused("context_size")
    hidden = audio.dimension("hidden_dim")
    head_count = audio.dimension("num_heads")
    head_dim = audio.optional("dim_head") or hidden // head_count
    inner = head_count * head_dim
    wide = hidden * audio.dimension("feedforward_mult")
    channels = hidden * audio.dimension("conv_expansion_factor")
    feed_forward = linear(hidden, wide) + linear(wide, hidden)
    attended = (
        3 * hidden * inner + linear(inner, hidden) + (2 * audio.dimension("max_pos_emb") + 1) * head_dim
    )
    mixed = (
        linear(hidden, 2 * channels)
        + channels * audio.dimension("conv_kernel_size")
        + linear(channels, hidden)
    )
    block = 2 * feed_forward + attended + mixed + 2 * channels + 5 * 2 * hidden
    letters = audio.dimension("output_dim")
    tower = linear(audio.dimension("input_dim"), hidden) + linear(hidden, letters) + linear(letters, hidden)
    return tower + audio.layers("num_layers") * block


def query_transformer(section: Config) -> int:
    """Return the parameters of a Q-Former: blocks in which queries attend to themselves, and in some layers to an encoder."""
    section.unused("num_attention_heads", "vocab_size", "max_position_embeddings")
    if section.flag("use_qformer_text_input"):
        raise section.error("use_qformer_text_input", "true is not modelled", "allowed: false")
    hidden = section.dimension("hidden_size")
    encoder = section.dimension("encoder_hidden_size")
    layers = section.layers()
    crossing = -(-layers // section.dimension("cross_attention_frequency"))
    crossed = 2 * linear(hidden, hidden) + 2 * linear(encoder, hidden) + 2 * hidden
    return (
        layers * encoder_block(hidden, section.dimension("intermediate_size"))
        + crossing * crossed
        + 2 * hidden
    )


def phi4(audio: Config) -> int:
    """Return the parameters of the conformer of Phi-4 Multimodal, with its table of relative positions."""
    audio.unused("activation", "conv_activation", "conv_glu_type", "nemo_activation", "feature_layer", "left_chunk", "downsample_rate",
                 "nemo_final_size", "dropout_rate")  # fmt: skip
    hidden = audio.dimension("hidden_size")
    wide = audio.dimension("intermediate_size")
    head_count = audio.dimension("num_attention_heads")
    inner = head_count * (hidden // head_count)
    outer = audio.dimension("ext_pw_out_channel")
    deep = hidden * audio.dimension("depthwise_multiplier", default=1)
    separable = linear(deep, audio.dimension("depthwise_separable_out_channel"))
    feed_forward = linear(hidden, 2 * wide) + linear(wide, hidden)
    mixed = linear(hidden, 2 * outer) + 2 * outer + linear(hidden, outer)
    mixed += deep * audio.dimension("kernel_size") + deep + separable
    block = 2 * feed_forward + 3 * linear(hidden, inner) + linear(inner, hidden) + mixed + 5 * 2 * hidden
    factor = audio.dimension("time_reduction", least=2)
    bins = audio.dimension("input_size")
    for _ in range(int(log2(factor))):
        bins = (bins + 1) // 2
    bins = audio.optional("nemo_final_size") or bins
    channels = audio.dimension("nemo_conv_channels")
    tower = _halving_convolutions(channels, 3, factor) + linear(channels * bins, hidden)
    sides = 1 if audio.flag("bias_symmetric") else 2
    tower += sides * audio.dimension("bias_max_distance") * head_count
    return tower + audio.layers("num_blocks") * block


def parakeet(audio: Config) -> int:
    """Return the parameters of Parakeet, a conformer with relative positions; biases as Nemotron Omni means them."""
    audio.unused("max_position_embeddings", "scale_input", "layerdrop", "dropout_positions")
    hidden = audio.dimension("hidden_size", default=1024)
    wide = audio.dimension("intermediate_size", default=4096)
    head_count = audio.dimension("num_attention_heads", default=8)
    bias = audio.flag("attention_bias")
    conv_bias = audio.flag("convolution_bias", default=True)
    head_dim = hidden // head_count
    inner = head_count * head_dim
    kv_inner = audio.dimension("num_key_value_heads", default=head_count) * head_dim
    feed_forward = linear(hidden, wide, bias=bias) + linear(wide, hidden, bias=bias)
    attended = linear(hidden, inner, bias=bias) + 2 * linear(hidden, kv_inner, bias=bias)
    attended += linear(inner, hidden, bias=bias) + hidden * inner + 2 * inner
    mixed = linear(hidden, 2 * hidden, bias=conv_bias) + linear(hidden, hidden, bias=conv_bias) + 2 * hidden
    mixed += linear(audio.dimension("conv_kernel_size", default=9), hidden, bias=conv_bias)
    block = 2 * feed_forward + attended + mixed + 5 * 2 * hidden
    factor = audio.dimension("subsampling_factor", default=8, least=2)
    channels = audio.dimension("subsampling_conv_channels", default=256)
    kernel = audio.dimension("subsampling_conv_kernel_size", default=3)
    stride = audio.dimension("subsampling_conv_stride", default=2)
    bins = audio.dimension("num_mel_bins", default=80) // stride ** int(log2(factor))
    tower = _halving_convolutions(channels, kernel, factor) + linear(channels * bins, hidden)
    return tower + audio.layers() * block


def wav_tokenizer(audio: Config) -> int:
    """Return the parameters of the encoder of WavTokenizer: convolutions that halve the rate, two recurrent layers; its codebook is a buffer."""
    audio.unused(*(key for key in audio.values if key.startswith("decoder_")))
    scaled = audio.text("norm_type", default="weight_norm") == "weight_norm"

    def convolution(before: int, after: int, kernel: int) -> int:
        return linear(before * kernel, after) + (after if scaled else 2 * after)

    width, kernel = audio.dimension("num_filters"), audio.dimension("residual_kernel_size")
    ratios = audio.whole_numbers("upsampling_ratios") or (6, 5, 5, 4)
    residual, compress = audio.count("num_residual_layers"), audio.dimension("compress")
    shortcut = audio.flag("use_conv_shortcut", default=True)
    tower = convolution(audio.dimension("audio_channels"), width, audio.dimension("kernel_size"))
    for ratio in reversed(ratios):
        inner = width // compress
        block = convolution(width, inner, kernel) + convolution(inner, width, 1)
        block += convolution(width, width, 1) if shortcut else 0
        tower += residual * block + convolution(width, 2 * width, 2 * ratio)
        width *= 2
    recurrent = audio.count("num_lstm_layers") * 8 * linear(width, width)
    return (
        tower
        + recurrent
        + convolution(width, audio.dimension("hidden_size"), audio.dimension("last_kernel_size"))
    )


def dots3(audio: Config) -> int:
    """Return the parameters of the tower of dots3-note with its adapter: three halvings, blocks whose keys have no bias, gated feed-forward."""
    if (older := audio.section("whisper_config")) is not None:
        older.unused(*older.values)
    audio.unused("max_position_embeddings", "num_key_value_heads", "head_dim", "samples_per_token")

    def size(key: str, old: str) -> int:
        return (older.optional(old) if older is not None else None) or audio.dimension(key)

    hidden, wide = size("hidden_size", "d_model"), size("intermediate_size", "encoder_ffn_dim")
    channels = audio.dimension("downsample_hidden_size")
    bins, bias = -(-size("feature_size", "num_mel_bins") // 8), audio.flag("attention_bias", default=True)
    block = 3 * linear(hidden, hidden, bias=bias) + hidden * hidden + 2 * hidden
    block += linear(hidden, 2 * wide) + linear(wide, hidden)
    tower = linear(9, channels) + 2 * linear(9 * channels, channels)
    tower += (audio.optional("conv_output_size") or channels * bins) * hidden
    out = audio.optional("whisper_adapter_out_dim", "adapter_output_size") or audio.dimension(
        "adapter_out_dim"
    )
    audio.unused("adapter_input_size", "whisper_adapter_in_dim", "num_attention_heads")
    adapter = 2 * hidden + linear(hidden, out) + linear(out, out)
    return tower + size("num_hidden_layers", "encoder_layers") * block + hidden + adapter
