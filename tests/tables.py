"""Cases that several tests or readers would rather look at as a table: the files of tests/rows."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parent / "rows"


def rows(name: str) -> Any:
    """Return what tests/rows/NAME.yaml holds."""
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


_tables = cache(rows)


def table(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test on its rows in the file of its folder: the names of its arguments come first, then one case a row."""
    names, *cases = _tables(test.__module__.split(".")[-2])[test.__name__]
    return pytest.mark.parametrize(",".join(names), [case[0] if len(names) == 1 else case for case in cases])(
        test
    )
