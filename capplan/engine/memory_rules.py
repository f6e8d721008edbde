"""How an engine version divides the memory of a device: rules as data, with a few fitted numbers."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

BudgetKind: TypeAlias = Literal["utilisation", "static_fraction", "free_fraction"]


PrefillGraphs: TypeAlias = Literal["none", "plain", "latent"]
"""Graphs of prefill steps that an engine captures: none, those of a model with keys and values, those of one with latents."""


@dataclass(frozen=True, slots=True)
class PrefillCapture:
    """The models and layouts for which an engine captures prefill steps on NVIDIA devices; never with pipeline stages."""

    latent: bool
    """Latent attention (MLA)."""
    grouped: bool
    """Attention data parallelism, and adapters."""
    delta: bool
    """Delta attention (KDA)."""
    towers: frozenset[str] = frozenset()
    """Types with a tower that keep their graphs, and types with delta attention that do."""


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """What an engine takes out of a device before the KV cache gets the rest.

    utilisation : fraction x total - weights - activations - runtime (vLLM)
    static_fraction : fraction x (total - runtime) - weights; activations live in the rest (SGLang)
    free_fraction : fraction x (total - weights - activations - runtime) (TensorRT-LLM)
    """

    budget: BudgetKind
    default_fraction: float | None
    """None: chosen from device memory and settings (SGLang)."""
    sampler_bytes: float
    """Working memory of the sampler per running sequence and vocabulary entry, besides the logits."""
    hidden_copies: float
    """Hidden-state tensors of the whole token budget that are alive at the peak of a layer."""
    resident_copies: float
    """Hidden-state tensors of the token budget that are alive while the sampler runs."""
    activation_base_bytes: float
    """Part of the activation peak that depends on neither model nor settings."""
    expert_workspace_resident: bool
    """Buffers of routed experts stay allocated while the sampler runs."""
    non_torch_bytes: float
    """Held outside the tensor allocator on one device: kernels, handles, workspaces."""
    collective_bytes: float
    """Additional where tensor-parallel ranks communicate over fast links: collective and all-reduce buffers."""
    late_collective_bytes: float
    """Allocated by tensor-parallel ranks without fast links at the first captured collective, after the cache is sized."""
    graph_bytes_per_layer: float
    """CUDA graph memory per layer and captured batch size."""
    graph_base_bytes: float
    graph_expert_bytes: float
    """Additional CUDA graph memory of a model with routed experts, per captured batch size."""
    warmup_sampler_bytes: float
    """Bytes per sequence and vocabulary entry: must be free once the cache is allocated, or the sampler's warm-up fails."""
    warmup_expert_bytes: float
    """The same per sequence, for a model with routed experts."""
    vision_bytes_per_token: float
    """Pixels and features of images that fill the token budget, while the sampler runs."""
    budgeted_graph_fraction: float
    """Part of its CUDA-graph memory that the engine subtracts, as its estimate, before it sizes the cache; 0: none."""
    layer_groups: bool
    """Layers of different kinds share one pool in groups; otherwise every layer keeps every token."""
    tokens_from_concurrency: bool
    """The printed cache size is concurrency x context rather than blocks x block size."""
    whole_windows: bool = False
    """Sliding layers keep every token, as full ones do, unless a window is set for the cache."""
    window_tokens_ratio: float | None = None
    """Tokens of the sliding-window pool for each token of the full pool; None: one shared pool."""
    state_pool_ratio: float | None = None
    """Bytes of the pool of recurrent states for each byte of the KV pool; None: states live in blocks."""
    recurrent_format: str | None = None
    """Format of recurrent states where the config states none; None: the dtype of the model."""
    prefill_capture: PrefillCapture | None = None
    """Prefill steps that are captured; None: none are."""
    vocabulary_multiple: int = 64
    """Rows of embedding and LM head are padded to a multiple of this, and of the ranks that they are split over."""
