"""How fast a request trace is read by columns against line by line, and what simulating one takes as a whole process.

python benchmarks/bench_traces.py [--requests 100000] [--long 1000000, 0 leaves it out]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from capplan.errors import InputError
from capplan.recorded.traces import rows as delimited
from capplan.recorded.traces.rows import parts_of
from capplan.workload.statistics import Omissions

TARGET_S, TARGET_BYTES = 2.0, 500e6
SCENARIO = """
name: replay
model: meta-llama/Llama-3.1-70B-Instruct
weight_dtype: fp8
kv_dtype: fp8
engine: vllm
traffic:
  - {name: chat, trace: TRACE}
slo: {ttft_p95: 800 ms, tpot_p95: 40 ms}
fleet: {hardware: [b200]}
"""


def table_of(count: int, path: Path, *, dates: bool) -> Path:
    """Write a table of requests that come ten a second, with seconds or dates."""
    rng = np.random.default_rng(1)
    arrival = np.cumsum(rng.exponential(0.1, count))
    tokens = zip(rng.integers(1, 6000, count).tolist(), rng.integers(1, 800, count).tolist(), strict=True)
    stamps = map(repr, arrival.tolist())
    if dates:
        micro = np.datetime64("2024-05-10T00:00:00", "us") + (arrival * 1e6).astype(np.int64)
        stamps = (f"{stamp}+00:00" for stamp in np.datetime_as_string(micro).tolist())
    with path.open("w") as file:
        file.write("timestamp,input_tokens,output_tokens\n")
        file.writelines(
            f"{at},{prompt},{output}\n" for at, (prompt, output) in zip(stamps, tokens, strict=True)
        )
    return path


def line_by_line(path: Path) -> Iterator[tuple[int, bytes]]:
    """Have no blocks, so that a table is read line by line."""
    raise InputError(f"{path}: no blocks")
    yield 0, b""


def reading_s(path: Path) -> float:
    """Return the time to read a table."""
    omissions = Omissions()
    begin = time.process_time()
    for _ in parts_of(delimited.table_rows(path, omissions), omissions, "trace"):
        pass
    return time.process_time() - begin


def compare_reading(name: str, path: Path, count: int) -> None:
    """Print what a table takes by columns and line by line."""
    columns_s = reading_s(path)
    by_blocks = delimited.blocks_of
    delimited.blocks_of = line_by_line
    lines_s = reading_s(path)
    delimited.blocks_of = by_blocks
    print(
        f"{name:34} {columns_s:6.3f} s by columns, {lines_s / columns_s:5.1f} times as long line by line "
        f"({columns_s / count * 1e6:.2f} us a row)"
    )


def whole_process(trace: Path, replicas: int) -> tuple[float, float]:
    """Return wall time [s] and peak memory [B] of `capplan simulate` for a trace."""
    scenario = trace.with_suffix(".yaml")
    scenario.write_text(SCENARIO.replace("TRACE", str(trace)))
    plan = ["--hardware", "b200", "-tp", "2", "--replicas", str(replicas), "--offline"]
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "capplan", "simulate", str(scenario), *plan],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, _, usage = os.wait4(process.pid, 0)
    return time.perf_counter() - begin, usage.ru_maxrss * 1024.0


def main() -> None:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--long", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        short_s, _ = whole_process(table_of(100, folder / "100.csv", dates=False), 8)
        print(f"{'simulate a trace of 100':34} {short_s:6.2f} s as a whole process")
        for count in (arguments.requests, arguments.long):
            if not count:
                continue
            seconds = table_of(count, folder / f"{count}.csv", dates=False)
            compare_reading(f"{count} rows with seconds", seconds, count)
            compare_reading(
                f"{count} rows with dates", table_of(count, folder / "dates.csv", dates=True), count
            )
            for replicas in (8, 1):
                process_s, peak = whole_process(seconds, replicas)
                print(
                    f"{f'simulate {count} on {replicas}':34} {process_s:6.2f} s as a whole process "
                    f"(target of 100,000: {TARGET_S:g} s), {process_s / short_s:4.1f} times a trace of 100, "
                    f"peak memory {peak / 1e6:.0f} MB (target {TARGET_BYTES / 1e6:.0f} MB)"
                )


if __name__ == "__main__":
    main()
