"""Command-line options that commands share, as plain records: one field per flag of a group."""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.ranges import DEVICES, TOKENS, Positive, Range, Revision, Share, Text, Whole, check_fields
from capplan.replica.load import Load

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MODEL = "Path of a config.json, its folder or a GGUF file, a shipped id or alias, or a Hugging Face id"


@dataclass(frozen=True, slots=True)
class Option:
    """How a field is stated on a command line: the one declaration, which commands, the library and tools read."""

    says: str
    """Line of the help."""
    allowed: Range | None = None
    """What its values may be, wherever they come from."""
    metavar: str = ""
    """Stands for its value in the help."""
    short: tuple[str, ...] = ()
    """Its other names."""
    known: tuple[str, ...] = ()
    """Its values, if they are few."""
    key: str = ""
    """Key of a scenario that it states."""
    flag: str = ""
    """Its name; empty: that of the field, with dashes."""
    unit: str = "SECONDS"
    """Unit of a quantity, a name of `capplan.quantity`."""


def option(says: str, allowed: Range | None = None, *, default: Any = None, **more: Any) -> Any:
    """Return a field that an option states, as a dataclass takes it; the parameters are those of `Option`."""
    return field(default=default, metadata={"option": Option(says, allowed, **more)})


def same_option(record: "type[DataclassInstance]", name: str) -> Any:
    """Return a field with the option of another record; None where it is not stated."""
    return field(default=None, metadata={"option": options_of(record)[name]})


def options_of(record: "type[DataclassInstance]") -> dict[str, Option]:
    """Return the options of a record by field.

    Examples
    --------
    >>> options_of(ServingFlags)["tensor_parallel"].short
    ('-tp', '--tp')
    """
    return {one.name: one.metadata["option"] for one in fields(record) if "option" in one.metadata}


def ranges_of(record: "type[DataclassInstance]") -> dict[str, Range]:
    """Return what the fields of a record may be."""
    return {name: option.allowed for name, option in options_of(record).items() if option.allowed is not None}


