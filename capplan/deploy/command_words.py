"""A replica as the command line of its engine, and as the YAML that TensorRT-LLM takes beside it; only options that the version knows."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from capplan.deploy.engine_options import LOADED_BY, adapter_words, option, sglang_drafts, vllm_drafts
from capplan.deploy.flag_table import DTYPE_WORDS, KV_WORDS, engine_flags
from capplan.deploy.replica_launch import ReplicaLaunch, Role
from capplan.deploy.trtllm_config import written_config
from capplan.errors import InputError
from capplan.numbers import GIB

GB = 1e9
WHOLE_PROMPTS = -1
"""Tokens of a chunk with which SGLang cuts no prompt."""
CONFIG_FILE = "trtllm.yaml"
ROLES: Mapping[Role, str] = {"prefill": "kv_producer", "decode": "kv_consumer", "either": "kv_both"}
"""Pool -> what vLLM calls it; its connector NIXL takes kv_both in either pool."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, and the files that it names."""

    words: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    """Content of `CONFIG_FILE`; empty: there is none."""
    remarks: tuple[str, ...] = ()
    """What the options cannot say."""

    @property
    def options(self) -> tuple[str, ...]:
        """Return the words behind the program and its model."""
        first = next((at for at, word in enumerate(self.words) if word.startswith("--")), len(self.words))
        return self.words[first:]


def command_of(launch: ReplicaLaunch) -> Command:
    """Return the command line that starts a replica.

    Raises
    ------
    InputError
        the engine, or its version, has no option for a part of the launch
    """
    return {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}[launch.engine](launch)


def shell_text(command: Command) -> str:
    """Return a command line as a shell takes it, one option a line."""
    lines: list[str] = []
    for word in command.words:
        quoted = shlex.quote(word)
        if word.startswith("--") or not lines:
            lines.append(quoted)
        else:
            lines[-1] += f" {quoted}"
    return " \\\n  ".join(lines) + "\n"


def _counts(launch: ReplicaLaunch, names: Mapping[str, float | int | None]) -> Iterator[str]:
    for key, value in names.items():
        if value is not None:
            yield from option(launch, key, value)


def _kv(launch: ReplicaLaunch) -> list[str]:
    """Return the cache dtype; an old version that has no word for 16 bits takes the dtype of the model."""
    dtype = str(launch.kv_dtype)
    word = KV_WORDS[launch.engine].get(dtype)
    known = word and engine_flags(launch.engine).knows("kv_dtype", str(launch.version), word)
    if not known and dtype in DTYPE_WORDS:
        return option(launch, "kv_dtype", "auto")
    return option(launch, "kv_dtype", word or dtype, needed=f"a KV cache in {dtype}")


def _remarks(launch: ReplicaLaunch, kv: tuple[str, ...] = ()) -> tuple[str, ...]:
    said = []
    if "auto" in kv:
        said.append(
            f"the KV cache is planned in {launch.kv_dtype}; auto is the dtype of the model, or what its checkpoint asks for"
        )
    if launch.adapters is not None:
        said.append(LOADED_BY[launch.engine])
    if launch.pooling:
        said.append(
            f"{launch.model} is served as it is; an embedding model or a reranker that was made of it is named with --checkpoint"
        )
    if launch.pooling and launch.engine == "sglang":
        said.append(
            "a reranker that scores by the next token of a decoder, such as Qwen3-Reranker, is started without --is-embedding"
        )
    return tuple(said)


def _weights(launch: ReplicaLaunch) -> list[str]:
    dtype = launch.weight_dtype
    if dtype is None:
        return []
    if dtype in DTYPE_WORDS:
        return option(launch, "dtype", DTYPE_WORDS[dtype])
    return option(launch, "quantization", dtype)


def _chunks(launch: ReplicaLaunch) -> list[str]:
    """Return the option of vLLM that says whether prompts are cut into chunks; nothing where the engine decides."""
    if launch.chunked_prefill is None:
        return []
    off = _spelling(launch, "no_chunked_prefill", "chunked_prefill_off")
    return option(
        launch,
        "chunked_prefill" if launch.chunked_prefill else off,
        needed="prompts that are not cut into chunks",
    )


def _vllm(launch: ReplicaLaunch) -> Command:
    ranks = launch.tensor_parallel * launch.data_parallel
    if launch.expert_parallel not in (1, ranks):
        raise InputError(
            f"vllm: spreads experts over all {ranks} ranks of a stage or over none, and the plan has {launch.expert_parallel} groups\n"
            f"  plan with: --set fleet.expert_parallel=[1,{ranks}]"
        )
    kv = _kv(launch)
    words = [
        "vllm", "serve", launch.model,
        *(option(launch, "revision", launch.revision) if launch.revision else []),
        *option(launch, "tensor_parallel", launch.tensor_parallel),
        *(option(launch, "pipeline_parallel", launch.pipeline_parallel) if launch.pipeline_parallel > 1 else []),
        *(option(launch, "data_parallel", launch.data_parallel) if launch.data_parallel > 1 else []),
        *(option(launch, "experts_spread", needed="experts that are spread over ranks") if launch.expert_parallel > 1 else []),
        *_weights(launch), *kv, *_limits(launch, 1),
        *_prefixes(launch), *_chunks(launch),
        *(option(launch, "runner", "pooling", needed="vectors or scores") if launch.pooling else []),
        *(adapter_words(launch, launch.adapters) if launch.adapters else []),
    ]  # fmt: skip
    if launch.drafts is not None:
        words += option(
            launch, "speculation", json.dumps(vllm_drafts(launch, launch.drafts), separators=(",", ":"))
        )
    if launch.host_cache_bytes is not None:
        words += option(launch, "host_cache", launch.host_cache_bytes / GIB, needed="a cache in host memory")
    if launch.role is not None:
        hand_over = {"kv_connector": "NixlConnector", "kv_role": ROLES["either"]}
        words += option(launch, "transfer", json.dumps(hand_over, separators=(",", ":")))
    return Command(tuple(words), remarks=_remarks(launch, tuple(kv)))


