"""What `import capplan` offers: functions that ask what the command of their name asks, and the plans and simulations that they return.

Each goes through the same rooms as its command, and returns its JSON, typed, and as tables of pandas.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial, wraps
from inspect import Parameter, signature
from math import inf
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, get_args

from capplan.engine.lookup import ANY_OF
from capplan.errors import InputError, TargetError, unknown
from capplan.fleet.answer import FleetAnswer
from capplan.fleet.plan import Plan
from capplan.fleet.scenario import SharingTerms
from capplan.memory.kv_sizes import kv_sizes
from capplan.questions.fleet import AskedFleet, asked_fleet
from capplan.questions.fleet_answer import fleet_for
from capplan.ranges import SEED, Text, check_list
from capplan.report.answer import Answer, flattened
from capplan.report.safe_text import plain
from capplan.scenario.flags import LoadFlags, ServingFlags, options_of
from capplan.scenario.scenario import ANY_ENGINE, read_scenario
from capplan.scenario.scenario_file import Scenario

if TYPE_CHECKING:
    from pandas import DataFrame

    from capplan.report.charts.of_answers import Chart
    from capplan.report.show import RowProgress
    from capplan.scenario.replica import CompletedReplica

LINES = 24
"""Lines of a result as Python prints it."""
COLUMNS = 100


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one question, in base units: seconds, bytes, tokens, dollars."""

    answer: Answer
    charted: "Callable[[], Chart] | None" = field(default=None, kw_only=True, compare=False)
    """Returns what a notebook draws below the table."""

    def __repr__(self) -> str:
        """Return the first screen of the command, cut at a screen."""
        from capplan.report.tables import plain_text

        lines = plain_text(self.answer.first_screen or self.answer, COLUMNS).rstrip().splitlines()
        return "\n".join(lines if len(lines) <= LINES else [*lines[: LINES - 1], "…"])

    def _repr_html_(self) -> str:
        """Return the headline, the first table and the chart, as a notebook shows them."""
        from html import escape

        from capplan.report.charts.svg import svg_file
        from capplan.report.tables import grid_of

        answer = self.answer.first_screen or self.answer
        grid = grid_of(answer.tables[0])
        rows = [
            "".join(
                f'<{tag} style="text-align:{"right" if right else "left"}">{escape(cell)}</{tag}>'
                for cell, right in zip(cells, grid.right, strict=True)
            )
            for tag, lines in (("th", [grid.headings]), ("td", grid.cells))
            for cells in lines
        ]
        table = "".join(f"<tr>{row}</tr>" for row in rows)
        drawing = svg_file(self.charted()) if self.charted else ""
        return f"<p>{escape(answer.headline)}</p><table>{table}</table>{drawing}"

    @property
    def data(self) -> Mapping[str, Any]:
        """Return what the command prints as `result` with `--format json`."""
        data: Mapping[str, Any] = plain(self.answer.result)
        return data

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Return what the command prints with `--format csv`, a mapping for each line."""
        return [flattened(plain(row)) for row in self.answer.csv_rows or self.answer.tables[0].rows]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Return what was assumed, each with the key or flag that replaces it."""
        return tuple(f"{item.what}; replace with {item.replace}" for item in self.answer.assumptions)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what is probably a mistake."""
        return self.answer.warnings

    def to_pandas(self) -> "DataFrame":
        """Return the rows as a data frame, a column for each key."""
        from pandas import DataFrame

        return DataFrame(self.rows)


@dataclass(frozen=True, slots=True, repr=False)
class FleetResult(Result):
    """The fleets that serve a scenario, cheapest first."""

    found: FleetAnswer

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Return the plans, cheapest first, those with separate pools among them; empty where none meets the targets."""
        return self.found.plans

    @property
    def chosen(self) -> Plan:
        """Return the recommended plan, whether identical replicas or separate pools.

        Raises
        ------
        TargetError
            no plan meets the targets; `plans` is empty then
        """
        if self.found.chosen is None:
            raise TargetError(self.answer.headline)
        return self.found.chosen


def _declared(*sources: Callable[..., object]) -> dict[str, Parameter]:
    """Return the options that records of flags and functions declare, by name: those of a command, but for the ones that only scenarios state."""
    found = {}
    for source in sources:
        options = options_of(source) if is_dataclass(source) else None
        for item in signature(source).parameters.values():
            stated = item.kind is Parameter.KEYWORD_ONLY if options is None else item.name in options
            if stated and item.name not in _OF_SCENARIOS:
                found[item.name] = item.replace(kind=Parameter.KEYWORD_ONLY)
    return found


