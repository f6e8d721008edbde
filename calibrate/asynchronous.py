"""Whether asynchronous scheduling predicts better: runs of engines that schedule so by default, replayed without it and with it.

python -m calibrate.asynchronous FOLDER/serving_measured.csv.gz FOLDER/serving_open_2026_11.csv

The host times of the engine versions were fitted on such runs without it. With it, a request waits for one step more, which the fitted time
of a request (`request_s`) already holds: so the comparison is also made with the constant taken off that suits each way best.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from calibrate.accuracy_tables import markdown, percent
from capplan.accuracy.benchmark import Benchmark, benchmark_of
from capplan.accuracy.replay import Servers, replayed_columns
from capplan.accuracy.score import Prediction, scored
from capplan.accuracy.serving import LOADS, measured_columns, row_weight
from capplan.engine.lookup import version_key
from capplan.errors import CapplanError
from capplan.questions.benchmark_spec import benchmark_servers
from capplan.questions.validation import is_core
from capplan.recorded.measured import measured_table

DEFAULT_SINCE = {"vllm": (0, 14, 0), "sglang": (0, 4, 0), "trtllm": (1, 0, 0)}
"""Engine -> release since which it plans a step while the one before it runs, unless told otherwise.

vLLM: pull request 27614, in the notes of 0.14.0; not on processors, for pooling models, or (first model runner) with pipeline stages and drafts
that are neither EAGLE, MTP nor a model (`vllm/config/vllm.py`, `vllm/platforms/cpu.py`). SGLang: its scheduler without overhead came with 0.4;
not with pipeline stages, or on processors with drafts (`srt/arg_groups/overrides.py`, `speculative_hook.py`). TensorRT-LLM: the overlap
scheduler of its PyTorch backend (`disable_overlap_scheduler`, false); n-gram drafts need it off.
"""
LATENCIES = ("ttft_ms_mean", "ttft_ms_p50", "tpot_ms_mean", "tpot_ms_p50")
SHIFTS_MS = range(0, 42, 2)
"""Constants that are tried."""


@dataclass(frozen=True, slots=True)
class Twice:
    """One measured latency, predicted both ways."""

    kind: tuple[str, str]
    """Engine and load."""
    column: str
    measured: float
    without: float
    with_it: float
    weight: float


def is_asynchronous(benchmark: Benchmark) -> bool:
    """Return whether the engine of a run plans ahead by default; what has no version is not known to."""
    key = version_key(benchmark.engine_version or "")
    return key is not None and key >= DEFAULT_SINCE[benchmark.engine] and benchmark.sharding.pipeline == 1


def twice(row: Mapping[str, str]) -> Iterator[Twice]:
    """Yield the latencies of a row of a loop, predicted both ways; nothing for other rows and engines that do not plan ahead."""
    try:
        benchmark = benchmark_of(row)
        if benchmark.kind not in ("online_conc", "online_rate") or not is_asynchronous(benchmark):
            return
        servers = benchmark_servers(benchmark)
        ways = [replayed_columns(benchmark, _scheduled(servers, ahead=ahead)) for ahead in (False, True)]
    except CapplanError:
        return
    kind = (benchmark.engine, LOADS[benchmark.kind])
    for column, measured in measured_columns(row).items():
        if column in LATENCIES and all(column in way for way in ways):
            yield Twice(kind, column, measured, ways[0][column], ways[1][column], row_weight(row))


def _scheduled(servers: Servers, *, ahead: bool) -> Servers:
    replica, decode = (
        one and replace(one, scheduling=replace(one.scheduling, asynchronous=ahead))
        for one in (servers.replica, servers.decode)
    )
    return replace(servers, replica=replica or servers.replica, decode=decode)


def table(values: Iterable[Twice]) -> str:
    """Return median errors by engine, load and latency: without it, with it, and each less the constant that suits it best."""
    groups: dict[tuple[str, str, str], list[Twice]] = {}
    for value in values:
        groups.setdefault((*value.kind, value.column), []).append(value)
    lines = []
    for (engine, load, column), group in sorted(groups.items()):
        without = [_error([(v, v.without - shift) for v in group]) for shift in SHIFTS_MS]
        with_it = [_error([(v, v.with_it - shift) for v in group]) for shift in SHIFTS_MS]
        best = (min(zip(errors, SHIFTS_MS, strict=True)) for errors in (without, with_it))
        shifted = [f"{percent(error)} at {shift} ms" for error, shift in best]
        lines.append(
            [engine, load, column, str(len(group)), percent(without[0]), percent(with_it[0]), *shifted]
        )
    headings = ["engine", "load", "latency", "values", "without", "with", "without, less a constant", "with, less a constant"]  # fmt: skip
    return markdown(headings, lines)


def _error(predicted: Iterable[tuple[Twice, float]]) -> float:
    predictions = [Prediction("", v.column, v.measured, max(p, 0.0), weight=v.weight) for v, p in predicted]
    return scored(predictions).median_ape or 0.0


def main() -> int:
    """Print the table."""
    rows = (row for path in sys.argv[1:] for row in measured_table(Path(path))[1] if is_core(row))
    print(table(value for row in rows for value in twice(row)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
