"""`capplan fit`: whether a replica fits, and what it leaves for sequences."""

from capplan.cli import options as o


def command(
    model: o.Model,
    hardware: o.Hardware,
    tensor_parallel: o.TensorParallel = 1,
    pipeline_parallel: o.PipelineParallel = 1,
    expert_parallel: o.ExpertParallel = 1,
    data_parallel: o.DataParallel = 1,
    weight_dtype: o.WeightDtype = None,
    kv_dtype: o.KvDtype = None,
    engine: o.Engine = "vllm",
    engine_version: o.EngineVersion = None,
    max_model_len: o.MaxModelLen = None,
    max_num_seqs: o.MaxNumSeqs = None,
    max_num_batched_tokens: o.MaxNumBatchedTokens = None,
    gpu_memory_utilization: o.GpuMemoryUtilization = None,
    revision: o.Revision = None,
    offline: o.Offline = False,
    form: o.Form = None,
    output: o.Output = None,
) -> int:
    """Show whether a model fits, what takes the memory, and how many sequences are left room for."""
    from capplan.fleet.fit import fit
    from capplan.questions.replica import asked_replica
    from capplan.readers.catalogue.hardware import device, device_names
    from capplan.report.answers.fit import fit_answer
    from capplan.report.show import show

    asked = asked_replica(
        model,
        hardware,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        expert_parallel=expert_parallel,
        data_parallel=data_parallel,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        engine=engine,
        engine_version=engine_version,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        gpu_memory_utilization=gpu_memory_utilization,
        revision=revision,
        offline=offline,
    )
    found = fit(asked.spec, [device(name) for name in device_names()])
    return show(fit_answer(found, asked.assumptions, asked.warnings), form, output)
