"""A replica of llama.cpp as the command of its server, a Modelfile of Ollama or settings of LM Studio; and such commands read back."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from capplan.deploy.launch_words import LaunchWords
from capplan.deploy.replica_launch import SIXTEEN_BITS, NotModelledError, ReplicaLaunch, count, engine_flags
from capplan.errors import InputError
from capplan.hardware.device import HOST
from capplan.model.weight_format import stored_formats
from capplan.operators.llamacpp import ENGINE
from capplan.readers.catalogue.models import shipped_id
from capplan.readers.text_file import is_there
from capplan.recorded.gguf_speeds import printed_model, printed_quant
from capplan.replica.best_split import holds_its_sequences
from capplan.replica.spec import ReplicaSpec, card_layers, served_context_tokens
from capplan.scenario.flags import ServingFlags

OLLAMA, LM_STUDIO = "ollama", "lmstudio"
TARGETS = (ENGINE, OLLAMA, LM_STUDIO)
"""What starts a replica of llama.cpp."""
CACHE_WORDS = {"fp16": "f16", "fp32": "f32"}
"""Cache dtype -> what llama.cpp calls it; others have the same name."""
OLLAMA_CACHES = ("f16", "q8_0", "q4_0")
"""Values of OLLAMA_KV_CACHE_TYPE (docs.ollama.com/faq)."""
ALL_LAYERS = 999
"""Layers on the device that no model has; builds before 2026 know no word for all of them."""
AS_PUBLISHED = "mxfp4"
"""Quantisation of a file whose model is published in it."""
_FLASH = ("-fa", "--flash-attn")
_QUANT = re.compile(
    r"(?:^|[-_.])((?:UD-)?(?:I?Q\d\w*|TQ\d_0|MXFP4(?:_MOE)?|B?F16|F32))(?:-\d{5}-of-\d{5})?(?:\.gguf)?$",
    re.IGNORECASE,
)
_ALL_EXPERTS = re.compile(r"(?:\\?\.)?(?:ffn_)?(?:\.\*_?|\(.*\)_)?exps\\?\.?(?:weight)?=CPU")
"""Value of --override-tensor that moves the routed experts of all layers."""


def launch_of_replica(spec: ReplicaSpec, flags: ServingFlags, file: str | None) -> ReplicaLaunch:
    """Return what a replica of llama.cpp is started with.

    Parameters
    ----------
    spec : the replica
    flags : that state it
    file : GGUF file of its weights, or a repository of such files; None: one named by model and quantisation

    Raises
    ------
    InputError
        its cache has no room for the sequences that are asked for
    """
    if not holds_its_sequences(spec):
        sequences = spec.max_num_seqs or 1
        raise InputError(
            f"{spec.network.name}: no room for {sequences} x {served_context_tokens(spec):,} tokens on {spec.device.name}\n"
            "  give a smaller --max-model-len, or --host-bandwidth '80 GB/s' to keep weights on the host"
        )
    held = spec.offload
    formats = set(stored_formats(spec.network))
    published = [name for name in SIXTEEN_BITS if name in formats and AS_PUBLISHED not in formats]
    return ReplicaLaunch(
        engine=ENGINE,
        version=flags.engine_version or engine_flags(ENGINE).releases[-1],
        model=file or spec.network.name,
        weight_dtype=flags.weight_dtype or (None if file else next(iter(published), None)),
        pipeline_parallel=int(spec.sharding.pipeline),
        kv_dtype=spec.kv_format,
        max_model_len=served_context_tokens(spec),
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        gpu_layers=held.gpu_layers if held else 0 if spec.device.architecture == HOST else None,
        cpu_experts=held.cpu_experts if held else None,
        tensor_split=",".join(map(str, card_layers(spec))) or None,
        main_gpu=(flags.main_gpu or 0) if flags.split_mode == "none" else None,
    )


def _refuse_unsaid(launch: ReplicaLaunch) -> None:
    """Raise the error for what llama.cpp has no option for, or what is not modelled of it."""
    refused = {
        "drafts": launch.drafts is not None,
        "LoRA adapters": launch.adapters is not None,
        "vectors or scores": launch.pooling,
        "separate pools": launch.role is not None,
        "a cache in host memory": launch.host_cache_bytes is not None,
        "a split of matrices or experts over devices": launch.tensor_parallel * launch.data_parallel > 1,
    }
    for what, said in refused.items():
        if said:
            raise InputError(f"{ENGINE}: {what} of the plan are not exported")


def _refuse_cards(launch: ReplicaLaunch, target: str) -> None:
    """Raise the error for cards that a target cannot be told apart."""
    if launch.tensor_split or launch.main_gpu is not None:
        raise InputError(
            f"{target}: has no word for the layers of each card\n  --target llamacpp has, or name one card: --hardware rtx-4090"
        )


def gguf_file(launch: ReplicaLaunch) -> str:
    """Return the name of the file with the weights of a launch, as llama-quantize and publishers name files.

    Examples
    --------
    >>> gguf_file(ReplicaLaunch("llamacpp", None, "Qwen/Qwen3-8B", weight_dtype="q4_k_m"))
    'Qwen3-8B-Q4_K_M.gguf'
    """
    if launch.model.endswith(".gguf"):
        return launch.model
    quant = {"fp16": "f16", "fp32": "f32", None: AS_PUBLISHED}.get(launch.weight_dtype, launch.weight_dtype)
    return f"{launch.model.rpartition('/')[2]}-{str(quant).upper()}.gguf"


def _of_repository(launch: ReplicaLaunch) -> bool:
    return "gguf" in launch.model.lower() and not launch.model.endswith(".gguf")


def server_words(launch: ReplicaLaunch) -> tuple[list[str], dict[str, object]]:
    """Return the program with its model, and its other options by key of the table of flags."""
    _refuse_unsaid(launch)
    if launch.pipeline_parallel > 1 and launch.gpu_layers:
        raise InputError(f"{ENGINE}: layers on the host next to several devices are not modelled")
    words = ["llama-server"]
    if _of_repository(launch):
        quant = f":{launch.weight_dtype.upper()}" if launch.weight_dtype else ""
        words += ["--hf-repo", f"{launch.model}{quant}"]
    else:
        words += ["--model", gguf_file(launch)]
        words += [] if launch.model.endswith(".gguf") else ["--alias", launch.model]
    cache = CACHE_WORDS.get(str(launch.kv_dtype), launch.kv_dtype)
    slots = launch.max_num_seqs
    equal = ",".join(["1"] * launch.pipeline_parallel) if launch.pipeline_parallel > 1 else None
    split = "layer" if launch.tensor_split or equal else None if launch.main_gpu is None else "none"
    return words, {
        "context": launch.max_model_len and launch.max_model_len * (slots or 1),
        "max_num_seqs": slots,
        "max_num_batched_tokens": launch.max_num_batched_tokens,
        "gpu_layers": ALL_LAYERS if launch.gpu_layers is None else launch.gpu_layers,
        "cpu_experts": launch.cpu_experts,
        "split": split,
        "main": launch.main_gpu,
        "cards": launch.tensor_split or equal,
        "cache_k": cache,
        "cache_v": cache,
    }


def modelfile(launch: ReplicaLaunch) -> str:
    """Return a Modelfile of Ollama; what its server is told by variables stands in comments.

    References
    ----------
    Ollama, "Modelfile reference" (num_ctx) and "FAQ" (variables of the server): https://docs.ollama.com. num_gpu is an option of its API.
    """
    _refuse_unsaid(launch)
    _refuse_cards(launch, "ollama")
    if launch.cpu_experts:
        raise InputError(
            "ollama: has no parameter for experts on the host\n  split whole layers: --n-gpu-layers N, or --target llamacpp"
        )
    cache = CACHE_WORDS.get(str(launch.kv_dtype), str(launch.kv_dtype))
    if cache not in OLLAMA_CACHES:
        raise InputError(f"ollama: has no cache in {launch.kv_dtype}; known: {', '.join(OLLAMA_CACHES)}")
    slots = launch.max_num_seqs or 1
    lines = [
        f"# start the server: OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE={cache} OLLAMA_NUM_PARALLEL={slots} ollama serve",
        "# then: ollama create NAME -f FILE",
        f"FROM ./{gguf_file(launch)}"
        if not gguf_file(launch).startswith("/")
        else f"FROM {gguf_file(launch)}",
        f"PARAMETER num_ctx {launch.max_model_len}",
        f"PARAMETER num_gpu {ALL_LAYERS if launch.gpu_layers is None else launch.gpu_layers}",
    ]
    return "\n".join(lines) + "\n"


def lmstudio_settings(launch: ReplicaLaunch, layers: int = 1) -> str:
    """Return the load settings of LM Studio, as its SDK takes them.

    Parameters
    ----------
    launch : the replica
    layers : [-]
        of the model; LM Studio states parts of them, so any number will do where all are on the device

    References
    ----------
    LM Studio, `LLMLoadModelConfig`: https://lmstudio.ai/docs/typescript/api-reference/llm-load-model-config
    """
    _refuse_unsaid(launch)
    _refuse_cards(launch, "lmstudio")
    cache = CACHE_WORDS.get(str(launch.kv_dtype), launch.kv_dtype)
    on_device = layers if launch.gpu_layers is None else max(launch.gpu_layers - 1, 0)
    settings = {
        "contextLength": (launch.max_model_len or 0) * (launch.max_num_seqs or 1),
        "maxParallelPredictions": launch.max_num_seqs or 1,
        "gpu": {
            "ratio": round(on_device / layers, 6),
            "numCpuExpertLayersRatio": round((launch.cpu_experts or 0) / layers, 6),
        },
        "flashAttention": True,
        "llamaKCacheQuantizationType": cache,
        "llamaVCacheQuantizationType": cache,
        "evalBatchSize": 512,
    }
    return json.dumps(settings, indent=2) + "\n"


def spelled_out(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of llama-server, whose switch for flash attention takes a value since 2025."""
    kept = list(words)
    for at, word in enumerate(words):
        if word in _FLASH:
            bare = at + 1 == len(words) or words[at + 1].lower() not in ("on", "off", "auto", "0", "1")
            kept[at] = "--flash-attn=on" if bare else ""
            if not bare:
                kept[at + 1] = f"--flash-attn={words[at + 1].lower()}"
    return tuple(word for word in kept if word)


