"""The longest context that engines derive from a config with scaled rotary positions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from capplan.families.config import Config
from capplan.model.network import Network

_SCALED = ("yarn", "linear", "dynamic")
"""Kinds of scaling that engines multiply the context by; su, longrope and llama3 are in max_position_embeddings already."""
_LARGEST_FACTOR = 1024.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """Scaled rotary positions, as a section of a config states them."""

    kind: str
    factor: float
    original_tokens: int | None
    """Positions before scaling; None where the section does not state them."""


def with_scaled_context(network: Network, config: Config) -> Network:
    """Return the network with the context that engines derive from scaled rotary positions.

        vLLM:   original x factor (yarn), max x factor (linear, dynamic)
        SGLang: max where the original is stated, max x factor otherwise

    Parameters
    ----------
    network : the model, with max_position_embeddings as its context
    config : the file

    Returns
    -------
    the network; Gemma 3 keeps its context, into which its factor has gone already, and has a second rotary table

    References
    ----------
    vLLM, `_get_and_verify_max_len` in vllm/config/model.py; SGLang, `get_context_length` in
    python/sglang/srt/utils/hf_transformers_utils.py.
    """
    stated = network.max_context_tokens
    found = next(_scalings(config), None)
    if found is None or stated is None or network.bidirectional:
        return network
    if "gemma3" in config.model_type or "gemma3" in network.model_type:
        rows = round(stated * found.factor) if found.kind == "linear" else 0
        return replace(network, scaled_rotary_tokens=rows)
    start = found.original_tokens if found.kind == "yarn" and found.original_tokens else stated
    scaled = int(start * found.factor)
    kept = stated if found.original_tokens else int(stated * found.factor)
    return replace(network, max_context_tokens=scaled, stated_context_tokens=None if kept == scaled else kept)


def _scalings(config: Config) -> Iterator[Scaling]:
    """Yield the scalings of the file and of the sections of its text model that were read."""
    for section in config.sections:
        if any(name in section.section_path for name in ("vision", "audio", "visual", "quant")):
            continue
        for key in ("rope_scaling", "rope_parameters"):
            values = section.values.get(key)
            if isinstance(values, Mapping):
                yield from _of_section(values)


def _of_section(values: Mapping[str, Any]) -> Iterator[Scaling]:
    """Yield the scaling of a section, or of each kind of layer that it has."""
    layers = [inner for inner in values.values() if isinstance(inner, Mapping)]
    for one in layers or [values]:
        kind, factor = one.get("rope_type", one.get("type")), one.get("factor")
        original = one.get("original_max_position_embeddings")
        if (
            not isinstance(factor, int | float)
            or isinstance(factor, bool)
            or not 1 < factor <= _LARGEST_FACTOR
        ):
            continue
        if kind in _SCALED:
            whole = isinstance(original, int) and not isinstance(original, bool) and 0 < original < 2**31
            yield Scaling(str(kind), float(factor), original if whole else None)
