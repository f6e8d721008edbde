"""What takes the memory of one device, as a chart."""

from collections.abc import Mapping, Sequence
from typing import Any

from capplan.report.charts.records import Bar, Bars


def memory_chart(device: str, steps: Sequence[Mapping[str, Any]]) -> Bars:
    """Return one bar with a part for every line of the waterfall of a device's memory, down to its cache.

    Parameters
    ----------
    device : its name
    steps : rows of `answers.fit.waterfall`, the first of which is the whole
    """
    parts = tuple(
        (str(row["what"]), abs(float(row["memory_bytes"])))
        for row in steps[1:]
        if abs(float(row["memory_bytes"])) > 0.0
    )
    return Bars(f"Memory of one {device}", "memory_bytes", (Bar(device, parts),))
