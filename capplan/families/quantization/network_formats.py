"""The quantisation in a checkpoint's config -> the format of every matrix of its network."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from capplan.errors import InputError
from capplan.families.config import Config
from capplan.families.quantization.module_names import NameList, expert_names, name_list, projection_names
from capplan.families.quantization.schemes import (
    LEFT_OUT,
    algorithm_format,
    block_format,
    compressed_format,
    kv_format,
    left_out,
    packed_format,
    quantization_section,
    quark_format,
    rounded_format,
    sparse_ending,
    torchao_format,
)
from capplan.model.network import Experts, Network, Projection
from capplan.model.stored_tensor import blend_name, coded_bits
from capplan.model.weight_format import QUANTISED_CLASSES, experts_in, with_formats

METHODS = (
    "aqlm", "auto-round", "awq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "hqq", "modelopt", "mxfp4",
    "quark", "torchao",
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
    head: str | None = None
    """Format of an LM head that no name mentions; None leaves it as it is."""
    embedding: str | None = None
    """Format of the token embedding; None leaves it as it is."""
    note: str = ""
    """Remark for readers of the result."""


def quantised(
    network: Network,
    config: Mapping[str, Any],
    place: str = "config.json",
    quantization_file: tuple[str, Mapping[str, Any]] | None = None,
) -> Network:
    """Return the network in the formats that its checkpoint is quantised in.

    Parameters
    ----------
    network : the model, unquantised
    config : the parsed config.json
    place : the file, as errors name it
    quantization_file : name and content of the file next to it that states the quantisation, where there is one

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
    section = quantization_section(config, place, quantization_file)
    if section is None:
        return network
    return in_scheme(network, read_scheme(section, expert_dtype=_expert_dtype(config)))


def _expert_dtype(config: Mapping[str, Any]) -> str | None:
    """Return the format of routed experts that a file of DeepSeek V4 states at its top, in its text part or in its section."""
    holders = (config, config.get("text_config"), config.get("quantization_config"))
    stated = (holder.get("expert_dtype") for holder in holders if isinstance(holder, Mapping))
    return next((value for value in stated if isinstance(value, str)), None)


def in_scheme(network: Network, scheme: Scheme) -> Network:
    """Return the network with the formats of a scheme.

    Parameters
    ----------
    network : the model
    scheme : what the quantiser did

    Examples
    --------
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> in_scheme(Network("n", "llama", 8, 10, (), head, True, 80), Scheme("fp8", name_list([], "n"), kv_format="fp8")).kv_format
    'fp8'
    """
    names: dict[tuple[int, Projection], tuple[tuple[int, tuple[str, ...]], ...]] = {}

    def chosen(index: int, listed: tuple[str, ...], default: str | None, current: str) -> str:
        value = scheme.named.value(index, listed)
        value = default if value is None else value
        return current if value in (None, LEFT_OUT) else str(value)

    def projection_format(index: int, projection: Projection) -> str:
        if projection.tensor_class not in QUANTISED_CLASSES | scheme.classes:
            return projection.weight_format
        layer = network.layers[index]
        key = (id(layer), projection)
        if key not in names:
            names[key] = projection_names(network, layer, projection)
        default = scheme.default if projection.tensor_class in scheme.classes else None
        found = [
            (chosen(index, listed, default, projection.weight_format), size) for size, listed in names[key]
        ]
        return _joined(found)

    gate, up, down = expert_names(network)

    def experts_format(index: int, experts: Experts) -> tuple[str, str]:
        default = (scheme.expert_format or scheme.default) if "expert" in scheme.classes else None
        first = [(chosen(index, up, default, experts.weight_format), 1)]
        if experts.gated:
            first.append((chosen(index, gate, default, experts.weight_format), 1))
        return _joined(first), chosen(index, down, default, experts.weight_format)

    changed = with_formats(network, projection_format, experts_format)
    head = scheme.named.value_of_head() or scheme.head
    if head not in (None, LEFT_OUT) and not network.tied_embeddings:
        changed = replace(changed, lm_head=replace(changed.lm_head, weight_format=str(head)))
    if scheme.embedding is not None:
        changed = replace(changed, embedding_format=scheme.embedding)
    if scheme.note:
        changed = replace(changed, notes=(*network.notes, scheme.note))
    experts = network.mtp_experts
    if experts is not None and scheme.named.mtp != LEFT_OUT:
        changed = replace(
            changed, mtp_experts=experts_in(experts, experts_format(len(network.layers), experts))
        )
    return replace(changed, kv_format=scheme.kv_format or network.kv_format)


