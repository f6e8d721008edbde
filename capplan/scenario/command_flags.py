"""Options of single commands as plain records, one field per flag of a group, and what is usual of some kinds of services, with its sources."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from capplan.ranges import DEVICES, SEED, Positive, Range, Share, Whole, check_fields
from capplan.scenario.flags import MODEL, KvDtype, Measured, Option, WeightDtype, options_of


@dataclass(frozen=True, slots=True)
class StartedFlags:
    """What an export starts instead of what the plan names."""

    checkpoint: str | None = None
    draft: str | None = None
    image: str | None = None


@dataclass(frozen=True, slots=True)
class DraftFlags:
    """The draft of `capplan spec`, as a model, a method or a step time, and the step time of a target given without a model."""

    draft: str | None = None
    method: str | None = None
    """How the target drafts by itself."""
    draft_step_s: float | None = None
    target_step_s: float | None = None
    draft_tensor_parallel: int | None = None
    """None is the target's."""


@dataclass(frozen=True, slots=True)
class BillFlags:
    """Options of `capplan bill`: its month and its file for FinOps tools, or what was paid."""

    month: str | None = None
    focus: Path | None = None
    by: str = "class"
    focus_version: str = "1.2"
    actual: Path | None = None


@dataclass(frozen=True, slots=True)
class CachePriceFlags:
    """An API by name, or its prices in dollars per million tokens."""

    api: str | None = None
    input_price: float | None = None
    write_price: float | None = None
    """None: no premium."""
    read_price: float | None = None
    prices: Path | None = None
    """File of token prices."""
    date: str | None = None
    """Date of prices that do not state it."""


@dataclass(frozen=True, slots=True)
class SweepFlags:
    """Which plans are swept over which loads."""

    hardware: list[str] | None = None
    tensor_parallel: list[int] | None = None
    request_rate: str | None = None
    """Rates such as '1, 2, 4 req/s'."""
    concurrency: str | None = None
    """Concurrencies such as '1,8,64'."""
    settings: list[str] | None = None
    """Keys of a scenario that are overridden, each KEY=VALUE."""
    seed: int = SEED


@dataclass(frozen=True, slots=True)
class StatedResult:
    """Settings that a file of results may lack."""

    model: str | None = None
    hardware: str | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    concurrency: float | None = None


_AZURE = "Azure LLM inference trace 2023, {}: https://github.com/Azure/AzurePublicDataset"
_MOONCAKE = "Mooncake trace, FAST'25, {}: https://github.com/kvcache-ai/Mooncake"
_ARXIV = "arXiv summaries as Vidur replays them: https://github.com/microsoft/vidur"
_MLPERF = "MLPerf Inference 5.0, {} (99th percentile): https://mlcommons.org/2025/04/llm-inference-v5"
_TURNS = "pauses between speakers, Stivers et al. 2009: https://doi.org/10.1073/pnas.0903616106; speech recognition and synthesis take a part of it"


