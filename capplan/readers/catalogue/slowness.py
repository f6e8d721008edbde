"""The file of slownesses that the back-test left -> the table of their distributions."""

from functools import lru_cache
from pathlib import Path

from capplan.accuracy.slowness import SlownessRegime, SlownessTable
from capplan.readers.yaml_file import read_yaml

SLOWNESS_FILE = Path(__file__).parents[2] / "accuracy" / "data" / "slowness.yaml"


@lru_cache(maxsize=1)
def shipped_slowness() -> SlownessTable:
    """Return the slowness of replicas, as it was measured in open loops."""
    found = read_yaml(SLOWNESS_FILE, kind="a table of slownesses").value
    return SlownessTable(
        relative=float(found["relative"]),
        host_s=float(found["host_s"]),
        regimes={
            key: SlownessRegime(float(median), float(below), float(above), int(rows), int(groups))
            for key, (median, below, above, rows, groups) in found["regimes"].items()
        },
        classes={name: (float(factor), int(groups)) for name, (factor, groups) in found["classes"].items()},
    )