_OF_SCENARIOS = ("runner", "max_loras", "max_lora_rank")
_Taken = ParamSpec("_Taken")
_Returned = TypeVar("_Returned")


def _listing(
    options: Mapping[str, Parameter],
) -> Callable[[Callable[_Taken, _Returned]], Callable[_Taken, _Returned]]:
    """Let `help` and editors list the options that a function takes as keywords, each with its type and its default."""

    def listed(function: Callable[_Taken, _Returned]) -> Callable[_Taken, _Returned]:
        shown = signature(function)
        stated = [item for item in shown.parameters.values() if item.kind is not Parameter.VAR_KEYWORD]
        told: Any = function
        told.__signature__ = shown.replace(parameters=[*stated, *options.values()])
        return function

    return listed


def _refusing(function: Callable[_Taken, _Returned]) -> Callable[_Taken, _Returned]:
    """Let a function refuse a keyword that it does not have with the nearest one that it has."""
    known = list(signature(function).parameters)

    @wraps(function)
    def called(*given: _Taken.args, **options: _Taken.kwargs) -> _Returned:
        for name in options:
            if name not in known:
                raise unknown("option", name, known)
        return function(*given, **options)

    return called


def load_scenario(path: str | PathLike[str], *settings: str) -> Scenario:
    """Read a scenario.

    Parameters
    ----------
    path : path of a scenario YAML, or the name of a shipped scenario
    settings : keys to override, each KEY=VALUE as with `--set`

    Returns
    -------
    the checked scenario, in base units

    Raises
    ------
    InputError
        the file has mistakes; the message lists all of them with their lines
    """
    path = _named(path, "path")
    check_list(settings, Text(), "settings")
    return read_scenario(Path(path), settings)


@_refusing
def plan_fleet(scenario: Scenario | str | PathLike[str], *, offline: bool = False) -> FleetResult:
    """Find the cheapest fleet that serves a scenario, as `capplan fleet` does.

    Parameters
    ----------
    scenario : path of a scenario YAML, name of a shipped scenario, or the result of `load_scenario`
    offline : never open a connection

    Returns
    -------
    a `FleetResult`: the plans, cheapest first, with the recommended plan as `chosen`

    Raises
    ------
    InputError
        the scenario has mistakes, or names what capplan does not know
    """
    from capplan.keys import current_day
    from capplan.questions.money.energy import outlook_of
    from capplan.report.answers.fleet import fleet_answer

    asked = _asked(scenario, offline=offline)
    found = fleet_for(asked)
    answer = fleet_answer(asked, found, outlook_of(asked, found, current_day()))
    return FleetResult(answer, found, charted=_why(found.chosen))


ESTIMATE_OPTIONS = _declared(ServingFlags, LoadFlags)
KV_OPTIONS = _declared(kv_sizes)


@_listing(ESTIMATE_OPTIONS)
def estimate(model: str, hardware: str, **options: Any) -> Result:
    """Predict latency and throughput of one replica, as `capplan estimate` does.

    Parameters
    ----------
    model : shipped id or alias, path of a config.json, or a Hugging Face id
    hardware : catalogue name or alias, or path of a hardware YAML
    tensor_parallel : GPUs that every matrix is split over
    pipeline_parallel : stages that the layers are distributed over
    expert_parallel : groups that whole experts are distributed over
    data_parallel : attention groups, each with different sequences
    weight_dtype : dtype of the weights; None: the dtype of the checkpoint
    kv_dtype : dtype of the KV cache; None: the dtype of the checkpoint, or of the activations if it states none
    engine : vllm, sglang, trtllm or llamacpp
    engine_version : version of the engine; None: the newest version that capplan knows
    max_model_len : [tokens] longest context; None: the maximum of the model
    max_num_seqs : most requests of one step; None: the default of the engine
    max_num_batched_tokens : [tokens] most tokens of one step; None: the default of the engine
    backend : of llama.cpp: cuda, metal, vulkan, rocm, sycl or cpu; None: the usual one of the device
    n_gpu_layers : last layers that llama.cpp keeps on the device, the LM head counted as one; None: all
    tensor_split : parts of the layers for each card of a machine such as rtx-4090+rtx-3060:12gb, or fastest; None: by memory
    split_mode : layer, or none for one card of a machine
    main_gpu : card of a machine that runs by itself, counted from 0
    n_cpu_moe : first layers whose routed experts llama.cpp keeps in the memory of the host; None: none
    host_bandwidth : [B/s] bandwidth of the memory of the host; with no layers stated, the fastest split that fits is found
    host_memory : [B] memory of the host that weights may take; None: as much as they need
    cuda_graphs : sequences of the largest step that runs as a CUDA graph; 0: none does; None: the default of the engine
    gpu_memory_utilization : [-] share of the GPU memory that the engine allocates; None: the default of the engine
    calibration : file that `capplan calibrate` wrote; None: the shipped efficiencies
    revision : revision of the model on the hub; None: its main branch
    offline : never open a connection
    input_tokens : [tokens] length of each prompt
    output_tokens : [tokens] length of each response
    concurrency : requests at a time; state either concurrency or request_rate
    request_rate : [req/s] requests per second; state either request_rate or concurrency
    prefix_hit_fraction : [-] prefix-cache hit rate: the share of input tokens that the cache holds

    Returns
    -------
    a `Result`; its `data` has ttft_s, tpot_s, e2e_s, throughput and the operators

    Raises
    ------
    InputError
        a name, a number or an option is wrong
    DoesNotFitError
        the model does not fit on the GPUs
    """
    from capplan.scenario.replica import asked_replica

    of_load = {field.name for field in fields(LoadFlags)}
    _refuse_options(options, ESTIMATE_OPTIONS)
    model, hardware = _named(model, "model"), _named(hardware, "hardware")
    load = LoadFlags(**{key: value for key, value in options.items() if key in of_load})
    serving = ServingFlags(**{key: value for key, value in options.items() if key not in of_load})
    return _estimated(asked_replica(model, hardware, serving), load)


