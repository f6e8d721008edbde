"""Detect which tool wrote a result file, and read it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from capplan.errors import InputError
from capplan.recorded.results import engines, load_generators
from capplan.recorded.results.record import CLOCK_STEP_S, BenchmarkResult, Row, result_objects
from capplan.workload.statistics import LONGEST_TOKENS

MOST = 1e12
"""Largest count, rate or time in seconds."""
KNOWN_TOOLS = (
    "vllm bench serve|latency|throughput, SGLang bench_serving|bench_one_batch, AIPerf, GenAI-Perf, GuideLLM, "
    "inference-perf, trtllm-bench, llama-bench, llama-batched-bench, llm-d benchmark report, InferenceX"
)


def read_results(path: str | Path, **stated: Any) -> list[BenchmarkResult]:
    """Return the results of one file of any known tool.

    Parameters
    ----------
    path : the file: JSON, JSON lines, YAML, CSV or Markdown of llama.cpp, plain or gzipped
    stated : fields of `BenchmarkResult` to use where the file does not say, such as
        ``hardware="h100-sxm"`` or ``tensor_parallel=4``

    Returns
    -------
    one record per run in the file, in its order
    """
    place = str(path)
    values = result_objects(path)
    if not values:
        raise InputError(f"{place}: the file holds no results")
    for index, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise InputError(
                f"{place}: item {index} is {type(value).__name__}, not the result of a benchmark"
            )
    results = _whole_file(values, place)
    if results is None:
        results = [result for value in values for result in _object(value, place)]
    for result in results:
        _refuse_impossible(result)
    return [completed(result, **stated) for result in results]


def _refuse_impossible(result: BenchmarkResult) -> None:
    """Raise the error for a figure that no benchmark can have measured."""
    numbers = [(field.name, getattr(result, field.name)) for field in fields(result)]
    for latency in ("ttft_s", "tpot_s", "e2e_s"):
        spread = getattr(result, latency)
        numbers += [(f"{latency} {field.name}", getattr(spread, field.name)) for field in fields(spread)]
    for name, value in numbers:
        most = LONGEST_TOKENS if name in ("input_tokens", "output_tokens", "context_tokens") else MOST
        if isinstance(value, (int, float)) and not 0.0 <= value <= most:
            raise InputError(f"{result.path}: {name} comes out as {value:g}, which cannot be")
    times = [("the mean request", result.ttft_s.mean, result.e2e_s.mean)]
    times += [(f"request {number} of the log", r.ttft_s, r.e2e_s) for number, r in enumerate(result.log, 1)]
    for name, ttft_s, e2e_s in times:
        if ttft_s is not None and e2e_s is not None and ttft_s > e2e_s + CLOCK_STEP_S:
            raise InputError(
                f"{result.path}: {name} has its first token after {ttft_s:g} s and its end after {e2e_s:g} s, which cannot be"
            )


def completed(result: BenchmarkResult, **stated: Any) -> BenchmarkResult:
    """Return the result with missing fields filled in; a stated model always replaces that of the file.

    The model in a file is the name that it was served under, which may be an alias.

    Examples
    --------
    >>> completed(BenchmarkResult("t", "p", tensor_parallel=2), tensor_parallel=8, hardware="h100").tensor_parallel
    2
    """
    given = {key: value for key, value in stated.items() if value is not None}
    return replace(
        result,
        **{key: value for key, value in given.items() if key == "model" or getattr(result, key) is None},
    )


def request_log(path: str | Path) -> tuple[Row, ...]:
    """Return the requests of a result file that kept them (detailed results, AIPerf's JSON lines).

    Returns
    -------
    finished requests in order of arrival; times in seconds since the first
    """
    log = [request for result in read_results(path) for request in result.log]
    if not log:
        raise InputError(
            f"{path}: no list of requests in this result\n"
            "  write it with --save-detailed (vLLM), --output-details (SGLang), or give AIPerf's profile_export.jsonl"
        )
    return tuple(sorted(log, key=lambda request: request.arrival_s))


def _whole_file(values: Sequence[Mapping[str, Any]], path: str) -> list[BenchmarkResult] | None:
    first = values[0]
    if "metadata" in first and "metrics" in first and "benchmarks" not in first:
        return [load_generators.aiperf_log(values, path)]
    if "Metric" in first and "avg" in first:
        return [load_generators.aiperf_csv(values, path)]
    return None


_Reader: TypeAlias = Callable[[Mapping[str, Any], str], BenchmarkResult | list[BenchmarkResult]]
_TOOLS: tuple[tuple[set[str], set[str], _Reader], ...] = (
    ({"benchmarks"}, set(), load_generators.guidellm_report),
    ({"version", "scenario"}, {"metrics", "results"}, load_generators.llmd_report),
    ({"successes", "load_summary"}, set(), load_generators.inference_perf_stage),
    ({"engine"}, {"world_info", "performance"}, engines.trtllm_report),
    (set(), {"n_prompt", "n_gen", "avg_ns"}, engines.llama_bench_result),
    ({"pp", "tg", "pl", "t_pp", "t_tg"}, set(), engines.batched_bench_result),
    ({"request_throughput.*"}, set(), load_generators.aiperf_summary),
    ({"hw", "conc"}, set(), engines.inferencex_row),
    ({"avg_latency"}, set(), engines.vllm_latency),
    ({"elapsed_time", "num_requests"}, set(), engines.vllm_throughput),
    ({"batch_size", "input_len"}, set(), engines.sglang_one_batch),
    (set(), {"total_throughput", "mean_e2e_latency_ms", "sharegpt_output_len"}, engines.sglang_serving),
    (set(), {"completed", "mean_ttft_ms", "output_throughput", "num_prompts"}, engines.vllm_serve),
)
"""Keys that a tool's object has, keys of which it has at least one, and its reader; the first that fits is taken. `.*`
marks a key that holds an object."""


def _object(values: Mapping[str, Any], path: str) -> list[BenchmarkResult]:
    keys = {str(key) for key in values}
    present = keys | {f"{key}.*" for key, value in values.items() if isinstance(value, Mapping)}
    for needed, one_of, read in _TOOLS:
        if needed <= present and (not one_of or one_of & present):
            results = read(values, path)
            return results if isinstance(results, list) else [results]
    shown = ", ".join(sorted(keys)[:6]) or "none"
    raise InputError(
        f"{path}: not a result of a known tool (its keys start with: {shown})\n  known: {KNOWN_TOOLS}"
    )
