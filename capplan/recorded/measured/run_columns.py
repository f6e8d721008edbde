"""Facts of a benchmark run that a row leaves to its notes or to the pages of its source, turned into columns once."""

import re
from collections.abc import Mapping

from capplan.readers.catalogue.recipes import recipe_columns

NOTED = {
    "n_requests": "requests", "max_num_seqs": "max_num_seqs", "max_num_batched_tokens": "max_num_batched_tokens",
    "kv_blocks": "kv_blocks",
}  # fmt: skip
"""Name in a note such as `n_requests=100` -> column."""

_PAIR = re.compile(r"\b(\w+)=(\d+)")


def noted_columns(notes: str) -> dict[str, str]:
    """Return the columns that notes state as `name=number`; of a repeated name the first.

    Parameters
    ----------
    notes : text of the column `notes`

    Returns
    -------
    number as text by column

    Examples
    --------
    >>> noted_columns("open loop; n_requests=100, kv_blocks=8253; dur_s=76.59")
    {'requests': '100', 'kv_blocks': '8253'}
    """
    columns: dict[str, str] = {}
    for name, number in _PAIR.findall(notes):
        if name in NOTED:
            columns.setdefault(NOTED[name], number)
    return columns


def with_run_columns(row: Mapping[str, str]) -> dict[str, str]:
    """Return a row of serving results with its empty columns filled: from its notes, else from a recipe of its source.

    Parameters
    ----------
    row : text by column name

    Returns
    -------
    the same row; columns that are not empty are kept
    """
    known = {**recipe_columns(row), **noted_columns(row.get("notes") or "")}
    return {**row, **{name: text for name, text in known.items() if not row.get(name)}}
