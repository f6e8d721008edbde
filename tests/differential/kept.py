"""References that were worked out before, by the content of their file: a second run asks only what is new."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.differential.records import File, Reference
from tests.differential.reference import reference
from tests.differential.verdict import CACHE_ELSEWHERE


class Kept:
    """References in files of JSON lines, new ones added to the first; or in memory alone."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._path = paths[0] if paths else None
        self._known: dict[str, Reference] = {}
        for path in paths:
            for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
                key, values = json.loads(line)
                self._known[key] = Reference(**values)

    def reference(self, file: File) -> Reference:
        """Return what transformers makes of a file; defaults are counted, small models run as well."""
        run = not file.form.startswith("default") and file.kind not in CACHE_ELSEWHERE
        text = json.dumps([file.values, run], sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:24]
        if key not in self._known:
            self._known[key] = reference(file.values, run=run)
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as out:
                    out.write(json.dumps([key, asdict(self._known[key])]) + "\n")
        return self._known[key]
