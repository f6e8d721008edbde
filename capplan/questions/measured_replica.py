"""The replica that a measured result ran on, from what its file says and what the flags add."""

from pathlib import Path

from capplan.errors import InputError
from capplan.questions.replica import asked_replica
from capplan.readers.results.record import BenchmarkResult
from capplan.replica.spec import ReplicaSpec

_ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm", "tensorrt-llm": "trtllm", "trt": "trtllm"}


def replica_of_result(
    result: BenchmarkResult,
    *,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    calibration: Path | None = None,
    offline: bool = False,
) -> ReplicaSpec:
    """Return the replica that a result was measured on.

    Parameters
    ----------
    result : with model, hardware and split, from its file or stated beside it
    weight_dtype, kv_dtype : of the replica; None is what the config says
    calibration : file of measured efficiencies
    offline : never open a connection

    Returns
    -------
    the replica as it is asked for
    """
    missing = [
        flag for flag, value in (("--model", result.model), ("--hardware", result.hardware)) if value is None
    ]
    if missing:
        raise InputError(
            f"{result.path}: a result of {result.tool} does not say everything\n  give {' and '.join(missing)} beside it"
        )
    engine = next(
        (known for name, known in _ENGINES.items() if name in (result.engine or "").lower()), "vllm"
    )
    return asked_replica(
        result.model or "",
        result.hardware or "",
        tensor_parallel=result.tensor_parallel or 1,
        pipeline_parallel=result.pipeline_parallel or 1,
        expert_parallel=result.expert_parallel or 1,
        data_parallel=result.data_parallel or 1,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        engine=engine,
        engine_version=result.engine_version,
        calibration=calibration,
        offline=offline,
    ).spec
