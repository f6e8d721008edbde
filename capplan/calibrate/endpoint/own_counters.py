"""What a server says of itself while a series runs: what it counted, and how full it was at most, by the names that engines give these numbers."""

import threading
from collections import defaultdict
from math import isfinite

from capplan.calibrate.endpoint.client import Endpoint, fetched
from capplan.recorded.traces.prometheus import SAMPLE, metric_names

PATHS = ("/metrics", "/prometheus/metrics")
"""The second one is that of TensorRT-LLM, whose first one holds no counters."""
EVERY_S = 1.0
COUNTED = ("steps", "preemptions", "prefix_queries", "prefix_hits", "accepted_drafts")
"""Counters: the first ones that a server has, added up where there are several."""
FULLEST = ("running", "waiting", "cache_use")
"""Readings of the moment, of which the highest one counts; the last one is a share of the cache."""


def samples(text: str) -> dict[str, list[float]]:
    """Return the numbers of a page of metrics by name, one for each set of labels.

    Examples
    --------
    >>> samples('vllm:num_requests_running{engine="0"} 3.0')
    {'vllm:num_requests_running': [3.0]}
    """
    found = defaultdict(list)
    for line in text.splitlines():
        sample = SAMPLE.match(line.rstrip())
        if sample is not None and isfinite(value := float(sample[3])):
            found[sample[1]].append(value)
    return dict(found)


class OwnCounters:
    """Reads the metrics of a server when a block begins, once a second within it, and when it ends."""

    def __init__(self, server: Endpoint, every_s: float = EVERY_S) -> None:
        """Read nothing yet."""
        self._server, self._every_s = server, every_s
        self._path = ""
        self._before: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.counted: dict[str, float] = {}
        """Growth of each counter within the block."""
        self.fullest: dict[str, float] = {}
        """The highest reading of each kind."""

    def __enter__(self) -> "OwnCounters":
        """Start to read, where the server has something to be read."""
        for path in PATHS:
            self._path = path
            self._before = self._read()
            if self._before or self.fullest:
                self._thread.start()
                break
        return self

    def __exit__(self, *_: object) -> None:
        """Read for the last time."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
            after = self._read()
            self.counted = {
                name: after[name] - before for name, before in self._before.items() if name in after
            }

    def _watch(self) -> None:
        while not self._ended.wait(self._every_s):
            self._read()

    def _read(self) -> dict[str, float]:
        """Return the counters, and keep the highest readings."""
        found = samples(fetched(self._server, self._path))
        for kind in FULLEST:
            values = next((found[name] for name in metric_names(kind) if name in found), None)
            if values:
                now = max(values) if kind == "cache_use" else sum(values)
                self.fullest[kind] = max(self.fullest.get(kind, 0.0), now)
        sums = {}
        for kind in COUNTED:
            alternatives = (name.split(" + ") for name in metric_names(kind))
            known = next((names for names in alternatives if found.keys() >= set(names)), ())
            if known:
                sums[kind] = sum(sum(found[name]) for name in known)
        return sums
