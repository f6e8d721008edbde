"""The file of back-test residuals -> prediction intervals by regime."""

from functools import lru_cache
from pathlib import Path

from capplan.accuracy.intervals import Interval, Intervals
from capplan.readers.yaml_file import read_yaml

INTERVALS_FILE = Path(__file__).parents[2] / "accuracy" / "data" / "intervals.yaml"


@lru_cache(maxsize=1)
def shipped_intervals() -> Intervals:
    """Return the intervals that the back-test left, by regime."""
    document = read_yaml(INTERVALS_FILE, kind="a table of intervals")
    return {
        key: Interval(float(entry[0]), float(entry[1]), int(entry[2]), int(entry[3]))
        for key, entry in document.value["intervals"].items()
    }
