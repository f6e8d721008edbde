"""What is usual of some kinds of services: lengths and targets with their sources."""

from collections.abc import Mapping
from dataclasses import dataclass

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
    ttft_p95: str | None = None
    """None without targets: a job."""
    tpot_p95: str | None = None
    targets_from: str = ""
    """Source of the targets."""
    traffic: Mapping[str, object] | None = None
    """Keys of the traffic that are not in `FirstScenario`."""


CASES = {
    "chat": UseCase(
        "1155,4083", "211,451", _AZURE.format("conversation"),
        "450 ms", "40 ms", _MLPERF.format("Llama 2 70B, interactive"),
    ),
    "rag": UseCase(
        "2588,3813", "291,736", _ARXIV, "2 s", "200 ms", _MLPERF.format("Llama 2 70B, server"),
    ),
    "code": UseCase(
        "2048,7315", "28,90", _AZURE.format("code"), "450 ms", "40 ms", _MLPERF.format("Llama 2 70B, interactive"),
    ),
    "agent": UseCase(
        "12035,39552", "343,698", _MOONCAKE.format("conversation"), "6 s", "175 ms", _MLPERF.format("Llama 3.1 405B, server"),
    ),
    "batch": UseCase("2588,3813", "291,736", _ARXIV, traffic={"requests": 100_000, "within": "8 h"}),
    "voice": UseCase("1155,4083", "211,451", _AZURE.format("conversation"), "200 ms", "40 ms", _TURNS),
}  # fmt: skip
