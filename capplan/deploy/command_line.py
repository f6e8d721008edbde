"""A replica as the command line of its engine (and YAML for TensorRT-LLM), only with options that the version knows; and command lines read back."""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from capplan.deploy.engine_options import (
    LOADED_BY,
    METHODS,
    adapter_config,
    adapter_words,
    method_word,
    option,
    read_adapter_config,
    read_adapters,
    read_drafts,
    sglang_drafts,
    vllm_drafts,
)
from capplan.deploy.launch_words import NOT_STATED, LaunchWords, leaves, options_of, yaml_of
from capplan.deploy.llamacpp import model_of, server_words, spelled_out, with_its_options
from capplan.deploy.replica_launch import (
    DTYPE_WORDS,
    KV_WORDS,
    Drafts,
    NotModelledError,
    ReplicaLaunch,
    Role,
    amount,
    count,
    engine_flags,
    json_object,
    kv_format,
    weight_dtype,
)
from capplan.deploy.shell import Started, one_engine
from capplan.engine.lookup import profile, version_key
from capplan.errors import LONGEST_SHOWN, InputError
from capplan.numbers import GIB
from capplan.operators.llamacpp import ENGINE as LLAMACPP
from capplan.ranges import Revision

_DRAFTS_APART = ("NGram",)
"""Ways to draft that run between steps, which have to wait for them."""
_CACHE_KEYS = ("dtype", "free_gpu_memory_fraction", "enable_block_reuse")
_OLD_SECTION = "pytorch_backend_config"
"""Section of the YAML of TensorRT-LLM that held its settings before 1.0, some by other names."""


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
    if launch.cuda_graphs is not None:
        config["cuda_graph_config"] = {"max_batch_size": launch.cuda_graphs} if launch.cuda_graphs else None
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


def grouped(launch: ReplicaLaunch) -> ReplicaLaunch:
    """Return a launch whose attention groups are its tensor-parallel ranks, one each."""
    if launch.data_parallel > 1:
        return launch
    return replace(launch, data_parallel=launch.tensor_parallel, tensor_parallel=1)


def _read_drafts(config: object, place: str) -> Drafts:
    """Return the drafts of `speculative_config`, which may use the names of later releases."""
    values = dict(config) if isinstance(config, dict) else {}
    methods = {word: name for name, word in METHODS["trtllm"].items()}
    kind = str(values.pop("decoding_type", "")).replace("Eagle3", "Eagle")
    draft = values.pop("speculative_model_dir", values.pop("speculative_model", None))
    layers, tokens = values.pop("num_nextn_predict_layers", None), values.pop("max_draft_len", None)
    values.pop("max_matching_ngram_size", None)
    if values or kind not in methods or (methods[kind] == "eagle" and draft is None):
        raise NotModelledError(
            f"{place}: speculative_config is read with decoding_type {', '.join(methods)}, max_draft_len or num_nextn_predict_layers, "
            "and speculative_model_dir of an Eagle head; describe others in a scenario"
        )
    return Drafts(
        methods[kind],
        draft and str(draft),
        count(str(tokens or layers), "speculative_config.max_draft_len", place),
    )


GB = 1e9
WHOLE_PROMPTS = -1
"""Tokens of a chunk with which SGLang cuts no prompt."""
WHOLE_TOKENS = "16384"
"""Tokens of a step of SGLang that cuts no prompt and says no limit: `max_prefill_tokens` in its `server_args.py`."""
CONFIG_FILE = "trtllm.yaml"
ROLES: Mapping[Role, str] = {"prefill": "kv_producer", "decode": "kv_consumer", "either": "kv_both"}
"""Pool -> what vLLM calls it; its connector NIXL takes kv_both in either pool."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, and the files that it names."""

    arguments: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    """Content of `CONFIG_FILE`; empty: there is none."""
    remarks: tuple[str, ...] = ()
    """What the options cannot say."""

    @property
    def options(self) -> tuple[str, ...]:
        """Return the words behind the program and its model."""
        first = next(
            (at for at, word in enumerate(self.arguments) if word.startswith("--")), len(self.arguments)
        )
        return self.arguments[first:]


def command_of(launch: ReplicaLaunch) -> Command:
    """Return the command line that starts a replica.

    Raises
    ------
    InputError
        the engine, or its version, has no option for a part of the launch
    """
    return {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm, LLAMACPP: _llamacpp}[launch.engine](launch)