def _estimated(asked: "CompletedReplica", load: LoadFlags) -> Result:
    """Return what a replica is predicted to do at a load."""
    from capplan.accuracy.bounded import bounded_estimate
    from capplan.readers.catalogue.efficiency import shipped_intervals
    from capplan.replica.replica import replica_of
    from capplan.report.answers.replica import estimate_answer
    from capplan.report.charts.of_answers import has_roof, roofline_of

    replica = replica_of(replace(asked.spec, typical_context_tokens=load.tokens))
    bounded = bounded_estimate(replica, load, shipped_intervals())
    drawn = partial(roofline_of, asked.spec, bounded.estimate.breakdown)
    answer = estimate_answer(replica, load, bounded, asked.assumptions, asked.warnings)
    return Result(answer, charted=drawn if has_roof(asked.spec) else None)


@_listing(KV_OPTIONS)
def kv_size(model: str, contexts: Sequence[int] = (), *, offline: bool = False, **options: Any) -> Result:
    """Return the memory that the KV cache of a sequence takes, as `capplan kv-size` does.

    Parameters
    ----------
    model : shipped id or alias, path of a config.json, or a Hugging Face id
    contexts : [tokens] length of a sequence, one row each; empty: one row with a usual length
    offline : never open a connection
    sequences : number of sequences that the total counts
    kv_dtype : dtype of the KV cache; None: the dtype of the checkpoint, or of the activations if it states none
    tensor_parallel : GPUs that the heads are split over
    engine : vllm, sglang, trtllm or llamacpp
    engine_version : version of the engine; None: the newest version that capplan knows
    max_num_batched_tokens : [tokens] most tokens of one step, which some caches reserve; None: the default of the engine

    Returns
    -------
    a `Result`; its `rows` has one row for each context

    Raises
    ------
    InputError
        a name, a number or an option is wrong
    """
    from capplan.readers.catalogue.models import read_model
    from capplan.report.answers.models import kv_answer

    _refuse_options(options, KV_OPTIONS)
    model = _named(model, "model")
    return Result(kv_answer(kv_sizes(read_model(model, offline=offline), contexts, **options)))


@_refusing
def simulate(
    scenario: Scenario | str | PathLike[str],
    *,
    seed: int = SEED,
    until_s: float | None = None,
    warm_up_s: float | None = None,
    trace: str | PathLike[str] | None = None,
    offline: bool = False,
) -> Result:
    """Simulate the recommended fleet of a scenario request by request, as `capplan simulate` does.

    Parameters
    ----------
    scenario : path of a scenario YAML, name of a shipped scenario, or the result of `load_scenario`
    seed : of the random draws
    until_s : [s] of simulated time; None: until all requests are done
    warm_up_s : [s] from the start that figures leave out; None: as the traffic needs it
    trace : requests to replay instead of the scenario's traffic
    offline : never open a connection

    Returns
    -------
    `data` has latencies, goodput, prefix hits and occupancy, for all and by class
    """
    from capplan.library.simulated_fleet import SimulationRecords, simulated
    from capplan.scenario.command_flags import RequestFlags

    _refuse_no_path(trace, "trace")
    requests = RequestFlags(None if trace is None else Path(trace), until_s, seed, warm_up_s)
    return Result(
        simulated(_asked(scenario, offline=offline), None, SimulationRecords(requests), offline=offline)
    )


