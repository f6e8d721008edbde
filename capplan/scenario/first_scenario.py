"""The scenario that `capplan init` writes: what is known of a deployment, with a comment at every line of it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from shlex import quote

from capplan.errors import InputError
from capplan.readers.catalogue.models import read_model
from capplan.readers.catalogue.scenarios import scenario_text
from capplan.readers.yaml_file import parse_yaml, schema_line, yaml_text
from capplan.scenario.command_flags import CASES, DEFAULTS, FirstScenario, unstated_targets
from capplan.scenario.reading import written_length
from capplan.scenario.scenario import DEFAULT_HARDWARE, scenario_from

ASSUMED = "assumed; replace it"
_COLUMN = 46
"""Where comments start."""


@dataclass(frozen=True, slots=True)
class Known:
    """What was read: keys of a scenario, and where they were read."""

    source: str = ""
    top: Mapping[str, object] = field(default_factory=dict)
    """Keys of the scenario itself."""
    traffic: Mapping[str, object] = field(default_factory=dict)
    slo: Mapping[str, str] = field(default_factory=dict)
    fleet: Mapping[str, object] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    """What was read and has no key, or has to be measured."""

    @property
    def fields(self) -> frozenset[str]:
        """Fields of `FirstScenario` that need not be said."""
        by_trace = {"request_rate", "input_tokens", "output_tokens"} if "trace" in self.traffic else set()
        by_job = {"request_rate", "ttft_p95", "tpot_p95"} if "requests" in self.traffic else set()
        return frozenset(
            {key for key in ("model",) if key in self.top} | set(self.traffic) | by_trace | by_job
        )


_OF_VECTORS = "for vectors or scores: nothing is generated"


def first_scenario_text(name: str, first: FirstScenario, known: Known) -> str:
    """Return the text of a scenario.

    Parameters
    ----------
    name : of the scenario
    first : what people said; a field that is None and not known is assumed, and marked so
    known : what was read
    """
    return "\n".join(_lines(name, first, known)) + "\n"


def copied_scenario_text(name: str, path: Path, first: FirstScenario) -> str:
    """Return a shipped scenario under the name of a file; what people say of it belongs into the file."""
    said = [f.name for f in fields(first) if getattr(first, f.name) is not None]
    if said:
        raise InputError(
            f"--{said[0].replace('_', '-')}: --from {name} copies a scenario as it is; leave one of them out, and change the file"
        )
    text = re.sub(r"(?m)^name: .*$", f"name: {_value(path.stem)}", scenario_text(name), count=1)
    return re.sub(r"(?m)^# yaml-language-server: .*$", lambda _: schema_line("scenario"), text, count=1)


def checked_scenario_text(path: Path, first: FirstScenario, known: Known, *, offline: bool) -> str:
    """Return the text of a scenario that `capplan fleet` answers.

    InputError names what it could not read, and no line of a file that is not there. A model that generates no tokens is
    asked for vectors or scores.
    """
    folder = path.resolve().parent
    text = first_scenario_text(path.stem, first, known)
    try:
        scenario = scenario_from(parse_yaml(text, str(path)), folder)
    except InputError as error:
        raise InputError(re.sub(rf"(?m)^{re.escape(str(path))}: (line \d+: )?", "", str(error))) from error
    network = read_model(scenario.model, revision=scenario.file.revision, offline=offline)
    if network.generates or scenario.pooled:
        return text
    known = replace(known, top={**known.top, "runner": "pooling"})
    return checked_scenario_text(path, first, known, offline=offline)


def _lines(name: str, first: FirstScenario, known: Known) -> Iterator[str]:
    yield schema_line("scenario")
    yield f"# Answered by: capplan fleet {quote(f'{name}.yaml')}" + (
        f"; read from {known.source}" if known.source else ""
    )
    yield from (f"# {remark}" for remark in known.remarks)
    yield f"name: {_value(name)}"
    model = first.model or known.top.get("model", DEFAULTS["model"])
    yield _line(
        "model", model, "Hugging Face id, a name of capplan list models, or the path of a config.json"
    )
    for key, value in known.top.items():
        if key != "model":
            yield _line(key, value, _OF_VECTORS if key == "runner" else "as it is started today")
    yield "traffic:"
    yield from _traffic(first, known)
    targets = list(_targets(first, known))
    yield from ["slo:", *targets] if targets else []
    hardware = first.hardware or list(DEFAULT_HARDWARE)
    yield "fleet:"
    yield _line(
        "  hardware",
        hardware,
        "names of capplan list hardware; capplan finds the cheapest",
        assumed=first.hardware is None,
    )
    for key, value in known.fleet.items():
        yield _line(f"  {key}", value, "as it is started today; leave it out to search")
    yield _line("  headroom", "20 %", "of the capacity stays free at the peak")
    if "within" not in known.traffic:  # nothing has to survive a failure for a job to be done in time
        yield _line("  spare_replicas", 1, "so that one may fail")
    yield _line("prices", {"commitment": "on-demand", "provider": "any"}, "offers: capplan list prices")


def _targets(first: FirstScenario, known: Known) -> Iterator[str]:
    """Yield the lines of the targets: what people said, else what is usual, else what is assumed."""
    words = {"ttft": "time to first token", "tpot": "time per further token"}
    for metric, says in words.items():
        key = f"{metric}_p95"
        said, usual = getattr(first, key), [k for k in known.slo if k.startswith(f"{metric}_")]
        for name in [key] if said else usual or [key]:
            limit = said or known.slo.get(name)
            if said or (key not in _without_outputs(known) and (limit or key not in known.fields)):
                of = f", of {name.rpartition('_p')[2]} in 100 requests"
                yield _line(f"  {name}", limit or DEFAULTS[key], f"{says}{of}", assumed=limit is None)


def _without_outputs(known: Known) -> tuple[str, ...]:
    """Return the fields that mean nothing to a server of vectors or scores; none for one that generates."""
    return ("output_tokens", "tpot_p95") if known.top.get("runner") == "pooling" else ()


def _traffic(first: FirstScenario, known: Known) -> Iterator[str]:
    yield "  - name: requests"
    told = {
        "request_rate": "at the peak",
        "input_tokens": "of the whole prompt; a number, or a mean with p50, p90, p95 or p99",
        "output_tokens": "of the whole output, written the same way",
    }
    job = {"requests": "of the whole job", "within": "time in which the job is to be done"}
    for key, value in known.traffic.items():
        yield _line(f"    {key}", value, (told | job).get(key, "as it was recorded"))
    for key, says in told.items():
        if key not in known.fields:
            said = getattr(first, key)
            if said is None and key in _without_outputs(known):
                continue
            text = said or DEFAULTS[key]
            yield _line(
                f"    {key}",
                written_length(text) if key != "request_rate" else text,
                says,
                assumed=said is None,
            )


def _value(value: object) -> str:
    """Return a value as YAML writes it on one line.

    Examples
    --------
    >>> _value({"mean": 1500, "p95": 4500}), _value(["l4", "a: b"]), _value("20 %"), _value("20")
    ('{mean: 1500, p95: 4500}', "[l4, 'a: b']", '20 %', "'20'")
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    text = yaml_text({"x": value}).strip()
    return text.removeprefix("{x: ").removesuffix("}") if text.startswith("{") else text.removeprefix("x: ")


