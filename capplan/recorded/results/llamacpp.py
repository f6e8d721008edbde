"""What llama-bench and llama-batched-bench print: JSON, JSON lines, CSV or the Markdown of the terminal, as rows of measured speeds.

Formats: `tools/llama-bench/README.md` and `tools/batched-bench/README.md` of https://github.com/ggml-org/llama.cpp.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from capplan.errors import InputError
from capplan.readers.catalogue.workstations import machine_parts
from capplan.readers.text_file import read_json

DIALECT_FILE = Path(__file__).with_name("llamacpp.json")
"""Heading of a Markdown table -> key of the JSON of the same tool; what llama.cpp prints -> formats, and shipped models of this size; part of a
tool's name, or of the notes of a published speed -> why it is not predicted."""


@cache
def dialect() -> Mapping[str, Mapping[str, str]]:
    """Return how results of llama.cpp are written, by subject."""
    named: Mapping[str, Mapping[str, str]] = read_json(DIALECT_FILE)
    return named


_HEADING = re.compile(r"^\|\s*(?:model\s*\|\s*size|PP\s*\|\s*TG)\s*\|", re.MULTILINE)
_TEST = re.compile(
    r"(?:pp ?(?P<prompt>\d{1,9}))?\+?(?:tg ?(?P<generated>\d{1,9}))?(?: @ d(?P<depth>\d{1,9}))?"
)
_NUMBER = re.compile(r"(?<!\d)\d{1,15}(?:\.\d+)?(?!\d)")
_SIZES = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_COUNTS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_FOUND = (
    re.compile(r"^ *Device \d+: (.+?), (?:compute capability|gfx)", re.MULTILINE),
    re.compile(r"^ggml_vulkan: \d+ = (.+?) \|", re.MULTILINE),
    re.compile(r"^ggml_metal\w*: picking default device: +(.+)$", re.MULTILINE),
    re.compile(r"^ggml_metal\w*: found device: +(.+)$", re.MULTILINE),
)
"""Lines in which a backend of llama.cpp names the devices that it found."""
_BUILD = re.compile(r"^build: ([0-9a-f]{6,40}) \((\d+)\)", re.MULTILINE)
_SETTING = re.compile(r"\b(\w+) = (-?\d+)\b")


def is_markdown(text: str) -> bool:
    """Return whether a text has a table of llama-bench or llama-batched-bench, among other lines of the terminal.

    Examples
    --------
    >>> is_markdown("| model | size | params | backend | ngl | test | t/s |"), is_markdown("| a | b |")
    (True, False)
    """
    return _HEADING.search(text) is not None


def markdown_objects(text: str, name: str) -> list[dict[str, Any]]:
    """Return the rows of the tables in a text, with the keys that the JSON of the same tool has.

    Parameters
    ----------
    text : what the terminal showed; lines about devices and the build count too
    name : of the file, for errors
    """
    devices = next((found for pattern in _FOUND if (found := pattern.findall(text))), [])
    around: dict[str, Any] = {"gpu_info": ", ".join(map(str.strip, devices))} if devices else {}
    if (build := _BUILD.search(text)) is not None:
        around |= {"build_commit": build[1], "build_number": int(build[2])}
    around |= {key: int(value) for key, value in _SETTING.findall(text)}
    return [around | _keyed(row, name) for row in _table_rows(text)]


def _table_rows(text: str) -> Iterator[dict[str, str]]:
    heading: list[str] = []
    for line in text.splitlines():
        if not line.lstrip().startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if _HEADING.match(line):
            heading = cells
        elif heading and not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            yield dict(zip(heading, cells, strict=False))


