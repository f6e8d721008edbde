"""What planning whole machines costs: CPU-seconds of a search for an order over those of a search for GPUs by the piece, in one run.

python benchmarks/bench_orders.py [--scenario scenarios/support-chat.yaml] [--runs 3]

Both search the same question. By the piece, a GPU costs what it costs in the order and one replica may fail, as before there were machines; the others
survive a machine, in the machines of the middle offer and in those of one provider. A mix over four kinds is measured against the search without it.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from capplan.money.order import Survival
from capplan.questions.fleet import AskedFleet, asked_fleet
from capplan.questions.fleet_answer import fleet_for
from capplan.scenario.scenario import read_scenario

ROOT = Path(__file__).resolve().parents[1]
MOST_RATIO = {"order": 1.5, "mix": 3.0}
FOUR = "fleet.hardware=[l40s, a100-sxm-80gb, h100-sxm, b200]"


def asked_with(path: Path, *settings: str) -> AskedFleet:
    """The question of a scenario."""
    return asked_fleet(read_scenario(path, settings), offline=True)


def by_the_piece(asked: AskedFleet) -> AskedFleet:
    """The same question for GPUs by the piece, of which one replica may fail."""
    prices = {name: price and replace(price, machines=()) for name, price in asked.prices.items()}
    limits = replace(asked.scenario.fleet, survive=Survival("replica", 1))
    return replace(asked, scenario=replace(asked.scenario, fleet=limits), prices=prices)


def least_seconds(ask: Callable[[], AskedFleet], runs: int) -> tuple[float, str]:
    """Least CPU-seconds of some runs, reading the scenario and the price lists included, and the plan."""
    times, plan = [], ""
    for _ in range(runs):
        begin = time.process_time()
        chosen = fleet_for(ask()).chosen
        times.append(time.process_time() - begin)
        plan = f"{chosen.gpus} x {chosen.hardware}" if chosen else "no plan"
    return min(times), plan


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scenario", type=Path, default=ROOT / "scenarios" / "support-chat.yaml")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    path, runs = options.scenario, options.runs
    asked_with(path)
    for name, settings in (("middle offer", ()), ("AWS", ("fleet.providers=[AWS]",))):
        before, plan = least_seconds(
            lambda settings=settings: by_the_piece(asked_with(path, *settings)), runs
        )
        print(f"{name + ', by the piece':24}  {before:6.2f} CPU-seconds: {plan}")
        seconds, plan = least_seconds(lambda settings=settings: asked_with(path, *settings), runs)
        print(
            f"{name + ', order':24}  {seconds:6.2f} CPU-seconds: {plan}; ratio {seconds / before:.2f} (target {MOST_RATIO['order']:g})"
        )
    alone, plan = least_seconds(lambda: asked_with(path, FOUR), runs)
    print(f"four kinds                {alone:6.2f} CPU-seconds: {plan}")
    for by in ("lengths", "shares", "any"):
        seconds, plan = least_seconds(lambda by=by: asked_with(path, FOUR, f"fleet.mix={by}"), runs)
        print(
            f"four kinds, mix: {by:8} {seconds:6.2f} CPU-seconds: {plan}; ratio {seconds / alone:.2f} (target {MOST_RATIO['mix']:g})"
        )


if __name__ == "__main__":
    main()
