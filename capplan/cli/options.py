"""The options that commands share, one by one and in groups: one name, one short form, one help line, and how their text is read.

A command takes one record for a group, and the parser sees an option for each of its fields.
"""

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args

import typer

from capplan.cli.completion import (
    beginning_with,
    devices,
    kv_dtypes,
    models,
    models_and_scenarios,
    plan_files,
    plans_and_scenarios,
    weight_dtypes,
)
from capplan.errors import InputError, unknown
from capplan.ranges import MOST, Positive, Range, Share, Whole
from capplan.scenario.command_flags import FirstScenario, ScenarioFlags
from capplan.scenario.flags import (
    MODEL,
    LoadFlags,
    Option,
    OutputFlags,
    ServingFlags,
    options_of,
)


def whole(
    *names: str,
    says: str,
    of: str = "",
    metavar: str = "N",
    least: int = 1,
    most: int = MOST,
    allowed: Range | None = None,
) -> Any:
    """Return an option of a whole number of something; the range `allowed` of a record's field stands for the other limits."""
    option = names[0]
    limits = Whole(of, least, most) if allowed is None else allowed
    of = limits.of if isinstance(limits, Whole) else of
    example = "8192" if of == "tokens" else "8"

    def read(text: Any) -> int:
        from capplan.quantity import COUNT, TOKENS, whole_number

        _refuse_commas(text, option)
        unit = replace(TOKENS if of == "tokens" else COUNT, example=example)
        value = whole_number(text, unit, option, of)
        limits.check(value, option, text)
        return value

    return _option(*names, read=read, kind="whole number", help=says, metavar=metavar)


def _refuse_commas(text: Any, option: str) -> None:
    """Raise the error for 1,864, which may be one number or, as in a sweep, a list of two."""
    if re.match(r"\s*[0-9]{1,3}(,[0-9]{3})+(?![0-9,])", str(text)):
        raise InputError(
            f"{option}: {str(text)[:60]!r} has a comma; write one number without commas\n"
            "  lists: an option that says so in --help may be given several times; sweep reads lists of loads"
        )


def fraction(name: str, *, says: str) -> Any:
    """Return an option of a share of one: 0.9 or 90 %."""

    def read(text: Any) -> float:
        if isinstance(text, float):
            return text
        from capplan.quantity import FRACTION, quantity

        _refuse_commas(text, name)
        value = quantity(text, FRACTION, name)
        Share().check(value, name, text)
        return value

    return _option(name, read=read, kind="fraction", help=says, metavar="FRACTION")


def measure(
    name: str,
    unit: str = "SECONDS",
    *,
    says: str,
    metavar: str = "TIME",
    or_zero: bool = False,
) -> Any:
    """Return an option of a positive quantity, or of one that may be zero, `unit` being a name of `capplan.quantity`."""

    def read(text: Any) -> float:
        if isinstance(text, float):
            return text
        from capplan import quantity

        _refuse_commas(text, name)
        wanted: quantity.Unit = getattr(quantity, unit)
        value = quantity.quantity(text, wanted, name)
        Positive(wanted.example, or_zero).check(value, name, text)
        return value

    return _option(name, read=read, kind="quantity", help=says, metavar=metavar)


def one_of(
    name: str,
    known: tuple[str, ...],
    *,
    says: str,
    metavar: str = "NAME",
) -> Any:
    """Return an option of a name from a short list; case does not matter."""

    def read(text: Any) -> str:
        choice = str(text).lower()
        choice = choice if choice in known else choice.replace(".", "")  # llama.cpp
        if choice not in known:
            raise unknown(name.strip("-"), str(text), known, place=name)
        return choice

    def completed(incomplete: str) -> list[str]:
        return beginning_with(known, incomplete)

    return _option(
        name,
        read=read,
        kind="|".join(known),
        help=says,
        metavar=metavar,
        autocompletion=completed,
    )


def _option(*names: str, read: Callable[[Any], Any], kind: str, **more: Any) -> Any:
    read.__name__ = kind
    return typer.Option(*names, parser=read, **more)