def shell_text(command: Command) -> str:
    """Return a command line as a shell takes it, one option a line."""
    lines: list[str] = []
    for word in command.arguments:
        quoted = shlex.quote(word)
        if word.startswith("--") or not lines:
            lines.append(quoted)
        else:
            lines[-1] += f" {quoted}"
    return " \\\n  ".join(lines) + "\n"


def _written(launch: ReplicaLaunch, said: Mapping[str, object]) -> list[str]:
    """Return the options of what an engine is told, by key of the table of flags; True for a switch, None and False for nothing."""
    return [
        word
        for key, value in said.items()
        if value is not None and value is not False
        for word in option(launch, key, None if value is True else value)
    ]


def _several(count: int) -> int | None:
    """Return a degree where it splits anything."""
    return count if count > 1 else None


def _split(launch: ReplicaLaunch, tensor_parallel: int) -> dict[str, object]:
    """Return the revision and the degrees that every engine is told."""
    return {
        "revision": launch.revision or None,
        "tensor_parallel": tensor_parallel,
        "pipeline_parallel": _several(launch.pipeline_parallel),
    }


def _kv(launch: ReplicaLaunch) -> str:
    """Return the cache dtype; an old version that has no word for 16 bits takes the dtype of the model."""
    dtype = str(launch.kv_dtype)
    word = KV_WORDS[launch.engine].get(dtype)
    known = word and engine_flags(launch.engine).knows("kv_dtype", str(launch.version), word)
    return option(launch, "kv_dtype", "auto" if not known and dtype in DTYPE_WORDS else word or dtype)[1]


def _remarks(launch: ReplicaLaunch, kv: str = "") -> tuple[str, ...]:
    said = []
    if kv == "auto":
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


def _weights(launch: ReplicaLaunch) -> dict[str, object]:
    dtype = launch.weight_dtype
    return {"dtype": DTYPE_WORDS[dtype]} if dtype in DTYPE_WORDS else {"quantization": dtype}


def _vllm(launch: ReplicaLaunch) -> Command:
    ranks = launch.tensor_parallel * launch.data_parallel
    if launch.expert_parallel not in (1, ranks):
        raise InputError(
            f"vllm: spreads experts over all {ranks} ranks of a stage or over none, and the plan has {launch.expert_parallel} groups\n"
            f"  plan with: --set fleet.expert_parallel=[1,{ranks}]"
        )
    kv = _kv(launch)
    said = {
        **_split(launch, launch.tensor_parallel),
        "data_parallel": _several(launch.data_parallel),
        "experts_spread": launch.expert_parallel > 1,
        **_weights(launch),
        "kv_dtype": kv,
        **_limits(launch, 1),
        **_graphs(launch),
        **_vllm_prompts(launch),
        "runner": "pooling" if launch.pooling else None,
    }
    words = ["vllm", "serve", launch.model, *_written(launch, said)]
    words += adapter_words(launch, launch.adapters) if launch.adapters else []
    hand_over = {"kv_connector": "NixlConnector", "kv_role": ROLES["either"]}
    words += _written(
        launch,
        {
            "speculation": launch.drafts and _compact(vllm_drafts(launch, launch.drafts)),
            "host_cache": launch.host_cache_bytes and launch.host_cache_bytes / GIB,
            "transfer": launch.role and _compact(hand_over),
        },
    )
    return Command(tuple(words), remarks=_remarks(launch, kv))


def _compact(values: Mapping[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":"))


def _vllm_prompts(launch: ReplicaLaunch) -> dict[str, object]:
    """Return whether prefixes are cached, which a model of vectors or scores decides itself, and whether prompts are cut into chunks."""
    cached = launch.prefix_caching
    prefixes = "prefix_caching" if cached else _spelling(launch, "no_prefix_caching", "prefix_caching_off")
    chunked = launch.chunked_prefill
    chunks = "chunked_prefill" if chunked else _spelling(launch, "no_chunked_prefill", "chunked_prefill_off")
    return {prefixes: not (cached and launch.pooling), chunks: chunked is not None}


def _spelling(launch: ReplicaLaunch, old: str, new: str) -> str:
    """Return which of two options turns something off; those of vLLM changed their names."""
    return old if engine_flags("vllm").knows(old, str(launch.version)) else new


