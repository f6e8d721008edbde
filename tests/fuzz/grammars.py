"""Files and lines that a grammar writes, right but for what it chooses: they are used or refused in one line, and what is read is finite.

    python -m tests.fuzz.grammars --seconds 600 --seed 1 [--kind metrics]

`readers` spoils whole files; here every part is one that the format has, in an order and with values that no tool writes. A finding is printed with the
text that shows it and the line that repeats it.
"""

import json
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from capplan.deploy.command_line import read_command_line
from capplan.readers.calibration.file import _checksum, read_calibration_file
from capplan.readers.catalogue.models import read_model
from capplan.recorded.results.read import read_results
from capplan.recorded.traces.trace import workload_of
from tests.fuzz.readers import ROOT, SOUND, Kind, check
from tests.fuzz.turns import asked_until_time_is_over

CASES = 500
"""Of one kind and seed, at most."""
TURN_S = 0.5
"""Processor time of one kind and seed, at most."""
Grammar = Mapping[str, tuple[str, ...]]
DEEPEST = 12

NUMBERS = (
    "0", "1", "-1", "7", "4.5", "1e3", "1e-9", "1e15", "1e308", "NaN", "+Inf", "-Inf", "inf", "0x10", "1_000", "", "٣", "1,5", "null", "true",
)  # fmt: skip
"""What a number may be written as; sound ones come more often."""


def number(random: Random) -> str:
    """Return a number: a small sound one, or one of any form."""
    return str(random.randint(1, 900)) if random.random() < 0.8 else random.choice(NUMBERS)


def written(grammar: Grammar, start: str, random: Random, depth: int = 0) -> str:
    """Return a text of a grammar: `<name>` stands for one of its alternatives, `<#>` for a number; below the deepest level for the first of them."""
    found: list[str] = []
    for part in start.replace("<", "\0<").replace(">", ">\0").split("\0"):
        if part == "<#>":
            found.append(number(random))
        elif part.startswith("<") and part.endswith(">"):
            choices = grammar[part[1:-1]]
            found.append(
                written(grammar, choices[0] if depth > DEEPEST else random.choice(choices), random, depth + 1)
            )
        else:
            found.append(part)
    return "".join(found)


def _metric_names() -> tuple[str, ...]:
    known = json.loads((ROOT / "capplan" / "recorded" / "traces" / "metrics.json").read_text())
    return tuple(name for names in known.values() if isinstance(names, list) for name in names)


def _option_names() -> tuple[str, ...]:
    engines = json.loads((ROOT / "capplan" / "deploy" / "flags.json").read_text()).values()
    return tuple(sorted({name for of in engines for flag in of["flags"].values() for name in flag["names"]}))