def _joined(found: Iterable[tuple[str, int]]) -> str:
    """Return the format of matrices that an engine holds as one, given the format and the outputs of each."""
    outputs: dict[str, int] = {}
    for name, size in found:
        outputs[name] = outputs.get(name, 0) + size
    return blend_name(outputs)


def read_scheme(section: Config, *, expert_dtype: str | None = None) -> Scheme:
    """Return the scheme of a quantisation config.

    Parameters
    ----------
    section : the object under `quantization_config`
    expert_dtype : `expert_dtype` of the config (DeepSeek V4), which the section does not mention

    Examples
    --------
    >>> read_scheme(Config({"quant_method": "awq", "bits": 4, "group_size": 128}, "config.json")).default
    'w4a16-g128-zp'
    """
    stated = section.values
    method = stated.get("quant_method")
    if method is None and isinstance(stated.get("bits"), int) and "config_groups" not in stated:
        return _mlx(section)
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
    name = "fp8" if block is None else block_format(block, section.where("weight_block_size"))
    return Scheme(name, name_list(left_out(section), section.where()), kv_format=_cache(section))


def _fbgemm(section: Config) -> Scheme:
    """Return the scheme of a checkpoint whose every output has a scale, in fp32."""
    return Scheme("fp8_channel", name_list(left_out(section), section.where()))


def _mxfp4(section: Config) -> Scheme:
    return Scheme(
        "mxfp4",
        name_list(left_out(section), section.where()),
        classes=frozenset({"expert"}),
        kv_format=_cache(section),
    )


def _awq(section: Config) -> Scheme:
    name = packed_format(
        _whole(section, "bits" if "bits" in section.values else "w_bit", 4),
        _whole(section, "group_size" if "group_size" in section.values else "q_group_size", 128),
        zero_points=bool(section.values.get("zero_point", True)),
        place=section.where(),
    )
    return Scheme(name, name_list(left_out(section), section.where()))


_OF_MLX = {"mxfp4": "mxfp4", "nvfp4": "nvfp4_w4a16", "mxfp8": "mxfp8"}


def _mlx_format(values: Mapping[str, Any], place: str) -> str:
    mode = values.get("mode") or "affine"
    if mode in _OF_MLX:
        return _OF_MLX[mode]
    if mode != "affine":
        raise InputError(f"{place}.mode: {mode!r} is not known\n  known: affine, {', '.join(_OF_MLX)}")
    for key in ("bits", "group_size"):
        if isinstance(values.get(key), bool) or not isinstance(values.get(key), int):
            raise InputError(f"{place}.{key}: {values.get(key)!r} is not a whole number")
    return f"{packed_format(values['bits'], values['group_size'], zero_points=False, place=place)}-zp16"


def _mlx(section: Config) -> Scheme:
    """Return the scheme of MLX. It quantises every matrix, the router, the embedding and the head; its config lists modules with other formats next to the default.

    A group has a scale and a bias of 16 bits each.

    References
    ----------
    ml-explore/mlx, `quantize` and `nn.quantize` (python/mlx/nn/layers/quantized.py).
    """
    values, where = section.values, section.where()
    default = _mlx_format(values, where)
    named = []
    for module, entry in values.items():
        if isinstance(entry, Mapping):
            named.append((module, _mlx_format({**values, **entry}, f"{where}.{module}")))
        elif entry is False:
            named.append((module, LEFT_OUT))
    outside = dict(named)
    embedding = next((outside[key] for key in outside if key.endswith("embed_tokens")), default)
    return Scheme(
        default,
        name_list([("lm_head", default), *named], where),
        classes=QUANTISED_CLASSES | {"router"},
        embedding=None if embedding == LEFT_OUT else embedding,
        note="a checkpoint of MLX, which runs on Apple devices: no engine here reads it, and times are those of kernels for the same format",
    )


