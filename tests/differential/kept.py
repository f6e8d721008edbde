"""References that were worked out before, by the content of their file: a second run asks only what is new."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.differential.reference import Reference, reference


class Kept:
    """References in a file of JSON lines, or in memory alone."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, Reference] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                key, values = json.loads(line)
                self._known[key] = Reference(**values)

    def reference(self, file: dict[str, Any], *, run: bool) -> Reference:
        """Return what transformers makes of a file."""
        text = json.dumps([file, run], sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:24]
        if key not in self._known:
            self._known[key] = reference(file, run=run)
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as out:
                    out.write(json.dumps([key, asdict(self._known[key])]) + "\n")
        return self._known[key]
