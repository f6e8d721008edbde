"""The file of back-test residuals -> prediction intervals by regime."""

from functools import lru_cache
from pathlib import Path

from capplan.accuracy.intervals import Interval, Intervals
from capplan.readers.yaml_file import read_yaml

INTERVALS_FILE = Path(__file__).parents[2] / "accuracy" / "data" / "intervals.yaml"


@lru_cache(maxsize=1)
def shipped_intervals() -> Intervals:
    """Return the prediction intervals of the back-test, by regime."""
    document = read_yaml(INTERVALS_FILE, kind="a table of intervals")
    return {
        key: Interval(float(low), float(high), int(values), int(groups), float(median))
        for key, (low, median, high, values, groups) in document.value["intervals"].items()
    }
