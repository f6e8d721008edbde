"""The cells of a measured row: numbers and flags."""

from collections.abc import Mapping

import numpy as np

from capplan.errors import InputError


def is_set(text: str | None) -> bool:
    """Return whether a cell with a flag is true.

    Examples
    --------
    >>> [is_set(text) for text in ("1", "True", "0.0", "none", "", None)]
    [True, True, False, False, False, False]
    """
    return (text or "").strip().lower() not in {"", "0", "0.0", "false", "none", "no", "off"}


def number_in(row: Mapping[str, str], key: str) -> float | None:
    """Return the number in a cell; None where it is empty or not finite, InputError where it is no number."""
    text = (row.get(key) or "").strip()
    try:
        value = float(text) if text else None
    except ValueError as error:
        raise InputError(f"{key}: {text!r} is not a number") from error
    return value if value is not None and np.isfinite(value) else None


def needed_number(row: Mapping[str, str], key: str) -> float:
    """Return the number in a cell that has to have one; InputError where it is missing or not positive."""
    value = number_in(row, key)
    if value is None or value <= 0:
        raise InputError(f"{key}: missing or not positive ({row.get(key) or ''!r})")
    return value
