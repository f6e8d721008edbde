"""Prometheus text of vLLM (old and new names), SGLang and TGI: one scrape, or the difference of two; a workload, and the acceptance of drafts."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np

from capplan.errors import InputError, unknown
from capplan.numbers import Array
from capplan.phases.step import acceptance_of_round
from capplan.readers.text_file import read_json
from capplan.recorded.traces.rows import lines_of
from capplan.workload.statistics import (
    LONGEST_TOKENS,
    LengthSummary,
    Omissions,
    RateSummary,
    WorkloadSummary,
    length_summary,
)

SAMPLE = re.compile(
    r'^([a-zA-Z_:][\w:]*+)(?:\s*+\{((?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\})?'
    r"\s++([+-]?(?:Inf|NaN|(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?))"
    r"(?:\s++-?\d++(?:\.\d++)?(?:[eE][+-]?\d++)?)?\s*+(?:#\s*+\{.*)?$",
    re.ASCII,
)
"""One sample: name, labels, value; a time stamp and an exemplar (OpenMetrics) are not kept."""
LABEL = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')
MOST_LINES = 1_000_000
"""Most lines of one scrape; that of a server with hundreds of labels has about ten thousand."""
LARGEST = 1e18
"""A larger value cannot be a count."""
AGREEMENT = 0.01
"""Fraction by which the mean of a histogram may lie outside what its buckets allow; a scrape is not atomic."""
POINTS = 10
"""Points that represent the lengths in one bucket."""


@cache
def metric_names(quantity: str, *engines: str) -> tuple[str, ...]:
    """Return what engines call a quantity, those of a prefix or of all; of several that a server has the first is read.

    Examples
    --------
    >>> metric_names("running", "vllm:", "sglang:")
    ('vllm:num_requests_running', 'sglang:num_running_reqs')
    """
    names = _metrics()[quantity]
    return tuple(name for name in names if not engines or name.startswith(engines))


@cache
def _metrics() -> dict[str, list[str]]:
    """Return the names of each quantity; a sum of metrics stands as one name."""
    return read_json(Path(__file__).parent / "metrics.json")


READ = ("vllm:", "sglang:", "tgi_")
"""Beginnings of the metrics of engines whose histograms of lengths are known."""
HISTOGRAMS = ("prompt_tokens", "output_tokens", "ttft", "tpot", "e2e", "queue")
_COUNTED = (
    "finished",
    "rejected",
    "prefix_hits",
    "prefix_queries",
    "draft_rounds",
    "drafted",
    "accepted_drafts",
    "accepted_by_position",
)
COUNTERS = frozenset(
    {f"{name}_{part}" for key in HISTOGRAMS for name in metric_names(key, *READ) for part in ("sum", "count", "bucket")}
    | {name for key in _COUNTED for name in metric_names(key, *READ)}
)  # fmt: skip
"""Series read here that start at 0 and never decrease."""
DRAFTS, DRAFTED, ACCEPTED, ACCEPTED_BY_POSITION = (metric_names(key)[0] for key in _COUNTED[4:])


MODEL_LABELS = ("model_name", "model")
"""Labels with the name of a served model: of vLLM, SGLang and TensorRT-LLM, and of Dynamo."""
RANKS = frozenset({"tp_rank", "pp_rank", "ep_rank", "moe_ep_rank", "pcp_rank", "dcp_rank"})
"""Labels of ranks that work on the same requests; data-parallel ranks (`dp_rank`, `engine`) have requests of their own."""
Series: TypeAlias = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""Values by metric and labels, without those of ranks."""


