"""The calibration of a running server: a series of requests, and the numbers with which replays come closest to their times."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from capplan.calibrate.endpoint.client import Endpoint
from capplan.calibrate.endpoint.decode_steps import decode_steps, paces_of, pooled, step_results
from capplan.calibrate.endpoint.probe import TOOL, Probed, probed, served_model
from capplan.calibrate.endpoint.series import MINUTES, SHORT, Series, designed
from capplan.calibrate.refit import refitted
from capplan.engine.lookup import with_slots
from capplan.errors import InputError
from capplan.questions.validation import replica_of_result
from capplan.readers.calibration.file import read_calibration_file
from capplan.readers.calibration.record import Calibration, HostRefit, Range
from capplan.recorded.results.record import BenchmarkResult
from capplan.replica.spec import ReplicaSpec
from capplan.scenario.command_flags import StatedResult
from capplan.scenario.flags import ServingFlags

LEAST_ANSWER_S = 30.0
"""Shortest time that an answer may take, however short the series is."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What was measured of a server, and the numbers that explain it."""

    address: str
    """URL of the server, as errors show it."""
    probed: Probed
    """Results and streams of the series."""
    kernels: Calibration | None
    """Calibration that was the prior."""
    refit: HostRefit
    """Host times and rates with which replays come closest."""


def planned_series(minutes: float | None, most: int, longest: int | None = None) -> Series:
    """Return the series for a time [min], at most so many requests in flight, and contexts of at most `longest` tokens."""
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
    refit = refit_of(found, bare, spec)
    notices = [notice] if notice else []
    if has_slots:
        notices.append("the server is llama.cpp's: requests are replayed with its slots")
    remarks = (*notices, *found.remarks, *refit.remarks)
    return Deployment(server.shown, found, kernels, replace(refit, remarks=remarks))


def refit_of(found: Probed, bare: BenchmarkResult, spec: ReplicaSpec) -> HostRefit:
    """Return the numbers that explain what a series brought.

    Parameters
    ----------
    found : results, and the streams of all requests
    bare : a result that names model, device and engine
    spec : the replica that was measured
    """
    sent = [*found.stairs, *(answers for _, answers in found.answers)]
    short = [answers for answers in sent if all(answer.input_tokens <= SHORT for answer in answers)]
    loads = [decode_steps(answers) for answers in short]
    steps = step_results(pooled(loads), replace(bare, tool=TOOL))
    refit = refitted(
        [(_stated(result, bare), spec) for result in found.results], [(result, spec) for result in steps]
    )
    paces = paces_of([load for load in loads if load])
    spread = Range(min(paces), float(np.median(paces)), max(paces)) if len(paces) > 1 else None
    return replace(refit, pace=spread)


def _stated(result: BenchmarkResult, bare: BenchmarkResult) -> BenchmarkResult:
    return replace(result, model=bare.model, hardware=bare.hardware, engine=bare.engine)
