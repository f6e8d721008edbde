"""On a terminal of 80 columns every table of every command keeps the columns that answer."""

import shlex

import pytest

from capplan.cli.commands import COMMANDS
from capplan.report import tables
from tests.rules.test_every_flag_counts import LINES

WITHOUT_TABLES = {"init", "export", "report", "calibrate", "mcp", "serve"}
"""Commands that write files, start something or wait for a device."""
ANSWERS = {
    "list machines": {"machine", "provider", "hardware", "GPUs", "$/h"},
    "list prices": {"hardware", "provider", "commitment", "$/GPU/h"},
    "list apis": {"api", "input ($/Mtok)", "cache reads ($/Mtok)", "output ($/Mtok)"},
    "list models": {"model", "quantization"},
    "list scenarios": {"scenario", "model", "about"},
    "list engines": {"engine", "version", "released", "policy"},
    "list hardware": {"hardware", "memory (GB)", "bandwidth (TB/s)"},
    "model": {"model", "parameters", "active parameters", "weight (TB)", "max context (tokens)"},
    "hardware": {"name", "memory (GB)", "bandwidth (TB/s)", "peak bf16 (TFLOP/s)", "peak fp8 (TFLOP/s)"},
    "hardware gpu_8x_b200_sxm6": {"quantity", "value", "unit", "$/h", "$/GPU/h", "date", "source"},
    "hardware h100-sxm": {"quantity", "value", "unit", "label", "source"},
    "fleet small.yaml --offline": {"hardware", "GPUs", "$/month", "chance (%)"},
    "fleet small.yaml --full --offline": {"hardware", "GPUs", "$/month", "chance to meet the SLO (%)"},
    "check plan.json --offline": {"what", "limit", "value", "unit", "met"},
    "levers small.yaml --offline --lever kv-dtype --lever target": {
        "lever", "change", "GPUs", "$/month", "saved ($/month)", "meets its SLO targets",
    },
    "bill small.yaml --offline": {"class", "requests", "$/month", "with idle ($)"},
    "compare small.yaml --offline": {"$/month", "fleet is cheaper from (req/s)"},
    "sweep llama-3.1-8b --hardware h100-sxm --concurrency 4,8 --offline": {
        "layout", "concurrency", "output (tok/s/GPU)", "TTFT p95 (ms)", "TPOT p95 (ms)",
    },
    "capacity small.yaml --gpus '3 x h100-sxm' --offline": {"change", "requests (req/s)", "users", "$/month"},
}  # fmt: skip
"""Command line -> headings that its tables keep."""


WALKED = list(dict.fromkeys([*ANSWERS, *(LINES[name] for name in COMMANDS if name not in WITHOUT_TABLES)]))


@pytest.mark.parametrize("words", WALKED, ids=str)
def test_tables_keep_the_columns_that_answer(words, line, monkeypatch):
    """Links and long names wrap; only columns that say so of themselves are left out, and no table is turned."""
    monkeypatch.setenv("COLUMNS", "80")
    shown, fitted = [], tables.fitted

    def kept(grid, width):
        fit = fitted(grid, width)
        shown.append((grid, fit))
        return fit

    monkeypatch.setattr(tables, "fitted", kept)
    ran = line(shlex.split(words), anew=True)
    assert ran.code in (0, 4), ran.err
    assert shown
    assert max(map(len, ran.out.splitlines())) <= 80
    headings = {" ".join(heading) for _, fit in shown for heading in fit.headings}
    assert ANSWERS.get(words, set()) <= headings
    for grid, fit in shown:
        assert not fit.upright
        assert set(fit.left_out) <= {grid.headings[at] for at in grid.spare}


def test_every_command_with_tables_is_walked():
    assert set(COMMANDS) - WITHOUT_TABLES <= {words.split()[0] for words in (*LINES.values(), *ANSWERS)}
