"""The settings that one engine starts with, whatever it calls them, and the options of each version that state them."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from capplan.engine.lookup import version_key
from capplan.errors import LONGEST_SHOWN, InputError
from capplan.fleet.search.candidates import DEGREES
from capplan.hardware.device import engine_memory_bytes
from capplan.model.network import LoraTerms
from capplan.operators.llamacpp import ENGINE as LLAMACPP
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.workstations import is_host
from capplan.readers.plan_file import AGAIN, LaunchRow, PlanFile, StatedGroup
from capplan.replica.speculation import CACHING

KV_WORDS = {
    "vllm": {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8"},
    "sglang": {"bf16": "bf16", "fp8": "fp8_e4m3"},
    "trtllm": {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8"},
}
"""Engine -> what it calls a cache dtype."""
DTYPE_WORDS = {"bf16": "bfloat16", "fp16": "float16"}


class NotModelledError(InputError):
    """The error for an option, or a value of it, that changes memory or speed in a way that is not modelled."""


_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)")
_MULTIPLES = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}
_KV_FORMATS = {
    word: name for words in KV_WORDS.values() for name, word in words.items()
} | {"half": "fp16", "fp8_e5m2": "fp8", "fp8_e4m3": "fp8", "fp8_ds_mla": "fp8"}  # fmt: skip


def count(text: str, name: str, place: str) -> int:
    """Return a whole number, which may be written as 32k (thousands) or 32K (1,024 each).

    Examples
    --------
    >>> count("32k", "--max-model-len", "--launch"), count("32K", "--max-model-len", "--launch")
    (32000, 32768)
    """
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise InputError(
            f"{place}: {name}: {text!r} is not a whole number, e.g. 8192 or 8k; what the engine would choose has to be written out"
        )
    value = float(match[1]) * _MULTIPLES[match[2]]
    if value != int(value) or not 1 <= value <= 1_000_000_000:
        raise InputError(f"{place}: {name}: {text!r} is out of range; 1 to 1000000000 are allowed")
    return int(value)


def amount(text: str, name: str, place: str, most: float = 1e9) -> float:
    """Return a number above zero; InputError where it is none, or above the most that is allowed."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 < value <= most:
        raise InputError(f"{place}: {name}: {text!r} is not a number above zero and at most {most:g}")
    return value


def kv_format(text: str, name: str, place: str) -> str | None:
    """Return the dtype of a KV cache as capplan calls it; None where the engine takes that of the checkpoint or the model."""
    if text == "auto":
        return None
    if text not in _KV_FORMATS:
        raise NotModelledError(
            f"{place}: {name}: a KV cache in {text!r} is not modelled; known: auto, {', '.join(sorted(_KV_FORMATS))}"
        )
    return _KV_FORMATS[text]


_FP8_WHEN_LOADED = ("fp8", "w8a8_fp8", "ptpc_fp8")
"""Quantisations that make fp8 of 16 bits when a checkpoint is loaded, or read one in fp8."""
_PUBLISHED_IN = frozenset(
    (
        "none",
        "auto",
        "aqlm",
        "auto-round",
        "awq",
        "awq-marlin",
        "bitblas",
        "compressed-tensors",
        "cpu-awq",
        "fbgemm-fp8",
        "gguf",
        "gptq",
        "gptq-bitblas",
        "gptq-marlin",
        "gptq-marlin-24",
        "hqq",
        "inc",
        "ipex",
        "marlin",
        "modelopt",
        "modelopt-fp4",
        "modelopt-fp8",
        "modelopt-mixed",
        "modelopt-mxfp8",
        "moe-wna16",
        "mxfp4",
        "mxfp8",
        "nvfp4",
        "petit-nvfp4",
        "qoq",
        "qqq",
        "quark",
        "quark-int4fp8-moe",
        "w4afp8",
    )
)
"""Quantisations that a checkpoint is published in, whose config says the rest."""


_BITSANDBYTES = "bitsandbytes"
"""Quantisation that makes nf4 of 16 bits with one fp32 scale for 64 weights (`bitsandbytes_loader.py` of vLLM), or reads a checkpoint that has it."""


def weight_dtype(said: Mapping[str, str], model: str, place: str) -> str | None:
    """Return the dtype that the engine makes of the checkpoint; a format that a checkpoint is published in is read from its config."""
    quantization, dtype = said.get("quantization"), said.get("dtype", "auto")
    if quantization == _BITSANDBYTES:
        return None if "bnb" in model.lower() else "nf4"
    if quantization in _FP8_WHEN_LOADED:
        return "fp8"
    if quantization is not None and quantization.lower().replace("_", "-") not in _PUBLISHED_IN:
        raise NotModelledError(f"{place}: --quantization {quantization} makes weights that are not modelled")
    spelled = {word: name for name, word in DTYPE_WORDS.items()} | {"half": "fp16"}
    if quantization is None and dtype in spelled:
        return spelled[dtype]
    if dtype not in (*spelled, "auto"):
        raise NotModelledError(
            f"{place}: --dtype {dtype!r} is not modelled; known: auto, {', '.join(sorted(spelled))}"
        )
    return None


