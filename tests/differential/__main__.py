"""`make oracle`: every model type of transformers, in many files, against our reading of them."""

import argparse
import collections
import time
from pathlib import Path

from tests.differential.files import files
from tests.differential.kept import Kept
from tests.differential.reference import MODEL_TYPES
from tests.differential.verdict import compared


def main() -> int:
    """Compare, print the counts, and return 1 where a figure is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--changed", type=int, default=12, help="files with changed values for each type")
    parser.add_argument("--kind", action="append", help="only this model type")
    parser.add_argument("--show", default="wrong", help="verdicts to print, with commas")
    parser.add_argument("--kept", type=Path, help="a file of references that were worked out before")
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    kept = Kept(options.kept)
    begun = time.process_time()
    for kind in options.kind or MODEL_TYPES:
        for file in files(kind, options.seed, options.changed):
            one = compared(file, kept)
            counts[one.verdict] += 1
            if one.verdict in options.show.split(","):
                print(f"{one.verdict}\t{kind}\t{file.form}\t{file.change}\t{one.why}", flush=True)
            if one.why == "not modelled":
                break
    print(f"{dict(counts)} of {sum(counts.values())} files in {time.process_time() - begun:.0f} s of CPU")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
