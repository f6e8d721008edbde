"""Files that tests write for the program to read."""

import json
from pathlib import Path
from typing import Any


def written_to(path: Path, content: Any) -> Path:
    """Write a text, or a value as JSON, and return its path."""
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path
