"""Files of measured results -> rows: columns, facts in notes and free text, impossible numbers."""

import re
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Literal, TypeAlias

from capplan.accuracy.benchmark import MOST_REQUESTS
from capplan.accuracy.deployment import ATTENTION_DP, engine_inside
from capplan.engine.lookup import profile, version_key
from capplan.engine.versions import version_of
from capplan.errors import InputError, unknown
from capplan.readers.catalogue.hardware import catalogue_name
from capplan.readers.catalogue.recipes import recipe_columns
from capplan.readers.text_file import MAX_RESULT_BYTES, csv_rows, json_values, read_text
from capplan.recorded.results.llamacpp import (
    is_markdown,
    is_of_llamacpp,
    markdown_objects,
    speed_rows,
)

NOTED = {
    "n_requests": "requests", "max_num_seqs": "max_num_seqs", "max_num_batched_tokens": "max_num_batched_tokens",
    "kv_blocks": "kv_blocks",
}  # fmt: skip
"""Name in a note such as `n_requests=100` -> column."""

_PAIR = re.compile(r"\b(\w+)=(\d+)")

_COUNTED = r"(\d[\d,]*)"
WORDED: tuple[tuple[str, "re.Pattern[str]"], ...] = (
    ("requests", re.compile(rf"(?:^|; ){_COUNTED} (?:requests?|prompts?)(?=;|$)|\bof {_COUNTED} ok\b")),
    ("requests_per_client", re.compile(rf"\b{_COUNTED} prompts per slot")),
    ("max_num_batched_tokens", re.compile(rf"\bmax[-_]num[-_](?:batched[-_])?tokens {_COUNTED}")),
    ("tokens_per_gpu_step", re.compile(rf"\b{_COUNTED} tokens(?:/GPU| per device)")),
    ("spec_decode", re.compile(r"\b(MTP\d?) on\b")),
    ("most_prefix_hit_fraction", re.compile(r"prefix hit up to about (0\.\d+)")),
    ("tpot_is", re.compile(r"\btpot columns? holds? (ITL)\b")),
    ("layer_us", re.compile(r"\bone layer of .*\bus:.*\btotal (\d+(?:\.\d+)?)")),
    ("dcp", re.compile(r"\bdecode context parallel (\d+)|^(DCP)\b")),
    ("total_tok_s_per_gpu", re.compile(rf"\b{_COUNTED} TOTAL tok/s/GPU|\b{_COUNTED}/GPU\b.*TOTAL tok/s/GPU")),
)
"""Column -> what notes of published runs say instead of a number in it."""

_PROFILE = re.compile(r"\b(?:low-latency|balanced|high-throughput) (TP|DP)\b|\b(low-latency) profile\b")
PROFILES = {"low-latency": "tp", "TP": "tp", "DP": "dep"}
"""Launch profile of SGLang's pages on a model -> layout: all GPUs for each matrix, or data-parallel attention with experts over all GPUs
(sgl-project/sglang, docs on DeepSeek-V4: low-latency TP, balanced DP+DeepEP, high-throughput DP+MegaMoE)."""

_GPUS = re.compile(r"\b(?:(\d+) ?x ?)?((?:GB|[A-Z])\d{2,3}[A-Z]?)\b")


def noted_columns(notes: str) -> dict[str, str]:
    """Return the columns that notes state, as `name=number` or in words; of a repeated one the first.

    Parameters
    ----------
    notes : text of the column `notes`

    Returns
    -------
    number or word as text by column

    Examples
    --------
    >>> noted_columns("open loop; n_requests=100, kv_blocks=8253; dur_s=76.59")
    {'requests': '100', 'kv_blocks': '8253'}
    >>> noted_columns("balanced DP+DeepEP; 80 requests; max-num-batched-tokens 32768")
    {'requests': '80', 'max_num_batched_tokens': '32768', 'layout': 'dep'}
    """
    columns: dict[str, str] = {}
    for name, number in _PAIR.findall(notes):
        if name in NOTED:
            columns.setdefault(NOTED[name], number)
    for name, words in WORDED:
        found = words.search(notes)
        if found:
            columns.setdefault(name, next(part for part in found.groups() if part).replace(",", ""))
    profile = _PROFILE.search(notes)
    if profile:
        columns["layout"] = PROFILES[profile[1] or profile[2]]
    return columns


