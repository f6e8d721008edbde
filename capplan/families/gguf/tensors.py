"""The tensors of a GGUF file held against a network: every element is accounted for, and its type becomes a format.

A file whose tensors are not those of the network is not read, so that a family that differs in a detail never gives a wrong number.
Names: `MODEL_TENSORS` of the gguf package, https://github.com/ggml-org/llama.cpp (gguf-py).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from capplan.errors import InputError
from capplan.model.block_formats import blend_name
from capplan.model.formatted import with_formats
from capplan.model.network import Layer, Network
from capplan.model.stored_tensor import StoredModel, StoredTensor

_EXPERTS = "experts"
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
    "ffn_gate_exps": (_EXPERTS,),
    "ffn_up_exps": (_EXPERTS,),
    "ffn_gate_up_exps": (_EXPERTS,),
    "ffn_down_exps": (_EXPERTS,),
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


@dataclass(slots=True)
class _LayerTensors:
    """What the file has for one layer."""

    matrices: dict[str, Formats] = field(default_factory=dict)
    vectors: Formats = field(default_factory=Counter)


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
    plain: Formats = sum((tensors.vectors for tensors in layers), ends["output_norm"] + ends["output.bias"])
    formatted = with_formats(
        network,
        lambda index, projection: blend_name(layers[index].matrices[projection.name]),
        lambda index, _: blend_name(layers[index].matrices[_EXPERTS]),
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
) -> tuple[dict[str, Formats], list[_LayerTensors]]:
    """Return elements by format of the tensors outside the layers, and of each layer."""
    ends: dict[str, Formats] = {
        name: Counter() for name in ("token_embd.weight", "output.weight", "output_norm", "output.bias")
    }
    layers = [_LayerTensors() for _ in network.layers]
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


def _slot(layer: Layer, tensors: _LayerTensors, name: str) -> Formats | None:
    """Return where a tensor of a layer counts; None where it has no place."""
    stem, _, kind = name.rpartition(".")
    split = _SPLIT_EXPERTS.fullmatch(stem)
    candidates = _MATRICES.get(f"{split[1]}_exps" if split else stem, ()) if kind == "weight" else ()
    names = {projection.name for projection in layer.projections} | ({_EXPERTS} if layer.experts else set())
    for candidate in candidates:
        if candidate in names:
            return tensors.matrices.setdefault(candidate, Counter())
    return tensors.vectors if not candidates and _VECTORS.fullmatch(name) else None


def _compare_layer(layer: Layer, tensors: _LayerTensors, place: str) -> None:
    expected = {projection.name: projection.inputs * projection.outputs for projection in layer.projections}
    vectors = layer.norm_parameters + layer.state_parameters + layer.other_parameters
    vectors += sum(projection.bias for projection in layer.projections)
    if layer.experts:
        biases = layer.experts.experts * layer.experts.bias
        expected[_EXPERTS] = layer.experts.parameters - biases
        vectors += biases
    for name, elements in expected.items():
        _compare(name, tensors.matrices.get(name, Counter()).total(), elements, place)
    _compare("norms and biases", tensors.vectors.total(), vectors, place)


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
