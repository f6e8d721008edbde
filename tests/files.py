"""Files that tests write for the program to read."""

import json
from pathlib import Path
from typing import Any

import pytest


def written_to(path: Path, content: Any) -> Path:
    """Write a text, or a value as JSON, and return its path."""
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def file_with(content: Any, name: str) -> Any:
    """Return a fixture for the tests of a module: the path of a file with a text, or a value as JSON."""

    @pytest.fixture(scope="module")
    def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
        return written_to(tmp_path_factory.mktemp("files") / name, content)

    return path
