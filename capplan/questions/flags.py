"""What commands are told, as plain records: a field for each flag of a group, with the default of its command.

`capplan.cli` says how each field is written and explained; the questions take a record as one value. Nothing is
imported here but what a record needs, for `--help` imports it too.
"""

from dataclasses import dataclass
from pathlib import Path

from capplan.replica.load import Load


@dataclass(frozen=True, slots=True)
class ServingFlags:
    """How one replica is cut, held and run, and where what is known of it comes from."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    data_parallel: int = 1
    weight_dtype: str | None = None
    """None keeps what the config says."""
    kv_dtype: str | None = None
    """None takes the checkpoint's, else that of the activations."""
    engine: str = "vllm"
    engine_version: str | None = None
    """None is the newest known."""
    max_model_len: int | None = None
    """[tokens]; None is the model's maximum."""
    max_num_seqs: int | None = None
    """None is the engine's default, here and in the next two."""
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    calibration: Path | None = None
    """File of measured efficiencies."""
    revision: str | None = None
    """Of the model on the hub."""
    offline: bool = False
    """Never open a connection."""


@dataclass(frozen=True, slots=True)
class LoadFlags(Load):
    """A load whose requests have the lengths that commands assume."""

    input_tokens: int = 1024
    output_tokens: int = 256

    @property
    def mean_context_tokens(self) -> float:
        """Of a decode step, the mean over the output."""
        return self.input_tokens + self.output_tokens / 2.0


@dataclass(frozen=True, slots=True)
class OutputFlags:
    """Where an answer goes, and in which form."""

    form: str | None = None
    """table, json, csv or markdown; None takes it from the suffix of the file, else table."""
    file: Path | None = None
    """Written instead of stdout, whole or not at all."""


@dataclass(frozen=True, slots=True)
class DraftFlags:
    """The draft of `capplan spec`, as a model or a time, and the time of the target where it is no model."""

    draft: str | None = None
    draft_step_s: float | None = None
    target_step_s: float | None = None
    draft_weight_dtype: str | None = None
    """None keeps what the config of the draft says."""
    draft_tensor_parallel: int | None = None
    """None is the target's."""


@dataclass(frozen=True, slots=True)
class SweepFlags:
    """Which plans are swept over which loads."""

    hardware: list[str] | None = None
    tensor_parallel: list[int] | None = None
    plans: int | None = None
    """The cheapest of a scenario, instead of the best of each device."""
    request_rate: str | None = None
    """Rates such as '1, 2, 4 req/s'."""
    concurrency: str | None = None
    """Concurrencies such as '1,8,64'."""
    slo: list[str] | None = None
    """Targets of a model such as 'ttft_p95=800 ms'."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class StatedResult:
    """What a file of results may leave unsaid."""

    model: str | None = None
    hardware: str | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    concurrency: float | None = None
