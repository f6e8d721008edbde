"""Keep what a run of the live engine brought: `python -m calibrate.live.results FOLDER ENVIRONMENT` writes rows and raw records into calibrate/live/results.

`unpacked` gives the raw records back, so that every table is printed again without an engine.
"""

import csv
import gzip
import io
import json
import platform
import sys
import tarfile
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from calibrate.live.environment import beside

KEPT = Path(__file__).parent / "results"
RECORDS = KEPT / "records.tar.gz"
RAW = ("*.json", "steps.*.jsonl", "*.calibration.yaml", "tiny/config.json")
"""Raw records: of each load and each start, logs of steps, calibrations."""
SLOTS = KEPT / "llamacpp.tar.gz"
RAW_OF_SLOTS = ("*.json", "*.[0-9].log", "*.calibration.yaml", "tiny/config.json")
"""The same of llama.cpp's server, from a folder of its own."""
ENDPOINT = KEPT / "endpoint.tar.gz"
"""The same of `--endpoint` on vLLM, from a folder of its own."""
AGAIN = KEPT / "again.tar.gz"
"""The same of a later run on a busier machine: closed loops, and forty loops for claims."""
SOFTWARE = ("vllm", "torch", "transformers", "xllamacpp")


def about(environment: Path) -> dict[str, Any]:
    """Return on what and when a run was made."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = set(named.get("flags", "").split())
    versions = {
        name: path.name.removesuffix(".dist-info").partition("-")[2]
        for name in SOFTWARE
        for place in (environment, beside(environment))
        for path in place.glob(f"lib/python*/site-packages/{name}-*.dist-info")
    }
    return {
        "processor": named.get("model name", platform.processor()),
        "family": [named.get(name, "") for name in ("cpu family", "model")],
        "cores": sum(line.startswith("processor\t") for line in lines),
        "units": sorted(flags & {"avx2", "avx512f", "avx512_bf16", "amx_tile"}),
        "system": platform.platform(),
        "versions": versions,
        "date": datetime.now(UTC).date().isoformat(),
    }


def load_rows(tables: Mapping[str, list[dict[str, Any]]]) -> Iterable[dict[str, Any]]:
    """Yield a row for each load and statistic: measured, noise, and what each table predicts; times in seconds."""
    for rows in zip(*tables.values(), strict=True):
        for key in (key for key in rows[0] if key != "load"):
            first = rows[0][key]
            row = {
                "load": rows[0]["load"],
                "statistic": key,
                "measured_s": first["measured_s"],
                "noise": first["noise"],
            }
            for title, found in zip(tables, rows, strict=True):
                row |= {f"{title}_s": found[key]["predicted_s"], f"{title}_error": found[key]["error"]}
            yield row


def claim_rows(claims: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield a row for each of the forty loops and each statistic."""
    for loop in claims["rows"]:
        for key, value in loop["measured_s"].items():
            yield {
                "load": loop["load"],
                "statistic": key,
                "measured_s": value,
                "predicted_s": loop["predicted_s"][key],
            }


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as CSV, with four significant digits."""
    listed = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(listed[0]), lineterminator="\n")
        writer.writeheader()
        for row in listed:
            writer.writerow(
                {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}
            )


def pack(folder: Path, to: Path = RECORDS, patterns: Iterable[str] = RAW) -> None:
    """Write the raw records of a folder into one compressed file, the same bytes for the same records."""
    files = sorted({path for pattern in patterns for path in folder.glob(pattern)})
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for path in files:
            data = path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    to.write_bytes(gzip.compress(raw.getvalue(), mtime=0))


def unpacked(to: Path, kept: Path = RECORDS) -> Path:
    """Write the raw records that are kept into a folder; return the folder."""
    with tarfile.open(kept) as archive:
        archive.extractall(to, filter="data")
    return to


def main(words: list[str]) -> int:
    """Write rows and records."""
    folder, environment = map(Path, words)
    KEPT.mkdir(exist_ok=True)
    (KEPT / "about.json").write_text(json.dumps(about(environment), indent=1) + "\n", encoding="utf-8")
    kinds: dict[str, Callable[[Any], Iterable[Mapping[str, Any]]]] = {
        "table": load_rows,
        "claims": claim_rows,
        "memory": list,
        "endpoint/table": load_rows,
        "llamacpp/table": load_rows,
    }
    for name, rows in kinds.items():
        path = folder / f"{name}.json"
        if path.exists():
            to = KEPT / f"{name.partition('/')[0]}.csv"
            write_rows(to, rows(json.loads(path.read_text(encoding="utf-8"))))
    pack(folder)
    pack(folder / "endpoint", ENDPOINT)
    pack(folder / "llamacpp", SLOTS, RAW_OF_SLOTS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
