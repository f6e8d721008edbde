"""`make oracle`: every model type of transformers, in many files, against our reading of them.

python -m tests.differential --seed 1 --changed 12 --write
"""

import argparse
import collections
import re
import time
from pathlib import Path

import transformers

from capplan.families.registry import REFUSED, families
from tests.differential.files import files
from tests.differential.flop import OTHERWISE, flop_difference
from tests.differential.kept import Kept
from tests.differential.page import page, table
from tests.differential.quantised import quantised_differences
from tests.differential.reference import CONTEXTS, MODEL_TYPES
from tests.differential.stored import store
from tests.differential.verdict import CACHE_ELSEWHERE, Compared, compared

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"


def _news(page_before: str) -> list[str]:
    """Return the types of this release of transformers that the page does not have, and those that are neither read nor refused with a reason."""
    listed = set(re.findall(r"[\w.-]+", page_before))
    new = [kind for kind in MODEL_TYPES if kind not in listed]
    unread = [kind for kind in MODEL_TYPES if kind not in families() and kind not in REFUSED]
    return [
        f"new in transformers {transformers.__version__}: {', '.join(new) or 'none'}",
        f"{len(unread)} types are not read: {', '.join(unread)}",
    ]


def main() -> int:
    """Compare, print the counts, and return 1 where a figure is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--changed", type=int, default=7, help="files with changed values for each type, in three forms"
    )
    parser.add_argument("--kind", action="append", help="only this model type")
    parser.add_argument("--show", default="wrong", help="verdicts to print, with commas")
    parser.add_argument(
        "--kept", type=Path, action="append", help="a file of references that were worked out before"
    )
    parser.add_argument(
        "--write", action="store_true", help="write docs/models.md and the sample that make test reads"
    )
    options = parser.parse_args()
    kept = Kept(options.kept or [])
    results: dict[str, list[Compared]] = {}
    begun = time.process_time()
    for kind in options.kind or MODEL_TYPES:
        results[kind] = []
        for file in files(kind, options.seed, options.changed):
            one = compared(file, kept.reference)
            results[kind].append(one)
            if one.verdict in options.show.split(","):
                print(f"{one.verdict}\t{kind}\t{file.form}\t{file.change}\t{one.why}", flush=True)
            if one.why == "not modelled":
                break
    flop = {kind: flop_difference(kind) for kind in results if kind in families()}
    off = {kind: difference for kind, difference in flop.items() if difference}
    for kind, difference in off.items():
        print(f"wrong\t{kind}\t{difference}")
    same = sum(difference == "" for difference in flop.values())
    print(f"matrix products of {same} model types within 1 %, {len(off)} not")
    of_formats = {kind: quantised_differences(kind) for kind in results if kind in families()}
    for kind, differences in of_formats.items():
        for difference in differences:
            print(f"wrong\t{kind}\tquantised: {difference}")
    off |= {kind: differences[0] for kind, differences in of_formats.items() if differences}
    for line in _news(PAGE.read_text(encoding="utf-8")):
        print(line)
    every = [one for listed in results.values() for one in listed]
    counts = collections.Counter(one.verdict for one in every)
    print(f"{dict(counts)} of {len(every)} files in {time.process_time() - begun:.0f} s of CPU")
    if options.write:
        PAGE.write_text(page(results, CONTEXTS, CACHE_ELSEWHERE, same, OTHERWISE), encoding="utf-8")
        PAGE.with_suffix(".csv").write_text(table(results).csv(), encoding="utf-8")
        read = (one for one in every if one.verdict in ("exact", "noted"))
        store(((one, kept.reference(one.file)) for one in read), options.seed)
    if counts["wrong"] or off:
        print(f"repeat with: python -m tests.differential --seed {options.seed} --changed {options.changed}")
    return 1 if counts["wrong"] or off else 0


if __name__ == "__main__":
    raise SystemExit(main())
