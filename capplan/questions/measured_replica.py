"""The replica that a measured result ran on, from what its file says and what the flags add."""

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from capplan.engine.spelling import named_engine
from capplan.errors import InputError
from capplan.recorded.results.read import read_results
from capplan.recorded.results.record import BenchmarkResult
from capplan.replica.spec import ReplicaSpec
from capplan.scenario.flags import ServingFlags, StatedResult
from capplan.scenario.replica import asked_replica

_LAYOUT = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel")


def results_with_replicas(
    paths: Iterable[Path], stated: StatedResult, serving: ServingFlags
) -> list[tuple[BenchmarkResult, ReplicaSpec]]:
    """Return the results of files with the replica of each; stated settings fill in those a file lacks.

    Parameters
    ----------
    paths : files of benchmark results
    stated : model, hardware and load
    serving : of all results

    Returns
    -------
    in the order of the files
    """
    said = {name: getattr(serving, name) for name in (*_LAYOUT, "engine", "engine_version")} | asdict(stated)
    results = [result for path in paths for result in read_results(path, **said)]
    return [(result, replica_of_result(result, serving)) for result in results]


def replica_of_result(result: BenchmarkResult, serving: ServingFlags) -> ReplicaSpec:
    """Return the replica that a result was measured on.

    Parameters
    ----------
    result : with model, hardware, parallelism and engine, from its file or stated beside it
    serving : everything else

    Returns
    -------
    the replica
    """
    missing = [
        flag for flag, value in (("--model", result.model), ("--hardware", result.hardware)) if value is None
    ]
    if missing:
        raise InputError(
            f"{result.path}: a result of {result.tool} does not name all settings\n  give {' and '.join(missing)} as well"
        )
    engine = named_engine(result.engine or "vllm").engine
    layout: dict[str, Any] = {name: getattr(result, name) or 1 for name in _LAYOUT}
    said = replace(serving, **layout, engine=engine, engine_version=result.engine_version)
    return asked_replica(result.model or "", result.hardware or "", said).spec