def _limits(launch: ReplicaLaunch, groups: int) -> dict[str, object]:
    """Return the limits of an engine; of attention groups together where its options count all of them."""
    seqs, tokens = launch.max_num_seqs, launch.max_num_batched_tokens
    return {
        "max_model_len": launch.max_model_len,
        "max_num_seqs": seqs and seqs * groups,
        "max_num_batched_tokens": tokens and tokens * groups,
        "memory_fraction": launch.memory_fraction,
    }


def _graphs(launch: ReplicaLaunch) -> dict[str, object]:
    """Return what limits the CUDA graphs of vLLM and SGLang."""
    table = engine_flags(launch.engine)
    key = "most_graphs" if table.knows("most_graphs", str(launch.version)) else "most_decode_graphs"
    return {"eager": launch.cuda_graphs == 0, key: launch.cuda_graphs or None}


def _sglang(launch: ReplicaLaunch) -> Command:
    groups, kv = launch.data_parallel, _kv(launch)
    spread = launch.expert_parallel > 1
    limits = _limits(launch, groups)
    if launch.chunked_prefill is False:  # whole prompts have a limit of their own
        del limits["max_num_batched_tokens"]
        limits |= {"max_num_batched_tokens": WHOLE_PROMPTS, "prefill_tokens": launch.max_num_batched_tokens}
    said = {
        "model": launch.model,
        **_split(launch, launch.tensor_parallel * groups),
        "data_parallel": _several(groups),
        "attention_groups": groups > 1,
        "expert_parallel": _several(launch.expert_parallel),
        "expert_switch": spread and engine_flags("sglang").knows("expert_switch", str(launch.version)),
        **_weights(launch),
        "kv_dtype": kv,
        **limits,
        **_graphs(launch),
        "chunked_prefill": launch.chunked_prefill,
        "no_prefix_caching": not launch.prefix_caching,
        "pooling": launch.pooling,
    }
    words = ["python3", "-m", "sglang.launch_server", *_written(launch, said)]
    words += adapter_words(launch, launch.adapters) if launch.adapters else []
    words += sglang_drafts(launch, launch.drafts) if launch.drafts else []
    if launch.host_cache_bytes is not None:
        words += option(launch, "host_cache_switch")
        words += option(launch, "host_cache", _whole_gigabytes(launch.host_cache_bytes / launch.devices))
    words += _written(launch, {"role": launch.role, "metrics": True})
    return Command(tuple(words), remarks=_remarks(launch, kv))


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
    said = {
        **_split(launch, launch.tensor_parallel * groups),
        "expert_parallel": _several(launch.expert_parallel),
        **_limits(launch, 1),
        "config": CONFIG_FILE,
    }
    words = ("trtllm-serve", launch.model, *_written(launch, said))
    return Command(words, written_config(launch), _remarks(launch))


def _llamacpp(launch: ReplicaLaunch) -> Command:
    words, said = server_words(launch)
    remarks = []
    if launch.gpu_layers:
        remarks.append("builds before December 2025 keep the LM head on the host with this --n-gpu-layers")
    return Command((*words, *_written(launch, said)), remarks=(*remarks, *_remarks(launch)))


_GENERATES = {
    "runner": ("auto", "generate"),
    "convert": ("auto", "none"),
    "task": ("auto", "generate", "transcription"),
}
"""Option of vLLM -> values with which it generates tokens, if the model does."""
_POOLS = {
    "runner": ("pooling",), "convert": ("embed", "classify"), "task": ("embed", "embedding", "score", "classify", "reward"),
}  # fmt: skip
_COUNTS = ("tensor_parallel", "pipeline_parallel", "data_parallel", "expert_parallel", "max_model_len", "max_num_seqs", "max_num_batched_tokens")  # fmt: skip


def read_command_line(
    text: str,
    place: str = "--launch",
    folder: Path | None = None,
    *,
    version: str | None = None,
    ignore_unmodelled: bool = False,
) -> ReplicaLaunch:
    """Return the replica that a command line starts.

    Parameters
    ----------
    text : as typed in a shell, on one line or several: a script, `docker run ...` and variables may stand around it
    place : of the text, for errors
    folder : that files in it are relative to; None: the working folder
    version : of the engine, where people say it; None: as the image says
    ignore_unmodelled : leave out what is not modelled, and say so, instead of the error

    Raises
    ------
    InputError
        it starts no engine or several, is badly quoted, or has options that change memory or speed and are not modelled
    """
    return launch_of_words(
        one_engine(text, place), place, folder, version=version, ignore_unmodelled=ignore_unmodelled
    )


