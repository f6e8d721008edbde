"""Facts that published benchmarks state outside their result files: launch settings, and columns of their rows."""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from capplan.accuracy.benchmark import Benchmark, source_of
from capplan.readers.catalogue.hardware import catalogue_name
from capplan.readers.catalogue.offer_terms import PageSource
from capplan.readers.record import Record
from capplan.readers.yaml_file import read_yaml

RECIPES_FILE = Path(__file__).parents[2] / "accuracy" / "data" / "recipes.yaml"

NOMINAL_SHARE = 0.9
"""Mean length over the nominal one where lengths are uniform between 0.8 and 1 of it."""

_FORMAT_ENDING = re.compile(
    r"(-(instruct|preview|v\d+|bf16|fp8|fp8-dynamic|mxfp8|fp4|nvfp4|mxfp4|int4|awq|gptq|w-mxfp4-a-fp8))+$",
    re.IGNORECASE,
)
"""What ids add to the name of a model to name a number format."""


class RecipeSettings(Record):
    """Launch settings of a server; a setting that is not given keeps the engine's default."""

    kv_dtype: str | None = None
    engine_version: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | Literal["clients"] | None = None
    max_num_batched_tokens: int | Literal["context", "two_prompts", "prompt_and_clients"] | None = None
    memory_fraction: float | None = None
    graph_tokens: int | None = None
    """Largest step with prompts that runs under CUDA graphs."""
    graph_sizes: list[int] | None = None
    """Batches that are captured as CUDA graphs, to which decode steps are padded."""
    hold_steps: int | None = None
    hold_share: float | None = None
    """Share of the token budget at which a hold ends."""
    hold_prompts: Literal["group"] | None = None
    """A hold ends when one prompt waits for each data-parallel group of attention."""
    gather_steps: int | None = None
    """Further steps to wait once enough prompts are there."""
    hold_seats: Literal["group"] | None = None
    """They also wait for as many seats in each group as one step of a group took at most."""
    poll_steps: int | None = None
    asynchronous: bool | None = None
    """A step is planned while the one before it runs, whatever the default of the version."""
    embedded: bool | None = None
    """The client runs the engine in its own process."""
    data_parallel: bool | None = None
    """Attention runs in as many groups as there are tensor ranks, although the row counts none."""
    expert_parallel: bool | None = None
    """Experts are spread over the tensor ranks."""
    expert_kernel: str | None = None
    """Part of the name of the kernel for routed experts."""


class RecipeRows(Record):
    """Which rows of a source a recipe belongs to."""

    engine: str
    models: list[str] = Field(default_factory=list)
    devices: list[str] = Field(default_factory=list)
    weights: list[str] = Field(default_factory=list)
    versions: list[str] = Field(default_factory=list)
    kinds: list[str] = Field(default_factory=list)
    lengths: str | None = None
    """Nominal input/output tokens."""
    groups_from: int = 1
    """Data-parallel groups of attention."""
    clients_from: int = 0
    clients_below: int | None = None
    ranks_below: int | None = None
    """Tensor-parallel ranks."""
    pools: bool | None = None
    """Prefill and decode run in separate pools."""


class Recipe(Record):
    """Settings of some rows, and the scripts that state them."""

    source: str
    scripts: list[str]
    where: RecipeRows
    settings: RecipeSettings


class ScriptRows(Record):
    """Which rows a launch script served."""

    engine: str
    model: str
    """Key of `models`."""
    weights: Literal["bf16", "fp8", "int4", "fp4"]
    device: str


class ScriptCase(Record):
    """Settings of the runs of a script that meet every condition given."""

    lengths: list[str] | None = None
    """Nominal input/output tokens."""
    gpus: list[int] | None = None
    """Ranks of one server: tensor ranks, or data-parallel groups of attention."""
    clients_from: int = 0
    clients_below: int | None = None
    experts_spread: bool | None = None
    """The row has expert parallelism."""
    data_parallel: bool | None = None
    """Attention runs in data-parallel groups."""
    settings: RecipeSettings


