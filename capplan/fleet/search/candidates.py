"""Legal layouts: hardware x parallelism x dtypes, why the others are not legal, and the errors that say so."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf

from capplan.engine.lookup import needed_cache_reason, unsupported_reason
from capplan.engine.profile import EngineProfile
from capplan.errors import InputError, Reason, Refusal
from capplan.hardware.device import Device
from capplan.hardware.weight_kernel import emulated_reason, no_kernel_reason
from capplan.memory.capacity import encoder_reason
from capplan.model.network import Network
from capplan.model.parameters import is_large_mixture
from capplan.model.sharding import Sharding, head_reason, listed_degrees, refuse_heads
from capplan.model.stored_tensor import BLOCK_DTYPES
from capplan.model.weight_format import FORMATS, RECIPES, named_weight_format, stored_formats
from capplan.operators.expert_exchange import exchange_kernels
from capplan.operators.llamacpp import ENGINE as LLAMACPP

DEGREES = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel")
"""Degrees of parallelism as scenario keys, flags and JSON name them, in the order of a `Sharding`."""


SPLIT_MATRICES = "llamacpp with matrices split over devices (--split-mode row) is not modelled: prompts of such runs were published of one pair of cards"
"""Why matrices are not split."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Device, parallelism and dtypes of one replica, and the tokens of its steps where the search chose them."""

    device: Device
    sharding: Sharding
    weight_format: str
    kv_format: str
    max_num_batched_tokens: int | None = None
    """Most tokens of a step of one engine; None: as the scenario or the engine says."""

    @property
    def devices(self) -> int:
        """Number of devices of one replica."""
        return int(self.sharding.devices)

    @property
    def degrees(self) -> dict[str, int]:
        """Return the parallelism by the names of scenario keys and flags."""
        sharding = self.sharding
        degrees = (sharding.tensor, sharding.pipeline, sharding.expert, sharding.data)
        return dict(zip(DEGREES, map(int, degrees), strict=True))

    def in_words(self) -> str:
        """Return the parallelism and weight dtype of one replica, such as 'TP4 PP2, fp8', and the tokens of its steps if they were chosen."""
        parts = [f"TP{int(self.sharding.tensor)}"]
        for name, value in (
            ("PP", self.sharding.pipeline), ("DP", self.sharding.data), ("EP", self.sharding.expert),
        ):  # fmt: skip
            if int(value) > 1:
                parts.append(f"{name}{int(value)}")
        dtype = "as published" if self.weight_format == "auto" else self.weight_format
        words = f"{' '.join(parts)}, {dtype}"
        tokens = self.max_num_batched_tokens
        return words if tokens is None else f"{words}, {tokens:,} tokens a step"


TENSOR_PARALLEL = (1, 2, 4, 8)
PIPELINE_PARALLEL = (1, 2)
WIDE_EXPERT_PARALLEL = (16, 32, 64)
"""Ranks of a large mixture of experts, each with an attention group and whole experts, that are tried in addition to those of one server.

DeepSeek serves DeepSeek-V3 with 32 and 144 of them, operators of Hopper servers with 16 to 96: DeepSeek-AI 2025,
https://github.com/deepseek-ai/open-infra-index/blob/main/202502OpenSourceWeek/day_6_one_more_thing_deepseekV3R1_inference_system_overview.md.
"""


@dataclass(frozen=True, slots=True)
class Ranges:
    """What the search may choose from."""

    tensor_parallel: Sequence[int] = TENSOR_PARALLEL
    pipeline_parallel: Sequence[int] = PIPELINE_PARALLEL
    weight_formats: Sequence[str] = ()
    kv_formats: Sequence[str] = ()
    max_devices_per_replica: int | None = None
    expert_parallel: Sequence[int] | None = None
    """None: try 1 and the number of ranks of a stage."""
    data_parallel: Sequence[int] | None = None
    """None: one attention group, and for models with experts also one per rank. A list is combined with every degree of
    `tensor_parallel`, which is then the number of ranks of one attention group."""


Rejections = Counter[tuple[str, Reason]]
"""(device name, reason) -> candidates."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Candidates that were rejected for one reason."""

    hardware: str
    reason: str
    """Reason in words, for messages; decisions use `code`."""
    count: int
    code: Refusal


def rejection_rows(rejected: Rejections) -> tuple[Rejection, ...]:
    """Return the rejections by device, most frequent reason first."""
    rows = sorted(rejected.items(), key=lambda entry: (entry[0][0], -entry[1]))
    return tuple(Rejection(hardware, why.words, count, why.code) for (hardware, why), count in rows if count)


