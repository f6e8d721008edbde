"""Command-line options that commands share, as plain records: one field per flag of a group."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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


def options_of(record: "type[DataclassInstance]") -> dict[str, Option]:
    """Return the options of a record by field.

    Examples
    --------
    >>> options_of(ServingFlags)["tensor_parallel"].short
    ('-tp', '--tp')
    """
    found = {field.name: getattr(field.type, "__metadata__", (None,))[0] for field in fields(record)}
    return {name: option for name, option in found.items() if isinstance(option, Option)}


def ranges_of(record: "type[DataclassInstance]") -> dict[str, Range]:
    """Return what the fields of a record may be."""
    return {name: option.allowed for name, option in options_of(record).items() if option.allowed is not None}


WeightDtype = Annotated[
    str | None,
    Option(
        "fp32, bf16, fp16, fp8, int8, int4, int2, nvfp4, mxfp4, a form like w4a16-g128, or a mixture like q4_k_m; default: that of the config.",
        Text(),
        "DTYPE",
        key="weight_dtype",
    ),
]
KvDtype = Annotated[
    str | None,
    Option(
        "fp32, bf16, fp16, fp8, int8 or int4; default: that of the config, else what the engine takes for the model.",
        Text(),
        "DTYPE",
        key="kv_dtype",
    ),
]
Measured = Annotated[
    Path | None, Option("Efficiencies measured with capplan calibrate.", metavar="FILE", key="calibration")
]


@dataclass(frozen=True, slots=True)
class ServingFlags:
    """How one replica is sharded, stored and run, and where its model and efficiencies come from."""

    tensor_parallel: Annotated[
        int, Option("Devices that every matrix is split over.", DEVICES, short=("-tp", "--tp"))
    ] = 1
    pipeline_parallel: Annotated[
        int, Option("Stages that the layers are distributed over.", DEVICES, short=("-pp", "--pp"))
    ] = 1
    expert_parallel: Annotated[
        int, Option("Groups that whole experts are distributed over.", DEVICES, short=("-ep", "--ep"))
    ] = 1
    data_parallel: Annotated[
        int, Option("Attention groups, each with different sequences.", DEVICES, short=("-dp", "--dp"))
    ] = 1
    weight_dtype: WeightDtype = None
    kv_dtype: KvDtype = None
    engine: Annotated[
        str,
        Option("vllm, sglang, trtllm or llamacpp.", Text(), known=("vllm", "sglang", "trtllm", "llamacpp")),
    ] = "vllm"
    engine_version: Annotated[
        str | None, Option("Release of the engine; default: the newest known.", Text(), "X.Y.Z")
    ] = None
    backend: Annotated[
        str | None,
        Option(
            "cuda, metal, vulkan, rocm, sycl or cpu, of llama.cpp; default: the usual one of the device.",
            Text(),
            known=("cuda", "metal", "vulkan", "rocm", "sycl", "cpu"),
        ),
    ] = None
    n_gpu_layers: Annotated[
        int | None,
        Option(
            "Layers of llama.cpp on the device, of which the LM head is the last; default: all.",
            Whole("layers", most=10_000),
        ),
    ] = None
    n_cpu_moe: Annotated[
        int | None,
        Option(
            "First layers whose routed experts llama.cpp keeps in the memory of the host.",
            Whole("layers", most=10_000),
        ),
    ] = None
    host_bandwidth: Annotated[
        float | None,
        Option(
            "Bandwidth of the memory of the host, such as '80 GB/s'; with no layers stated, capplan finds the fastest split that fits.",
            Positive("80 GB/s"),
            "RATE",
        ),
    ] = None
    host_memory: Annotated[
        float | None,
        Option(
            "Memory of the host that weights may take, such as '64 GB'; default: as much as they need.",
            Positive("64 GB"),
            "SIZE",
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        Option("Longest sequence, input and output; default: the model's maximum.", TOKENS, "TOKENS"),
    ] = None
    max_num_seqs: Annotated[
        int | None, Option("Maximum sequences in one step; default: the engine's.", Whole("sequences"))
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, Option("Maximum tokens in one step; default: the engine's.", TOKENS, "TOKENS")
    ] = None
    gpu_memory_utilization: Annotated[
        float | None,
        Option(
            "Fraction of device memory for weights, activations and KV cache together; default: the engine's.",
            Share(),
        ),
    ] = None
    runner: Annotated[
        str,
        Option(
            "generate, or pooling for the vectors and scores of embedding models and rerankers.",
            Text(),
            known=("generate", "pooling"),
        ),
    ] = "generate"
    max_loras: Annotated[
        int | None, Option("Slots of LoRA adapters, all in use.", Whole("adapters", most=100_000))
    ] = None
    max_lora_rank: Annotated[int | None, Option("Rank of the adapters; default 16.", Whole(most=512))] = None
    lora_modules: tuple[str, ...] | None = None
    """Matrices with an adapter, stated by commands of engines; None is all of attention and feed-forward."""
    fully_sharded_loras: bool = False
    chunked_prefill: bool | None = None
    """None is the engine's default."""
    whole_towers: bool = False
    """Every rank holds the whole vision tower."""
    calibration: Measured = None
    revision: Annotated[str | None, Option("Branch, tag or commit on the hub.", Revision(), "REV")] = None
    offline: Annotated[bool, Option("Never open a connection.")] = False

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

    input_tokens: Annotated[int, Option("Mean input length.", TOKENS, "TOKENS")] = 1024
    output_tokens: Annotated[int, Option("Mean output length.", TOKENS, "TOKENS")] = 256
    concurrency: Annotated[
        int | None, Option("Requests in flight at any time (closed loop).", Whole("requests"))
    ] = None
    request_rate: Annotated[
        float | None, Option("Arrivals, such as '5 req/s' (open loop).", Positive("20 req/s"), "RATE")
    ] = None
    prefix_hit_fraction: Annotated[
        float, Option("Fraction of input tokens that hit in the prefix cache.", Share())
    ] = 0.0

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