def _line(key: str, value: object, says: str, *, assumed: bool = False) -> str:
    return f"{f'{key}: {_value(value)}':<{_COLUMN}}  # {says}{f' ({ASSUMED})' if assumed else ''}"


def with_use_case(name: str, first: FirstScenario, known: Known) -> tuple[FirstScenario, Known]:
    """Return what is said and known of a scenario, with a use case where nothing is.

    Examples
    --------
    >>> first, known = with_use_case("chat", FirstScenario(ttft_p95="1 s"), Known())
    >>> first.ttft_p95, known.slo, first.input_tokens
    ('1 s', {'tpot_p99': '40 ms'}, '1155,4083')
    """
    case = CASES[name]
    lengths = ("input_tokens", "output_tokens")
    first = replace(first, **{key: getattr(case, key) for key in lengths if getattr(first, key) is None})
    slo = unstated_targets(case, [key for key in ("ttft_p95", "tpot_p95") if getattr(first, key)])
    remarks = [
        f"A starting point for {name}; replace what you know better.",
        f"lengths: {case.lengths_from}",
        *(
            [f"targets: {case.targets_from}"]
            if case.targets_from
            else ["no slo: the job is sized for throughput"]
        ),
    ]
    traffic = {**(case.traffic or {}), **known.traffic}
    return first, replace(known, traffic=traffic, slo=slo, remarks=(*known.remarks, *remarks))