def launch_of_words(
    started: Started,
    place: str,
    folder: Path | None = None,
    *,
    version: str | None = None,
    ignore_unmodelled: bool = False,
) -> ReplicaLaunch:
    """Return the replica of an engine that a command starts; the parameters are those of `read_command_line`."""
    table = engine_flags(started.engine)
    if started.engine == LLAMACPP:
        started = replace(started, words=spelled_out(started.words))
    read = options_of(table, started, place, folder or Path())
    dtype = None
    if started.engine == LLAMACPP:
        model, dtype = model_of(read.said, place, folder or Path())
    else:
        model = read.said.pop("model", None) or read.model
    if model is None:
        elsewhere = "".join(f"\n  {line}" for line in read.unmodelled if line.startswith("--config "))
        raise InputError(
            f"{place}: names no model; write it behind the program, e.g. {_EXAMPLES[started.engine]}{elsewhere}"
        )
    launch = _with(ReplicaLaunch(started.engine, version or started.version, model), read, place)
    if started.engine == LLAMACPP:
        launch = with_its_options(replace(launch, weight_dtype=dtype), read, place)
    if "config" in read.said:
        launch = _configured(launch, read, started, place, folder or Path())
    if started.engine == "trtllm" and "attention_groups" in read.said:
        launch = grouped(launch)
    assumed = read.assumptions()
    if read.unmodelled and not ignore_unmodelled:
        raise InputError(not_modelled(place, read.unmodelled))
    assumed += [(DEFAULTED if NOT_STATED in line else LEFT_OUT).format(line) for line in read.unmodelled]
    unread = dict.fromkeys((*started.variables, *read.unread))
    return replace(launch, unread=tuple(unread), assumed=tuple(assumed))


DEFAULTED = "estimated as the engine is by default: {}"
LEFT_OUT = "estimated without what is not modelled: {}"
WHOLE_TOWERS = "holds the whole vision tower on every GPU"


def not_modelled(place: str, lines: Sequence[str]) -> str:
    """Return the error for all that a command says and is not modelled."""
    if len(lines) == 1:
        said = ("modelled", "not read", "is read", NOT_STATED)
        which = "" if any(words in lines[0] for words in said) else ", which is not modelled"
        return (
            f"{place}: {lines[0]}{which}\n  leave it out to estimate without it, or add --ignore-unmodelled"
        )
    listed = "".join(f"\n  {line}" for line in lines)
    unset = dict.fromkeys(re.findall(r"write (\w+=\.\.\.;) before", listed))
    if len(unset) == len(lines):
        return f"{place}: {len(lines)} values are {NOT_STATED}{listed}\n  write {' '.join(unset)} before the command, or add --ignore-unmodelled to take the defaults of the engine"
    what = "not modelled or not stated" if NOT_STATED in listed else "not modelled"
    return f"{place}: {len(lines)} parts are {what}{listed}\n  leave them out to estimate without them, or add --ignore-unmodelled"


_EXAMPLES = {
    "vllm": "vllm serve OWNER/NAME",
    "sglang": "--model-path OWNER/NAME",
    "trtllm": "trtllm-serve OWNER/NAME",
    LLAMACPP: "llama-server --model NAME-Q4_K_M.gguf",
}


