"""The section of a config that states a quantisation: the format that each quantiser names, and the modules that it leaves out."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from capplan.errors import InputError, unknown
from capplan.families.config import Config
from capplan.model.weight_format import KV_FORMATS

LEFT_OUT = "left out"
"""Marks a module that stays unquantised."""
_LISTS = (
    "ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules", "exclude",
)  # fmt: skip
"""Keys under which quantisers list such modules."""
FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
"""Files next to config.json in which NVIDIA's quantiser, AutoGPTQ and AutoAWQ state what config.json may not."""
_TEXT = re.compile(r"(?:text|llm|language|thinker|decoder|model|llm_model|language_model)(?:_config)?")
"""Sections of a file that hold a text model."""
_DEEPEST = 3
"""Sections within sections that are looked into."""


def left_out(section: Config) -> Iterator[tuple[str, str]]:
    """Yield each module name that stays unquantised."""
    for key in _LISTS:
        names = section.values.get(key)
        if names is None:
            continue
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise section.error(key, "not a list of module names")
        for name in names:
            yield name, LEFT_OUT


def quantization_section(
    config: Mapping[str, Any], place: str, quantization_file: tuple[str, Mapping[str, Any]] | None = None
) -> Config | None:
    """Return the section that states the quantisation, or None for an unquantised checkpoint.

    Parameters
    ----------
    config : the parsed config.json
    place : the file, as errors name it
    quantization_file : name and content of the first of `FILES` next to it, where there is one

    Examples
    --------
    >>> quantization_section({"quantization_config": None}, "config.json") is None
    True
    """
    for path, holder in _text_parts(config):
        for key in ("quantization_config", "compression_config", "quantization"):
            values = holder.get(key)
            if values is None or values == {} or (key == "quantization" and not isinstance(values, Mapping)):
                continue
            if not isinstance(values, Mapping):
                raise InputError(f"{place}: {path}{key}: not an object")
            return Config(values, place, f"{path}{key}.")
    return None if quantization_file is None else _of_file(*quantization_file)


def _text_parts(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the file and the sections of its text model, however deep, with the path of each; towers are left out."""
    waiting: list[tuple[str, Mapping[str, Any]]] = [("", config)]
    for path, holder in waiting:
        yield path, holder
        waiting.extend(
            (f"{path}{key}.", inner)
            for key, inner in holder.items()
            if isinstance(inner, Mapping) and _TEXT.fullmatch(key) and path.count(".") < _DEEPEST
        )


def _of_file(name: str, values: Mapping[str, Any]) -> Config:
    """Return the section of a file next to config.json: of NVIDIA's quantiser, or of early AutoGPTQ and AutoAWQ."""
    inner = values.get("quantization", values)
    if not isinstance(inner, Mapping):
        raise InputError(f"{name}: quantization: not an object")
    if "quant_method" in inner:
        return Config(inner, name)
    if "w_bit" in inner or "q_group_size" in inner:
        return Config({"quant_method": "awq", **inner}, name)
    if "bits" in inner:
        return Config({"quant_method": "gptq", **inner}, name)
    return Config({"quant_method": "modelopt", **inner}, name, "quantization." if inner is not values else "")


_ALGORITHMS = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8_channel",
    "FP8_PB_REAL": "fp8_block",
    "FP8_PB_WO": "fp8_block",
    "FP8_BLOCK_SCALES": "fp8_block",
    "INT8_SQ": "int8",
    "INT8": "int8",
    "W8A8_SQ_PER_CHANNEL": "int8",
    "W8A16": "w8a16",
    "MXFP8": "mxfp8",
    "MXFP4": "mxfp4",
    "W4A8_MXFP4_FP8": "mxfp4",
    "W4A8_MXFP4_MXFP8": "mxfp4",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A8_NVFP4_FP8": "nvfp4",
    "W4A16_NVFP4": "nvfp4_w4a16",
}
_GROUPED_ALGORITHMS = {"W4A16": "w4a16", "W4A16_AWQ": "w4a16", "INT4_AWQ": "w4a16", "W4A8_AWQ": "w4a8"}


