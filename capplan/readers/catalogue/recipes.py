"""Facts that published benchmarks state outside their result files: launch settings, and columns of their rows."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from capplan.accuracy.benchmark import Benchmark, source_of
from capplan.readers.record import Record
from capplan.readers.yaml_file import read_yaml

RECIPES_FILE = Path(__file__).parents[2] / "accuracy" / "data" / "recipes.yaml"

NOMINAL_SHARE = 0.9
"""Mean length over the nominal one where lengths are uniform between 0.8 and 1 of it."""


class RecipeSettings(Record):
    """Launch settings of a server; a setting that is not given keeps the engine's default."""

    kv_dtype: str | None = None
    engine_version: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | Literal["clients"] | None = None
    max_num_batched_tokens: int | Literal["context", "two_prompts"] | None = None
    memory_fraction: float | None = None
    graph_tokens: int | None = None
    """Largest step with prompts that runs under CUDA graphs."""
    hold_steps: int | None = None
    hold_share: float | None = None
    """Share of the token budget at which a hold ends."""
    hold_prompts: Literal["group"] | None = None
    """A hold ends when one prompt waits for each data-parallel group of attention ..."""
    gather_steps: int | None = None
    """... and so many steps have passed."""
    poll_steps: int | None = None
    embedded: bool | None = None
    """The client runs the engine in its own process."""
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
    ranks_below: int | None = None
    """Tensor-parallel ranks."""


class Recipe(Record):
    """Settings of some rows, and the scripts that state them."""

    source: str
    scripts: list[str]
    where: RecipeRows
    settings: RecipeSettings


class RunColumns(Record):
    """Columns of a row of serving results that its source states elsewhere."""

    requests: int | None = None
    requests_per_client: int | None = None
    """Of a closed loop."""
    duration_s: float | None = None
    """Of an open loop."""
    attention_data_parallel: bool | None = None
    """Attention runs in as many groups as `tp` says, with the experts spread over all of them."""
    offered_rate_reported: bool | None = None
    """`req_s` counts the requests that were sent, not those that were finished."""


class RunRecipe(Record):
    """Columns of some rows of a source, and the pages that state them."""

    source: str
    stated_in: list[str]
    where: dict[str, list[float | str]]
    """Column -> values; an empty text is a column that is not stated."""
    columns: RunColumns


class RecipeSource(Record):
    """Where the scripts are published."""

    title: str
    url: str


class RecipeFile(Record):
    """All recipes."""

    sources: dict[str, RecipeSource]
    runs: list[RunRecipe]
    recipes: list[Recipe]


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
            columns |= {column: f"{value:g}" for column, value in stated.items()}
    return columns


def _is_one_of(text: str, values: list[float | str]) -> bool:
    """Return whether a cell has one of the values; numbers compare as numbers: `72.0` is 72."""
    try:
        return float(text) in values or text in values
    except ValueError:
        return text in values


def _matches(rows: RecipeRows, benchmark: Benchmark) -> bool:
    nominal = [str(round(mean / NOMINAL_SHARE)) for mean in (benchmark.input_tokens, benchmark.output_tokens)]
    below = rows.ranks_below
    return (
        rows.engine == benchmark.engine
        and (not rows.models or benchmark.model in rows.models)
        and (not rows.devices or benchmark.device in rows.devices)
        and (not rows.weights or benchmark.weight_format in rows.weights)
        and (not rows.versions or benchmark.engine_version in rows.versions)
        and (not rows.kinds or benchmark.kind in rows.kinds)
        and (rows.lengths is None or rows.lengths == "/".join(nominal))
        and (benchmark.concurrency or 0) >= rows.clients_from
        and float(benchmark.sharding.data) >= rows.groups_from
        and (below is None or float(benchmark.sharding.tensor) < below)
    )


def recipe_settings(benchmark: Benchmark) -> RecipeSettings:
    """Return the settings of a benchmark that its source's scripts state.

    Parameters
    ----------
    benchmark : what was measured

    Returns
    -------
    the settings of all recipes that match, later ones over earlier ones; empty for any other source
    """
    settings: dict[str, object] = {}
    for recipe in recipe_file().recipes:
        if recipe.source == benchmark.source and _matches(recipe.where, benchmark):
            settings.update(recipe.settings.model_dump(exclude_none=True))
    return RecipeSettings.model_validate(settings)
