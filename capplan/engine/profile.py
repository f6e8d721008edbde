"""What a serving engine of a version does: scheduling, defaults, memory accounting, host overhead."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from capplan.assumption import Assumption
from capplan.engine.memory_rules import MemoryRules

Policy: TypeAlias = Literal["mixed", "prefill_first", "static"]


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How an engine forms its steps.

    mixed : decode tokens first, then prefill chunks up to the token budget, in one step (vLLM V1, TensorRT-LLM)
    prefill_first : waiting prompts are prefilled in steps of their own before decoding goes on (SGLang, vLLM V0)
    static : one batch starts and ends together
    """

    policy: Policy
    max_num_seqs: int
    max_num_batched_tokens: int
    chunked: bool = True
    """A prompt may be cut to fill the budget; otherwise it waits until it fits whole."""
    block_tokens: int = 16
    reserved_output_fraction: float = 0.0
    """Share of its output for which a request must find blocks before it is admitted: 0 preempts instead, 1 never evicts."""
    hold_steps: int = 0
    """New prompts wait so many steps of the running batch for company (TensorRT-LLM: batch_wait_timeout_iters) ..."""
    hold_tokens: int = 0
    """... unless they and the batch fill a step of so many tokens (batch_wait_max_tokens_ratio x the budget) ..."""
    hold_prompts: int = 0
    """... or, instead of tokens, until so many prompts wait (TensorRT-LLM: attention_dp_config.enable_balance); of a profile:
    for each data-parallel group, ..."""
    gather_steps: int = 0
    """... and then so many steps more."""
    poll_steps: int = 0
    """The engine looks for new prompts every so many steps of a running batch (SGLang: scheduler_recv_interval)."""


@dataclass(frozen=True, slots=True)
class HostOverhead:
    """What an engine adds to the kernels of a step, and what it saves of them; see `replica.tables.with_host`."""

    step_s: float = 0.0
    """Per step, not overlapped with the device [s]."""
    sequence_s: float = 0.0
    """Per running sequence and step: scheduling, sampling, detokenisation [s]."""
    request_s: float = 0.0
    """Per request, before its first token: HTTP, tokenisation, first streamed chunk [s]."""
    eager_layer_s: float = 0.0
    """Per layer of a step that does not run under CUDA graphs: launching takes at least this long [s]."""
    decode_excess_ratio: float = 1.0
    """What is left of the kernels' time over their physical floor when they follow one another in a CUDA graph:
    launches overlap, epilogues are fused. Below 1 an engine is faster than its kernels timed one by one."""
    prefill_excess_ratio: float = 1.0
    """The same for steps with prompt tokens."""
    graph_tokens: float = 0.0
    """A step with prompt tokens runs under (piecewise) CUDA graphs up to this many tokens."""
    stream_s: float = 0.0
    """Per running sequence and step where the engine's own process hands every token to the client [s]."""

    def token_s(self, *, offline: bool) -> float:
        """Return what each running sequence adds to a step; offline nothing is streamed [s]."""
        return self.sequence_s + (0.0 if offline else self.stream_s)


@dataclass(frozen=True, slots=True)
class Tier:
    """Defaults that an engine chooses by the memory of the device."""

    above_bytes: float
    """The tier holds from this much device memory on."""
    max_num_seqs: int
    server_batched_tokens: int
    """Token budget of a step behind an API server."""
    offline_batched_tokens: int
    """Token budget of a step of the offline class."""
    graph_max_sequences: int = 512
    """Largest batch that is captured as a CUDA graph."""
    wide_graph_max_sequences: int = 512
    """The same from four tensor-parallel ranks on."""
    excluded: tuple[str, ...] = ()
    """Architectures and devices that fall through to the next tier although their memory is large enough."""


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """A serving engine of a version, as data."""

    engine: str
    version: str
    """The known version that the figures belong to."""
    policy: Policy
    chunked: bool
    block_tokens: int
    tiers: tuple[Tier, ...]
    """Largest first; the last holds for every device."""
    memory: MemoryRules
    weight_dtypes: Mapping[str, frozenset[str]]
    """Weight dtypes that run, by device architecture; `*` for every other one."""
    kv_dtypes: Mapping[str, frozenset[str]]
    """Cache dtypes that run, by device architecture."""
    host: HostOverhead = HostOverhead()
    """From `host_times`, by version; `lookup.profile` fills it in."""
    """The host prepares a step while the device runs the one before."""
    doubles_graph_sequences: bool = False
    """Graphs are captured up to twice max_num_seqs (at most the tier's limit), not up to the limit alone."""
    long_chunked_tokens: int | None = None
    """Prompts are cut after all where the maximum context is above this (vLLM V0)."""
    reserved_output_fraction: float = 0.0
    """As in Scheduling."""
    hold_steps: int = 0
    """As in Scheduling."""
    hold_share: float = 0.0
    """Share of the token budget of a step that ends a hold."""
    hold_prompts: int = 0
    """As in Scheduling."""
    gather_steps: int = 0
    """As in Scheduling."""
    poll_steps: int = 0
    """As in Scheduling."""
    window_kernels: bool = True
    """Sliding layers read their window only; otherwise every layer reads all tokens unless a window is set."""
    streams_in_engine: bool = False
    """A client runs the engine in its own process and takes every token from it there; a server has another process for that."""
    fuses_quantise: bool = False
    """The kernel before a matmul in fp8 writes its inputs quantised; otherwise a kernel of its own does."""
    expert_kernels: Mapping[str, str] = field(default_factory=dict)
    """Part of the name of the kernel for routed experts, by device architecture, where it is not the one first timed."""
    asked_version: str | None = None
    assumptions: tuple[Assumption, ...] = ()
    """What was assumed to choose this profile."""