def json_object(text: str, name: str, place: str) -> Mapping[str, Any]:
    """Return the JSON object that an option takes; InputError where it is none."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise InputError(f"{place}: {name} is no JSON object: {text[:LONGEST_SHOWN]!r}\n  quote it in '...'")
    return values


FLAGS_FILE = Path(__file__).parent / "flags.json"


@dataclass(frozen=True, slots=True)
class Flag:
    """One option of an engine."""

    names: tuple[str, ...]
    """The one that is written, then its other names."""
    first: str
    """First release that was looked at and knows it."""
    last: str | None = None
    """Last one that knows it; None: the newest does."""
    switch: bool = False
    """It takes no value."""
    many: bool = False
    """It takes several values, up to the next option."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Values that came later than the option -> first release that knows them."""


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """The options of an engine that a launch is written with and read from."""

    engine: str
    source: str
    releases: tuple[str, ...]
    """Releases that were looked at, oldest first."""
    flags: Mapping[str, Flag]
    """What it says -> the option."""
    refused: Mapping[str, str]
    """Options that change memory or speed and are not modelled -> what they do.

    An option is named as on a command line, `--name.key` is a key of its JSON object, `--name=value` one value of it."""
    assumed: Mapping[str, str]
    """Options that choose between ways to do the same work -> what is assumed instead of them."""
    harmless: frozenset[str]
    """Options that change neither memory nor speed."""
    switches: frozenset[str]
    """Options without a value that are not modelled."""
    many: frozenset[str]
    """Options that are not modelled and take several values, up to the next option."""
    aliases: Mapping[str, str]
    """Short names of options that are not modelled -> their long names."""

    def knows(self, key: str, version: str, value: str | None = None) -> bool:
        """Return whether a version knows an option, and a value of it.

        A version between two that were looked at, of which the older does not know the option, counts as not knowing it.

        Examples
        --------
        >>> vllm = engine_flags("vllm")
        >>> [vllm.knows("host_cache", version) for version in ("0.10.2", "0.11.0", "0.11.2", "0.40.0")]
        [False, False, True, True]
        >>> vllm.knows("kv_dtype", "0.10.2", "bfloat16")
        False
        """
        flag = self.flags.get(key)
        if flag is None or (value is not None and flag.values and value not in flag.values):
            return False
        first = flag.first if value is None else flag.values.get(value, flag.first)
        after = flag.last is not None and _order(version) > _order(flag.last)
        return _order(version) >= _order(first) and not after

    def refuse_version(self, version: str) -> None:
        """Raise the error for a version that is older than all that were looked at."""
        oldest = self.releases[0]
        if _order(version) < _order(oldest):
            raise InputError(
                f"{self.engine} {version}: its options are not known; {oldest} is the oldest version whose are\n"
                f"  plan for a newer one: capplan fleet SCENARIO --set engine_version={self.releases[-1]} -o plan.json"
            )


def _order(version: str) -> tuple[int, int, int]:
    """Return a version as numbers that compare; one without numbers comes before all."""
    return version_key(version) or (0, 0, 0)


@cache
def engine_flags(engine: str) -> EngineFlags:
    """Return the options of an engine.

    Examples
    --------
    >>> engine_flags("sglang").flags["max_model_len"].names
    ('--context-length',)
    """
    from capplan.readers.text_file import read_json

    table = read_json(FLAGS_FILE)[engine]
    flags = {
        key: Flag(
            tuple(row["names"]),
            row["first"],
            row.get("last"),
            row.get("switch", False),
            row.get("many", False),
            row.get("values", {}),
        )
        for key, row in table["flags"].items()
    }
    kinds = ("valued", "switches")
    harmless = {kind: " ".join(table["harmless"][kind]).split() for kind in kinds}
    told = {
        part: {name: says for says, lines in table[part].items() for name in " ".join(lines).split()}
        for part in ("refused", "assumed")
    }
    return EngineFlags(
        engine,
        table["source"],
        tuple(table["releases"]),
        flags,
        told["refused"],
        told["assumed"],
        frozenset(name for kind in kinds for name in harmless[kind]),
        frozenset([*harmless["switches"], *" ".join(table["switches"]).split()]),
        frozenset(" ".join(table["many"]).split()),
        table["aliases"],
    )


