"""The quantisation that a checkpoint's config states -> the format of every matrix of its network."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from capplan.errors import InputError
from capplan.families.quantization.module_names import NameList, expert_names, name_list, projection_names
from capplan.families.quantization.schemes import (
    algorithm_format,
    compressed_format,
    kv_format,
    packed_format,
    quark_format,
)
from capplan.families.quantization.section import LEFT_OUT, Section, quantization_section
from capplan.model.network import Experts, Network, Projection
from capplan.model.weight_format import QUANTISED_CLASSES, with_formats

METHODS = (
    "auto-round", "awq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt", "mxfp4", "quark",
)  # fmt: skip
"""Values of quant_method that are read."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """What one quantisation config says about every module."""

    default: str | None
    """Format of the matrices that no name mentions; None leaves them as they are."""
    named: NameList
    """Formats, or `left out`, of modules by name; what is named comes before the default."""
    classes: frozenset[str] = QUANTISED_CLASSES
    """Tensor classes that the default applies to."""
    kv_format: str | None = None
    expert_format: str | None = None
    """Format of routed experts where it differs from the default."""


def quantised(
    network: Network,
    config: Mapping[str, Any],
    place: str = "config.json",
    hf_quant_config: Mapping[str, Any] | None = None,
) -> Network:
    """Return the network in the formats that its checkpoint is quantised in.

    Parameters
    ----------
    network : the model as its shapes say, unquantised
    config : the parsed config.json
    place : the file, as an error should name it
    hf_quant_config : the parsed hf_quant_config.json beside it, where there is one (NVIDIA's checkpoints)

    Returns
    -------
    the network with weight formats and KV format; unchanged where nothing is quantised

    Examples
    --------
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> from capplan.model.network import Layer
    >>> network = Network("n", "llama", 8, 10, (Layer((), (Projection("up", "ffn", 8, 8, "columns"),)),), head, True, 80)
    >>> section = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    >>> quantised(network, {"quantization_config": section}).layers[0].projections[0].weight_format
    'fp8_block'
    """
    section = quantization_section(config, place, hf_quant_config)
    if section is None:
        return network
    scheme = read_scheme(section.values, section.place, expert_dtype=_expert_dtype(config))
    return in_scheme(network, scheme)


def _expert_dtype(config: Mapping[str, Any]) -> str | None:
    value = config.get("expert_dtype")
    return value if isinstance(value, str) else None


def in_scheme(network: Network, scheme: Scheme) -> Network:
    """Return the network with the formats of a scheme.

    Parameters
    ----------
    network : the model
    scheme : what the quantiser did

    Returns
    -------
    the network, formats replaced

    Examples
    --------
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> in_scheme(Network("n", "llama", 8, 10, (), head, True, 80), Scheme("fp8", name_list([]), kv_format="fp8")).kv_format
    'fp8'
    """
    names: dict[tuple[int, Projection], tuple[str, ...]] = {}

    def projection_format(index: int, projection: Projection) -> str:
        if projection.tensor_class not in QUANTISED_CLASSES:
            return projection.weight_format
        layer = network.layers[index]
        key = (id(layer), projection)
        if key not in names:
            names[key] = projection_names(network, layer, projection)
        chosen = scheme.named.value(index, names[key])
        if chosen is None and projection.tensor_class in scheme.classes:
            chosen = scheme.default
        return projection.weight_format if chosen in (None, LEFT_OUT) else str(chosen)

    expert_modules = expert_names(network)

    def experts_format(index: int, experts: Experts) -> str:
        chosen = scheme.named.value(index, expert_modules)
        if chosen is None and "expert" in scheme.classes:
            chosen = scheme.expert_format or scheme.default
        return experts.weight_format if chosen in (None, LEFT_OUT) else str(chosen)

    changed = with_formats(network, projection_format, experts_format)
    head = scheme.named.anywhere.get("lm_head", LEFT_OUT)
    if head != LEFT_OUT:
        changed = replace(changed, lm_head=replace(changed.lm_head, weight_format=head))
    if network.mtp_experts is not None:
        changed = replace(
            changed, mtp_experts=_mtp_experts(network, network.mtp_experts, scheme, experts_format)
        )
    return replace(changed, kv_format=scheme.kv_format or network.kv_format)


def _mtp_experts(network: Network, experts: Experts, scheme: Scheme, experts_format: Any) -> Experts:
    if scheme.named.mtp == LEFT_OUT:
        return experts
    return replace(experts, weight_format=experts_format(len(network.layers), experts))


def read_scheme(section: Mapping[str, Any], place: str, *, expert_dtype: str | None = None) -> Scheme:
    """Return what a quantisation config says.

    Parameters
    ----------
    section : the object under `quantization_config`
    place : file and key, as an error should name them
    expert_dtype : `expert_dtype` of the config (DeepSeek V4), which the section does not mention

    Returns
    -------
    the scheme

    Examples
    --------
    >>> read_scheme({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "config.json").default
    'w4a16-g128-zp'
    """
    reader = Section(section, place)
    method = section.get("quant_method")
    if method is None:
        method = (
            "modelopt" if "quant_algo" in section or "quantized_layers" in section else "compressed-tensors"
        )
    if not isinstance(method, str):
        raise InputError(f"{place}.quant_method: {method!r} is not a name\n  known: {', '.join(METHODS)}")
    name = method.lower().replace("_", "-")
    if (
        "quantized_layers" in section
        or name.startswith("modelopt")
        or (name != "fp8" and "quant_algo" in section)
    ):
        scheme = _modelopt(reader)
    elif name in _READERS:
        scheme = _READERS[name](reader)
    else:
        raise InputError(
            f"{place}.quant_method: {method!r} is not known\n  known: {', '.join(METHODS)}\n"
            "  remove the section and give --weight-dtype instead, for example --weight-dtype w4a16-g128"
        )
    if expert_dtype in ("fp4", "mxfp4"):
        scheme = replace(scheme, expert_format="mxfp4")
    return scheme


def _fp8(reader: Section) -> Scheme:
    block = reader.values.get("weight_block_size")
    if block is None:
        name = "fp8"
    elif block == [128, 128]:
        name = "fp8_block"
    elif block == [1, 32]:
        name = "mxfp8"
    else:
        raise InputError(
            f"{reader.place}.weight_block_size: {block!r} is not modelled\n  known: [128, 128], [1, 32], null"
        )
    return Scheme(name, name_list(reader.left_out()), kv_format=_cache(reader))


def _mxfp4(reader: Section) -> Scheme:
    return Scheme(
        "mxfp4", name_list(reader.left_out()), classes=frozenset({"expert"}), kv_format=_cache(reader)
    )


def _awq(reader: Section) -> Scheme:
    name = packed_format(
        reader.number("bits" if "bits" in reader.values else "w_bit", 4),
        reader.number("group_size" if "group_size" in reader.values else "q_group_size", 128),
        zero_points=bool(reader.values.get("zero_point", True)),
        place=reader.place,
    )
    return Scheme(name, name_list(reader.left_out()))


def _gptq(reader: Section) -> Scheme:
    name = packed_format(
        reader.number("bits", 4), reader.number("group_size", 128), zero_points=True, place=reader.place
    )
    skipped = [(f"re:{key[2:]}", LEFT_OUT) for key in reader.objects("dynamic") if key.startswith("-:")]
    return Scheme(name, name_list([*skipped, *reader.left_out()]))


def _auto_round(reader: Section) -> Scheme:
    bits, group = reader.number("bits", 4), reader.number("group_size", 128)
    symmetric = bool(reader.values.get("sym", True))
    packing = str(reader.values.get("packing_format", "auto_round:auto_gptq"))
    name = packed_format(bits, group, zero_points="gptq" in packing or not symmetric, place=reader.place)
    named = list(reader.left_out())
    for module, entry in reader.objects("extra_config").items():
        if not isinstance(entry, Mapping):
            raise InputError(f"{reader.place}.extra_config.{module}: not an object")
        own_bits, own_group = entry.get("bits", bits), entry.get("group_size", group)
        unquantised = not isinstance(own_bits, int) or own_bits >= 16
        value = (
            LEFT_OUT
            if unquantised
            else packed_format(own_bits, int(own_group), zero_points=True, place=reader.place)
        )
        pattern = f"re:{module}" if any(mark in module for mark in "\\^$(") or ".*" in module else module
        named.append((reader.checked("extra_config", pattern), value))
    return Scheme(name, name_list(named))


def _bitsandbytes(reader: Section) -> Scheme:
    if reader.values.get("load_in_8bit"):
        name = "int8"
    elif reader.values.get("load_in_4bit"):
        name = "nf4_double" if reader.values.get("bnb_4bit_use_double_quant") else "nf4"
    else:
        raise InputError(f"{reader.place}: neither load_in_8bit nor load_in_4bit is true")
    return Scheme(name, name_list(reader.left_out()))


def _compressed_tensors(reader: Section) -> Scheme:
    groups = reader.objects("config_groups")
    if not groups:
        raise InputError(f"{reader.place}.config_groups: missing or empty")
    default, named = None, list(reader.left_out())
    for key, group in groups.items():
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping | None):
            raise InputError(f"{reader.place}.config_groups.{key}: not an object with weights")
        if group.get("weights") is None:
            continue
        name = compressed_format(group, f"{reader.place}.config_groups.{key}")
        targets = group.get("targets") or ["Linear"]
        if not isinstance(targets, list):
            raise InputError(f"{reader.place}.config_groups.{key}.targets: not a list of module names")
        for target in targets:
            if target in ("Linear", "MoEGMM", "FusedMoE"):
                default = default or name
            elif isinstance(target, str):
                named.append((reader.checked(f"config_groups.{key}.targets", target), name))
    return Scheme(default, name_list(named), kv_format=_cache(reader))


def _modelopt(reader: Section) -> Scheme:
    layers = reader.objects("quantized_layers")
    named: list[tuple[str, str]] = list(reader.left_out())
    named.extend(_algorithms(layers, f"{reader.place}.quantized_layers"))
    algorithm = reader.values.get("quant_algo")
    default: str | None = None
    if isinstance(algorithm, str) and algorithm.upper() != "MIXED_PRECISION":
        default = algorithm_format(algorithm, reader.number("group_size", 0), f"{reader.place}.quant_algo")
    elif algorithm is None and not layers:
        return replace(_compressed_tensors(reader), kv_format=_cache(reader))
    elif reader.values.get("quant_method") == "fp8":
        default = _fp8(reader).default
        named = list(_algorithms(layers, f"{reader.place}.quantized_layers"))
    return Scheme(default, name_list(named), kv_format=_cache(reader))


def _algorithms(layers: Mapping[str, Any], place: str) -> Iterator[tuple[str, str]]:
    known: dict[tuple[str, int], str] = {}
    for module, entry in layers.items():
        algorithm = entry.get("quant_algo") if isinstance(entry, Mapping) else None
        if not isinstance(algorithm, str):
            raise InputError(f"{place}.{module}: not an object with a quant_algo")
        group = entry.get("group_size") or 0
        if not isinstance(group, int):
            raise InputError(f"{place}.{module}.group_size: {group!r} is not a whole number")
        key = (algorithm, group)
        if key not in known:
            known[key] = algorithm_format(algorithm, group, f"{place}.{module}.quant_algo")
        yield module, known[key]


def _quark(reader: Section) -> Scheme:
    overall = reader.objects("global_quant_config")
    default = quark_format(overall, f"{reader.place}.global_quant_config")
    named: Iterable[tuple[str, str]] = [
        *reader.left_out(),
        *((module, quark_format(entry, reader.place) or LEFT_OUT)
          for module, entry in reader.objects("layer_quant_config").items()
          if isinstance(entry, Mapping) and entry.get("weight")),
    ]  # fmt: skip
    return Scheme(default, name_list(named), kv_format=_cache(reader))


def _cache(reader: Section) -> str | None:
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        if reader.values.get(key) is not None:
            return kv_format(reader.values[key], f"{reader.place}.{key}")
    return None


_READERS = {
    "fp8": _fp8,
    "fbgemm-fp8": _fp8,
    "mxfp4": _mxfp4,
    "awq": _awq,
    "gptq": _gptq,
    "auto-round": _auto_round,
    "intel/auto-round": _auto_round,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "quark": _quark,
}