class Group(dict[str, Any]):
    """Field of a record -> the option that sets it; a field without one keeps its default. Help has them below one title.

    A parameter `serving: Annotated[ServingFlags, Group(...)]` of a command marked with `grouped` is such a group.
    A parameter of any other kind, such as typer's context, stays as it is.
    """

    def __init__(self, title: str, /, *others: "Group", **options: Any) -> None:
        """Take the title and the options, by field; groups of other fields of the same record come first and keep their titles."""
        super().__init__({name: option for part in (*others, options) for name, option in part.items()})
        self.titles: dict[str, str] = {}
        for other in others:
            self.titles |= other.titles
        self.titles |= dict.fromkeys(options, title)

    def only(self, *names: str) -> "Group":
        """Return the group of some of the fields."""
        parts = [Group(self.titles[name], **{name: self[name]}) for name in names]
        return Group("", *parts)


def grouped(function: Callable[..., int]) -> Callable[..., int]:
    """Return a command that is called with the options of its groups and hands each group on as one record."""
    records: dict[str, tuple[type, Group]] = {}
    spread: list[Parameter] = []
    for parameter in signature(function).parameters.values():
        record, group = (*get_args(parameter.annotation), None, None)[:2]
        if record is not None and isinstance(group, Group):
            records[parameter.name] = record, group
            known = {field.name: field for field in fields(record)}
            spread += [_parameter(known[name], option) for name, option in group.items()]
        else:
            spread.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    def command(**values: Any) -> int:
        from capplan.readers.text_file import protecting_outputs, remembering_pipes

        with remembering_pipes():
            values = with_plan(values)
            given = {
                name: record(**{field: values.pop(field) for field in group})
                for name, (record, group) in records.items()
            }
            with protecting_outputs(refuse_outputs({**values, **given})):
                return function(**values, **given)

    command.__doc__ = function.__doc__
    told: Any = command  # the parser looks for its options in the signature, and help has them below titles
    told.__signature__ = Signature(spread)
    told.titles = {name: title for _, group in records.values() for name, title in group.titles.items()}
    return command


