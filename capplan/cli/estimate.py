"""`capplan estimate`: latency and throughput of one replica."""

from capplan.cli.options import (
    Calibration,
    Concurrency,
    DataParallel,
    Engine,
    EngineVersion,
    ExpertParallel,
    Form,
    GpuMemoryUtilization,
    Hardware,
    InputTokens,
    KvDtype,
    MaxModelLen,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    Model,
    Offline,
    Output,
    OutputTokens,
    PipelineParallel,
    PrefixHitFraction,
    RequestRate,
    Revision,
    TensorParallel,
    WeightDtype,
)


def command(
    model: Model,
    hardware: Hardware,
    tensor_parallel: TensorParallel = 1,
    pipeline_parallel: PipelineParallel = 1,
    expert_parallel: ExpertParallel = 1,
    data_parallel: DataParallel = 1,
    weight_dtype: WeightDtype = None,
    kv_dtype: KvDtype = None,
    engine: Engine = "vllm",
    engine_version: EngineVersion = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = None,
    max_num_batched_tokens: MaxNumBatchedTokens = None,
    gpu_memory_utilization: GpuMemoryUtilization = None,
    input_tokens: InputTokens = 1024,
    output_tokens: OutputTokens = 256,
    concurrency: Concurrency = None,
    request_rate: RequestRate = None,
    prefix_hit_fraction: PrefixHitFraction = 0.0,
    calibration: Calibration = None,
    revision: Revision = None,
    offline: Offline = False,
    form: Form = None,
    output: Output = None,
) -> int:
    """Estimate latency and throughput of one replica at a concurrency or at a request rate."""
    from capplan.accuracy.bounded import bounded_estimate
    from capplan.questions.replica import asked_replica
    from capplan.readers.catalogue.intervals import shipped_intervals
    from capplan.replica.load import Load
    from capplan.replica.replica import replica_of
    from capplan.report.answers.estimate import estimate_answer
    from capplan.report.show import show

    asked = asked_replica(
        model, hardware, tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel,
        expert_parallel=expert_parallel, data_parallel=data_parallel, weight_dtype=weight_dtype, kv_dtype=kv_dtype,
        engine=engine, engine_version=engine_version, max_model_len=max_model_len, max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens, gpu_memory_utilization=gpu_memory_utilization,
        calibration=calibration, revision=revision, offline=offline,
    )  # fmt: skip
    replica = replica_of(asked.spec)
    load = Load(input_tokens, output_tokens, concurrency, request_rate, prefix_hit_fraction)
    found = bounded_estimate(replica, load, shipped_intervals())
    return show(estimate_answer(replica, load, found, asked.assumptions, asked.warnings), form, output)
