"""CSV tables with a header line: rows by column name, up to a limit."""

import csv
import re
from itertools import zip_longest

from capplan.errors import InputError

MOST_CELLS = 8_000_000
"""Most cells of one table, those that are missing in a row included; measured results of 6,500 runs have 400,000."""
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")


def csv_rows(text: str, name: str) -> list[dict[str, str | None]]:
    r"""Return the rows of a table, without empty lines and without cells beyond the header; None for a cell that is missing.

    Parameters
    ----------
    text : the table
    name : its file, for the error

    Raises
    ------
    InputError
        It is not CSV, or larger than any table of results.

    Examples
    --------
    >>> csv_rows("a,b\n1,2\n\n3\n", "x.csv")
    [{'a': '1', 'b': '2'}, {'a': '3', 'b': None}]
    """
    rows: list[dict[str, str | None]] = []
    header: list[str] = []
    held = 0
    try:
        for cells in csv.reader(line.group() for line in _LINE.finditer(text)):
            held += max(len(cells), len(header) if cells else 0)
            if held > MOST_CELLS:
                raise InputError(f"{name}: has more than {MOST_CELLS:,} cells; is it the right file?")
            if header and cells:
                rows.append(dict(zip_longest(header, cells[: len(header)])))
            header = header or cells
    except csv.Error as error:
        raise InputError(f"{name}: is not CSV ({error})") from None
    return rows
