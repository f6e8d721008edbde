"""The engines behind a measured row: replicas behind a router, or separate pools, and the host memory that keeps evicted prompts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from capplan.errors import InputError
from capplan.model.sharding import Sharding
from capplan.serving.terms import Routing

_POOLS = re.compile(r"(\d+)\s*P\s*(?:\(([^)]*)\))?\s*\+\s*(\d+)\s*D\s*(?:\(([^)]*)\))?(?:\s*\(([^)]*)\))?")
_COUNT = re.compile(r"\d+(?:\.0*)?")
_RANKS = re.compile(r"(TP|DP)\s*(\d+)", re.IGNORECASE)
_POOL_LAYOUT = r"{} (?:\d+ x )?((?:(?:TP|DP)\s*\d+\s*/?\s*)+)"
_HOST_BYTES = re.compile(
    r"(?:cpu-offload-|\b)(\d+(?:\.\d+)?) ?GiB CPU tier|CPU tier (\d+(?:\.\d+)?) GiB|cpu-offload-(\d+(?:\.\d+)?)GiB",
    re.IGNORECASE,
)
_HOST_TOKENS = re.compile(r"CPU (\d+(?:\.\d+)?)M tokens", re.IGNORECASE)

_TIERS_UNSEEN = re.compile(r"cpu index weight 0(?:\.0{1,9})?(?![\d.])")
"""Words of a router that gives blocks in host memory no weight."""

ROUTERS: tuple[tuple[str, Routing], ...] = (
    ("round robin", "round_robin"),
    ("random", "random"),
    ("prefix", "prefix_aware"),
    ("affinity", "prefix_aware"),
    ("precise", "prefix_aware"),
    ("approx", "prefix_aware"),
    ("load", "least_loaded"),
    ("least", "least_loaded"),
    ("token-aware", "least_loaded"),
    ("own dispatch", "round_robin"),
    ("none", "round_robin"),
)
"""Word in the column `router` -> the rule of the simulator, the first that occurs; a load generator that deals requests itself takes turns."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Identical engines that only prefill or only decode."""

    replicas: int
    sharding: Sharding


@dataclass(frozen=True, slots=True)
class Deployment:
    """The engines that served a run."""

    replicas: int = 1
    """Identical engines; with separate pools those of both."""
    routing: Routing = "round_robin"
    """Routing of the replicas, or of the prefill pool."""
    pools: tuple[Pool, Pool] | None = None
    """Prefill and decode; None: every engine does both."""
    host_cache_bytes: float = 0.0
    """Host memory of one replica for evicted blocks ..."""
    host_cache_tokens: float = 0.0
    """... or its size in tokens, where that is what the row states."""
    pulls: bool = False
    """Engines pull the prompts that others have cached."""


AGGREGATED = Deployment()
"""One engine."""


def routing_named(text: str) -> Routing:
    """Return the rule of a router that a text describes.

    Parameters
    ----------
    text : such as `Kubernetes Service round robin`, `load only`, `precise prefix affinity`; empty: turns

    Returns
    -------
    the rule; InputError where no word is known

    Examples
    --------
    >>> routing_named("llm-d prefix affinity + load"), routing_named("load only"), routing_named("")
    ('prefix_aware', 'least_loaded', 'round_robin')
    >>> routing_named("llm-d precise; CPU index weight 0.4"), routing_named("llm-d precise; CPU index weight 0.0")
    ('prefix_aware', 'gpu_prefix_aware')
    """
    lower = text.lower()
    if not lower.strip():
        return "round_robin"
    for word, routing in ROUTERS:
        if word in lower:
            return (
                "gpu_prefix_aware" if routing == "prefix_aware" and _TIERS_UNSEEN.search(lower) else routing
            )
    raise InputError(
        f"router: {text!r} is not modelled; known are words such as round robin, random, load, prefix and affinity"
    )