def algorithm_format(algorithm: str, group_size: int, place: str) -> str:
    """Return the format that a `quant_algo` of NVIDIA's quantiser stands for.

    Parameters
    ----------
    algorithm : its name
    group_size : weights that share a scale; 0 where the file does not say
    place : file and key, as errors name them

    Examples
    --------
    >>> algorithm_format("NVFP4", 16, "here"), algorithm_format("W4A16_AWQ", 128, "here")
    ('nvfp4', 'w4a16-g128')
    """
    name = algorithm.upper()
    if name in _GROUPED_ALGORITHMS:
        return f"{_GROUPED_ALGORITHMS[name]}-g{group_size or 128}"
    if name not in _ALGORITHMS:
        known = ", ".join(sorted([*_ALGORITHMS, *_GROUPED_ALGORITHMS, "MIXED_PRECISION"]))
        raise InputError(f"{place}: {algorithm!r} is not known\n  known: {known}")
    return _ALGORITHMS[name]


def packed_format(bits: int, group_size: int, *, zero_points: bool, place: str) -> str:
    """Return the format of weight-only integers in groups (AWQ, GPTQ, AutoRound).

    Parameters
    ----------
    bits : [bit]
        width of a weight
    group_size : weights that share a scale; -1 for one per channel
    zero_points : whether the checkpoint stores zero points (GPTQ always does)
    place : file and key, as errors name them

    Examples
    --------
    >>> packed_format(4, 128, zero_points=True, place="here")
    'w4a16-g128-zp'
    >>> packed_format(8, -1, zero_points=True, place="here")
    'w8a16-zp'
    """
    suffix = "-zp" if zero_points else ""
    if not 2 <= bits <= 8:
        raise InputError(f"{place}.bits: {bits} is not modelled\n  allowed: 2 to 8")
    if group_size in (-1, 0):
        return f"w{bits}a16{suffix}"
    if not 8 <= group_size <= 65536:
        raise InputError(f"{place}.group_size: {group_size} is out of range\n  allowed: -1, or 8 to 65536")
    return f"w{bits}a16-g{group_size}{suffix}"


def compressed_format(group: Mapping[str, Any], place: str) -> str:
    """Return the format of one config group of compressed-tensors.

    Parameters
    ----------
    group : an object with `weights` and perhaps `input_activations`
    place : file and key, as errors name them

    Examples
    --------
    >>> compressed_format({"weights": {"num_bits": 4, "type": "int", "group_size": 128, "symmetric": True}}, "here")
    'w4a16-g128'
    >>> compressed_format({"weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
    ...                    "input_activations": {"num_bits": 8}}, "here")
    'fp8_channel'
    """
    weights = group["weights"]
    activations = group.get("input_activations")
    bits, kind = weights.get("num_bits"), weights.get("type", "int")
    size = weights.get("group_size") or 0
    activation_bits = (activations.get("num_bits") or 16) if isinstance(activations, Mapping) else 16
    for key, value in (("weights.group_size", size), ("input_activations.num_bits", activation_bits)):
        if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= 65536:
            raise InputError(f"{place}.{key}: {value!r} is not a whole number from -1 to 65536")
    if kind == "float":
        return _float_format(bits, size, activation_bits, weights, place)
    if not isinstance(bits, int) or not 2 <= bits <= 8:
        raise InputError(f"{place}.weights.num_bits: {bits!r} is not modelled\n  allowed: 2 to 8")
    whole = weights.get("strategy") == "tensor"
    if bits == 8 and activation_bits == 8 and size <= 0:
        return "int8_tensor" if whole else "int8"
    suffix = "" if weights.get("symmetric", True) else "-zp"
    grouped = f"-g{size}" if size > 0 else ""
    return f"w{bits}a{8 if activation_bits == 8 else 16}{grouped}{suffix}"


def _float_format(bits: Any, size: int, activation_bits: int, weights: Mapping[str, Any], place: str) -> str:
    if bits == 4 and size == 16:
        return "nvfp4" if activation_bits < 16 else "nvfp4_w4a16"
    if bits == 4 and size == 32:
        return "mxfp4"
    if bits == 8 and size == 32:
        return "mxfp8"
    if bits == 8 and weights.get("strategy") == "block":
        block = weights.get("block_structure")
        return "fp8_block" if block is None else block_format(block, f"{place}.weights.block_structure")
    if bits == 8 and size <= 0:
        name = "fp8_channel" if weights.get("strategy") == "channel" else "fp8"
        return name if activation_bits < 16 else f"{name}_w8a16"
    raise InputError(
        f"{place}.weights: float of {bits!r} bits in groups of {size} is not modelled\n"
        "  known: 8 bits (tensor, channel, block, groups of 32), 4 bits in groups of 16 or 32"
    )


