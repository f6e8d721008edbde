"""On a terminal of 80 columns every table of every command keeps the columns that answer."""

import shlex

import pytest

from capplan.cli.commands import COMMANDS
from capplan.report import tables
from tests.rules.test_every_flag_counts import LINES
from tests.tables import rows

WITHOUT_TABLES = {"init", "export", "report", "calibrate", "mcp", "serve"}
"""Commands that write files, start something or wait for a device."""


ANSWERS = {line: set(headings) for line, headings in rows("commands")["columns"].items()}
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
