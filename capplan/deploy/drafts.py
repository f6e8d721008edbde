"""Drafts of speculation in the options of engines: what each calls a way to draft, written and read."""

from collections.abc import Mapping
from typing import Any

from capplan.deploy.engine_option import newer_version, option
from capplan.deploy.flag_table import engine_flags
from capplan.deploy.option_values import count, json_object
from capplan.deploy.replica_launch import Drafts, ReplicaLaunch
from capplan.errors import InputError

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
    """Return what an engine calls drafts of an EAGLE head; TensorRT-LLM knows those of EAGLE-3 alone, and needs no word for it."""
    third = "eagle3" in draft.lower().replace("-", "")
    if engine != "trtllm":
        return f"{word}3" if third else word
    if not third:
        raise InputError(
            f"trtllm: drafts by heads of EAGLE-3 alone, and {draft!r} does not say that it is one\n  name one: --draft OWNER/EAGLE3-NAME"
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


def read_drafts(engine: str, said: Mapping[str, str], place: str) -> Drafts:
    """Return how a command line of vLLM or SGLang drafts; InputError for drafts that form a tree, or whose method is not read."""
    methods = {word: name for name, word in METHODS[engine].items()}
    if engine == "vllm":
        values = json_object(said["speculation"], "--speculative-config", place)
        method, draft = values.get("method", "draft_model"), values.get("model")
        each = values.get("num_speculative_tokens")
    else:
        method, draft = said["speculation"].upper(), said.get("draft")
        each = count(said.get("draft_tokens", ""), "--speculative-num-draft-tokens", place) - 1
        if said.get("draft_branches", "1") != "1":
            raise InputError(
                f"{place}: --speculative-eagle-topk above 1 drafts a tree, which is not read; describe it in a scenario"
            )
    plain = str(method).removesuffix("3")
    if plain not in methods or not isinstance(each, int) or not 1 <= each <= 64:
        raise InputError(
            f"{place}: drafts by {method!r} with {each!r} tokens a round are not read; "
            f"known: {', '.join(methods)} with 1 to 64 tokens"
        )
    return Drafts(methods[plain], None if draft is None else str(draft), each)