def _with(launch: ReplicaLaunch, read: LaunchWords, place: str) -> ReplicaLaunch:
    """Return a launch with what its options say."""
    table, said = engine_flags(launch.engine), read.said

    def name(key: str) -> str:
        return table.flags[key].names[0]

    whole = _takes_whole_prompts(launch.engine, read, name)
    if "attention_data_parallel" in said:
        said["data_parallel"] = said["attention_data_parallel"]
    if launch.engine == "vllm" and said.get("max_model_len") in ("auto", "-1"):
        shown = f"{name('max_model_len')} {said.pop('max_model_len')}"
        read.assumed["the longest context of the model is served"] = [shown]
    counts: dict[str, Any] = {key: count(said[key], name(key), place) for key in _COUNTS if key in said}
    if "revision" in said:
        Revision().check(said["revision"], f"{place}: {name('revision')}")
    counts["cuda_graphs"] = _graphs_of(launch, read, name, place)
    launch = replace(launch, **counts, revision=said.get("revision"))
    if "memory_fraction" in said:
        launch = replace(
            launch, memory_fraction=amount(said["memory_fraction"], name("memory_fraction"), place, 1.0)
        )
    if "kv_dtype" in said:
        dtype = read.kept(place, lambda: kv_format(said["kv_dtype"], name("kv_dtype"), place))
        launch = replace(launch, kv_dtype=dtype)
    launch = replace(launch, weight_dtype=read.kept(place, lambda: weight_dtype(said, launch.model, place)))
    if "no_prefix_caching" in said or "prefix_caching_off" in said:
        launch = replace(launch, prefix_caching=False)
    launch = replace(launch, chunked_prefill=_chunks(said, place, whole=whole))
    if "speculation" in said:
        launch = replace(launch, drafts=read.kept(place, lambda: read_drafts(launch.engine, said, place)))
    for key in _JUDGED:
        if key in said:
            read.judge(table, name(key), said[key])
    if "plain_sums" in said and launch.tensor_parallel > 1:
        read.judge(table, name("plain_sums"), "")
    if launch.engine == "sglang":
        return _of_sglang(launch, read, place)
    if launch.engine == "vllm":
        return _of_vllm(launch, read, place)
    return launch


_JUDGED = ("exchange", "balance")
"""Options that exports are written with, and of which a command that is read needs an assumption."""


def _graphs_of(
    launch: ReplicaLaunch, read: LaunchWords, name: Callable[[str], str], place: str
) -> int | None:
    """Return the largest step that runs as a CUDA graph, 0 where none does; None where the options do not say."""
    said = read.said
    if "eager" in said:
        before = launch.version and (version_key(launch.version) or (0,)) < (0, 12, 0)
        if not (said["eager"] and before):
            return 0
        read.unmodelled.append(f"{said['eager']} sets how much is compiled before vllm 0.12.0")
        return None
    for key in ("most_decode_graphs", "most_graphs"):
        if key in said:
            return count(said[key], name(key), place)
    if "graph_sizes" in said:
        sizes = name("graph_sizes")
        read.assumed["steps between the captured sizes take the time of their own size"] = [sizes]
        return _largest_graph(said["graph_sizes"], sizes, place)
    return None


def _largest_graph(text: str, name: str, place: str) -> int:
    """Return the largest of the sizes of step that are captured, which stand apart or as a list."""
    return max(count(size, name, place) for size in re.findall(r"[^\s,\[\]]+", text) or [text])


def _takes_whole_prompts(engine: str, read: LaunchWords, name: Callable[[str], str]) -> bool:
    """Return whether SGLang cuts no prompt, and take the limit of its steps from the option that then has it."""
    said = read.said
    whole = engine == "sglang" and said.get("max_num_batched_tokens") == str(WHOLE_PROMPTS)
    if whole:
        if "prefill_tokens" not in said:
            shown = f"{name('max_num_batched_tokens')} {WHOLE_PROMPTS} without {name('prefill_tokens')}"
            read.assumed[
                f"a step takes whole prompts of {WHOLE_TOKENS} tokens together, as SGLang does by default"
            ] = [shown]
        said["max_num_batched_tokens"] = said.get("prefill_tokens", WHOLE_TOKENS)
    elif "prefill_tokens" in said:
        chunk, most = said.get("max_num_batched_tokens", ""), said["prefill_tokens"]
        if not (chunk.isdigit() and most.isdigit() and int(most) >= int(chunk)):
            read.unmodelled.append(
                f"{name('prefill_tokens')} {most} limits the prompts of a step, which is not modelled together with chunks; give {name('max_num_batched_tokens')} instead"
            )
    return whole


def _chunks(said: Mapping[str, str], place: str, *, whole: bool) -> bool | None:
    """Return whether prompts are cut into chunks that share their steps with decoding; None where nothing is said of it."""
    off = whole or "no_chunked_prefill" in said or "chunked_prefill_off" in said
    if off and "chunked_prefill" in said:
        raise InputError(f"{place}: turns chunked prefill on and off; keep one")
    return False if off else True if "chunked_prefill" in said else None