@_refusing
def compare(
    scenario: Scenario | str | PathLike[str], apis: Sequence[str] = (), *, offline: bool = False
) -> Result:
    """Compare a month of the fleet of a scenario with hosted APIs, as `capplan compare` does.

    Parameters
    ----------
    scenario : path of a scenario YAML, name of a shipped scenario, or the result of `load_scenario`
    apis : each PROVIDER/MODEL; empty: all listed ones that serve the scenario's model
    offline : never open a connection

    Returns
    -------
    `rows` has one line for each API, cheapest first
    """
    from capplan.keys import current_day
    from capplan.questions.money.comparison import asked_comparison, asked_prices
    from capplan.report.answers.compare import compare_answer

    check_list(apis, Text(), "apis")
    asked = _asked(scenario, offline=offline)
    prices = asked_prices(apis, asked)
    compared = asked_comparison(asked, fleet_for(asked), prices, current_day())
    return Result(compare_answer(compared, asked.scenario.name, asked.scenario.file.currency))


@_refusing
def capacity(
    scenario: str | PathLike[str],
    gpus: str | None = None,
    *,
    usd_per_month: float | None = None,
    settings: Sequence[str] = (),
    think_time_s: float = 30.0,
    offline: bool = False,
) -> Result:
    """Find the largest load that GPUs or a budget carry within the targets, as `capplan capacity` does.

    Parameters
    ----------
    scenario : path of a scenario YAML, name of a shipped scenario, a model, or the path of a plan file
    gpus : such as '8 x h100-sxm' or '8 x h100-sxm, 4 x l40s'; None: those of the plan file, or as the budget or the scenario limits them
    usd_per_month : [$/month] budget of the fleet; None: no budget, or that of the scenario
    settings : keys to override, each KEY=VALUE as with `--set`
    think_time_s : [s] time between two requests of a user, for traffic that does not state its users
    offline : never open a connection

    Returns
    -------
    `data` has the largest load as `carried`, its `limit` in words, the `plan`, and what `more` would carry

    Raises
    ------
    InputError
        the scenario has mistakes, or nothing limits the fleet
    """
    from capplan.questions.capacity import asked_capacity
    from capplan.report.answers.capacity import capacity_answer

    check_list(settings, Text(), "settings")
    path = Path(_named(scenario, "scenario"))
    asked, answer = asked_capacity(path, tuple(settings), gpus, usd_per_month, think_time_s, offline=offline)
    return Result(capacity_answer(asked, answer), charted=_why(answer.plan))


def _why(plan: Plan | None) -> "Callable[[], Chart] | None":
    """Return what draws why a plan has its GPUs; None without a plan."""
    from capplan.report.charts.of_answers import waterfall_chart

    return None if plan is None else partial(waterfall_chart, plan)


def _refuse_options(given: Mapping[str, object], known: Mapping[str, Parameter]) -> None:
    """Raise the error for an option that a function does not have, or that is of another kind; ranges of numbers belong to their records."""
    for name, value in given.items():
        if name not in known:
            raise unknown("option", name, known)
        kinds = get_args(known[name].annotation) or (known[name].annotation,)
        if value is None and type(None) not in kinds:
            raise InputError(f"{name}: None is no value of it; leave {name} out for its default")
        if Path in kinds:
            _refuse_no_path(value, name)
        elif value is not None and str in kinds:
            Text().check(value, name)
        elif kinds == (bool,) and not isinstance(value, bool):
            raise InputError(f"{name}: {value!r} is neither True nor False")


def _named(value: object, name: str) -> str:
    """Return the name or path of a model or device as text."""
    if not isinstance(value, (str, PathLike)):
        raise InputError(f"{name}: {value!r} is neither a name nor a path")
    return fspath(value)


def _refuse_no_path(value: object, name: str) -> None:
    """Raise an error if the argument is given and is not the path of a file."""
    if value is not None and not isinstance(value, (str, PathLike)):
        raise InputError(f"{name}: {value!r} is not the path of a file")