def deployment_of(row: Mapping[str, str], *, split: bool) -> Deployment:
    """Return the engines that served a row.

    Parameters
    ----------
    row : its columns replicas, router, num_gpus, tp, pp, ep, dp, and config_basis for the layouts of pools
    split : prefill and decode ran on separate engines

    Returns
    -------
    the deployment; InputError names what is not modelled or not stated
    """
    said = " ".join(row.get(name) or "" for name in ("router", "prefix_state", "flags")).lower()
    pulls = "p2p" in said or "pulled" in said or "+ pull" in said
    if pulls and (split or (row.get("kind") or "").strip() == "first_token"):
        raise InputError(
            "router: a prompt that one engine pulls from another is replayed in a fleet without pools; by itself it times the link"
        )
    size = _host_cache(row)
    text = (row.get("replicas") or "").strip()
    if split:
        pools = _pools(row, text)
        return Deployment(
            pools[0].replicas + pools[1].replicas,
            "least_loaded" if not row.get("router") else routing_named(row["router"]),
            pools,
            *size,
        )
    if text and not _COUNT.fullmatch(text):
        raise InputError(f"replicas: {text!r} is not a whole number of identical engines")
    count = int(float(text)) if text else 1
    if count < 1:
        raise InputError(f"replicas: {text!r} must be at least 1")
    return Deployment(
        count,
        routing_named(row.get("router") or "") if count > 1 else "round_robin",
        None,
        *size,
        pulls=pulls and count > 1,
    )


def _host_cache(row: Mapping[str, str]) -> tuple[float, float]:
    """Return the bytes or else the tokens of host memory of one replica that keeps evicted blocks."""
    text = " ".join(row.get(name) or "" for name in ("prefix_state", "config_basis", "arm"))
    tokens, found = _HOST_TOKENS.search(text), _HOST_BYTES.search(text)
    if tokens and re.fullmatch(_COUNT, row.get("replicas") or ""):
        return 0.0, 1e6 * float(tokens[1]) / float(row["replicas"])
    return (float(next(part for part in found.groups() if part)) * 2.0**30 if found else 0.0), 0.0


def _pools(row: Mapping[str, str], text: str) -> tuple[Pool, Pool]:
    """Return the prefill and the decode pool of a row: from `8P(TP1)+2D(TP4)`, else with layouts that config_basis states."""
    counts = _POOLS.fullmatch(text)
    if counts is None:
        raise InputError(
            f"replicas: {text!r} does not name one prefill and one decode pool\n  write '8P(TP1)+2D(TP4)'"
        )
    basis = row.get("config_basis") or ""
    pools = []
    for place, name in ((1, "prefill"), (3, "decode")):
        own = counts[place + 1] or ""
        found = re.search(_POOL_LAYOUT.format(name), basis, re.IGNORECASE)
        layout = own or (found[1] if found else "")
        pools.append(Pool(int(counts[place]), _sharding_named(layout, row)))
    devices = sum(pool.replicas * float(pool.sharding.devices) for pool in pools)
    stated = float(row.get("num_gpus") or devices)
    if devices != stated:
        raise InputError(
            f"replicas: the pools of {text!r} have {devices:g} GPUs, and num_gpus is {stated:g}\n"
            "  write the layout of each: '8P(TP1)+2D(TP4)'"
        )
    return pools[0], pools[1]


def _sharding_named(layout: str, row: Mapping[str, str]) -> Sharding:
    """Return the layout of `TP4` or `DP8`, whose experts are spread over its ranks where the row has expert parallelism; else the row's."""
    ranks = {name.upper(): float(count) for name, count in _RANKS.findall(layout)}
    columns = {name: float(row.get(name) or 1.0) for name in ("tp", "pp", "ep", "dp")}
    if not ranks:
        return Sharding(columns["tp"], columns["pp"], columns["ep"], columns["dp"])
    tensor, data = ranks.get("TP", 1.0), ranks.get("DP", 1.0)
    expert = tensor * data if columns["ep"] > 1.0 or data > 1.0 else 1.0
    return Sharding(tensor, columns["pp"], expert, data)
