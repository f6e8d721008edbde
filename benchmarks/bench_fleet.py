"""How many candidate points per second the fleet search reaches on one core, and how much memory 100,000 points take.

python benchmarks/bench_fleet.py [--scenario scenarios/support-chat.yaml] [--runs 5]
"""

import argparse
import resource
import time
from dataclasses import replace
from pathlib import Path

from capplan.errors import Refusal
from capplan.fleet.review import Question
from capplan.fleet.search.candidates import Ranges, layouts
from capplan.fleet.search.layouts import search
from capplan.fleet.search.steady_plans import LOADS
from capplan.model.weight_format import in_weight_format
from capplan.questions.fleet import asked_fleet
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device, device_names
from capplan.readers.catalogue.models import read_model
from capplan.scenario.scenario import read_scenario

TARGET_POINTS_PER_S = 100_000
TARGET_BYTES = 400e6
MANY_POINTS = 100_000
ROOT = Path(__file__).resolve().parents[1]


def wide_question(question: Question, model: str) -> Question:
    """The same workload over every NVIDIA and AMD device, three weight dtypes, two KV dtypes, TP 1-8 and PP 1-4."""
    shipped = read_model(model, offline=True)
    devices = [device(name) for name in device_names()]
    devices = [gpu for gpu in devices if gpu.vendor.lower() in {"nvidia", "amd"}]
    return replace(
        question,
        networks={"auto": shipped, **{name: in_weight_format(shipped, name) for name in ("fp8", "int4")}},
        devices=devices,
        efficiencies={gpu.name: efficiency_for(gpu) for gpu in devices},
        kv_formats=("bf16", "fp8"),
        ranges=Ranges((1, 2, 4, 8), (1, 2, 3, 4)),
    )


def refused_points(question: Question) -> int:
    """Points of layouts that are not legal."""
    ranges = question.ranges
    return LOADS * sum(
        sum(layouts(network, question.devices, replace(ranges, weight_formats=(name,), kv_formats=(kv,)), question.profile)[1].values())
        for name, network in question.networks.items()
        for kv in question.kv_formats
    )  # fmt: skip


def best_seconds(question: Question, runs: int) -> tuple[float, int, int]:
    """Least time of several runs, the points of each, and those among them whose steps are timed.

    The others were refused before: layouts that are not legal, weights or caches that do not fit.
    """
    times, points, timed = [], 0, 0
    for _ in range(runs):
        begin = time.process_time()
        result = search(question)
        times.append(time.process_time() - begin)
        points = result.evaluated
        memory = sum(n for (_, reason), n in result.rejected.items() if reason.code is Refusal.MEMORY)
        timed = points - memory - refused_points(question)
    return min(times), points, timed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scenario", type=Path, default=ROOT / "scenarios" / "support-chat.yaml")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    scenario = read_scenario(options.scenario)
    own = asked_fleet(scenario, offline=True).question
    wide = wide_question(own, scenario.model)
    search(own)
    loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for name, question in (("scenario", own), ("wide", wide)):
        seconds, points, timed = best_seconds(question, options.runs)
        rate = points / seconds
        print(f"{name:8} {points:7,} points in {1e3 * seconds:7.1f} ms: {rate:9,.0f} points/s", end=" ")
        print(f"({rate / TARGET_POINTS_PER_S:.2f} x the target of {TARGET_POINTS_PER_S:,})", end="; ")
        print(f"the {timed:,} that fit alone: {timed / seconds / TARGET_POINTS_PER_S:.2f} x")
    total = 0
    while total < MANY_POINTS:
        total += search(wide).evaluated
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"memory   {peak / 1e6:.0f} MB at its peak over {total:,} points, {loaded / 1e6:.0f} MB of it before the search",
        end=" ",
    )
    print(f"({peak / TARGET_BYTES:.2f} x the allowed {TARGET_BYTES / 1e6:.0f} MB)")


if __name__ == "__main__":
    main()
