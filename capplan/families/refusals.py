"""Types that are known and not modelled, with the reason that people are told."""

_ENCODER = "an encoder: it generates no tokens, so there is no decode step and no KV cache to plan for"
_VISION = "a vision or audio model without a text decoder: it generates no tokens"
_TWO_STACKS = "an encoder-decoder: its cross-attention cache is not modelled, only decoder-only models are"

REFUSED = (
    dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "deberta", "deberta-v2", "albert", "camembert",
         "modernbert", "nomic_bert", "mpnet", "longformer", "big_bird", "esm", "eurobert"),
        _ENCODER,
    )
    | dict.fromkeys(
        ("vit", "clip", "clip_text_model", "clip_vision_model", "siglip", "siglip2", "siglip_vision_model", "dinov2",
         "dinov3_vit", "swin", "convnext", "resnet", "deit", "beit", "detr", "sam", "wav2vec2", "hubert", "clap",
         "depth_anything", "vit_mae", "chinese_clip"),
        _VISION,
    )
    | dict.fromkeys(
        ("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "whisper", "marian", "m2m_100", "led", "blenderbot",
         "speech_to_text", "encoder-decoder", "vision-encoder-decoder", "t5gemma", "bigbird_pegasus"),
        _TWO_STACKS,
    )
)  # fmt: skip
