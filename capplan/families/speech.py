"""The speech output of Qwen 2.5 Omni: a talker that generates codes, and two networks that turn them into sound; counted only."""

from itertools import pairwise

from capplan.families.config import Config
from capplan.families.parts.towers import linear
from capplan.families.registry import family
from capplan.model.parameters import parameters


def _speaks(section: Config) -> bool:
    """Return whether the file switches speech on; without it none of its keys count."""
    on = section.outer is None or section.outer.flag("enable_audio_output", default=True)
    if not on:
        section.unused(*section.values)
    return on


def talker(section: Config) -> int:
    """Return the parameters of the talker: a Qwen 2 that reads embeddings of the thinker and ends in codes."""
    read = family("qwen2")
    if read is None or not _speaks(section):
        return 0
    section.unused("position_id_per_seconds", "seconds_per_chunk", "spatial_merge_size")
    network = read(section, "talker")
    wide = section.dimension("embedding_size")
    embedded = (wide - network.hidden_size) * network.vocabulary_size
    return parameters(network) + embedded + linear(wide, network.hidden_size)


def token_to_wave(section: Config) -> int:
    """Return the parameters of the diffusion transformer from codes to spectra, and of the vocoder from there to sound."""
    if not _speaks(section):
        return 0
    return _diffusion(section.needed_section("dit_config")) + _vocoder(
        section.needed_section("bigvgan_config")
    )


def _diffusion(dit: Config) -> int:
    dit.unused(
        "block_size",
        "enc_dilations",
        "look_ahead_layers",
        "look_backward_layers",
        "max_position_embeddings",
        "repeats",
    )
    hidden = dit.dimension("hidden_size")
    spectrum = dit.dimension("mel_dim")
    code = dit.dimension("emb_dim")
    inner = dit.dimension("head_dim") * dit.dimension("num_attention_heads")
    wide = int(hidden * dit.ratio("ff_mult"))
    time = linear(256, hidden) + linear(hidden, hidden)
    speaker = dit.dimension("enc_dim")
    joined = linear(spectrum + speaker + dit.dimension("enc_emb_dim") + code, hidden)
    block = linear(hidden, 6 * hidden) + 3 * linear(hidden, inner) + linear(inner, hidden)
    block += linear(hidden, wide) + linear(wide, hidden)
    tower = time + (dit.dimension("num_embeds") + 1) * code + joined + dit.layers() * block
    return (
        tower
        + _speaker_encoder(dit, spectrum, speaker)
        + linear(hidden, 2 * hidden)
        + linear(hidden, spectrum)
    )


def _speaker_encoder(dit: Config, spectrum: int, outputs: int) -> int:
    """Return the parameters of ECAPA-TDNN, which tells voices apart."""
    channels = dit.whole_numbers("enc_channels") or ()
    kernels = dit.whole_numbers("enc_kernel_sizes") or ()
    if len(channels) < 2 or len(channels) != len(kernels):
        raise dit.error("enc_channels", "must have as many entries as enc_kernel_sizes, two at least")
    parts = dit.dimension("enc_res2net_scale")
    squeezed = dit.dimension("enc_se_channels")
    attended = dit.dimension("enc_attention_channels")
    total = linear(spectrum * kernels[0], channels[0])
    for (before, wide), kernel in zip(pairwise(channels[:-1]), kernels[1:-1], strict=True):
        part = wide // parts
        total += linear(before, wide) + (parts - 1) * linear(part * kernel, part) + linear(wide, wide)
        total += linear(wide, squeezed) + linear(squeezed, wide)
    last = channels[-1]
    total += linear(last * kernels[-1], last) + linear(3 * last, attended) + linear(attended, last)
    return total + linear(2 * last, outputs)


def _vocoder(vocoder: Config) -> int:
    """Return the parameters of BigVGAN: every step doubles the rate and halves the channels."""
    channels = vocoder.dimension("upsample_initial_channel")
    kernels = vocoder.whole_numbers("resblock_kernel_sizes") or ()
    upsampling = vocoder.whole_numbers("upsample_kernel_sizes") or ()
    for key, others in (("upsample_rates", upsampling), ("resblock_dilation_sizes", kernels)):
        if len(vocoder.items(key) or ()) != len(others):
            raise vocoder.error(key, f"has not {len(others)} entries, as the list of its kernel sizes")
    total = linear(7 * vocoder.dimension("mel_dim"), channels)
    for kernel in upsampling:
        before, channels = channels, channels // 2
        total += linear(before * kernel, channels)
        total += sum(6 * (linear(channels * one, channels) + 2 * channels) for one in kernels)
    return total + 2 * channels + 7 * channels