METRICS: Grammar = {
    "text": ("<line>", "<line><text>", "<line><text>", "<family><text>", "<family><family><text>", "<sound>", "<sound><text>"),
    "sound": ("<prompts><answers>",),
    "prompts": ('vllm:request_prompt_tokens_bucket{le="100"} 3\nvllm:request_prompt_tokens_bucket{le="900"} <#>\nvllm:request_prompt_tokens_bucket{le="+Inf"} 900\nvllm:request_prompt_tokens_sum <#>000\nvllm:request_prompt_tokens_count 900\n',),
    "answers": ('vllm:request_generation_tokens_bucket{le="100"} <#>\nvllm:request_generation_tokens_bucket{le="+Inf"} 900\nvllm:request_generation_tokens_sum 9000\nvllm:request_generation_tokens_count 900\n',),
    "family": (
        "# TYPE <name> histogram\n<buckets><name>_sum<labels> <#>\n<name>_count<labels> <#>\n",
        '<name>_bucket{le="1"} 3\n<name>_bucket{le="100"} 40\n<name>_bucket{le="+Inf"} 50\n<name>_sum 900\n<name>_count 50\n',
    ),
    "buckets": ("", '<name>_bucket{le="<#>"<more>} <#>\n<buckets>', '<name>_bucket{le="+Inf"} <#>\n'),
    "line": ("<name><labels> <#>\n", "<name>_total<labels> <#> <#>\n", "# HELP <name> <word>\n", "# TYPE <name> <type>\n", "# EOF\n", "\n", "#\n"),
    "type": ("counter", "gauge", "histogram", "summary", "untyped", "<word>"),
    "labels": ("", "", "{<label>}", "{<label>,<label>}", "{}", "{,}", "{<label>"),
    "more": ("", ",<label>"),
    "label": ('model_name="<word>"', 'le="<#>"', 'quantile="<#>"', 'engine="0"', '<word>="<word>"', "<word>=<word>"),
    "word": ("m", "a b", '\\"', "\\n", "\\", "é", "{", "}", "'", "x" * 200),
    "name": _metric_names(),
}  # fmt: skip
TRACE_COLUMNS = (
    "arrival_s", "timestamp", "TIMESTAMP", "arrived_at", "input_tokens", "output_tokens", "ContextTokens", "GeneratedTokens", "num_prefill_tokens",
    "num_decode_tokens", "session_id", "model", "class", "Request tokens", "Response tokens", "hash_ids", "priority",
)  # fmt: skip
TRACES: Grammar = {
    "text": ("arrival_s,input_tokens,output_tokens\n<rows>", "<header>\n<rows>", "<header>\n<rows>", "<objects>"),
    "header": ("<column>,<column>,<column>", "<column>,<column>,<column>,<column>", "<column>\t<column>\t<column>", '"<column>",<column>', "<column>;<column>;<column>"),
    "column": TRACE_COLUMNS,
    "rows": ("<#>,<#>,<#>\n", "<#>,<#>,<#>\n<rows>", "<#>,<#>,<#>\n<rows>", "<row>\n<rows>"),
    "row": ("2023-11-16 18:17:03.<#>,<#>,<#>", "<#>\t<#>\t<#>", '"<#>","<#>",<#>', "<#>,<#>,<#>,<#>", "<#>", "", ",,", "#,<#>"),
    "objects": ("<object>\n", "<object>\n<objects>", "<object>\n<objects>"),
    "object": ('{"timestamp": <#>, "input_length": <#>, "output_length": <#>, "hash_ids": [<list>]}', "{<pairs>}", "[<list>]", "<#>"),
    "pairs": ("<pair>", "<pair>, <pairs>"),
    "pair": ('"<column>": <#>', '"input_length": <#>', '"output_length": <#>', '"timestamp": <#>', '"requests": [<object>]', '"usage": {<pairs>}', '"hash_ids": [<list>]'),
    "list": ("", "<#>", "<#>, <list>"),
}  # fmt: skip
RESULT_KEYS = (
    "model_id", "backend", "request_rate", "max_concurrency", "duration", "completed", "failed", "num_prompts", "total_input_tokens", "total_output_tokens",
    "request_throughput", "output_throughput", "mean_ttft_ms", "p95_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "mean_e2el_ms", "input_lens", "output_lens", "ttfts",
    "benchmarks", "metrics", "n_prompt", "n_gen", "avg_ts", "records",
)  # fmt: skip
RESULTS: Grammar = {
    "text": ("{<base><pairs>}", "{<pairs>}", "[{<base><pairs>}, {<pairs>}]", "{<base><pairs>}\n{<pairs>}"),
    "base": (
        '"backend": "vllm", "model_id": "m", "num_prompts": 50, "completed": 50, "duration": 25.0, "total_input_tokens": 20000, "total_output_tokens": 3000, "mean_ttft_ms": 40.0, "mean_tpot_ms": 10.0, ',
    ),
    "pairs": ("<pair>", "<pair>, <pairs>", "<pair>, <pairs>"),
    "pair": ('"<key>": <value>',),
    "key": RESULT_KEYS,
    "value": ("<#>", "<#>", '"<#>"', "[<list>]", "{<pairs>}", "null"),
    "list": ("", "<#>", "<#>, <list>", "{<pairs>}"),
}  # fmt: skip
INDEX: Grammar = {
    "text": ('{"metadata": {"total_size": <#>}, "weight_map": {<pairs>}}', '{"weight_map": [<pair>], "metadata": <#>}', "{<pairs>}"),
    "pairs": ("<pair>", "<pair>, <pairs>", "<pair>, <pairs>"),
    "pair": ('"model.layers.<#>.self_attn.<part>.weight": "<file>"', '"lm_head.weight": <#>', '"": "<file>"', '"<part>": {"dtype": "<part>", "shape": [<#>], "data_offsets": [<#>, <#>]}'),
    "part": ("q_proj", "k_proj", "mlp.gate", "BF16", "../x", "\\\\u0000"),
    "file": ("model-00001-of-00002.safetensors", "../../etc/x", "/dev/null", "", "a b.safetensors"),
}  # fmt: skip
LAUNCHES: Grammar = {
    "text": ("<program> <model> <options>", "<before> <program> <model> <options>", "<program> <options> <model>", "<program>\\\n <model> \\\n<options>"),
    "program": ("vllm serve", "python -m sglang.launch_server --model-path", "trtllm-serve serve", "python3 -m vllm.entrypoints.openai.api_server --model", "vllm", "docker run --gpus all vllm/vllm-openai:v0.11.0 --model"),
    "before": ("VLLM_USE_V1=1", "CUDA_VISIBLE_DEVICES=0,1", "exec", "nohup", "sudo", "A='b c'", "$(x)", "mpirun -n 4"),
    "model": ("llama-3.1-8b", "'llama-3.1-8b'", "Qwen/Qwen3-8B", '"$MODEL"', "", "-", "../x"),
    "options": ("", "<option>", "<option> <options>", "<option> <options>", "<option> <options>"),
    "option": ("<flag> <value>", "<flag>=<value>", "<flag>", "# <flag>", "| tee x", "&& y", "'<flag>", "-tp <#>"),
    "value": ("<#>", "<#>", "auto", "fp8", "bfloat16", "true", '\'{"method": "eagle", "num_speculative_tokens": <#>}\'', "'{<#>'", "host:<#>"),
    "flag": _option_names(),
}  # fmt: skip