def _prefixes(launch: ReplicaLaunch) -> list[str]:
    """Return the option of vLLM that says whether prefixes are cached; a model of vectors or scores decides that itself."""
    if launch.prefix_caching:
        return [] if launch.pooling else option(launch, "prefix_caching")
    off = _spelling(launch, "no_prefix_caching", "prefix_caching_off")
    return option(launch, off, needed="prompts without a prefix cache")


def _spelling(launch: ReplicaLaunch, old: str, new: str) -> str:
    """Return which of two options turns something off; those of vLLM changed their names."""
    return old if engine_flags("vllm").knows(old, str(launch.version)) else new


def _limits(launch: ReplicaLaunch, groups: int) -> Iterator[str]:
    """Yield the limits of an engine; of attention groups together where its options count all of them."""
    seqs, tokens = launch.max_num_seqs, launch.max_num_batched_tokens
    if launch.engine == "sglang" and launch.chunked_prefill is False:
        tokens = None
    return _counts(
        launch,
        {
            "max_model_len": launch.max_model_len,
            "max_num_seqs": seqs and seqs * groups,
            "max_num_batched_tokens": tokens and tokens * groups,
            "memory_fraction": launch.memory_fraction,
        },
    )


def _sglang(launch: ReplicaLaunch) -> Command:
    groups, kv = launch.data_parallel, _kv(launch)
    words = [
        "python3", "-m", "sglang.launch_server", *option(launch, "model", launch.model),
        *(option(launch, "revision", launch.revision) if launch.revision else []),
        *option(launch, "tensor_parallel", launch.tensor_parallel * groups),
        *(option(launch, "pipeline_parallel", launch.pipeline_parallel) if launch.pipeline_parallel > 1 else []),
        *([*option(launch, "data_parallel", groups), *option(launch, "attention_groups")] if groups > 1 else []),
    ]  # fmt: skip
    if launch.expert_parallel > 1:
        words += option(launch, "expert_parallel", launch.expert_parallel)
        if engine_flags("sglang").knows("expert_switch", str(launch.version)):
            words += option(launch, "expert_switch")
    words += [*_weights(launch), *kv, *_limits(launch, groups), *_sglang_chunks(launch)]
    if not launch.prefix_caching:
        words += option(launch, "no_prefix_caching")
    words += option(launch, "pooling") if launch.pooling else []
    words += adapter_words(launch, launch.adapters) if launch.adapters else []
    if launch.drafts is not None:
        words += sglang_drafts(launch, launch.drafts)
    if launch.host_cache_bytes is not None:
        words += option(launch, "host_cache_switch", needed="a cache in host memory")
        words += option(launch, "host_cache", _whole_gigabytes(launch.host_cache_bytes / launch.devices))
    if launch.role is not None:
        words += option(launch, "role", launch.role)
    words += option(launch, "metrics")
    return Command(tuple(words), remarks=_remarks(launch, tuple(kv)))


def _sglang_chunks(launch: ReplicaLaunch) -> list[str]:
    """Return whether SGLang cuts prompts into chunks, and whether those share their steps with decoding; whole prompts have a limit of their own."""
    if launch.chunked_prefill is None:
        return []
    if launch.chunked_prefill:
        return option(launch, "chunked_prefill")
    limit = launch.max_num_batched_tokens
    return [
        *option(launch, "max_num_batched_tokens", WHOLE_PROMPTS),
        *(option(launch, "prefill_tokens", limit) if limit else []),
    ]


def _whole_gigabytes(each_bytes: float) -> int:
    """Return the host memory of one rank, which SGLang counts in whole gigabytes."""
    if each_bytes < GB:
        raise InputError(
            f"sglang: keeps at least 1 GB of each rank in host memory, and the plan has {each_bytes / GB:.3g} GB"
        )
    return int(each_bytes / GB)


def _trtllm(launch: ReplicaLaunch) -> Command:
    if launch.pooling:
        raise InputError("trtllm: trtllm-serve has no option for vectors or scores; plan for vllm or sglang")
    if launch.host_cache_bytes is not None:
        raise InputError(
            "trtllm: a cache in host memory is not exported; plan without kv_offload, or for vllm or sglang"
        )
    if launch.role is not None:
        raise InputError("trtllm: separate pools are not exported; plan for vllm or sglang")
    groups = launch.data_parallel
    if groups > 1 and launch.tensor_parallel > 1:
        raise InputError(
            "trtllm: an attention group is one device there, and the plan has "
            f"{groups} groups of {launch.tensor_parallel}\n  plan with: --set fleet.tensor_parallel=1 --set fleet.data_parallel={groups}"
        )
    words = [
        "trtllm-serve", launch.model,
        *(option(launch, "revision", launch.revision) if launch.revision else []),
        *option(launch, "tensor_parallel", launch.tensor_parallel * groups),
        *(option(launch, "pipeline_parallel", launch.pipeline_parallel) if launch.pipeline_parallel > 1 else []),
        *(option(launch, "expert_parallel", launch.expert_parallel) if launch.expert_parallel > 1 else []),
        *_limits(launch, 1), *option(launch, "config", CONFIG_FILE),
    ]  # fmt: skip
    return Command(tuple(words), written_config(launch), _remarks(launch))
