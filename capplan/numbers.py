"""The number type of every formula, the statistics of a quantity, and the sizes of the element types.

Inside the package everything is in base units: seconds, bytes, FLOP, tokens, watts, dollars.
A formula takes numbers or numpy arrays that broadcast and returns the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]
Number: TypeAlias = float | Array

GIB = 2.0**30
"""[B]"""

T = TypeVar("T")
Value = TypeVar("Value", float, Array, float | None)


FEWEST = {"p50": 2, "p90": 10, "p95": 20, "p99": 100}
"""Percentile -> values of a sample that carry it: one of them is above it."""
TOO_FEW = "too few for a 99th percentile"


@dataclass(frozen=True, slots=True)
class Spread(Generic[Value]):
    """Mean and percentiles of one quantity: nan if nothing was measured, None if a file does not state it."""

    mean: Value
    p50: Value
    p90: Value
    p95: Value
    p99: Value

    def of_sample(self, size: int) -> "Spread[float | None]":
        """Return the spread of some measured values, with None for a percentile that so few do not carry.

            n (1 - p) >= 1

        Examples
        --------
        Of eight values none is above the 90th percentile:

        >>> Spread(2.0, 1.9, 2.5, 2.8, 3.0).of_sample(8)
        Spread(mean=2.0, p50=1.9, p90=None, p95=None, p99=None)
        """
        mean: Any = self.mean
        kept = {name: getattr(self, name) if size >= least else None for name, least in FEWEST.items()}
        return Spread(mean, **kept)

    def scaled(self, factor: float) -> "Spread[Value]":
        """Return the spread of a factor times the quantity."""
        values: Any = (self.mean, self.p50, self.p90, self.p95, self.p99)
        scaled: list[Any] = [None if value is None else factor * value for value in values]
        return Spread(*scaled)


def stacked(values: Sequence[T], index: NDArray[np.intp]) -> T:
    """Return one record whose numbers are arrays, gathered from several records of the same kind.

        out.f[i] = values[index[i]].f   for every number f, those of records and mappings in it too

    So that one call of a formula serves many plans on many devices.

    Parameters
    ----------
    values : records of one frozen dataclass; mappings in them have the same keys
    index : [-]
        which record each element of the result comes from

    Returns
    -------
    a record of the same dataclass; what holds no number is taken from the first record

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Rate:
    ...     flop_per_s: float
    >>> stacked([Rate(1.0), Rate(2.0)], np.array([0, 1, 1])).flop_per_s
    array([1., 2., 2.])
    """
    result: T = _gathered(values, index)
    return result


def _gathered(values: Sequence[Any], index: NDArray[np.intp]) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        return {key: _gathered([value[key] for value in values], index) for key in first}
    if is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in fields(first)]
        return replace(first, **{n: _gathered([getattr(value, n) for value in values], index) for n in names})
    if isinstance(first, (int, float)) and not isinstance(first, bool):
        return np.asarray(values, dtype=np.float64)[index]
    return first


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the different values of an array in their order; `np.unique` loads `numpy.ma`, which a quick command would wait for.

    Examples
    --------
    >>> distinct(np.array([2.0, 1.0, 2.0])).tolist(), distinct(np.array([])).tolist()
    ([1.0, 2.0], [])
    """
    ordered: NDArray[Any] = np.sort(values, axis=None)
    first: NDArray[np.bool_] = np.append(True, ordered[1:] != ordered[:-1])[: ordered.size]
    return np.asarray(ordered[first])