def noted_gpu(notes: str) -> dict[str, str]:
    """Return the GPU that notes name, and how many of them where they say; nothing where they name none or several.

    Examples
    --------
    >>> noted_gpu("run on 8xH200, 1 request"), noted_gpu("8xH200 or 4xB200 unclear")
    ({'gpu': 'H200', 'num_gpus': '8'}, {})
    """
    named = {name: count for count, name in _GPUS.findall(notes) if catalogue_name(name)}
    if len(named) != 1:
        return {}
    ((name, count),) = named.items()
    return {"gpu": name} | ({"num_gpus": count} if count else {})


def with_run_columns(row: Mapping[str, str]) -> dict[str, str]:
    """Return a row of serving results with its empty columns filled: from its notes, else from a recipe of its source.

    Parameters
    ----------
    row : text by column name

    Returns
    -------
    the same row; columns that are not empty are kept, and a version that is a month or a commit becomes the release of its day
    """
    notes = row.get("notes") or ""
    known = {**recipe_columns(row), **noted_columns(notes)}
    if not row.get("gpu"):
        known |= noted_gpu(notes)
    full = {**row, **{name: text for name, text in known.items() if not row.get(name)}}
    per_gpu, gpus = full.pop("total_tok_s_per_gpu", ""), full.get("num_gpus") or ""
    if per_gpu and gpus.replace(".", "", 1).isdecimal() and not full.get("total_tok_s"):
        full["total_tok_s"] = f"{float(per_gpu) * float(gpus):g}"
    version = full.get("engine_version") or ""
    if version_key(version) is None and (_month(version) or version.startswith("commit ")):
        full["engine_version"] = _release_of_day(full, version)
    return full


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH_YEAR = re.compile(r"\b(" + "|".join(_MONTHS) + r")[a-z]* (20\d\d)", re.IGNORECASE)
_ISO_MONTH = re.compile(r"\b(20\d\d)(?:-(\d\d))?\b")


def _release_of_day(row: Mapping[str, str], version: str) -> str:
    """Return the release of the month that a version names, such as `nightly 2026-02`; empty where it names none, so that the date of the row decides."""
    month = _month(version)
    try:
        engine = engine_inside(row.get("engine") or "")[0]
    except InputError:  # the row is refused by the name of its engine
        return version
    return (version_of(engine, month) if month else None) or ""


_WEIGHTS = (
    (re.compile(r"float32|fp32", re.IGNORECASE), "fp32"),
    (re.compile(r"bfloat16|float16|bf16|fp16", re.IGNORECASE), "bf16"),
    (re.compile(r"fp8 block", re.IGNORECASE), "fp8_block"),
    (re.compile(r"nvfp4", re.IGNORECASE), "nvfp4"),
    (re.compile(r"mxfp4", re.IGNORECASE), "mxfp4"),
    (re.compile(r"fp8", re.IGNORECASE), "fp8"),
    (re.compile(r"w8a8|int8", re.IGNORECASE), "int8"),
    (re.compile(r"w4a16|int4|awq|gptq", re.IGNORECASE), "int4"),
)

LAST_V0 = "0.7.3"
"""The release whose rules hold for a newer vLLM that was started with its V0 engine."""


def release_of(engine: str, text: str) -> str:
    """Return the release meant by a hand-written version: a number as it is, else the release of its month.

    Parameters
    ----------
    engine : vllm, sglang or trtllm
    text : such as `0.11.2.dev690`, `Nov 2025 (V1)`, `0.8.x (V0)`, `2026-07 pin`

    Returns
    -------
    the release; empty where the text names none

    Examples
    --------
    >>> release_of("vllm", "Nov 2025 (V1)"), release_of("vllm", "0.8.x (V0)"), release_of("vllm", "nightly")
    ('0.11.0', '0.7.3', '')
    """
    release = text
    if version_key(text) is None:
        month = _month(text)
        release = (version_of(engine, month) if month else None) or ""
    if engine == "vllm" and "(V0)" in text and profile(engine, release or None).policy == "mixed":
        return LAST_V0
    return release


def _month(text: str) -> str | None:
    named = _MONTH_YEAR.search(text)
    if named:
        return f"{named[2]}-{_MONTHS.index(named[1].lower()[:3]) + 1:02d}"
    numbered = _ISO_MONTH.search(text)
    return f"{numbered[1]}-{numbered[2] or '12'}" if numbered else None