def _asked(scenario: Scenario | str | PathLike[str], *, offline: bool) -> AskedFleet:
    if not isinstance(scenario, (Scenario, str, PathLike)):
        raise InputError(
            f"scenario: a value of type {type(scenario).__name__} is not a scenario; give the path of a YAML file, or what load_scenario returned"
        )
    return asked_fleet(
        scenario if isinstance(scenario, Scenario) else load_scenario(scenario), offline=offline
    )


def planned(
    path: str | os.PathLike[str],
    settings: Sequence[str],
    progress: "RowProgress | None" = None,
    *,
    pictured: bool,
    offline: bool,
) -> tuple[Answer, "list[Chart]"]:
    """Return the fleets that serve a scenario, and the charts that are asked for.

    Parameters
    ----------
    path : of the scenario
    settings : keys that are overridden, each KEY=VALUE
    progress : of each search; takes the plans that are done, all of them, and those found so far
    pictured : whether charts are asked for, which only one fleet has
    offline : never open a connection
    """
    scenario = read_scenario(path, settings)
    if scenario.several is not None:
        if pictured:
            raise InputError(f"--plot: draws one fleet, and {scenario.path} has several")
        from capplan.keys import current_day
        from capplan.questions.several_models import PartsAsked, cascade_for, sharing_for
        from capplan.report.answers.several_models import cascade_answer, sharing_answer

        parts = PartsAsked(path, tuple(settings), current_day(), progress, offline)
        if isinstance(scenario.several, SharingTerms):
            return sharing_answer(sharing_for(parts)), []
        return cascade_answer(cascade_for(parts)), []
    from capplan.keys import current_day
    from capplan.questions.money.energy import outlook_of
    from capplan.questions.plans.plan_row import plan_row
    from capplan.report.answers.fleet import fleet_answer
    from capplan.report.answers.fleet_words import found_text

    def found(plan: Plan) -> None:
        if progress is not None:
            progress.found(found_text(plan), plans=[plan_row(plan)])

    if scenario.file.engine == ANY_ENGINE:
        return _of_any_engine(path, settings, progress, pictured=pictured, offline=offline)
    asked = asked_fleet(scenario, offline=offline)
    answer = fleet_for(asked, progress, found if progress else None)
    outlook = outlook_of(asked, answer, current_day())
    shown = fleet_answer(asked, answer, outlook, scenario.settings)
    if not pictured:
        return shown, []
    from capplan.report.charts.of_answers import fleet_charts

    return shown, fleet_charts(answer, outlook)


def _of_any_engine(
    path: str | os.PathLike[str],
    settings: Sequence[str],
    progress: "RowProgress | None",
    *,
    pictured: bool,
    offline: bool,
) -> tuple[Answer, "list[Chart]"]:
    """Return the fleets of the engine whose plan costs least, with what each of the others costs."""
    tried: list[dict[str, Any]] = []
    found: list[tuple[float, Answer, list[Chart]]] = []
    for name in ANY_OF:
        row: dict[str, Any] = {"engine": name, "gpus": None, "usd_per_month": None, "reason": None}
        tried.append(row)
        try:
            shown, charts = planned(
                path, [*settings, f"engine={name}"], progress, pictured=pictured, offline=offline
            )
        except InputError as error:
            row["reason"] = str(error).splitlines()[0]
            continue
        chosen = shown.result["chosen"]
        if chosen is None:
            row["reason"] = "no plan meets the targets"
        else:
            row |= {key: chosen[key] for key in ("gpus", "usd_per_month")}
        cost = inf if row["usd_per_month"] is None else row["usd_per_month"]
        found.append((cost if chosen else inf, shown, charts))
    if not found:
        raise InputError("engine: none serves this\n  " + "\n  ".join(map(_of_engine, tried)))
    _, shown, charts = min(found, key=lambda one: one[0])
    from capplan.readers.plan_file import sealed

    line = f"engine: any: {', '.join(map(_of_engine, tried))}"
    screen = shown.first_screen and replace(shown.first_screen, closing=(*shown.first_screen.closing, line))
    result = {**shown.result, "engines": tried}
    result["plan_file"] = sealed(result["plan_file"], result)
    return replace(shown, result=result, closing=(*shown.closing, line), first_screen=screen), charts


def _of_engine(row: Mapping[str, Any]) -> str:
    """Return what the fleet of one engine takes."""
    if row["reason"] is not None:
        return f"{row['engine']} not ({row['reason']})"
    usd = row["usd_per_month"]
    return f"{row['engine']} {row['gpus']} GPUs" if usd is None else f"{row['engine']} ${usd:,.0f} per month"