def _gptq(section: Config) -> Scheme:
    """Return the scheme of GPTQ and GPTQModel: `dynamic` overrides modules by expressions, of which the first that matches counts.

    References
    ----------
    vLLM, `get_dynamic_override` and `is_layer_gptq_quantized` in vllm/model_executor/layers/quantization/utils/gptq_utils.py.
    """
    bits, group = _whole(section, "bits", 4), _whole(section, "group_size", 128)
    name = packed_format(bits, group, zero_points=True, place=section.where())
    named: list[tuple[str, str]] = []
    for key, entry in _object(section, "dynamic").items():
        pattern = f"re:{key.removeprefix('-:').removeprefix('+:')}"
        if key.startswith("-:"):
            named.append((pattern, LEFT_OUT))
            continue
        place = section.where(f"dynamic.{key}")
        if not isinstance(entry, Mapping):
            raise InputError(f"{place}: not an object with bits or group_size")
        own = Config({"bits": bits, "group_size": group, **entry}, place)
        sizes = _whole(own, "bits", bits), _whole(own, "group_size", group)
        named.append((pattern, packed_format(*sizes, zero_points=True, place=place)))
    named += left_out(section)
    inside = _blocks(section)
    named += [(f"re:.*{re.escape(module)}", name) for module in inside]
    head = name if section.flag("lm_head") else None
    return Scheme(None if inside else name, name_list(named, section.where()), head=head)


def _blocks(section: Config) -> list[str]:
    """Return the names of the modules within a layer that are quantised, where a section lists them; lists may be nested."""
    listed: list[Any] = []
    for entry in section.items("modules_in_block_to_quantize") or ():
        listed += entry if isinstance(entry, list) else [entry]
    for module in listed:
        if not isinstance(module, str):
            raise section.error("modules_in_block_to_quantize", f"{module!r} is not a module name")
    return list(dict.fromkeys(listed))


def _aqlm(section: Config) -> Scheme:
    """Return additive codebooks in the bits that the section states; the modules left out are named by their tensors."""
    books, bits = _whole(section, "num_codebooks", 1), _whole(section, "nbits_per_codebook", 16)
    group = _whole(section, "in_group_size", 8) * _whole(section, "out_group_size", 1)
    name = f"aqlm-{books}x{bits}-g{group}"
    if coded_bits(name) is None:
        raise section.error("num_codebooks", f"{books} of {bits} bits for groups of {group} are not modelled")
    tensors = section.items("linear_weights_not_to_quantize") or ()
    skipped = [(str(tensor).removesuffix(".weight"), LEFT_OUT) for tensor in tensors]
    return Scheme(name, name_list([*skipped, *left_out(section)], section.where()))


def _auto_round(section: Config) -> Scheme:
    _whole(section, "bits", 4), _whole(section, "group_size", 128)
    name = rounded_format(section.values, section.where())
    named = list(left_out(section))
    for module, entry in _object(section, "extra_config").items():
        if not isinstance(entry, Mapping):
            raise section.error(f"extra_config.{module}", "not an object")
        value = rounded_format({**section.values, **entry}, section.where(f"extra_config.{module}"))
        pattern = f"re:{module}" if any(mark in module for mark in "\\^$(") or ".*" in module else module
        named.append((pattern, value))
    return Scheme(name, name_list(named, section.where()))


def _bitsandbytes(section: Config) -> Scheme:
    if section.values.get("load_in_8bit"):
        name = "int8"
    elif section.values.get("load_in_4bit"):
        name = "nf4_double" if section.values.get("bnb_4bit_use_double_quant") else "nf4"
    else:
        raise InputError(f"{section.where()}: neither load_in_8bit nor load_in_4bit is true")
    return Scheme(name, name_list(left_out(section), section.where()))


