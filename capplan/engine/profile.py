"""What a version of a serving engine does, as data: scheduling, defaults, how it divides the memory of a device, host overhead."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from capplan.assumption import Assumption
from capplan.engine.versions import CacheRule
from capplan.numbers import Number

if TYPE_CHECKING:
    from capplan.engine.left_out import LeftOutResult

BudgetKind: TypeAlias = Literal["utilisation", "static_fraction", "free_fraction"]


PrefillGraphs: TypeAlias = Literal["none", "plain", "latent"]
"""Graphs of prefill steps that an engine captures: none, those of a model with keys and values, those of one with latents."""


@dataclass(frozen=True, slots=True)
class PrefillCapture:
    """The models and layouts for which an engine captures prefill steps on NVIDIA devices; never with pipeline stages."""

    latent: bool
    """Latent attention (MLA), up to `latent_tokens` of a step."""
    grouped: bool
    """Attention data parallelism, and adapters."""
    delta: bool
    """Delta attention (KDA)."""
    latent_tokens: int = 2048
    """Largest captured step with latent attention; that of other models is the largest step of the engine. SGLang, "Piecewise CUDA Graph",
    docs/advanced_features/piecewise_cuda_graph.md: https://github.com/sgl-project/sglang."""
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
    """Bytes per sequence that must be free for the warm-up of a model with routed experts."""
    vision_bytes_per_token: float
    """Pixels and features of images that fill the token budget, while the sampler runs."""
    budgeted_graph_fraction: float
    """Part of its CUDA-graph memory that the engine subtracts, as its estimate, before it sizes the cache; 0: none."""
    layer_groups: bool
    """Layers of different kinds share one pool in groups; otherwise every layer keeps every token."""
    tokens_from_concurrency: bool
    """The printed cache size is concurrency x context rather than blocks x block size."""
    blocks_bound_sequences: bool = False
    """A hybrid model does not start with more sequences per step than its pool has blocks: each needs one for its state."""
    whole_windows: bool = False
    """Sliding layers keep every token, as full ones do, unless a window is set for the cache."""
    window_tokens_ratio: float | None = None
    """Tokens of the sliding-window pool for each token of the full pool; None: one shared pool."""
    compressed_window_ratio: float | None = None
    """Tokens of the sliding-window pool per token of the full pool with compressed attention, whose states are in rings (`memory.ring_pools`); None: not known, or vLLM's."""
    state_pool_ratio: float | None = None
    """Bytes of the pool of recurrent states for each byte of the KV pool; None: states live in blocks."""
    recurrent_format: str | None = None
    """Format of recurrent states where the config states none; None: the dtype of the model."""
    prefill_capture: PrefillCapture | None = None
    """Prefill steps that are captured; None: none are."""
    sent_fraction: float | None = None
    """Fraction that recipes state for experts over several servers, where the engine's own choice leaves no room; None: the engine's own."""
    latent_workspace_tokens: float = 131072.0
    """Most cached tokens of latent attention that prefill expands at once."""
    host_embedding: bool = False
    """The embedding is in the memory of the host, where rows of it are looked up; one that is the LM head too is on the device."""
    vocabulary_multiple: int = 64
    """Rows of embedding and LM head are padded to a multiple of this, and of the ranks that they are split over."""
    pads_mixed_experts: bool = True
    """Experts in mxfp4 are padded in a checkpoint whose other matrices are in fp8, too."""


Ratios: TypeAlias = tuple[tuple[float, float], ...]
"""Sizes in order, each with a measured time over the predicted one; empty where nothing was measured."""

OF_ROWS = re.compile(r"(?:rows|decode|prompt)_(\d+)_ratio")
"""Name of the ratio of steps with a number of rows; older files tell decode steps from steps with prompts."""

