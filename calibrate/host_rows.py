"""Measured rows of serving, ready to be predicted with any host times."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from capplan.accuracy.benchmark import Benchmark, benchmark_of
from capplan.accuracy.replay import STABLE, Servers, replayed_columns, requests_of
from capplan.accuracy.score import Prediction
from capplan.accuracy.serving import load_of, measured_columns, row_weight
from capplan.engine.lookup import version_key
from capplan.engine.profile import HostOverhead
from capplan.errors import CapplanError
from capplan.questions.benchmark_spec import benchmark_spec
from capplan.questions.validation import is_core
from capplan.replica.replica import Replica, replica_of
from capplan.replica.tables import table_of_plan, with_host

ERAS: dict[str, tuple[str, ...]] = {
    "vllm": ("0.5.0", "0.7.0", "0.8.0", "0.11.1", "0.19.0"),
    "sglang": ("0.4.0",),
    "trtllm": ("0.7.0", "0.11.0", "0.12.0", "0.14.0", "0.20.0", "1.0.9", "1.1.0"),
}
"""Versions from which a set of numbers holds: where an engine's stack changed. TensorRT-LLM 1.0.9 is the build for gpt-oss; all
rows of 0.12 are static batches of its example script, which handles every sequence in Python."""

SHARED = {("trtllm", "1.1.0"): ("trtllm", "0.20.0")}
"""Eras with the numbers of an earlier one: the stack is that from before the build for gpt-oss."""

Era: TypeAlias = tuple[str, str]
"""Engine, and the version from which the numbers hold."""

FIRST_GENERATION: frozenset[Era] = frozenset(
    {
        ("vllm", "0.5.0"),
        ("vllm", "0.7.0"),
        ("trtllm", "0.7.0"),
        ("trtllm", "0.11.0"),
        ("trtllm", "0.12.0"),
        ("trtllm", "0.14.0"),
    }
)
"""Eras of vLLM's first engine and of TensorRT-LLM's compiled engines: the host schedules between steps. The others run ahead."""

RULERS = ("group", "model", "device", "source", "generation")
"""What is left out as a whole, to see how well it is predicted unseen; a generation of an engine is an era."""
STRANGER, LATER = "source and model", "source, model and generation"
"""Several are left out at once: what a run sees that nobody of the fit's sources made, of a model that it does not know; and on an engine that came later."""


@dataclass(frozen=True, slots=True)
class Item:
    """One row, ready to be predicted with any host times."""

    row: Mapping[str, str]
    benchmark: Benchmark
    replica: Replica
    weight: float
    group: str
    """Source, model and device."""

    @property
    def parts(self) -> Mapping[str, str]:
        """Return what the row is part of, by ruler."""
        names = {"model": "group_model", "device": "gpu", "source": "source_family"}
        own = {ruler: self.row.get(name) or "" for ruler, name in names.items()}
        return {"group": self.group, "generation": ":".join(era_of(self))} | own


def items_of(rows: Iterable[Mapping[str, str]]) -> list[Item]:
    """Return the core rows that can be predicted."""
    items = []
    for row in rows:
        if not is_core(row):
            continue
        try:
            benchmark = benchmark_of(row)
            if benchmark.drafts is not None:
                continue  # its steps are rounds, whose time is not that of a decode step
            replica = replica_of(benchmark_spec(benchmark))
        except CapplanError:
            continue
        items.append(Item(row, benchmark, replica, row_weight(row), row.get("group") or ""))
    return items


def era_of(item: Item) -> Era:
    """Return the engine and the version from which its numbers hold; of several eras that share them, the first."""
    profile = item.replica.spec.profile
    key = version_key(profile.asked_version or profile.version) or (999, 0, 0)
    older = [since for since in ERAS[profile.engine] if (version_key(since) or (0, 0, 0)) <= key]
    era = (profile.engine, older[-1] if older else ERAS[profile.engine][0])
    return SHARED.get(era, era)


def replica_with(item: Item, host: HostOverhead) -> Replica:
    """Return the replica of a row with some host times; the graphs that the engine captured are the row's own."""
    spec = item.replica.spec
    stream_s = host.stream_s if spec.profile.streams_in_engine else 0.0
    own = replace(host, graph_tokens=spec.profile.host.graph_tokens, stream_s=stream_s)
    table = table_of_plan(with_host(item.replica.device_tables, own, spec.network, offline=spec.offline), 0)
    return replace(item.replica, table=table)


def predicted_columns(item: Item, host: HostOverhead, most_requests: int | None = None) -> dict[str, float]:
    """Return the columns of a row with some host times.

    Parameters
    ----------
    item : the row
    host : times
    most_requests : [-]
        requests to replay at most; None: as many as the benchmark sent

    Returns
    -------
    columns of measured rows; empty where the run cannot be replayed
    """
    benchmark = item.benchmark
    if most_requests is not None and requests_of(benchmark) > most_requests:
        benchmark = replace(benchmark, requests=most_requests)
    try:
        return replayed_columns(benchmark, Servers(replica_with(item, host)))
    except CapplanError:
        return {}


STEERING = (("ttft_ms_p50", "ttft_ms_mean"), ("tpot_ms_mean", "tpot_ms_p50"))
"""Columns that steer the fit, the first that a row has: a mean TTFT holds cold starts, which are not the host's."""


def steering_columns(item: Item) -> list[str]:
    """Return the columns that steer the fit: latencies of a server, throughput of a batch."""
    measured = measured_columns(item.row)
    latency = [next(c for c in names if c in measured) for names in STEERING if measured.keys() & set(names)]
    return latency or [c for c in ("output_tok_s",) if c in measured]


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """A row and one prediction for each of its measured values."""

    item: Item
    load: str
    predictions: tuple[Prediction, ...]
    """Their metric is kind:column."""


def predicted_row(item: Item, host: HostOverhead) -> PredictedRow:
    """Return the predictions of a row with some host times."""
    columns, kind = predicted_columns(item, host), item.row.get("kind", "")
    predictions = tuple(
        Prediction(item.row.get("id", ""), f"{kind}:{name}", value, columns.get(name), weight=item.weight)
        for name, value in measured_columns(item.row).items()
        if name != STABLE
    )
    return PredictedRow(item, load_of(item.benchmark, columns), predictions)
