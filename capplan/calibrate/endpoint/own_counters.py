"""What a server says of itself while a series runs: what it counted, and how full it was at most, by the names that engines give these numbers."""

import re
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence

from capplan.calibrate.endpoint.client import Endpoint, fetched

PATHS = ("/metrics", "/prometheus/metrics")
"""The second one is that of TensorRT-LLM, whose first one holds no counters."""
EVERY_S = 1.0
COUNTED: Mapping[str, Sequence[Sequence[str]]] = {
    "steps": (
        ("vllm:iteration_tokens_total_count",),
        ("llamacpp:n_decode_total",),
        ("tgi_batch_inference_count",),
    ),
    "preemptions": (("vllm:num_preemptions_total",),),
    "prefix_queries": (
        ("vllm:prefix_cache_queries_total",),
        ("vllm:gpu_prefix_cache_queries_total",),
        ("sglang:prompt_tokens_total",),
        ("trtllm_kv_cache_reused_blocks_total", "trtllm_kv_cache_missed_blocks_total"),
        ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
    ),
    "prefix_hits": (
        ("vllm:prefix_cache_hits_total",),
        ("vllm:gpu_prefix_cache_hits_total",),
        ("sglang:cached_tokens_total",),
        ("trtllm_kv_cache_reused_blocks_total",),
        ("llamacpp:prompt_tokens_cached_total",),
    ),
    "accepted_drafts": (
        ("vllm:spec_decode_num_accepted_tokens_total",),
        ("trtllm_spec_decode_num_accepted_tokens_total",),
        ("llamacpp:spec_decode_num_accepted_tokens_total",),
    ),
}
"""Counters: the first ones that a server has, added up where there are several."""
FULLEST: Mapping[str, Sequence[str]] = {
    "running": (
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "trtllm_num_requests_running",
        "llamacpp:requests_processing",
        "tgi_batch_current_size",
    ),
    "waiting": (
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "trtllm_num_requests_waiting",
        "llamacpp:requests_deferred",
        "tgi_queue_size",
    ),
    "cache_use": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "trtllm_kv_cache_utilization",
    ),
}
"""Readings of the moment, of which the highest one counts; the last one is a share of the cache."""

_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{[^}]*\})?\s+([0-9.eE+-]+)", re.MULTILINE)


def samples(text: str) -> dict[str, list[float]]:
    """Return the numbers of a page of metrics by name, one for each set of labels.

    Examples
    --------
    >>> samples('vllm:num_requests_running{engine="0"} 3.0')
    {'vllm:num_requests_running': [3.0]}
    """
    found = defaultdict(list)
    for name, value in _SAMPLE.findall(text):
        try:
            found[name].append(float(value))
        except ValueError:
            continue
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
        for kind, names in FULLEST.items():
            values = next((found[name] for name in names if name in found), None)
            if values:
                now = max(values) if kind == "cache_use" else sum(values)
                self.fullest[kind] = max(self.fullest.get(kind, 0.0), now)
        sums = {}
        for kind, alternatives in COUNTED.items():
            known = next((names for names in alternatives if all(name in found for name in names)), ())
            if known:
                sums[kind] = sum(sum(found[name]) for name in known)
        return sums