def quark_format(entry: Mapping[str, Any], place: str) -> str | None:
    """Return the format of one config of AMD's quantiser.

    Parameters
    ----------
    entry : an object with `weight`
    place : file and key, as errors name them

    Returns
    -------
    name of a weight format, None where it has no weight part

    Examples
    --------
    >>> quark_format({"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}}, "here")
    'mxfp4'
    """
    weight = entry.get("weight")
    if weight is None:
        return None
    stages = weight if isinstance(weight, list) and weight else [weight]
    if not all(isinstance(stage, Mapping) for stage in stages):
        raise InputError(f"{place}.weight: not an object")
    if [stage.get("dtype") for stage in stages[:2]] == ["fp8_e4m3", "int4"]:
        weight = stages[1]  # int4 is what is stored; fp8 is what it is multiplied in
        size = weight.get("group_size") or 0
        return f"w4a8-g{size}" if weight.get("qscheme") == "per_group" and size > 0 else "w4a8"
    weight = stages[0]
    dtype, size = weight.get("dtype"), weight.get("group_size") or 0
    if dtype == "fp4" and size == 16:
        return "nvfp4"
    if dtype in ("fp8_e4m3", "fp8_e5m2"):
        return "fp8_channel" if weight.get("qscheme") == "per_channel" else "fp8"
    if dtype == "fp4" and size == 32:
        return "mxfp4"
    if dtype == "int8":
        return "int8_tensor" if weight.get("qscheme") == "per_tensor" else "int8"
    if dtype in ("int4", "uint4"):
        return f"w4a16{f'-g{size}' if size > 0 else ''}{'-zp' if dtype == 'uint4' else ''}"
    raise InputError(
        f"{place}.weight.dtype: {dtype!r} is not modelled\n  known: fp8_e4m3, fp4 in groups of 16 or 32, int8, int4, and fp8_e4m3 followed by int4"
    )


def block_format(block: Any, place: str) -> str:
    """Return the format of fp8 weights with a scale per block of rows and columns.

    Parameters
    ----------
    block : rows and columns
    place : file and key, as errors name them

    Examples
    --------
    >>> block_format([128, 128], "here"), block_format([1, 32], "here"), block_format([64, 128], "here")
    ('fp8_block', 'mxfp8', 'fp8_block-64x128')
    """
    whole = isinstance(block, list) and len(block) == 2 and all(type(side) is int for side in block)
    if not whole or not all(1 <= side <= 65536 for side in block) or max(block) < 8:
        raise InputError(f"{place}: {block!r} is not modelled\n  known: rows and columns, such as [128, 128]")
    known = {(128, 128): "fp8_block", (1, 32): "mxfp8"}
    return known.get((block[0], block[1]), f"fp8_block-{block[0]}x{block[1]}")


def rounded_format(entry: Mapping[str, Any], place: str) -> str:
    """Return the format that AutoRound states for a model or, merged with that, for one of its modules.

    Parameters
    ----------
    entry : an object with bits, group_size, sym, data_type, packing_format
    place : the section, as errors name it

    Returns
    -------
    name of a weight format, or LEFT_OUT for 16 bits

    Examples
    --------
    >>> rounded_format({"bits": 4, "group_size": 128, "sym": True}, "here"), rounded_format({"bits": 16}, "here")
    ('w4a16-g128-zp', 'left out')
    >>> rounded_format({"bits": 4, "group_size": 32, "data_type": "mx_fp"}, "here")
    'mxfp4'
    """
    bits, group, kind = entry.get("bits", 4), entry.get("group_size", 128), str(entry.get("data_type", "int"))
    if isinstance(group, bool) or not isinstance(group, int):
        raise InputError(f"{place}.group_size: {group!r} is not a whole number")
    if not isinstance(bits, int) or bits >= 16:
        return LEFT_OUT
    if kind.startswith("int"):
        packing = str(entry.get("packing_format", "auto_round:auto_gptq"))
        zero_points = "gptq" in packing or not entry.get("sym", True)
        return packed_format(bits, group, zero_points=zero_points, place=place)
    wide = (entry.get("act_bits") or 16) >= 16
    if kind.startswith("nv_fp") and bits == 4:
        return "nvfp4_w4a16" if wide else "nvfp4"
    if kind.startswith("mx_fp") and bits in (4, 8) and group == 32:
        return f"mxfp{bits}"
    if kind.startswith("fp") and bits == 8 and group <= 0:
        name = "fp8_channel" if group == -1 else "fp8"
        return f"{name}_w8a16" if wide else name
    raise InputError(
        f"{place}.data_type: {kind!r} of {bits!r} bits in groups of {group} is not modelled\n"
        "  known: int, nv_fp of 4 bits, mx_fp of 4 or 8 bits in groups of 32, fp of 8 bits"
    )


