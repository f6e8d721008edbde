"""Cases that several tests or readers would rather look at as a table: the files of tests/rows."""

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "rows"


def rows(name: str) -> Any:
    """Return what tests/rows/NAME.yaml holds."""
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
