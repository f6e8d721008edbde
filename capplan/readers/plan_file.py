"""Plan files: their schema with the range of every figure, what they were made from, and what of that changed since."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import reduce
from math import isclose, nan
from operator import or_
from pathlib import Path
from shlex import join, quote
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    Self,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from capplan import __version__
from capplan.accuracy.bounded import BoundedSpread
from capplan.assumption import Assumption
from capplan.errors import InputError, Refusal
from capplan.fleet.answer import Certainty, NextSteps, TightTarget, Uneconomical
from capplan.fleet.engine_options import TierSize
from capplan.fleet.group import PHASES, GroupFigures
from capplan.fleet.plan import PlanFigures
from capplan.fleet.pools.link import LinkUse
from capplan.fleet.search.candidates import DEGREES, Rejection
from capplan.fleet.unit_costs import UnitCosts
from capplan.model.network import LoraTerms
from capplan.numbers import Spread
from capplan.readers.catalogue.efficiency import INTERVALS_FILE, SLOWNESS_FILE, efficiency_folder
from capplan.readers.catalogue.hardware import file_of_device
from capplan.readers.catalogue.models import shipped_config
from capplan.readers.catalogue.scenarios import scenario_word
from capplan.readers.record import LARGEST_WHOLE, Record, RevisionName, validated
from capplan.readers.text_file import MAX_BYTES, data_folder, digest, first_bytes, is_there, read_json
from capplan.readers.yaml_file import Document

LARGEST = 1e18
"""Largest value of any figure of a plan, in base units."""
MOST_DEVICES = 4096
"""Most devices that one replica spans in one direction, as flags allow."""
ROUNDING = 1e-9

Amount: TypeAlias = Annotated[float, Field(ge=0.0, le=LARGEST, allow_inf_nan=False)]
Probability: TypeAlias = Annotated[float, Field(ge=0.0, le=1.0 + ROUNDING, allow_inf_nan=False)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=LARGEST_WHOLE)]
Degree: TypeAlias = Annotated[int, Field(ge=1, le=MOST_DEVICES)]
Positive: TypeAlias = Annotated[int, Field(ge=1, le=LARGEST_WHOLE)]


def _follows(key: str, written: float | None, worked_out: float | None, how: str) -> None:
    """Raise the error for a figure that others of the same plan contradict."""
    if written is None or worked_out is None:
        same = written is worked_out
    else:
        same = isclose(written, worked_out, rel_tol=ROUNDING)
    if not same:
        raise ValueError(f"{key} is {written}, and {how} {worked_out}")


class AnswerRow(Record):
    """A part of the answer; figures that are not read again stay as they are. Its schema is built when a file is read, which most commands never do."""

    model_config = ConfigDict(extra="ignore", strict=True, defer_build=True)


_NO_MORE_THAN_ONE = re.compile(r"(probability|probabilities|confidence|share|(?<!load_)fraction)$")
"""Names of numbers that are parts of a whole; the load of a link may be above its rate."""
_RANGES = {float: Amount, int: Positive}
_RANGE_OF_NAME: dict[str, Any] = dict.fromkeys(
    ("spare_replicas", "simulated_requests", "count"), Count
) | dict.fromkeys(DEGREES, Degree)
"""Name -> its range, where whole numbers may be none or have a limit."""


class Stated:
    """Marks a dataclass of the answer that a file holds as it is: each field by its type, each number in the range of its name."""

    def __get_pydantic_core_schema__(self, of: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the fields, and the dataclass made of them."""
        of = get_origin(of) or of
        hints = get_type_hints(of)
        stated: dict[str, Any] = {
            field.name: (
                _ranged(hints[field.name], field.name),
                ... if field.default is MISSING else field.default,
            )
            for field in fields(of)
        }
        model = create_model(of.__name__, __base__=AnswerRow, **stated)

        def made(row: AnswerRow) -> Any:
            found = of(**dict(row))
            if isinstance(found, (StatedGroup, StatedPlan)):
                found.refuse_contradictions()
            return found

        return no_info_after_validator_function(made, handler.generate_schema(model))


