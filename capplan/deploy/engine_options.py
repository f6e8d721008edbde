"""Options of an engine with their values: those of adapters and of drafts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from capplan.deploy.replica_launch import (
    Drafts,
    NotModelledError,
    ReplicaLaunch,
    count,
    engine_flags,
    json_object,
)
from capplan.errors import InputError
from capplan.model.network import LoraTerms
from capplan.model.sharding import MODULES


def option(launch: ReplicaLaunch, key: str, value: object = None) -> list[str]:
    """Return an option with its value; InputError where the version does not know it.

    Parameters
    ----------
    launch : whose engine and version are asked
    key : of the table of flags
    value : None for a switch
    """
    table, version = engine_flags(launch.engine), str(launch.version)
    text = None if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)
    if not table.knows(key, version, text if key == "kv_dtype" else None):
        what = _MEANT.get(key, key.replace("_", " ")).format(kv_dtype=launch.kv_dtype)
        raise InputError(
            f"{launch.engine} {version}: has no option for {what} of the plan\n  {newer_version(launch, key)}"
        )
    return [table.flags[key].names[0], *([] if text is None else [text])]


_MEANT = {
    "experts_spread": "experts that are spread over ranks",
    "kv_dtype": "a KV cache in {kv_dtype}",
    "eager": "steps without CUDA graphs",
    "most_graphs": "a limit of CUDA graphs",
    "most_decode_graphs": "a limit of CUDA graphs",
    "prefix_caching_off": "prompts without a prefix cache",
    "chunked_prefill_off": "prompts that are not cut into chunks",
    "runner": "vectors or scores",
    "host_cache": "a cache in host memory",
    "host_cache_switch": "a cache in host memory",
    "nodes": "replicas over servers",
    "adapters": "LoRA adapters",
    "adapter_rank": "the rank of the adapters",
    "adapter_modules": "adapters of some matrices only",
    "host_adapters": "adapters in host memory",
    "sharded_adapters": "adapters split over ranks on both sides",
}
"""Key of the table of flags -> what a plan wants of it."""


def newer_version(launch: ReplicaLaunch, key: str) -> str:
    """Return the way out where a version does not know an option: another version, and the first that knows it."""
    flag = engine_flags(launch.engine).flags.get(key)
    since = f"; {flag.names[0]} is known from {flag.first} on" if flag else ""
    return f"plan for another version: capplan fleet SCENARIO --set engine_version=... -o plan.json{since}"


METHODS: Mapping[str, Mapping[str, str]] = {
    "vllm": {"draft-model": "draft_model", "eagle": "eagle", "mtp": "mtp", "ngram": "ngram"},
    "sglang": {"draft-model": "STANDALONE", "eagle": "EAGLE", "mtp": "NEXTN", "ngram": "NGRAM"},
    "trtllm": {"eagle": "Eagle", "mtp": "MTP", "ngram": "NGram"},
}
"""Engine -> what it calls a method of drafting. Releases of TensorRT-LLM spell that of a draft model in two ways, so it is not written."""
NEEDS_A_DRAFT = ("draft-model", "eagle")


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
    if drafts.method == "eagle":
        word = _eagle_word(launch.engine, word, str(drafts.draft))
    if not engine_flags(launch.engine).knows("speculation", str(launch.version), word):
        raise InputError(
            f"{launch.engine} {launch.version}: does not draft by {word}\n  {newer_version(launch, 'speculation')}"
        )
    return word


def _eagle_word(engine: str, word: str, draft: str) -> str:
    """Return what an engine calls drafts of an EAGLE head; TensorRT-LLM knows only those of EAGLE-3, and needs no word for it."""
    third = "eagle3" in draft.lower().replace("-", "")
    if engine != "trtllm":
        return f"{word}3" if third else word
    if not third:
        raise InputError(
            f"trtllm: drafts by heads of EAGLE-3 only, and {draft!r} does not say that it is one\n  name one: --draft OWNER/EAGLE3-NAME"
        )
    return word


def vllm_drafts(launch: ReplicaLaunch, drafts: Drafts) -> dict[str, Any]:
    """Return the object that `--speculative-config` of vLLM takes."""
    found: dict[str, Any] = {
        "method": method_word(launch, drafts),
        "num_speculative_tokens": drafts.draft_tokens,
    }
    if drafts.draft is not None:
        found["model"] = drafts.draft
    if drafts.method == "ngram":
        found["prompt_lookup_max"] = drafts.draft_tokens
    return found


def sglang_drafts(launch: ReplicaLaunch, drafts: Drafts) -> list[str]:
    """Return the options of a chain of drafts: one more token is verified than is drafted."""
    words = option(launch, "speculation", method_word(launch, drafts))
    words += option(launch, "draft", drafts.draft) if drafts.draft else []
    if drafts.method != "ngram":
        words += [*option(launch, "draft_steps", drafts.draft_tokens), *option(launch, "draft_branches", 1)]
    return [*words, *option(launch, "draft_tokens", drafts.draft_tokens + 1)]


_ALIASES: Mapping[str, Mapping[str, str]] = {
    "vllm": {"eagle3": "eagle", "dspark": "dspark", "medusa": "medusa", "ngram_gpu": "ngram"},
    "sglang": {"EAGLE3": "eagle", "NEXTN": "mtp", "DSPARK": "dspark"},
    "trtllm": {},
}
"""Engine -> other words for a method of drafting. vLLM names drafts by the layers of one family `..._mtp`."""
_OF_ITS_LAYERS = "_mtp"
_OLD_NGRAM = "[ngram]"
"""Model that stood for n-grams of the prompt in the first releases of vLLM."""
_MOST_DRAFTED = 64


def _method(engine: str, word: str) -> str | None:
    """Return the method of drafting that an engine calls so; None for one that is not modelled.

    Examples
    --------
    >>> _method("vllm", "qwen3_next_mtp"), _method("sglang", "EAGLE3"), _method("vllm", "suffix")
    ('mtp', 'eagle', None)
    """
    methods = {**{written: name for name, written in METHODS[engine].items()}, **_ALIASES[engine]}
    return "mtp" if engine == "vllm" and word.endswith(_OF_ITS_LAYERS) else methods.get(word)


def read_drafts(engine: str, said: Mapping[str, str], place: str) -> Drafts:
    """Return how a command line of vLLM or SGLang drafts; NotModelledError for drafts that form a tree, or whose method is not read."""
    if engine == "vllm":
        values = json_object(said["speculation"], "--speculative-config", place)
        draft = values.get("model")
        if draft == _OLD_NGRAM:
            values, draft = {"method": "ngram", **values}, None
        of_its_name = "eagle" if "eagle" in str(draft).lower() else "draft_model"
        word, each = str(values.get("method", of_its_name)), values.get("num_speculative_tokens")
    else:
        word, draft = said["speculation"].upper(), said.get("draft")
        each = _chained(said, place)
    method = _method(engine, word)
    if engine == "sglang" and method == "eagle" and draft is None:
        method = "mtp"  # the layers of the model itself
    if (
        method is None
        or not isinstance(each, int)
        or isinstance(each, bool)
        or not 1 <= each <= _MOST_DRAFTED
    ):
        known = ", ".join((*METHODS[engine].values(), *_ALIASES[engine]))
        raise NotModelledError(
            f"{place}: drafts by {word!r} with {each!r} tokens a round are not read; known: {known} with 1 to {_MOST_DRAFTED} tokens"
        )
    return Drafts(method, None if draft is None or method == "mtp" else str(draft), each)


def _chained(said: Mapping[str, str], place: str) -> int | None:
    """Return the tokens of a chain of drafts of SGLang, which verifies one more; None where its engine chooses them."""
    if said.get("draft_branches", "1") != "1":
        raise NotModelledError(
            f"{place}: --speculative-eagle-topk above 1 drafts a tree, which is not read; describe it in a scenario"
        )
    if "draft_block" in said:  # one more is verified
        return count(said["draft_block"], "--speculative-dspark-block-size", place)
    if "draft_tokens" in said:
        return count(said["draft_tokens"], "--speculative-num-draft-tokens", place) - 1
    steps = said.get("draft_steps")
    return None if steps is None else count(steps, "--speculative-num-steps", place)


_HELD_AS_ONE = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Matrix of vLLM -> the matrices that it is made of, which have adapters together or not at all."""
_TRTLLM_MODULES = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_dense",
    "gate_proj": "mlp_h_to_4h", "up_proj": "mlp_gate", "down_proj": "mlp_4h_to_h",
}  # fmt: skip
"""Matrix -> what TensorRT-LLM calls it."""
_USUAL_SLOTS = {"vllm": "1", "sglang": "8"}
"""Where a command does not say: `max_loras` of vLLM, `max_loras_per_batch` of SGLang."""
_USUAL_RANK = "16"
"""Rank of adapters that vLLM takes by default."""
_CONFIG = ("lora_target_modules", "max_loras", "max_lora_rank", "max_cpu_loras")
"""Keys of `lora_config` of TensorRT-LLM that are read."""
LOADED_BY = {
    "vllm": "load the adapters with --lora-modules NAME=PATH, or while it runs with VLLM_ALLOW_RUNTIME_LORA_UPDATING=true and POST /v1/load_lora_adapter",
    "sglang": "load the adapters with --lora-paths NAME=PATH, or while it runs with POST /load_lora_adapter",
    "trtllm": "every request names its adapter: lora_request with lora_name, lora_int_id and lora_path",
}
"""Engine -> how adapters get into it, which no plan knows."""


