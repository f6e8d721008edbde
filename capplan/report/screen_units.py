"""The unit of every quantity by its name: in base units, and with heading and scale as a screen shows it.

The name of a column says its unit (`ttft_s`, `kv_bytes_per_token`, `usd_per_hour`), so that no
table has to say it again. This is the only place where results get prefixes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Unit(NamedTuple):
    """The unit that the last words of a name state."""

    base: str
    """Base unit, in which JSON, CSV and `explain` have values."""
    screen: str = ""
    """Unit in tables; empty: they show the whole name."""
    factor: float = 1.0
    """Shown = value x factor."""
    heading: str = ""
    """Heading where nothing is left of the name."""


UNITS: Mapping[str, Unit] = {
    "usd_per_gpu_hour": Unit("$/GPU/h", "$/GPU/h", heading="price"),
    "usd_per_unit_hour": Unit("$/h", "$/unit/h", heading="price"),
    "usd_per_hour": Unit("$/h", "$/h", heading="price"),
    "usd_per_day": Unit("$", "$/day", heading="price"),
    "usd_per_month": Unit("$", "$/month", heading="price"),
    "usd_per_year": Unit("$", "$/year", heading="price"),
    "usd_per_job": Unit("$", "$/job", heading="price"),
    "usd_over_horizon": Unit("$"),
    "usd_after_horizon": Unit("$"),
    "usd_per_month_saved": Unit("$"),
    "usd_per_gb_month": Unit("$/GB/month"),
    "usd_per_kwh": Unit("$/kWh"),
    "usd_per_thousand_requests": Unit("$/1000 requests", "$/1,000 req", heading="price"),
    "usd_per_thousand_conversations": Unit("$/1000 conversations"),
    "usd_per_million_output_tokens": Unit("$/10^6 token", "$/Mtok out", heading="price"),
    "usd_per_million_input_tokens": Unit("$/10^6 token", "$/Mtok in", heading="price"),
    "usd_per_million_tokens_hour": Unit("$/10^6 token/h"),
    "usd_per_million_tokens": Unit("$/10^6 token", "$/Mtok", heading="price"),
    "usd_each": Unit("$", "$/unit", heading="price"),
    "usd": Unit("$", "$", heading="price"),
    "kwh_per_million_output_tokens": Unit("kWh/10^6 token", "kWh/Mtok out", heading="energy"),
    "kwh_per_million_tokens": Unit("kWh/10^6 token", "kWh/Mtok", heading="energy"),
    "kwh_per_month": Unit("kWh", "kWh/month", heading="energy"),
    "kwh_per_job": Unit("kWh", "kWh/job", heading="energy"),
    "joules_per_output_token": Unit("J/token", "J/tok out", heading="energy"),
    "joules": Unit("J", "J", heading="energy"),
    "kg_co2_per_kwh": Unit("kg/kWh"),
    "kg_co2_per_month": Unit("kg", "kg/month", heading="CO2"),
    "kg_co2_per_job": Unit("kg", "kg/job", heading="CO2"),
    "watts": Unit("W", "W", heading="power"),
    "w": Unit("W", "W", heading="power"),
    "flop_per_byte": Unit("FLOP/B", "FLOP/B", heading="intensity"),
    "tokens_per_s": Unit("token/s", "tok/s", heading="tokens"),
    "requests_per_s": Unit("1/s", "req/s", heading="requests"),
    "request_rate": Unit("1/s", "req/s", heading="requests"),
    "rate": Unit("1/s"),
    "fraction": Unit("-", "%", 100.0, "share"),
    "probability": Unit("-", "%", 100.0, "probability"),
    "ape": Unit("-", "%", 100.0, "error"),
    "bias": Unit("-", "%", 100.0, "bias"),
    "within_20": Unit("-", "%", 100.0, "within 20%"),
    "coverage": Unit("-", "%", 100.0, "coverage"),
    "decline": Unit("-", "%", 100.0, "yearly fall"),
    "stored_token_hours": Unit("10^6 token h"),
    "tokens": Unit("token", "tokens", heading="tokens"),
    "hours": Unit("h"),
    "hours_to_repair": Unit("h"),
    "seconds": Unit("s", "s", heading="time"),
    "s": Unit("s", "s", heading="time"),
}
"""Last words of a name -> its unit, the one place that says it: tables, headings and `explain` read it. Bytes and FLOP get their prefix by size."""
TITLES: Mapping[str, str] = {
    "adapter_bytes_per_gpu": "one adapter, per GPU",
    "adapter_elements": "elements of one LoRA adapter",
    "adapters_that_fit": "adapters next to one sequence of maximum length",
    "added_gpus": "GPUs to buy",
    "arrival_cv": "burstiness (cv)",
    "batch_mean": "mean batch in steps",
    "breakeven_request_rate": "fleet is cheaper from",
    "breakeven_requests": "pays from request",
    "burst_gpus": "GPUs for the burst",
    "burst_replicas": "replicas for the burst",
    "bytes_per_request": "each prompt",
    "cache_read_usd": "cache reads",
    "cache_read_usd_per_million_tokens": "cache reads",
    "cache_tokens_per_replica": "KV cache of a replica",
    "cache_write_usd": "cache writes",
    "cached_tokens": "cached, mean",
    "cached_usd_per_day": "a day with caching",
    "choice": "",
    "concurrency_per_replica": "mean concurrency of a replica at peak",
    "cost_usd": "cost by the mix",
    "decode_load_fraction": "links of decode",
    "design_watts": "servers at the wall, at most",
    "draft_kv_bytes_per_sequence_per_gpu": "cache of one sequence, draft",
    "draft_s": "drafting",
    "driver_memory_bytes": "memory reported by the driver",
    "energy_usd_per_hour": "electricity",
    "engine_reserved_bytes_per_gpu": "allocated",
    "engine_reserved_bytes_per_sequence": "allocated",
    "expected_tokens_per_round": "tokens per round",
    "facility_watts": "with cooling and losses",
    "failed_replicas": "replicas that may fail",
    "gpu_price_ratio": "price over that of today",
    "gpu_time_fraction": "of the GPU time",
    "gpu_watts": "GPUs, mean",
    "gpus_per_replica": "GPUs each",
    "host_memory_usd_per_month": "memory",
    "input_tokens.mean": "input, mean",
    "input_tokens.p95": "input, p95",
    "interest_usd": "interest on upfront parts",
    "interval_coverage": "in the 80% interval",
    "job_hours": "hours of the job",
    "joules_per_output_token": "an output token, its prompt included",
    "kg_co2_per_job": "carbon dioxide",
    "kg_co2_per_month": "carbon dioxide",
    "kv_bytes_available_alone_per_gpu": "available for the cache without a draft",
    "kv_bytes_per_gpu": "used",
    "kv_bytes_per_sequence": "used",
    "kv_bytes_total": "total",
    "kwh_per_million_output_tokens": "a million output tokens, their prompts included",
    "kwh_per_million_tokens": "a million tokens, input and output",
    "largest_load_that_holds": "largest load within targets (predicted)",
    "left_bytes": "available",
    "limit_request_rate": "maximum rate of one replica within the targets, as predicted",
    "link_bytes_per_s": "link, each way",
    "link_domain_devices": "devices on the link",
    "longest_context_tokens": "longest context of a single sequence",
    "n_gpu_layers": "--n-gpu-layers",
    "n_cpu_moe": "--n-cpu-moe",
    "host_weight_bytes": "weights on the host",
    "lora_bytes_per_gpu": "all slots, among the weights, per GPU",
    "max_concurrency_alone": "concurrent sequences without a draft",
    "max_loras": "slots of adapters",
    "mean_ape": "mean error",
    "mean_request_rate": "mean rate",
    "median_ape": "median error",
    "memory_bytes_per_s": "bandwidth",
    "mix_usd_per_month": "with the mix",
    "network_bytes_per_s": "network, each way",
    "node_devices": "devices per server",
    "of_roof_fraction": "of the roof",
    "output_million_tokens_per_job": "output (Mtok)",
    "output_million_tokens_per_month": "output (Mtok/month)",
    "output_tokens.mean": "output, mean",
    "output_tokens.p95": "output, p95",
    "p90_ape": "90th percentile",
    "pcie_bytes_per_s": "PCIe, each way",
    "per_device": "on one GPU",
    "per_rack": "in a rack",
    "plan": "layout",
    "planned_request_rate": "planned rate of one replica",
    "planned_requests_per_s": "load planned for",
    "predicted_replicas": "replicas for the peak, with headroom",
    "prefill_load_fraction": "links of prefill",
    "price_basis": "price from",
    "price_ratio": "ratio to chosen",
    "provisioned_usd": "throughput",
    "rack_watts": "a full rack at design power",
    "reported_memory_bytes": "memory visible to an engine",
    "request_fraction": "share of requests",
    "requests_short_fraction": "requests over capacity",
    "reserved_bytes_per_sequence": "cache of one such sequence, per GPU",
    "residual_usd": "residual value",
    "saved_usd_per_month": "saved in a month",
    "server_watts": "with their servers",
    "short_fraction": "arrive while replicas start",
    "slo_met_probability": "chance to meet the SLO",
    "spare_replicas": "spare",
    "storage_usd": "cache storage",
    "target_kv_bytes_per_sequence_per_gpu": "cache of one sequence, target",
    "target_step_s": "plain step",
    "tdp_watts": "maximum power",
    "time_fraction": "of the time",
    "total_million_tokens_per_job": "input and output (Mtok)",
    "total_million_tokens_per_month": "input and output (Mtok/month)",
    "sku": "machine",
    "total_usd_per_hour": "all",
    "uncached_usd_per_day": "a day without caching",
    "upfront_usd": "upfront and purchases",
    "usd_after_horizon": "after the last month",
    "usd_per_gpu_hour": "",
    "usd_per_hour": "",
    "usd_per_job": "",
    "usd_per_million_output_tokens_at_mean": "$/Mtok out at mean load",
    "usd_per_million_tokens_at_mean": "$/Mtok at mean load",
    "usd_per_month": "",
    "usd_per_month_saved": "saved ($/month)",
    "usd_per_request": "a request",
    "usd_per_thousand_conversations": "per 1,000 conversations",
    "usd_per_thousand_requests": "",
    "usd_per_user": "per user",
    "usd_per_year": "",
    "used_fraction": "in use",
    "users": "users active at once",
    "verify_s": "verification",
    "watts_per_gpu": "each",
}
"""Quantity -> its title in every table, where the words of its name do not read well; empty: its unit says it. A table that shows it in another light says so itself."""

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"))


MOST_WORDS = 5
"""Words of the longest of these."""
_BESIDE_A_UNIT = frozenset({"low", "high", "likely", "lowest", "highest", "limit"})
"""Words that may stand behind the unit of a name."""
_SHARED_BY = frozenset(
    {"gpu", "device", "replica", "rank", "sequence", "token", "element", "request", "user", "page", "server"}
)
"""What an amount may be of: it keeps its unit."""
_DIVISORS = {"token": "tok", "sequence": "seq", "gpu": "GPU", "device": "device", "replica": "replica"}
"""What stands after 'per' and belongs to the unit -> how it is written there."""
_SPELT = {
    "kv": "KV",
    "gpu": "GPU",
    "gpus": "GPUs",
    "slo": "SLO",
    "ttft": "TTFT",
    "tpot": "TPOT",
    "e2e": "E2E",
}
_SPELT |= {"itl": "ITL", "moe": "MoE", "id": "id", "cuda": "CUDA", "mtp": "MTP", "tdp": "TDP", "l2": "L2"}
_SPELT |= {"pcie": "PCIe", "url": "URL", "lm": "LM", "mla": "MLA", "nvlink": "NVLink"}


@dataclass(frozen=True, slots=True)
class Screen:
    """How one column is shown."""

    heading: str
    unit: str
    factor: float
    """Shown = value x factor."""
    probability: bool = False
    """Shown as whole percents, never rounded up to certainty."""

    def number(self, value: float) -> str:
        """Return a number as it is shown, without its unit."""
        if self.unit.startswith("$"):
            return shown_money(value, self.unit)
        return shown_probability(value) if self.probability else shown_number(value, self.factor)

    def column(self, *, numbers: bool = True) -> str:
        """Return the heading of a column, with the unit if it has numbers."""
        unit = self.unit if numbers else ""
        return f"{self.heading} ({unit})" if unit and self.heading else self.heading or unit


def screen_of(name: str, values: Sequence[Any], *, title: str | None = None) -> Screen:
    """Return heading, unit and scale of a column, the scale chosen for its largest value.

    Parameters
    ----------
    name : key in base units; `name.key` belongs to the unit of `name`
    values : the cells, in base units
    title : heading to use instead of the title of the quantity, or of the one that its name gives

    Returns
    -------
    heading, unit on screen and factor [-]

    Examples
    --------
    >>> screen_of("kv_bytes_per_token", [131072])
    Screen(heading='KV', unit='KB/tok', factor=0.001, probability=False)
    >>> screen_of("ttft_s.p95", [0.8])
    Screen(heading='TTFT p95', unit='ms', factor=1000.0, probability=False)
    """
    base, _, part = name.partition(".")
    largest = max((abs(v) for v in values if is_number(v) and math.isfinite(v)), default=0.0)
    words = base.split("_")
    unit, factor, rest = _scaled(words, largest)
    heading = " ".join(_SPELT.get(word, word) for word in (*rest, *part.replace("_", " ").split()))
    return Screen(
        TITLES.get(name, heading) if title is None else title, unit, factor, words[-1] == "probability"
    )


def unit_of(name: str) -> str:
    """Return the base unit of a quantity by its name or its path; '-' for counts and shares.

    Examples
    --------
    >>> unit_of("ttft_s.p95"), unit_of("usd_per_million_tokens_at_mean"), unit_of("gpus"), unit_of("goodput_requests_per_s")
    ('s', '$/10^6 token', '-', '1/s')
    >>> unit_of("groups[0].planned_request_rate_limit_per_replica"), unit_of("memory_bytes_per_s"), unit_of("kv_bytes_per_token")
    ('1/s', 'B/s', 'B')
    """
    for key in reversed(name.split(".")):
        words = key.partition("[")[0].rpartition(" ")[2].removesuffix("_at_mean").split("_")
        unit = _base_unit(words)
        if unit is not None:
            return unit
    return "-"


def _base_unit(words: list[str]) -> str | None:
    """Return the base unit that the last words of a key state; None if they state none."""
    for noun, unit in (("bytes", "B"), ("flop", "FLOP")):
        if noun in words and words[-1] != "byte":
            return f"{unit}/s" if words[words.index(noun) + 1 :][:2] == ["per", "s"] else unit
    for length in range(min(MOST_WORDS, len(words)), 0, -1):
        known = UNITS.get("_".join(words[-length:]))
        if known is not None:
            return known.base
    if len(words) > 2 and words[-2] == "per" and words[-1] in _SHARED_BY:
        return _base_unit(words[:-2])
    return _base_unit(words[:-1]) if len(words) > 1 and words[-1] in _BESIDE_A_UNIT else None


def is_number(value: Any) -> bool:
    """Return whether a cell is a number; flags are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _scaled(words: list[str], largest: float) -> tuple[str, float, list[str]]:
    """Return unit, factor and the words that are left for the heading."""
    divisor = ""
    left = words
    while len(left) > 2 and left[-2] == "per" and left[-1] in _DIVISORS:
        divisor = f"/{_DIVISORS[left[-1]]}{divisor}"
        left = left[:-2]
    noun = next((word for word in ("bytes", "flop") if word in left and left[-1] != "byte"), None)
    if noun:
        at = left.index(noun)
        if noun == "bytes" and {"reported", "driver"} & set(left):
            return f"GiB{divisor}", 1.0 / 2**30, [*left[:at], *left[at + 1 :]]
        rate = "/s" if left[at + 1 : at + 3] == ["per", "s"] else ""
        scale, prefix = next(((s, p) for s, p in _PREFIXES if largest >= s), (1.0, ""))
        if noun == "flop" and rate:
            scale, prefix = 1e12, "T"  # rates of devices are compared in one unit
        heading = [*left[:at], *left[at + (3 if rate else 1) :]] or [
            "moved" if noun == "bytes" else "arithmetic"
        ]
        return f"{prefix}{'B' if noun == 'bytes' else 'FLOP'}{rate}{divisor}", 1.0 / scale, heading
    for length in range(min(MOST_WORDS, len(left)), 0, -1):
        tail = "_".join(left[-length:])
        known = UNITS.get(tail)
        if known is not None and known.screen:
            unit, factor = ("ms", 1e3) if known.screen == "s" and largest < 10.0 else known[1:3]
            return f"{unit}{divisor}", factor, left[:-length] or [known.heading]
    return "", 1.0, words


