"""MiniCPM-V and MiniCPM-o: a text model whose keys stand at the top level, a SigLIP tower, a resampler, perhaps Whisper.

As vLLM builds them (`minicpmv.py`, `minicpmo.py`): https://github.com/vllm-project/vllm.
"""

from collections.abc import Callable

from capplan.families.attention.llama import read_llama, read_minicpm
from capplan.families.attention.mixtures import read_qwen2, read_qwen3
from capplan.families.config import Config
from capplan.families.parts.blocks import with_vision
from capplan.families.parts.towers import encoder_block, linear
from capplan.families.parts.vision import minicpmo_audio, resampler
from capplan.model.network import Network

_TEXTS: dict[str, Callable[[Config, str], Network]] = {
    "2.0": read_minicpm,
    "2.5": read_llama,
    "2.6": read_qwen2,
    "4.0": read_llama,
    "4.5": read_qwen3,
}
"""Version that the file states -> its text model; MiniCPM-o counts its versions in the same way."""


def read_minicpm_v(config: Config, name: str) -> Network:
    """Return a MiniCPM-V 2.0 to 4.5, or a MiniCPM-o."""
    version = str(config.values.get("version") or ("2.6" if config.model_type == "minicpmo" else ""))
    config.unused("version")
    if version not in _TEXTS:
        raise config.error(
            "version",
            f"{version!r} is not modelled" if version else "missing",
            f"allowed: {', '.join(_TEXTS)}",
        )
    config.unused(*_INERT)
    network = _TEXTS[version](config, name)
    vision = config.needed_section("vision_config")
    vision.unused(*vision.values)
    size = _siglip(config, vision) + resampler(config, vision, network.hidden_size)
    if config.model_type == "minicpmo" and config.flag("init_audio", default=True):
        sound = config.needed_section("audio_config")
        sound.unused(*sound.values)
        size += _whisper(sound) + minicpmo_audio(config, sound, network.hidden_size)
    if config.model_type == "minicpmo" and config.flag("init_tts", default=True):
        config.unused("tts_config")
        config.uncounted("tts_config: the voice is not counted, and vLLM does not load it")
    return with_vision(network, config, size)


_INERT = ("batch_vision_input", "image_size", "patch_size", "slice_config", "slice_mode", "use_image_id", "vision_batch_size",
          "mm_use_im_start_end", "batch_3d_resampler", "audio_chunk_length", "audio_pool_step", "chunk_input", "listen_speak_type",
          "init_vision", "stream_input", "scale_emb", "dim_model_base", "scale_depth", "mup_denominator")  # fmt: skip
"""Keys of pictures, sound and scales that change no size."""


def _siglip(config: Config, vision: Config) -> int:
    """Return the parameters of the tower: SigLIP without its pooling, perhaps without its last block too."""
    hidden, patch = vision.dimension("hidden_size"), vision.dimension("patch_size", default=14)
    patches = (vision.dimension("image_size", default=980) // patch) ** 2
    layers = vision.layers() - config.flag("drop_vision_last_layer", default=True)
    blocks = layers * encoder_block(hidden, vision.dimension("intermediate_size"))
    return linear(3 * patch * patch, hidden) + patches * hidden + blocks + 2 * hidden


def _whisper(sound: Config) -> int:
    hidden, wide = sound.dimension("d_model", default=1024), sound.dimension("encoder_ffn_dim", default=4096)
    bins = sound.dimension("num_mel_bins", default=80)
    convolutions = linear(3 * bins, hidden) + linear(3 * hidden, hidden)
    positions = sound.dimension("max_source_positions", default=1500) * hidden
    blocks = sound.layers("encoder_layers") * encoder_block(hidden, wide, biased=3)
    return convolutions + positions + blocks + 2 * hidden
