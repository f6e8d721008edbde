"""Results of `llama-bench -o json|jsonl|csv`: prefill (pp), decode (tg) and both (pg), one sequence."""

from collections.abc import Mapping
from typing import Any

from capplan.errors import InputError
from capplan.recorded.results.record import BenchmarkResult, ResultValues, Spread

TOOL = "llama-bench"


def row_result(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return one row; ``avg_ns`` is the time of the whole test, ``n_depth`` the context already in the cache."""
    document = ResultValues(path, values)
    prompt = document.needed("n_prompt", tool=TOOL)
    generated = document.needed("n_gen", tool=TOOL)
    if not prompt and not generated:
        raise InputError(f"{document.where('n_prompt')} and n_gen are 0, so this row measured nothing")
    seconds = document.needed("avg_ns", tool=TOOL) * 1e-9
    depth = document.number("n_depth") or 0.0
    tokens_per_s = document.number("avg_ts")
    result_kind: Any = "static_batch" if prompt and generated else "prefill" if prompt else "decode"
    mean_context = depth + generated / 2.0 if result_kind == "decode" else depth
    return BenchmarkResult(
        tool=TOOL,
        path=path,
        kind=result_kind,
        model=document.text("model_type", "model_filename"),
        engine="llama.cpp",
        hardware=document.text("gpu_info", "cpu_info"),
        concurrency=1.0,
        requests=1,
        input_tokens=prompt,
        output_tokens=generated,
        context_tokens=mean_context,
        ttft_s=Spread(seconds) if result_kind == "prefill" else Spread(),
        tpot_s=Spread(seconds / generated) if result_kind == "decode" else Spread(),
        e2e_s=Spread(seconds) if result_kind == "static_batch" else Spread(),
        output_tokens_per_s=tokens_per_s if result_kind == "decode" else None,
        total_tokens_per_s=tokens_per_s,
    )
