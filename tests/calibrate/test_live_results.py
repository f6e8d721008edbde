"""What a live engine did is still predicted: the raw records that are kept, simulated again, and the cache that it allocated."""

import csv
from pathlib import Path

import numpy as np
import pytest

from calibrate.live.loads import CLOSED, OPEN
from calibrate.live.memory import predicted_concurrency, small_config
from calibrate.live.model import write_model
from calibrate.live.queueing import (
    ALONE,
    KV_BLOCKS,
    SCHEDULING,
    RecordedClock,
    logged_steps,
    measured,
    records_of,
    simulated,
)
from calibrate.live.results import KEPT, unpacked
from capplan.serving.terms import EngineSetup


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return unpacked(tmp_path_factory.mktemp("live"))


@pytest.mark.parametrize("repeat", [1, 2])
def test_the_queue_of_a_live_engine_follows_from_its_step_times(records, repeat):
    logs = logged_steps(records, OPEN, repeat)
    request_s = logged_steps(records, CLOSED, repeat)[ALONE][1]
    assert 0.003 < request_s < 0.008
    for load in OPEN[1:4]:
        record = records_of(records, load.name)[repeat - 1]
        engine = EngineSetup(RecordedClock(logs[load.name][0], request_s), SCHEDULING, KV_BLOCKS)
        seen, own = measured(record), simulated(record, engine)
        for metric, part, tolerance in (
            ("ttft", 50, 0.08),
            ("ttft", 95, 0.08),
            ("tpot", 50, 0.03),
            ("tpot", 95, 0.03),
        ):
            expected = np.percentile(seen[metric], part)
            assert np.percentile(own[metric], part) == pytest.approx(expected, rel=tolerance), (
                load.name,
                metric,
                part,
            )


def allocated():
    with (KEPT / "memory.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["blocks"]]


@pytest.mark.parametrize("row", allocated(), ids=lambda row: row["model"])
def test_the_cache_of_a_live_engine_holds_what_is_predicted(row, tmp_path: Path):
    own = predicted_concurrency(write_model(tmp_path, small_config(row["model"])))
    ratio = own / float(row["engine_holds"])
    assert 0.9999 < ratio < 1.01  # the engine has whole blocks


def test_the_engine_allocated_at_least_twenty_caches():
    assert len(allocated()) >= 20