def shown_money(value: float, unit: str) -> str:
    """Format dollars: to the cent, whole by the month and year.

    Prices per hour have two decimals, whatever their size, and so do those of a unit, which may be an hour, from ten cents on; other
    prices below one dollar have three digits.

    Parameters
    ----------
    value : [$ or $ per something]
    unit : as on screen

    Returns
    -------
    text without a currency sign

    Examples
    --------
    >>> shown_money(81.62, "$/h"), shown_money(59582.6, "$/month"), shown_money(0.9, "$/GPU/h"), shown_money(0.0523, "$/Mtok")
    ('81.62', '59,583', '0.90', '0.0523')
    >>> [shown_money(value, "$/unit") for value in (113.928, 55.04, 0.5, 0.023)]
    ['113.93', '55.04', '0.50', '0.0230']
    """
    if not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    if abs(value) >= (100 if unit in {"$/month", "$/year", "$/job", "$"} else 100_000):
        return f"{value:,.0f}"
    least = 0.1 if unit == "$/unit" else 1.0
    return f"{value:,.2f}" if abs(value) >= least or unit.endswith("/h") else shown_number(value, 1.0)


def shown_probability(value: float) -> str:
    """Format a probability in whole percents, rounded down; never as certain or impossible.

    Examples
    --------
    >>> shown_probability(0.816), shown_probability(0.9999), shown_probability(0.001)
    ('81', '> 99', '< 1')
    """
    if not math.isfinite(value):
        return "-"
    if value > 0.99:
        return "> 99"
    return "< 1" if value < 0.01 else f"{int(100.0 * value)}"


def shown_number(value: float, factor: float) -> str:
    """Format a number for people: whole above 100, three significant digits below.

    Counts (factor 1, whole numbers) stay exact.

    Parameters
    ----------
    value : [any] in its base unit
    factor : [-] from the base unit to the unit on screen

    Returns
    -------
    text; with an exponent where there would be more than a dozen zeros

    Examples
    --------
    >>> shown_number(8030261248, 1.0), shown_number(0.0123456, 1e3), shown_number(1234.5, 1.0)
    ('8,030,261,248', '12.3', '1,234')
    >>> shown_number(1e-20, 1e3), shown_number(2e21, 1.0)
    ('1e-17', '2e+21')
    """
    if not math.isfinite(value):
        return "-"
    if isinstance(value, int) and factor == 1.0:
        return f"{value:,}"
    scaled = value * factor
    if scaled == 0:
        return "0"
    if not 1e-12 <= abs(scaled) <= 1e18:
        return f"{scaled:.3g}"
    digits = 2 - math.floor(math.log10(abs(scaled)))
    rounded = round(scaled, max(0, digits))
    if abs(rounded) >= 100:
        return f"{rounded:,.0f}"
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded)))) if rounded else 0
    return f"{rounded:.{decimals}f}"
