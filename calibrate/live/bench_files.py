"""Answers as the JSON that `vllm bench serve --save-result --save-detailed` writes."""

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from capplan.calibrate.endpoint.client import Answered

PERCENTILES = (50, 90, 95, 99)


def bench_record(
    answers: Sequence[Answered],
    *,
    model: str,
    request_rate: float | None = None,
    max_concurrency: int | None = None,
    burstiness: float = 1.0,
) -> dict[str, Any]:
    """Return the record of one run: requests that failed are counted and leave no time.

    Parameters
    ----------
    answers : in the order in which they were sent
    model : name
    request_rate : [1/s]
        of an open loop; None: a closed one
    max_concurrency : [-]
        users of a closed loop
    burstiness : [-]
        shape of the gamma distribution of gaps; 1 is Poisson
    """
    good = [answer for answer in answers if not answer.error]
    start_s = min(answer.sent_s for answer in answers)
    duration_s = max(answer.ended_s for answer in answers) - start_s
    outputs = sum(answer.output_tokens for answer in good)
    record: dict[str, Any] = {
        "endpoint_type": "openai",
        "backend": "vllm",
        "model_id": model,
        "num_prompts": len(answers),
        "request_rate": request_rate or "inf",
        "burstiness": burstiness,
        "max_concurrency": max_concurrency,
        "duration": duration_s,
        "completed": len(good),
        "failed": len(answers) - len(good),
        "total_input_tokens": sum(answer.input_tokens for answer in good),
        "total_output_tokens": outputs,
        "request_throughput": len(good) / duration_s,
        "output_throughput": outputs / duration_s,
    }
    columns = {
        "ttft": [answer.token_s[0] - answer.sent_s for answer in good],
        "tpot": [
            (answer.token_s[-1] - answer.token_s[0]) / (answer.output_tokens - 1)
            for answer in good
            if answer.output_tokens > 1
        ],
        "e2el": [answer.token_s[-1] - answer.sent_s for answer in good],
    }
    for name, values in columns.items():
        record |= _spread(name, [1e3 * value for value in values])
    record["input_lens"] = [answer.input_tokens for answer in good]
    record["output_lens"] = [answer.output_tokens for answer in good]
    record["ttfts"] = [round(value, 6) for value in columns["ttft"]]
    record["start_times"] = [round(answer.sent_s - start_s, 6) for answer in good]
    record["latencies"] = [round(value, 6) for value in columns["e2el"]]
    return record


def _spread(name: str, values_ms: Sequence[float]) -> dict[str, float]:
    if not values_ms:
        return {}
    named = {f"p{part}_{name}_ms": float(np.percentile(values_ms, part)) for part in PERCENTILES}
    return {
        f"mean_{name}_ms": statistics.fmean(values_ms),
        f"median_{name}_ms": statistics.median(values_ms),
        f"std_{name}_ms": statistics.pstdev(values_ms),
        **named,
    }
