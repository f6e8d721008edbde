"""The schema of a plan file: type and range of every figure that is read back from it."""

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import reduce
from math import isclose
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from pydantic import (
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

from capplan.accuracy.bounded import BoundedSpread
from capplan.errors import Refusal
from capplan.fleet.engine_options import TierSize
from capplan.fleet.plan import (
    PHASES,
    Certainty,
    GroupFigures,
    NextSteps,
    PlanFigures,
    TightTarget,
    Uneconomical,
)
from capplan.fleet.pools.link import LinkUse
from capplan.fleet.search.candidates import DEGREES, Rejection
from capplan.fleet.unit_costs import UnitCosts
from capplan.model.network import LoraTerms
from capplan.numbers import Spread
from capplan.readers.record import LARGEST_WHOLE, Record, validated
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
    """A part of the answer; figures that are not read again stay as they are."""

    model_config = ConfigDict(extra="ignore", strict=True)


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


def _ranged(hint: Any, name: str) -> Any:
    """Return the type of a field with the range of its name, through unions and sequences."""
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
    seen_by_class_s: tuple[SeenByClassRow, ...] = Field(default=(), strict=False)


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
    price_basis: str | None = None
    usd_per_hour: float | None = None

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


class PlacementRow(AnswerRow):
    """Machines with equally many replicas."""

    sku: str | None
    machines: Positive
    replicas: Count
    machines_per_replica: Positive


class OrderRow(AnswerRow):
    """The machines of a plan."""

    machines: list[OrderedRow]
    placement: list[PlacementRow] = Field(default_factory=list)
    gpus: Positive
    gpus_idle: Count
    free_replicas: Count
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
    energy_usd_per_hour: float | None = None
    usd_per_month: float | None
    draft_tokens: int | None
    watts: float | None
    groups: tuple[StatedGroup, ...]
    money: UnitCosts | None
    """Costs at the mean load, whose keys stand next to the others; None without a price."""
    transfer: LinkUse | None
    """None for plans without separate pools."""
    outside: OutsideRow | None = None
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
            _same(key, getattr(self, key), getattr(self.groups[-1], key))
        _same("hardware", self.hardware, " + ".join(dict.fromkeys(row.hardware for row in self.groups)))
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


def _same(key: str, written: object, of_groups: object) -> None:
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
            _same(key, written[key], value)
    return plan


PlanOfFile: TypeAlias = Annotated[StatedPlan, Stated(), WrapValidator(_read_plan)]


class ChoicesRow(AnswerRow):
    """The plans to choose from."""

    cheapest: PlanOfFile
    surest: PlanOfFile
    fewest: PlanOfFile


class NamedFileRow(AnswerRow):
    """A file that a scenario names, and its content at the time."""

    key: str
    path: str
    sha256: str | None


class ModelRow(AnswerRow):
    """The model, and where its config was read."""

    name: str
    revision: str | None
    source: str


class EngineRow(AnswerRow):
    """The engine that was modelled."""

    name: Literal["vllm", "sglang", "trtllm"]
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
    """The servers of a group."""

    devices_per_server: Positive
    vendor: str


class LaunchRow(AnswerRow):
    """What one engine of the chosen plan is started with."""

    max_model_len: Count
    max_num_seqs: Count
    max_num_batched_tokens: Count
    gpu_memory_utilization: Amount | None
    memory_fraction: Probability
    """As it is started, the engine's default included."""
    devices_per_server: Positive
    vendor: str
    servers: list[ServerRow] = Field(default_factory=list)
    """Servers of each group, if they are not the same for all."""
    runner: Literal["generate", "pooling"]
    chunked_prefill: bool | None
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


class ResultRow(AnswerRow):
    """The answer of a fleet search."""

    plans: Annotated[list[PlanOfFile], Field(min_length=1)]
    chosen: PlanOfFile
    why: str | None
    choices: ChoicesRow | None
    rejected: tuple[Annotated[Rejection, Stated()], ...] = Field(strict=False)
    evaluated: Count
    certainty: tuple[Annotated[Certainty, Stated()], ...] = Field(strict=False)
    uneconomical: list[Annotated[Uneconomical, Stated()]]
    tight_target: Annotated[TightTarget, Stated()] | None
    next_steps: Annotated[NextSteps, Stated()] | None
    disaggregated: DisaggregatedRow | None
    over_time: OverTimeRow | dict[str, OverTimeRow] | None = None

    def over_time_of(self, group: int) -> OverTimeRow | None:
        """Return load and GPUs of a group of the chosen plan over time; None without a curve."""
        if self.over_time is None or isinstance(self.over_time, OverTimeRow):
            return self.over_time
        rows = tuple(self.over_time.values())
        return rows[group] if len(rows) == len(self.chosen.groups) else None


class _OriginRow(AnswerRow):
    """The part of the origin that holds the inputs."""

    inputs: InputsRow


class _WholeRow(ResultRow):
    """A result with what it was made from."""

    plan_file: _OriginRow


def checked_result(path: Path, result: Any) -> tuple[ResultRow, InputsRow]:
    """Return the answer of a plan file, and what it was made from.

    Parameters
    ----------
    path : of the plan file, for the error
    result : of a fleet search that found a plan

    Raises
    ------
    InputError
        a figure is missing, is one that cannot be, or contradicts the rest of its plan
    """
    found = validated(_WholeRow, Document(str(path), result, {}))
    return found, found.plan_file.inputs
