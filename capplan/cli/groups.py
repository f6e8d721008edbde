"""Groups of options: a command takes one record, and the parser sees an option for each of its fields."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Protocol, cast, get_args

from capplan.scenario.flags import OutputFlags


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


class _Told(Protocol):
    """A function that states its signature, which is where the parser looks for its options, and what help has them below."""

    __signature__: Signature
    titles: Mapping[str, str]

    def __call__(self, **values: Any) -> int: ...


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
        from capplan.readers.text_file import protecting_outputs

        given = {
            name: record(**{field: values.pop(field) for field in group})
            for name, (record, group) in records.items()
        }
        with protecting_outputs(refuse_outputs({**values, **given})):
            return function(**values, **given)

    command.__doc__ = function.__doc__
    told = cast("_Told", command)
    told.__signature__ = Signature(spread)
    told.titles = {name: title for _, group in records.values() for name, title in group.titles.items()}
    return told


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
    if values.get("focus") is not None:
        refuse_unwritable(values["focus"], "--focus")
    if values.get("predictions") is not None:
        refuse_unwritable(values["predictions"], "--predictions")
    both = {place_of(path, existing=True) for path in rewritten}
    return {place: option for place, option in written.items() if place not in both}


_OUTPUTS = {
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
        if name in _OUTPUTS and isinstance(value, Path):
            outputs[_OUTPUTS[name]] = value
        elif name not in _REWRITTEN:
            words = value if isinstance(value, (list, tuple)) else [value]
            inputs += [str(word) for word in words if isinstance(word, (str, Path))]
    return outputs, inputs, rewritten


def _parameter(field: "Field[Any]", option: Any) -> Parameter:
    default = Parameter.empty if field.default is MISSING else field.default
    return Parameter(
        field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[field.type, option]
    )
