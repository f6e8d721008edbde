"""Logged engine starts -> predictions: model and device looked up by name."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite

from capplan.accuracy.intervals import Intervals, interval_of
from capplan.accuracy.memory import memory_predictions, predict_memory_row
from capplan.accuracy.score import Prediction
from capplan.errors import CapplanError, InputError
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.model import read_model
from capplan.recorded.measured.row_ranges import impossible_number

MEASURED = ("weights_gib", "available_kv_gib", "kv_cache_tokens", "max_concurrency")
"""Columns that an engine logs; a cell without a number was not measured."""


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False


def memory_row_predictions(
    rows: Sequence[Mapping[str, str]], intervals: Intervals
) -> Iterator[list[Prediction]]:
    """Return the predictions of each logged start, in order."""
    for number, given in enumerate(rows):
        name = given.get("id") or str(number)
        row = {key: text for key, text in given.items() if key not in MEASURED or _is_number(text)}
        wrong = impossible_number(row, "memory")
        if wrong:
            yield memory_predictions(row, name, None, wrong)
            continue
        try:
            if not row.get("model_hf_id"):
                raise InputError("model_hf_id: missing")
            network = read_model(row["model_hf_id"], offline=True)
            predicted = predict_memory_row(row, network, device(row["gpu"]))
        except CapplanError as error:
            yield memory_predictions(row, name, None, str(error).partition("\n")[0])
            continue
        yield [_bounded(prediction, intervals) for prediction in memory_predictions(row, name, predicted)]


def _bounded(prediction: Prediction, intervals: Intervals) -> Prediction:
    bounds = interval_of(intervals, (prediction.metric,))
    if prediction.predicted is None or bounds is None:
        return prediction
    return replace(
        prediction, low=prediction.predicted * bounds.low_ratio, high=prediction.predicted * bounds.high_ratio
    )
