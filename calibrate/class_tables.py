"""Tables of docs/evidence/ by class of model and generation of engine, so that no average hides a class."""

from collections.abc import Mapping

from calibrate.accuracy_tables import RULED_COLUMNS, percent
from calibrate.host_rows import ERAS, SHARED
from calibrate.interval_fit import EVERY, UNITS, Coverage
from calibrate.left_out_scores import CLASS_AND_ERA, LeftOut
from capplan.accuracy.bounded import LEAST_GROUPS, LEVELS
from docs.generators.page_tables import Table

PARTED = 0.05
"""Share by which what an interval holds may part from its claim."""
CLASSES = ("dense", "moe", "mla")
ERA_COLUMNS = tuple(
    f"{engine}:{since}" for engine, eras in ERAS.items() for since in eras if (engine, since) not in SHARED
)
"""Generations of engines: an engine, and the version from which a set of host times holds."""

Coverages = Mapping[tuple[str, str], Coverage]
"""What was left out, and regime -> what was held."""


def parts_from_claim(entry: Coverage) -> bool:
    """Return whether an interval holds over 5 points more or less than its claim, at any level.

    Examples
    --------
    >>> parts_from_claim(Coverage(40, 3, {0.5: 0.54, 0.8: 0.76, 0.95: 1.0}))
    False
    >>> parts_from_claim(Coverage(40, 3, {0.5: 0.5, 0.8: 0.7, 0.95: 0.95}))
    True
    """
    return any(round(abs(entry.held[level] - level), 4) > PARTED for level in LEVELS)


def _held(entry: Coverage | None) -> str:
    if entry is None:
        return ""
    shares = " / ".join(percent(entry.held[level]).removesuffix(" %") for level in LEVELS)
    return f"**{shares}**" if parts_from_claim(entry) else shares


def _models(coverage: Coverages, name: str) -> int:
    return max(coverage[ruler, name].models for ruler in UNITS if (ruler, name) in coverage)


def _coverage_rows(coverage: Coverages, names: list[str]) -> list[list[str]]:
    rows = []
    for name in names:
        found = [coverage.get((ruler, name)) for ruler in UNITS]
        values = max(entry.values for entry in found if entry is not None)
        counts = [str(_models(coverage, name)), f"{values:,}"]
        rows.append([name.removeprefix(f"{EVERY}/"), *counts, *(_held(entry) for entry in found)])
    return rows


def _coverage_table(title: str, rows: list[list[str]]) -> Table:
    return Table([title, "models", "values", *(f"{ruler} left out, %" for ruler in UNITS)], rows)


def class_coverage_table(coverage: Coverages) -> Table:
    """Return what intervals hold of each class and engine generation over all statistics and loads, of 50, 80 and 95 % claimed."""
    names = sorted({name for _, name in coverage if name.startswith(f"{EVERY}/")})
    return _coverage_table("class, engines", _coverage_rows(coverage, names))


def parting_table(coverage: Coverages) -> tuple[str, Table]:
    """Return how many statistics, loads and classes have intervals that hold over 5 points more or less than they claim, and which.

    First those that hold least of models left out where they claim 80 %.
    """
    names = sorted({name for _, name in coverage if name.count("/") == 2 and not name.startswith(EVERY)})
    parted = [
        name
        for name in names
        if any((ruler, name) in coverage and parts_from_claim(coverage[ruler, name]) for ruler in UNITS)
    ]
    short = sum(_held_of_models(coverage, name) < 0.8 - PARTED for name in names)
    few = sum(_models(coverage, name) < LEAST_GROUPS for name in parted)
    count = (
        f"{len(parted)} of {len(names)} regimes hold over 5 points more or less than a claim, at some level with something left out; "
        f"{few} of these rest on fewer than {LEAST_GROUPS} models.\nWith the model left out, {short} hold under 75 % where they claim 80 %."
    )
    parted.sort(key=lambda name: (_held_of_models(coverage, name), name))
    return count, _coverage_table("statistic, load, class", _coverage_rows(coverage, parted))


def _held_of_models(coverage: Coverages, name: str) -> float:
    """Return the share of values of models left out that intervals of 80 % hold; 1 where no model was left out."""
    return coverage["model", name].held[0.8] if ("model", name) in coverage else 1.0


def _cell(found: list[LeftOut | None]) -> str:
    """Return the errors of one column with a model and with a source left out, its rows and models; empty where nothing was measured."""
    first = found[0]
    if first is None:
        return ""
    errors = " / ".join(percent(entry.left_out_median_error if entry else None) for entry in found)
    return f"{errors} ({first.values:,}, {first.models})"


def class_generation_table(ruled: Mapping[tuple[str, str, str, str], LeftOut]) -> Table:
    """Return the median errors by class (rows) and generation of engine (columns), with the model and with the source left out."""

    def entry(ruler: str, group: str, columns: tuple[str, ...]) -> LeftOut | None:
        own = [ruled[key] for column in columns if (key := (ruler, CLASS_AND_ERA, group, column)) in ruled]
        return max(own, key=lambda found: found.values, default=None)

    rows = []
    for network in CLASSES:
        for title, columns in RULED_COLUMNS.items():
            cells = [
                _cell([entry(ruler, f"{network} {era}", columns) for ruler in ("model", "source")])
                for era in ERA_COLUMNS
            ]
            if any(cells):
                rows.append([network, title, *cells])
    known = [place for place in range(len(ERA_COLUMNS)) if any(row[2 + place] for row in rows)]
    names = [ERA_COLUMNS[place].replace(":", " since ") for place in known]
    return Table(
        ["class", "what", *names], [[*row[:2], *(row[2 + place] for place in known)] for row in rows]
    )