def adapter_words(launch: ReplicaLaunch, adapters: LoraTerms) -> list[str]:
    """Return the options of vLLM or SGLang for the adapters of a replica.

    Raises
    ------
    InputError
        the version has no option for them, for their rank, or for the matrices that they stand next to
    """
    words = [
        *option(launch, "adapters"),
        *option(launch, "adapter_slots", adapters.slots),
        *option(launch, "adapter_rank", adapters.rank),
    ]
    _refuse_rank(launch, adapters.rank)
    if adapters.adapters > adapters.slots:
        words += option(launch, "host_adapters", adapters.adapters)
    if adapters.fully_sharded:
        words += option(launch, "sharded_adapters")
    modules = _module_words(launch.engine, adapters.modules)
    if modules:
        named = option(launch, "adapter_modules")
        words += [*named, *modules]
    return words


def _refuse_rank(launch: ReplicaLaunch, rank: int) -> None:
    """Raise the error for a rank that the version does not take."""
    table, version = engine_flags(launch.engine), str(launch.version)
    ranks = [
        int(text) for text in table.flags["adapter_rank"].values if table.knows("adapter_rank", version, text)
    ]
    if ranks and rank not in ranks:
        above = min((each for each in ranks if each > rank), default=max(ranks))
        raise InputError(
            f"{launch.engine} {version}: takes adapters of rank {', '.join(map(str, sorted(ranks)))}, and the plan has {rank}\n"
            f"  plan with: --set lora.max_lora_rank={above}"
        )