Policy: TypeAlias = Literal["mixed", "prefill_first", "slots", "static"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRules:
    """How an engine forms its steps, whatever limits it is started with."""

    block_tokens: int = 16
    reserved_output_fraction: float = 0.0
    """Fraction of its output for which blocks must be free before a request is admitted: 0 preempts instead, 1 never evicts."""
    hold_steps: int = 0
    """New prompts wait this many steps of the running batch for others to join (TensorRT-LLM: batch_wait_timeout_iters)."""
    hold_prompts: int = 0
    """Prompts that end the wait instead of tokens (TensorRT-LLM: attention_dp_config.enable_balance; in a profile, per
    data-parallel group)."""
    gather_steps: int = 0
    """Further steps to wait once enough prompts are there."""
    hold_seats: int = 0
    """Prompts that are enough still wait until as many sequences may join each data-parallel group as one step of a group took at most so far
    (SGLang: --enable-prefill-delayer); the number of groups, and 1 in a profile; 0: they do not."""
    poll_steps: int = 0
    """Steps of a running batch between two looks for new prompts (SGLang: scheduler_recv_interval)."""
    asynchronous: bool = False
    """A step is planned when the one before it begins: what arrives or ends during a step counts for the step after the next (vLLM:
    --async-scheduling). In a profile, on GPUs without pipeline stages."""
    draws_first: bool = False
    """The decode engine of separate pools draws the first token too, in its first step: the proxies of vLLM discard that of the prefill engine
    (llm-d, guides/pd-disaggregation). Otherwise it streams the one that the prefill engine drew as soon as the request decodes (SGLang,
    TensorRT-LLM)."""
    takes_over: bool = False
    """It is a decode engine by itself: requests arrive with their prompts computed."""


@dataclass(frozen=True, slots=True)
class Scheduling(StepRules):
    """How an engine that is started with some limits forms its steps.

    mixed : decode tokens first, then prefill chunks up to the token budget, in one step (vLLM V1, TensorRT-LLM)
    prefill_first : waiting prompts are prefilled in separate steps before decoding continues (SGLang, vLLM V0)
    slots : as mixed, but a request waits for one of max_num_seqs slots, each with an equal part of the cache, and pieces of prompts fill
        the step in the order of their slots (llama.cpp's server)
    static : one batch starts and ends together
    """

    policy: Policy
    max_num_seqs: int
    max_num_batched_tokens: int
    chunked: bool = True
    """A prompt may be split to fill the budget; otherwise it waits until it fits as a whole."""
    hold_tokens: int = field(default=0, kw_only=True)
    """The wait ends early when new prompts and the batch fill this many tokens of a step (batch_wait_max_tokens_ratio x the budget)."""


@dataclass(frozen=True, slots=True)
class HostOverhead:
    """What an engine adds to the kernels of a step, and how much of their time it hides; see `replica.tables.with_host`."""

    step_s: float = 0.0
    """Host time per step, not overlapped with the device [s]."""
    sequence_s: float = 0.0
    """Host time per running sequence and step: scheduling, sampling, detokenisation [s]."""
    request_s: float = 0.0
    """Host time per request, before its first token: HTTP, first streamed chunk [s]."""
    eager_layer_s: float = 0.0
    """Time to launch the kernels of one layer outside CUDA graphs [s]; a step takes at least as long as its launches."""
    decode_excess_ratio: float = 1.0
    """Fraction of the kernels' time above their physical floor that remains when they follow one another in a CUDA graph:
    launches overlap, epilogues are fused. Below 1 the engine is faster than its kernels timed one by one."""
    prefill_excess_ratio: float = 1.0
    """The fraction that remains in steps with prompt tokens."""
    graph_tokens: float = 0.0
    """A step with prompt tokens runs under (piecewise) CUDA graphs up to this many tokens."""
    stream_s: float = 0.0
    """Host time per running sequence and step, where the engine process itself streams every token to the client [s]."""
    context_token_s: float = 0.0
    """Host time per running sequence, step and token of its context, whose lists of blocks and tokens Python copies between steps [s]."""
    ranks_s: float = 0.0
    """Host time per step of a model that is split over several devices, besides step_s: the broadcast of the step to their processes [s]."""
    eager_experts_s: float = 0.0
    """Extra eager launch time of a layer with routed experts [s]: sorting tokens by expert, two grouped products, the sum."""
    graph_layer_s: float = 0.0
    """Time to launch one layer of a step with prompt tokens under piecewise CUDA graphs, whose attention is launched one by one [s]."""
    eager_latent_s: float = 0.0
    """Extra eager launch time of a layer with latent attention [s]: expanding latents, joining halves of keys, two attentions."""
    eager_scaled_s: float = 0.0
    """Extra eager launch time of a matrix product whose inputs are quantised in blocks [s]; the products of all experts of a layer are two."""
    prompt_token_s: float = 0.0
    """Host time per prompt token before its request reaches the queue: reading and tokenising the text [s]."""
    compute_rate_ratio: float = 1.0
    """Rate at which this engine's kernels compute on the device, over the rate that the kernels of its record or calibration reach."""
    memory_rate_ratio: float = 1.0
    """Rate at which this engine's kernels read memory, over the rate of its record or calibration."""
    link_rate_ratio: float = 1.0
    """Rate of messages between devices, over the rate of the record or calibration."""
    decode_attention_ratio: float = 1.0
    """Time of the attention of decode steps, over that of the record or calibration."""
    row_ratios: Ratios = ()
    """Measured over predicted time of the matrix products, by rows: the sequences of a decode step, the tokens of one with prompts.
    Kernels suit some numbers of rows more than others; interpolated in between."""

    @classmethod
    def of_named(cls, numbers: Mapping[str, float]) -> "HostOverhead":
        """Return the host times with these numbers, in which rows_6_ratio is the ratio of steps with six rows.

        Examples
        --------
        >>> HostOverhead.of_named({"step_s": 0.002, "rows_6_ratio": 0.8, "rows_4_ratio": 1.1}).row_ratios
        ((4.0, 1.1), (6.0, 0.8))
        """
        sized = {name: match for name in numbers if (match := OF_ROWS.fullmatch(name))}
        plain = {name: value for name, value in numbers.items() if name not in sized}
        ratios = sorted((float(match[1]), numbers[name]) for name, match in sized.items())
        return cls(**plain, row_ratios=tuple(ratios))

    @property
    def named(self) -> dict[str, float]:
        """Return all numbers by their names: the inverse of of_named."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if isinstance(f.default, float)}
        return plain | {f"rows_{rows:g}_ratio": ratio for rows, ratio in self.row_ratios}

    @property
    def rate_ratios(self) -> tuple[float, float, float]:
        """Return the ratios of compute, memory and links."""
        return self.compute_rate_ratio, self.memory_rate_ratio, self.link_rate_ratio

    def handling_s(self, prompt_tokens: Number) -> Number:
        """Return what a request with a prompt of this length takes before and behind the engine [s].

        Examples
        --------
        >>> HostOverhead(request_s=0.009, prompt_token_s=2e-6).handling_s(1000)
        0.011
        """
        return self.request_s + self.prompt_token_s * prompt_tokens

    def each_step_s(self, ranks: Number) -> Number:
        """Return what every step of a model on this many ranks takes besides its sequences [s].

        Examples
        --------
        >>> host = HostOverhead(step_s=0.002, ranks_s=0.0005)
        >>> float(host.each_step_s(1)), float(host.each_step_s(8))
        (0.002, 0.0025)
        """
        return np.where(np.asarray(ranks) > 1, self.step_s + self.ranks_s, self.step_s)[()]

    def launch_s(
        self,
        tokens: Number,
        layers: Number,
        routed_layers: Number = 0.0,
        latent_layers: Number = 0.0,
        scaled_products: Number = 0.0,
        *,
        captured: Number | None = None,
    ) -> Number:
        """Return the least time of a step with prompt tokens: that of its launches [s].

            t = L t_layer + L_r t_experts + L_l t_latent + P t_scaled beyond the captured tokens,   L t_piece up to them

        It is a host time and does not depend on the tokens, but for those that the engine captures: one token more, and all kernels of the step are
        launched one by one. On an H100 whose steps were recorded, steps of 512 and of 513 to 550 tokens differ by that much (docs/evidence/live.md).

        Parameters
        ----------
        tokens : [-]
            in the step of one engine
        layers, routed_layers, latent_layers : [-]
            L of the model, L_r of them that have routed experts, L_l with latent attention
        scaled_products : [-]
            P, matrix products of block-scaled fp8 in all layers
        captured : [-]
            largest step that runs under piecewise CUDA graphs; None: `graph_tokens`

        Examples
        --------
        >>> host = HostOverhead(eager_layer_s=4e-4, eager_experts_s=6e-4, graph_layer_s=2e-4, graph_tokens=512.0)
        >>> [round(1e3 * float(host.launch_s(tokens, 48, 48)), 1) for tokens in (512.0, 513.0)]
        [9.6, 48.0]
        """
        eager_s = self.eager_layer_s * layers + self.eager_experts_s * routed_layers
        eager_s = eager_s + self.eager_latent_s * latent_layers + self.eager_scaled_s * scaled_products
        most = self.graph_tokens if captured is None else captured
        return np.where(np.asarray(tokens) > most, eager_s, self.graph_layer_s * layers)[()]

    def token_s(self, *, offline: bool) -> float:
        """Return what each running sequence adds to a step [s]; offline nothing is streamed."""
        return self.sequence_s + (0.0 if offline else self.stream_s)


@dataclass(frozen=True, slots=True)
class ExpertKernel:
    """A kernel for routed experts, and where an engine chooses it, as its source states."""

    name: str
    """Part of the name of the kernel."""
    architectures: frozenset[str]
    """Device architectures."""
    formats: frozenset[str] = frozenset()
    """Formats of the experts; empty: all."""
    spread: bool | None = None
    """Only for experts that are spread over ranks (True), or of which each rank has a part (False)."""
    routings: frozenset[str] = frozenset()
    """How the experts of a token are chosen (`Experts.routing`); empty: in any way."""


@dataclass(frozen=True, slots=True)
class TiledHeads:
    """A kernel for prompts of sparse attention that computes query heads in tiles, and where an engine chooses it, as its source states."""

    tile: int
    """Query heads of a rank are padded to a multiple of it."""
    architectures: frozenset[str]
    """Device architectures."""
    cache_formats: frozenset[str] = frozenset()
    """Formats of the cache; empty: all."""
    above: int = 0
    """Only for ranks with more query heads than this."""


def tile_of(kernels: Sequence[TiledHeads], architecture: str, cache_format: str) -> tuple[float, float]:
    """Return the heads of a tile of the first kernel that fits, and above how many heads of a rank it runs; (1, 0) where none fits.

    Examples
    --------
    >>> kernels = (TiledHeads(64, frozenset({"hopper"})), TiledHeads(128, frozenset({"blackwell"}), frozenset({"bf16"}), above=16))
    >>> [tile_of(kernels, *where) for where in (("Hopper", "fp8"), ("Blackwell", "bf16"), ("Blackwell", "fp8"))]
    [(64.0, 0.0), (128.0, 16.0), (1.0, 0.0)]
    """
    return next(
        (
            (float(kernel.tile), float(kernel.above))
            for kernel in kernels
            if architecture.lower() in kernel.architectures
            and (not kernel.cache_formats or cache_format in kernel.cache_formats)
        ),
        (1.0, 0.0),
    )


@dataclass(frozen=True, slots=True)
class Tier:
    """Defaults that an engine chooses by the memory of the device."""

    above_bytes: float
    """The tier applies from this much device memory on."""
    max_num_seqs: int
    server_batched_tokens: int
    """Token budget of a step behind an API server."""
    offline_batched_tokens: int
    """Token budget of a step of the offline engine class."""
    graph_max_sequences: int = 512
    """Largest batch that is captured as a CUDA graph."""
    wide_graph_max_sequences: int = 512
    """Largest captured batch with four tensor-parallel ranks or more."""
    only: tuple[str, ...] = ()
    """Architectures and devices that the tier is for; empty: all."""
    excluded: tuple[str, ...] = ()
    """Architectures and devices that fall through to the next tier although their memory is large enough."""


FIRST_GROUP_EXPONENT = 0.25
"""How often decode attention of compiled TensorRT-LLM engines reads what query heads share: set on static batches and offline maxima, which were
too fast the more heads share a key, and right without sharing (docs/evidence/what-was-tried.md)."""


LOW_LATENCY_STEP_TOKENS = 1024.0
"""Largest step of a rank for which engines of one kind of all-to-all kernels are started with the low-latency ones: decode pools run with
`--max-num-batched-tokens` of 512 to 1,024, prefill pools with 8,192 to 32,768 (vLLM's recipes)."""


@dataclass(frozen=True, slots=True)
class EngineProfile(StepRules):
    """A serving engine of a version, as data."""

    engine: str
    version: str
    """The known version whose figures these are."""
    policy: Policy
    chunked: bool
    tiers: tuple[Tier, ...]
    """Largest memory first; the last applies to every device."""
    memory: MemoryRules
    weight_dtypes: Mapping[str, frozenset[str]]
    """Weight dtypes that run, by device architecture; `*` for every other one."""
    kv_dtypes: Mapping[str, frozenset[str]]
    """Cache dtypes that run, by device architecture."""
    cache_rules: tuple[CacheRule, ...] = ()
    """Models whose cache has another dtype than their activations by default."""
    model_sequences: Mapping[str, int] = field(default_factory=dict)
    """`model_type` -> the sequences that run at once by default, where a model has a limit of its own."""
    drafting_sequences: int | None = None
    """Sequences that run at once by default with drafts, for models without a limit of their own; None: as without drafts."""
    host: HostOverhead = HostOverhead()
    """Host times of the version, from `host_times.json`; `lookup.profile` fills it in."""
    doubles_graph_sequences: bool = False
    """Graphs are captured up to twice max_num_seqs (at most the tier's limit), not only up to the limit."""
    long_chunked_tokens: int | None = None
    """Prompts are split where the maximum context is above this, although `chunked` is false (vLLM V0)."""
    hold_share: float = 0.0
    """Share of the token budget of a step that ends a hold."""
    window_kernels: bool = True
    """Sliding-window layers read only their window; otherwise every layer reads all tokens unless a window is set."""
    derives_context: bool = True
    """The longest context is original positions x factor for yarn; otherwise the stated positions where the original ones are stated."""
    streams_in_engine: bool = False
    """The engine runs in its client's process and streams every token there; a server has a separate process for that."""
    fuses_quantise: bool = False
    """The kernel before an fp8 matmul writes quantised inputs; otherwise a separate kernel quantises them."""
    graph_sizes: tuple[int, ...] = ()
    """Batches that are captured as CUDA graphs, to which smaller decode steps are padded; empty where an engine captures every
    eighth batch or so, which costs no time to speak of."""
    most_graph_sequences: int | None = None
    """Sequences of the largest step that is captured, where the user limits it; 0: no step is."""
    graph_tokens_of: tuple[tuple[str, int], ...] = ()
    """Largest captured batch and step of models of some types and of devices of some architectures, where it is not that of all."""
    gathers_quantised: bool = False
    """Tokens are quantised before they are gathered for the experts with attention data parallelism; otherwise after it."""
    decode_group_exponent: float = 0.0
    """Decode attention reads the keys of a head as often as query heads share it, to this power; 0: once."""
    captured_tokens: float = 0.0
    """Longest context for which CUDA graphs of decode steps choose the parts of attention when they are captured; 0: parts are chosen at each step."""
    expert_kernels: tuple[ExpertKernel, ...] = ()
    """Kernels for routed experts, the first that fits, where it is not the first one timed."""
    tiled_heads: tuple[TiledHeads, ...] = ()
    """Kernels for prompts of sparse attention, the first that fits; none: heads are computed as they are."""
    compressed_tiles: tuple[TiledHeads, ...] = ()
    """Kernels for prompts of compressed attention (DeepSeek V4), the first that fits; none: heads are computed as they are."""
    expands_short_prompts: bool = False
    """Prompts of sparse attention that are no longer than the keys of an indexer attend to all of them, expanded, and nothing is indexed."""
    masks_prompts: frozenset[str] = frozenset()
    """Device architectures on which longer ones attend to all keys too, expanded and masked, where that is quicker."""
    rack_exchange: tuple[str, str] | None = None
    """All-to-all kernels of decode steps and of steps with prompts for experts on several servers of one NVLink domain; None: all ranks
    gather all tokens, as inside one server."""
    servers_exchange: tuple[str, str] | None = None
    """All-to-all kernels for experts on several servers that a network joins."""
    low_latency_tokens: float = 256.0
    """Tokens of a rank that low-latency all-to-all kernels have room for, at most those of a step."""
    one_exchange: bool = False
    """A replica is started with low-latency or with normal all-to-all kernels: the former where a step has at most
    `LOW_LATENCY_STEP_TOKENS`; otherwise it has both."""
    overlapped_steps: frozenset[str] = frozenset()
    """Steps, `decode` and `prefill`, of which the engine overlaps two halves with their exchanges between servers."""
    cache_format: str | None = None
    """Dtype of every cache by default; None: that of the activations, or what `cache_rules` say."""
    ubatch_tokens: float = np.inf
    """Most tokens of a step that are multiplied at once: of more the weights are read again (llama.cpp: `--ubatch-size`)."""
    left_out: "tuple[LeftOutResult, ...]" = ()
    """Errors of a calibration on results that its fit did not see; empty: the host times are those of the version."""
    backend: str | None = None
    """Backend of llama.cpp that is asked for; None: the usual one of a device."""
    asked_version: str | None = None
    """The version that was requested; None where none was."""
    assumptions: tuple[Assumption, ...] = ()
    """What was assumed to choose this profile."""

    def expert_kernel(self, architecture: str, weight_format: str, *, spread: bool, routing: str) -> str:
        """Return part of the name of the kernel for routed experts; empty: the first one timed.

        Parameters
        ----------
        architecture : of the device
        weight_format : of the experts
        spread : whole experts are spread over the ranks
        routing : how the experts of a token are chosen (`Experts.routing`)
        """
        return next(
            (
                kernel.name
                for kernel in self.expert_kernels
                if architecture.lower() in kernel.architectures
                and (not kernel.formats or weight_format in kernel.formats)
                and kernel.spread in {None, spread}
                and (not kernel.routings or routing in kernel.routings)
            ),
            "",
        )

    @property
    def rejects_long_prompts(self) -> bool:
        """Return whether prompts above the tokens of a step never start; vLLM V0 raises its default to the context instead."""
        return not self.chunked and self.long_chunked_tokens is None
