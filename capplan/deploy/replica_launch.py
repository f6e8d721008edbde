"""What one engine is started with, whatever its engine calls it: written as a command line, and read from one."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from capplan.deploy.flag_table import engine_flags
from capplan.errors import InputError
from capplan.fleet.search.candidates import DEGREES
from capplan.model.network import LoraTerms
from capplan.readers.plan_file import AGAIN, PlanFile
from capplan.readers.plan_record import LaunchRow, StatedGroup
from capplan.replica.speculation import CACHING

Role: TypeAlias = Literal["prefill", "decode", "either"]
SIXTEEN_BITS = ("bf16", "fp16")
_STATED = (
    "revision", "weight_dtype", "kv_dtype", "engine", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "chunked_prefill",
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
    pooling: bool = False
    """It answers prompts with vectors or scores."""
    adapters: LoraTerms | None = None
    drafts: Drafts | None = None
    host_cache_bytes: float | None = None
    """Bytes of host memory for prefixes, of the whole replica."""
    role: Role | None = None
    """Role of a replica in a pool of its own; either where the engine is not told which."""

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
    return ReplicaLaunch(
        engine=engine,
        version=version,
        model=model,
        revision=None if checkpoint else inputs.model.revision,
        **{name: getattr(row, name) for name in DEGREES},
        weight_dtype=None if checkpoint else _made_by_the_engine(file, row.weight_dtype, started),
        kv_dtype=row.kv_dtype,
        max_model_len=(row.requests and row.requests.max_model_len) or started.max_model_len,
        max_num_seqs=started.max_num_seqs,
        max_num_batched_tokens=started.max_num_batched_tokens,
        memory_fraction=started.memory_fraction,
        prefix_caching=started.prefix_caching,
        chunked_prefill=started.chunked_prefill,
        pooling=started.runner == "pooling",
        adapters=started.adapters,
        drafts=_drafts(file, row, started, draft),
        host_cache_bytes=None if row.role == "decode" else _host_cache_bytes(file, started),
        role=None if row.role == "serve" else row.role,
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
    """Return the weight dtype that the engine has to make; None where the checkpoint has it."""
    published = started.published_weight_dtypes
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