def with_plan(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a command, with a plan file in the place of a scenario as its plan, as --plan gives it."""
    scenario = values.get("scenario")
    if scenario is None or values.get("plan_file", scenario) is not None:
        return dict(values)
    from capplan.readers.plan_file import is_plan_file

    return {**values, "scenario": None, "plan_file": scenario} if is_plan_file(scenario) else dict(values)


def needed_plan(*plans: Path | None) -> Path:
    """Return the plan of a command, which is its argument or that of --plan; InputError for none or two."""
    given = [plan for plan in plans if plan is not None]
    if len(given) != 1:
        said = "no plan is given" if not given else f"{given[0]} and --plan {given[1]}: give one of them"
        raise InputError(f"{said}\n  e.g. plan.json, which capplan fleet SCENARIO -o plan.json writes")
    return given[0]


def refuse_outputs(values: Mapping[str, Any]) -> Mapping[object, str]:
    """Raise the error for a file that the answer of a command could not be written to, before it computes anything.

    Returns
    -------
    the files that the command writes and must not read
    """
    from capplan.report.show import place_of, refuse_losing, refuse_picture, refuse_unwritable

    outputs, inputs, rewritten = _outputs_and_inputs(values)
    written = refuse_losing(outputs, inputs)
    to = values.get("to")
    if isinstance(to, OutputFlags):
        refuse_unwritable(to.file)
    if values.get("picture") is not None:
        refuse_picture(values["picture"])
    for name in ("focus", "predictions"):
        if values.get(name) is not None:
            refuse_unwritable(values[name], OUTPUTS[name])
    both = {place_of(path, existing=True) for path in rewritten}
    return {place: option for place, option in written.items() if place not in both}


OUTPUTS = {
    "file": "--output", "picture": "--plot", "predictions": "--predictions", "points": "--points", "focus": "--focus",
}  # fmt: skip
"""Parameter or field that names a file to write -> its option."""
_REWRITTEN = {"calibration", "points"}
"""Files that a command reads and may write again."""


def _outputs_and_inputs(values: Mapping[str, Any]) -> tuple[dict[str, Path], list[str], list[Path]]:
    """Return the files that a command writes, by option, all words that may name one that it reads, and those that may be both."""
    outputs: dict[str, Path] = {}
    inputs: list[str] = []
    rewritten: list[Path] = []
    records = [value for value in values.values() if is_dataclass(value)]
    named = [
        *values.items(),
        *((f.name, getattr(record, f.name)) for record in records for f in fields(record)),
    ]
    for name, value in named:
        if name in _REWRITTEN and isinstance(value, Path):
            rewritten.append(value)
        if name in OUTPUTS and isinstance(value, Path):
            outputs[OUTPUTS[name]] = value
        elif name not in _REWRITTEN:
            words = value if isinstance(value, (list, tuple)) else [value]
            inputs += [str(word) for word in words if isinstance(word, (str, Path))]
    return outputs, inputs, rewritten


def _parameter(field: "Field[Any]", option: Any) -> Parameter:
    default = Parameter.empty if field.default is MISSING else field.default
    return Parameter(
        field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[field.type, option]
    )


_FORMATS = ("table", "json", "csv", "markdown")

HARDWARE = typer.Option(
    "--hardware",
    metavar="NAME",
    help="Catalogue name or alias, or path of a hardware YAML.",
    autocompletion=devices,
)
Model: TypeAlias = Annotated[
    str, typer.Argument(metavar="MODEL", help=f"{MODEL}.", show_default=False, autocompletion=models)
]
Hardware: TypeAlias = Annotated[str, HARDWARE]
Scenario: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="SCENARIO|MODEL",
        help="Scenario YAML, a name of capplan list scenarios, or a model with its load as flags.",
        autocompletion=models_and_scenarios,
    ),
]
ScenarioOfPlan: TypeAlias = Annotated[
    Path | None,
    typer.Argument(
        metavar="[SCENARIO|PLAN]",
        help="Scenario YAML or name, or a plan; default: the scenario that --plan was made for.",
        autocompletion=plans_and_scenarios,
    ),
]
PlanFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="Plan written by capplan fleet -o plan.json, instead of a new search.",
        autocompletion=plan_files,
    ),
]
PlanArgument: TypeAlias = Annotated[
    Path | None,
    typer.Argument(
        metavar="[PLAN]",
        help="Plan written by capplan fleet -o plan.json; the same as --plan.",
        autocompletion=plan_files,
    ),
]
Picture: TypeAlias = Annotated[
    Path | None,
    typer.Option("--plot", "--picture", metavar="FILE", help="Draw a picture as .svg."),
]

_COMPLETED = {"hardware": devices, "draft": models, "weight_dtype": weight_dtypes, "kv_dtype": kv_dtypes}
"""Field -> what a shell completes it with."""


_UNITS = {"B/s": "BYTES_PER_S", "req/s": "REQUESTS_PER_S", "B": "BYTES"}
"""End of an example -> unit of its option."""


def declared(record: type, title: str, *others: Group, names: Iterable[str] = ()) -> Group:
    """Return the options that a record declares, all or those of some fields."""
    known = options_of(record)
    return Group(title, *others, **{name: _declared(name, known[name]) for name in names or known})


def _declared(name: str, option: Option) -> Any:
    flag = option.flag or f"--{name.replace('_', '-')}"
    if option.known:
        return one_of(flag, option.known, says=option.says, metavar=option.metavar or "NAME")
    if isinstance(option.allowed, Whole):
        metavar = option.metavar or "N"
        return whole(flag, *option.short, says=option.says, metavar=metavar, allowed=option.allowed)
    if isinstance(option.allowed, Share):
        return fraction(flag, says=option.says)
    if isinstance(option.allowed, Positive):
        metavar, or_zero = option.metavar or "TIME", option.allowed.or_zero
        return measure(flag, option.unit, says=option.says, metavar=metavar, or_zero=or_zero)
    more: dict[str, Any] = {
        "metavar": option.metavar or None,
        "help": option.says,
        "autocompletion": _COMPLETED.get(name),
    }
    if name in ("weight_dtype", "kv_dtype"):
        return _option(flag, *option.short, read=lambda text: str(text).lower(), kind="text", **more)
    return typer.Option(flag, *option.short, **more)


_SERVED = ("runner", "max_loras", "max_lora_rank")
_OF_LLAMACPP = (
    "backend", "n_gpu_layers", "tensor_split", "split_mode", "main_gpu", "n_cpu_moe", "host_bandwidth", "host_memory",
)  # fmt: skip
_LIMITS = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "cuda_graphs", "gpu_memory_utilization")
_REPLICA = [name for name in options_of(ServingFlags) if name not in (*_SERVED, *_OF_LLAMACPP, *_LIMITS)]
_LIMITED = declared(
    ServingFlags,
    "Limits of the engine",
    declared(ServingFlags, "Replica", names=_REPLICA),
    names=_LIMITS,
)
SERVING = declared(ServingFlags, "Backend and host of llamacpp", _LIMITED, names=_OF_LLAMACPP)
SERVED = declared(ServingFlags, "What it serves", SERVING, names=_SERVED)
"""Options of commands that also judge one replica by what it is served for."""
LOAD = declared(LoadFlags, "Load")
OUTPUT = Group(
    "Output",
    form=one_of(
        "--format",
        _FORMATS,
        metavar="FORMAT",
        says="table, json, csv or markdown; default: by the suffix of --output, else table.",
    ),
    file=typer.Option(
        "--output", "-o", metavar="FILE", help="Write to this file instead of stdout, atomically."
    ),
)
_ASSUMED = typer.Option(
    "--assumptions",
    help="Show all assumptions, by what to do about them, not only three.",
    callback=lambda said: bool(said),
)
ASSUMING = Group("Output", OUTPUT, assumptions=_ASSUMED)
"""Options of commands that rest on many assumptions."""


FIRST = declared(FirstScenario, "First scenario")
ASKED = declared(
    ScenarioFlags, "Scenario", names=[name for name in options_of(ScenarioFlags) if name != "model"]
)
USE_CASE = ASKED["use_case"]
Settings: TypeAlias = Annotated[list[str] | None, ASKED["settings"]]


def line_of(scenario: Path, flags: ScenarioFlags) -> tuple[Path, tuple[str, ...]]:
    """Return the scenario that a command line names, and the keys that it states; --save makes a file of both."""
    from capplan.report.show import refuse_existing, say, write_new
    from capplan.scenario.one_line import document_text, line_settings
    from capplan.scenario.scenario import scenario_document

    settings = line_settings(scenario, flags)
    if flags.save is None:
        return scenario, settings
    refuse_existing(flags.save)
    write_new(flags.save, document_text(scenario_document(scenario, settings)))
    say(f"wrote {flags.save}")
    return flags.save, ()


def refuse_unread(context: typer.Context, unread: Container[str], why: str) -> None:
    """Raise the error for an option that is given but would have no effect: nothing is ignored silently."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in unread and source is not None and source.name == "COMMANDLINE":
            raise InputError(f"{parameter.opts[0]}: {why}\n  see: {context.command_path} --help")


Serving: TypeAlias = Annotated[ServingFlags, SERVING]
Served: TypeAlias = Annotated[ServingFlags, SERVED]
Load: TypeAlias = Annotated[LoadFlags, LOAD]
Lengths: TypeAlias = Annotated[LoadFlags, LOAD.only("input_tokens", "output_tokens")]
Output: TypeAlias = Annotated[OutputFlags, OUTPUT]
Assuming: TypeAlias = Annotated[OutputFlags, ASSUMING]
Asked: TypeAlias = Annotated[ScenarioFlags, ASKED]
Calibration: TypeAlias = Annotated[Path | None, SERVING["calibration"]]
Offline: TypeAlias = Annotated[bool, SERVING["offline"]]
IgnoreUnmodelled: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--ignore-unmodelled",
        help="Leave out options of an engine's command that are not modelled, and state each as an assumption.",
    ),
]
SERVED_MODEL = "Served model whose counters are read, if Prometheus has several."
ModelName: TypeAlias = Annotated[str | None, typer.Option("--model-name", metavar="NAME", help=SERVED_MODEL)]
