"""A replica as the command line of its engine, and as the YAML that TensorRT-LLM takes beside it; only options that the version knows."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from capplan.deploy.flag_table import engine_flags
from capplan.deploy.replica_launch import Drafts, ReplicaLaunch, Role
from capplan.errors import InputError

GIB = 2.0**30
GB = 1e9
KV_WORDS = {
    "vllm": {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8"},
    "sglang": {"bf16": "bf16", "fp8": "fp8_e4m3"},
    "trtllm": {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8"},
}
"""Engine -> what it calls a cache dtype."""
DTYPE_WORDS = {"bf16": "bfloat16", "fp16": "float16"}
METHODS: Mapping[str, Mapping[str, str]] = {
    "vllm": {"draft-model": "draft_model", "eagle": "eagle", "mtp": "mtp", "ngram": "ngram"},
    "sglang": {"draft-model": "STANDALONE", "eagle": "EAGLE", "mtp": "NEXTN", "ngram": "NGRAM"},
    "trtllm": {},
}
"""Engine -> what it calls a method of drafting; TensorRT-LLM's keys are not known well enough to be written."""
NEEDS_A_DRAFT = ("draft-model", "eagle")
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


def option(launch: ReplicaLaunch, key: str, value: object = None, *, needed: str = "") -> list[str]:
    """Return an option with its value; InputError where the version does not know it.

    Parameters
    ----------
    launch : whose engine and version are asked
    key : of the table of flags
    value : None for a switch
    needed : what the plan wants of the option, for the error
    """
    table, version = engine_flags(launch.engine), str(launch.version)
    text = None if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)
    if not table.knows(key, version, text if key == "kv_dtype" else None):
        what = needed or key.replace("_", " ")
        raise InputError(
            f"{launch.engine} {version}: has no option for {what} of the plan\n  {_newer(launch, key)}"
        )
    return [table.flags[key].names[0], *([] if text is None else [text])]


def _newer(launch: ReplicaLaunch, key: str) -> str:
    flag = engine_flags(launch.engine).flags.get(key)
    since = f"; {flag.names[0]} is known from {flag.first} on" if flag else ""
    return f"plan for another version: capplan fleet SCENARIO --set engine_version=... -o plan.json{since}"


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


def _kv_remark(launch: ReplicaLaunch, said: tuple[str, ...]) -> tuple[str, ...]:
    if "auto" not in said:
        return ()
    return (
        f"the KV cache is planned in {launch.kv_dtype}; auto is the dtype of the model, or what its checkpoint asks for",
    )


def _weights(launch: ReplicaLaunch) -> list[str]:
    dtype = launch.weight_dtype
    if dtype is None:
        return []
    if dtype in DTYPE_WORDS:
        return option(launch, "dtype", DTYPE_WORDS[dtype])
    return option(launch, "quantization", dtype)


def method_word(launch: ReplicaLaunch, drafts: Drafts) -> str:
    """Return what an engine calls the way a replica drafts; InputError where it has no word for it, or needs a draft that is not named."""
    word = METHODS[launch.engine].get(drafts.method)
    if word is None:
        raise InputError(
            f"{launch.engine}: drafts by {drafts.method} are not exported; known: {', '.join(METHODS[launch.engine]) or 'none'}"
        )
    if drafts.method in NEEDS_A_DRAFT and drafts.draft is None:
        raise InputError(
            f"the plan drafts by {drafts.method}, and names no checkpoint for it\n  name it: --draft OWNER/NAME"
        )
    if drafts.method == "eagle" and "eagle3" in str(drafts.draft).lower().replace("-", ""):
        word += "3"
    if not engine_flags(launch.engine).knows("speculation", str(launch.version), word):
        raise InputError(
            f"{launch.engine} {launch.version}: does not draft by {word}\n  {_newer(launch, 'speculation')}"
        )
    return word


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
        *option(launch, _prefix_caching_key(launch), needed="prompts without a prefix cache"),
    ]  # fmt: skip
    if launch.drafts is not None:
        words += option(
            launch, "speculation", json.dumps(_vllm_drafts(launch, launch.drafts), separators=(",", ":"))
        )
    if launch.host_cache_bytes is not None:
        words += option(launch, "host_cache", launch.host_cache_bytes / GIB, needed="a cache in host memory")
    if launch.role is not None:
        hand_over = {"kv_connector": "NixlConnector", "kv_role": ROLES["either"]}
        words += option(launch, "transfer", json.dumps(hand_over, separators=(",", ":")))
    return Command(tuple(words), remarks=_kv_remark(launch, tuple(kv)))


