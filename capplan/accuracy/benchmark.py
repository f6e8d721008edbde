"""The benchmark behind one measured row: its requests, their arrivals, and the replica that served them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, TypeAlias, get_args

from capplan.accuracy.cells import is_set, number_in
from capplan.accuracy.deployment import (
    AGGREGATED,
    INSIDE,
    PHASES,
    Deployment,
    deployment_of,
    engine_inside,
    pool_of_gpus,
    sharding_of,
    stated_sharding,
    with_identical_engines,
)
from capplan.accuracy.drafts import Drafts, drafts_of
from capplan.accuracy.lengths import AGENTIC, AGENTIC_HITS, answers_uncounted, lengths_named, mean_lengths
from capplan.accuracy.shared_prompts import (
    Conversation,
    SharedPrompts,
    conversation_of,
    shared_prompts_of,
    stated_hit_fraction,
)
from capplan.assumption import Assumption
from capplan.engine.versions import version_of
from capplan.errors import InputError, unknown
from capplan.model.sharding import Sharding

Kind: TypeAlias = Literal[
    "offline_max",
    "offline_burst",
    "online_burst",
    "static_batch",
    "first_token",
    "online_conc",
    "online_rate",
    "online_rate_slo",
    "decode_only",
    "prefill_only",
    "step_time",
]

Arrivals: TypeAlias = Literal["poisson", "constant"]


LIMITS = ("max_num_seqs", "max_num_batched_tokens", "kv_blocks")
"""Columns with the limits that the engine was started with."""

MOST_FAILED = 0.1
"""Maximum fraction of failed requests at which the latencies of the others stand for all."""

ONE_GPU = Assumption("one GPU", "num_gpus")
AT_ONCE_SOURCE = "gpustack"
"""Source whose runs without clients send all requests at once: their time to first token is the queue
(https://github.com/gpustack/gpustack, performance lab)."""
AS_MANY_CLIENTS = Assumption("as many clients as keep the engines full", "concurrency")

MOST_REQUESTS = 1_000_000
"""Maximum requests of one run that are replayed."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """How one row was measured."""

    kind: Kind
    engine: str
    engine_version: str | None
    model: str
    weight_format: str
    kv_format: str
    device: str
    sharding: Sharding
    input_tokens: float
    output_tokens: float
    lengths: str
    concurrency: int | None
    request_rate: float | None
    requests: int | None
    static_batch: int | None
    limits: Mapping[str, int] = field(hash=False)
    """Limits of `LIMITS` that the row states."""
    memory_fraction: float | None = None
    """Share of the memory that the engine was started with; None: as its source's scripts say, else its default."""
    source: str = ""
    """Publisher of the row; some publish the launch settings of their servers elsewhere."""
    date: str = ""
    """Day or month of the run, or two months as `2025-12..2026-01`."""
    offered_rate_reported: bool = False
    """The request rate of the row counts requests sent, not finished."""
    deployment: Deployment = AGGREGATED
    """The engines behind the row; `sharding` is that of one replica, with separate pools of a prefill replica."""
    shared: SharedPrompts | None = None
    """Which prompts begin alike; None: none do, or prompts are not cached."""
    conversation: Conversation | None = None
    """The clients of a closed loop hold conversations of several turns."""
    cached_fraction: float = 0.0
    """Share of the prompt tokens that the row says were found in the cache."""
    stage_s: float | None = None
    """Time for which an open loop sends; with the number of requests both are fixed."""
    arrivals: Arrivals = "poisson"
    drafts: Drafts | None = None
    """Speculative decoding; None: a step makes one token."""
    batch_per_gpu: float | None = None
    """Decoding sequences of each GPU of a decode engine, as the row states or implies them; None: as many as fit."""
    decoding: float | None = None
    """Sequences that decode at once, by the row's throughput times its time per token (Little's law); None where it does not state both."""
    gaps_reported: bool = False
    """Percentiles of the time per output token are those of the gaps between tokens, not of the means of requests."""
    output_implied: bool = False
    """Mean outputs follow from the row's own throughput, so that predicting it would test nothing."""
    assumptions: tuple[Assumption, ...] = ()
    """What the row does not state, and what is taken in its place."""
    front_end_s: float = 0.0
    """Time that a request takes before it reaches an engine, as the row states it: a service that tokenises prompts."""
    slo_ttft_s: float | None = None
    """Limit on the 99th percentile of the TTFT, of `online_rate_slo`."""
    slo_tpot_s: float | None = None


LARGER_CARDS = {"H20": "h20-3e"}
"""Names that are printed for cards of two sizes -> the larger one; the catalogue has the smaller one by this name."""
_OF_TWO_SIZES = Assumption(
    "a card that is sold in two sizes: the smaller, unless more sequences decode than it holds (Little's law)",
    "gpu",
)


def _decoding(row: Mapping[str, str]) -> float | None:
    """Return the sequences that decode at once, by throughput and time per token."""
    token_ms = number_in(row, "tpot_ms_mean") or number_in(row, "tpot_ms_p50")
    speed = number_in(row, "output_tok_s")
    return speed * token_ms / 1e3 if speed and token_ms else None


def source_of(row: Mapping[str, str]) -> str:
    """Return who published a row: the family of its source, else the first part of its group, else the source.

    Examples
    --------
    >>> source_of({"group": "accelmark|llama3-8b|h20"}), source_of({"source": "SGLang cookbook"})
    ('accelmark', 'SGLang cookbook')
    """
    family = row.get("source_family") or (row.get("group") or "").partition("|")[0]
    return (family or row.get("source") or "").strip()


def _version_inside(row: Mapping[str, str]) -> str | None:
    """Return the version that is replayed for an engine that is not published; None for every other engine."""
    _, version = INSIDE.get((row.get("engine") or "").strip().lower(), ("", None))
    return version


def _requests(row: Mapping[str, str], concurrency: int | None, rate: float | None) -> int | None:
    """Return the number of requests of a row: stated, per client, or from the duration of the run."""
    stated = number_in(row, "requests") or number_in(row, "n_requests")
    each, seconds = (
        number_in(row, "requests_per_client"),
        number_in(row, "duration_s") or number_in(row, "stage_s"),
    )
    if stated:
        return int(stated)
    if each and concurrency:
        return int(each * concurrency)
    return max(1, round(seconds * rate)) if seconds and rate else None


LOADS = "request_rate", "concurrency", "batch_static"
"""Columns that say how many requests there are at once, or how often one comes."""


def benchmark_of(row: Mapping[str, str]) -> Benchmark:
    """Return the benchmark that a row of measured serving results describes; InputError where it cannot be known."""
    named = (row.get("kind") or "").strip()
    kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    if named not in kinds:
        raise unknown("kind", named, kinds)
    kind, unbounded = _kind_replayed(row, kinds[named])
    engine, packaged, inside = engine_inside(row.get("engine") or "")
    model = _named(row, "model_hf_id", "a name of capplan list, or the path of a config.json")
    device = _named(row, "gpu", "its name, such as H200; the notes do not name one either")
    drafts = drafts_of(row["spec_decode"]) if is_set(row.get("spec_decode")) else None
    conversation = conversation_of(row)
    lengths = mean_lengths(row, kind, conversation)
    deployment, sharding = _with_context_ranks(row, *_engines(row, kind))
    rate, concurrency, static = (number_in(row, name) for name in LOADS)
    date = (row.get("date") or "").strip()
    # NIM and Dynamo count their versions on their own: the date says which engine is inside.
    version = "" if packaged else (row.get("engine_version") or "").strip()
    requests = _requests(row, int(concurrency) if concurrency else None, rate)
    limit = {name: number_in(row, f"slo_{name}_ms") for name in ("ttft", "tpot")}
    _refuse_unreplayable(row, kind, requests, limit)
    cached, hits = _cached_fraction(row)
    batch, batched = _batch_per_gpu(row, kind)
    unstated = (*unbounded, _OF_TWO_SIZES) if device in LARGER_CARDS else unbounded
    return Benchmark(
        kind=kind,
        engine=engine,
        engine_version=version or _version_inside(row) or version_of(engine, date, candidates=not packaged),
        model=model,
        weight_format=(row.get("weights_dtype") or "auto").strip(),
        kv_format=(row.get("kv_dtype") or "auto").strip(),
        device=device,
        sharding=sharding,
        input_tokens=lengths.input_tokens,
        output_tokens=lengths.output_tokens,
        lengths=lengths_named(row),
        concurrency=int(concurrency) if concurrency else None,
        request_rate=rate,
        requests=requests,
        static_batch=int(static) if static else None,
        limits=_limits(row, engine, sharding),
        memory_fraction=number_in(row, "gpu_memory_utilization"),
        source=source_of(row),
        date=date,
        offered_rate_reported=is_set(row.get("offered_rate_reported")),
        deployment=deployment,
        shared=None if conversation else shared_prompts_of(row),
        conversation=conversation,
        cached_fraction=cached,
        stage_s=number_in(row, "stage_s") if row.get("n_requests") else None,
        arrivals=arrivals_named(row),
        drafts=drafts,
        gaps_reported=row.get("tpot_is") == "ITL" and drafts is None,
        batch_per_gpu=batch,
        decoding=_decoding(row),
        output_implied=lengths.output_implied,
        assumptions=(*inside, *deployment.assumptions, *lengths.assumptions, *hits, *batched, *unstated),
        front_end_s=(number_in(row, "front_end_ms") or 0.0) / 1e3,
        slo_ttft_s=limit["ttft"] and limit["ttft"] / 1e3,
        slo_tpot_s=limit["tpot"] and limit["tpot"] / 1e3,
    )


def _kind_replayed(row: Mapping[str, str], kind: Kind) -> tuple[Kind, tuple[Assumption, ...]]:
    """Return the kind that a row is replayed as, and what was assumed of its clients.

    A closed loop without clients, but with a number of requests, sent them all at once; without either it keeps engines full.
    """
    counted = (
        row.get("requests") or row.get("n_requests") or AT_ONCE_SOURCE in (row.get("source") or "").lower()
    )
    if kind == "online_conc" and not row.get("concurrency") and counted:
        return "online_burst", (Assumption("all requests at once", "concurrency"),)
    return kind, (AS_MANY_CLIENTS,) if kind == "online_conc" and not row.get("concurrency") else ()


def _named(row: Mapping[str, str], key: str, way: str) -> str:
    """Return the name in a cell that has to have one."""
    name = (row.get(key) or "").strip()
    if not name:
        raise InputError(f"{key}: missing\n  write {way}")
    return name


def _engines(row: Mapping[str, str], kind: Kind) -> tuple[Deployment, Sharding]:
    """Return the engines behind a row and the layout of one of them, with separate pools of a prefill engine.

    A run of one phase is that of its pool.
    """
    phase = PHASES.get(kind)
    if phase is not None:
        gpus = number_in(row, f"{phase}_gpus") or number_in(row, "num_gpus")
        stated = stated_sharding(row, gpus, int(phase == "decode"))
        if gpus is None:
            return (
                (AGGREGATED, stated) if stated else (replace(AGGREGATED, assumptions=(ONE_GPU,)), Sharding())
            )
        count, sharding, assumed = pool_of_gpus(row, gpus, phase, both=False)
        return replace(AGGREGATED, replicas=count, assumptions=assumed), sharding
    split = is_set(row.get("disagg")) or bool(row.get("prefill_gpus") and row.get("decode_gpus"))
    deployment = deployment_of(row, split=split)
    if deployment.pools:
        return deployment, deployment.pools[0][1]
    if not number_in(row, "num_gpus") and stated_sharding(row, None) is None:
        return replace(deployment, assumptions=(ONE_GPU,)), Sharding()
    deployment = with_identical_engines(row, deployment)
    sharding, assumed = sharding_of(row, deployment.replicas)
    return replace(deployment, assumptions=(*deployment.assumptions, *assumed)), sharding


_ALL_RANKS = Assumption("decode context parallelism over all tensor-parallel ranks", "dcp")


def _with_context_ranks(
    row: Mapping[str, str], deployment: Deployment, sharding: Sharding
) -> tuple[Deployment, Sharding]:
    """Return the layout with its decode context parallelism: over as many ranks as the row states, or over all where it names none."""
    text, tensor = (row.get("dcp") or "").strip(), float(sharding.tensor)
    if text in {"", "1"}:
        return deployment, sharding
    ranks = None if text == "DCP" else number_in(row, "dcp")
    if deployment.pools or tensor % (ranks or tensor):
        raise InputError(
            f"dcp: {text} is replayed of one engine whose tp it divides; tp is {tensor:g}\n"
            "  write tp and dcp of one engine, or give another run: dcp 1"
        )
    if ranks is None:
        deployment = replace(deployment, assumptions=(*deployment.assumptions, _ALL_RANKS))
    return deployment, replace(sharding, context=ranks or tensor)


def _cached_fraction(row: Mapping[str, str]) -> tuple[float, tuple[Assumption, ...]]:
    """Return the share of the prompt tokens that hit in the cache, and what was assumed."""
    stated = number_in(row, "prefix_hit_fraction")
    if stated is not None or row.get("prefix_state"):
        return (stated_hit_fraction(row) if stated is None else stated), ()
    most = number_in(row, "most_prefix_hit_fraction")
    if most is not None:
        note = f"{most:.0%} of the prompt tokens hit in the cache, the most that the row states"
        return most, (Assumption(note, "prefix_hit_fraction"),)
    if AGENTIC.search(lengths_named(row)):
        note = f"{AGENTIC_HITS:.0%} of the prompt tokens hit in the cache, as in published agentic traces"
        return AGENTIC_HITS, (Assumption(note, "prefix_hit_fraction"),)
    return 0.0, ()


def _batch_per_gpu(row: Mapping[str, str], kind: Kind) -> tuple[float | None, tuple[Assumption, ...]]:
    """Return the decoding sequences of each GPU of a decode engine, stated or by Little's law, and what was assumed."""
    if kind == "step_time":
        stated = number_in(row, "batch_per_gpu")
        return stated, () if stated else (
            Assumption("one prompt on each group of attention", "batch_per_gpu"),
        )
    if kind != "decode_only":
        return None, ()
    gpus = number_in(row, "decode_gpus") or number_in(row, "num_gpus")
    stated, clients = number_in(row, "batch_per_gpu"), number_in(row, "concurrency")
    if stated:
        return stated, ()
    if clients and gpus:
        return clients / gpus, ()
    rate, total = number_in(row, "output_tok_s_per_gpu"), number_in(row, "output_tok_s")
    rate = rate or (total / gpus if total and gpus else None)
    tpot = number_in(row, "tpot_ms_mean") or number_in(row, "tpot_ms_p50")
    if rate and tpot:
        note = "as many sequences decode on a GPU as its throughput times the time per token (Little's law)"
        return rate * tpot / 1e3, (Assumption(note, "batch_per_gpu"),)
    return None, (
        Assumption("as many sequences decode as the engine runs and its cache holds", "batch_per_gpu"),
    )


def _limits(row: Mapping[str, str], engine: str, sharding: Sharding) -> dict[str, int]:
    """Return the limits that the engine was started with, in the way that it counts them.

    SGLang shares its limits out to the groups of attention; other engines give each group all.
    """
    limits = {key: int(value) for key in LIMITS if (value := number_in(row, key))}
    if tokens := number_in(row, "tokens_per_gpu_step"):
        groups = float(sharding.data) if engine == "sglang" else 1.0
        limits["max_num_batched_tokens"] = int(tokens * float(sharding.tensor) * groups)
    return limits


@dataclass(frozen=True, slots=True)
class Untold:
    """Why a replay of a row tells less than the row has."""

    reason: str
    told: tuple[str, ...] = ("",)
    """Beginnings of the columns that it tells; an empty text begins all."""
    hidden: tuple[str, ...] = ()
    """Columns that it does not tell all the same."""

    def hides(self, column: str) -> bool:
        """Return whether a column is not told."""
        return column in self.hidden or not column.startswith(self.told)


def untold(row: Mapping[str, str], benchmark: Benchmark) -> Untold | None:
    """Return why a replay of a row tells less than the row has; None if it tells all."""
    failed = (number_in(row, "n_failed") or 0.0) / (benchmark.requests or inf)
    if failed > MOST_FAILED:
        return Untold(
            f"n_failed: {failed:.0%} of the requests failed, and the latencies are those of the others",
            ("stable",),
        )
    if answers_uncounted(row):
        return Untold(
            "osl: not stated, and answers ended by themselves: replayed with one token, which tells TTFT and saturation",
            ("stable", "ttft"),
        )
    if benchmark.kind == "prefill_only" and benchmark.concurrency is None:
        return Untold(
            "concurrency: missing; latencies of a full engine follow from how many prompts wait; write the clients",
            ("input", "req"),
        )
    if benchmark.output_implied:
        return Untold(
            "osl: not stated, and derived from the throughput of the row, which is no test of it; write the mean output tokens",
            hidden=("output_tok_s", "total_tok_s", "req_s", "output_tok_s_per_gpu", "input_tok_s_per_gpu"),
        )
    return None


def _refuse_unreplayable(
    row: Mapping[str, str], kind: Kind, requests: int | None, limit: Mapping[str, float | None]
) -> None:
    """Raise the error for a run that is too long, or whose load or limits are not stated."""
    if requests and requests > MOST_REQUESTS and kind != "online_rate_slo":
        raise InputError(f"requests: {requests} exceed the {MOST_REQUESTS} that can be replayed")
    if kind == "online_rate_slo" and not any(limit.values()):
        raise InputError("slo_ttft_ms, slo_tpot_ms: missing; the largest rate is the one at which they hold")
    if kind == "online_conc" and not number_in(row, "concurrency") and _measures_latency(row):
        raise InputError(
            "concurrency: missing; the latencies of a closed loop follow from its clients\n"
            "  write the clients, or the requests if all were sent at once"
        )


def _measures_latency(row: Mapping[str, str]) -> bool:
    return any(value and name.startswith(("ttft_ms", "tpot_ms", "e2e_ms")) for name, value in row.items())


def arrivals_named(row: Mapping[str, str]) -> Arrivals:
    """Return how the requests of an open loop come: Poisson unless the row says otherwise.

    Examples
    --------
    >>> arrivals_named({"arrivals": "poisson (fixed count)"}), arrivals_named({"arrivals": "constant"})
    ('poisson', 'constant')
    """
    text = (row.get("arrivals") or "").strip().lower()
    names: tuple[Arrivals, ...] = get_args(Arrivals)
    for name in names:
        if text.startswith(name):
            return name
    if text:
        raise unknown("arrivals", text, get_args(Arrivals))
    return "poisson"
