"""A GGUF file to a network: its metadata in the keys of config.json, and the format of every tensor.

A file whose tensors are not those of the network is not read, so that a family that differs in a detail never gives a wrong number.
Names and meanings: ggml, docs/gguf.md, and `Keys` and `MODEL_TENSORS` of the gguf package, https://github.com/ggml-org/llama.cpp (gguf-py).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from capplan.errors import InputError
from capplan.model.network import Layer, Network
from capplan.model.stored_tensor import StoredModel, StoredTensor, blend_name
from capplan.model.weight_format import with_formats


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one architecture is written as a config.json."""

    model_type: str
    needed: Mapping[str, str] = field(default_factory=dict)
    """Key of config.json -> key of the metadata, besides those of every model."""
    optional: Mapping[str, str] = field(default_factory=dict)
    latent: bool = False
    """Multi-head latent attention: other lengths of keys and values."""


_EVERY = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}
_DENSE = {"intermediate_size": "feed_forward_length"}
_WINDOW = {"sliding_window": "attention.sliding_window"}
_ROUTED = {"num_experts_per_tok": "expert_used_count", "moe_intermediate_size": "expert_feed_forward_length"}
_ARCHITECTURES_EXPERTS = {"num_experts": "expert_count", **_ROUTED}
_SHARED = {"shared_expert_intermediate_size": "expert_shared_feed_forward_length"}

_QWEN3 = Architecture("qwen3", _DENSE)
_QWEN3_MOE = Architecture("qwen3_moe", _ARCHITECTURES_EXPERTS, _DENSE)
_MIXTRAL = Architecture(
    "mixtral", {**_DENSE, "num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
)
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", _DENSE),
    "qwen2": Architecture("qwen2", _DENSE),
    "qwen2vl": Architecture("qwen2", _DENSE),
    "qwen2moe": Architecture("qwen2_moe", {**_ARCHITECTURES_EXPERTS, **_SHARED}, _DENSE),
    "qwen3": _QWEN3,
    "qwen3vl": _QWEN3,
    "qwen3moe": _QWEN3_MOE,
    "qwen3vlmoe": _QWEN3_MOE,
    "gemma": Architecture("gemma", _DENSE),
    "gemma2": Architecture("gemma2", {**_DENSE, **_WINDOW}),
    "gemma3": Architecture("gemma3_text", _DENSE, _WINDOW),
    "phi3": Architecture("phi3", _DENSE, _WINDOW),
    "granite": Architecture("granite", _DENSE),
    "olmo2": Architecture("olmo2", _DENSE),
    "smollm3": Architecture("smollm3", _DENSE),
    "gpt-oss": Architecture(
        "gpt_oss",
        {
            **_WINDOW,
            "num_local_experts": "expert_count",
            "num_experts_per_tok": "expert_used_count",
            "intermediate_size": "expert_feed_forward_length",
        },
    ),
    "deepseek2": Architecture(
        "deepseek_v3",
        {
            **_DENSE,
            **_ROUTED,
            "n_routed_experts": "expert_count",
            "n_shared_experts": "expert_shared_count",
            "kv_lora_rank": "attention.kv_lora_rank",
            "qk_rope_head_dim": "rope.dimension_count",
        },
        {"first_k_dense_replace": "leading_dense_block_count", "q_lora_rank": "attention.q_lora_rank"},
        latent=True,
    ),
}
"""Architectures whose tensors are known; capplan rejects any other."""

_NULLABLE = frozenset({"q_lora_rank"})
"""Keys whose absence says null, not the default of the class: queries that are not compressed."""
_PROJECTORS = frozenset({"clip", "mmproj", "t5encoder"})
_PATTERN = "attention.sliding_window_pattern"