def _prefix_caching_key(launch: ReplicaLaunch) -> str:
    """Return which option says whether prefixes are cached; the one that turns it off changed its name."""
    if launch.prefix_caching:
        return "prefix_caching"
    old = engine_flags("vllm").knows("no_prefix_caching", str(launch.version))
    return "no_prefix_caching" if old else "prefix_caching_off"


def _vllm_drafts(launch: ReplicaLaunch, drafts: Drafts) -> dict[str, Any]:
    found: dict[str, Any] = {
        "method": method_word(launch, drafts),
        "num_speculative_tokens": drafts.draft_tokens,
    }
    if drafts.draft is not None:
        found["model"] = drafts.draft
    if drafts.method == "ngram":
        found["prompt_lookup_max"] = drafts.draft_tokens
    return found


def _limits(launch: ReplicaLaunch, groups: int) -> Iterator[str]:
    """Yield the limits of an engine; of attention groups together where its options count all of them."""
    seqs, tokens = launch.max_num_seqs, launch.max_num_batched_tokens
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
    words += [*_weights(launch), *kv, *_limits(launch, groups)]
    if not launch.prefix_caching:
        words += option(launch, "no_prefix_caching")
    if launch.drafts is not None:
        words += _sglang_drafts(launch, launch.drafts)
    if launch.host_cache_bytes is not None:
        words += option(launch, "host_cache_switch", needed="a cache in host memory")
        words += option(launch, "host_cache", _whole_gigabytes(launch.host_cache_bytes / launch.devices))
    if launch.role is not None:
        words += option(launch, "role", launch.role)
    words += option(launch, "metrics")
    return Command(tuple(words), remarks=_kv_remark(launch, tuple(kv)))


def _whole_gigabytes(each_bytes: float) -> int:
    """Return the host memory of one rank, which SGLang counts in whole gigabytes."""
    if each_bytes < GB:
        raise InputError(
            f"sglang: keeps at least 1 GB of each rank in host memory, and the plan has {each_bytes / GB:.3g} GB"
        )
    return int(each_bytes / GB)


def _sglang_drafts(launch: ReplicaLaunch, drafts: Drafts) -> list[str]:
    """Return the options of a chain of drafts: one more token is verified than is drafted."""
    words = option(launch, "speculation", method_word(launch, drafts))
    words += option(launch, "draft", drafts.draft) if drafts.draft else []
    if drafts.method != "ngram":
        words += [*option(launch, "draft_steps", drafts.draft_tokens), *option(launch, "draft_branches", 1)]
    return [*words, *option(launch, "draft_tokens", drafts.draft_tokens + 1)]


def _trtllm(launch: ReplicaLaunch) -> Command:
    if launch.drafts is not None:
        method_word(launch, launch.drafts)
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
    cache: dict[str, Any] = {"enable_block_reuse": launch.prefix_caching}
    if launch.kv_dtype is not None:
        word = KV_WORDS["trtllm"].get(launch.kv_dtype)
        if word is None:
            raise InputError(
                f"trtllm: has no word for a KV cache in {launch.kv_dtype}; known: {', '.join(KV_WORDS['trtllm'])}"
            )
        cache["dtype"] = word
    config: dict[str, Any] = {"kv_cache_config": cache}
    if groups > 1:
        config["enable_attention_dp"] = True
    return Command(tuple(words), config)