def weights_dtype_of(text: str) -> str:
    """Return our name of the weight dtype meant by a hand-written quantisation; empty where it names none.

    Examples
    --------
    >>> weights_dtype_of("INT8 W8A8 (compressed-tensors)"), weights_dtype_of("GGUF")
    ('int8', '')
    """
    return next((dtype for pattern, dtype in _WEIGHTS if pattern.search(text)), "")


def with_start_columns(row: Mapping[str, str]) -> dict[str, str]:
    """Return a logged start with the columns that its free text states.

    Parameters
    ----------
    row : text by column name; `engine_version`, `quantization`, `dp_ep` and `notes` are read here and nowhere else

    Returns
    -------
    the same row with `engine_release`, `weights_dtype`, `ep`, `dcp`, `draft_layer` and `enforce_eager`; values
    already in these columns are kept

    Examples
    --------
    >>> full = with_start_columns({"notes": "MTP n=3", "quantization": "NVFP4", "tp": "8", "dp_ep": "dcp8"})
    >>> full["draft_layer"], full["weights_dtype"], full["dcp"]
    ('1', 'nvfp4', '8')
    """
    split, notes = row.get("dp_ep") or "", row.get("notes") or ""
    context = re.search(r"dcp(\d+)", split)
    known = {
        "engine_release": release_of(row.get("engine") or "vllm", row.get("engine_version") or ""),
        "weights_dtype": weights_dtype_of(row.get("quantization") or ""),
        "ep": (row.get("tp") or "") if split.startswith("ep") else "",
        "dcp": context[1] if context else "",
        "draft_layer": "1" if "MTP" in notes else "",
        "enforce_eager": "1" if "eager" in notes.lower() else "",
    }
    return {**row, **{name: text for name, text in known.items() if not row.get(name)}}


MeasuredKind: TypeAlias = Literal["serving", "memory", "kernel", "llamacpp"]

NEEDED: dict[MeasuredKind, tuple[str, ...]] = {
    "kernel": ("gpu", "family", "latency_us"),
    "memory": ("engine", "model_hf_id", "gpu", "gpu_memory_utilization"),
    "serving": ("engine", "model_hf_id", "gpu", "isl", "kind"),
    "llamacpp": ("device", "model", "quant", "gen_tokens", "tok_s"),
}
"""Columns that tell a kind, and that every file of that kind must have."""


_COMPLETE: dict[MeasuredKind, Callable[[Mapping[str, str]], dict[str, str]]] = {
    "serving": with_run_columns,
    "memory": with_start_columns,
}
"""Kind -> what turns the texts of a row into columns."""


def measured_table(path: Path, asked: str | None = None) -> tuple[MeasuredKind, list[dict[str, str]]]:
    """Return the kind of results in a file and its rows, with facts from their notes as columns.

    Parameters
    ----------
    path : CSV, or what llama-bench and llama-batched-bench print; gzipped or not
    asked : the kind; None infers it from the columns

    Returns
    -------
    kind, and text by column name for every row
    """
    rows = _rows(path)
    kind = measured_kind(path, rows, asked)
    complete = _COMPLETE.get(kind)
    return kind, [complete(row) for row in rows] if complete else rows


def _rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file: of a CSV as they stand there, of what llama.cpp's tools print as measured speeds."""
    if ".csv" in path.suffixes:
        rows = measured_rows(path)
        return speed_rows(rows) if is_of_llamacpp(rows[:1]) else rows
    text = read_text(path, kind="a file of measured results", max_bytes=MAX_RESULT_BYTES, unpacked=True)
    if is_markdown(text):
        return speed_rows(markdown_objects(text, str(path)))
    values = json_values(text, str(path)) if text.lstrip()[:1] in ("[", "{") else []
    return speed_rows(values) if is_of_llamacpp(values) else measured_rows(path)


