"""What transformers makes of a config.json: parameters on the meta device, cache elements of a prefill on the CPU."""

import contextlib
import copy
import io
import warnings
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.differential.records import Reference

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)  # the models are so small that several threads only wait for each other

CAUSAL = dict(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
MULTIMODAL = dict(auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES) | dict(
    auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
)
ENCODERS = (
    "albert",
    "eurobert",
    "gte",
    "jina_embeddings_v3",
    "bert",
    "camembert",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "modernbert",
    "mpnet",
    "nomic_bert",
    "roberta",
    "xlm-roberta",
)
"""Types that are read as encoders: without a class, a file means the one without a head."""
MODEL_TYPES = tuple(sorted({*CAUSAL, *MULTIMODAL, *ENCODERS}))
"""Every model type with a causal LM or a text part, and the encoders that are read."""

CONTEXTS = (5, 8, 20)
"""Tokens below, at and above the windows of small models."""
WIDEST_RUN = 20_000_000
"""Parameters of the largest model that is run on the CPU; larger ones are counted on the meta device alone."""

TOWERS = ("vision", "visual", "audio", "image", "projector", "connector", "multi_modal", "merger", "resampler", "video",
          "aligner", "talker", "token2wav", "code2wav", "encoder.", "perceiver", "vqmodel", "encoder_model", "patch_embed", "sound", "mm_", "embedder")  # fmt: skip
"""Parts of module names that belong to a tower or to what joins it to the text."""


class CannotBuildError(Exception):
    """Transformers refuses the file, or fails on it."""


def class_of(file: dict[str, Any]) -> type:
    """Return the class that builds the model of a file: the one it names, else the one of its model type."""
    for name in file.get("architectures") or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    kind = file["model_type"]
    name = auto.MODEL_MAPPING_NAMES[kind] if kind in ENCODERS else MULTIMODAL.get(kind) or CAUSAL.get(kind)
    if kind == "whisper":
        name = "WhisperForConditionalGeneration"
    if name is None:
        raise CannotBuildError(kind)
    return getattr(transformers, name[0] if isinstance(name, tuple) else name)


def built(file: dict[str, Any], device: str) -> torch.nn.Module:
    """Return the model of a file on a device."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            values = PreTrainedConfig._decode_special_floats(copy.deepcopy(file))
            config = CONFIG_MAPPING[file["model_type"]].from_dict(values)
            config._attn_implementation = "eager"
            config._experts_implementation = "eager"
            with torch.device(device):
                model = class_of(file)(config)
            model.tie_weights()
        except CannotBuildError:
            raise
        except Exception as error:
            raise CannotBuildError(f"{type(error).__name__}: {str(error).splitlines()[:1]}") from error
    return model.eval()


def counted(model: torch.nn.Module) -> tuple[int, int]:
    """Return the parameters of a model, and those of its text part."""
    whole = text = -_identity_experts(model)
    for name, parameter in model.named_parameters():
        whole += parameter.numel()
        if not any(tower in name for tower in TOWERS):
            text += parameter.numel()
    return whole, text


def _identity_experts(model: torch.nn.Module) -> int:
    """Return the parameters that the class of LongCat allocates for experts that return their input: none has weights."""
    return sum(
        module.zero_expert_num * module.gate_up_proj[0].numel()
        for module in model.modules()
        if getattr(module, "zero_expert_num", 0) and hasattr(module, "gate_up_proj")
    )


def reference(file: dict[str, Any], *, run: bool) -> Reference:
    """Return what transformers builds from a file, and what a prefill leaves in the cache of a small model.

    Every model is counted on the meta device before it is built in memory: one key can make a small model huge. With
    `vision_config.spatial_merge_size` 24, a small ernie4_5_vl_moe has 6.8 billion parameters, 27 GB.
    """
    try:
        whole, text = counted(built(file, "meta"))
        if not run or whole > WIDEST_RUN:
            return Reference(whole, text)
        model = built(file, "cpu")
        return Reference(whole, text, {str(tokens): cache_elements(model, tokens) for tokens in CONTEXTS})
    except CannotBuildError as error:
        return Reference(failed=str(error))


def run_prefill(model: torch.nn.Module, tokens: int) -> Any:
    """Return what a model says of a prompt of so many tokens."""
    ids = torch.ones((1, tokens), dtype=torch.long)
    prompt = {"input_ids": ids}
    if model.config.model_type == "whisper":
        frames = 2 * model.config.max_source_positions
        prompt = {
            "decoder_input_ids": ids,
            "input_features": torch.zeros((1, model.config.num_mel_bins, frames)),
        }
    with torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            return model(**prompt, use_cache=True)
        except Exception as error:
            raise CannotBuildError(f"{type(error).__name__}: {str(error).splitlines()[:1]}") from error


def cache_elements(model: torch.nn.Module, tokens: int) -> int:
    """Return the elements that a prefill of one sequence leaves in the cache.

    A sliding layer of transformers keeps window - 1 tokens, because the token of the next step is added before it is
    read. A position sees the whole window, itself included, so one token more is counted there.
    """
    if any(getattr(module, "head_dim", 0) == 1 for module in model.modules()):
        raise CannotBuildError("a head of one element: the rotary table of the reference is two wide")
    output = run_prefill(model, tokens)
    cache = getattr(output, "past_key_values", None)
    if cache is None:
        cache = getattr(output, "cache_params", None)
    if cache is None and model.config.model_type in ENCODERS:
        return 0
    if cache is None:
        raise CannotBuildError("no cache")
    if hasattr(cache, "cross_attention_cache"):
        layers = [*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers]
        return sum(_elements(layer, tokens) for layer in layers)
    layers = getattr(cache, "layers", [cache])
    beside = (
        {key: value for key, value in vars(cache).items() if key != "layers"} if layers != [cache] else {}
    )
    return sum(_elements(layer, tokens) for layer in layers) + _elements(beside, tokens)


def _elements(layer: Any, tokens: int) -> int:
    total = 0
    seen: set[int] = set()
    window = getattr(layer, "sliding_window", None) if getattr(layer, "is_sliding", False) else None
    if window == 1:
        raise CannotBuildError("a window of one token: the reference keeps everything")
    stack = [vars(layer) if hasattr(layer, "__dict__") else layer]
    while stack:
        value = stack.pop()
        if isinstance(value, torch.Tensor) and value.is_floating_point() and id(value) not in seen:
            seen.add(id(value))
            count = value.numel()
            if window and value.dim() == 4 and tokens >= window and value.shape[-2] == window - 1:
                count = count // (window - 1) * window if window > 1 else value.shape[1] * value.shape[3]
            total += count
        elif isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list | tuple):
            stack.extend(value)
    return total
