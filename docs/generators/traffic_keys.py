"""What docs/scenario.md says of the keys about traffic."""

from collections.abc import Mapping
from types import MappingProxyType

DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        **{
            f"traffic.{key}": "-"
            for key in ("request_rate", "users", "think_time", "requests", "within", "trace")
        },
        "traffic.users.active": "100 %",
        "traffic.region": "needed with regions",
        "traffic.mean_rate": "the trace's mean, else the peak",
        "traffic.daily_curve": "-",
        "traffic.active_hours": "-",
        "traffic.input_tokens": "the trace's",
        "traffic.output_tokens": "the trace's; none with runner: pooling",
        "traffic.turns": "one request each",
        "traffic.reasoning_tokens": "none",
        "traffic.images": "none",
        "traffic.images.count": "1",
        "traffic.images.max_pixels": "as published",
        "traffic.outside": "none",
        "traffic.outside.time": "0 s",
        "traffic.outside.usd_per_request": "0",
        "traffic.outside.tool_calls": "none",
        "traffic.outside.tool_time": "needed with tool_calls, without turns",
        "traffic.outside.usd_per_tool_call": "0",
        "traffic.documents": "1",
        "traffic.samples": "1",
        "traffic.retries": "none",
        "traffic.padded_batch": "packed",
        "traffic.added_tokens": "needed with turns",
        "traffic.shared_prefix.hit_fraction": "needed without turns",
        **{
            f"traffic.input_tokens.{part}": "-"
            for part in ("fixed", "mean", "p50", "p90", "p95", "p99", "min", "max", "values")
        },
        "traffic.shared_prefix": "none, or what the blocks of a trace say",
        "traffic.arrival_cv": "the trace's, else 1",
        "traffic.priority": "0",
        "traffic.deadline": "none",
    }
)
"""What holds where a key is left out."""

EXAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "traffic.name": "chat",
        "traffic.region": "europe",
        "traffic.requests": "500k",
        "traffic.users": "400",
        "traffic.users.employees": "2000",
        "traffic.users.active": "20 %",
        "traffic.think_time": "30 s",
        "traffic.within": "8 h",
        "traffic.trace": "traces/monday.csv",
        "traffic.mean_rate": "6 req/s",
        "traffic.daily_curve": "office",
        "traffic.input_tokens": "{mean: 1800, p95: 6000}",
        "traffic.output_tokens": "350",
        **{
            f"traffic.input_tokens.{part}": value
            for part, value in (
                ("fixed", "1800"),
                ("mean", "1800"),
                ("p50", "1200"),
                ("p90", "4000"),
                ("p95", "6000"),
                ("p99", "9000"),
                ("min", "100"),
                ("max", "8000"),
                ("values", "[120, 800, 2400]"),
            )
        },
        "traffic.shared_prefix": "{tokens: 1200, hit_fraction: 0.85}",
        "traffic.shared_prefix.tokens": "1200",
        "traffic.shared_prefix.hit_fraction": "85 %",
        "traffic.arrival_cv": "1.5",
        "traffic.turns": "{mean: 12, p95: 30}",
        "traffic.reasoning_tokens": "{mean: 3000, p95: 8000, max: 16000}",
        "traffic.images": "{count: 2, width: 1920, height: 1080}",
        "traffic.images.count": "2",
        "traffic.images.width": "1920",
        "traffic.images.height": "1080",
        "traffic.images.max_pixels": "1003520",
        "traffic.outside": "{time: 200 ms, usd_per_request: 0.0002}",
        "traffic.outside.time": "200 ms",
        "traffic.outside.usd_per_request": "0.0002",
        "traffic.outside.tool_calls": "3",
        "traffic.outside.tool_time": "400 ms",
        "traffic.outside.usd_per_tool_call": "0.001",
        "traffic.documents": "40",
        "traffic.samples": "8",
        "traffic.retries": "{invalid: 8 %, attempts: 3}",
        "traffic.retries.invalid": "8 %",
        "traffic.retries.attempts": "3",
        "traffic.padded_batch": "32",
        "traffic.added_tokens": "{mean: 900, p95: 3000}",
        "traffic.priority": "1",
        "traffic.deadline": "30 s",
    }
)
"""What a key may say."""
