"""The calibration of a running server: a series of requests, and the numbers with which replays come closest to their times."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from capplan.calibrate.endpoint.client import Endpoint
from capplan.calibrate.endpoint.probe import Probed, probed, served_model
from capplan.calibrate.endpoint.series import Series, designed
from capplan.calibrate.refit import refitted
from capplan.engine.lookup import with_slots
from capplan.errors import InputError
from capplan.questions.validation import replica_of_result
from capplan.readers.calibration.file import read_calibration_file
from capplan.readers.calibration.record import Calibration, HostRefit
from capplan.recorded.results.record import BenchmarkResult
from capplan.scenario.flags import ServingFlags, StatedResult

MINUTES = 3.0
"""Time of a series where none is given."""
LEAST_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """What was measured of a server, and the numbers that explain it."""

    address: str
    probed: Probed
    kernels: Calibration | None
    """Calibration that was the prior."""
    refit: HostRefit


def planned_series(minutes: float | None, most: int, longest: int | None = None) -> Series:
    """Return the series for a time and a number of requests in flight."""
    return designed(minutes or MINUTES, most, longest)


def measured_deployment(
    server: Endpoint,
    stated: StatedResult,
    serving: ServingFlags,
    *,
    minutes: float | None,
    most: int,
    tell: Callable[[str], None],
) -> Deployment:
    """Measure a server and fit the rates of its device and its host times.

    Parameters
    ----------
    server : its address
    stated : the model that it serves, as capplan reads it, and the device
    serving : how it was started
    minutes : [min]
        for the series; None: as usual
    most : [-]
        requests in flight
    tell : receives a line for each point

    Raises
    ------
    InputError
        nothing answers, or too little was measured; model or device is not named
    """
    bare = BenchmarkResult(
        server.shown, server.shown, model=stated.model, hardware=stated.hardware,
        engine=serving.engine, engine_version=serving.engine_version,
        tensor_parallel=serving.tensor_parallel, pipeline_parallel=serving.pipeline_parallel,
        expert_parallel=serving.expert_parallel, data_parallel=serving.data_parallel,
    )  # fmt: skip
    spec = replica_of_result(bare, serving)
    server, longest, notice, has_slots = served_model(server, stated.model or "")
    if has_slots:
        spec = replace(spec, profile=with_slots(spec.profile))
    series = planned_series(minutes, most, longest or serving.max_model_len)
    patience_s = max(series.seconds, LEAST_ANSWER_S)
    server = replace(
        server, answer_s=min(server.answer_s, patience_s), silence_s=min(server.silence_s, patience_s)
    )
    tell(
        f"{server.shown} serves {server.model}: {len(series.points)} closed loops and an open loop, {series.seconds / 60:.3g} min"
    )
    found = probed(server, series, tell)
    if not found.results:
        why = "".join(f"\n  {remark}" for remark in found.remarks[:5])
        raise InputError(f"--endpoint: {server.shown}: nothing was measured{why}")
    kernels = read_calibration_file(serving.calibration).kernels if serving.calibration else None
    refit = refitted([(_stated(result, bare), spec) for result in found.results])
    notices = [notice] if notice else []
    if has_slots:
        notices.append("the server is llama.cpp's: requests are replayed with its slots")
    remarks = (*notices, *found.remarks, *refit.remarks)
    return Deployment(server.shown, found, kernels, replace(refit, remarks=remarks))


def _stated(result: BenchmarkResult, bare: BenchmarkResult) -> BenchmarkResult:
    return replace(result, model=bare.model, hardware=bare.hardware, engine=bare.engine)