def model_of(said: Mapping[str, str], place: str, folder: Path) -> tuple[str | None, str | None]:
    """Return the model that a command names, and its weight dtype: None where a file that is there, or the model itself, says it."""
    repository, _, quant = said.get("repository", "").partition(":")
    file = said.get("repository_file") or said.get("model")
    if repository:
        quant = _quant_in(quant or file or "Q4_K_M", place)
        return printed_model(repository) or repository, _dtype(quant, repository)
    if file is None or is_there(folder / file):
        return (file and str(folder / file) if folder != Path() else file), None
    alias = said.get("alias", "")
    known = alias if "/" in alias or shipped_id(alias) else printed_model(Path(file).name)
    return (known, _dtype(_quant_in(Path(file).name, place), known)) if known else (file, None)


def _quant_in(text: str, place: str) -> str:
    found = _QUANT.search(text)
    if found is None:
        raise InputError(
            f"{place}: {text!r} does not say its quantisation\n  name a file that is there, or one such as NAME-Q4_K_M.gguf"
        )
    return found[1]


def _dtype(quant: str, model: str) -> str | None:
    return None if quant.lower().startswith(AS_PUBLISHED) else printed_quant(quant, model)


def with_its_options(launch: ReplicaLaunch, read: LaunchWords, place: str) -> ReplicaLaunch:
    """Return a launch with what the options of llama-server say."""
    said, names = read.said, engine_flags(ENGINE).flags

    def number(key: str) -> int | None:
        text = said.get(key)
        if text in (None, "all", "auto", "-1") or (text == "0" and key != "gpu_layers"):
            return None
        return 0 if text == "0" else count(str(text), names[key].names[0], place)

    layers, context, slots = number("gpu_layers"), number("context"), launch.max_num_seqs
    experts = number("cpu_experts")
    if "all_experts" in said or _ALL_EXPERTS.fullmatch(said.get("override", "")):
        experts = ALL_LAYERS
    elif "override" in said:
        read.unmodelled.append(f"--override-tensor {said['override']} moves tensors by name")
    if said.get("split", "layer") not in ("layer", "none"):
        read.unmodelled.append(f"--split-mode {said['split']} splits matrices over devices")
    cards = [part for part in said.get("cards", "").replace("/", ",").split(",") if part]
    unequal, alone = len(set(cards)) > 1, said.get("split") == "none"
    main = 0 if said.get("main", "0") == "0" else count(said["main"], "--main-gpu", place)
    keys = read.kept(place, lambda: _cache(said.get("cache_k", "f16")))
    values = read.kept(place, lambda: _cache(said.get("cache_v", "f16")))
    if keys != values:
        read.unmodelled.append(f"a cache with keys in {keys} and values in {values}")
    if context is not None and slots and context % slots:
        raise InputError(f"{place}: --ctx-size {context} cannot be divided by {slots} slots")
    return replace(
        launch,
        max_model_len=context and context // (slots or 1),
        pipeline_parallel=1 if unequal or alone else max(len(cards), 1),
        tensor_split=said["cards"] if unequal and not alone else None,
        main_gpu=main if alone else None,
        kv_dtype=keys,
        gpu_layers=None if layers is not None and layers >= ALL_LAYERS else layers,
        cpu_experts=experts,
    )


def _cache(word: str) -> str:
    """Return the dtype of a cache as capplan calls it."""
    known = {
        **{written: name for name, written in CACHE_WORDS.items()},
        **{name: name for name in ("bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")},
    }
    if word not in known:
        raise NotModelledError(f"a cache in {word!r} is not modelled; known: {', '.join(known)}")
    return known[word]
