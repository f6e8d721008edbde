"""The file of slownesses from the back-test -> the table of their distributions."""

from functools import lru_cache
from pathlib import Path

from capplan.accuracy.slowness import SlownessRegime, SlownessTable
from capplan.readers.yaml_file import read_yaml

SLOWNESS_FILE = Path(__file__).parents[2] / "accuracy" / "data" / "slowness.yaml"


@lru_cache(maxsize=1)
def shipped_slowness() -> SlownessTable:
    """Return the slowness of replicas, as it was measured in open loops."""
    table = read_yaml(SLOWNESS_FILE, kind="a table of slownesses").value
    return SlownessTable(
        relative=float(table["relative"]),
        host_s=float(table["host_s"]),
        regimes={
            key: SlownessRegime(tuple(float(quantile) for quantile in quantiles), int(rows), int(groups))
            for key, (*quantiles, rows, groups) in table["regimes"].items()
        },
        classes={name: int(groups) for name, groups in table["classes"].items()},
    )