def _expert_reason(network: Network, sharding: Sharding, *, redundant: bool) -> Reason | None:
    """Return why the experts cannot be split this way, or None if they can; with redundant experts any number fills the ranks."""
    ranks, groups = int(sharding.tensor * sharding.data), int(sharding.expert)
    routed = {layer.experts for layer, _ in network.distinct_layers if layer.experts}
    if groups > 1 and not routed:
        return Reason(Refusal.EXPERTS, f"expert-parallel {groups} on a model without experts")
    if ranks % groups:
        words = f"expert-parallel {groups} does not divide the ranks of tensor x data parallel"
        return Reason(Refusal.EXPERTS, words)
    for experts in routed:
        if experts.experts % groups and not redundant:
            words = f"{experts.experts} experts do not divide over expert-parallel {groups}"
            return Reason(Refusal.EXPERTS, words)
        if experts.intermediate_size % (ranks // groups):
            words = f"expert width {experts.intermediate_size} does not divide over {ranks // groups} ranks"
            return Reason(Refusal.EXPERTS, words)
    return None


def layout_reason(network: Network, layout: Layout, profile: EngineProfile) -> Reason | None:
    """Return why a layout cannot run, or None if it can (memory is checked elsewhere)."""
    device, sharding = layout.device, layout.sharding
    tensor, pipeline, data = int(sharding.tensor), int(sharding.pipeline), int(sharding.data)
    if device.partition is not None and tensor * pipeline * data > 1:
        words = "slices of a GPU have no links to each other, so a replica has one"
        return Reason(Refusal.LINK_DOMAIN, words)
    if (reach := _reach(device)) < tensor * data and device.network_bytes_per_s is None:
        words = f"tensor x data parallel {tensor * data} exceeds the {reach} devices of one link domain, and the network between servers is not known"
        return Reason(Refusal.LINK_DOMAIN, words)
    if profile.engine == "vllm" and data > 1 and pipeline > 1 and tensor * pipeline * data > reach:
        words = "vllm keeps the stages of an attention group on one server, so the experts of a stage would be spread over several; not modelled"
        return Reason(Refusal.LINK_DOMAIN, words)
    if profile.engine == LLAMACPP and tensor * data > 1:
        words = f"{SPLIT_MATRICES}; its layers may be, by --pipeline-parallel"
        return Reason(Refusal.LINK_DOMAIN, words)
    if device.cards and profile.engine != LLAMACPP:
        words = f"{profile.engine} runs on equal devices, and {device.name} is a machine of unequal cards; --engine llamacpp splits layers over them"
        return Reason(Refusal.LINK_DOMAIN, words)
    if profile.engine == LLAMACPP and pipeline > _reach(device):
        words = f"llamacpp over several machines (--rpc) is not modelled, and one has at most {_reach(device)} of {device.name}"
        return Reason(Refusal.LINK_DOMAIN, words)
    if pipeline > len(network.layers):
        words = f"pipeline-parallel {pipeline} exceeds the {len(network.layers)} layers"
        return Reason(Refusal.LAYERS, words)
    if pipeline > 1 and network.whole_prompts:
        return Reason(Refusal.LAYERS, "engines do not split encoders into pipeline stages")
    if reason := encoder_reason(network, profile):
        return reason
    return (
        head_reason(network, tensor)
        or _expert_reason(
            network, sharding, redundant=bool(exchange_kernels(profile, device, sharding, inf)[0])
        )
        or _dtype_reason(network, layout, profile)
        or _adapter_reason(network, device)
    )


def _adapter_reason(network: Network, device: Device) -> Reason | None:
    """Return why adapters without a slot cannot be copied from the host, or None if they can or need not be."""
    if (
        network.adapters is None
        or not network.adapters.missing_fraction
        or device.pcie_bytes_per_s is not None
    ):
        return None
    return Reason(Refusal.ADAPTERS, "adapters without a slot come from the host, over a link of unknown rate")


def _reach(device: Device) -> int:
    """Return the devices that a link or a server joins."""
    return max(device.link_domain_devices, device.node_devices)


def _untried_reason(network: Network, layout: Layout, ranges: Ranges) -> Reason | None:
    """Return why the search does not try a layout unless its tensor parallelism is listed; None if it does.

    Over several servers it tries whole experts on all ranks, each with an attention group: every token crosses the network to its experts
    and back, and nothing else does.
    """
    tensor, data = int(layout.sharding.tensor), int(layout.sharding.data)
    if tuple(ranges.tensor_parallel) != TENSOR_PARALLEL or tensor * data <= _reach(layout.device):
        return None
    whole = tensor == 1 and int(layout.sharding.expert) == data > 1
    if whole and any(layer.experts for layer, _ in network.distinct_layers):
        return None
    words = f"tensor x data parallel {tensor * data} exceeds the {_reach(layout.device)} devices of one link domain"
    return Reason(Refusal.LINK_DOMAIN, words)


_PLAIN = {"bf16", "fp16", "fp32"}
"""Dtypes of which an engine takes another one where the device does not run that of a checkpoint: vLLM serves bf16 as fp16 on Turing."""


def _dtype_reason(network: Network, layout: Layout, profile: EngineProfile) -> Reason | None:
    """Return why an engine cannot run the dtypes, or why capplan models only their memory; None if it can."""
    dtype = layout.weight_format
    if profile.engine == "trtllm" and any(
        name in BLOCK_DTYPES or "*" in name for name in stored_formats(network)
    ):
        return Reason(Refusal.WEIGHT_DTYPE, "trtllm does not load GGUF weights")
    if why := emulated_reason(layout.device, stored_formats(network) if dtype == "auto" else [dtype]):
        return Reason(Refusal.WEIGHT_DTYPE, why)
    if why := emulated_reason(layout.device, [layout.kv_format]):
        return Reason(Refusal.KV_DTYPE, why)
    architecture = layout.device.architecture
    if dtype == "auto":
        stored = {FORMATS[name].dtype for name in stored_formats(network) if not no_kernel_reason(name)}
        if any(unsupported_reason(profile, architecture, plain) is None for plain in _PLAIN):
            stored -= _PLAIN
    else:
        counted = dtype in RECIPES or no_kernel_reason(dtype)
        stored = set() if counted else {named_weight_format(dtype).dtype}
    reasons = (unsupported_reason(profile, architecture, run) for run in sorted(stored))
    return (
        next(filter(None, reasons), None)
        or unsupported_reason(profile, architecture, None, layout.kv_format)
        or needed_cache_reason(profile, network.model_type, architecture.lower(), layout.kv_format)
    )


def shardings(network: Network, ranges: Ranges) -> Iterable[Sharding]:
    """Return the parallelisms to try.

    By default, expert and attention data parallelism are tried only for models with experts, over all ranks of a stage; for large mixtures
    also over more ranks than a server has (WIDE_EXPERT_PARALLEL).
    Degrees in a list are all tried: `layout_reason` says which of them are illegal.

    Examples
    --------
    >>> from capplan.model.network import Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 64, 1000, "columns")
    >>> dense = Network("n", "t", 64, 1000, (Layer((), ()),), head, True, 64000)
    >>> [(item.tensor, item.pipeline) for item in shardings(dense, Ranges((1, 2), (1, 2)))]
    [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0), (2.0, 2.0)]
    """
    has_experts = any(layer.experts for layer, _ in network.distinct_layers)
    tried: dict[Sharding, None] = {}
    for degree, pipeline in product(ranges.tensor_parallel, ranges.pipeline_parallel):
        groups = [(degree, 1), (1, degree)] if has_experts else [(degree, 1)]
        if ranges.data_parallel is not None:
            groups = [(degree, data) for data in ranges.data_parallel]
        for tensor, data in groups:
            every = tensor * data if has_experts else 1
            experts = ranges.expert_parallel or ((1, every) if data == 1 else (every,))
            for expert in experts:
                tried[Sharding(float(tensor), float(pipeline), float(expert), float(data))] = None
    alone = 1 in ranges.tensor_parallel and 1 in ranges.pipeline_parallel and ranges.data_parallel is None
    for ranks in WIDE_EXPERT_PARALLEL if alone and is_large_mixture(network) else ():
        if ranges.expert_parallel is None or ranks in ranges.expert_parallel:
            tried[Sharding(1.0, 1.0, float(ranks), float(ranks))] = None
    return tried


def layouts(
    network: Network, devices: Sequence[Device], ranges: Ranges, profile: EngineProfile
) -> tuple[list[Layout], Rejections]:
    """Return every legal layout, and the number of illegal ones by device and reason."""
    legal: list[Layout] = []
    rejected: Rejections = Counter()
    formats = product(ranges.weight_formats or ("auto",), ranges.kv_formats or ("auto",))
    for device, (weight, kv), sharding in product(devices, list(formats), list(shardings(network, ranges))):
        layout = Layout(device, sharding, weight, kv)
        most = ranges.max_devices_per_replica
        reason = (
            Reason(Refusal.REPLICA_SIZE, f"over {most} devices in one replica")
            if most is not None and layout.devices > most
            else _untried_reason(network, layout, ranges) or layout_reason(network, layout, profile)
        )
        if reason:
            rejected[device.name, reason] += 1
        else:
            legal.append(layout)
    return legal, rejected


def refuse_illegal(network: Network, layout: Layout, engine: EngineProfile) -> None:
    """Raise InputError for an illegal replica, with the legal degrees."""
    tensor, expert = int(layout.sharding.tensor), int(layout.sharding.expert)
    refuse_heads(network, tensor)
    ranks = int(layout.sharding.tensor * layout.sharding.data)
    if ranks % expert:
        raise InputError(
            f"--expert-parallel {expert}: tensor x data parallel {ranks} ranks do not divide into {expert} groups\n"
            f"  allowed: {listed_degrees(lambda n: ranks % n == 0, ranks)}"
        )
    reason = layout_reason(network, layout, engine)
    if reason:
        raise InputError(f"{network.name} on {layout.device.name}: {reason.words}")