def _reason(written: object) -> Refusal:
    try:
        return Refusal(str(written))
    except ValueError:
        raise ValueError(f"there is no reason {written!r}") from None


def _stated_or_none(written: object) -> object:
    """Return None for a latency that no request has: the time between tokens where outputs have one, or none."""
    return None if written == dict.fromkeys(field.name for field in fields(BoundedSpread)) else written


def _nan_of_null(end: float | None) -> float:
    return nan if end is None else end


def _ranged(hint: Any, name: str) -> Any:
    """Return the type of a field with the range of its name, through unions and sequences."""
    if name in ("low", "high"):  # of an interval, which may be unknown
        return Annotated[Amount | None, AfterValidator(_nan_of_null)]
    if name == "tpot_s":
        return Annotated[Annotated[BoundedSpread, Stated()] | None, BeforeValidator(_stated_or_none)]
    if isinstance(hint, TypeVar):
        return _ranged(hint.__constraints__[0], name)
    if is_dataclass(hint):
        return Annotated[hint, Stated()]
    if hint in _RANGES:
        return Probability if _NO_MORE_THAN_ONE.search(name) else _RANGE_OF_NAME.get(name) or _RANGES[hint]
    if hint is Refusal:
        return Annotated[Refusal, BeforeValidator(_reason)]
    if get_origin(hint) is tuple:
        part: Any = _ranged(get_args(hint)[0], name)
        return Annotated[tuple[part, ...], Field(strict=False)]
    if get_origin(hint) is Mapping:
        return dict[str, _ranged(get_args(hint)[1], name)]  # type: ignore[misc]
    if get_origin(hint) is UnionType:
        return reduce(or_, (_ranged(each, name) for each in get_args(hint)))
    return hint


_Latency: TypeAlias = Annotated[Spread[float], Stated()]


class SeenByClassRow(AnswerRow):
    """What the users of one class see at the peak."""

    name: str
    ttft_s: _Latency
    e2e_s: _Latency


