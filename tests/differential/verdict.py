"""How our reading of one file compares with the model that transformers builds from it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.families.registry import families
from capplan.model.kv_cache import kv_bytes_per_sequence
from capplan.model.network import Network
from capplan.model.parameters import parameters
from tests.differential.records import File, Reference

Verdict = Literal["exact", "noted", "refused", "wrong", "not built"]

CACHE_ELSEWHERE = {
    "granite4_vision": "its output does not hand it out",
    "qwen2_5_omni": "the whole cannot be run; its thinker is compared",
    "qwen3_omni_moe": "the whole cannot be run; its thinker is compared",
    "recurrent_gemma": "its modules keep their states to themselves",
    "voxtral_realtime": "it cannot be run without sound",
    "glm5_next": "its class keeps key and gate of every token, engines one key for a pool and the tokens of the last pool",
    "qwen4_exp": "its class keeps the index key of every token, engines one for a pool and the tokens of the last pool",
    "deepseek_v4": "its compressors fill with tokens up to the fixed states that an engine holds from the start",
}
"""Types whose cache is not compared here, and why."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The verdict on one file, and the figures behind it."""

    file: File
    verdict: Verdict
    why: str = ""


def our_cache(network: Network, tokens: int) -> int:
    """Return the elements that one sequence holds: keys, values and states, all in four bytes each."""
    kept = float(kv_bytes_per_sequence(network, float(tokens), 4.0)) / 4
    parts = (
        part for layer in network.layers for mixer in layer.mixers for part in mixer.description.state_parts
    )
    return round(kept + sum(part.elements for part in parts))


def compared(file: File, reference: Callable[[File], Reference]) -> Compared:
    """Return the verdict on a file; `reference` is asked only where we read the file."""
    if file.kind not in families():
        return Compared(file, "refused", "not modelled")
    try:
        network = read_network(file.values, file.kind)
        ours = parameters(network)
    except InputError as error:
        return Compared(file, "refused", str(error).splitlines()[0])
    except Exception as error:  # noqa: BLE001 - a crash of ours is a wrong answer
        return Compared(file, "wrong", f"crash: {type(error).__name__}: {error}")
    truth = reference(file)
    if truth.failed:
        return Compared(file, "not built", truth.failed)
    return _against(file, network, ours, truth)


def _against(file: File, network: Network, ours: int, truth: Reference) -> Compared:
    notes = [n for n in network.notes if "not read" in n or "not counted" in n]
    uncounted = any("not counted" in note for note in notes)
    problems = []
    if ours != truth.parameters and not (uncounted and ours == truth.text_parameters):
        problems.append(f"{ours} parameters for {truth.parameters} ({truth.text_parameters} of text)")
    for tokens, kept in truth.cache.items():
        held = our_cache(network, int(tokens))
        if held != kept:
            problems.append(f"{held} cache elements for {kept} at {tokens} tokens")
    if not problems:
        return Compared(file, "noted" if notes else "exact", "; ".join(notes))
    if any("not read" in note for note in notes):
        return Compared(file, "noted", "; ".join(notes + problems))
    return Compared(file, "wrong", "; ".join(problems))