def _keyed(row: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return a row of a Markdown table by the keys of JSON."""
    if "PP" in row:
        names = dialect()["batched headings"]
        return {names[heading]: _number(cell, name) for heading, cell in row.items() if heading in names}
    names = dialect()["headings"]
    keyed: dict[str, Any] = {names.get(heading, heading): cell for heading, cell in row.items()}
    test = _TEST.fullmatch(row.get("test", ""))
    if test is None or not (test["prompt"] or test["generated"]):
        raise InputError(
            f"{name}: the test {row.get('test', '')[:40]!r} is not read; known: pp512, tg128, pp512+tg128, tg32 @ d4096"
        )
    prompt, generated, depth = (int(test[part] or 0) for part in ("prompt", "generated", "depth"))
    rate, _, spread = row.get("t/s", "").partition("±")
    per_s = _number(rate, name)
    if per_s <= 0.0:
        raise InputError(f"{name}: {row.get('t/s', '')!r} is not a speed in tokens per second")
    keyed |= {"n_prompt": prompt, "n_gen": generated, "n_depth": depth, "avg_ts": per_s}
    keyed["avg_ns"] = (prompt + generated) / per_s * 1e9
    if spread:
        keyed["stddev_ts"] = _number(spread, name)
    keyed["model_size"] = _scaled(row.get("size", ""), _SIZES)
    keyed["model_n_params"] = _scaled(row.get("params", ""), _COUNTS)
    return {key: value for key, value in keyed.items() if value not in (None, "")}


def _number(text: str, name: str) -> float:
    found = _NUMBER.search(text)
    if found is None:
        raise InputError(f"{name}: {text.strip()[:40]!r} is not a number, in a table of llama.cpp")
    return float(found.group())


def _scaled(text: str, units: Mapping[str, float]) -> float | None:
    amount, _, unit = text.partition(" ")
    return float(amount) * units[unit] if unit in units and _NUMBER.fullmatch(amount) else None


LLAMA_BENCH_KEYS = frozenset({"n_prompt", "n_gen", "avg_ts"})
BATCHED_KEYS = frozenset({"pp", "tg", "pl", "speed_pp", "speed_tg"})


def is_of_llamacpp(values: Sequence[Any]) -> bool:
    """Return whether every object is a row of llama-bench or llama-batched-bench."""
    return bool(values) and all(
        isinstance(value, Mapping) and (value.keys() >= LLAMA_BENCH_KEYS or value.keys() >= BATCHED_KEYS)
        for value in values
    )


def speed_rows(values: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the rows of measured speeds that `validate` reads: a prompt and a generation of each row of llama-batched-bench.

    Parameters
    ----------
    values : objects of one file

    Returns
    -------
    text by column; empty where the tool does not say
    """
    rows: list[dict[str, str]] = []
    for value in values:
        shared = _settings(value)
        if value.keys() >= BATCHED_KEYS:
            size = {"parallel": _text(value["pl"]), "tool": "llama-batched-bench"}
            prompt = {
                "prompt_tokens": _text(value["pp"]),
                "gen_tokens": "0",
                "tok_s": _text(value["speed_pp"]),
            }
            after = {
                "depth_tokens": _text(value["pp"]),
                "prompt_tokens": "0",
                "gen_tokens": _text(value["tg"]),
            }
            rows.append(shared | size | prompt | {"depth_tokens": "0", "test": f"pp{value['pp']:g}"})
            rows.append(
                shared | size | after | {"tok_s": _text(value["speed_tg"]), "test": f"tg{value['tg']:g}"}
            )
            continue
        measured = {
            "tool": "llama-bench",
            "prompt_tokens": _text(value["n_prompt"]),
            "gen_tokens": _text(value["n_gen"]),
            "depth_tokens": _text(value.get("n_depth", 0)),
            "parallel": "1",
            "tok_s": _text(value["avg_ts"]),
            "tok_s_stddev": _text(value.get("stddev_ts")),
        }
        rows.append(shared | measured)
    return rows


_AUTOMATIC = ("-1", "auto")
"""Settings that llama.cpp chose by itself: the tool does not print what."""


def _settings(value: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns of model, device and build."""
    parts = machine_parts(str(value.get("gpu_info") or value.get("cpu_info") or ""))
    size = value.get("model_size")
    columns = {
        "build": _text(value.get("build_number") or value.get("build_commit")),
        "backend": _text(value.get("backends")).lower(),
        "device": " + ".join(name for name, _ in parts),
        "device_count": str(sum(count for _, count in parts)) if parts[0][0] else "",
        "model": model_name(value),
        "params": _text(value.get("model_n_params")),
        "quant": quantisation(value),
        "model_size_gib": _text(float(size) / 2.0**30) if size else "",
        "kv_type": _text(value.get("type_k")),
    }
    named = {column: _text(value.get(key)) for column, key in dialect()["columns"].items()}
    return columns | {column: "" if text in _AUTOMATIC else text for column, text in named.items()}


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "" if value is None else str(int(value))
    return f"{value:.9g}" if isinstance(value, float) else str(value)


_SUFFIX = re.compile(r"[-.](?:UD-)?(I?Q\d\w*|TQ\d\w*|MXFP4\w*|B?F16|F32)(?:-\d{5}-of-\d{5})?$", re.IGNORECASE)


def model_name(value: Mapping[str, Any]) -> str:
    """Return the name of a model: of its file without the format, else what llama-bench calls it without the format.

    Examples
    --------
    >>> model_name({"model_filename": "/m/Qwen3-8B-Q4_K_M.gguf"}), model_name({"model_type": "llama 8B Q4_K - Medium"})
    ('Qwen3-8B', 'llama 8B')
    """
    if file := str(value.get("model_filename") or ""):
        return _SUFFIX.sub("", file.rpartition("/")[2].removesuffix(".gguf"))
    kind = str(value.get("model_type") or "")
    printed = next((name for name in dialect()["formats"] if kind.endswith(f" {name}")), "")
    return kind.removesuffix(printed).strip().removesuffix(" mostly")


def quantisation(value: Mapping[str, Any]) -> str:
    """Return the format of a file as its name has it; empty where neither type nor file says it.

    Examples
    --------
    >>> quantisation({"model_type": "llama 8B Q4_K - Medium"}), quantisation({"model_filename": "gpt-oss-20b-MXFP4.gguf"})
    ('Q4_K_M', 'MXFP4')
    """
    kind = str(value.get("model_type") or "")
    formats = dialect()["formats"]
    if words := next((words for words in formats if kind.endswith(f" {words}")), ""):
        return formats[words]
    named = _SUFFIX.search(str(value.get("model_filename") or "").removesuffix(".gguf"))
    return named[1].upper() if named else ""
