"""A sample of files with their references, kept in the repository: `make test` judges it without transformers."""

import gzip
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from tests.differential.records import File, Reference
from tests.differential.verdict import Compared

SAMPLE = Path(__file__).resolve().parent / "sample.jsonl.gz"
OF_EACH_TYPE = 6


def store(compared: Iterable[tuple[Compared, Reference]], seed: int) -> None:
    """Write some files of each type that transformers builds and that are exact or noted."""
    by_kind: dict[str, list[tuple[File, Reference]]] = {}
    for one, truth in compared:
        if one.verdict in ("exact", "noted"):
            by_kind.setdefault(one.file.kind, []).append((one.file, truth))
    chance = random.Random(seed)
    rows = [
        json.dumps([asdict(file), asdict(truth)])
        for listed in by_kind.values()
        for file, truth in chance.sample(listed, min(OF_EACH_TYPE, len(listed)))
    ]
    text = "\n".join(rows) + "\n"
    SAMPLE.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def stored() -> Iterator[tuple[File, Reference]]:
    """Return the files of the sample with their references."""
    for line in gzip.decompress(SAMPLE.read_bytes()).decode().splitlines():
        file, truth = json.loads(line)
        yield File(**file), Reference(**truth)
