"""The YAML next to the options of `trtllm-serve`: what its command line has no option for, written and read."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from capplan.deploy.engine_options import METHODS, adapter_config, method_word, read_adapter_config
from capplan.deploy.flag_table import KV_WORDS, amount, count, kv_format
from capplan.deploy.replica_launch import Drafts, ReplicaLaunch
from capplan.errors import InputError

_DRAFTS_APART = ("NGram",)
"""Ways to draft that run between steps, which have to wait for them."""
_CACHE_KEYS = ("dtype", "free_gpu_memory_fraction", "enable_block_reuse")


def written_config(launch: ReplicaLaunch) -> dict[str, Any]:
    """Return the content of the YAML that a replica is started with.

    Raises
    ------
    InputError
        TensorRT-LLM has no word for the cache, the drafts or the adapters of the replica
    """
    cache: dict[str, Any] = {"enable_block_reuse": launch.prefix_caching}
    if launch.kv_dtype is not None:
        word = KV_WORDS["trtllm"].get(launch.kv_dtype)
        if word is None:
            raise InputError(
                f"trtllm: has no word for a KV cache in {launch.kv_dtype}; known: {', '.join(KV_WORDS['trtllm'])}"
            )
        cache["dtype"] = word
    config: dict[str, Any] = {"kv_cache_config": cache}
    if launch.data_parallel > 1:
        config["enable_attention_dp"] = True
    if launch.chunked_prefill is not None:
        config["enable_chunked_prefill"] = launch.chunked_prefill
    if launch.drafts is not None:
        config["speculative_config"] = _drafts(launch, launch.drafts)
        if config["speculative_config"]["decoding_type"] in _DRAFTS_APART:
            config["disable_overlap_scheduler"] = True
    if launch.adapters is not None:
        config["lora_config"] = adapter_config(launch.adapters)
    return config


def _drafts(launch: ReplicaLaunch, drafts: Drafts) -> dict[str, Any]:
    word = method_word(launch, drafts)
    if drafts.method == "mtp":
        return {"decoding_type": word, "num_nextn_predict_layers": drafts.draft_tokens}
    if drafts.method == "ngram":
        return {
            "decoding_type": word,
            "max_draft_len": drafts.draft_tokens,
            "max_matching_ngram_size": drafts.draft_tokens,
        }
    return {
        "decoding_type": word,
        "max_draft_len": drafts.draft_tokens,
        "speculative_model_dir": drafts.draft,
    }


def configured(launch: ReplicaLaunch, path: Path, place: str) -> ReplicaLaunch:
    """Return a launch with what its YAML file says; InputError where the file says more than is read.

    Parameters
    ----------
    launch : what the command line says
    path : of the YAML file
    place : of the command line, for errors
    """
    from capplan.readers.yaml_file import read_yaml

    document = read_yaml(path, kind="the YAML of trtllm-serve --config", way_out=f"named by {place}")
    values: dict[str, Any] = dict(document.value) if isinstance(document.value, dict) else {}
    cache = values.pop("kv_cache_config", None) or {}
    groups = values.pop("enable_attention_dp", False)
    chunked = values.pop("enable_chunked_prefill", launch.chunked_prefill)
    speculation, adapters = values.pop("speculative_config", None), values.pop("lora_config", None)
    if isinstance(speculation, dict) and speculation.get("decoding_type") in _DRAFTS_APART:
        values.pop("disable_overlap_scheduler", None)
    _refuse_other(path, [*values, *(f"kv_cache_config.{key}" for key in _other_keys(cache))])
    for name, value in (("enable_attention_dp", groups), ("enable_chunked_prefill", chunked)):
        if not isinstance(value, bool | None):
            _refuse_other(path, [name])
    launch = _with_cache(launch, cache, str(path))
    return replace(
        grouped(launch) if groups else launch,
        chunked_prefill=chunked,
        drafts=None if speculation is None else _read_drafts(speculation, str(path)),
        adapters=None if adapters is None else read_adapter_config(adapters, str(path)),
    )


def grouped(launch: ReplicaLaunch) -> ReplicaLaunch:
    """Return a launch whose attention groups are its tensor-parallel ranks, one each."""
    if launch.data_parallel > 1:
        return launch
    return replace(launch, data_parallel=launch.tensor_parallel, tensor_parallel=1)


def _refuse_other(path: Path, keys: list[str]) -> None:
    if keys:
        raise InputError(
            f"{path}: {', '.join(map(str, keys))}: is not read; leave it out to estimate without it"
        )


def _with_cache(launch: ReplicaLaunch, cache: dict[str, Any], place: str) -> ReplicaLaunch:
    if "dtype" in cache:
        launch = replace(launch, kv_dtype=kv_format(str(cache["dtype"]), "kv_cache_config.dtype", place))
    if "free_gpu_memory_fraction" in cache:
        fraction = amount(str(cache["free_gpu_memory_fraction"]), "free_gpu_memory_fraction", place, 1.0)
        launch = replace(launch, memory_fraction=fraction)
    return replace(launch, prefix_caching=cache.get("enable_block_reuse", True) is not False)


def _other_keys(cache: object) -> Iterator[str]:
    if not isinstance(cache, dict):
        yield "(not a mapping)"
        return
    yield from (str(key) for key in cache if key not in _CACHE_KEYS)


def _read_drafts(config: object, place: str) -> Drafts:
    """Return the drafts of `speculative_config`, which may use the names of later releases."""
    values = dict(config) if isinstance(config, dict) else {}
    methods = {word: name for name, word in METHODS["trtllm"].items()}
    kind = str(values.pop("decoding_type", "")).replace("Eagle3", "Eagle")
    draft = values.pop("speculative_model_dir", values.pop("speculative_model", None))
    layers, tokens = values.pop("num_nextn_predict_layers", None), values.pop("max_draft_len", None)
    values.pop("max_matching_ngram_size", None)
    if values or kind not in methods or (methods[kind] == "eagle" and draft is None):
        raise InputError(
            f"{place}: speculative_config is read with decoding_type {', '.join(methods)}, max_draft_len or num_nextn_predict_layers, "
            "and speculative_model_dir of an Eagle head; describe others in a scenario"
        )
    return Drafts(
        methods[kind],
        draft and str(draft),
        count(str(tokens or layers), "speculative_config.max_draft_len", place),
    )
