"""Launch settings of engines that decide what a device holds, one entry for each plan."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from capplan.engine.lookup import default_memory_fraction
from capplan.engine.profile import EngineProfile, PrefillGraphs
from capplan.model.network import CompressedAttention, LatentAttention, LinearAttention, Network
from capplan.model.sharding import Sharding
from capplan.numbers import Array, Number


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch settings of an engine; every field is a number or an array over plans (one plan is an array of one).

    Limits apply to one engine: attention-data-parallel groups and pipeline stages batch separately.
    """

    tensor: Number
    expert: Number
    data: Number
    pipeline: Number
    device_memory_bytes: Number
    kv_bytes_per_element: Number
    max_model_len: Number
    max_num_seqs: Number
    max_num_batched_tokens: Number
    memory_fraction: Number
    block_tokens: Number
    fast_links: Number = 1.0
    """1 where tensor-parallel ranks communicate over NVLink or the like."""
    padded_inputs: Number = 128.0
    """Multiple to which the inputs of mxfp4 experts are padded."""
    sent: Number = 0.0
    """1 where each rank sends its tokens to the ranks of their experts (`operators.expert_exchange`)."""
    holds_embedding: Number = 0.0
    """1 where the embedding that llama.cpp keeps in the memory of the host is in this one: on a processor."""
    one_sided: Number = 0.0
    """1 where it does so over one NVLink domain, with a place in memory for every token of every rank."""
    context: Number = 1.0
    """Ranks of an attention group that share out the cached tokens of each sequence."""

    @property
    def stage_sharding(self) -> Sharding:
        """Parallelism within one pipeline stage."""
        return Sharding(tensor=self.tensor, expert=self.expert, data=self.data)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape that all fields broadcast to."""
        return np.broadcast_shapes(*(np.shape(getattr(self, field.name)) for field in fields(self)))

    def as_columns(self) -> "Launch":
        """Return the launch with every field as an array of one entry for each plan."""
        values = (np.asarray(getattr(self, field.name), dtype=np.float64) for field in fields(self))
        return Launch(*(column.reshape(-1) for column in np.broadcast_arrays(*values)))

    def selected(self, rows: NDArray[np.bool_]) -> "Launch":
        """Return the launch of the selected plans; all fields must be columns."""
        return Launch(*(np.asarray(getattr(self, field.name))[rows] for field in fields(self)))


def engine_launch(
    profile: EngineProfile,
    sharding: Sharding,
    device_memory_bytes: Number,
    kv_bytes_per_element: Number,
    max_model_len: Number,
    max_num_seqs: Number,
    max_num_batched_tokens: Number,
    gpu_memory_utilization: Number | None = None,
    *,
    fast_links: Number = 1.0,
    padded_inputs: Number = 128.0,
) -> Launch:
    """Return launch settings, with the engine's defaults where nothing is specified.

    Parameters
    ----------
    profile, sharding : [-]
        engine version; parallelism, numbers or arrays over plans
    device_memory_bytes, kv_bytes_per_element : [B]
        total that a process sees (`hardware.device.engine_memory_bytes`), not the datasheet figure; cache dtype, scales included
    max_model_len : [tokens]
        longest sequence that the engine must be able to hold
    max_num_seqs, max_num_batched_tokens : [-], [tokens]
        limit of the scheduler and token budget of a step, of one engine
    gpu_memory_utilization : [-]
        memory fraction as the engine defines it; None: the engine's default for any model on NVIDIA devices (`default_memory_fractions`)
    fast_links : [-]
        1 where tensor-parallel ranks communicate over NVLink or the like (`hardware.device.has_fast_links`)
    padded_inputs : [elements]
        multiple to which the inputs of mxfp4 experts are padded (`hardware.device.padded_inputs_multiple`)

    Returns
    -------
    the launch, with the engine's memory fraction and block size

    Examples
    --------
    >>> from capplan.engine.lookup import profile
    >>> engine_launch(profile("vllm", "0.19.0"), Sharding(), 8e9, 2.0, 4096, 64, 2048).memory_fraction
    0.9
    """
    fraction = gpu_memory_utilization
    if fraction is None:
        fraction = default_memory_fractions(profile, device_memory_bytes, sharding)
    return Launch(
        tensor=sharding.tensor,
        expert=sharding.expert,
        data=sharding.data,
        pipeline=sharding.pipeline,
        device_memory_bytes=device_memory_bytes,
        kv_bytes_per_element=kv_bytes_per_element,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        memory_fraction=fraction,
        block_tokens=profile.block_tokens,
        fast_links=fast_links,
        padded_inputs=padded_inputs,
        context=sharding.context,
    )


def prefill_graphs(
    network: Network | None, profile: EngineProfile, *, pipelined: bool, grouped: bool, cuda: bool
) -> PrefillGraphs:
    """Return which prefill steps an engine captures of a model in a layout.

    Parameters
    ----------
    network : the model; None: nothing is captured
    profile : of the engine version
    pipelined, grouped : with pipeline stages; with attention data parallelism
    cuda : on an NVIDIA device

    Returns
    -------
    none, those of keys and values, or those of latents

    Examples
    --------
    >>> from capplan.engine.lookup import profile
    >>> from capplan.model.network import Projection
    >>> network = Network("n", "t", 8, 10, (), Projection("lm_head", "lm_head", 8, 10, "columns"), True, 80)
    >>> [prefill_graphs(network, profile("sglang", version), pipelined=False, grouped=True, cuda=True) for version in ("0.5.9", "0.5.21", "0.5.22")]
    ['none', 'none', 'plain']

    References
    ----------
    SGLang, `_handle_piecewise_cuda_graph` until 0.5.14, `disable_breakable_cudagraph_if_incompatible` since:
    https://github.com/sgl-project/sglang.
    """
    capture = profile.memory.prefill_capture
    if network is None or capture is None or pipelined or not cuda:
        return "none"
    kinds = {type(mixer) for layer, _ in network.distinct_layers for mixer in layer.mixers}
    latent = LatentAttention in kinds
    delta = any(
        isinstance(mixer, LinearAttention) and mixer.kind == "kda"
        for layer, _ in network.distinct_layers
        for mixer in layer.mixers
    )
    kept = network.model_type in capture.towers
    if (
        (latent and not capture.latent)
        or ((grouped or network.adapters is not None) and not capture.grouped)
        or (((delta and not capture.delta) or network.vision_parameters) and not kept)
        or CompressedAttention in kinds
    ):
        return "none"
    return "latent" if latent else "plain"


def default_memory_fractions(
    profile: EngineProfile,
    device_memory_bytes: Number,
    sharding: Sharding,
    network: Network | None = None,
    cuda: Number = 1.0,
) -> Number:
    """Return the engine's default memory fraction for each plan.

    Parameters
    ----------
    profile : of the engine version
    device_memory_bytes : [B]
        by plan
    sharding : [-]
        by plan
    network : the model; None: any
    cuda : [-]
        1 on NVIDIA devices, by plan

    Returns
    -------
    [-]

    Examples
    --------
    >>> from capplan.engine.lookup import profile
    >>> default_memory_fractions(profile("sglang"), np.array([79.2 * 2**30] * 2), Sharding(np.array([1.0, 8.0])))
    array([0.834, 0.817])
    """
    if profile.memory.default_fraction is not None:
        return profile.memory.default_fraction
    columns = np.broadcast_arrays(
        *(
            np.asarray(column, dtype=np.float64)
            for column in (device_memory_bytes, sharding.tensor, sharding.pipeline, sharding.data, cuda)
        )
    )
    plans = list(zip(*(column.reshape(-1).tolist() for column in columns), strict=True))
    known = {plan: _default_memory_fraction(profile, network, *plan) for plan in dict.fromkeys(plans)}
    fractions: Array = np.array([known[plan] for plan in plans]).reshape(columns[0].shape)
    return fractions


def _default_memory_fraction(
    profile: EngineProfile, network: Network | None, memory: float, tensor: float, pipeline: float, data: float, cuda: float
) -> float:  # fmt: skip
    captured = prefill_graphs(network, profile, pipelined=pipeline > 1, grouped=data > 1, cuda=bool(cuda))
    return default_memory_fraction(
        profile,
        memory,
        tensor * data,
        pipeline_ranks=pipeline,
        attention_groups=data,
        prefill_graphs=captured,
    )
