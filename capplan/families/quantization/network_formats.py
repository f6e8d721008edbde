"""The quantisation in a checkpoint's config -> the format of every matrix of its network."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from capplan.errors import InputError
from capplan.families.config import Config
from capplan.families.quantization.module_names import NameList, expert_names, name_list, projection_names
from capplan.families.quantization.schemes import (
    algorithm_format,
    compressed_format,
    kv_format,
    packed_format,
    quark_format,
)
from capplan.families.quantization.section import LEFT_OUT, left_out, module_pattern, quantization_section
from capplan.model.formatted import with_formats
from capplan.model.network import Experts, Network, Projection
from capplan.model.stated_bits import coded_bits
from capplan.model.weight_format import QUANTISED_CLASSES

METHODS = (
    "aqlm", "auto-round", "awq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt", "mxfp4", "quark",
)  # fmt: skip
"""Supported values of quant_method."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """The formats that a quantisation config gives to every module."""

    default: str | None
    """Format of the matrices that no name mentions; None leaves them as they are."""
    named: NameList
    """Formats, or `left out`, of modules by name; named modules take precedence over the default."""
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
    network : the model, unquantised
    config : the parsed config.json
    place : the file, as errors name it
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
    return in_scheme(network, read_scheme(section, expert_dtype=_expert_dtype(config)))


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


def read_scheme(section: Config, *, expert_dtype: str | None = None) -> Scheme:
    """Return the scheme of a quantisation config.

    Parameters
    ----------
    section : the object under `quantization_config`
    expert_dtype : `expert_dtype` of the config (DeepSeek V4), which the section does not mention

    Returns
    -------
    the scheme

    Examples
    --------
    >>> read_scheme(Config({"quant_method": "awq", "bits": 4, "group_size": 128}, "config.json")).default
    'w4a16-g128-zp'
    """
    stated = section.values
    method = stated.get("quant_method")
    if method is None:
        method = (
            "modelopt" if "quant_algo" in stated or "quantized_layers" in stated else "compressed-tensors"
        )
    known = f"known: {', '.join(METHODS)}"
    if not isinstance(method, str):
        raise section.error("quant_method", f"{method!r} is not a name", known)
    name = method.lower().replace("_", "-")
    if (
        "quantized_layers" in stated
        or name.startswith("modelopt")
        or (name != "fp8" and "quant_algo" in stated)
    ):
        scheme = _modelopt(section)
    elif name in _READERS:
        scheme = _READERS[name](section)
    else:
        way_out = "remove the section and give --weight-dtype instead, for example --weight-dtype w4a16-g128"
        raise section.error("quant_method", f"{method!r} is not known", f"{known}\n  {way_out}")
    if expert_dtype in ("fp4", "mxfp4"):
        scheme = replace(scheme, expert_format="mxfp4")
    return scheme


def _whole(section: Config, key: str, default: int) -> int:
    """Return a whole number, which may be -1 (one group per channel); null is an error, not a missing key."""
    if key in section.values and section.values[key] is None:
        raise section.error(key, "None is not a whole number")
    value = section.optional(key, least=-1)
    return default if value is None else value


def _object(section: Config, key: str) -> Mapping[str, Any]:
    """Return a nested object, empty where it is missing."""
    inner = section.section(key) if section.values.get(key) else None
    return inner.values if inner else {}


def _fp8(section: Config) -> Scheme:
    block = section.values.get("weight_block_size")
    if block is None:
        name = "fp8"
    elif block == [128, 128]:
        name = "fp8_block"
    elif block == [1, 32]:
        name = "mxfp8"
    else:
        raise section.error(
            "weight_block_size", f"{block!r} is not modelled", "known: [128, 128], [1, 32], null"
        )
    return Scheme(name, name_list(left_out(section)), kv_format=_cache(section))


def _fbgemm(section: Config) -> Scheme:
    """Return the scheme of a checkpoint whose every output has a scale, in fp32."""
    return Scheme("fp8_channel", name_list(left_out(section)))


def _mxfp4(section: Config) -> Scheme:
    return Scheme(
        "mxfp4", name_list(left_out(section)), classes=frozenset({"expert"}), kv_format=_cache(section)
    )


def _awq(section: Config) -> Scheme:
    name = packed_format(
        _whole(section, "bits" if "bits" in section.values else "w_bit", 4),
        _whole(section, "group_size" if "group_size" in section.values else "q_group_size", 128),
        zero_points=bool(section.values.get("zero_point", True)),
        place=section.where(),
    )
    return Scheme(name, name_list(left_out(section)))


def _gptq(section: Config) -> Scheme:
    name = packed_format(
        _whole(section, "bits", 4),
        _whole(section, "group_size", 128),
        zero_points=True,
        place=section.where(),
    )
    skipped = [(f"re:{key[2:]}", LEFT_OUT) for key in _object(section, "dynamic") if key.startswith("-:")]
    head = [("lm_head", name)] if section.flag("lm_head", default=False) else []
    return Scheme(name, name_list([*skipped, *left_out(section), *head]))


def _aqlm(section: Config) -> Scheme:
    """Return additive codebooks in the bits that the section states; the modules left out are named by their tensors."""
    books, bits = _whole(section, "num_codebooks", 1), _whole(section, "nbits_per_codebook", 16)
    group = _whole(section, "in_group_size", 8) * _whole(section, "out_group_size", 1)
    name = f"aqlm-{books}x{bits}-g{group}"
    if coded_bits(name) is None:
        raise section.error("num_codebooks", f"{books} of {bits} bits for groups of {group} are not modelled")
    tensors = section.items("linear_weights_not_to_quantize") or ()
    skipped = [(str(tensor).removesuffix(".weight"), LEFT_OUT) for tensor in tensors]
    return Scheme(name, name_list([*skipped, *left_out(section)]))


def _auto_round(section: Config) -> Scheme:
    bits, group = _whole(section, "bits", 4), _whole(section, "group_size", 128)
    symmetric = bool(section.values.get("sym", True))
    packing = str(section.values.get("packing_format", "auto_round:auto_gptq"))
    name = packed_format(bits, group, zero_points="gptq" in packing or not symmetric, place=section.where())
    named = list(left_out(section))
    for module, entry in _object(section, "extra_config").items():
        if not isinstance(entry, Mapping):
            raise section.error(f"extra_config.{module}", "not an object")
        module_bits, module_group = entry.get("bits", bits), entry.get("group_size", group)
        unquantised = not isinstance(module_bits, int) or module_bits >= 16
        value = (
            LEFT_OUT
            if unquantised
            else packed_format(module_bits, int(module_group), zero_points=True, place=section.where())
        )
        pattern = f"re:{module}" if any(mark in module for mark in "\\^$(") or ".*" in module else module
        named.append((module_pattern(section, "extra_config", pattern), value))
    return Scheme(name, name_list(named))


def _bitsandbytes(section: Config) -> Scheme:
    if section.values.get("load_in_8bit"):
        name = "int8"
    elif section.values.get("load_in_4bit"):
        name = "nf4_double" if section.values.get("bnb_4bit_use_double_quant") else "nf4"
    else:
        raise InputError(f"{section.where()}: neither load_in_8bit nor load_in_4bit is true")
    return Scheme(name, name_list(left_out(section)))


def _compressed_tensors(section: Config) -> Scheme:
    groups = _object(section, "config_groups")
    if not groups:
        raise section.error("config_groups", "missing or empty")
    default, named = None, list(left_out(section))
    for key, group in groups.items():
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping | None):
            raise section.error(f"config_groups.{key}", "not an object with weights")
        if group.get("weights") is None:
            continue
        name = compressed_format(group, section.where(f"config_groups.{key}"))
        targets = group.get("targets") or ["Linear"]
        if not isinstance(targets, list):
            raise section.error(f"config_groups.{key}.targets", "not a list of module names")
        for target in targets:
            if target in ("Linear", "MoEGMM", "FusedMoE"):
                default = default or name
            elif isinstance(target, str):
                named.append((module_pattern(section, f"config_groups.{key}.targets", target), name))
    return Scheme(default, name_list(named), kv_format=_cache(section))


def _modelopt(section: Config) -> Scheme:
    layers = _object(section, "quantized_layers")
    named: list[tuple[str, str]] = list(left_out(section))
    named.extend(_algorithms(layers, section.where("quantized_layers")))
    algorithm = section.values.get("quant_algo")
    default: str | None = None
    if isinstance(algorithm, str) and algorithm.upper() != "MIXED_PRECISION":
        default = algorithm_format(algorithm, _whole(section, "group_size", 0), section.where("quant_algo"))
    elif algorithm is None and not layers:
        return replace(_compressed_tensors(section), kv_format=_cache(section))
    elif section.values.get("quant_method") == "fp8":
        default = _fp8(section).default
        named = list(_algorithms(layers, section.where("quantized_layers")))
    return Scheme(default, name_list(named), kv_format=_cache(section))


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


def _quark(section: Config) -> Scheme:
    overall = _object(section, "global_quant_config")
    default = quark_format(overall, section.where("global_quant_config"))
    named: Iterable[tuple[str, str]] = [
        *left_out(section),
        *((module, quark_format(entry, section.where()) or LEFT_OUT)
          for module, entry in _object(section, "layer_quant_config").items()
          if isinstance(entry, Mapping) and entry.get("weight")),
    ]  # fmt: skip
    return Scheme(default, name_list(named), kv_format=_cache(section))


def _cache(section: Config) -> str | None:
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        if section.values.get(key) is not None:
            return kv_format(section.values[key], section.where(key))
    return None


_READERS = {
    "aqlm": _aqlm,
    "fp8": _fp8,
    "fbgemm-fp8": _fbgemm,
    "mxfp4": _mxfp4,
    "awq": _awq,
    "gptq": _gptq,
    "auto-round": _auto_round,
    "intel/auto-round": _auto_round,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "quark": _quark,
}