@dataclass(frozen=True, slots=True)
class UseCase:
    """What is usual of one kind of service."""

    input_tokens: str
    """Mean and 95th percentile, as `--input-tokens` takes them."""
    output_tokens: str
    lengths_from: str
    """Source of the lengths."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """Latency targets, as keys of `slo` with the percentile of their source; empty: a job."""
    targets_from: str = ""
    """Source of the targets."""
    traffic: Mapping[str, object] | None = None
    """Keys of the traffic that are not in `FirstScenario`."""


CASES = {
    "chat": UseCase(
        "1155,4083", "211,451", _AZURE.format("conversation"),
        {"ttft_p99": "450 ms", "tpot_p99": "40 ms"}, _MLPERF.format("Llama 2 70B, interactive"),
    ),
    "rag": UseCase(
        "2588,3813", "291,736", _ARXIV, {"ttft_p99": "2 s", "tpot_p99": "200 ms"}, _MLPERF.format("Llama 2 70B, server"),
    ),
    "code": UseCase(
        "2048,7315", "28,90", _AZURE.format("code"), {"ttft_p99": "450 ms", "tpot_p99": "40 ms"}, _MLPERF.format("Llama 2 70B, interactive"),
    ),
    "agent": UseCase(
        "12035,39552", "343,698", _MOONCAKE.format("conversation"), {"ttft_p99": "6 s", "tpot_p99": "175 ms"}, _MLPERF.format("Llama 3.1 405B, server"),
    ),
    "batch": UseCase("2588,3813", "291,736", _ARXIV, traffic={"requests": 100_000, "within": "8 h"}),
    "voice": UseCase("1155,4083", "211,451", _AZURE.format("conversation"), {"ttft_p95": "200 ms", "tpot_p95": "40 ms"}, _TURNS),
}  # fmt: skip


def unstated_targets(case: UseCase, stated: Iterable[str]) -> dict[str, str]:
    """Return the targets of a use case for latencies of which no target is stated.

    Parameters
    ----------
    case : with its targets
    stated : keys of `slo`, such as ttft_p95

    Examples
    --------
    >>> unstated_targets(CASES["chat"], ["ttft_p95"])
    {'tpot_p99': '40 ms'}
    """
    known = {key.partition("_")[0] for key in stated}
    return {key: limit for key, limit in case.targets.items() if key.partition("_")[0] not in known}


_LENGTH = "tokens: a mean, or a mean and a 95th percentile such as 1500,4500."


@dataclass(frozen=True, slots=True)
class FirstScenario:
    """What the flags of `capplan init` say; None is assumed where it is not known otherwise."""

    model: Annotated[str | None, Option(f"{MODEL}.", metavar="MODEL")] = None
    request_rate: Annotated[
        str | None,
        Option("At the peak, such as '20 req/s'.", metavar="RATE", key="traffic[0].request_rate"),
    ] = None
    input_tokens: Annotated[
        str | None, Option(f"Input {_LENGTH}", metavar="TOKENS", key="traffic[0].input_tokens")
    ] = None
    output_tokens: Annotated[
        str | None, Option(f"Output {_LENGTH}", metavar="TOKENS", key="traffic[0].output_tokens")
    ] = None
    ttft_p95: Annotated[
        str | None,
        Option("Target of the first token, such as '800 ms'.", metavar="TIME", key="slo.ttft_p95"),
    ] = None
    tpot_p95: Annotated[
        str | None, Option("Target of every further token.", metavar="TIME", key="slo.tpot_p95")
    ] = None
    hardware: Annotated[
        list[str] | None, Option("Device that may be bought; repeatable.", metavar="NAME")
    ] = None


DEFAULTS = {
    "model": "llama-3.1-8b-instruct",
    "request_rate": "5 req/s",
    "input_tokens": "1500,4500",
    "output_tokens": "300,800",
    "ttft_p95": "1 s",
    "tpot_p95": "50 ms",
}
"""What is assumed where nothing is said or known, by field of `FirstScenario`."""


@dataclass(frozen=True, slots=True)
class ScenarioFlags(FirstScenario):
    """Keys of a scenario as flags: of one that names only a model, or keys that replace those of a file."""

    users: Annotated[
        str | None,
        Option(
            "Users who are active at the same time, such as 400 or '20 % of 2000' employees, instead of --request-rate.",
            metavar="N",
            key="traffic[0].users",
        ),
    ] = None
    think_time: Annotated[
        str | None,
        Option(
            "From a response to the next request of a user; default: 30 s.",
            metavar="TIME",
            key="traffic[0].think_time",
        ),
    ] = None
    trace: Annotated[
        Path | None,
        Option("Arrivals and lengths, instead of --request-rate.", metavar="FILE", key="traffic[0].trace"),
    ] = None
    use_case: Annotated[
        str | None,
        Option(
            "A starting point, with the sources of its lengths and targets: chat, rag, code, agent, batch or voice.",
            known=tuple(CASES),
        ),
    ] = None
    hardware: Annotated[
        list[str] | None,
        Option(
            "Devices that may be bought, such as h100,l40s; repeatable; default: the scenario's, or of a model any with a price.",
            metavar="NAME",
            key="fleet.hardware",
        ),
    ] = None
    weight_dtype: WeightDtype = None
    kv_dtype: KvDtype = None
    engine: Annotated[
        str | None,
        Option(
            "vllm, sglang, trtllm, llamacpp (GGUF files), or any: the one of the first three whose fleet costs least.",
            known=("vllm", "sglang", "trtllm", "llamacpp", "any"),
            key="engine",
        ),
    ] = None
    backend: Annotated[
        str | None,
        Option(
            "cuda, metal, vulkan, rocm, sycl or cpu, of llamacpp; default: the usual one of each device.",
            known=("cuda", "metal", "vulkan", "rocm", "sycl", "cpu"),
            key="backend",
        ),
    ] = None
    confidence: Annotated[
        float | None,
        Option("Probability with which all targets must be met, such as 90%.", Share(), key="slo.confidence"),
    ] = None
    calibration: Measured = None
    settings: list[str] | None = None
    """Keys of a scenario that are overridden, each KEY=VALUE."""
    save: Annotated[
        Path | None,
        Option("Keep the scenario of a model as a YAML; it must not exist.", metavar="FILE"),
    ] = None


FLAG_KEYS = {name: option.key for name, option in options_of(ScenarioFlags).items() if option.key}
"""Field of `ScenarioFlags` -> key of a scenario that it states."""

REQUEST_RANGES: Mapping[str, Range] = {
    "until_s": Positive("10 min"),
    "seed": Whole(least=0),
    "warm_up_s": Positive("2 min", or_zero=True),
}
PLAN_RANGES: Mapping[str, Range] = {
    "tensor_parallel": DEVICES,
    "pipeline_parallel": DEVICES,
    "replicas": Whole("replicas", most=100_000),
}


@dataclass(frozen=True, slots=True)
class RequestFlags:
    """Which requests are simulated: those of a trace, else drawn from the scenario's traffic."""

    trace: Path | None = None
    until_s: float | None = None
    seed: int = SEED
    warm_up_s: float | None = None
    """Time from the start that figures leave out; None: that of the traffic, none for a trace."""

    def __post_init__(self) -> None:
        """Refuse numbers that are out of their ranges."""
        check_fields(self, REQUEST_RANGES)


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """Which plan is simulated; without hardware and parallelism, the one that the fleet search chooses."""

    hardware: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    replicas: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that are out of their ranges."""
        check_fields(self, PLAN_RANGES)


@dataclass(frozen=True, slots=True)
class OperationFlags:
    """How a fleet is run: queues, routing, failures, autoscaling, hedges, pools."""

    queue_limit: int | None = None
    deadline_s: float | None = None
    routing: str | None = None
    fail: list[str] | None = None
    """Each written as REPLICA@TIME."""
    autoscale: str | None = None
    """Written as MIN:MAX."""
    hedge_s: float | None = None
    prefill_replicas: int | None = None
    decode_replicas: int | None = None
    kv_link: str | None = None


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """How the engines of a simulation form their steps and cache prefixes."""

    scheduling: str | None = None
    """None is the engine's."""
    batch_timeout_s: float | None = None
    kv_offload: list[str] | None = None
    """Tiers, each written as NAME:SIZE[@RATE]."""
    reuse_preempted: bool = False
    """Whether a preempted request can reuse its blocks."""


@dataclass(frozen=True, slots=True)
class SpeculationFlags:
    """Speculation in a simulation; fields left out come from the scenario."""

    draft: str | None = None
    draft_step_s: float | None = None
    draft_tokens: int | None = None
    acceptance_fraction: float | None = None