def _compressed_tensors(section: Config) -> Scheme:
    groups = _object(section, "config_groups")
    sparse = sparse_ending(section)
    if not groups and not sparse:
        raise section.error("config_groups", "missing or empty")
    default, named = None if groups else f"bf16{sparse}", list(left_out(section))
    head = default
    for key, group in groups.items():
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping | None):
            raise section.error(f"config_groups.{key}", "not an object with weights")
        if group.get("weights") is None:
            continue
        name = compressed_format(group, section.where(f"config_groups.{key}")) + sparse
        targets = group.get("targets") or ["Linear"]
        if not isinstance(targets, list):
            raise section.error(f"config_groups.{key}.targets", "not a list of module names")
        for target in targets:
            if target in ("Linear", "MoEGMM", "FusedMoE"):
                default = default or name
                head = head or (name if target == "Linear" else None)
            elif isinstance(target, str):
                named.append((target, name))
    return Scheme(default, name_list(named, section.where()), kv_format=_cache(section), head=head)


def _modelopt(section: Config) -> Scheme:
    layers = _object(section, "quantized_layers")
    named: list[tuple[str, str]] = list(left_out(section))
    named.extend(_algorithms(layers, section.where("quantized_layers")))
    algorithm = section.values.get("quant_algo")
    default: str | None = None
    if isinstance(algorithm, str) and algorithm and algorithm.upper() != "MIXED_PRECISION":
        default = algorithm_format(algorithm, _whole(section, "group_size", 0), section.where("quant_algo"))
    elif not algorithm and not layers and _cache(section) and not section.values.get("config_groups"):
        default = None  # the cache alone is quantised
    elif algorithm is None and not layers:
        return replace(_compressed_tensors(section), kv_format=_cache(section))
    elif section.values.get("quant_method") == "fp8":
        default = _fp8(section).default
        named = list(_algorithms(layers, section.where("quantized_layers")))
    return Scheme(default, name_list(named, section.where()), kv_format=_cache(section))


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
    for kind, entry in _object(section, "layer_type_quant_config").items():
        if "linear" in kind.lower() and isinstance(entry, Mapping):
            default = quark_format(entry, section.where(f"layer_type_quant_config.{kind}")) or default
    named: Iterable[tuple[str, str]] = [
        *left_out(section),
        *((module, quark_format(entry, section.where()) or LEFT_OUT)
          for module, entry in _object(section, "layer_quant_config").items()
          if isinstance(entry, Mapping) and entry.get("weight")),
    ]  # fmt: skip
    return Scheme(default, name_list(named, section.where()), kv_format=_cache(section))


def _hqq(section: Config) -> Scheme:
    """Return integers in groups with a scale and a zero point of 16 bits each, as engines hold them.

    References
    ----------
    vLLM, `HQQMarlinMethod.create_weights` in vllm/model_executor/layers/quantization/hqq_marlin.py.
    """
    weights = _section(section, "quant_config", "weight_quant_params")
    bits, group = _whole(weights, "nbits", 4), _whole(weights, "group_size", 64)
    name = f"{packed_format(bits, group, zero_points=False, place=weights.where())}-zp16"
    skipped = [(str(module), LEFT_OUT) for module in section.items("skip_modules") or ("lm_head",)]
    return Scheme(name, name_list([*skipped, *left_out(section)], section.where()))


def _torchao(section: Config) -> Scheme:
    """Return the format of the type that torchao states for every matrix but those left out."""
    kind = _section(section, "quant_type", "default")
    name = torchao_format(kind.values, kind.where())
    return Scheme(name, name_list(left_out(section), section.where()))


def _section(section: Config, *keys: str) -> Config:
    for key in keys:
        section = section.needed_section(key)
    return section


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
    "hqq": _hqq,
    "torchao": _torchao,
}
