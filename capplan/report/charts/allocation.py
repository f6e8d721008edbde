"""What paging saves, as a chart: blocks as they are needed, against room for the longest sequence from the start."""

from collections.abc import Sequence

from capplan.memory.kv_size import KvSize
from capplan.report.charts.records import Bar, Bars

_NEEDED, _BLOCK, _NEVER = "needed", "rest of the last blocks", "kept for tokens that do not come"


def allocation_chart(sizes: Sequence[KvSize], longest: KvSize) -> Bars:
    """Return what one sequence takes in a paged cache and in one contiguous piece, at each context.

    A contiguous cache reserves the longest context for every sequence, as engines did before paging: Kwon et al. 2023,
    "Efficient memory management for large language model serving with PagedAttention", arXiv:2309.06180, section 3.

    Parameters
    ----------
    sizes : of sequences as long as they are
    longest : of the longest sequence that is allowed
    """
    whole = max(longest.kv_bytes_per_sequence + longest.state_bytes_per_sequence, _needed(longest))
    bars = []
    for size in sizes:
        needed = _needed(size)
        rounded = max(0.0, size.engine_reserved_bytes_per_sequence - needed)
        label = f"{size.context_tokens:,} tokens"
        bars.append(Bar(f"{label}, paged", ((_NEEDED, needed), (_BLOCK, rounded))))
        bars.append(Bar(f"{label}, contiguous", ((_NEEDED, needed), (_NEVER, max(0.0, whole - needed)))))
    title = f"KV cache of one sequence; contiguous reserves {longest.context_tokens:,} tokens"
    return Bars(title, "memory_bytes", tuple(bars))


def _needed(size: KvSize) -> float:
    return float(size.kv_bytes_per_sequence + size.state_bytes_per_sequence)