class ScriptChange(Record):
    """All settings of a script from a day on."""

    since: str
    """Day on which the commit was merged."""
    script: str
    commit: str
    settings: RecipeSettings
    cases: list[ScriptCase] = Field(default_factory=list)
    """Later ones over earlier ones; `null` unsets."""


class LaunchScript(Record):
    """What the launch script of one kind of row said, day by day."""

    rows: ScriptRows
    changes: list[ScriptChange]
    """Ascending."""


class ScriptModel(Record):
    """A model as scripts call it."""

    names: list[str]
    """Last parts of its ids, without what names a number format."""
    weights: str
    """Format of the checkpoint whose id names none."""


class ScriptFamily(Record):
    """Launch scripts of one source."""

    source: str
    models: dict[str, ScriptModel]
    launches: list[LaunchScript]


class RunColumns(Record):
    """Columns of a row of serving results that its source states elsewhere."""

    tp: int | None = None
    requests: int | None = None
    requests_per_client: int | None = None
    """Requests per client of a closed loop."""
    duration_s: float | None = None
    """Duration of an open loop."""
    attention_data_parallel: bool | None = None
    """Attention runs in as many groups as `tp` says, with the experts spread over all of them."""
    offered_rate_reported: bool | None = None
    """`req_s` counts the requests that were sent, not those that were finished."""
    engine_version: str | None = None
    nominal_lengths: str | None = None
    """Nominal prompt/answer tokens of SGLang's load generator, which draws shorter ones."""
    prefix_hit_fraction: float | None = None
    prefix_tokens: int | None = None
    prefix_groups: int | None = None
    prompts_per_prefix: int | None = None
    prefix_state: str | None = None
    front_end_ms: float | None = None
    """Time that a request takes before it reaches an engine."""


class RunRecipe(Record):
    """Columns of some rows of a source, and the pages that state them."""

    source: str
    stated_in: list[str]
    where: dict[str, list[float | str]]
    """Column -> values; an empty text is a column that is not stated."""
    columns: RunColumns


class RecipeFile(Record):
    """All recipes."""

    sources: dict[str, PageSource]
    runs: list[RunRecipe]
    recipes: list[Recipe]
    scripts: list[ScriptFamily] = Field(default_factory=list)


@lru_cache(maxsize=1)
def recipe_file() -> RecipeFile:
    """Return the shipped recipes."""
    return RecipeFile.model_validate(read_yaml(RECIPES_FILE, kind="recipes").value)


def recipe_columns(row: Mapping[str, str]) -> dict[str, str]:
    """Return the columns that the recipes of a row's source state.

    Parameters
    ----------
    row : serving results, text by column name

    Returns
    -------
    text by column name, later recipes over earlier ones; empty for any other source
    """
    columns: dict[str, str] = {}
    source = source_of(row)
    for recipe in recipe_file().runs:
        if recipe.source == source and all(
            _is_one_of(row.get(column) or "", values) for column, values in recipe.where.items()
        ):
            stated = recipe.columns.model_dump(exclude_none=True)
            columns |= {
                column: value if isinstance(value, str) else f"{value:g}" for column, value in stated.items()
            }
    return columns


def _is_one_of(text: str, values: list[float | str]) -> bool:
    """Return whether a cell has one of the values; numbers compare as numbers: `72.0` is 72."""
    try:
        return float(text) in values or text in values
    except ValueError:
        return text in values


def _matches(rows: RecipeRows, benchmark: Benchmark) -> bool:
    below = rows.ranks_below
    return (
        rows.engine == benchmark.engine
        and (not rows.models or benchmark.model in rows.models)
        and (not rows.devices or (catalogue_name(benchmark.device) or benchmark.device) in rows.devices)
        and (not rows.weights or benchmark.weight_format in rows.weights)
        and (not rows.versions or benchmark.engine_version in rows.versions)
        and (not rows.kinds or benchmark.kind in rows.kinds)
        and (rows.lengths is None or rows.lengths == _nominal_lengths(benchmark))
        and (benchmark.concurrency or 0) >= rows.clients_from
        and float(benchmark.sharding.data) >= rows.groups_from
        and (rows.clients_below is None or (benchmark.concurrency or 0) < rows.clients_below)
        and (below is None or float(benchmark.sharding.tensor) < below)
        and rows.pools in {None, benchmark.deployment.pools is not None}
    )


