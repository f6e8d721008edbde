"""What `capplan kv-size` shows."""

from collections.abc import Sequence
from dataclasses import asdict

from capplan.memory.kv_size import KvSize, KvSizes
from capplan.report.answer import Answer, Table

_SHOWN = (
    "context_tokens", "kv_bytes_per_token", "kv_bytes_per_sequence", "state_bytes_per_sequence",
    "engine_reserved_bytes_per_sequence", "kv_bytes_total", "kv_bytes_per_gpu", "engine_reserved_bytes_per_gpu",
)  # fmt: skip
_RESERVED = ("engine_reserved_bytes_per_sequence", "engine_reserved_bytes_per_gpu")
_RESTS_ON = {
    "kv_dtype": tuple(name for name in _SHOWN if "kv_bytes" in name or "reserved" in name),
    "max_num_batched_tokens": _RESERVED,
    "engine_version": _RESERVED,
}
"""Setting that was assumed -> the columns that rest on it."""
_TITLES = {
    "kv_bytes_per_token": "growth",
    "kv_bytes_per_sequence": "used",
    "engine_reserved_bytes_per_sequence": "allocated",
    "kv_bytes_total": "total",
    "kv_bytes_per_gpu": "used",
    "engine_reserved_bytes_per_gpu": "allocated",
}


def kv_answer(sizes: KvSizes) -> Answer:
    """Return the sizes, with a warning for each context longer than the model supports."""
    rows = [asdict(size) for size in sizes.rows]
    first, network, engine = sizes.rows[0], sizes.network, sizes.engine
    limit = network.max_context_tokens
    noun = "sequence" if first.sequences == 1 else "sequences"
    headline = (
        f"{network.name}: KV cache in {first.kv_dtype}, {first.sequences} {noun}, TP {first.tensor_parallel}"
    )
    if network.bidirectional:
        headline = f"{network.name}: no KV cache: an encoder reads a prompt whole and keeps nothing of it"
    columns = {name for a in sizes.assumptions for name in _RESTS_ON.get(a.key, ())}
    return Answer(
        command="kv-size",
        result={
            "model": network.name,
            "engine": engine.engine,
            "engine_version": engine.version,
            "rows": rows,
        },
        tables=(
            Table(
                rows,
                shown=_informative(sizes.rows),
                titles=_TITLES,
                assumed=frozenset((i, name) for i in range(len(rows)) for name in columns if rows[i][name]),
            ),
        ),
        headline=headline,
        assumptions=sizes.assumptions,
        warnings=tuple(
            f"a context of {size.context_tokens} tokens exceeds the model's maximum of {limit}"
            for size in sizes.rows
            if limit is not None and size.context_tokens > limit
        ),
    )


def _informative(sizes: Sequence[KvSize]) -> tuple[str, ...]:
    """Return the columns that say something: totals of one sequence on one device repeat what is there."""
    silent: set[str] = set()
    if not any(size.state_bytes_per_sequence for size in sizes):
        silent.add("state_bytes_per_sequence")
    if sizes[0].sequences == 1:
        silent.add("kv_bytes_total")
    if sizes[0].sequences == 1 and sizes[0].tensor_parallel == 1:
        silent |= {"kv_bytes_per_gpu", "engine_reserved_bytes_per_gpu"}
    return tuple(name for name in _SHOWN if name not in silent)
