"""How far two runs of one question lie apart when only the draw of arrivals differs, as with `--seed`.

    python -m benchmarks.bench_draws [--seeds 8]

Each row is a model at a rate; the standard deviation between seeds is a part of the mean.
"""

import argparse
from dataclasses import replace

import numpy as np

import capplan
from capplan.replica import estimate
from capplan.replica.load import Load
from capplan.serving.requests import Requests

QUESTIONS = (
    # model, device, input and output tokens, rates [req/s] at about half, 85 % and 100 % of what a replica carries
    ("llama-3.1-8b", "h100-sxm", 2500, 500, (3.0, 5.5, 6.5)),
    ("Qwen/Qwen3-32B", "h200-sxm", 1000, 200, (2.0, 5.0, 7.0)),
)
LATENCIES = ("ttft_s", "tpot_s", "e2e_s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=8)
    seeds = parser.parse_args().seeds
    drawn = estimate.requests_for
    for model, device, prompt, answer, rates in QUESTIONS:
        for rate in rates:
            means = []
            for seed in range(1, seeds + 1):

                def of_seed(load: Load, in_flight: float = 0.0, seed: int = seed) -> tuple[Requests, int]:
                    return drawn(replace(load, seed=seed), in_flight)

                estimate.requests_for = of_seed
                found = capplan.estimate(
                    model, device, input_tokens=prompt, output_tokens=answer, request_rate=rate, offline=True
                ).data
                means.append([found[name]["mean"] for name in LATENCIES])
            mean, deviation = np.mean(means, axis=0), np.std(means, axis=0, ddof=1)
            parts = ", ".join(
                f"{name} {middle:.4g} +- {spread / middle:.1%}"
                for name, middle, spread in zip(LATENCIES, mean, deviation, strict=True)
            )
            print(f"{model} on {device}, {rate:g} req/s: {parts}", flush=True)
    estimate.requests_for = drawn


if __name__ == "__main__":
    main()