Role: TypeAlias = Literal["prefill", "decode", "either"]
SIXTEEN_BITS = ("bf16", "fp16")
_STATED = (
    "revision", "weight_dtype", "kv_dtype", "engine", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "chunked_prefill", "cuda_graphs",
)  # fmt: skip
PUBLISHED = "auto"
"""Weight dtype of a plan that takes the checkpoint as it is."""
_FROM_A_FILE = ("config of ", "header of ")
_BY_THE_ENGINE = ("fp8",)
"""Weight dtypes that vLLM and SGLang make of a checkpoint in 16 bits when they load it."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """How a replica speculates."""

    method: str
    """As scenarios name it: draft-model, eagle, mtp, dspark, medusa, ngram."""
    draft: str | None
    """Checkpoint of the draft."""
    draft_tokens: int


@dataclass(frozen=True, slots=True)
class ReplicaLaunch:
    """One replica; None where a command line does not say."""

    engine: str
    version: str | None
    model: str
    """Hub id or folder, as the engine takes it."""
    revision: str | None = None
    tensor_parallel: int = 1
    """Ranks of one attention group, as everywhere in capplan."""
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    data_parallel: int = 1
    weight_dtype: str | None = None
    """None: as the checkpoint has it."""
    kv_dtype: str | None = None
    """None: as the checkpoint and the model's dtype have it."""
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    """Most sequences of one engine; each attention group has an engine of its own."""
    max_num_batched_tokens: int | None = None
    memory_fraction: float | None = None
    prefix_caching: bool = True
    chunked_prefill: bool | None = None
    """Whether prompts are cut into chunks that share their steps with decoding; None: as the engine does."""
    cuda_graphs: int | None = None
    """Sequences of the largest step that runs as a CUDA graph, 0: none does; None: as the engine does."""
    pooling: bool = False
    """It answers prompts with vectors or scores."""
    adapters: LoraTerms | None = None
    drafts: Drafts | None = None
    host_cache_bytes: float | None = None
    """Bytes of host memory for prefixes, of the whole replica."""
    whole_towers: bool = False
    """Every rank holds the whole vision tower, and reads images of its own."""
    gpu_layers: int | None = None
    """Layers that llama.cpp keeps on the device, the LM head counted as one; None: all."""
    cpu_experts: int | None = None
    """First layers whose routed experts llama.cpp keeps on the host."""
    tensor_split: str | None = None
    """Parts of the layers of llama.cpp for each card of a machine."""
    main_gpu: int | None = None
    """Card of a machine that llama.cpp runs on by itself."""
    role: Role | None = None
    """Role of a replica in a pool of its own; either where the engine is not told which."""
    unread: tuple[str, ...] = ()
    """Options and variables of its command line that were not read, as written."""
    assumed: tuple[str, ...] = ()
    """What is assumed instead of options that were not read."""

    @property
    def devices(self) -> int:
        """Devices of the replica."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def degrees(self) -> dict[str, int]:
        """Return how it is split, by the names of flags and scenario keys."""
        return {name: getattr(self, name) for name in DEGREES}

    @property
    def stated(self) -> dict[str, Any]:
        """Return what else is said of its engine, by the names of flags and scenario keys; what is not said is left out."""
        renamed = {
            "engine_version": self.version,
            "gpu_memory_utilization": self.memory_fraction,
            "runner": "pooling" if self.pooling else None,
            "n_gpu_layers": self.gpu_layers,
            "n_cpu_moe": self.cpu_experts,
            "tensor_split": self.tensor_split,
            "split_mode": None if self.main_gpu is None else "none",
            "main_gpu": self.main_gpu,
        }
        said = {name: getattr(self, name) for name in _STATED} | renamed
        return {name: value for name, value in said.items() if value is not None}


def launch_of(
    file: PlanFile,
    row: StatedGroup,
    started: LaunchRow,
    *,
    checkpoint: str | None,
    draft: str | None,
) -> ReplicaLaunch:
    """Return what one replica of a plan is started with.

    Parameters
    ----------
    file : the plan file
    row : a group of the chosen plan
    started : what its engine is started with, out of the plan file
    checkpoint : served instead of the model of the plan: its weights in the plan's dtype
    draft : checkpoint of the draft, where the plan does not name one

    Raises
    ------
    InputError
        the engine's options are not known, or no checkpoint is known in the plan's dtype
    """
    inputs = file.inputs
    engine, version = inputs.engine.name, inputs.engine.version
    engine_flags(engine).refuse_version(version)
    model = checkpoint or inputs.model.source.partition(", config as shipped")[0].partition(", revision")[0]
    if checkpoint is None and inputs.model.source.startswith(_FROM_A_FILE):
        raise InputError(
            f"{file.path}: its model was read from {inputs.model.name!r}, and an engine needs the weights\n"
            "  name the checkpoint: --checkpoint OWNER/NAME, or its folder"
        )
    if engine == LLAMACPP:
        _refuse_small_slots(file, row, started)
    return ReplicaLaunch(
        engine=engine,
        version=version,
        model=model,
        revision=None if checkpoint or engine == LLAMACPP else inputs.model.revision,
        **{name: getattr(row, name) for name in DEGREES},
        weight_dtype=None if checkpoint else _made_by_the_engine(file, row.weight_dtype, started),
        kv_dtype=row.kv_dtype,
        max_model_len=(row.requests and row.requests.max_model_len) or started.max_model_len,
        max_num_seqs=started.max_num_seqs,
        max_num_batched_tokens=started.max_num_batched_tokens,
        memory_fraction=None if engine == LLAMACPP else started.memory_fraction,
        prefix_caching=started.prefix_caching,
        chunked_prefill=started.chunked_prefill,
        cuda_graphs=started.cuda_graphs,
        pooling=started.runner == "pooling",
        adapters=started.adapters,
        drafts=_drafts(file, row, started, draft),
        host_cache_bytes=None if row.role == "decode" else _host_cache_bytes(file, started),
        tensor_split=split_by_memory(row.hardware),
        gpu_layers=0 if engine == LLAMACPP and is_host(row.hardware.partition(":")[0]) else None,
        role=None if row.role == "serve" else row.role,
    )


def split_by_memory(hardware: str) -> str | None:
    """Return the parts of the cards of a machine by their memory in MiB; None for a single device."""
    cards = device(hardware).cards if "+" in hardware else ()
    return ",".join(f"{engine_memory_bytes(card) / 2.0**20:.0f}" for card in cards) or None


def _refuse_small_slots(file: PlanFile, row: StatedGroup, started: LaunchRow) -> None:
    """Raise the error for slots of llama.cpp that have less cache than the longest request."""
    longest = (row.requests and row.requests.max_model_len) or started.max_model_len
    each = int(row.kv_cache_tokens) // started.max_num_seqs
    if each < longest:
        raise InputError(
            f"{file.path}: each of {started.max_num_seqs} slots has {each:,} tokens of cache, and requests may have {longest:,}\n"
            f"  plan with: --set max_model_len={each}, or a smaller max_num_seqs"
        )


def _drafts(file: PlanFile, row: StatedGroup, started: LaunchRow, draft: str | None) -> Drafts | None:
    """Return how a group speculates, both pools alike where drafts have a KV cache; None where it does not."""
    speculation = started.speculation
    if speculation is None or (row.role == "prefill" and speculation.method not in CACHING):
        return None
    count = row.draft_tokens or speculation.draft_tokens
    if count is None:
        raise InputError(f"{file.path}: its plan does not say how many tokens are drafted\n  {AGAIN}")
    return Drafts(speculation.method, draft or speculation.draft, count)


def _made_by_the_engine(file: PlanFile, dtype: str, started: LaunchRow) -> str | None:
    """Return the weight dtype that the engine has to make, or that a GGUF file has; None where the checkpoint has it."""
    published = started.published_weight_dtypes
    if file.inputs.engine.name == LLAMACPP:
        sixteen = [name for name in published if name in SIXTEEN_BITS]
        return next(iter(sixteen), None) if dtype == PUBLISHED else dtype
    if dtype == PUBLISHED or published == [dtype]:
        return None
    engine, model = file.inputs.engine.name, file.inputs.model.name
    plain = bool(published) and all(name in SIXTEEN_BITS for name in published)
    if plain and engine != "trtllm" and dtype in (*SIXTEEN_BITS, *_BY_THE_ENGINE):
        return dtype
    has = ", ".join(published) or "no dtype that is known"
    raise InputError(
        f"{file.path}: its plan has weights in {dtype}, {model} is published in {has}, and {engine} does not make the one of the other\n"
        f"  name a checkpoint in {dtype}: --checkpoint OWNER/NAME"
    )


def _host_cache_bytes(file: PlanFile, started: LaunchRow) -> float | None:
    others = [tier.name for tier in started.kv_offload if tier.name != "host"]
    if others:
        raise InputError(
            f"{file.path}: its plan keeps prefixes in {', '.join(others)}, and only host memory has an option of the engine\n"
            "  plan with kv_offload of host only, or add the connector of that tier by hand"
        )
    return started.kv_offload[0].capacity_bytes if started.kv_offload else None
