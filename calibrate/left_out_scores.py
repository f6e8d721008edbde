"""The file of left-out scores -> records, for the page on accuracy."""

from dataclasses import dataclass
from pathlib import Path

from calibrate.interval_fit import Coverage
from capplan.accuracy.bounded import LEVELS
from capplan.accuracy.score import DecisionScore
from capplan.readers.yaml_file import read_yaml

LEFT_OUT_FILE = Path(__file__).parent / "left_out.yaml"


CLASS_AND_ERA = "class and generation"
"""Class of model and generation of engine (`host_rows.ERAS`), by which scores of every ruler are told."""

OPEN_LOOP = "open loop"
"""Grouping of open loops by where the engine runs; a median stands in where a row has no mean."""
OWN_PROCESS = "engine in its own process"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Scores of one column in one group, with its rows left out of the fit."""

    values: int
    left_out_median_error: float | None
    left_out_within_20: float | None
    left_out_bias: float | None = None
    models: int = 0
    """Models that the values are of; 0 where the file does not say."""


def left_out_scores(path: Path = LEFT_OUT_FILE) -> dict[tuple[str, str, str], LeftOut]:
    """Return the scores of the last fit, by grouping, group and column; none where there are none."""
    if not path.exists():
        return {}
    document = read_yaml(path, kind="a table of scores")
    found = {}
    for grouping, group, column, count, _, _, _, _, left_median, left_within, _ in document.value["scores"]:
        found[grouping, group, column] = LeftOut(count, left_median, left_within)
    return found


def ruled_scores(path: Path = LEFT_OUT_FILE) -> dict[tuple[str, str, str, str], LeftOut]:
    """Return the scores of the last fit by what was left out, grouping, group and column; none where there are none."""
    if not path.exists():
        return {}
    document = read_yaml(path, kind="a table of scores")
    return {
        (ruler, grouping, group, column): LeftOut(count, middle, within, bias, models)
        for ruler, grouping, group, column, count, middle, within, bias, models in document.value.get(
            "rulers"
        )
        or []
    }


def left_out_coverage(path: Path = LEFT_OUT_FILE) -> dict[tuple[str, str], Coverage]:
    """Return how many left-out values lie inside the interval of all other units, by what was left out and regime."""
    if not path.exists():
        return {}
    document = read_yaml(path, kind="a table of scores")
    return {
        (ruler, name): Coverage(values, models, dict(zip(LEVELS, held, strict=True)))
        for ruler, name, values, models, *held in document.value["coverage"]
    }


def left_out_choices(path: Path = LEFT_OUT_FILE) -> dict[str, list[DecisionScore]]:
    """Return how good choices by left-out predictions are, by what was left out, at each confidence."""
    found: dict[str, list[DecisionScore]] = {}
    if not path.exists():
        return found
    document = read_yaml(path, kind="a table of scores")
    for ruler, confidence, questions, unanswered, broke, clearly, *regret, right in (
        document.value.get("choices") or []
    ):
        named = dict(zip(("median", "mean", "p90"), regret, strict=True))
        score = DecisionScore(questions, unanswered, broke, clearly, named, right, confidence)
        found.setdefault(ruler, []).append(score)
    return found