def _pools(said: Mapping[str, str], place: str) -> bool:
    """Return whether vLLM answers with vectors or scores, by the option of today or the two before it."""
    for key, others in _GENERATES.items():
        value = said.get(key, others[0])
        if value in _POOLS.get(key, ()):
            return True
        if value not in others:
            known = ", ".join((*others, *_POOLS[key]))
            raise InputError(f"{place}: --{key} {value!r} is not read; known: {known}")
    return False


def _of_vllm(launch: ReplicaLaunch, read: LaunchWords, place: str) -> ReplicaLaunch:
    said = read.said
    if "asynchronous" in said and not profile("vllm", launch.version).asynchronous:
        read.unmodelled.append(
            "--async-scheduling plans a step while another runs, which is modelled from vllm 0.14.0 on"
        )
    if "no_sliding_window" in said and launch.max_model_len is None:
        read.judge(engine_flags("vllm"), "--disable-sliding-window", "")
    elif "no_sliding_window" in said:  # the engine starts with a longer one only where it is told to allow it
        read.assumed["the model has no window that is shorter than the context"] = [
            "--disable-sliding-window"
        ]
    if "experts_spread" in said:
        launch = replace(launch, expert_parallel=launch.tensor_parallel * launch.data_parallel)
    if "host_cache" in said:
        launch = replace(
            launch, host_cache_bytes=amount(said["host_cache"], "--kv-offloading-size", place) * GIB
        )
    towers = said.get("whole_towers", "data" if "tower_switch" in said else "weights")
    if towers not in ("weights", "data"):
        raise InputError(f"{place}: --mm-encoder-tp-mode {towers!r} is not read; known: weights, data")
    return replace(
        launch,
        role=read.kept(place, lambda: _vllm_role(read, place)),
        pooling=_pools(said, place),
        adapters=read_adapters("vllm", said, place),
        whole_towers=towers == "data" and launch.tensor_parallel > 1,
    )


_STORES = (
    "LMCache",
    "Offloading",
    "Offload",
    "Store",
    "FlexKV",
    "HF3FS",
    "SharedStorage",
    "Example",
    "Dynamo",
    "Kvbm",
)
"""Parts of the names of connectors that keep caches elsewhere, and send none to a pool of their own where they do both."""


def _vllm_role(read: LaunchWords, place: str) -> Role | None:
    """Return the pool of an engine that sends caches to others or takes them."""
    if "transfer" not in read.said:
        return None
    values = json_object(read.said["transfer"], "--kv-transfer-config", place)
    connector, word = str(values.get("kv_connector", "")), values.get("kv_role")
    if word == ROLES["either"] and "Multi" in connector:
        raise NotModelledError(
            f"{place}: --kv-transfer-config {connector} moves caches in several ways, of which one is read; name that connector"
        )
    if word == ROLES["either"] and any(part in connector for part in _STORES):
        if "host_cache" not in read.said:
            read.judge(engine_flags("vllm"), "--kv-transfer-config.kv_connector", connector)
        return None
    for role, known in ROLES.items():
        if word == known:
            return role
    raise InputError(
        f"{place}: --kv-transfer-config with kv_role {word!r} is not read; known: {', '.join(ROLES.values())}"
    )


