"""Which function reads which `model_type`, and which types are known and refused."""

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

from capplan.families.config import Config
from capplan.families.inert import table
from capplan.model.network import Network

Family: TypeAlias = Callable[[Config, str], Network]

_ENCODER = (
    "an encoder of a kind that is not modelled: its layers are not those of BERT, RoBERTa or ModernBERT"
)
_VISION = "a vision or audio model without a text decoder: it generates no tokens"
_TWO_STACKS = "an encoder-decoder that vLLM and SGLang do not serve by themselves; of encoder-decoders Whisper is modelled"

_UNSERVED = "a recurrent network of its own code that vLLM, SGLang and TensorRT-LLM do not serve"

_LOOPED = "a looped decoder: some of its layers run several times over each token, and each pass may have a cache of its own, which is not modelled"
_SPEECH = "a recogniser of speech: what its encoder of sound adds to the decoder of text is not modelled"

REFUSED = (
    dict.fromkeys(
        ("longformer", "big_bird", "esm"),
        _ENCODER,
    )
    | dict.fromkeys(
        ("vit", "clip", "clip_text_model", "clip_vision_model", "siglip", "siglip2", "siglip_vision_model", "dinov2",
         "dinov3_vit", "swin", "convnext", "resnet", "deit", "beit", "detr", "sam", "wav2vec2", "hubert", "clap",
         "depth_anything", "vit_mae", "chinese_clip"),
        _VISION,
    )
    | dict.fromkeys(
        ("bart", "mbart", "pegasus", "marian", "m2m_100", "led", "blenderbot",
         "speech_to_text", "encoder-decoder", "vision-encoder-decoder", "t5gemma", "t5gemma2", "bigbird_pegasus"),
        _TWO_STACKS,
    )
    | dict.fromkeys(("rwkv", "xlstm"), _UNSERVED)
    | dict.fromkeys(("dory", "inkling2_loop", "inkling2_loop_text"), _LOOPED)
    | {"omniasr": _SPEECH, "omniasr_ctc": _VISION}
    | {"lara_mini": "a mixture of gated delta nets, windowed and full attention, with experts in each layer, which is not modelled yet"}
    | {"diffusion_gemma": "a diffusion model: it fills blocks of tokens over several passes, and engines size neither steps nor cache as those of a decoder"}
)  # fmt: skip
"""`model_type` -> why it is not modelled, as errors say it."""


def families() -> tuple[str, ...]:
    """Return every `model_type` that is modelled."""
    return tuple(table("readers"))


def family(model_type: str) -> Family | None:
    """Return the reader of a `model_type`; None for one that is not modelled.

    Examples
    --------
    >>> family("olmoe").__name__
    'read_olmoe'
    """
    place = table("readers").get(model_type)
    if place is None:
        return None
    file, _, function = place.rpartition(".")
    reader: Family = getattr(import_module(f"{__package__}.{file}"), function)
    return reader
