"""Quantised files: sections of every scheme, in the file or in its text part, against the matrices that transformers builds.

A matrix is quantised where it is an nn.Linear of a decoder layer of the text model whose name no rule leaves out. Its bytes follow
from the scheme by hand: bits, and what each group, block or output stores besides.
"""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.families.quantization.network_formats import quantised
from capplan.model.parameters import parameters, weight_bytes
from tests.differential.reference import TOWERS, CannotBuildError, built
from tests.differential.small import small_file

Bytes = Callable[[int, int], float]
"""Bytes of a matrix of so many outputs and inputs."""


@dataclass(frozen=True, slots=True)
class Case:
    """A section, and the bytes of a matrix by the first expression that its name matches."""

    section: dict[str, Any]
    rules: tuple[tuple[str, Bytes], ...]


def whole(rows: int, columns: int) -> float:
    """Return the bytes in 16 bits."""
    return 2.0 * rows * columns


def grouped(bits: int, group: int, zero_bits: int) -> Bytes:
    """Return the bytes in groups with a scale of 16 bits and a zero point."""
    return lambda rows, columns: rows * columns * (bits / 8 + (2 + zero_bits / 8) / group)


def scaled(each: float, row: float = 0.0) -> Bytes:
    """Return the bytes with so many for a weight and for an output."""
    return lambda rows, columns: rows * columns * each + rows * row


def _compressed(weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["re:.*lm_head"], **more}


_INT4 = {"num_bits": 4, "type": "int", "group_size": 128, "symmetric": True, "strategy": "group"}
_FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}
CASES = {
    "awq": Case({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, ((".*", grouped(4, 128, 4)),)),
    "gptq with rules": Case(
        {"quant_method": "gptq", "bits": 4, "group_size": 128,
         "dynamic": {r"+:.*down_proj": {"bits": 8}, r"-:.*layers\.1\.": {}}},
        ((".*down_proj", grouped(8, 128, 8)), (r".*layers\.1\.", whole), (".*", grouped(4, 128, 4))),
    ),
    "fp8 in blocks": Case({"quant_method": "fp8", "weight_block_size": [128, 128]}, ((".*", scaled(1 + 4 / 128**2)),)),
    "compressed, parts left out": Case(
        _compressed(_INT4, ignore=["re:.*lm_head", "re:.*q_proj", r"re:.*layers\.0\.mlp.*"]),
        ((r".*q_proj|.*layers\.0\.mlp", whole), (".*", grouped(4, 128, 0))),
    ),
    "compressed fp8 per output": Case(
        _compressed({"num_bits": 8, "type": "float", "strategy": "channel"}), ((".*", scaled(1.0, 4.0)),)
    ),
    "marlin-24": Case(_compressed(_INT4, format="marlin-24"), ((".*", scaled(0.25 + 1 / 8 + 2 / 128)),)),
    "modelopt": Case({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head", "*self_attn*"]},
                     ((".*self_attn", whole), (".*", scaled(0.5 + 1 / 16)))),
    "quark": Case({"quant_method": "quark", "exclude": ["lm_head"], "global_quant_config": {"weight": [_FP8, {"dtype": "int4"}]}},
                  ((".*", scaled(0.5, 4.0)),)),
    "auto-round": Case({"quant_method": "auto-round", "bits": 4, "group_size": 32, "data_type": "mx_fp", "act_bits": 4},
                       ((".*", scaled(0.5 + 1 / 32)),)),
    "bitsandbytes": Case({"quant_method": "bitsandbytes", "load_in_4bit": True}, ((".*", scaled(0.5 + 4 / 64)),)),
    "torchao": Case({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig",
                     "_data": {"group_size": 64}}}}, ((".*", grouped(4, 64, 16)),)),
    "hqq": Case({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}},
                ((".*", grouped(4, 64, 16)),)),
}  # fmt: skip

_LAYER = re.compile(r"(?:^|.*\.)layers\.\d+\.")
PLAIN = {
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj",
}  # fmt: skip
"""Names of matrices that this comparison knows; types with others (experts, states) are left to the tests of each."""
_TEXTS = ("text_config", "llm_config", "language_config")


def quantised_differences(kind: str) -> list[str]:
    """Return how the bytes of a small model of a type differ under each scheme; nothing where they agree or cannot be compared."""
    try:
        file = small_file(kind)
        model = built(file, "meta")
    except (CannotBuildError, Exception):  # noqa: BLE001 - a class whose small model is not valid
        return []
    matrices = {name: module for name, module in model.named_modules() if _is_matrix(name, module)}
    if {name.rpartition(".")[2] for name in matrices} - PLAIN or not matrices or _experts(model):
        return []
    total = sum(parameter.numel() for parameter in model.parameters())
    try:
        network = read_network(file, kind)
    except InputError:
        return []
    if parameters(network) != total:
        return []
    wrong = []
    for name, case in CASES.items():
        expected = weight_bytes(network)
        for path, module in matrices.items():
            rows, columns = module.weight.shape
            of_name = next(size for pattern, size in case.rules if re.match(pattern, path))
            expected += of_name(rows, columns) - whole(rows, columns)
        for place, values in _placed(file, case.section):
            ours = weight_bytes(quantised(read_network(values, kind), values))
            if abs(ours - expected) > 1e-6 * expected:
                wrong.append(f"{name} {place}: {ours:.0f} bytes for {expected:.0f}")
    return wrong


def _placed(file: dict[str, Any], section: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    placed = [("at the top", file | {"quantization_config": section})]
    for key in _TEXTS:
        if isinstance(file.get(key), dict):
            inner = copy.deepcopy(file)
            inner[key]["quantization_config"] = section
            placed.append((f"in {key}", inner))
    return placed


def _is_matrix(name: str, module: torch.nn.Module) -> bool:
    linear = isinstance(module, torch.nn.Linear)
    return linear and _LAYER.match(name) is not None and not any(tower in name for tower in TOWERS)


def _experts(model: torch.nn.Module) -> bool:
    return any(".experts" in name for name, _ in model.named_parameters())