def sparse_ending(section: Config) -> str:
    """Return what compressed-tensors adds to the names of its formats where two of four weights are stored; else nothing.

    Parameters
    ----------
    section : the object under `quantization_config`

    Examples
    --------
    >>> sparse_ending(Config({"format": "marlin-24"}, "config.json")), sparse_ending(Config({}, "config.json"))
    ('-2of4', '')

    References
    ----------
    vLLM, `CompressedTensorsW4A16Sparse24.create_weights`: packed weights of half the inputs, and an int16 of metadata for 16
    weights; compressed-tensors, `Sparse24BitMaskCompressor`: half of the weights, and a bit for each.
    """
    if section.values.get("format") == "marlin-24":
        return "-2of4"
    stated = section.section("sparsity_config") if section.values.get("sparsity_config") else None
    kind = stated.text("format", default="dense") if stated else "dense"
    if kind == "sparse-24-bitmask":
        return "-2of4"
    if kind not in ("dense", "dense-quantized"):
        assert stated is not None
        raise stated.error("format", f"{kind!r} is not modelled", "known: dense, sparse-24-bitmask")
    return ""


def torchao_format(kind: Mapping[str, Any], place: str) -> str:
    """Return the format of a configuration of torchao, in which the checkpoint and engines hold it.

    Parameters
    ----------
    kind : an object with `_type` and `_data`
    place : file and key, as errors name them

    Examples
    --------
    >>> torchao_format({"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 64}}, "here")
    'w4a16-g64-zp16'
    >>> torchao_format({"_type": "Int8WeightOnlyConfig", "_data": {}}, "here")
    'w8a16'

    References
    ----------
    torchao, `torchao/quantization/quant_api.py`: https://github.com/pytorch/ao.
    """
    name, data = kind.get("_type"), kind.get("_data")
    data = data if isinstance(data, Mapping) else {}
    group = data.get("group_size")
    if name == "Int4WeightOnlyConfig":
        return f"{packed_format(4, 128 if group is None else group, zero_points=False, place=place)}-zp16"
    if name == "Int8WeightOnlyConfig" and group is None:
        return "w8a16"
    if name == "Int8DynamicActivationInt8WeightConfig":
        return "int8"
    if name == "Float8WeightOnlyConfig":
        return "fp8_channel_w8a16"
    if name == "Float8DynamicActivationFloat8WeightConfig":
        return "fp8_channel" if "PerRow" in str(data.get("granularity")) else "fp8"
    raise InputError(
        f"{place}._type: {name!r} is not modelled\n  known: Int4WeightOnlyConfig, Int8WeightOnlyConfig without groups, "
        "Int8DynamicActivationInt8WeightConfig, Float8WeightOnlyConfig, Float8DynamicActivationFloat8WeightConfig"
    )


def kv_format(scheme: Any, place: str) -> str:
    """Return the cache format that a `kv_cache_scheme` or `kv_cache_quant_algo` asks for.

    Parameters
    ----------
    scheme : a name, or an object with num_bits and type
    place : file and key, as errors name them

    Examples
    --------
    >>> kv_format({"num_bits": 8, "type": "float"}, "here"), kv_format("NVFP4", "here")
    ('fp8', 'nvfp4')
    """
    if isinstance(scheme, str) and scheme.lower() in KV_FORMATS:
        return scheme.lower()
    if scheme in ("static", "dynamic"):  # AMD's and AutoFP8's spelling of fp8 with such scales
        return "fp8"
    if isinstance(scheme, Mapping):
        name = {(8, "float"): "fp8", (8, "int"): "int8", (4, "float"): "nvfp4", (4, "int"): "int4"}.get(
            (_plain(scheme.get("num_bits", 0)), _plain(scheme.get("type", "float")))
        )
        if name:
            return name
    raise unknown("KV cache scheme", str(scheme), KV_FORMATS, place=place)


def _plain(value: Any) -> Any:
    """Return a value that can be looked up; lists and objects become text."""
    return value if isinstance(value, int | str) else str(value)