@dataclass(frozen=True)
class Written:
    """A kind of text: what reads it, and what writes it."""

    file: str
    read: Callable[[Path], object]
    text: Callable[[Random], bytes]


def _of(grammar: Grammar) -> Callable[[Random], bytes]:
    return lambda random: written(grammar, "<text>", random).encode()


def _safetensors(random: Random) -> bytes:
    header = written(INDEX, "<text>", random).encode()
    stated = len(header) if random.random() < 0.6 else random.choice((0, 1, 2**31, 2**63, len(header) - 1))
    return struct.pack("<Q", stated) + header + bytes(random.randint(0, 20))


def _log_columns() -> tuple[tuple[str, ...], ...]:
    """Return the columns that tell a log apart, with one each of arrival, input and output, for each log and the table of requests."""
    logs = json.loads((ROOT / "capplan" / "recorded" / "traces" / "logs.json").read_text()).values()
    known = (
        (*log["known_by"][0], *(log[key][0] for key in ("arrival", "input", "output") if key in log))
        for log in logs
    )
    return (("arrival_s", "input_tokens", "output_tokens"), *known)


def _column(random: Random, rows: int) -> Any:
    """Return a column of one of the types that a Parquet file may have, with nulls."""
    import pyarrow as pa

    count = [random.choice((None, 0, 1, 7, 400, -1)) for _ in range(rows)]
    whole = [random.randint(1, 900) for _ in range(rows)]
    ways: Sequence[Callable[[], Any]] = (
        *[lambda: pa.array(whole)] * 6,
        *[lambda: pa.array([1.7e9 + 3.0 * place for place in range(rows)], pa.float64())] * 2,
        lambda: pa.array(count, random.choice((pa.int8() if None not in count and max(count, default=0) < 100 else pa.int64(), pa.int64(), pa.float32()))),
        lambda: pa.array([random.choice((None, 1.5, float("nan"), float("inf"), 1e308, -0.0)) for _ in range(rows)], pa.float64()),
        lambda: pa.array([number(random) for _ in range(rows)]),
        lambda: pa.array([number(random) for _ in range(rows)]).dictionary_encode(),
        lambda: pa.array([random.choice((None, 0, 2**40, -(2**50), 2**53)) for _ in range(rows)], pa.timestamp(random.choice(("s", "ms", "us", "ns")), random.choice((None, "UTC", "Asia/Tokyo")))),
        lambda: pa.array([random.choice((None, 0, 20_000, -(2**31))) for _ in range(rows)], pa.date32()),
        lambda: pa.array([random.choice((None, 0, 2**40)) for _ in range(rows)], pa.duration("us")),
        lambda: pa.array([random.choice((None, True, False)) for _ in range(rows)]),
        lambda: pa.array([random.choice((None, b"", b"\xff\x00", b"12")) for _ in range(rows)]),
        lambda: pa.array([[random.choice((1, 2, None))] * random.randint(0, 3) for _ in range(rows)], pa.list_(pa.int64())),
        lambda: pa.array([{"input": random.choice((1, None)), "output": "2"} for _ in range(rows)], pa.struct({"input": pa.int64(), "output": pa.string()})),
        lambda: pa.nulls(rows),
    )  # fmt: skip
    return random.choice(ways)()