@dataclass(frozen=True, slots=True)
class ServingFlags:
    """How one replica is sharded, stored and run, and where its model and efficiencies come from."""

    tensor_parallel: int = option(
        "Devices that every matrix is split over.", DEVICES, default=1, short=("-tp", "--tp")
    )
    pipeline_parallel: int = option(
        "Stages that the layers are distributed over.", DEVICES, default=1, short=("-pp", "--pp")
    )
    expert_parallel: int = option(
        "Groups that whole experts are distributed over.", DEVICES, default=1, short=("-ep", "--ep")
    )
    data_parallel: int = option(
        "Attention groups, each with different sequences.", DEVICES, default=1, short=("-dp", "--dp")
    )
    weight_dtype: str | None = option(
        "fp32, bf16, fp16, fp8, int8, int4, int2, nvfp4, mxfp4, a form like w4a16-g128, or a mixture like q4_k_m; default: the config's.",
        Text(),
        metavar="DTYPE",
        key="weight_dtype",
    )
    kv_dtype: str | None = option(
        "fp32, bf16, fp16, fp8, int8 or int4; default: the config's, else what the engine takes for the model.",
        Text(),
        metavar="DTYPE",
        key="kv_dtype",
    )
    engine: str = option(
        "vllm, sglang, trtllm or llamacpp.",
        Text(),
        default="vllm",
        known=("vllm", "sglang", "trtllm", "llamacpp"),
    )
    engine_version: str | None = option(
        "Release of the engine; default: the newest known.", Text(), metavar="X.Y.Z"
    )
    backend: str | None = option(
        "cuda, metal, vulkan, rocm, sycl or cpu, of llama.cpp; default: the usual one of the device.",
        Text(),
        known=("cuda", "metal", "vulkan", "rocm", "sycl", "cpu"),
    )
    n_gpu_layers: int | None = option(
        "Layers of llama.cpp on the device, the LM head being the last; 0: all on the processor; default: all on the device.",
        Whole("layers", least=0, most=10_000),
    )
    tensor_split: str | None = option(
        "Parts of the layers for each card of a machine such as rtx-4090+rtx-3060:12gb: '24,12', or fastest; default: by memory.",
        Text(),
        metavar="PARTS",
    )
    split_mode: str = option(
        "layer: layers in turn over several devices; none: one card of the machine; row is not modelled.",
        Text(),
        default="layer",
        known=("layer", "none", "row"),
    )
    main_gpu: int | None = option(
        "With --split-mode none: number of the only card that runs, from 0.",
        Whole("cards", least=0),
    )
    n_cpu_moe: int | None = option(
        "First layers whose routed experts llama.cpp keeps in the memory of the host.",
        Whole("layers", most=10_000),
    )
    host_bandwidth: float | None = option(
        "Bandwidth of the memory of the host, such as '80 GB/s'; with no layers stated, capplan finds the fastest split that fits.",
        Positive("80 GB/s"),
        metavar="RATE",
        unit="BYTES_PER_S",
    )
    host_memory: float | None = option(
        "Memory of the host that weights may take, such as '64 GB'; default: as much as they need.",
        Positive("64 GB"),
        metavar="SIZE",
        unit="BYTES",
    )
    max_model_len: int | None = option(
        "Longest sequence, input and output; default: the model's maximum.", TOKENS, metavar="TOKENS"
    )
    max_num_seqs: int | None = option(
        "Maximum sequences in one step; default: the engine's.", Whole("sequences")
    )
    max_num_batched_tokens: int | None = option(
        "Maximum tokens in one step; default: the engine's.", TOKENS, metavar="TOKENS"
    )
    cuda_graphs: int | None = option(
        "Sequences of the largest step that runs as a CUDA graph; 0: none does (--enforce-eager); default: the engine's.",
        Whole("sequences", least=0),
        key="cuda_graphs",
    )
    gpu_memory_utilization: float | None = option(
        "Fraction of device memory for weights, activations and KV cache together; default: the engine's.",
        Share(),
    )
    runner: str = option(
        "generate, or pooling for the vectors and scores of embedding models and rerankers.",
        Text(),
        default="generate",
        known=("generate", "pooling"),
    )
    max_loras: int | None = option("Slots of LoRA adapters, all in use.", Whole("adapters", most=100_000))
    max_lora_rank: int | None = option("Rank of the adapters; default 16.", Whole(most=512))
    lora_modules: tuple[str, ...] | None = None
    """Matrices with an adapter, stated by commands of engines; None is all of attention and feed-forward."""
    fully_sharded_loras: bool = False
    chunked_prefill: bool | None = None
    """None is the engine's default."""
    whole_towers: bool = False
    """Every rank holds the whole vision tower."""
    calibration: Path | None = option(
        "Efficiencies measured with capplan calibrate.", metavar="FILE", key="calibration"
    )
    revision: str | None = option("Branch, tag or commit on the hub.", Revision(), metavar="REV")
    offline: bool = option("Never open a connection.", default=False)

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
        for name in options_of(ServingFlags):
            value = getattr(self, name)
            if value != getattr(usual, name):
                words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return words


SERVING_RANGES = ranges_of(ServingFlags)
"""What the fields of `ServingFlags` may be."""


@dataclass(frozen=True, slots=True)
class LoadFlags(Load):
    """A load with the request lengths that commands assume by default."""

    input_tokens: int = option("Mean input length.", TOKENS, default=1024, metavar="TOKENS")
    output_tokens: int = option("Mean output length.", TOKENS, default=256, metavar="TOKENS")
    concurrency: int | None = option("Requests in flight at any time (closed loop).", Whole("requests"))
    request_rate: float | None = option(
        "Arrivals, such as '5 req/s' (open loop).",
        Positive("20 req/s"),
        metavar="RATE",
        unit="REQUESTS_PER_S",
    )
    prefix_hit_fraction: float = option(
        "Share of the input tokens that hit the prefix cache.", Share(), default=0.0
    )

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


LOAD_RANGES = ranges_of(LoadFlags)
"""What the fields of `LoadFlags` may be."""


@dataclass(frozen=True, slots=True)
class OutputFlags:
    """Where an answer goes, and in which format."""

    form: str | None = None
    """table, json, csv or markdown; None is the one of the file's suffix, else table."""
    file: Path | None = None
    """Written instead of stdout, atomically."""
    assumptions: bool | None = None
    """Whether a table ends in every assumption instead of the three to confirm; None: in all of them, in their order."""