class OutsideRow(AnswerRow):
    """What requests wait for outside of the GPUs."""

    seen_ttft_s: _Latency
    seen_e2e_s: _Latency
    seen_by_class_s: tuple[SeenByClassRow, ...] = Field(strict=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedGroup(GroupFigures):
    """One group of identical replicas as a plan file holds it, its layout in names and degrees."""

    hardware: str
    gpus: int
    gpus_per_replica: int
    tensor_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    data_parallel: int
    kv_dtype: str
    usd_per_gpu_hour: float | None
    price_basis: str | None
    usd_per_hour: float | None
    max_num_batched_tokens: int | None = None
    """Most tokens of a step of one engine, where the search chose them; None: as the scenario or the engine says."""

    def refuse_contradictions(self) -> None:
        """Raise the error for counts that contradict each other."""
        if self.spare_replicas >= self.replicas:
            raise ValueError(
                f"{self.spare_replicas} of {self.replicas} replicas are spares, so none is at work"
            )
        each = self.tensor_parallel * self.pipeline_parallel * self.data_parallel
        _follows("gpus_per_replica", self.gpus_per_replica, each, "its parallelism makes")
        _follows("gpus", self.gpus, self.replicas * each, f"{self.replicas} replicas of {each} make")


class OrderedRow(AnswerRow):
    """Machines of one kind in an order."""

    sku: str | None
    provider: str
    region: str | None
    hardware: str
    gpus: Positive
    count: Positive
    usd_per_hour: Amount
    date: str | None
    source: str | None


class OrderRow(AnswerRow):
    """The machines of a plan."""

    machines: list[OrderedRow]
    gpus: Positive
    gpus_idle: Count
    usd_per_hour: Amount
    usd_per_month: Amount

    @model_validator(mode="after")
    def _machines_add_up(self) -> Self:
        _follows("gpus", self.gpus, sum(row.count * row.gpus for row in self.machines), "its machines have")
        paid = sum(row.count * row.usd_per_hour for row in self.machines)
        if paid > self.usd_per_hour * (1.0 + ROUNDING):
            raise ValueError(f"usd_per_hour is {self.usd_per_hour:g}, and its machines cost {paid:g}")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedPlan(PlanFigures):
    """A plan as a plan file holds it; what it repeats from its only group is checked and left out."""

    hardware: str
    gpus: int
    replicas: int
    spare_replicas: int
    weight_dtype: str
    kv_dtype: str
    tpot_s: BoundedSpread | None
    """None where outputs have one token, or none."""
    energy_usd_per_hour: float | None
    usd_per_month: float | None
    draft_tokens: int | None
    watts: float | None
    groups: tuple[StatedGroup, ...]
    money: UnitCosts | None
    """Costs at the mean load, whose keys stand next to the others; None without a price."""
    transfer: LinkUse | None
    """None for plans without separate pools."""
    outside: OutsideRow | None
    """None if the scenario states nothing outside of the GPUs."""
    order: OrderRow | None
    """None without a price."""

    @property
    def has_pools(self) -> bool:
        """Whether prefill and decode have separate replicas."""
        return self.transfer is not None

    def refuse_contradictions(self) -> None:
        """Raise the error for figures that groups, transfer and order contradict."""
        if not self.groups:
            raise ValueError("a plan has one group of replicas or more")
        roles = tuple(group.role for group in self.groups)
        if self.has_pools != (roles == PHASES):
            raise ValueError(
                f"groups of {' and '.join(roles)} and a transfer between pools do not go together"
            )
        routed = [group.requests.request_fraction for group in self.groups if group.requests]
        if len(routed) != (0 if self.has_pools or len(self.groups) == 1 else len(self.groups)):
            raise ValueError("several groups serve, and the requests of one of them are not stated")
        if routed:
            _follows("the share of requests of all groups", sum(routed), 1.0, "the whole is")
        shares = [group.requests.share for group in self.groups if group.requests]
        if any(share is not None for share in shares):
            _follows("the share of each class of all groups", sum(filter(None, shares)), 1.0, "the whole is")
        for key in ("gpus", "replicas", "spare_replicas"):
            _follows(
                key, getattr(self, key), sum(getattr(row, key) for row in self.groups), "its groups make"
            )
        for key in ("weight_dtype", "kv_dtype"):
            _plan_record_same(key, getattr(self, key), getattr(self.groups[-1], key))
        _plan_record_same(
            "hardware", self.hardware, " + ".join(dict.fromkeys(row.hardware for row in self.groups))
        )
        if (order := self.order) is not None:
            _follows(
                "order.gpus_idle", order.gpus_idle, order.gpus - self.gpus, "its machines and replicas leave"
            )
            _follows("usd_per_hour", self.usd_per_hour, order.usd_per_hour, "its order costs")
            _follows("usd_per_month", self.usd_per_month, order.usd_per_month, "its order costs")


COMPOSED = ("groups", "money", "transfer", "outside", "order", *DEGREES)
"""Fields of a plan or a group that its file writes by rules of their own."""
_UNIT_COSTS = tuple(field.name for field in fields(UnitCosts))
_OF_PLANS_TOO = tuple(field.name for field in fields(StatedPlan))


def _plan_record_same(key: str, written: object, of_groups: object) -> None:
    """Raise the error for a figure of a plan that is another one in its groups."""
    if written != of_groups or isinstance(written, bool) != isinstance(of_groups, bool):
        raise ValueError(f"{key} is {written!r}, and its groups have {of_groups!r}")


def _read_plan(written: object, read: ValidatorFunctionWrapHandler) -> Any:
    """Return a plan of a file: with its costs at the mean load as one value, and no repeated key that says other than its group."""
    if not isinstance(written, Mapping):
        return read(written)
    costs = {name: written[name] for name in _UNIT_COSTS if name in written}
    money = None if costs.get("usd_per_million_tokens_at_mean") is None else costs
    plan = read({**written, "money": money} if len(costs) == len(_UNIT_COSTS) else written)
    groups = written["groups"]
    for key, value in groups[0].items() if len(groups) == 1 else ():
        if key in written and key not in _OF_PLANS_TOO:
            _plan_record_same(key, written[key], value)
    return plan


PlanOfFile: TypeAlias = Annotated[StatedPlan, Stated(), WrapValidator(_read_plan)]


Choice: TypeAlias = Literal["cheapest", "surest", "fewest"]


class NamedFileRow(AnswerRow):
    """A file that a scenario names, and its content at the time."""

    key: str
    path: str
    sha256: str | None


class ModelRow(AnswerRow):
    """The model, and where its config was read."""

    name: str
    revision: RevisionName | None
    source: str


class EngineRow(AnswerRow):
    """The engine that was modelled."""

    name: Literal["vllm", "sglang", "trtllm", "llamacpp"]
    version: str


class PriceRow(AnswerRow):
    """The price of a device, and the offers that it comes from."""

    hardware: str
    usd_per_gpu_hour: Amount
    low_usd_per_gpu_hour: Amount
    high_usd_per_gpu_hour: Amount
    energy_usd_per_gpu_hour: Amount | None
    commitment: str
    offers: Count
    providers: list[str]
    dates: list[str | None]
    sources: list[str]


class SpeculationRow(AnswerRow):
    """How the replicas speculate."""

    method: str
    draft: str | None
    draft_tokens: Count | None


class ServerRow(AnswerRow):
    """The servers of a group, and the limits of its engines."""

    devices_per_server: Positive
    vendor: str
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    memory_fraction: Probability | None = None
    """None, as the limits of sequences and tokens: a plan file of before, which leaves them to the engine."""


class LaunchRow(ServerRow):
    """What one engine of the chosen plan is started with."""

    max_model_len: Count
    max_num_seqs: Count
    max_num_batched_tokens: Count
    gpu_memory_utilization: Amount | None
    memory_fraction: Probability
    """Fraction of the memory that the engine is started with, stated or its default."""
    servers: list[ServerRow] = Field(default_factory=list)
    """Servers and limits of each group, if they are not the same for all."""
    runner: Literal["generate", "pooling"]
    chunked_prefill: bool | None
    cuda_graphs: int | None
    """None: as the engine does."""
    adapters: Annotated[LoraTerms, Stated()] | None
    prefix_caching: bool
    published_weight_dtypes: list[str]
    speculation: SpeculationRow | None
    kv_offload: list[Annotated[TierSize, Stated()]]


class InputsRow(AnswerRow):
    """What a plan was made from, so that it can be read, checked and explained without the files of that day."""

    content: dict[str, Any]
    files: list[NamedFileRow]
    model: ModelRow
    engine: EngineRow
    targets: dict[str, Amount]
    confidence: Probability
    budget_usd_per_month: Amount | None
    headroom_fraction: Probability
    request_rate: Amount
    input_tokens: Amount
    output_tokens: Amount
    cached_tokens: Amount
    prices: list[PriceRow]
    launch: LaunchRow | None


class DisaggregatedRow(AnswerRow):
    """How separate pools were searched."""

    rejected: tuple[Annotated[Rejection, Stated()], ...] = Field(strict=False)
    evaluated: Count
    simulated_pairs: Count


class OverTimeRow(AnswerRow):
    """Load and GPUs of a group over the windows of a curve or of a trace."""

    request_rate: tuple[Amount, ...] = Field(strict=False)
    needed_gpus: tuple[Positive, ...] = Field(strict=False)


class OriginRow(AnswerRow):
    """The part of the origin that holds the inputs, and which plan is a choice that the search does not list."""

    unlisted: Count | None
    inputs: InputsRow


class ResultRow(AnswerRow):
    """The answer of a fleet search."""

    plans: Annotated[list[PlanOfFile], Field(min_length=1)]
    recommended: Count
    """Which of the plans is recommended, counted from 0."""
    why: str | None
    choices: Annotated[dict[Choice, Count], Field(min_length=3)] | None
    """Which of the plans each choice is, counted from 0."""
    rejected: tuple[Annotated[Rejection, Stated()], ...] = Field(strict=False)
    evaluated: Count
    certainty: tuple[Annotated[Certainty, Stated()], ...] = Field(strict=False)
    uneconomical: list[Annotated[Uneconomical, Stated()]]
    tight_target: Annotated[TightTarget, Stated()] | None
    next_steps: Annotated[NextSteps, Stated()] | None
    disaggregated: DisaggregatedRow | None
    over_time: OverTimeRow | dict[str, OverTimeRow] | None
    plan_file: OriginRow

    @model_validator(mode="after")
    def _names_its_plans(self) -> Self:
        unlisted = self.plan_file.unlisted
        if unlisted is not None and (
            self.choices is None or unlisted != self.choices.get("surest") or len(self.plans) < 2
        ):
            raise ValueError(
                f"plan_file.unlisted is {unlisted}, which is not the surest choice of several plans"
            )
        named = {"recommended": self.recommended} | (self.choices or {})
        for key, place in named.items():
            if place >= len(self.plans):
                raise ValueError(f"{key} is plan {place}, counted from 0, of {len(self.plans)}")
        return self

    @property
    def chosen(self) -> StatedPlan:
        """The recommended plan."""
        return self.plans[self.recommended]

    def over_time_of(self, group: int) -> OverTimeRow | None:
        """Return load and GPUs of a group of the chosen plan over time; None without a curve."""
        if self.over_time is None or isinstance(self.over_time, OverTimeRow):
            return self.over_time
        rows = tuple(self.over_time.values())
        return rows[group] if len(rows) == len(self.chosen.groups) else None


def checked_result(path: Path, result: Any) -> ResultRow:
    """Return the answer of a plan file.

    Parameters
    ----------
    path : of the plan file, for the error
    result : of a fleet search that found a plan

    Raises
    ------
    InputError
        a figure is missing, is one that cannot be, or contradicts the rest of its plan
    """
    found = validated(ResultRow, Document(str(path), result, {}))
    if result["chosen"] != result["plans"][found.recommended]:
        raise InputError(f"{path}: chosen is not plans[{found.recommended}], which is recommended\n  {AGAIN}")
    return found


_DEVICE, _MODEL = "device ", "model "
SHARED = ("efficiencies", "intervals", "partitions", "prices", "slowness")
"""Parts that every plan is made from."""


def data_digests(devices: Iterable[str], model: str) -> dict[str, str]:
    """Return a digest of every part of the shipped data that a plan on these devices uses, by its name.

    A device or a model that is not shipped has its own file, which the plan file lists among the files of the scenario.
    """
    names = [*(f"{_DEVICE}{name}" for name in sorted(set(devices))), f"{_MODEL}{model}", *SHARED]
    found = {name: _digest(name) for name in names}
    return {name: digest for name, digest in found.items() if digest is not None}


def changed_data(written: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the parts whose content is no longer what it was when a plan was written."""
    return tuple(name for name, digest in written.items() if _digest(name) != digest)


def _digest(name: str) -> str | None:
    if name.startswith(_MODEL):
        found = shipped_config(name.removeprefix(_MODEL))
        return found and hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]
    content = hashlib.sha256()
    paths = _paths(name)
    for path in paths:
        content.update(first_bytes(path, MAX_BYTES))
    return content.hexdigest()[:16] if paths else None


def _paths(name: str) -> tuple[Path, ...]:
    specs = data_folder("hardware_specs")
    if name.startswith(_DEVICE):
        path = specs / f"{file_of_device(name.removeprefix(_DEVICE))}.yaml"
        return (path,) if path.parent == specs and is_there(path) else ()
    return {
        "efficiencies": tuple(sorted(efficiency_folder().glob("*.yaml"))),
        "intervals": (INTERVALS_FILE,),
        "partitions": (specs / "partitions.yaml",),
        "prices": (specs / "prices.yaml",),
        "slowness": (SLOWNESS_FILE,),
    }.get(name, ())


SCHEMA = 3
"""Number of the form of plan files, raised when an older capplan could misread a new one, or a new one has what older files lack."""
AGAIN = "write it again with: capplan fleet SCENARIO -o plan.json"
_ORIGIN = ("scenario", "settings", "scenario_sha256", "prices", "prices_sha256", "inputs", "result_sha256")


@dataclass(frozen=True, slots=True)
class PlanFile:
    """The result of a fleet search, and what it was made from."""

    path: Path
    version: str
    scenario: Path
    """Scenario file where the plan was made, or else the file of this name next to the plan file."""
    settings: tuple[str, ...]
    """Keys of the scenario that were overridden, each KEY=VALUE."""
    result: Mapping[str, Any]
    """The result as JSON, unread."""
    answer: ResultRow
    """What is read of it."""
    assumptions: tuple[Assumption, ...]
    remarks: tuple[str, ...]
    """What has changed since it was written, the shipped data included."""
    data_remarks: tuple[str, ...]
    """Remarks that say which of the shipped data changed."""

    @property
    def inputs(self) -> InputsRow:
        """Return what it was made from, as it was then."""
        return self.answer.plan_file.inputs

    @property
    def document(self) -> Document:
        """Return the scenario that the plan was made for, as it was then, overridden keys included."""
        return Document(str(self.scenario), self.inputs.content, {})


def file_digest(path: str | os.PathLike[str] | None) -> str | None:
    """Return a digest of the content of a file; None without a path or without a file there."""
    return None if path is None else digest(path, MAX_BYTES)


def result_digest(result: Mapping[str, Any]) -> str:
    """Return a digest of a result and of what it was made from, which reveals an edit."""
    body = {key: value for key, value in result.items() if key != "plan_file"} | {
        "origin": {key: value for key, value in result.get("plan_file", {}).items() if key != "result_sha256"}
    }
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def plan_origin(
    scenario: str,
    settings: Sequence[str],
    price_file: str | None,
    result: Mapping[str, Any],
    unlisted: int | None,
    inputs: Mapping[str, Any],
    data: Mapping[str, str],
) -> dict[str, Any]:
    """Return the origin of a plan file: what it was made from, shipped data included, which plan is not listed, and the digest of all."""
    origin = {
        "schema": SCHEMA,
        "data": dict(data),
        "scenario": os.fspath(scenario),
        "settings": list(settings),
        "scenario_sha256": file_digest(scenario),
        "prices": price_file,
        "prices_sha256": file_digest(price_file),
        "unlisted": unlisted,
        "inputs": inputs,
    }
    return sealed(origin, result)


def sealed(origin: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the origin of a plan file with the digest of its whole result."""
    kept = {key: value for key, value in origin.items() if key != "result_sha256"}
    return {**kept, "result_sha256": result_digest({**result, "plan_file": kept})}


def is_plan_file(path: Path) -> bool:
    """Return whether a file is a plan file rather than a scenario YAML: JSON by its name, else by how it begins."""
    suffix = path.suffix.lower()
    return suffix == ".json" or (suffix not in {".yaml", ".yml"} and first_bytes(path, 1) == b"{")


def read_plan_file(path: Path) -> PlanFile:
    """Return a plan file.

    Raises
    ------
    InputError
        It is not a plan file, was edited, or its search found no plan.
    """
    envelope = read_json(path, kind="a plan file (capplan fleet SCENARIO -o plan.json writes one)")
    result = envelope.get("result")
    origin = result.get("plan_file") if isinstance(result, dict) else None
    if envelope.get("command") != "fleet" or not isinstance(result, dict) or not isinstance(origin, dict):
        raise InputError(f"{path}: is not a plan file\n  {AGAIN}")
    _refuse_other_schema(path, envelope, origin)
    missing = next((key for key in _ORIGIN if key not in origin), None) or _wrong(origin)
    if missing is not None:
        raise InputError(
            f"{path}: plan_file.{missing} is missing or malformed, so the file was edited\n  {AGAIN}"
        )
    if not _plan_file_same(result, origin["result_sha256"]):
        raise InputError(
            f"{path}: was edited after it was written, so its numbers may be inconsistent\n  {AGAIN}"
        )
    if not result.get("chosen"):
        raise InputError(f"{path}: has no plan: no fleet meets the targets of {origin['scenario']}")
    answer = checked_result(path, result)
    changed = ", ".join(changed_data(origin.get("data", {})))
    scenario = _scenario_of(path, origin)
    again = _again(path, scenario, origin["settings"])
    data_remarks = (f"{path}: data of capplan changed since: {changed}; {again}",) if changed else ()
    return PlanFile(
        path,
        str(envelope.get("capplan")),
        scenario,
        tuple(origin["settings"]),
        result,
        answer,
        tuple(_assumptions(envelope)),
        (*_remarks(path, envelope, origin, scenario, answer.plan_file.inputs), *data_remarks),
        data_remarks,
    )


def _refuse_other_schema(path: Path, envelope: Mapping[str, Any], origin: Mapping[str, Any]) -> None:
    """Raise the error for a plan file whose form this version does not know, or no longer knows."""
    schema, version = origin.get("schema", 0), envelope.get("capplan")
    if not isinstance(schema, int) or isinstance(schema, bool):
        return
    if schema > SCHEMA:
        raise InputError(
            f"{path}: is a plan file of schema {schema}, and capplan {__version__} reads schema {SCHEMA}\n"
            f"  read it with the capplan that wrote it ({version}) or a newer one, or {AGAIN}"
        )
    if schema < SCHEMA:
        sound = all(key in origin for key in _ORIGIN) and _wrong(origin) is None
        again = _again(path, _scenario_of(path, origin), origin["settings"]) if sound else AGAIN
        raise InputError(
            f"{path}: is a plan file of schema {schema}, which capplan {version} wrote, and capplan {__version__} reads schema {SCHEMA}\n  {again}"
        )


def _scenario_of(path: Path, origin: Mapping[str, Any]) -> Path:
    """Return the scenario that a plan file was made for: where it was, or else the file of its name next to the plan file."""
    scenario = Path(origin["scenario"])
    beside = path.parent / scenario.name
    return beside if file_digest(scenario) is None and file_digest(beside) is not None else scenario


def _again(path: Path, scenario: Path, settings: Sequence[str]) -> str:
    """Return the command that searches again for what a plan file was made for."""
    words = join(word for setting in settings for word in ("--set", setting))
    return f"write it again with: capplan fleet {scenario_word(scenario)} {words}{' ' if words else ''}-o {quote(str(path))}"


def _assumptions(envelope: Mapping[str, Any]) -> Iterator[Assumption]:
    """Yield the assumptions of a plan; lines that an editor made of something else are left out."""
    rows = envelope.get("assumptions")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("assumption"), str):
            yield Assumption(row["assumption"], str(row.get("replace") or ""))


def _plan_file_same(result: Mapping[str, Any], written: object) -> bool:
    """Return whether a result matches the digest that was written."""
    try:
        return result_digest(result) == written
    except (OverflowError, UnicodeError):
        return False


def _wrong(origin: Mapping[str, Any]) -> str | None:
    """Return the first key of the origin whose value has the wrong type."""
    for key in ("scenario", "scenario_sha256", "prices", "prices_sha256", "result_sha256"):
        value = origin[key]
        if not isinstance(value, str) and (value is not None or key == "scenario"):
            return key
    schema, data = origin.get("schema", 0), origin.get("data", {})
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 0:
        return "schema"
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        return "data"
    settings = origin["settings"]
    sound = isinstance(settings, list) and all(isinstance(setting, str) for setting in settings)
    return None if sound else "settings"


def _remarks(
    path: Path, envelope: Mapping[str, Any], origin: Mapping[str, Any], scenario: Path, inputs: InputsRow
) -> list[str]:
    remarks = []
    if envelope.get("capplan") != __version__:
        remarks.append(f"was written by capplan {envelope.get('capplan')}; this is {__version__}")
    if file_digest(scenario) != origin["scenario_sha256"]:
        remarks.append(f"{scenario} has changed since")
    if origin["prices"] and file_digest(origin["prices"]) != origin["prices_sha256"]:
        remarks.append(f"{origin['prices']} has changed since")
    remarks += [
        f"{file.path} has changed since" for file in inputs.files if file_digest(file.path) != file.sha256
    ]
    return [f"{path}: {remark}; {AGAIN}" for remark in dict.fromkeys(remarks)]
