"""Which function reads which `model_type`, and which types are known and refused."""

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

from capplan.families.config import Config
from capplan.model.network import Network

Family: TypeAlias = Callable[[Config, str], Network]

_READERS = {
    "cohere": "attention.cohere.read_cohere",
    "cohere2": "attention.cohere.read_cohere2",
    "deepseek_v2": "attention.deepseek.read_latent",
    "deepseek_v3": "attention.deepseek.read_latent",
    "kimi_k2": "attention.deepseek.read_latent",
    "kimi_k25": "attention.deepseek.read_kimi_k25",
    "deepseek_v32": "attention.deepseek.read_indexed",
    "glm_moe_dsa": "attention.deepseek.read_indexed",
    "glm4_moe_lite": "attention.deepseek.read_latent",
    "longcat_flash": "attention.deepseek.read_longcat",
    "dots1": "attention.deepseek.read_dots1",
    "deepseek_v4": "attention.deepseek_v4.read_deepseek_v4",
    "deepseek_ref": "attention.deepseek_v4.read_deepseek_v4",
    "ernie4_5": "attention.ernie.read_ernie",
    "ernie4_5_moe": "attention.ernie.read_ernie_moe",
    "ernie4_5_vl_moe": "attention.ernie.read_ernie_vl",
    "ernie4_5_vl_moe_text": "attention.ernie.read_ernie_vl_text",
    "exaone4": "attention.exaone.read_exaone4",
    "exaone_moe": "attention.exaone.read_exaone_moe",
    "gemma": "attention.gemma.read_gemma",
    "gemma2": "attention.gemma.read_gemma2",
    "gemma3": "attention.gemma.read_gemma3",
    "gemma3_text": "attention.gemma.read_gemma3_text",
    "gemma3n": "attention.gemma.read_gemma3n_whole",
    "gemma3n_text": "attention.gemma.read_gemma3n",
    "gemma4": "attention.gemma.read_gemma4",
    "gemma4_text": "attention.gemma.read_gemma4_text",
    "glm": "attention.glm.read_glm",
    "glm4": "attention.glm.read_glm",
    "glm4_moe": "attention.glm.read_glm4_moe",
    "glm4v_moe_text": "attention.glm.read_glm4_moe",
    "solar_open": "attention.glm.read_glm4_moe",
    "chatglm": "attention.glm.read_chatglm",
    **dict.fromkeys(
        (
            "bert",
            "camembert",
            "distilbert",
            "electra",
            "jina_embeddings_v3",
            "mpnet",
            "roberta",
            "xlm-roberta",
        ),
        "attention.encoders.read_bert",
    ),
    "eurobert": "attention.encoders.read_eurobert",
    "gte": "attention.encoders.read_gte",
    "modernbert": "attention.encoders.read_modernbert",
    "new": "attention.encoders.read_gte",
    "nomic_bert": "attention.encoders.read_nomic_bert",
    "falcon": "attention.gpt.read_falcon",
    "RefinedWeb": "attention.gpt.read_falcon",
    "RefinedWebModel": "attention.gpt.read_falcon",
    "gpt2": "attention.gpt.read_gpt2",
    "gpt_bigcode": "attention.gpt.read_gpt2",
    "gpt_neox": "attention.gpt.read_gpt_neox",
    "gptj": "attention.gpt.read_gptj",
    "opt": "attention.gpt.read_opt",
    "bloom": "attention.gpt.read_bloom",
    "mpt": "attention.gpt.read_mpt",
    "starcoder2": "attention.gpt.read_starcoder2",
    "dbrx": "attention.gpt.read_dbrx",
    "gpt_oss": "attention.gpt_oss.read_gpt_oss",
    "granite": "attention.llama.read_llama",
    "granitemoe": "attention.llama.read_granite_moe",
    "granitemoeshared": "attention.llama.read_granite_moe",
    "hunyuan_v1_dense": "attention.hunyuan.read_hunyuan_dense",
    "hunyuan_v1_moe": "attention.hunyuan.read_hunyuan_moe",
    "hunyuan": "attention.hunyuan.read_hunyuan_moe",
    "hy_v3": "attention.hunyuan.read_hy3",
    "llama": "attention.llama.read_llama",
    "code_llama": "attention.llama.read_llama",
    "Yi": "attention.llama.read_llama",
    "aquila": "attention.llama.read_llama",
    "baichuan": "attention.llama.read_llama",
    "internlm": "attention.llama.read_internlm",
    "internlm2": "attention.llama.read_internlm",
    "internlm3": "attention.llama.read_internlm3",
    "arcee": "attention.llama.read_plain",
    "nemotron": "attention.llama.read_plain",
    "stablelm": "attention.llama.read_stablelm",
    "smollm3": "attention.llama.read_smollm3",
    "seed_oss": "attention.llama.read_seed_oss",
    "llama4": "attention.llama4.read_llama4",
    "llama4_text": "attention.llama4.read_llama4_text",
    "mimo": "attention.mimo.read_mimo",
    "mimo_v2_flash": "attention.mimo.read_mimo_v2_flash",
    "minimax_m2": "attention.minimax_m.read_minimax_m2",
    "minimax_m3": "attention.minimax_m.read_minimax_m3",
    "minimax_m3_vl": "attention.minimax_m.read_minimax_m3_vl",
    "minimax_m3_vl_text": "attention.minimax_m.read_minimax_m3",
    "mistral": "attention.mistral.read_mistral",
    "ministral": "attention.mistral.read_mistral",
    "ministral3": "attention.mistral.read_ministral3",
    "mistral3": "attention.mistral.read_mistral3",
    "mistral4": "attention.mistral.read_mistral4",
    "mixtral": "attention.mistral.read_mixtral",
    "nemotron-nas": "attention.nemotron_nas.read_nemotron_nas",
    "deci": "attention.nemotron_nas.read_decilm",
    "olmo": "attention.olmo.read_olmo",
    "olmo2": "attention.olmo.read_olmo2",
    "olmo3": "attention.olmo.read_olmo2",
    "olmoe": "attention.olmo.read_olmoe",
    "phi": "attention.phi.read_phi",
    "phi-msft": "attention.phi.read_phi",
    "phi3": "attention.phi.read_phi3",
    "phimoe": "attention.phi.read_phimoe",
    "qwen2": "attention.qwen.read_qwen2",
    "qwen2_moe": "attention.qwen.read_qwen2_moe",
    "qwen2_vl": "attention.qwen.read_qwen2_vl",
    "qwen2_5_vl": "attention.qwen.read_qwen2_vl",
    "qwen2_vl_text": "attention.qwen.read_qwen2",
    "qwen2_5_vl_text": "attention.qwen.read_qwen2",
    "qwen3": "attention.qwen.read_qwen3",
    "qwen3_moe": "attention.qwen.read_qwen3_moe",
    "qwen3_vl": "attention.qwen.read_qwen3_vl",
    "qwen3_vl_moe": "attention.qwen.read_qwen3_vl",
    "qwen3_vl_text": "attention.qwen.read_qwen3",
    "qwen3_vl_moe_text": "attention.qwen.read_qwen3_moe",
    "step3p7": "attention.step.read_step",
    "step3p5": "attention.step.read_step_text",
    "kimi_linear": "hybrid.kimi_linear.read_kimi_linear",
    "kimi_k3": "hybrid.kimi_linear.read_kimi_k3",
    "lfm2": "hybrid.lfm2.read_lfm2",
    "lfm2_moe": "hybrid.lfm2.read_lfm2_moe",
    "mamba": "hybrid.mamba.read_mamba",
    "falcon_mamba": "hybrid.mamba.read_mamba",
    "mamba2": "hybrid.mamba.read_mamba2",
    "jamba": "hybrid.mamba.read_jamba",
    "bamba": "hybrid.mamba.read_bamba",
    "falcon_h1": "hybrid.mamba.read_falcon_h1",
    "granitemoehybrid": "hybrid.mamba.read_granite_hybrid",
    "minimax": "hybrid.minimax.read_minimax",
    "minimax_text_01": "hybrid.minimax.read_minimax",
    "minimax_m1": "hybrid.minimax.read_minimax",
    "nemotron_h": "hybrid.nemotron_h.read_nemotron_h",
    "olmo_hybrid": "hybrid.qwen3_next.read_olmo_hybrid",
    "qwen3_next": "hybrid.qwen3_next.read_qwen3_next",
    "qwen3_5_text": "hybrid.qwen3_next.read_qwen3_next",
    "qwen3_5_moe_text": "hybrid.qwen3_next.read_qwen3_next",
    "qwen3_5": "hybrid.qwen3_next.read_qwen3_5",
    "qwen3_5_moe": "hybrid.qwen3_next.read_qwen3_5",
    "recurrent_gemma": "hybrid.recurrent_gemma.read_recurrent_gemma",
    "afmoe": "attention.shared_experts.read_afmoe",
    "apertus": "attention.llama.read_apertus",
    "bailing_moe": "attention.shared_experts.read_bailing",
    "bailing_moe_v2": "attention.shared_experts.read_bailing",
    "codegen": "attention.gpt.read_gptj",
    "cohere2_moe": "attention.cohere.read_cohere2_moe",
    "exaone": "attention.llama.read_exaone",
    "flex_olmo": "attention.olmo.read_olmoe",
    "gemma4_unified": "attention.gemma.read_gemma4",
    "gemma4_unified_text": "attention.gemma.read_gemma4_text",
    "glm4v_text": "attention.glm.read_glm",
    "glm_ocr_text": "attention.glm.read_glm",
    "granite4_vision_text": "attention.llama.read_llama",
    "helium": "attention.llama.read_helium",
    "cwm": "attention.mistral.read_cwm",
    "vaultgemma": "attention.gemma.read_gemma2",
    "paddleocr_vl_text": "attention.ernie.read_ernie",
    "iquestcoder": "attention.llama.read_llama",
    "jais2": "attention.gpt.read_starcoder2",
    "minicpm": "attention.llama.read_minicpm",
    "minicpm3": "attention.deepseek.read_latent",
    "phi3_v": "attention.phi.read_phi_with_towers",
    "phi4mm": "attention.phi.read_phi_with_towers",
    "qwen2_5_omni_text": "attention.qwen.read_qwen2",
    "qwen3_omni_moe_text": "attention.qwen.read_qwen3_moe",
    "youtu": "attention.deepseek.read_latent",
    "zamba2": "hybrid.zamba.read_zamba2",
    "mllama": "attention.mllama.read_mllama",
    "mllama_text_model": "attention.mllama.read_mllama_text",
    **dict.fromkeys(
        (
            "aya_vision",
            "cohere2_vision",
            "deepseek_vl",
            "exaone4_5",
            "glm46v",
            "glm4v",
            "glm4v_moe",
            "glm_ocr",
            "got_ocr2",
            "granite4_vision",
            "granite_speech",
            "idefics2",
            "idefics3",
            "internvl",
            "internvl_chat",
            "lfm2_vl",
            "lighton_ocr",
            "llava",
            "llava_next",
            "llava_next_video",
            "llava_onevision",
            "nemotron_h_omni",
            "ovis2",
            "paddleocr_vl",
            "paligemma",
            "perception_lm",
            "phi4_multimodal",
            "qwen2_5_omni",
            "qwen2_5_omni_thinker",
            "qwen2_audio",
            "qwen3_omni_moe",
            "qwen3_omni_moe_thinker",
            "smolvlm",
            "video_llama_3",
            "video_llava",
            "vipllava",
            "voxtral",
        ),
        "wrapped.read_wrapped",
    ),
}
"""`model_type` -> folder, file and function. To keep start-up fast, reading a model imports only its file."""

_ENCODER = (
    "an encoder of a kind that is not modelled: its layers are not those of BERT, RoBERTa or ModernBERT"
)
_VISION = "a vision or audio model without a text decoder: it generates no tokens"
_TWO_STACKS = "an encoder-decoder: its cross-attention cache is not modelled, only decoder-only models are"

REFUSED = (
    dict.fromkeys(
        ("deberta", "deberta-v2", "albert", "longformer", "big_bird", "esm"),
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
"""`model_type` -> why it is not modelled, as errors say it."""


def families() -> tuple[str, ...]:
    """Return every `model_type` that is modelled."""
    return tuple(_READERS)


def family(model_type: str) -> Family | None:
    """Return the reader of a `model_type`; None for one that is not modelled.

    Examples
    --------
    >>> family("olmoe").__name__
    'read_olmoe'
    """
    place = _READERS.get(model_type)
    if place is None:
        return None
    file, _, function = place.rpartition(".")
    reader: Family = getattr(import_module(f"{__package__}.{file}"), function)
    return reader