@dataclass(slots=True)
class Scrape:
    """Sums over all engines and labels of one model, and histogram buckets by upper bound."""

    values: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    buckets: dict[str, dict[float, float]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )
    gauges: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cache_tokens: float = 0.0
    accepted: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Accepted drafts by their position in a round, from 0."""

    def first(self, quantity: str) -> float | None:
        """Return the first counter of a quantity that is present."""
        names = metric_names(quantity, *READ)
        return next((self.values[name] for name in names if name in self.values), None)

    def gauge(self, quantity: str) -> float | None:
        """Return the mean over engines of the first gauge of a quantity that is present."""
        rows = next((self.gauges[name] for name in metric_names(quantity) if name in self.gauges), None)
        return float(np.mean(rows)) if rows else None

    def mean(self, names: Sequence[str]) -> float | None:
        """Return sum over count of the first histogram that counted anything."""
        for name in names:
            count = self.values.get(f"{name}_count", 0.0)
            if count >= 1 and f"{name}_sum" in self.values:
                return self.values[f"{name}_sum"] / count
        return None


def read_scrape(path: Path, omissions: Omissions, model: str | None = None) -> Scrape:
    """Return the sums of one exposition; lines that are not samples are counted.

    Parameters
    ----------
    path : Prometheus text
    omissions : lines that are left out
    model : name of the served model that is read; None if there is one

    Raises
    ------
    InputError
        a counter is negative, or a series comes twice; several models; or the text is longer than any scrape
    """
    scrape = Scrape()
    series, _ = series_of_model(_series(path, omissions), model, str(path))
    for (name, labels), value in series.items():
        keyed = dict(labels)
        if name.endswith("_bucket") and "le" in keyed:
            scrape.buckets[name.removesuffix("_bucket")][float(keyed["le"].replace("Inf", "inf"))] += value
        else:
            scrape.values[name] += value
            scrape.gauges[name].append(value)
        if name == ACCEPTED_BY_POSITION and keyed.get("position", "").isdecimal():
            scrape.accepted[int(keyed["position"])] += value
        if name == "vllm:cache_config_info" and value == 1.0:
            blocks, size = keyed.get("num_gpu_blocks", ""), keyed.get("block_size", "")
            tokens = float(blocks) * float(size) if blocks.isdecimal() and size.isdecimal() else 0.0
            scrape.cache_tokens += tokens if tokens <= LARGEST else 0.0
    return scrape


def _series(path: Path, omissions: Omissions) -> Series:
    """Return the value of each series; ranks of one replica count the same requests, so the highest count stands for all of them."""
    series: Series = {}
    lines: dict[object, int] = {}
    for number, line in lines_of(path):
        if number > MOST_LINES:
            raise InputError(
                f"{path}: has more than {MOST_LINES:,} lines; one scrape of a server is expected"
            )
        if not line.strip() or line.startswith("#"):
            continue
        match = SAMPLE.match(line.strip())
        if match is None:
            omissions.drop("is not a Prometheus sample", number)
            continue
        written, labels, text = match.groups()
        name = published_name(written)
        value = float(text.replace("Inf", "inf"))
        keyed = dict(LABEL.findall(labels or ""))
        bucket = name.endswith("_bucket")
        bound = bucket_bound(keyed.get("le", ""))
        if not math.isfinite(value):
            omissions.drop("a value is not finite", number)
        elif abs(value) > LARGEST:
            omissions.drop("a value is out of range", number)
        elif value < 0 and name in COUNTERS:
            raise InputError(f"{path}: line {number}: {name} is {text}; a counter is never negative")
        elif bucket and bound is None and name in COUNTERS:
            omissions.drop("is a bucket without an upper bound", number)
        else:
            if bucket and bound is None:
                keyed.pop("le", None)
            whole = name, tuple(sorted(keyed.items()))
            if name in COUNTERS and lines.setdefault(whole, number) != number:
                raise InputError(
                    f"{path}: line {number}: {name} has the labels of line {lines[whole]}, so this is more than one scrape\n"
                    "  give two scrapes as two files, the earlier one first"
                )
            key = name, tuple(pair for pair in whole[1] if pair[0] not in RANKS)
            series[key] = max(series.get(key, -math.inf), value)
    return series


def published_name(written: str) -> str:
    """Return the name that the engine gives a metric; Ray puts `ray_` before it, and collectors replace the colon.

    Examples
    --------
    >>> published_name("ray_vllm_request_success_total"), published_name("sglang_num_requests_total")
    ('vllm:request_success_total', 'sglang:num_requests_total')
    """
    return re.sub(r"^(?:ray_)?(vllm|sglang)[_:]", r"\1:", written)


def series_of_model(series: Series, model: str | None, source: str) -> tuple[Series, tuple[str, str] | None]:
    """Return the series of one served model and those without a model, and the label that names it; None if it need not be selected.

    Raises
    ------
    InputError
        several models counted requests and none is named, or none has the name; or servers of one phase each counted the same requests
    """

    def found(names: Sequence[str]) -> list[str]:
        return sorted(
            {
                value
                for (name, labels), count in series.items()
                if name in COUNTERS and count > 0
                for key, value in labels
                if key in names
            }
        )

    def of(labels: Sequence[tuple[str, str]]) -> str | None:
        return next((value for key, value in labels if key in MODEL_LABELS), None)

    models = found(MODEL_LABELS)
    if model is not None and model not in models:
        if not models:
            raise InputError(f"{source}: no series names a model: leave out --model-name")
        raise unknown("model", model, models, place=source)
    if model is None and len(models) > 1:
        raise InputError(
            f"{source}: counts the requests of {len(models)} models: {', '.join(models)}\n"
            "  name one: --model-name NAME of init, workload, check and replan, or write the lines of one model to a file"
        )
    if {"prefill", "decode"} <= set(found(("engine_type",))):
        raise InputError(
            f"{source}: servers of prefill and of decode (engine_type) both count each request\n"
            "  write the lines of one of them to a file"
        )
    if model is None:
        return series, None
    kept = {key: value for key, value in series.items() if of(key[1]) in (None, model)}
    keys = (key for _, labels in kept for key, value in labels if key in MODEL_LABELS and value == model)
    return kept, (next(keys), model)


def bucket_bound(text: str) -> float | None:
    """Return the upper bound of a bucket; None where there is none."""
    try:
        bound = float(text.replace("Inf", "inf"))
    except ValueError:
        return None
    return bound if bound == math.inf or 0.0 <= bound <= LARGEST else None


def difference(before: Scrape, after: Scrape, path: Path) -> Scrape:
    """Return the increase of the counters between two scrapes, with the gauges of the second."""
    result = Scrape(gauges=after.gauges, cache_tokens=after.cache_tokens)
    for position, count in after.accepted.items():
        result.accepted[position] = count - before.accepted.get(position, 0.0)
    for name, value in after.values.items():
        counted = name.endswith(("_total", "_sum", "_count"))
        increase = value - before.values.get(name, 0.0)
        if counted and increase < 0:
            raise InputError(
                f"{path}: {name} is lower than in the first scrape: the server was restarted between them\n"
                "  give two scrapes of one run, the earlier one first"
            )
        result.values[name] = increase if counted else value
    for name, rows in after.buckets.items():
        old = before.buckets.get(name, {})
        result.buckets[name] = defaultdict(float, {le: n - old.get(le, 0.0) for le, n in rows.items()})
    return result


def counted(paths: Sequence[Path], omissions: Omissions, model: str | None = None) -> Scrape:
    """Return what one scrape counted since the start of the server, or two of them between each other, of one served model."""
    scrapes = [read_scrape(path, omissions, model) for path in paths]
    return scrapes[0] if len(scrapes) == 1 else difference(scrapes[0], scrapes[1], paths[1])


def prometheus_summary(
    paths: Sequence[Path], interval_s: float | None, model: str | None = None
) -> WorkloadSummary:
    """Return the traffic of one served model that a server counted, since its start or between two scrapes.

    Raises
    ------
    InputError
        the text has no request lengths
    """
    omissions = Omissions()
    scrape = counted(paths, omissions, model)
    notes = (
        []
        if len(paths) == 2
        else ["the counters run since the start of the server; give two scrapes for an interval"]
    )
    if interval_s is None:
        notes.append("no rate is known without the time between the scrapes; give --interval")
    rate = (_requests(scrape) + (scrape.first("rejected") or 0.0)) / interval_s if interval_s else None
    rates = RateSummary(interval_s or 0.0, rate, rate, None, None, ())
    return summary_of_scrape(scrape, str(paths[-1]), rates, notes, omissions)


def summary_of_scrape(
    scrape: Scrape, source: str, rate: RateSummary, notes: list[str], omissions: Omissions
) -> WorkloadSummary:
    """Return the traffic that counters tell.

    Parameters
    ----------
    scrape : what they counted
    source : file or server, for errors and as the name
    rate : of the requests
    notes : on how the counters were read; gets what else is to be known
    omissions : lines that are left out

    Raises
    ------
    InputError
        the counters hold no request lengths
    """
    prompts, outputs = (
        _lengths(scrape, metric_names(key), source) for key in ("prompt_tokens", "output_tokens")
    )
    finished = _requests(scrape)
    rejected = scrape.first("rejected")
    if rejected:
        notes.append(f"{rejected:,.0f} requests were rejected and are not counted as finished")
        finished += rejected
    accepted, rounds = _acceptance(scrape, notes)
    hits = _hits(scrape, notes)
    (slots,) = metric_names("cache_tokens")
    return WorkloadSummary(
        name=Path(source).name.split(".")[0],
        format="Prometheus metrics",
        requests=round(finished),
        rate=rate,
        input_tokens=prompts,
        output_tokens=outputs,
        prefix_hit_fraction=hits,
        measured={f"{key}_s": scrape.mean(metric_names(key)) for key in ("ttft", "tpot", "e2e", "queue")},
        acceptance_fraction=accepted,
        accepted_tokens_per_round=rounds,
        kv_cache_tokens=scrape.cache_tokens
        or next((tokens for tokens in scrape.gauges.get(slots, ()) if tokens > 0), None),
        omissions=tuple(omissions.lines()),
        notes=(*notes, "lengths are interpolated within the buckets of the histograms"),
    )


def _requests(scrape: Scrape) -> float:
    finished = scrape.first("finished")
    if finished:
        return finished
    counts = (f"{name}_count" for name in metric_names("prompt_tokens"))
    return next((scrape.values[name] for name in counts if name in scrape.values), 0.0)


def _lengths(scrape: Scrape, names: Sequence[str], path: str) -> LengthSummary:
    for name in names:
        count = scrape.values.get(f"{name}_count", 0.0)
        if count < 1:
            continue
        mean = scrape.mean([name])
        if mean is None:
            raise InputError(f"{path}: has {name}_count and no {name}_sum, so the lengths are not known")
        if not 1.0 <= mean <= LONGEST_TOKENS:
            raise InputError(
                f"{path}: {name}: {count:g} requests with {mean:g} tokens each; 1 to {LONGEST_TOKENS:,} are expected"
            )
        rows = scrape.buckets.get(name, {})
        if any(math.isfinite(bound) for bound in rows) and max(rows.values()) >= 1:
            least, most = _possible_means(rows)
            if not least * (1 - AGREEMENT) <= mean <= most * (1 + AGREEMENT):
                raise InputError(
                    f"{path}: {name}: its sum and count give a mean of {mean:g} tokens per request, its buckets one of {least:g} to {most:g}"
                )
            return length_summary(*bucket_points(rows, mean))
        return length_summary(np.array([mean]), np.array([count]))
    raise InputError(
        f"{path}: has no request lengths; one of these histograms is expected: {', '.join(names)}"
    )


def _inside(rows: Mapping[float, float]) -> tuple[Array, Array]:
    """Return the bucket edges of a histogram from 0 on, the last one assumed, and the count in each bucket."""
    bounds = sorted(bound for bound in rows if math.isfinite(bound))
    total = rows.get(math.inf, rows[bounds[-1]])
    reached = np.array([0.0, *(rows[bound] for bound in bounds), total])
    return np.array([0.0, *bounds, 2.0 * bounds[-1]]), np.maximum(np.diff(reached), 0.0)


def _possible_means(rows: Mapping[float, float]) -> tuple[float, float]:
    """Return the least and the largest mean that the buckets of a histogram allow."""
    edges, inside = _inside(rows)
    total = float(inside.sum())
    most = math.inf if inside[-1] > 0 else float(edges[1:] @ inside) / total
    return float(edges[:-1] @ inside) / total, most


def bucket_points(rows: Mapping[float, float], mean: float) -> tuple[Array, Array]:
    """Return lengths and weights that represent a histogram: evenly spaced in each bucket, scaled to the mean.

    Examples
    --------
    >>> values, weights = bucket_points({10.0: 0.0, 20.0: 4.0, float("inf"): 4.0}, 15.0)
    >>> round(float(values.mean()), 9), float(weights.sum())
    (15.0, 4.0)
    """
    edges, inside = _inside(rows)
    part = (np.arange(POINTS) + 0.5) / POINTS
    values = (edges[:-1, None] + np.diff(edges)[:, None] * part[None, :]).ravel()
    weights = np.repeat(inside / POINTS, POINTS)
    kept = weights > 0
    values, weights = values[kept], weights[kept]
    drawn = float(values @ weights) / float(weights.sum())
    return np.maximum(values * (mean / drawn), 1.0), weights


def _share(part: float, whole: float, words: str, notes: list[str]) -> float | None:
    """Return the ratio of a part to its whole; None, with a note, where the part is larger."""
    if part > whole:
        notes.append(f"{words}: left out")
        return None
    return part / whole


def _hits(scrape: Scrape, notes: list[str]) -> float | None:
    for hits, queries in zip(
        *(metric_names(key, *READ) for key in ("prefix_hits", "prefix_queries")), strict=True
    ):
        asked = scrape.values.get(queries, 0.0)
        if asked > 0 and hits in scrape.values:
            return _share(scrape.values[hits], asked, f"{hits} is more than {queries}", notes)
    rate = scrape.gauge("prefix_hit_rate")
    if rate is not None and 0.0 <= rate <= 1.0:
        return rate
    notes.append("no counters of the prefix cache")
    return None


def _acceptance(scrape: Scrape, notes: list[str]) -> tuple[float | None, float | None]:
    """Return the accepted fraction of the drafted tokens, and the tokens per round including the bonus token."""
    drafted, accepted = scrape.values.get(DRAFTED, 0.0), scrape.values.get(ACCEPTED, 0.0)
    if drafted > 0:
        share = _share(accepted, drafted, f"{ACCEPTED} is more than {DRAFTED}", notes)
        drafts = scrape.values.get(DRAFTS, 0.0)
        return share, 1.0 + accepted / drafts if share is not None and drafts > 0 else None
    rate, length = scrape.gauge("acceptance_rate") or 0.0, scrape.gauge("tokens_per_round") or 0.0
    return (rate if 0.0 < rate <= 1.0 else None), (length if length >= 1.0 else None)


MOST_POSITIONS = 64


def accepted_drafts(paths: Sequence[Path], draft_tokens: int | None = None) -> tuple[tuple[float, ...], str]:
    """Return the acceptance that an engine measured: one for all positions or one for each, given that all drafts before were accepted, and what it counted, in words.

    Parameters
    ----------
    paths : Prometheus text of one scrape, or of two, the earlier one first
    draft_tokens : [tokens]
        drafted in a round, for gauges that do not tell

    Raises
    ------
    InputError
        no drafts were counted, or more were accepted than drafted
    """
    scrape, path = counted(paths, Omissions()), paths[-1]
    rounds, drafted = scrape.values.get(DRAFTS, 0.0), scrape.values.get(DRAFTED, 0.0)
    if rounds > 0 and drafted > 0:
        words = f"{rounds:,.0f} rounds with {drafted:,.0f} drafts"
        if scrape.accepted:
            fractions = _by_position(scrape.accepted, rounds, path)
            return fractions, words
        accepted = _at_most(scrape.values.get(ACCEPTED, 0.0), drafted, f"{ACCEPTED}, {DRAFTED}", path)
        fraction = acceptance_of_round(1.0 + accepted / rounds, drafted / rounds)
        return (fraction,), words
    return _of_gauges(scrape, draft_tokens, path)


def _by_position(accepted: Mapping[int, float], rounds: float, path: Path) -> tuple[float, ...]:
    """Return the conditional acceptances: each count over the one before it, the first over the rounds."""
    if sorted(accepted) != list(range(len(accepted))) or len(accepted) > MOST_POSITIONS:
        raise InputError(
            f"{path}: {ACCEPTED_BY_POSITION} has {len(accepted)} positions up to {max(accepted)}; "
            f"all from 0 on are expected, at most {MOST_POSITIONS}"
        )
    reached, fractions = rounds, []
    for position in range(len(accepted)):
        words = f"{ACCEPTED_BY_POSITION} at position {position}, the drafts before it"
        count = _at_most(accepted[position], reached, words, path)
        if reached > 0:
            fractions.append(count / reached)
        reached = count
    return tuple(fractions)


def _of_gauges(scrape: Scrape, draft_tokens: int | None, path: Path) -> tuple[tuple[float, ...], str]:
    """Return the acceptance from the mean tokens of a round, or from the accepted share of the drafts."""
    gauges = [metric_names(key) for key in ("tokens_per_round", "acceptance_rate")]
    tokens, share = (_mean(scrape, names) for names in gauges)
    if share is None and tokens is None:
        raise InputError(
            f"{path}: counts no drafts: the server did not speculate, or its metrics were scraped before any request\n"
            f"  expected: {DRAFTS} and {DRAFTED}, or one of {', '.join(sum(gauges, ()))}"
        )
    drafts = float(draft_tokens or 0)
    if not drafts and share and tokens is not None:
        drafts = (tokens - 1.0) / share
    if drafts < 1.0:
        raise InputError(f"{path}: does not tell how many drafts a round has; give speculation.draft_tokens")
    accepted = tokens - 1.0 if tokens is not None else (share or 0.0) * drafts
    _at_most(accepted, drafts, "accepted tokens of a round, drafts", path)
    words = f"{1.0 + accepted:.3g} tokens a round of {drafts:.3g} drafts"
    return (acceptance_of_round(1.0 + accepted, drafts),), words


def _mean(scrape: Scrape, names: Sequence[str]) -> float | None:
    """Return the mean of a gauge over engines; None where none has drafted yet."""
    values = [value for name in names for value in scrape.gauges.get(name, ()) if value > 0.0]
    return float(np.mean(values)) if values else None


def _at_most(part: float, whole: float, words: str, path: Path) -> float:
    """Return a count that cannot exceed another."""
    if not 0.0 <= part <= whole:
        raise InputError(f"{path}: {words}: {part:,.6g} of {whole:,.6g} cannot be accepted")
    return part
