"""Options with which `estimate` and `calibrate` describe one replica of a plan, so that a printed command is about that replica."""

from pathlib import Path

from capplan.readers.catalogue.hardware import MEASURED_NAMES, device
from capplan.replica.spec import ReplicaSpec
from capplan.scenario.flags import ServingFlags
from capplan.scenario.scenario_file import Scenario


def replica_words(scenario: Scenario, spec: ReplicaSpec, weight_dtype: str) -> list[str]:
    """Return the options of a replica: its GPU, layout, dtypes, engine, limits, and the calibration that its times come from.

    Parameters
    ----------
    scenario : of the plan
    spec : of one replica of the plan
    weight_dtype : as the plan states it; `auto` is what the model's config says
    """
    sharding = spec.sharding
    flags = ServingFlags(
        tensor_parallel=int(sharding.tensor),
        pipeline_parallel=int(sharding.pipeline),
        expert_parallel=int(sharding.expert),
        data_parallel=int(sharding.data),
        weight_dtype=None if weight_dtype == "auto" else weight_dtype,
        kv_dtype=spec.kv_format,
        engine=spec.profile.engine,
        engine_version=spec.profile.asked_version or spec.profile.version,
        max_model_len=spec.max_model_len,
        max_num_seqs=spec.max_num_seqs,
        max_num_batched_tokens=spec.max_num_batched_tokens,
        cuda_graphs=spec.profile.most_graph_sequences,
        gpu_memory_utilization=spec.gpu_memory_utilization,
        calibration=Path(scenario.calibration) if scenario.calibration else None,
        revision=scenario.file.revision,
    )
    return ["--hardware", _hardware_word(scenario, spec.device.name), *flags.words]


def _hardware_word(scenario: Scenario, name: str) -> str:
    """Return a device as a command line names it: one from a hardware YAML by its path, a measured one as the scenario does."""
    folder = Path(scenario.path).resolve().parent
    for written in scenario.file.fleet.hardware or ():
        if scenario.calibration and written.lower() in MEASURED_NAMES:
            return written
        if written.lower().endswith((".yaml", ".yml")) and device(str(folder / written)).name == name:
            return str(folder / written)
    return name