def _parquet(random: Random) -> bytes:
    """Return a Parquet file with columns of a log, whose types are others now and then; some files are cut or have other bytes."""
    import io

    import pyarrow as pa
    from pyarrow import parquet

    rows = random.choice((0, 1, 2, 2, 5, 40))
    names = [*random.choice(_log_columns()), *random.sample(TRACE_COLUMNS, random.randint(0, 3))]
    table = pa.table({name: _column(random, rows) for name in names})
    held = io.BytesIO()
    parquet.write_table(table, held, compression=random.choice(("none", "snappy", "gzip", "zstd")))
    content = bytearray(held.getvalue())
    for _ in range(random.choice((0, 0, 0, 1, 3))):
        content[random.randrange(len(content))] = random.randrange(256)
    return bytes(content[: random.choice((len(content),) * 9 + (len(content) // 2,))])


def _calibration(random: Random) -> bytes:
    """Return a calibration with its checksum, some of whose numbers are others."""

    def other(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: other(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [other(inner) for inner in value] * random.choice((1,) * 20 + (2, 0))
        if isinstance(value, (int, float)) and random.random() < 0.01:
            return random.choice((0, -value, value * 1e3, value * 1e-6, value * 1e12, str(value)))
        return value

    sound = other(SOUND["c.calibration.yaml"][0])
    body = {key: value for key, value in sound.items() if key not in ("schema_version", "checksum")}
    return json.dumps({**sound, "checksum": _checksum(body)}).encode()


def _traffic(path: Path) -> object:
    return workload_of([path])


def _line(path: Path) -> object:
    return read_command_line(path.read_text(), folder=path.parent)


KINDS: Mapping[str, Written] = {
    "metrics": Written("scrape.txt", _traffic, _of(METRICS)),
    "traces": Written("trace.csv", _traffic, _of(TRACES)),
    "traces-json": Written("trace.jsonl", _traffic, _of({**TRACES, "text": ("<objects>",)})),
    "results": Written("result.json", read_results, _of(RESULTS)),
    "calibrations": Written("g.calibration.yaml", read_calibration_file, _calibration),
    "safetensors-index": Written(
        "model.safetensors.index.json", lambda path: read_model(str(path)), _of(INDEX)
    ),
    "safetensors": Written("model.safetensors", lambda path: read_model(str(path)), _safetensors),
    "launch-lines": Written("launch.sh", _line, _of(LAUNCHES)),
    **({"parquet": Written("log.parquet", _traffic, _parquet)} if find_spec("pyarrow") else {}),
}


def some(name: str, folder: Path, number: int, cases: int = CASES) -> int:
    """Read texts of a kind for a moment of processor time, and return how many; the same number gives the same texts."""
    kind, random, read = KINDS[name], Random(f"{name} {number}"), 0
    until, latest = time.process_time() + TURN_S, time.monotonic() + 10.0 * TURN_S
    as_file = Kind(kind.file, kind.read, list)
    while read < cases and time.process_time() < until and time.monotonic() < latest:
        check(as_file, kind.text(random), folder)
        read += 1
    return read


if __name__ == "__main__":
    sys.exit(
        asked_until_time_is_over(
            "grammars",
            __doc__,
            {name: partial(some, name) for name in KINDS},
            lambda name, folder: (folder / KINDS[name].file).read_bytes(),
        )
    )