@dataclass(slots=True)
class _Reading:
    """The metadata of one file, with the keys that were read."""

    metadata: Mapping[str, Any]
    architecture: str
    place: str
    used: dict[str, None] = field(default_factory=dict)

    def error(self, key: str, problem: str) -> InputError:
        return InputError(f"{self.place}: {self.architecture}.{key}: {problem}")

    def value(self, key: str) -> Any:
        """Return a value, a list of equal numbers as one number; None where it is missing."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if value is not None:
            self.used[f"{self.architecture}.{key}"] = None
        if isinstance(value, list) and value and key != _PATTERN:
            if any(item != value[0] for item in value):
                raise self.error(key, "differs from layer to layer, which is not modelled for GGUF files")
            return value[0]
        return value

    def whole(self, key: str) -> int | None:
        """Return a whole number of at least one; None where it is missing or zero."""
        value = self.value(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.error(key, f"{value!r} is not a whole number")
        return value or None

    def needed(self, key: str) -> int:
        value = self.whole(key)
        if value is None:
            raise self.error(
                key, f"missing\n  every GGUF file of the architecture {self.architecture} has it"
            )
        return value


def config_of(stored: StoredModel, place: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return what the metadata of a GGUF file says in the keys of config.json, and the keys that were read.

    Raises
    ------
    InputError
        The architecture is not modelled, or a key is missing or no number.
    """
    architecture = stored.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise InputError(
            f"{place}: general.architecture: missing\n  the GGUF file of a model names its architecture"
        )
    entry = _entry(stored, architecture, place)
    reading = _Reading(stored.metadata, architecture, place)
    shapes = {tensor.name: tensor.shape for tensor in stored.tensors}
    if "token_embd.weight" not in shapes:
        raise InputError(
            f"{place}: has no tensor token_embd.weight; the whole model is expected, not an adapter"
        )
    config: dict[str, Any] = {"model_type": entry.model_type, "dtype": "float16"}
    config |= {key: reading.needed(name) for key, name in {**_EVERY, **entry.needed}.items()}
    optional = {key: reading.whole(name) for key, name in entry.optional.items()}
    config |= {key: value for key, value in optional.items() if value is not None or key in _NULLABLE}
    config["num_key_value_heads"] = reading.whole("attention.head_count_kv") or config["num_attention_heads"]
    config |= _latent_lengths(reading, config) if entry.latent else _head_length(reading, config)
    config |= _pattern(reading)
    if "sliding_window" not in config and reading.whole(_WINDOW["sliding_window"]):
        raise reading.error(
            _WINDOW["sliding_window"], "a window is not modelled in GGUF files of this architecture"
        )
    config["vocab_size"] = shapes["token_embd.weight"][-1]
    config["tie_word_embeddings"] = "output.weight" not in shapes
    config["attention_bias"] = "blk.0.attn_q.bias" in shapes or "blk.0.attn_qkv.bias" in shapes
    return config, ("general.architecture", *reading.used)


def _entry(stored: StoredModel, architecture: str, place: str) -> Architecture:
    entry = ARCHITECTURES.get(architecture)
    if entry is not None:
        return _MIXTRAL if architecture == "llama" and stored.metadata.get("llama.expert_count") else entry
    known = ", ".join(sorted(ARCHITECTURES))
    if architecture in _PROJECTORS:
        raise InputError(
            f"{place}: holds a {architecture} tower, not a language model; give the file of the model itself"
        )
    near = get_close_matches(architecture, ARCHITECTURES, n=1, cutoff=0.6)
    question = f": did you mean {near[0]!r}?" if near else ""
    raise InputError(
        f"{place}: general.architecture: {architecture[:60]!r} is not modelled as a GGUF file{question}\n"
        f"  modelled: {known}\n"
        "  give the config.json of the original model with --weight-dtype instead, such as q4_k_m"
    )


