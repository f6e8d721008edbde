"""The specification of one replica, the work that comes with the prompts of requests, and the cards of a machine that are not alike.

A token passes such cards one after the other, and the pieces of a prompt follow each other:

    t_token = sum_d t_d + (N - 1) t_h,   t_prompt = t (1 + (n - 1) f) / n,   f = min(g max(t_slowest / t, 1 / 4), 1),   t = sum_d t_d
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from capplan.engine.lookup import ANY_OF, with_chunked_prefill, with_graphs_of, with_most_graphs
from capplan.engine.profile import EngineProfile
from capplan.errors import DoesNotFitError, InputError
from capplan.hardware.device import Device, Efficiency, engine_memory_bytes
from capplan.memory.capacity import part_of
from capplan.model.network import Attention, Network
from capplan.model.sharding import Sharding, adapter_bytes_per_rank
from capplan.model.weight_format import stored_dtypes
from capplan.operators.llamacpp import ENGINE as LLAMACPP
from capplan.phases.cost import StepRates, total_s
from capplan.phases.token_work import tower_costs
from capplan.replica.offload import Offload


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """Everything that memory and step times of a replica depend on."""

    network: Network
    """Network in the weight format it is served in."""
    device: Device
    efficiency: Efficiency
    profile: EngineProfile
    sharding: Sharding
    """Numbers, not arrays."""
    kv_format: str
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    typical_context_tokens: int | None = None
    """Input plus output of a typical request, for the cache capacity of hybrid models; None: the longest context."""
    offload: Offload | None = None
    """Layers or experts in the memory of the host, which `network` lacks."""
    tensor_split: tuple[float, ...] = ()
    """Proportions of the layers for each card of a machine whose cards are not alike; none: by their memory."""
    offline: bool = False
    """Offline inference instead of the API server: larger steps, no HTTP."""

    @property
    def devices(self) -> int:
        """Number of devices of the replica."""
        return int(self.sharding.devices)

    @property
    def batching(self) -> Sharding:
        """Parallelism as the scheduler sees it: the cards of a machine are its stages."""
        return replace(self.sharding, pipeline=max(self.sharding.pipeline, float(len(self.device.cards))))

    @property
    def layers(self) -> int:
        """Layers of the model, those on the host too."""
        held = self.offload.network.layers if self.offload else ()
        return len(self.network.layers) + sum(bool(layer.mixers) for layer in held)

    @property
    def ranks(self) -> float:
        """Devices that one copy of the model is split over: tensor and pipeline ranks."""
        return float(self.sharding.tensor * self.sharding.pipeline)


def deployed_as(network: Network, sharding: Sharding, kv_format: str) -> str:
    """Return a model with its parallelism and formats: equal for replicas that one fit of a deployment describes.

    Parameters
    ----------
    network : in the formats that it is served in
    sharding : of the replica
    kv_format : of the cache
    """
    sizes = {"TP": sharding.tensor, "PP": sharding.pipeline, "EP": sharding.expert, "DP": sharding.data}
    split = [f"{name}{float(size):g}" for name, size in sizes.items() if float(size) > 1]
    dtypes = "+".join(sorted(stored_dtypes(network)))
    return " ".join([network.name, *split, f"in {dtypes}, cache in {kv_format}"])


def network_as_served(network: Network, profile: EngineProfile) -> Network:
    """Return the model as an engine runs it: with the context that it derives, without windows that its kernels ignore by default."""
    if not profile.derives_context and network.stated_context_tokens is not None:
        network = replace(network, max_context_tokens=network.stated_context_tokens)
    if profile.window_kernels:
        return network
    layers = tuple(
        replace(
            layer,
            mixers=tuple(
                replace(mixer, window_tokens=None, chunked=False) if isinstance(mixer, Attention) else mixer
                for mixer in layer.mixers
            ),
        )
        for layer in network.layers
    )
    return replace(network, layers=layers)


def profile_as_served(
    profile: EngineProfile, network: Network, chunked_prefill: bool | None, cuda_graphs: int | None = None
) -> EngineProfile:
    """Return the engine with or without chunked prefill, as asked, and with the graphs that it captures for the model.

    Encoders and encoder-decoders read every prompt whole.

    Parameters
    ----------
    profile : of the engine version
    network : the model
    chunked_prefill : as asked; None: the engine's default
    cuda_graphs : sequences of the largest step that is captured, as asked; None: the engine's default

    Raises
    ------
    InputError
        An encoder or an encoder-decoder is asked to read its prompts in chunks.

    References
    ----------
    vLLM, "Pooling models default to using chunked prefill & prefix caching if supported" (only causal attention supports
    them): https://github.com/vllm-project/vllm/pull/20930. Encoder-decoders run under CUDA graphs in decode steps only (FULL_DECODE_ONLY):
    `VllmConfig`, vllm/config/vllm.py. gpt-oss: `GptOssForCausalLMConfig`, vllm/model_executor/models/config.py.
    """
    if chunked_prefill and network.whole_prompts:
        raise InputError(
            f"{network.name} {_reads(network)}, so they cannot be cut into chunks; leave chunked prefill out"
        )
    if network.encoder is not None:
        profile = replace(profile, host=replace(profile.host, graph_tokens=0.0))
    profile = with_graphs_of(profile, network.model_type)
    if cuda_graphs is not None and profile.engine == LLAMACPP:
        raise InputError(f"cuda_graphs: is of {', '.join(ANY_OF)}; leave it out for {LLAMACPP}")
    if cuda_graphs is not None:
        profile = with_most_graphs(profile, cuda_graphs)
    if network.whole_prompts or chunked_prefill is False:
        return with_chunked_prefill(profile, on=False)
    return with_chunked_prefill(profile, on=True) if chunked_prefill else profile


def refuse_prefixes(network: Network, hit_fraction: float) -> None:
    """Raise the error for prompts that are said to share prefixes where nothing of a prompt is kept for another: encoders, encoder-decoders.

    vLLM, `SchedulerConfig.__post_init__`, switches prefix caching and chunked prefill off for encoder-decoders.
    """
    if network.whole_prompts and hit_fraction > 0.0:
        raise InputError(
            f"{network.name} {_reads(network)} and keeps nothing of them for others, so none can reuse a prefix; leave it out"
        )


def _reads(network: Network) -> str:
    """Return how a model that takes prompts whole reads them, as errors say it."""
    return (
        "reads prompts in both directions" if network.bidirectional else "reads a source before its prompts"
    )


def served_context_tokens(spec: ReplicaSpec) -> int:
    """Return the longest context that the replica accepts."""
    tokens = spec.max_model_len or spec.network.max_context_tokens
    if tokens is None:
        raise InputError(
            f"{spec.network.name}: its config states no maximum context\n  give one: --max-model-len 8192"
        )
    return tokens


def prompt_work_s_per_token(spec: ReplicaSpec, rates: StepRates) -> float:
    """Return the time that a token of a prompt adds to a prefill in addition to its own, mean over the traffic [s].

    Raises
    ------
    InputError
        the link of the device to its host is not known, and adapters come over it
    """
    return _adapter_s(spec) + _tower_s(spec, rates)


def _adapter_s(spec: ReplicaSpec) -> float:
    """Return the time of copying adapters that are not resident from the memory of the host, on every device at once."""
    adapters = spec.network.adapters
    if adapters is None or not adapters.missing_fraction or not adapters.prompt_tokens:
        return 0.0
    if spec.device.pcie_bytes_per_s is None:
        raise InputError(
            f"{spec.device.name}: the rate between host and device is not known, and adapters without a slot come over it\n"
            "  give every adapter a slot (max_loras), or pcie in your own hardware YAML"
        )
    held = float(adapter_bytes_per_rank(spec.network, spec.sharding))
    return adapters.missing_fraction * held / spec.device.pcie_bytes_per_s / adapters.prompt_tokens


def _tower_s(spec: ReplicaSpec, rates: StepRates) -> float:
    """Return the time of the vision tower; attention-data-parallel groups read different images at once."""
    network, seconds = spec.network, 0.0
    if network.images is None:
        return seconds
    for image in network.image_work:
        costs = tower_costs(network.images.tower, image, network.vision_format, spec.sharding.tensor, rates)
        seconds += image.per_prompt_token * float(total_s(costs)) / float(spec.sharding.data)
    return seconds


def layers_by_card(layers: int, proportions: Sequence[float]) -> tuple[int, ...]:
    """Return how many layers each card of a machine has, of which the LM head is the last.

        n_d = |{i in 0, ..., L : s_(d-1) <= i / (L + 1) < s_d}|,   s_d = (p_1 + ... + p_d) / (p_1 + ... + p_N)

    Parameters
    ----------
    layers : [-]
        L, of the model
    proportions : [-]
        p, of each card; not all of them 0

    Returns
    -------
    [-]
        n, which sum up to L + 1

    Examples
    --------
    >>> layers_by_card(32, (24.0, 12.0)), layers_by_card(32, (1.0, 0.0))
    ((22, 11), (33, 0))

    References
    ----------
    llama.cpp, `load_tensors` in src/llama-model.cpp: https://github.com/ggml-org/llama.cpp.
    """
    ends = list(accumulate(proportions))
    counts = [0] * len(ends)
    for index in range(layers + 1):
        counts[next(card for card, end in enumerate(ends) if end / ends[-1] > index / (layers + 1))] += 1
    return tuple(counts)


def card_layers(spec: ReplicaSpec) -> tuple[int, ...]:
    """Return the layers of each card of a machine, the LM head counted as the last: as stated, else by memory; none of a single device."""
    cards = spec.device.cards
    by_memory = tuple(engine_memory_bytes(card) for card in cards)
    return layers_by_card(len(spec.network.layers), spec.tensor_split or by_memory) if cards else ()


def cards_of(spec: ReplicaSpec) -> tuple[ReplicaSpec, ...]:
    """Return each card that has layers as a replica of its part, the one with the LM head last; a single device is itself the only one.

    Raises
    ------
    DoesNotFitError
        a card has the LM head and no layer
    """
    counts = card_layers(spec)
    if not counts:
        return (spec,)
    used = [at for at, count in enumerate(counts) if count]
    parts, start, layers = [], 0, len(spec.network.layers)
    for at in used:
        end = min(start + counts[at], layers)
        if end == start:
            raise DoesNotFitError(
                f"--tensor-split: leaves nothing but the LM head to {spec.device.cards[at].name}\n  give it a larger part, or none"
            )
        network = part_of(spec.network, start, end, first=at == used[0], last=at == used[-1])
        card, efficiency = spec.device.cards[at], spec.efficiency.cards[at]
        parts.append(replace(spec, network=network, device=card, efficiency=efficiency, tensor_split=()))
        start = end
    return tuple(parts)