def measured_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, gzipped or not, as text by column name and as they stand there."""
    text = read_text(path, kind="a CSV file of measured results", max_bytes=MAX_RESULT_BYTES, unpacked=True)
    rows = [{key: _cell(value) for key, value in row.items()} for row in csv_rows(text, str(path))]
    if not rows:
        raise InputError(
            f"{path}: no rows\n  the first line names the columns, each further line is a result"
        )
    return rows


def _cell(text: str | None) -> str:
    """Return a cell as text, empty where nothing is known."""
    plain = (text or "").strip()
    return "" if plain.lower() in {"nan", "na", "n/a", "null"} else plain


def measured_kind(path: Path, rows: list[dict[str, str]], asked: str | None) -> MeasuredKind:
    """Return the kind of results in a file: the one given, else inferred from its columns."""
    columns = set(rows[0])
    kinds: dict[str, MeasuredKind] = {kind: kind for kind in NEEDED}
    if asked is not None and asked not in kinds:
        raise unknown("kind", asked, kinds)
    if asked is None:
        fitting = [kind for kind, needed in NEEDED.items() if columns.issuperset(needed)]
        if not fitting:
            lines = "\n".join(f"  {kind}: {', '.join(needed)}" for kind, needed in NEEDED.items())
            raise InputError(f"{path}: the columns match no kind of results; needed are\n{lines}")
        return fitting[0]
    kind = kinds[asked]
    missing = [name for name in NEEDED[kind] if name not in columns]
    if missing:
        raise InputError(
            f"{path}: column {missing[0]!r} is missing for --kind {kind}\n  needed: {', '.join(NEEDED[kind])}"
        )
    return kind


_RANKS = (1.0, 4096.0)
_TOKENS = (1.0, 2e6)
RANGES: dict[MeasuredKind, dict[str, tuple[float, float]]] = {
    "serving": {
        "num_gpus": _RANKS, "tp": _RANKS, "pp": _RANKS, "ep": _RANKS, "dp": _RANKS, "isl": _TOKENS, "osl": (0.0, 2e6),
        "concurrency": (1.0, 1e5), "request_rate": (0.0, 1e5), "batch_static": (1.0, 1e5), "weight": (0.0, 1e6),
        "requests": (1.0, MOST_REQUESTS), "requests_per_client": (1.0, 1e5), "duration_s": (1e-3, 1e7),
        "max_num_seqs": (1.0, 1e6), "max_num_batched_tokens": (1.0, 1e8), "kv_blocks": (1.0, 1e9),
        "n_requests": (1.0, 1e8), "n_failed": (0.0, 1e8), "stage_s": (1e-3, 1e7), "prefix_tokens": (0.0, 2e6),
        "prefix_groups": (1.0, 1e5), "prompts_per_prefix": (1.0, 1e5), "slo_ttft_ms": (1e-3, 1e8), "slo_tpot_ms": (1e-3, 1e8),
        "front_end_ms": (0.0, 1e6), "prefill_gpus": _RANKS, "decode_gpus": _RANKS, "batch_per_gpu": (1e-3, 1e5),
        "prefix_hit_fraction": (0.0, 1.0), "most_prefix_hit_fraction": (0.0, 1.0), "gpu_memory_utilization": (1e-3, 1.0), "tokens_per_gpu_step": (1.0, 1e8),
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
    "llamacpp": {
        "tok_s": (1e-6, 1e9), "gen_tokens": (0.0, 2e6), "depth_tokens": (0.0, 2e6), "parallel": (1.0, 1e5), "device_count": _RANKS,
        "model_size_gib": (1e-3, 1e5), "tok_s_stddev": (0.0, 1e9),
    },
}  # fmt: skip
"""Kind of results -> column -> least and largest value that is read; an empty cell is unknown."""

_LAYOUT = frozenset({"tp", "pp", "ep", "dp"})
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
        for text in _numbers_in(row, key):
            try:
                value = float(text)
            except ValueError:
                return f"{key}: {text!r} is not a number"
            if key in _UNLIMITED and not isfinite(value) and value > 0:
                continue
            if not least <= value <= most:
                return f"{key}: {text} is out of range ({least:.10g} to {most:.10g})"
    return None


def _numbers_in(row: Mapping[str, str], key: str) -> list[str]:
    """Return the numbers in a cell as texts: none if it is empty, two if it states a layout for prefill and one for decode engines."""
    text = (row.get(key) or "").strip()
    if text.lower() in {"", "nan"}:
        return []
    parts = [part.strip() for part in text.split("/")] if key in _LAYOUT else [text]
    return [part for part in parts if not (key == "dp" and part.lower() in ATTENTION_DP)]