def _head_length(reading: _Reading, config: Mapping[str, Any]) -> dict[str, int]:
    """Return head_dim, which is hidden size over heads where the file does not say it."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    key, value = reading.whole("attention.key_length"), reading.whole("attention.value_length")
    if key is None and hidden % heads:
        raise reading.error(
            "attention.key_length", f"missing, and {hidden} does not divide into {heads} heads"
        )
    length = key or hidden // heads
    if value not in (None, length):
        raise reading.error("attention.value_length", f"{value} is not the length of the keys, {length}")
    return {"head_dim": length}


def _latent_lengths(reading: _Reading, config: Mapping[str, Any]) -> dict[str, int]:
    """Return the lengths of one head of latent attention, before the projections are absorbed into the cache."""
    key = reading.whole("attention.key_length_mla") or reading.needed("attention.key_length")
    value = reading.whole("attention.value_length_mla") or reading.needed("attention.value_length")
    rotary = config["qk_rope_head_dim"]
    if key <= rotary:
        raise reading.error("attention.key_length", f"{key} is not longer than its rotary part, {rotary}")
    return {"qk_nope_head_dim": key - rotary, "v_head_dim": value}


def _pattern(reading: _Reading) -> dict[str, Any]:
    """Return which layers slide, where the file says so by layer or by period."""
    pattern = reading.value(_PATTERN)
    if isinstance(pattern, list):
        return {"layer_types": ["sliding_attention" if slides else "full_attention" for slides in pattern]}
    return {} if pattern is None else {"sliding_window_pattern": reading.needed(_PATTERN)}


_TENSORS_EXPERTS = "experts"
_MATRICES = {
    "attn_q": ("qkv", "q"),
    "attn_k": ("qkv",),
    "attn_v": ("qkv",),
    "attn_qkv": ("qkv",),
    "attn_output": ("o",),
    "attn_q_a": ("q_a",),
    "attn_q_b": ("q_b",),
    "attn_kv_a_mqa": ("kv_a",),
    "attn_kv_b": ("kv_b",),
    "attn_k_b": ("kv_b",),
    "attn_v_b": ("kv_b",),
    "ffn_gate": ("gate_up",),
    "ffn_up": ("gate_up", "up"),
    "ffn_down": ("down",),
    "ffn_gate_inp": ("router",),
    "ffn_gate_exps": (_TENSORS_EXPERTS,),
    "ffn_up_exps": (_TENSORS_EXPERTS,),
    "ffn_gate_up_exps": (_TENSORS_EXPERTS,),
    "ffn_down_exps": (_TENSORS_EXPERTS,),
    "ffn_gate_shexp": ("shared_gate_up",),
    "ffn_up_shexp": ("shared_gate_up", "shared_up"),
    "ffn_down_shexp": ("shared_down",),
    "ffn_gate_inp_shexp": ("shared_gate",),
}
"""Matrix of a layer -> projections that it may be a part of."""
_LAYER = re.compile(r"blk\.(\d{1,6})\.(.+)")
_SPLIT_EXPERTS = re.compile(r"(ffn_(?:gate|up|down))\.\d+")
_VECTORS = re.compile(r".*\.bias|.*_norm\.weight|attn_sinks\.weight")
_TABLES = re.compile(
    r"(blk\.\d+\.)?(rope_freqs|rope_factors_(long|short))\.weight|blk\.\d+\.exp_probs_b\.bias"
)
"""Tensors that the original model computes, or keeps next to its parameters."""

Formats = Counter[str]
"""Elements by block format."""
_OTHERS = "norms and biases"
"""What a layer has besides matrices."""


def with_stored_formats(network: Network, stored: StoredModel, place: str) -> Network:
    """Return the network with the formats that the tensors of a GGUF file have.

    Parameters
    ----------
    network : as the metadata say
    stored : the header
    place : the file, as errors name it

    Returns
    -------
    the same network; a matrix of several tensors has their mixture

    Raises
    ------
    InputError
        A tensor has no place in the network, or elements are missing or left over.
    """
    held = [tensor for tensor in stored.tensors if not _TABLES.fullmatch(tensor.name)]
    ends, layers = _sorted(network, held, place)
    for index, (layer, tensors) in enumerate(zip(network.layers, layers, strict=True)):
        _compare_layer(layer, tensors, f"{place}: blk.{index}")
    expected = {
        "token_embd.weight": network.embedding_parameters,
        "output.weight": 0 if network.tied_embeddings else network.lm_head.inputs * network.lm_head.outputs,
        "output_norm": network.final_norm_parameters,
        "output.bias": network.lm_head.bias,
    }
    for name, elements in expected.items():
        _compare(name, ends[name].total(), elements, place)
    plain: Formats = sum((tensors[_OTHERS] for tensors in layers), ends["output_norm"] + ends["output.bias"])
    formatted = with_formats(
        network,
        lambda index, projection: blend_name(layers[index][projection.name]),
        lambda index, _: blend_name(layers[index][_TENSORS_EXPERTS]),
    )
    embedding = blend_name(ends["token_embd.weight"])
    head = embedding if network.tied_embeddings else blend_name(ends["output.weight"])
    return replace(
        formatted,
        embedding_format=embedding,
        lm_head=replace(network.lm_head, weight_format=head),
        vector_format=blend_name(plain),
    )


def tables(stored: StoredModel) -> list[StoredTensor]:
    """Return the tensors of a file that are no parameters of the original model."""
    return [tensor for tensor in stored.tensors if _TABLES.fullmatch(tensor.name)]


def _sorted(
    network: Network, tensors: Iterable[StoredTensor], place: str
) -> tuple[dict[str, Formats], list[dict[str, Formats]]]:
    """Return elements by format of the tensors outside the layers, and of each layer."""
    ends: dict[str, Formats] = {
        name: Counter() for name in ("token_embd.weight", "output.weight", "output_norm", "output.bias")
    }
    layers = [{_OTHERS: Formats()} for _ in network.layers]
    for tensor in tensors:
        match = _LAYER.fullmatch(tensor.name)
        index = int(match[1]) if match else -1
        slot: Formats | None = None
        if match is None:
            slot = (
                ends.get(tensor.name)
                if "norm" not in tensor.name
                else ends.get(tensor.name.partition(".")[0])
            )
        elif index < len(layers):
            slot = _slot(network.layers[index], layers[index], match[2])
        if slot is None or not tensor.dtype:
            raise InputError(
                f"{place}: tensor {tensor.name[:80]!r} is not one of the model that the metadata describe\n"
                "  such a variant is not modelled; give the config.json of the original model"
            )
        slot[tensor.dtype] += tensor.elements
    return ends, layers


def _slot(layer: Layer, tensors: dict[str, Formats], name: str) -> Formats | None:
    """Return where a tensor of a layer counts; None where it has no place."""
    stem, _, kind = name.rpartition(".")
    split = _SPLIT_EXPERTS.fullmatch(stem)
    candidates = _MATRICES.get(f"{split[1]}_exps" if split else stem, ()) if kind == "weight" else ()
    names = {projection.name for projection in layer.projections} | (
        {_TENSORS_EXPERTS} if layer.experts else set()
    )
    for candidate in candidates:
        if candidate in names:
            return tensors.setdefault(candidate, Counter())
    return tensors[_OTHERS] if not candidates and _VECTORS.fullmatch(name) else None


def _compare_layer(layer: Layer, tensors: dict[str, Formats], place: str) -> None:
    expected = {projection.name: projection.inputs * projection.outputs for projection in layer.projections}
    vectors = layer.norm_parameters + layer.state_parameters + layer.other_parameters
    vectors += sum(projection.bias for projection in layer.projections)
    if layer.experts:
        biases = layer.experts.experts * layer.experts.bias
        expected[_TENSORS_EXPERTS] = layer.experts.parameters - biases
        vectors += biases
    for name, elements in expected.items():
        _compare(name, tensors.get(name, Counter()).total(), elements, place)
    _compare(_OTHERS, tensors[_OTHERS].total(), vectors, place)


def _compare(name: str, elements: int, expected: int, place: str) -> None:
    if elements != expected:
        raise InputError(
            f"{place}: {name}: the tensors have {elements:,} elements, and the metadata describe {expected:,}\n"
            "  such a variant is not modelled; give the config.json of the original model"
        )


def quantisation(stored: StoredModel) -> list[Mapping[str, object]]:
    """Return how much of a file each type of tensor takes, most bytes first."""
    rows: dict[str, list[int]] = {}
    for tensor in stored.tensors:
        row = rows.setdefault(tensor.dtype or "table", [0, 0, 0])
        row[0], row[1], row[2] = row[0] + 1, row[1] + tensor.elements, row[2] + tensor.size_bytes
    ranked = sorted(rows.items(), key=lambda item: -item[1][2])
    return [
        {"weight_dtype": name, "tensors": count, "elements": elements, "weight_bytes": size}
        for name, (count, elements, size) in ranked
    ]