def _module_words(engine: str, modules: Sequence[str] | None) -> list[str]:
    """Return the matrices with adapters as an engine names them; SGLang has to be told even where it is all of them."""
    if engine == "sglang":
        return list(modules or MODULES)
    words = list(modules or ())
    for name, parts in _HELD_AS_ONE.items():
        named = [part for part in parts if part in words]
        if not named:
            continue
        if len(named) < len(parts):
            raise InputError(
                f"vllm: holds {', '.join(parts)} as one matrix, and the plan has adapters of {', '.join(named)} only\n"
                f"  plan with all of them in lora.modules, or without that key"
            )
        words = [word for word in words if word not in parts] + [name]
    return words


def read_adapters(engine: str, said: Mapping[str, str], place: str) -> LoraTerms | None:
    """Return the adapters that the options of vLLM or SGLang make room for; None where they are not turned on.

    Parameters
    ----------
    engine : vllm or sglang
    said : what the options say, by key of the table of flags
    place : of the command, for errors
    """
    paths = said.get("adapter_paths", "").split()
    if "adapters" not in said and not paths:
        return None
    names = {key: flag.names[0] for key, flag in engine_flags(engine).flags.items()}
    if engine == "sglang" and not {"adapter_rank", "adapter_modules"} <= set(said):
        raise InputError(
            f"{place}: the size of its adapters is not said; write {names['adapter_rank']} and {names['adapter_modules']}"
        )
    slots = count(said.get("adapter_slots", _USUAL_SLOTS[engine]), names["adapter_slots"], place)
    held = said.get("host_adapters")
    return LoraTerms(
        slots=slots,
        rank=count(said.get("adapter_rank", _USUAL_RANK), names["adapter_rank"], place),
        adapters=max(slots, len(paths)) if held is None else count(held, names["host_adapters"], place),
        modules=_modules(said.get("adapter_modules", "").split()),
        fully_sharded="sharded_adapters" in said,
    )


def _modules(words: Iterable[str]) -> tuple[str, ...] | None:
    """Return the matrices with adapters; None where it is all of attention and feed-forward."""
    found = [part for word in words for part in _HELD_AS_ONE.get(word, (word,))]
    if not found or found == ["all"] or set(found) == set(MODULES):
        return None
    return tuple(
        sorted(
            found, key=lambda name: (name not in MODULES, MODULES.index(name) if name in MODULES else 0, name)
        )
    )


def adapter_config(adapters: LoraTerms) -> dict[str, Any]:
    """Return `lora_config` of TensorRT-LLM; InputError for adapters that it has no key for."""
    modules = adapters.modules or MODULES
    strange = [name for name in modules if name not in _TRTLLM_MODULES]
    if strange or adapters.fully_sharded:
        what = f"adapters of {', '.join(strange)}" if strange else "adapters split over ranks on both sides"
        raise InputError(f"trtllm: {what} are not exported; known: {', '.join(_TRTLLM_MODULES)}")
    return {
        "lora_target_modules": [_TRTLLM_MODULES[name] for name in modules],
        "max_lora_rank": adapters.rank,
        "max_loras": adapters.slots,
        "max_cpu_loras": adapters.adapters,
    }


def read_adapter_config(config: object, place: str) -> LoraTerms:
    """Return the adapters of `lora_config` of TensorRT-LLM; InputError where it says less or more."""
    values = dict(config) if isinstance(config, dict) else {}
    if set(values) != set(_CONFIG):
        raise InputError(
            f"{place}: lora_config is read with the keys {', '.join(_CONFIG)}, all of them and no others"
        )
    names = {word: name for name, word in _TRTLLM_MODULES.items()}
    modules = values["lora_target_modules"]
    if not isinstance(modules, list) or not set(modules) <= set(names):
        raise InputError(f"{place}: lora_config.lora_target_modules: known: {', '.join(names)}")
    slots, rank, held = (count(str(values[key]), f"lora_config.{key}", place) for key in _CONFIG[1:])
    return LoraTerms(held, slots, rank, _modules(names[word] for word in modules))
