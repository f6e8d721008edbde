"""What a mix of fleets takes in CPU-seconds, and what it saves in the settings of Mélange beside the savings that the paper reports.

python benchmarks/bench_mix.py [--rate 16] [--settings short long mixed] [--tpot 120 40]

Griggs et al. 2024, "Mélange", arXiv 2404.14527: Llama-2-7B on L4, A10G, A100 and H100, TPOT of 120 and 40 ms; up to 77 % saved with conversations,
33 % with documents, 51 % with both, against a single kind. Here Llama-3.1-8B; lengths, shares and prices are assumptions.
"""

import argparse
import time
from dataclasses import replace

from capplan.fleet.answer import Mix
from capplan.questions.fleet import asked_fleet
from capplan.questions.fleet_answer import fleet_for
from capplan.readers.yaml_file import Document
from capplan.scenario.scenario import scenario_from

MOST_RATIO = 3.0
PAPER = {"short": 0.77, "long": 0.33, "mixed": 0.51}
PRICES = {"a10g": "1.01 $/h", "a100-sxm-80gb": "3.67 $/h", "h100-sxm": "7.516 $/h"}
"""Assumed prices of one GPU; not read from the paper."""
SHORT = {"input_tokens": {"mean": 330, "p95": 1000}, "output_tokens": {"mean": 200, "p95": 500}}
LONG = {"input_tokens": {"mean": 6000, "p95": 12000}, "output_tokens": {"mean": 250, "p95": 500}}
FOUR = ["l40s", "a100-sxm-80gb", "h100-sxm", "b200"]


def traffic_of(setting: str, rate: float) -> list[dict[str, object]]:
    """Requests of a setting: conversations, documents, or four of the one for each of the other."""
    shares = {"short": (1.0, 0.0), "long": (0.0, 1.0), "mixed": (0.8, 0.2)}[setting]
    kinds = (("conversations", SHORT), ("documents", LONG))
    return [
        {"name": name, "request_rate": rate * share, **lengths}
        for (name, lengths), share in zip(kinds, shares, strict=True)
        if share
    ]


def scenario_of(
    setting: str, rate: float, tpot_ms: float, fleet: dict[str, object], prices: dict[str, object]
) -> dict[str, object]:
    """The keys of a scenario."""
    return {
        "name": setting,
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "traffic": traffic_of(setting, rate),
        "slo": {"tpot_mean": f"{tpot_ms:g} ms", "confidence": 0.5},
        "fleet": {"survive": {"machine": 0}, "headroom": 0, **fleet},
        "prices": prices,
    }


def seconds_of(content: dict[str, object]) -> tuple[float, object]:
    """CPU-seconds of a search, and its answer."""
    from pathlib import Path

    asked = asked_fleet(scenario_from(Document("benchmark", content, {}), Path.cwd()), offline=True)
    begin = time.process_time()
    answer = fleet_for(replace(asked))
    return time.process_time() - begin, answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=16.0)
    parser.add_argument("--settings", nargs="+", default=list(PAPER))
    parser.add_argument("--tpot", nargs="+", type=float, default=[120.0, 40.0])
    options = parser.parse_args()
    on_demand: dict[str, object] = {"commitment": "on-demand"}
    plain, mixed = (
        seconds_of(scenario_of("mixed", options.rate, 60.0, {"hardware": FOUR, "mix": by}, on_demand))
        for by in ("off", "any")
    )
    ratio = mixed[0] / plain[0]
    print(
        f"four kinds: {plain[0]:.1f} CPU-seconds without a mix, {mixed[0]:.1f} with one, ratio {ratio:.2f} (target {MOST_RATIO:g})"
    )
    print(
        "setting  TPOT (ms)  single kinds ($/h)  mix ($/h)  saved against the cheapest, the dearest  paper, up to"
    )
    for setting in options.settings:
        for tpot_ms in options.tpot:
            fleet: dict[str, object] = {"hardware": list(PRICES), "mix": "any", "tensor_parallel": 1}
            _, answer = seconds_of(
                scenario_of(setting, options.rate, tpot_ms, fleet, {"per_gpu_hour": PRICES})
            )
            kinds: dict[str, float] = {}
            for plan in (plan for plan in (*answer.plans, *answer.dear) if not plan.is_mix):
                kinds[plan.hardware] = min(kinds.get(plan.hardware, plan.usd_per_hour), plan.usd_per_hour)
            least, most = min(kinds.values()), max(kinds.values())
            usd = answer.mix.usd_per_month / 730.0 if isinstance(answer.mix, Mix) else least
            shown = ", ".join(f"{name} {cost:.2f}" for name, cost in sorted(kinds.items()))
            print(
                f"{setting:7}  {tpot_ms:9g}  {shown}  {usd:.2f}  {1 - usd / least:.0%}, {1 - usd / most:.0%}  {PAPER[setting]:.0%}"
            )


if __name__ == "__main__":
    main()
