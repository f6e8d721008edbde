"""What a Prometheus server kept of the counters of engines: rates over a window, lengths, hits and latencies of one served model.

Source: https://prometheus.io/docs/prometheus/latest/querying/api/ and .../querying/functions/ for rate and increase.
"""

import http.client
import json
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import numpy as np

from capplan.errors import InputError
from capplan.numbers import Array
from capplan.readers.web_address import WebAddress, web_address
from capplan.recorded.traces.prometheus import (
    HISTOGRAMS,
    RANKS,
    Scrape,
    bucket_bound,
    metric_names,
    published_name,
    series_of_model,
    summary_of_scrape,
)
from capplan.workload.statistics import DAY_S, HOUR_S, Omissions, RateSummary, WorkloadSummary

KEY = "PROMETHEUS_BEARER_TOKEN"
"""Environment variable that may hold the bearer token of the server."""
EXAMPLE = "http://prometheus:9090"
MOST_BYTES = 256 << 20
SILENCE_S = 120.0
LEAST_WINDOW_S, MOST_WINDOW_S = 10.0, 400 * DAY_S
LEAST_STEP_S, USUAL_STEP_S = 5.0, 300.0
"""Shortest window of a rate, and that of a day and of some days; scrapes are usually 15 to 60 s apart."""
MOST_STEPS = 2016
"""Points of a range, at five minutes those of a week."""
OF_THE_SCRAPE = ("job", "endpoint", "service", "container", "prometheus", "prometheus_replica")
"""Labels that tell how an engine was scraped; one that is scraped twice counts once."""
_ENGINES = "(ray_)?(vllm|sglang)[_:].+|tgi_.+"
_COUNTERS = ("finished", "rejected", "prefix_hits", "prefix_queries")


@dataclass(frozen=True, slots=True)
class Observed:
    """What engines did over a window."""

    source: str
    window_s: float
    step_s: float
    """Length of the windows that rates are known by."""
    summary: WorkloadSummary
    buckets: Mapping[str, Mapping[float, float]]
    """Latency (ttft, tpot, e2e, queue) -> upper bound of a bucket [s] -> requests up to it."""
    running: float | None = None
    """Mean number of requests in all engines."""
    waiting: float | None = None
    engines: float | None = None
    """Mean number of engines; each attention group of a replica is one."""
    model: str | None = None
    """Served model that was asked for by name."""

    def share_within(self, latency: str, limit_s: float) -> float | None:
        """Return the share of requests with a latency of at most a limit, interpolated within a bucket; None if it is not known."""
        rows = self.buckets.get(latency)
        bounds = sorted(bound for bound in rows if math.isfinite(bound)) if rows else []
        if not rows or not bounds or limit_s > bounds[-1]:
            return None
        total = rows.get(math.inf, rows[bounds[-1]])
        counts = [0.0, *(rows[bound] for bound in bounds)]
        return float(np.interp(limit_s, [0.0, *bounds], counts)) / total if total > 0 else None

    def percentile_s(self, latency: str, fraction: float) -> float | None:
        """Return a percentile of a latency, interpolated within its bucket; None beyond the last bound, or if it is not known."""
        rows = self.buckets.get(latency)
        bounds = sorted(bound for bound in rows if math.isfinite(bound)) if rows else []
        if not rows or not bounds:
            return None
        total = rows.get(math.inf, rows[bounds[-1]])
        counts = np.maximum.accumulate([0.0, *(rows[bound] for bound in bounds)])
        if total <= 0 or fraction * total > counts[-1]:
            return None
        place = int(np.searchsorted(counts, fraction * total))
        edges = [0.0, *bounds]
        if place == 0 or counts[place] == counts[place - 1]:
            return edges[place]
        part = (fraction * total - counts[place - 1]) / (counts[place] - counts[place - 1])
        return float(edges[place - 1] + part * (edges[place] - edges[place - 1]))


def is_address(source: str) -> bool:
    """Return whether a source is the address of a server."""
    return source.lower().startswith(("http://", "https://"))


