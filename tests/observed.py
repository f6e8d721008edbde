"""What engines did, as a Prometheus server would tell it: a steady rate, lognormal lengths, and latencies in buckets."""

import math

from capplan.recorded.traces.prometheus import Scrape, summary_of_scrape
from capplan.recorded.traces.prometheus_server import Observed
from capplan.workload.length import lognormal_sigma
from capplan.workload.statistics import Omissions, RateSummary

LATENCY = {"ttft": (0.05, 0.1, 0.5), "tpot": (0.005, 0.01, 0.05)}
NAMES = {"ttft": "vllm:time_to_first_token_seconds", "tpot": "vllm:request_time_per_output_token_seconds"}


def shares_of(mean):
    """Yield the shares of lognormal lengths, whose p95 is three times the mean, up to bounds 2 % apart."""
    sigma = float(lognormal_sigma(mean, 3 * mean, 0.95))
    middle = math.log(mean) - sigma**2 / 2
    for step in range(-250, 150):
        bound = mean * 1.02**step
        yield bound, 0.5 * (1 + math.erf((math.log(bound) - middle) / (sigma * math.sqrt(2))))
    yield math.inf, 1.0


def seen_of(
    rate=20.0,
    tokens=(400.0, 100.0),
    hits=0.0,
    ttft_s=0.02,
    tpot_s=0.003,
    late=0.0,
    engines=3.0,
    seconds=86_400.0,
    spread=True,
):
    """Return what engines did: a steady rate, all latencies in the first bucket but a share in the last one."""
    scrape, count = Scrape(), rate * seconds
    lengths = {"vllm:request_prompt_tokens": tokens[0], "vllm:request_generation_tokens": tokens[1]}
    for name, mean in lengths.items() if spread else ():
        scrape.buckets[name] = {bound: count * share for bound, share in shares_of(mean)}
    for name, mean in {**lengths, NAMES["ttft"]: ttft_s, NAMES["tpot"]: tpot_s}.items():
        scrape.values[f"{name}_count"], scrape.values[f"{name}_sum"] = count, count * mean
    scrape.values |= {
        "vllm:request_success_total": count,
        "vllm:prefix_cache_queries_total": count * tokens[0],
        "vllm:prefix_cache_hits_total": count * tokens[0] * hits,
    }
    rates = RateSummary(seconds, rate, rate, None, None, (rate,) * 24)
    summary = summary_of_scrape(scrape, "http://127.0.0.1:9090", rates, [], Omissions())
    buckets = {
        name: {
            bounds[0]: count * (1 - late),
            bounds[1]: count * (1 - late),
            bounds[2]: count,
            float("inf"): count,
        }
        for name, bounds in LATENCY.items()
    }
    return Observed("http://127.0.0.1:9090", seconds, 300.0, summary, buckets, engines=engines)
