"""Random questions to every command that prints numbers, and the laws that no two numbers of an answer may break.

    python -m tests.fuzz.shown --seconds 600 --seed 1 [--kind estimate]

The laws: Little's law and no more served than offered; intervals around their values, parts within the whole; percentiles in order;
rows add up to their totals, an hour to a month, a GPU to all of them; no more used than allocated.
"""

import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from itertools import count, pairwise
from math import isclose, isfinite
from pathlib import Path
from random import Random
from typing import Any

import pytest

from capplan.accuracy.bounded import MOST_WIDTH
from capplan.cli.main import main as capplan
from capplan.fleet.search.search_cache import SearchCache
from capplan.money.price import HOURS_PER_MONTH
from tests.fuzz.answers import KINDS as TRAFFIC
from tests.fuzz.answers import scenario_text
from tests.fuzz.turns import Broken, laws_until_time_is_over
from tests.sweeps import share_runs, size_on_few_requests

MODELS = (
    "llama-3.1-8b", "llama-3.1-70b", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b", "Qwen/Qwen3-32B", "deepseek-v3",
    "deepseek-v3.2", "gemma-3-27b-it", "Qwen/Qwen3.6-27B", "zai-org/GLM-5", "deepseek-ai/DeepSeek-V4-Pro", "bge-m3",
)  # fmt: skip
DEVICES = ("l4", "l40s", "a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200", "mi300x")
LAYOUTS = ((), ("-tp", "2"), ("-tp", "4"), ("-tp", "8"), ("-tp", "4", "-pp", "2"), ("-dp", "8", "-ep", "8"))
ENGINES = ("vllm", "vllm", "sglang", "trtllm")
LEVERS = ("target", "answers", "max-num-seqs", "weight-dtype")
PRICES = (
    "", "", "electricity: 0.12 $/kWh", "people: 4000 $/month, overhead: 8 %", "electricity: 0.2 $/kWh, people: 900 $/month",
)  # fmt: skip
"""Further keys of prices."""
PAID = ("", "", "growth: {per_month: 5 %, months: 6}\n", "commitments: {reserved_1y: {discount: 30 %}}\n")
"""Further sections of a scenario."""
CENT = 0.005
"""[$]; sums of rows are their totals to the cent."""
LITTLE = 0.02
"""Part by which Little's law may be off."""


Law = Callable[[str, Mapping[str, Any]], Iterator[Broken]]


