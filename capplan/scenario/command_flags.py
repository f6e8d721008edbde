"""Options of single commands as plain records, one field per flag of a group, and what is usual of some kinds of services, with its sources."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capplan.ranges import DEVICES, SEED, Positive, Share, Whole, check_fields
from capplan.scenario.flags import MODEL, ServingFlags, option, options_of, ranges_of, same_option

TIME, REPLICAS = Positive("10 min"), Whole("replicas", most=100_000)
A_SETTING = "A key of the scenario, such as 'slo.ttft_p95=600 ms'; repeatable."
SEED_OF_DRAWS = "Seed of the random draws."
DAY_OF_LIST = "Date of a list that states none, such as the file of LiteLLM."


@dataclass(frozen=True, slots=True)
class StartedFlags:
    """What an export starts instead of what the plan names."""

    checkpoint: str | None = option(
        "Checkpoint to serve instead of the plan's model, such as its weights in the plan's dtype.",
        metavar="OWNER/NAME",
    )
    draft: str | None = option("Checkpoint of the draft, if the plan names none.", metavar="OWNER/NAME")
    image: str | None = option(
        "Image of the containers; default: the image of the engine's release, if it is known.",
        metavar="NAME:TAG",
    )


@dataclass(frozen=True, slots=True)
class DraftFlags:
    """The draft of `capplan spec`, as a model, a method or a step time, and the step time of a target given without a model."""

    draft: str | None = option("Draft model, with the vocabulary of the target.", metavar="MODEL")
    method: str | None = option(
        "How the target drafts by itself, instead of --draft: eagle, mtp, dspark, medusa or ngram.",
        metavar="METHOD",
        known=("eagle", "mtp", "dspark", "medusa", "ngram"),
    )
    draft_step_s: float | None = option(
        "One step of the draft, such as '2 ms', instead of --draft.", TIME, flag="--draft-step-time"
    )
    target_step_s: float | None = option(
        "One decode step of the target, such as '35 ms', instead of MODEL.", TIME, flag="--target-step-time"
    )
    draft_tensor_parallel: int | None = option(
        "Devices that the draft is split over; default: all devices of the target.", DEVICES
    )


@dataclass(frozen=True, slots=True)
class BillFlags:
    """Options of `capplan bill`: its month and its file for FinOps tools, or what was paid."""

    month: str | None = option(
        "Month of the bill, with its own hours; default: the mean month, for --focus the next one.",
        metavar="YYYY-MM",
    )
    focus: Path | None = option(
        "Also write the bill as CSV in the columns of FOCUS, for FinOps tools.", metavar="FILE"
    )
    by: str = option("Rows of the FOCUS bill: class or machine.", default="class", metavar="ROWS")
    focus_version: str = option("Version of FOCUS: 1.2 or 1.3.", default="1.2", metavar="VERSION")
    metrics: Path | None = option(
        "Also write what tokens cost as Prometheus metrics, with the names and definitions of OpenCost and llm-d.",
        metavar="FILE",
    )
    actual: Path | None = option(
        "Compare the plan with what was paid: CSV of FOCUS or of AWS's cost and usage report, or JSON of OpenCost.",
        metavar="FILE",
    )
    others: list[Path] | None = option(
        "Another plan file or scenario that shares commitments with this one; repeatable.",
        metavar="FILE",
        flag="--with",
    )
    budget: float | None = option(
        "Budget of a month for all services of --with.", Positive("20000"), unit="BUDGET", metavar="USD"
    )


_PRICE: dict[str, Any] = {"allowed": Positive("2.50"), "unit": "USD_PER_MILLION", "metavar": "PRICE"}
_OF = "Dollars per million tokens of"


@dataclass(frozen=True, slots=True)
class CachePriceFlags:
    """An API by name, or its prices in dollars per million tokens."""

    api: str | None = option("Hosted API, such as openai/gpt-5.", metavar="PROVIDER/MODEL")
    input_price: float | None = option(f"{_OF} plain input, instead of --api.", **_PRICE)
    write_price: float | None = option(f"{_OF} cache writes; default: the price of input.", **_PRICE)
    read_price: float | None = option(f"{_OF} cache reads.", **_PRICE)
    prices: Path | None = option(
        "Token-price YAML, or price file of LiteLLM, instead of the shipped list.",
        metavar="FILE",
    )
    date: str | None = option(DAY_OF_LIST, metavar="DAY")


@dataclass(frozen=True, slots=True)
class SweepFlags:
    """Which plans are swept over which loads."""

    hardware: list[str] | None = option(
        "Device to compare, repeatable; default for a scenario: the best plan on each of its devices.",
        metavar="NAME",
    )
    tensor_parallel: list[int] | None = option(
        "Devices that every matrix is split over; repeatable, to compare.", DEVICES, short=("-tp", "--tp")
    )
    request_rate: str | None = option(
        "Arrivals at one replica, such as '1,2,4 req/s'; default for a scenario: up to what it can serve.",
        metavar="LIST",
    )
    concurrency: str | None = option(
        "Requests in flight, such as 1,8,64 (closed loop); the default for a model.", metavar="LIST"
    )
    settings: list[str] | None = option(A_SETTING, metavar="KEY=VALUE", flag="--set")
    seed: int = option(SEED_OF_DRAWS, Whole(least=0), default=SEED)


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

    model: str | None = option(f"{MODEL}.", metavar="MODEL")
    request_rate: str | None = option(
        "Request rate at the peak, such as '20 req/s'.", metavar="RATE", key="traffic[0].request_rate"
    )
    input_tokens: str | None = option(f"Input {_LENGTH}", metavar="TOKENS", key="traffic[0].input_tokens")
    output_tokens: str | None = option(f"Output {_LENGTH}", metavar="TOKENS", key="traffic[0].output_tokens")
    ttft_p95: str | None = option(
        "Target of the time to first token, such as '800 ms'.", metavar="TIME", key="slo.ttft_p95"
    )
    tpot_p95: str | None = option(
        "Target of the time per token after the first, such as '40 ms'.", metavar="TIME", key="slo.tpot_p95"
    )
    hardware: list[str] | None = option("Device that may be bought; repeatable.", metavar="NAME")


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

    users: str | None = option(
        "Users who are active at the same time, such as 400 or '20 % of 2000' employees, instead of --request-rate.",
        metavar="N",
        key="traffic[0].users",
    )
    think_time: str | None = option(
        "Time from a response to the next request of the user; default: 30 s.",
        metavar="TIME",
        key="traffic[0].think_time",
    )
    trace: Path | None = option(
        "Arrivals and lengths, instead of --request-rate.", metavar="FILE", key="traffic[0].trace"
    )
    use_case: str | None = option(
        "A starting point, with the sources of its lengths and targets: chat, rag, code, agent, batch or voice.",
        known=tuple(CASES),
    )
    hardware: list[str] | None = option(
        "Devices that may be bought, such as h100,l40s; repeatable; default: the scenario's, or of a model any with a price.",
        metavar="NAME",
        key="fleet.hardware",
    )
    weight_dtype: str | None = same_option(ServingFlags, "weight_dtype")
    kv_dtype: str | None = same_option(ServingFlags, "kv_dtype")
    engine: str | None = option(
        "vllm, sglang, trtllm, llamacpp (GGUF files), or any: the one of the first three whose fleet costs least.",
        known=("vllm", "sglang", "trtllm", "llamacpp", "any"),
        key="engine",
    )
    backend: str | None = option(
        "cuda, metal, vulkan, rocm, sycl or cpu, of llamacpp; default: the usual one of each device.",
        known=("cuda", "metal", "vulkan", "rocm", "sycl", "cpu"),
        key="backend",
    )
    confidence: float | None = option(
        "Probability with which all targets must be met, such as 90%.", Share(), key="slo.confidence"
    )
    calibration: Path | None = same_option(ServingFlags, "calibration")
    save: Path | None = option("Keep the scenario of a model as a YAML; it must not exist.", metavar="FILE")
    settings: list[str] | None = same_option(SweepFlags, "settings")


FLAG_KEYS = {name: option.key for name, option in options_of(ScenarioFlags).items() if option.key}
"""Field of `ScenarioFlags` -> key of a scenario that it states."""


@dataclass(frozen=True, slots=True)
class RequestFlags:
    """Which requests are simulated: those of a trace, else drawn from the scenario's traffic."""

    trace: Path | None = option("Replay these requests instead of the scenario's traffic.", metavar="FILE")
    until_s: float | None = option(
        "Stop after this simulated time, such as '10 min'; default: when all requests are done.",
        TIME,
        flag="--until",
    )
    seed: int = option(SEED_OF_DRAWS, Whole(least=0), default=SEED)
    warm_up_s: float | None = option(
        "Requests before this time count in no figure; default: the first 15% of drawn requests, for sessions until the caches are full, none of a trace.",
        Positive("2 min", or_zero=True),
        flag="--warm-up",
    )

    def __post_init__(self) -> None:
        """Refuse numbers that are out of their ranges."""
        check_fields(self, REQUEST_RANGES)