def _of_sglang(launch: ReplicaLaunch, read: LaunchWords, place: str) -> ReplicaLaunch:
    """Return a launch of SGLang, whose options count the ranks, sequences and tokens of all attention groups together."""
    said, groups, table = read.said, launch.data_parallel, engine_flags("sglang")
    if groups > 1 and not {"attention_groups", "attention_data_parallel"} & set(said):
        shown = f"--dp-size {groups} without --enable-dp-attention"
        read.assumed[f"one of the {groups} engines that it starts is estimated, with the load of one"] = [
            shown
        ]
        launch = replace(launch, data_parallel=1)
        groups = 1
    whole = launch.chunked_prefill is False  # the limit of whole prompts is that of one group
    for key in ("tensor_parallel", "max_num_seqs", *(() if whole else ("max_num_batched_tokens",))):
        total = getattr(launch, key)
        if total is not None and total % groups:
            raise InputError(
                f"{place}: {total} of {key.replace('_', ' ')} cannot be divided by {groups} attention groups"
            )
        launch = replace(launch, **{key: total and total // groups})
    everywhere = "deepep" in said or said.get("exchange", "none") in _EXCHANGED
    if everywhere or ("expert_switch" in said and "expert_parallel" not in said):
        launch = replace(launch, expert_parallel=launch.tensor_parallel * groups)
    if said.get("dense_parallel", str(launch.tensor_parallel)) != str(launch.tensor_parallel):
        read.judge(table, "--moe-dense-tp-size", "")
    if said.get("host_cache") == "0":  # the ratio counts then
        del said["host_cache"]
    if "host_cache" in said:
        launch = replace(
            launch,
            host_cache_bytes=amount(said["host_cache"], "--hicache-size", place) * GB * launch.devices,
        )
    elif "host_cache_switch" in said:
        read.judge(table, "--enable-hierarchical-cache", "")
    roles: dict[str, Role | None] = {"null": None, "prefill": "prefill", "decode": "decode"}
    mode = said.get("role", "null")
    if mode not in roles:
        raise InputError(f"{place}: --disaggregation-mode {mode!r} is not prefill, decode or null")
    return replace(
        launch,
        role=roles[mode],
        pooling="pooling" in said,
        adapters=read_adapters("sglang", said, place),
        whole_towers="whole_towers" in said and launch.tensor_parallel > 1,
    )


_EXCHANGED = (
    "ascend_fuseep", "deepep", "deepep_v2", "flashinfer", "flashinfer_megamoe", "megamoe", "mooncake", "mori", "nixl", "pplx",
)  # fmt: skip
"""Values of `--moe-a2a-backend` with which SGLang spreads its experts over all ranks (`_A2A_EP_SPANNING_BACKENDS` in its `overrides.py`)."""


_TRT_COUNTS = {
    "tensor_parallel_size": "tensor_parallel", "pipeline_parallel_size": "pipeline_parallel", "moe_expert_parallel_size": "expert_parallel",
    "max_seq_len": "max_model_len", "max_batch_size": "max_num_seqs", "max_num_tokens": "max_num_batched_tokens",
}  # fmt: skip
"""Key of the YAML of TensorRT-LLM -> what it counts; the YAML counts before the command line."""


def _configured(
    launch: ReplicaLaunch, read: LaunchWords, started: Started, place: str, folder: Path
) -> ReplicaLaunch:
    """Return a launch of TensorRT-LLM with what the YAML says that its command names."""
    path = read.said["config"]
    found = yaml_of(path, started, folder, "trtllm-serve --config", place)
    if found is None:
        read.unmodelled.append(f"{path}: no such file; the YAML of trtllm-serve --config is expected")
        return launch
    values, table, at = _as_today(found), engine_flags("trtllm"), str(folder / path)
    cache = values.pop("kv_cache_config", None) or {}
    groups, chunked = values.pop("enable_attention_dp", False), values.pop("enable_chunked_prefill", None)
    speculation, adapters = values.pop("speculative_config", None), values.pop("lora_config", None)
    counts: dict[str, Any] = {
        key: count(str(values.pop(word)), word, at) for word, key in _TRT_COUNTS.items() if word in values
    }
    if isinstance(speculation, dict) and speculation.get("decoding_type") in _DRAFTS_APART:
        values.pop("disable_overlap_scheduler", None)
    for name, value in (("enable_attention_dp", groups), ("enable_chunked_prefill", chunked)):
        if not isinstance(value, bool | None):
            raise InputError(f"{at}: {name} is {value!r}, neither true nor false")
    if not isinstance(cache, dict):
        raise InputError(f"{at}: kv_cache_config is {cache!r}, not a mapping of its settings")
    values |= {f"kv_cache_config.{key}": value for key, value in cache.items() if key not in _CACHE_KEYS}
    most = (counts.get("max_num_seqs") or launch.max_num_seqs) if speculation is not None else None
    counts["cuda_graphs"] = _captured(values, at, drafts=speculation is not None, most=most)
    for key, value in values.items():
        for name, leaf in leaves(str(key), value):
            read.judge(table, name, leaf, at)
    launch = _with_cache(replace(launch, **counts), cache, read, at)
    drafts = None if speculation is None else read.kept(place, lambda: _read_drafts(speculation, at))
    return replace(
        grouped(launch) if groups else launch,
        chunked_prefill=launch.chunked_prefill if chunked is None else chunked,
        drafts=drafts,
        adapters=None if adapters is None else read_adapter_config(adapters, at),
    )


def _as_today(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the YAML of TensorRT-LLM with the names of today.

    Examples
    --------
    >>> _as_today({"pytorch_backend_config": {"use_cuda_graph": True, "cuda_graph_batch_sizes": [1, 8], "enable_overlap_scheduler": True}})
    {'cuda_graph_config': {'batch_sizes': [1, 8]}, 'disable_overlap_scheduler': False}
    """
    section = found.get(_OLD_SECTION)
    values = {**found, **section} if isinstance(section, dict) else dict(found)
    values.pop(_OLD_SECTION, None)
    graphs = {
        today: values.pop(name)
        for name, today in (
            ("cuda_graph_padding_enabled", "enable_padding"),
            ("cuda_graph_batch_sizes", "batch_sizes"),
            ("cuda_graph_max_batch_size", "max_batch_size"),
        )
        if name in values
    }
    if "use_cuda_graph" in values:
        values["cuda_graph_config"] = graphs if values.pop("use_cuda_graph") is True else None
    if "enable_overlap_scheduler" in values:
        values["disable_overlap_scheduler"] = values.pop("enable_overlap_scheduler") is not True
    if "kv_cache_dtype" in values:
        values["kv_cache_config"] = {
            **(values.get("kv_cache_config") or {}),
            "dtype": values.pop("kv_cache_dtype"),
        }
    return values


def _captured(values: dict[str, Any], place: str, *, drafts: bool, most: int | None) -> int | None:
    """Take from the YAML of TensorRT-LLM for how many sequences a step is captured: null switches CUDA graphs off; None where it does not say.

    With drafts nothing changes where all sequences (`most`) are captured, and a limit below them is not modelled.
    """
    graphs = values.get("cuda_graph_config", {})
    if graphs is None:
        del values["cuda_graph_config"]
        return 0
    if not isinstance(graphs, dict):
        return None
    key = next((key for key in ("batch_sizes", "max_batch_size") if key in graphs), None)
    if key is None:
        return None
    largest = _largest_graph(str(graphs[key]), f"cuda_graph_config.{key}", place)
    if drafts and not (most and largest >= most):
        return None
    values["cuda_graph_config"] = {name: one for name, one in graphs.items() if name != key}
    return None if drafts else largest


def _with_cache(
    launch: ReplicaLaunch, cache: Mapping[str, Any], read: LaunchWords, place: str
) -> ReplicaLaunch:
    if "dtype" in cache:
        dtype = read.kept(place, lambda: kv_format(str(cache["dtype"]), "kv_cache_config.dtype", place))
        launch = replace(launch, kv_dtype=dtype)
    if "free_gpu_memory_fraction" in cache:
        fraction = amount(str(cache["free_gpu_memory_fraction"]), "free_gpu_memory_fraction", place, 1.0)
        launch = replace(launch, memory_fraction=fraction)
    return replace(launch, prefix_caching=cache.get("enable_block_reuse", True) is not False)


def comment(text: str) -> str:
    r"""Return a line of comment for a shell and for YAML: line ends and control characters become spaces.

    Examples
    --------
    >>> comment("a device\n touch FILE")
    '# a device  touch FILE'
    """
    return "# " + "".join(letter if letter.isprintable() else " " for letter in text)


def checked_name(what: str, name: str | None) -> str | None:
    """Return a name that an engine can be started with, or that a manifest can hold.

    Raises
    ------
    InputError
        the name is blank, begins with a dash and would be read as an option, or has line ends, control characters or half a letter
    """
    if name is not None and (not name.strip() or not name.isprintable() or name.startswith("-")):
        raise InputError(f"{what}: {name[:LONGEST_SHOWN]!r} is not a name that an export can hold")
    return name


def unexpanded(words: Iterable[str]) -> list[str]:
    """Return words in which Kubernetes and Compose expand no variable: both read two dollar signs as one.

    Examples
    --------
    >>> unexpanded(["--model", "$(HF_TOKEN)"])
    ['--model', '$$(HF_TOKEN)']

    References
    ----------
    Kubernetes, "Define Dependent Environment Variables": $$(VAR) is not expanded. Compose specification, "Interpolation": a double dollar sign
    is a literal one.
    """
    return [word.replace("$", "$$") for word in words]


def refuse_variables(platform: str, name: str) -> None:
    """Raise the error for a model whose name a chart may expand, in places where no escape is known."""
    if "$" in name:
        raise InputError(
            f"{platform}: the model {name[:LONGEST_SHOWN]!r} has a dollar sign, which its charts may expand; rename its folder"
        )
