"""Command-line options that commands share, as plain records: one field per flag of a group."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from capplan.ranges import DEVICES, TOKENS, Positive, Range, Revision, Share, Text, Whole, check_fields
from capplan.replica.load import Load

SERVING_RANGES: Mapping[str, Range] = {
    "tensor_parallel": DEVICES,
    "pipeline_parallel": DEVICES,
    "expert_parallel": DEVICES,
    "data_parallel": DEVICES,
    "max_model_len": TOKENS,
    "max_num_seqs": Whole("sequences"),
    "max_num_batched_tokens": TOKENS,
    "gpu_memory_utilization": Share(),
    "max_loras": Whole("adapters", most=100_000),
    "max_lora_rank": Whole(most=512),
    **dict.fromkeys(("weight_dtype", "kv_dtype", "engine", "engine_version", "runner"), Text()),
    "revision": Revision(),
}
"""What the fields of `ServingFlags` may be."""
LOAD_RANGES: Mapping[str, Range] = {
    "input_tokens": TOKENS,
    "output_tokens": TOKENS,
    "concurrency": Whole("requests"),
    "request_rate": Positive("20 req/s"),
    "prefix_hit_fraction": Share(),
}
"""What the fields of `LoadFlags` may be."""


@dataclass(frozen=True, slots=True)
class ServingFlags:
    """How one replica is sharded, stored and run, and where its model and efficiencies come from."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    data_parallel: int = 1
    weight_dtype: str | None = None
    """None keeps what the config says."""
    kv_dtype: str | None = None
    """None takes the checkpoint's, else what the engine takes for the model."""
    engine: str = "vllm"
    engine_version: str | None = None
    """None is the newest known."""
    max_model_len: int | None = None
    """[tokens]; None is the model's maximum."""
    max_num_seqs: int | None = None
    """Most sequences at once; None, as for `max_num_batched_tokens` and `gpu_memory_utilization`, is the engine's default."""
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    runner: str = "generate"
    """generate, or pooling: a vector or a score of every prompt."""
    max_loras: int | None = None
    """Slots of LoRA adapters, all in use; None is none."""
    max_lora_rank: int | None = None
    """None is 16."""
    lora_modules: tuple[str, ...] | None = None
    """Matrices with an adapter, stated by commands of engines; None is all of attention and feed-forward."""
    fully_sharded_loras: bool = False
    chunked_prefill: bool | None = None
    """None is the engine's default."""
    whole_towers: bool = False
    """Every rank holds the whole vision tower."""
    calibration: Path | None = None
    """File of measured efficiencies."""
    revision: str | None = None
    """Branch, tag or commit of the model on the hub."""
    offline: bool = False
    """Never open a connection."""

    def __post_init__(self) -> None:
        """Refuse numbers that are out of their ranges."""
        check_fields(self, SERVING_RANGES)

    @property
    def words(self) -> list[str]:
        """The options that state these settings; those with their defaults are left out.

        Examples
        --------
        >>> ServingFlags(tensor_parallel=2, kv_dtype="fp8").words
        ['--tensor-parallel', '2', '--kv-dtype', 'fp8']
        """
        usual, words = ServingFlags(), []
        for name in (field.name for field in fields(self) if field.name not in _WITHOUT_OPTION):
            value = getattr(self, name)
            if value != getattr(usual, name):
                words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return words


_WITHOUT_OPTION = ("lora_modules", "fully_sharded_loras", "chunked_prefill", "whole_towers")
"""Settings that only the command of an engine states."""


@dataclass(frozen=True, slots=True)
class LoadFlags(Load):
    """A load with the request lengths that commands assume by default."""

    input_tokens: int = 1024
    output_tokens: int = 256

    def __post_init__(self) -> None:
        """Refuse numbers that are out of their ranges."""
        check_fields(self, LOAD_RANGES)

    def of_prompts(self) -> "LoadFlags":
        """Return the load of prompts that are answered by a vector or a score, which comes with the prefill."""
        return replace(self, output_tokens=1)

    @property
    def mean_context_tokens(self) -> float:
        """Return the context of a decode step, the mean over the output."""
        return self.input_tokens + self.output_tokens / 2.0


@dataclass(frozen=True, slots=True)
class OutputFlags:
    """Where an answer goes, and in which format."""

    form: str | None = None
    """table, json, csv or markdown; None is the one of the file's suffix, else table."""
    file: Path | None = None
    """Written instead of stdout, atomically."""
