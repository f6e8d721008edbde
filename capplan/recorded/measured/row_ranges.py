"""Impossible numbers in a measured row, detected before anything is predicted from them."""

from collections.abc import Mapping
from math import isfinite

from capplan.accuracy.benchmark import MOST_REQUESTS
from capplan.recorded.measured.table import MeasuredKind

_RANKS = (1.0, 4096.0)
_TOKENS = (1.0, 2e6)
RANGES: dict[MeasuredKind, dict[str, tuple[float, float]]] = {
    "serving": {
        "num_gpus": _RANKS, "tp": _RANKS, "pp": _RANKS, "ep": _RANKS, "dp": _RANKS, "isl": _TOKENS, "osl": (0.0, 2e6),
        "concurrency": (1.0, 1e5), "request_rate": (0.0, 1e5), "batch_static": (1.0, 1e5), "weight": (0.0, 1e6),
        "requests": (1.0, MOST_REQUESTS), "requests_per_client": (1.0, 1e5), "duration_s": (1e-3, 1e7),
        "max_num_seqs": (1.0, 1e6), "max_num_batched_tokens": (1.0, 1e8), "kv_blocks": (1.0, 1e9),
    },
    "memory": {
        "gpu_memory_gib": (0.1, 1e4), "tp": _RANKS, "pp": _RANKS, "max_model_len": (1.0, 1e8),
        "gpu_memory_utilization": (1e-3, 1.0), "max_num_seqs": (1.0, 1e6), "max_num_batched_tokens": (1.0, 1e8),
        "block_size": (1.0, 1e6), "ep": _RANKS, "dcp": _RANKS,
    },
    "kernel": {
        **dict.fromkeys(
            ("m", "n", "k", "seq", "query_tokens", "num_tokens", "seq_len", "hidden_size", "inter_size", "d_model"),
            (1.0, 1e8),
        ),
        **dict.fromkeys(
            ("batch", "num_heads", "num_kv_heads", "head_dim", "topk", "num_experts", "d_conv", "num_k_heads",
             "head_k_dim", "num_v_heads", "head_v_dim", "nheads", "d_state", "n_groups"), (1.0, 1e5),
        ),
        **dict.fromkeys(("moe_tp_size", "moe_ep_size", "tp_size", "num_gpus", "ep_size"), _RANKS),
        "past_tokens": (0.0, 1e8), "window_size": (0.0, 1e8), "message_bytes": (1.0, 1e12),
    },
}  # fmt: skip
"""Kind of results -> column -> least and largest value that is read; an empty cell is unknown."""

_UNLIMITED = frozenset({"request_rate"})
"""Columns in which `inf` has a meaning: all requests at once."""


def impossible_number(row: Mapping[str, str], kind: MeasuredKind) -> str | None:
    """Return what is wrong with the numbers of a row, or None where all are possible.

    Parameters
    ----------
    row : text by column name
    kind : whose columns they are

    Examples
    --------
    >>> impossible_number({"tp": "8", "isl": "1e30"}, "serving")
    'isl: 1e30 is out of range (1 to 2000000)'
    >>> impossible_number({"m": "many"}, "kernel")
    "m: 'many' is not a number"
    """
    for key, (least, most) in RANGES[kind].items():
        text = (row.get(key) or "").strip()
        if text.lower() in {"", "nan"}:
            continue
        try:
            value = float(text)
        except ValueError:
            return f"{key}: {text!r} is not a number"
        if key in _UNLIMITED and not isfinite(value) and value > 0:
            continue
        if not least <= value <= most:
            return f"{key}: {text} is out of range ({least:.10g} to {most:.10g})"
    return None