def observed(url: str, option: str, window_s: float, model: str | None, *, offline: bool) -> Observed:
    """Return what the engines of one served model did, by the counters that a Prometheus server kept.

    Parameters
    ----------
    url : of the server
    option : that the address was given with, for errors
    window_s : [s]
        up to now; of days up to the last whole hour
    model : name of the served model; None if there is one
    offline : never open a connection

    Raises
    ------
    InputError
        the server cannot be asked, or has no requests of such a model in the window
    """
    if offline:
        raise InputError(
            f"{option}: {url} is an address, and --offline never connects; leave one of them out"
        )
    if not LEAST_WINDOW_S <= window_s <= MOST_WINDOW_S:
        raise InputError(f"--window: {window_s:g} s is out of range (10 s to 400 d)")
    address = web_address(url, option, KEY, EXAMPLE)
    address = replace(address, path=address.path.removesuffix("/api/v1"))
    now = time.time()
    end = now // HOUR_S * HOUR_S if window_s >= DAY_S else now
    return _Questions(_Server(address, option), end, window_s).observed(model)


@dataclass(frozen=True, slots=True)
class _Server:
    address: WebAddress
    option: str

    def data(self, path: str, **asked: Any) -> Any:
        """Return the data of an answer."""
        line = self.address.connection(SILENCE_S)
        head = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        if self.address.key:
            head["Authorization"] = f"Bearer {self.address.key}"
        form = urlencode(
            {f"{key}[]" if isinstance(value, list) else key: value for key, value in asked.items()},
            doseq=True,
        )
        try:
            line.request("POST" if path != "names" else "GET", *self._target(path, form), headers=head)
            answer = line.getresponse()
            text = answer.read(MOST_BYTES + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self.error(f"cannot be asked ({error})") from None
        finally:
            line.close()
        if len(text) > MOST_BYTES:
            raise self.error(f"answers with more than {MOST_BYTES >> 20} MiB; shorten --window")
        return self._checked(answer.status, text)

    def _target(self, path: str, form: str) -> tuple[str, str | None]:
        """Return the path and the body of a question; names of metrics can only be asked for without a body."""
        if path == "names":
            return f"{self.address.path}/api/v1/label/__name__/values?{form}", None
        return f"{self.address.path}/api/v1/{path}", form

    def _checked(self, status: int, text: bytes) -> Any:
        if status in (401, 403):
            raise self.error(f"does not let us in (HTTP {status}); put the bearer token into {KEY}")
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, Mapping) or "status" not in said:
            raise self.error(f"is not a Prometheus server (HTTP {status} without its JSON)")
        if said["status"] != "success" or "data" not in said:
            raise self.error(f"rejects the question: {' '.join(str(said.get('error')).split())[:160]}")
        if said.get("warnings"):
            raise self.error(f"answers in part: {' '.join(str(said['warnings']).split())[:160]}")
        return said["data"]

    def error(self, what: str) -> InputError:
        """Return the error that the server is the cause of."""
        shown = what.replace(self.address.key, "***") if self.address.key else what
        return InputError(f"{self.option}: {self.address.shown} {shown}")


