"""What the program answers to the same questions, as digests: run under other interpreters, libraries, locales and time zones.

python -m tests.installs.answers        prints JSON: question -> digest of the bytes
"""

import contextlib
import hashlib
import io
import json
import locale
import os
import sys
import tempfile
from pathlib import Path

SCENARIO = """name: straße
model: llama-3.2-1b
traffic:
  - {name: İstanbul, request_rate: 2 req/s, input_tokens: {mean: 400, p95: 900}, output_tokens: {mean: 60, p95: 200}, daily_curve: office}
slo: {ttft_p95: 2 s, tpot_p95: 50 ms}
fleet: {hardware: [l4, a10g], tensor_parallel: [1]}
"""
TABLE = "timestamp,input_tokens,output_tokens\n" + "".join(
    f"2026-03-29 0{hour}:{minute:02}:00+00:00,{90 + minute},{9 + minute % 3}\n"
    for hour in range(4)
    for minute in range(0, 60, 5)
)
"""Through the night in which clocks change."""
PLAN = ("--hardware", "l4", "-tp", "1", "--replicas", "1")
QUESTIONS = (
    ("model", "deepseek-v3"),
    ("kv-size", "gemma-2-9b", "--context", "8192"),
    ("hardware", "h100-sxm"),
    ("fit", "llama-3.1-8b", "--hardware", "l4"),
    ("estimate", "mixtral-8x7b", "--hardware", "h100-sxm", "-tp", "4", "--concurrency", "16", "--input-tokens", "900", "--output-tokens", "90"),
    ("spec", "--draft-step-time", "2 ms", "--target-step-time", "30 ms", "--acceptance", "0.7", "--batch", "8"),
    ("simulate", "s.yaml", *PLAN, "--until", "1 min"),
    ("sweep", "llama-3.2-1b", "--hardware", "l4", "--concurrency", "1,4,16", "--input-tokens", "90", "--output-tokens", "9"),
    ("fleet", "s.yaml"),
    ("workload", "t.csv"),
)  # fmt: skip
FORMATS = ("json", "csv", "table", "markdown")
NO_OFFLINE = ("hardware", "workload", "spec")


def answers(workers: int) -> dict[str, str]:
    """Return the digest of every answer in every format."""
    from capplan.cli.main import main
    from capplan.fleet.search.search_cache import SearchCache

    runs = vars(SearchCache())
    SearchCache.__init__ = lambda cache: vars(cache).update(runs)  # four formats ask the same fleet
    found = {}
    for question in QUESTIONS:
        name = question[0]
        words = [*question, *(() if name in NO_OFFLINE else ("--offline",))]
        if name == "sweep" and workers > 1:
            words += ["--workers", str(workers)]
        for form in FORMATS:
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                code = main([*words, "--format", form])
            key = f"{' '.join(question[:2])} as {form}"
            found[key] = f"{code} {hashlib.sha256(out.getvalue().encode()).hexdigest()[:16]}"
    return found


def run() -> None:
    """Answer all questions in a folder of their own and print the digests."""
    with contextlib.suppress(locale.Error):
        locale.setlocale(locale.LC_ALL, "")
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "s.yaml").write_text(SCENARIO, encoding="utf-8")
        (Path(name) / "t.csv").write_text(TABLE, encoding="utf-8")
        os.chdir(name)
        digests = answers(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
        os.chdir("/")
    print(json.dumps(digests))


if __name__ == "__main__":
    run()