def _nominal_lengths(benchmark: Benchmark) -> str:
    means = (benchmark.input_tokens, benchmark.output_tokens)
    return "/".join(str(round(mean / NOMINAL_SHARE)) for mean in means)


def _weights_of(benchmark: Benchmark, model: ScriptModel) -> str:
    """Return the format of the weights that a row names: in its column, else in the id, else the model's usual one."""
    column = benchmark.weight_format.lower()
    for text in (column, benchmark.model.lower() if column in {"", "auto"} else ""):
        for format_name in ("fp4", "int4", "fp8", "bf16"):
            if format_name in text or format_name.replace("bf", "bfloat") in text:
                return format_name
    return model.weights if column in {"", "auto"} else column


def is_model(name: str, model: ScriptModel) -> bool:
    """Return whether an id is one of a model's checkpoints, in whatever number format.

    Parameters
    ----------
    name : `owner/name` or a name
    model : its names

    Examples
    --------
    >>> model = ScriptModel(names=["DeepSeek-R1-0528"], weights="fp8")
    >>> [is_model(f"x/DeepSeek-R1-0528{end}", model) for end in ("", "-NVFP4-v2", "-Qwen3-8B")]
    [True, True, False]
    """
    last = _FORMAT_ENDING.sub("", name.rpartition("/")[2])
    return last.lower() in {known.lower() for known in model.names}


def _last_day(date: str) -> str:
    """Return the last day that a date can mean: of `2025-12..2026-01` that of January; of no date one after all others."""
    return f"{date.rpartition('..')[2]}-99"[:10] if date else "9999"


def _meets(case: ScriptCase, benchmark: Benchmark) -> bool:
    sharding, clients = benchmark.sharding, benchmark.concurrency or 0
    return (
        (case.lengths is None or _nominal_lengths(benchmark) in case.lengths)
        and (case.gpus is None or float(sharding.tensor) * float(sharding.data) in case.gpus)
        and case.clients_from <= clients
        and (case.clients_below is None or clients < case.clients_below)
        and case.experts_spread in {None, float(sharding.expert) > 1.0}
        and case.data_parallel in {None, float(sharding.data) > 1.0}
    )


def script_change(benchmark: Benchmark) -> ScriptChange | None:
    """Return what the launch script of a benchmark said on its day: the newest change by then, else the oldest.

    Parameters
    ----------
    benchmark : what was measured; without a date the script's last word counts

    Returns
    -------
    the change; None where the source has no such script
    """
    device, day = catalogue_name(benchmark.device) or benchmark.device, _last_day(benchmark.date)
    for family in recipe_file().scripts:
        if family.source != benchmark.source:
            continue
        weights = {
            name: _weights_of(benchmark, model)
            for name, model in family.models.items()
            if is_model(benchmark.model, model)
        }
        for launch in family.launches:
            rows = launch.rows
            served = (rows.engine, rows.device, rows.weights)
            if served == (benchmark.engine, device, weights.get(rows.model)):
                return [launch.changes[0], *(change for change in launch.changes if change.since <= day)][-1]
    return None


def recipe_settings(benchmark: Benchmark) -> RecipeSettings:
    """Return the settings of a benchmark that its source's scripts state.

    Returns
    -------
    the settings of its launch script and of all recipes that match, later ones over earlier ones; empty for any other source
    """
    settings: dict[str, object] = {}
    change = script_change(benchmark)
    if change:
        settings |= change.settings.model_dump(exclude_unset=True)
        for case in change.cases:
            if _meets(case, benchmark):
                settings |= case.settings.model_dump(exclude_unset=True)
    for recipe in recipe_file().recipes:
        if recipe.source == benchmark.source and _matches(recipe.where, benchmark):
            settings |= recipe.settings.model_dump(exclude_none=True)
    return RecipeSettings.model_validate(settings)