def records(value: Any, at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every mapping of an answer with its place."""
    if isinstance(value, dict):
        yield at, value
        for key, item in value.items():
            yield from records(item, f"{at}.{key}" if at else key)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from records(item, f"{at}[{place}]")


def numbers_of(record: Mapping[str, Any], *keys: str) -> list[float] | None:
    """Return the numbers under some keys; None unless all are there."""
    values = [record.get(key) for key in keys]
    known = [
        float(value) for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    return known if len(known) == len(keys) else None


def close(one: float, other: float, *, within: float = 1e-6, cents: float = 0.0) -> bool:
    return isclose(one, other, rel_tol=within, abs_tol=max(cents, 1e-9))


def finite(at: str, record: Mapping[str, Any]) -> Iterator[Broken]:
    """Every number is finite."""
    for key, value in record.items():
        if isinstance(value, float) and not isfinite(value):
            yield Broken("finite", f"{at}.{key} is {value}")


def in_order(at: str, record: Mapping[str, Any]) -> Iterator[Broken]:
    """Percentiles ascend, a mean lies between its extremes, and its interval holds it and is not as wide as says nothing."""
    ascending = ("min", "p50", "p90", "p95", "p99", "max")
    stated = [(key, record[key]) for key in ascending if isinstance(record.get(key), (int, float))]
    for (low, smaller), (high, larger) in pairwise(stated):
        if smaller > larger * (1.0 + 1e-9):
            yield Broken("percentiles", f"{at}: {low} {smaller:.6g} is above {high} {larger:.6g}")
    for low, middle, high in (("low", "mean", "high"), ("min", "mean", "max"), *_ranges(record)):
        known = [record[key] for key in (low, middle, high) if isinstance(record.get(key), (int, float))]
        if any(smaller > larger * (1.0 + 1e-9) for smaller, larger in pairwise(known)):
            yield Broken("intervals", f"{at}: {low}, {middle}, {high} are {known}")
    ends = numbers_of(record, "low", "mean", "high")
    if ends and ends[2] - ends[0] >= MOST_WIDTH * ends[1] > 0.0:
        yield Broken("widths", f"{at}: {ends[0]:.4g} to {ends[2]:.4g} at a mean of {ends[1]:.4g}")


def _ranges(record: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for key in record:
        if key.endswith("_low") and isinstance(record[key], (int, float)):
            name = key.removesuffix("_low")
            yield key, name, f"{name}_high"


def parts_of_a_whole(at: str, record: Mapping[str, Any]) -> Iterator[Broken]:
    """A first token is no later than the last, at the mean, at both ends and at every percentile; E2E = TTFT + (n - 1) TPOT."""
    first, token, whole = (record.get(key) for key in ("ttft_s", "tpot_s", "e2e_s"))
    if not isinstance(first, dict) or not isinstance(whole, dict):
        return
    for name in ("mean", "low", "high", "p50", "p90", "p95", "p99"):
        both = numbers_of({"first": first.get(name), "whole": whole.get(name)}, "first", "whole")
        if both and both[0] > both[1] * (1.0 + 1e-9):
            yield Broken("parts", f"{at}: {name} of TTFT {both[0]:.4g} is above that of E2E {both[1]:.4g}")
    ends = [numbers_of(part or {}, "mean", "low", "high") for part in (first, token, whole)]
    if all(ends):
        (first_s, *firsts), (token_s, *tokens), (whole_s, *wholes) = (part or [] for part in ends)
        for end, one, each, all_s in zip(("low", "high"), firsts, tokens, wholes, strict=True):
            summed = one + (whole_s - first_s) * each / token_s if token_s else one
            if not close(summed, all_s, within=1e-3):
                yield Broken("parts", f"{at}: {end} of E2E is {all_s:.4g}, of its parts {summed:.4g}")


def little(at: str, record: Mapping[str, Any]) -> Iterator[Broken]:
    """What comes in a second times how long it stays is what is there; no more is served than offered."""
    whole = record.get("e2e_s")
    mean = numbers_of(whole, "mean") if isinstance(whole, dict) else None
    for rate, there in (
        ("requests_per_s", "concurrency"), ("request_rate_per_replica", "concurrency_per_replica"), ("requests_per_s", "requests_in_flight"),
    ):  # fmt: skip
        known = numbers_of(record, rate, there)
        if mean and known and not close(known[0] * mean[0], known[1], within=LITTLE):
            yield Broken(
                "little",
                f"{at}: {rate} {known[0]:.4g} x {mean[0]:.4g} s is {known[0] * mean[0]:.4g}, {there} {known[1]:.4g}",
            )
    for served, offered in (("requests_per_s", "request_rate"), ("goodput_requests_per_s", "requests_per_s")):
        known = numbers_of(record, served, offered)
        if known and known[0] > known[1] * (1.0 + LITTLE):
            yield Broken("served", f"{at}: {served} {known[0]:.4g} is above {offered} {known[1]:.4g}")


def products(at: str, record: Mapping[str, Any]) -> Iterator[Broken]:
    """Per GPU times GPUs, per replica times replicas and an hour times the hours of a month are the total."""
    for each, factor, total in (
        ("output_tokens_per_s_per_gpu", "gpus", "output_tokens_per_s"), ("gpus_per_replica", "replicas", "gpus"),
    ):  # fmt: skip
        known = numbers_of(record, each, factor, total)
        if known and not close(known[0] * known[1], known[2], cents=0.0):
            yield Broken(
                "products",
                f"{at}: {each} {known[0]:.6g} x {factor} {known[1]:g} is not {total} {known[2]:.6g}",
            )
    each, hourly, order = record.get("usd_per_gpu_hour"), record.get("usd_per_hour"), record.get("order")
    if each and hourly and order:  # machines are whole, so GPUs that no replica uses are paid for too
        paid = each * order["gpus"] + (order.get("energy_usd_per_hour") or 0.0)
        if not close(paid, hourly, cents=CENT):
            yield Broken(
                "products", f"{at}: {order['gpus']} GPUs at {each:.6g} $/h are {paid:.6g}, not {hourly:.6g}"
            )
    hour = numbers_of(record, "usd_per_hour", "usd_per_month")
    if hour and not close(hour[0] * HOURS_PER_MONTH, hour[1], cents=CENT):
        yield Broken("month", f"{at}: {hour[0]:.6g} $/h and {hour[1]:.8g} $ a month")
    generated = numbers_of(record, "requests_per_s", "output_tokens_per_s", "output_tokens")
    if generated and not close(generated[0] * generated[2], generated[1], within=1e-3):
        yield Broken("products", f"{at}: {generated}")


def sums(at: str, record: Mapping[str, Any]) -> Iterator[Broken]:
    """Rows add up to the total next to them, and shares to one."""
    for rows, keys in (
        ("classes", ("requests_per_s", "input_tokens_per_s", "output_tokens_per_s", "requests", "finished", "shed", "unfinished")),
        ("tenants", ("usd_per_month",)),
        ("mixers", ()),
    ):  # fmt: skip
        items = record.get(rows)
        items = list(items.values()) if isinstance(items, dict) else items
        for key in keys:
            parts = [item.get(key) for item in items or () if isinstance(item, dict)]
            total = record.get(key)
            if (
                parts
                and total is not None
                and None not in parts
                and not close(sum(parts), total, cents=CENT if "usd" in key else 0.0)
            ):
                yield Broken("sums", f"{at}: {key} of {rows} add up to {sum(parts):.8g}, not {total:.8g}")
    for rows, share in (
        ("classes", "gpu_time_fraction"),
        ("tenants", "gpu_time_fraction"),
        ("groups", "share"),
        ("classes", "request_fraction"),
    ):
        items = record.get(rows)
        parts = (
            [item.get(share) for item in items if isinstance(item, dict)] if isinstance(items, list) else []
        )
        if parts and None not in parts and not close(sum(parts), 1.0):
            yield Broken("shares", f"{at}: {share} of {rows} add up to {sum(parts):.6g}")
    yield from _order(at, record)
    yield from _bill(at, record)
    yield from _stages(at, record)


def _order(at: str, record: Mapping[str, Any]) -> Iterator[Broken]:
    """Machines of an order are its price and its GPUs; groups are the GPUs and the price of their plan."""
    machines = record.get("machines")
    if (
        isinstance(machines, list)
        and machines
        and "usd_per_hour" in record
        and all("count" in row for row in machines)
    ):
        prices = [
            row["count"] * row["usd_per_hour"] for row in machines if row.get("usd_per_hour") is not None
        ]
        total = record["usd_per_hour"]
        if len(prices) == len(machines) and total is not None:
            energy = record.get("energy_usd_per_hour") or 0.0
            if not close(sum(prices) + energy, total, cents=CENT):
                yield Broken(
                    "order",
                    f"{at}: machines cost {sum(prices):.6g} and electricity {energy:.6g} $/h, not {total:.6g}",
                )
        if record.get("gpus") is not None:
            had = sum(row["count"] * row["gpus"] for row in machines)
            if had != record["gpus"]:
                yield Broken("order", f"{at}: machines have {had} GPUs, not {record['gpus']}")
    groups = record.get("groups")
    if isinstance(groups, list) and groups:
        for key in ("gpus", "usd_per_hour"):
            parts, total = [group.get(key) for group in groups], record.get(key)
            if total is not None and None not in parts and not close(sum(parts), total, cents=CENT):
                yield Broken("groups", f"{at}: {key} of groups add up to {sum(parts):.6g}, not {total:.6g}")


BILLED = ("prefill_usd", "decode_usd", "outside_usd")


def _bill(at: str, record: Mapping[str, Any]) -> Iterator[Broken]:
    """What a class or tenant uses is its parts; all of them and what is idle are the bill."""
    parts = numbers_of(record, *BILLED, "usd")
    if parts and not close(sum(parts[:-1]), parts[-1], cents=CENT):
        yield Broken("bill", f"{at}: {BILLED} are {parts[:-1]}, together {parts[-1]:.8g}")
    idle = numbers_of(record, "usd", "idle_usd", "with_idle_usd")
    if idle and not close(idle[0] + idle[1], idle[2], cents=CENT):
        yield Broken("bill", f"{at}: {idle[0]:.8g} and idle {idle[1]:.8g} are not {idle[2]:.8g}")
    for rows in ("classes", "tenants"):
        items = record.get(rows)
        if isinstance(items, list) and items and "with_idle_usd" in items[0] and "usd_per_month" in record:
            total = sum(item["with_idle_usd"] for item in items)
            if not close(total, record["usd_per_month"], cents=CENT * len(items)):
                yield Broken("bill", f"{at}: {rows} pay {total:.8g} of {record['usd_per_month']:.8g}")
            unused = sum(item["idle_usd"] for item in items)
            if record.get("idle_usd") is not None and not close(
                unused, record["idle_usd"], cents=CENT * len(items)
            ):
                yield Broken("bill", f"{at}: {rows} pay {unused:.8g} of the idle {record['idle_usd']:.8g}")
    hosted = (
        "input_usd",
        "output_usd",
        "cache_write_usd",
        "cache_read_usd",
        "storage_usd",
        "provisioned_usd",
        "outside_usd",
    )
    api = numbers_of(record, *hosted, "usd_per_month")
    if api and not close(sum(api[:-1]), api[-1], cents=CENT):
        yield Broken("hosted", f"{at}: parts are {sum(api[:-1]):.8g}, together {api[-1]:.8g}")
    own = (
        "machines_usd_per_month",
        "overhead_usd_per_month",
        "people_usd_per_month",
        "other_usd_per_month",
        "outside_usd_per_month",
    )
    costs = numbers_of(record, *own, "usd_per_month")
    if costs and not close(sum(costs[:-1]), costs[-1], cents=CENT):
        yield Broken("own", f"{at}: parts are {sum(costs[:-1]):.8g}, together {costs[-1]:.8g}")


def _stages(at: str, record: Mapping[str, Any]) -> Iterator[Broken]:
    """Every step of a waterfall leaves what the one before left without it."""
    steps = record.get("waterfall")
    if isinstance(steps, list) and steps and "left_bytes" in steps[0]:
        for before, step in pairwise(steps):
            if step["left_bytes"] is None or before["left_bytes"] is None:
                continue
            left = before["left_bytes"] + step["memory_bytes"]
            if not close(left, step["left_bytes"], within=1e-6):
                yield Broken(
                    "waterfall", f"{at}: {step['what']} leaves {step['left_bytes']:.8g}, not {left:.8g}"
                )


def allocated(at: str, record: Mapping[str, Any]) -> Iterator[Broken]:
    """What is used is no more than what is allocated, and a fraction is no more than one."""
    for used, most in (
        ("kv_bytes_total", "engine_reserved_bytes_per_sequence"), ("kv_bytes_per_gpu", "engine_reserved_bytes_per_gpu"),
        ("usable_bytes_per_gpu", "device_memory_bytes"), ("kv_bytes_available_per_gpu", "usable_bytes_per_gpu"), ("busy_replicas", "replicas"),
        ("active_parameters", "parameters"), ("finished", "requests"), ("spare_replicas", "replicas"),
    ):  # fmt: skip
        known = numbers_of(record, used, most)
        if known and used == "kv_bytes_total":
            known[0] /= record.get("sequences") or 1
        if known and known[0] > known[1] * (1.0 + 1e-9):
            yield Broken("allocated", f"{at}: {used} {known[0]:.8g} is above {most} {known[1]:.8g}")
    for key, value in record.items():
        is_share = key.endswith(("_fraction", "_probability")) and key not in MAY_BE_MORE
        if is_share and isinstance(value, (int, float)) and not -1e-9 <= value <= 1.0 + 1e-9:
            yield Broken("fractions", f"{at}.{key} is {value:.6g}")


MAY_BE_MORE = ("utilisation_fraction", "largest_error_fraction")
"""What is offered may be more than what is there, and an error more than the value."""
LAWS: tuple[Law, ...] = (finite, in_order, parts_of_a_whole, little, products, sums, allocated)


def broken_by(result: Any) -> list[Broken]:
    """Return the laws that a result breaks."""
    return [item for at, record in records(result) for law in LAWS for item in law(at, record)]


def printed(*words: str) -> Any:
    """Return what a command prints as JSON; None where it refuses."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = capplan([*words, "--format", "json"])
    if code == 1:
        raise AssertionError(f"{' '.join(words)} ended with 1: {err.getvalue()[-800:]}")
    return json.loads(out.getvalue())["result"] if out.getvalue() and code in (0, 3, 4) else None


def replica_words(random: Random) -> list[str]:
    """Return a model on a device in a layout."""
    words = [
        random.choice(MODELS),
        "--hardware",
        random.choice(DEVICES),
        *random.choice(LAYOUTS),
        "--engine",
        random.choice(ENGINES),
    ]
    if random.random() < 0.4:
        words += ["--weight-dtype", random.choice(("bf16", "fp8", "int4"))]
    return [*words, "--offline"]


def tokens(random: Random, least: int, most: int) -> int:
    return round(least * (most / least) ** random.random())


def estimate(random: Random, folder: Path) -> list[list[str]]:
    load = (
        ["--concurrency", str(tokens(random, 1, 600))]
        if random.random() < 0.6
        else ["--request-rate", f"{0.05 * 600.0 ** random.random():.3g} req/s"]
    )
    lengths = [
        "--input-tokens",
        str(tokens(random, 20, 12_000)),
        "--output-tokens",
        str(tokens(random, 2, 1500)),
    ]
    return [["estimate", *replica_words(random), *load, *lengths]]


def fit(random: Random, folder: Path) -> list[list[str]]:
    return [["fit", *replica_words(random), "--max-model-len", str(tokens(random, 500, 32_000))]]


def kv_size(random: Random, folder: Path) -> list[list[str]]:
    words = [
        random.choice(MODELS),
        "--engine",
        random.choice(ENGINES),
        "-tp",
        random.choice(("1", "2", "8")),
        "--offline",
    ]
    contexts = [str(tokens(random, 1, 130_000)) for _ in range(3)]
    return [["kv-size", *words, *(word for context in contexts for word in ("--context", context))]]


def model(random: Random, folder: Path) -> list[list[str]]:
    return [["model", random.choice(MODELS), "--offline"]]


def spec(random: Random, folder: Path) -> list[list[str]]:
    draft = random.choice(
        (["--method", "eagle"], ["--method", "ngram"], ["--draft-step-time", "1 ms", "--acceptance", "0.7"])
    )
    return [["spec", *replica_words(random), *draft]]


def cache(random: Random, folder: Path) -> list[list[str]]:
    prefix, often = str(tokens(random, 1000, 50_000)), str(tokens(random, 1, 100_000))
    return [
        [
            "cache",
            "--api",
            "anthropic/claude-sonnet-4-5",
            "--prefix-tokens",
            prefix,
            "--requests-per-day",
            often,
        ]
    ]


def closed_sweep(random: Random, folder: Path) -> list[list[str]]:
    words = [
        random.choice(MODELS[:6]),
        "--hardware",
        random.choice(DEVICES),
        "--concurrency",
        f"1,{tokens(random, 2, 300)}",
    ]
    lengths = [
        "--input-tokens",
        str(tokens(random, 20, 6000)),
        "--output-tokens",
        str(tokens(random, 2, 500)),
    ]
    return [["sweep", *words, *lengths, "--offline"]]


def planned(random: Random, folder: Path) -> list[list[str]]:
    """Return a fleet of random traffic, and what is asked of its plan."""
    text = scenario_text(random.choice(TRAFFIC), random) + random.choice(PAID)
    head, stated = text.split("prices: {", 1)
    prices, rest = stated.split("}\n", 1)
    listed = prices if random.random() < 0.5 else "commitment: on-demand, provider: any"
    more = random.choice(PRICES)
    text = f"{head}prices: {{{listed}{', ' if more else ''}{more}}}\n{rest}"
    scenario, plan = folder / "law.yaml", folder / "plan.json"
    scenario.write_text(text)
    of_plan = [
        *random.choice(
            (["bill"], ["compare"], ["simulate", "--until", "60 s"], ["check"], ["report"], ["workload"])
        )
    ]
    if of_plan == ["workload"]:
        return [["fleet", str(scenario), "--offline"], ["workload", str(scenario)]]
    last = [*of_plan, "--plan", str(plan), "--offline"]
    return [
        ["fleet", str(scenario), "--offline"],
        ["fleet", str(scenario), "--offline", "-o", str(plan)],
        last,
    ]


def levers(random: Random, folder: Path) -> list[list[str]]:
    scenario = folder / "law.yaml"
    scenario.write_text(scenario_text("open", random))
    return [["levers", str(scenario), "--lever", random.choice(LEVERS), "--offline"]]


def open_sweep(random: Random, folder: Path) -> list[list[str]]:
    scenario = folder / "law.yaml"
    scenario.write_text(scenario_text("open", random))
    return [["sweep", str(scenario), "--request-rate", f"{tokens(random, 1, 8)} req/s", "--offline"]]


DEGREES = ("tensor_parallel", "data_parallel", "expert_parallel")
"""Keys of a plan that are flags of `estimate` too."""
AGREED = 0.02
"""Part by which commands may differ on the same question."""
LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
REDRAWN = 0.1
"""Part by which `simulate` may differ from a plan of any kind of traffic: whole users, whole sessions and bursts at several replicas are drawn again.
The largest of ten random scenarios of each kind was 0.089, of one draw of sessions that users hold; of three draws it was 0.061."""
FLEET = """name: law
model: {model}
traffic: [{{name: o, request_rate: {rate} req/s, input_tokens: {input_tokens}, output_tokens: {output_tokens}}}]
slo: {{ttft_p95: 3 s, tpot_mean: 60 ms}}
fleet: {{hardware: [{device}], tensor_parallel: [{ranks}], pipeline_parallel: 1, headroom: 20 %, spare_replicas: 1}}
prices: {{per_gpu_hour: {{{device}: 4 $/h}}, electricity: 0.1 $/kWh}}
"""


def unlike(law: str, what: str, values: Mapping[str, float | None], within: float) -> Iterator[Broken]:
    """Yield what differs from the first value by more than a part of it; what is not known differs from nothing."""
    (first, reference), *others = values.items()
    for name, value in others:
        if value is not None and reference is not None and not close(value, reference, within=within):
            yield Broken(law, f"{what}: {first} says {reference:.6g}, {name} {value:.6g}")


def mean_of(latency: str, **rows: Any) -> dict[str, float | None]:
    return {name: (row[latency] or {}).get("mean") if row else None for name, row in rows.items()}


def replica_disagreements(random: Random) -> Iterator[Broken]:
    """Hold that `estimate` and `sweep` say the same of a replica with some requests in flight."""
    flags = [
        "--hardware",
        random.choice(DEVICES),
        "--engine",
        random.choice(ENGINES),
        "-tp",
        random.choice("124"),
        "--offline",
    ]
    lengths = [
        "--input-tokens",
        str(tokens(random, 20, 6000)),
        "--output-tokens",
        str(tokens(random, 2, 500)),
    ]
    words = [random.choice(MODELS[:6]), *flags, *lengths, "--concurrency", str(tokens(random, 1, 400))]
    one, points = printed("estimate", *words), printed("sweep", *words)
    if one is None or points is None or not points["plans"]:
        return
    point = points["plans"][0]["points"][0]
    asked_for = " ".join(words)
    for key in ("requests_per_s", "output_tokens_per_s", "output_tokens_per_s_per_gpu"):
        yield from unlike(
            "agree", f"{key} of {asked_for}", {"estimate": one[key], "sweep": point[key]}, AGREED
        )
    for latency in LATENCIES:
        yield from unlike(
            "agree", f"{latency} of {asked_for}", mean_of(latency, estimate=one, sweep=point), AGREED
        )


def fleet_disagreements(random: Random, folder: Path) -> Iterator[Broken]:
    """Hold that `fleet`, `levers`, `bill`, `compare`, `simulate`, `sweep` and `estimate` say the same of a plan."""
    said: dict[str, Any] = {
        "model": random.choice(MODELS[:5]),
        "device": random.choice(("l40s", "h100-sxm", "a100-sxm-80gb", "h200-sxm")),
        "rate": round(60 ** random.random(), 2),
        "ranks": random.choice((1, 1, 2, 4)),
        "input_tokens": tokens(random, 60, 4000),
        "output_tokens": tokens(random, 5, 400),
    }
    scenario, plan = folder / "law.yaml", folder / "plan.json"
    scenario.write_text(FLEET.format(**said))
    found = printed("fleet", str(scenario), "--offline")
    if not found or not found["chosen"]:
        return
    printed("fleet", str(scenario), "--offline", "-o", str(plan))
    chosen, of_plan = found["chosen"], ("--plan", str(plan), "--offline")
    levers_, bill, compare = (
        printed(*words, *of_plan) for words in (("levers", "--lever", "answers"), ("bill",), ("compare",))
    )
    own = compare and compare["own"]
    paid = {
        "fleet": chosen["usd_per_month"],
        "order": chosen["order"]["usd_per_month"],
        "levers": levers_ and levers_["base"]["usd_per_month"],
        "bill": bill and bill["usd_per_month"],
        "compare": own and own["machines_usd_per_month"],
    }
    yield from unlike("agree", f"dollars a month of {said}", paid, 1e-6)
    rate = f"{chosen['request_rate_per_replica']:.9g} req/s"
    run, swept = (
        printed("simulate", *of_plan),
        printed("sweep", str(scenario), "--request-rate", rate, "--offline"),
    )
    seen = {"fleet": chosen, "simulate": run, "levers": levers_ and levers_["base"]}
    if (
        swept and swept["plans"] and chosen["replicas"] - chosen["spare_replicas"] == 1
    ):  # arrivals dealt out in turn come more evenly
        flags = [
            "--hardware",
            said["device"],
            *(f"--{degree.replace('_', '-')}={chosen[degree]}" for degree in DEGREES),
            "--request-rate",
            rate,
            "--offline",
        ]
        lengths = ["--input-tokens", str(said["input_tokens"]), "--output-tokens", str(said["output_tokens"])]
        seen |= {
            "sweep": swept["plans"][0]["points"][0],
            "estimate": printed("estimate", said["model"], *flags, *lengths),
        }
    for latency in LATENCIES:
        yield from unlike("agree", f"{latency} of {said}", mean_of(latency, **seen), AGREED)


def simulated_over_planned(kind: str, number: int, seeds: Sequence[int] = (7,)) -> dict[str, float]:
    """Return simulated over planned less one of each mean latency of a random scenario of a kind of traffic, the mean of some draws; nothing without a plan."""
    with tempfile.TemporaryDirectory() as folder:
        scenario, plan = Path(folder) / "asked.yaml", Path(folder) / "plan.json"
        scenario.write_text(scenario_text(kind, Random(f"agreement {kind} {number}")))
        found = printed("fleet", str(scenario), "--offline")
        if not found or not found["chosen"]:
            return {}
        printed("fleet", str(scenario), "--offline", "-o", str(plan))
        runs = [
            printed("simulate", "--plan", str(plan), "--offline", "--seed", str(seed)) or {} for seed in seeds
        ]
    ratios = {}
    for name in LATENCIES:
        seen = [run[name]["mean"] for run in runs if run.get(name)]
        if seen and found["chosen"][name]:
            ratios[name] = sum(seen) / len(seen) / found["chosen"][name]["mean"] - 1.0
    return ratios


def simulated_disagreements(number: int) -> Iterator[Broken]:
    """Hold that `simulate` says the same as `fleet` of the plan of each kind of traffic: users, classes, sessions, pools and drafts, together too."""
    kind = TRAFFIC[number % len(TRAFFIC)]
    for latency, ratio in simulated_over_planned(kind, number).items():
        if abs(ratio) > REDRAWN:
            yield Broken("agree", f"{latency} of {kind} {number}: simulated {ratio:+.1%} of what is planned")


def disagreements(number: int) -> list[Broken]:
    """Return on what commands disagree of a replica or a plan that they all know."""
    random = Random(f"agree {number}")
    if number % 4 == 2:
        return list(simulated_disagreements(number // 4))
    if number % 4:
        return list(replica_disagreements(random))
    with tempfile.TemporaryDirectory() as name:
        return list(fleet_disagreements(random, Path(name)))


QUESTIONS: dict[str, tuple[Callable[[Random, Path], list[list[str]]], int]] = {
    "estimate": (estimate, 10),
    "fit": (fit, 4),
    "kv-size": (kv_size, 4),
    "model": (model, 1),
    "spec": (spec, 3),
    "cache": (cache, 1),
    "sweep": (closed_sweep, 3),
    "fleet": (planned, 6),
    "levers": (levers, 1),
    "open-sweep": (open_sweep, 1),
}
"""Kind -> what is asked, and how often next to the others."""
KINDS = (*QUESTIONS, "agree")


def asked(kind: str, number: int) -> list[Broken]:
    """Return the laws that the answers to a question of a kind and a number break."""
    random, found = Random(f"{kind} {number}"), []
    with tempfile.TemporaryDirectory() as name:
        for words in QUESTIONS[kind][0](random, Path(name)):
            result = printed(*words)
            if result is None:
                break
            found += [Broken(item.law, f"{item.words} ({' '.join(words)})") for item in broken_by(result)]
    return found


def questions(seed: int, of_kind: str | None) -> Iterator[tuple[str, int]]:
    """Yield kinds and numbers without end, each kind as often as it weighs, or only one."""
    turn = [*(kind for kind, (_, weight) in QUESTIONS.items() for _ in range(weight)), "agree", "agree"]
    for number in count(seed * len(turn)):
        if (kind := turn[number % len(turn)]) == (of_kind or kind):
            yield kind, number


def broken_by_question(kind: str, number: int, runs: SearchCache) -> list[Broken]:
    """Return the laws that the answers to a question break; questions of one run share the runs of replicas."""
    if kind == "agree":
        return disagreements(number)
    with pytest.MonkeyPatch.context() as patch:
        size_on_few_requests(patch)
        share_runs(patch, runs)
        return asked(kind, number)


if __name__ == "__main__":
    broken_in = partial(broken_by_question, runs=SearchCache())
    sys.exit(laws_until_time_is_over("shown", __doc__, KINDS, questions, broken_in))