REQUEST_RANGES = ranges_of(RequestFlags)
"""What the fields of `RequestFlags` may be."""


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """Which plan is simulated; without hardware and parallelism, the one that the fleet search chooses."""

    hardware: str | None = option("Device; default: the plan that capplan fleet chooses.", metavar="NAME")
    tensor_parallel: int | None = same_option(ServingFlags, "tensor_parallel")
    pipeline_parallel: int | None = same_option(ServingFlags, "pipeline_parallel")
    replicas: int | None = option("Replicas in service; default: the plan's, without spares.", REPLICAS)

    def __post_init__(self) -> None:
        """Refuse numbers that are out of their ranges."""
        check_fields(self, PLAN_RANGES)


PLAN_RANGES = ranges_of(PlanFlags)
"""What the fields of `PlanFlags` may be."""


@dataclass(frozen=True, slots=True)
class OperationFlags:
    """How a fleet is run: queues, routing, failures, autoscaling, hedges, pools."""

    queue_limit: int | None = option(
        "Requests that arrive at a replica with this many waiting are shed.", Whole("requests", least=0)
    )
    deadline_s: float | None = option(
        "Requests that waited longer than this are shed.", TIME, flag="--deadline"
    )
    routing: str | None = option(
        "Router before the replicas: round_robin, random, least_loaded, reported_load, prefix_aware or gpu_prefix_aware.",
        known=("round_robin", "random", "least_loaded", "reported_load", "prefix_aware", "gpu_prefix_aware"),
    )
    fail: list[str] | None = option(
        "A replica (from 0) and the time at which it fails, such as '1@5 min'; its requests are rerouted; repeatable.",
        metavar="REPLICA@TIME",
    )
    autoscale: str | None = option(
        "Autoscale the replicas with the load; the scenario states the start-up time.", metavar="MIN:MAX"
    )
    hedge_s: float | None = option(
        "A request without a token after this time is copied to another replica.", TIME, flag="--hedge"
    )
    prefill_replicas: int | None = option(
        "Replicas for prefill only; with --decode-replicas and --kv-link.", REPLICAS
    )
    decode_replicas: int | None = option("Replicas for decode: all tokens but the first.", REPLICAS)
    kv_link: str | None = option(
        "Link for the transfer of the KV cache: network, pcie or the device's link, such as nvlink4.",
        metavar="NAME",
    )


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """How the engines of a simulation form their steps and cache prefixes."""

    scheduling: str | None = option(
        "static, dynamic (with a timeout), continuous (prompts not split), chunked, prefill-first or slots (llama.cpp); default: the engine's.",
        known=("static", "dynamic", "continuous", "chunked", "prefill-first", "slots"),
    )
    batch_timeout_s: float | None = option(
        "A dynamic batch starts once its oldest request has waited this long; default: 100 ms.",
        TIME,
        flag="--batch-timeout",
    )
    kv_offload: list[str] | None = option(
        "Memory of a replica for prefixes that no longer fit on its devices, such as 'host:512 GB' or "
        "'nvme:8 TB@14 GB/s'; repeatable, fastest first; for a trace with block hashes.",
        metavar="NAME:SIZE[@RATE]",
    )
    reuse_preempted: bool = option(
        "A preempted request reuses its blocks that were not overwritten, as with a prefix cache.",
        default=False,
    )


@dataclass(frozen=True, slots=True)
class SpeculationFlags:
    """Speculation in a simulation; fields left out come from the scenario."""

    draft: str | None = option("Speculative decoding with this draft model.", metavar="MODEL")
    draft_step_s: float | None = option(
        "One step of the draft, such as '1 ms', instead of --draft.", TIME, flag="--draft-step-time"
    )
    draft_tokens: int | None = option(
        "Draft tokens per round; default: the scenario's, else 4.", Whole("tokens", most=64)
    )
    acceptance_fraction: float | None = option(
        "Probability that a draft token is accepted, given that all before it were.",
        Share(),
        flag="--acceptance",
    )
