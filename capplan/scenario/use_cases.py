"""What is usual of some kinds of services: lengths and targets with their sources."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