class _Questions:
    """The questions about one window."""

    def __init__(self, server: _Server, end_s: float, window_s: float) -> None:
        self.server, self.end_s, self.window_s = server, end_s, window_s
        self.step_s = min(
            max(window_s / 60.0, LEAST_STEP_S), max(USUAL_STEP_S, math.ceil(window_s / MOST_STEPS))
        )
        self.source = server.address.shown
        self.only = ""
        names = server.data("names", match=[f'{{__name__=~"{_ENGINES}"}}'], start=end_s - window_s, end=end_s)
        self.written: dict[str, list[str]] = {}
        for name in names if isinstance(names, list) else ():
            self.written.setdefault(published_name(str(name)), []).append(str(name))

    def observed(self, model: str | None) -> Observed:
        """Return what is known of one model."""
        self._choose(model)
        scrape = self._scrape()
        rate, unseen = self._rate()
        notes = [
            f"rates are known by windows of {self.step_s:,.0f} s, so the peak is that of the busiest window",
            "hours are those of UTC" if rate.by_hour else "the window is too short for a daily curve",
        ]
        if unseen > 0.0:
            notes.append(f"{100 * unseen:.1f} % of the window has no samples and is left out")
        summary = summary_of_scrape(scrape, self.source, rate, notes, Omissions())
        return Observed(
            self.source,
            self.window_s,
            self.step_s,
            summary,
            {key: dict(self._buckets(scrape, key)) for key in ("ttft", "tpot", "e2e", "queue")},
            self._mean_gauge("running"),
            self._mean_gauge("waiting"),
            self._mean_gauge("running", "count"),
            model,
        )

    def _choose(self, model: str | None) -> None:
        """Select the series of one model."""
        series = {}
        for quantity in ("prompt_tokens", "output_tokens"):
            for name, written in self._names(quantity, "_count"):
                for labels, value in self._instant(f"increase({self._of(written)}[{self._span}])"):
                    series[name, tuple(sorted(labels.items()))] = value
        if not any(value > 0 for value in series.values()):
            known = ", ".join(metric_names("prompt_tokens"))
            raise InputError(
                f"{self.server.option}: {self.source} has no requests of an engine in the last {self.window_s:,.0f} s\n"
                f"  one of these histograms is expected: {known}; do the engines get scraped, and is --window long enough?"
            )
        chosen, found = series_of_model(series, model, self.source)
        kinds = {name for name, _ in chosen}
        self.written = {
            name: written
            for name, written in self.written.items()
            if any(_engine(name) == _engine(kind) for kind in kinds)
        }
        if found is not None:
            label, name = found
            self.only = f",{label}=~{json.dumps(f'{re.escape(name)}|')}"

    def _scrape(self) -> Scrape:
        """Return the increase of all counters over the window, as if there had been two scrapes."""
        scrape = Scrape()
        for quantity in HISTOGRAMS:
            for part in ("_sum", "_count"):
                for name, written in self._names(quantity, part):
                    scrape.values[name] += self._total(written)
            for name, written in self._names(quantity, "_bucket"):
                rows = scrape.buckets[name.removesuffix("_bucket")]
                for labels, value in self._instant(f"sum by (le) ({self._whole(self._increase(written))})"):
                    bound = bucket_bound(labels.get("le", ""))
                    if bound is not None:
                        rows[bound] += value
        for quantity in _COUNTERS:
            for name, written in self._names(quantity):
                scrape.values[name] += self._total(written)
        for quantity in ("prefix_hit_rate",):
            for name, written in self._names(quantity):
                mean = f"avg({self._whole(f'avg_over_time({self._of(written)}[{self._span}])')})"
                scrape.gauges[name] += [value for _, value in self._instant(mean)]
        return scrape

    def _rate(self) -> tuple[RateSummary, float]:
        """Return the rate of requests by window, and the share of the window without samples."""
        counted = list(self._names("finished")) or list(self._names("prompt_tokens", "_count"))
        first = metric_order(
            counted, (*metric_names("finished"), *(f"{name}_count" for name in metric_names("prompt_tokens")))
        )
        counted = [pair for pair in counted if pair[0] == first] + list(self._names("rejected"))
        rates = self._summed(
            f"sum({self._whole(f'rate({self._of(written)}[{self._step}])')})" for _, written in counted
        )
        seen = np.isfinite(rates)
        if not seen.any():
            longer = "take a longer --window, whose rates are taken over longer times"
            often = f"Prometheus has to scrape the engines every {self.step_s / 2:,.0f} s or more often"
            raise InputError(
                f"{self.server.option}: {self.source} has no two scrapes within {self.step_s:,.0f} s, so no rate is known\n"
                f"  {longer if self.step_s < USUAL_STEP_S else often}"
            )
        return self._summary_of(rates, seen), 1.0 - float(seen.mean())

    def _summary_of(self, rates: Array, seen: Any) -> RateSummary:
        known = rates[seen]
        hours: Array = np.zeros(0)
        if self.window_s >= DAY_S:
            hour = ((self._times() - self.step_s / 2) // HOUR_S % 24).astype(np.int64)[seen]
            count = np.bincount(hour, minlength=24)
            hours = np.bincount(hour, weights=known, minlength=24) / count if count.all() else hours
        return RateSummary(
            seconds=float(seen.sum()) * self.step_s,
            mean=float(known.mean()),
            peak_60s=float(known.max()),
            cv=None,
            dispersion_60s=None,
            by_hour=tuple(hours.tolist()),
            by_window=tuple(known.tolist()),
            window_s=self.step_s,
        )

    def _mean_gauge(self, quantity: str, over: str = "sum") -> float | None:
        """Return the mean over the window of a gauge, added up or counted over engines."""
        names = list(self._names(quantity))
        first = metric_order(names, metric_names(quantity))
        rows = self._summed(
            f"{over}({self._whole(self._of(written))})" for name, written in names if name == first
        )
        seen = np.isfinite(rows)
        return float(rows[seen].mean()) if seen.any() else None

    def _buckets(self, scrape: Scrape, quantity: str) -> Mapping[float, float]:
        names = (name for name in metric_names(quantity) if scrape.values.get(f"{name}_count", 0.0) > 0)
        return next((scrape.buckets[name] for name in names if name in scrape.buckets), {})

    def _names(self, quantity: str, part: str = "") -> Iterable[tuple[str, str]]:
        """Yield the published and the written names of a quantity that the server has."""
        for name in metric_names(quantity):
            for written in self.written.get(f"{name}{part}", ()):
                yield f"{name}{part}", written

    def _of(self, written: str) -> str:
        return f'{{__name__="{written}"{self.only}}}'

    def _increase(self, written: str) -> str:
        return f"increase({self._of(written)}[{self._span}])"

    def _total(self, written: str) -> float:
        found = self._instant(f"sum({self._whole(self._increase(written))})")
        return sum(value for _, value in found)

    @staticmethod
    def _whole(expression: str) -> str:
        """Return an expression in which ranks of one engine, and several scrapes of it, count once."""
        return f"max without ({', '.join(sorted((*RANKS, *OF_THE_SCRAPE)))}) ({expression})"

    @property
    def _span(self) -> str:
        return f"{round(self.window_s * 1000)}ms"

    @property
    def _step(self) -> str:
        return f"{round(self.step_s * 1000)}ms"

    def _times(self) -> Array:
        """Return the ends of the windows of rates."""
        return self.end_s - self.step_s * np.arange(int(self.window_s // self.step_s) - 1, -1, -1.0)

    def _instant(self, query: str) -> list[tuple[Mapping[str, str], float]]:
        data = self.server.data("query", query=query, time=self.end_s)
        try:
            rows = [(dict(row["metric"]), float(row["value"][1])) for row in data["result"]]
        except (KeyError, IndexError, TypeError, ValueError):
            raise self.server.error("answers in a form that is not known") from None
        return [(labels, value) for labels, value in rows if math.isfinite(value)]

    def _summed(self, queries: Iterable[str]) -> Array:
        """Return the sum of expressions at the end of each window; nan where none of them has a value."""
        times = self._times()
        total = np.full(times.size, np.nan)
        for query in queries:
            data = self.server.data(
                "query_range", query=query, start=times[0], end=times[-1], step=self.step_s
            )
            try:
                points = [(float(at), float(value)) for row in data["result"] for at, value in row["values"]]
            except (KeyError, IndexError, TypeError, ValueError):
                raise self.server.error("answers in a form that is not known") from None
            for stamp, value in points:
                place = round((stamp - times[0]) / self.step_s)
                if 0 <= place < times.size and math.isfinite(value):
                    total[place] = np.nan_to_num(total[place]) + value
        return total


def _engine(name: str) -> str:
    return re.split("[:_]", name, maxsplit=1)[0]


def metric_order(found: Sequence[tuple[str, str]], names: Sequence[str]) -> str | None:
    """Return the first of these published names that a server has."""
    present = {name for name, _ in found}
    return next((name for name in names if name in present), None)
