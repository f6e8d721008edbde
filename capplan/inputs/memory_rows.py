"""Logged engine starts -> predictions: model and device looked up by name."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from capplan.accuracy.intervals import Intervals, interval_of
from capplan.accuracy.memory import memory_predictions, predict_memory_row
from capplan.accuracy.score import Prediction
from capplan.errors import CapplanError
from capplan.inputs.hardware import device
from capplan.inputs.model import read_model


def memory_row_predictions(
    rows: Sequence[Mapping[str, str]], intervals: Intervals
) -> Iterator[list[Prediction]]:
    """Return the predictions of each logged start, in order."""
    for number, row in enumerate(rows):
        name = row.get("id") or str(number)
        try:
            network = read_model(row["model_hf_id"], offline=True)
            predicted = predict_memory_row(row, network, device(row["gpu"]))
        except CapplanError as error:
            yield memory_predictions(row, name, None, str(error).partition("\n")[0])
            continue
        yield [_bounded(found, intervals) for found in memory_predictions(row, name, predicted)]


def _bounded(found: Prediction, intervals: Intervals) -> Prediction:
    bounds = interval_of(intervals, (found.metric,))
    if found.predicted is None or bounds is None:
        return found
    return replace(found, low=found.predicted * bounds.low_ratio, high=found.predicted * bounds.high_ratio)
