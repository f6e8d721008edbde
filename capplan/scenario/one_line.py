"""A scenario in one line: a model and flags in the place of a YAML."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.readers.catalogue.scenarios import names_a_model
from capplan.readers.yaml_file import Document, schema_line, yaml_text
from capplan.scenario.command_flags import CASES, DEFAULTS, FLAG_KEYS, ScenarioFlags, unstated_targets
from capplan.scenario.reading import overridden, settings_of, written_length

ANY = "any"
"""Hardware of a scenario: every GPU with a price."""
THINK_TIME = "30 s"
"""Time between two requests of a user where nobody states one."""
LOADS = ("request_rate", "users", "requests", "trace")
"""Keys of traffic of which one states how much there is of it."""
OF_A_MODEL = tuple(name for name, key in FLAG_KEYS.items() if key.startswith("traffic"))
"""Flags that state the traffic of a model; a scenario file states its own."""


def line_settings(path: str | os.PathLike[str], flags: ScenarioFlags) -> tuple[str, ...]:
    """Return the keys that flags state of a model or override of a scenario file, each as --FLAG=VALUE or KEY=VALUE.

    Raises
    ------
    InputError
        a flag states the traffic of a model, and a scenario file is named
    """
    if not names_a_model(path):
        for name in (*OF_A_MODEL, "use_case", "save"):
            if getattr(flags, name) is not None:
                key = FLAG_KEYS.get(name)
                instead = f"--set '{key}=...'" if key else "change the file"
                raise InputError(
                    f"--{name.replace('_', '-')}: belongs to a MODEL, and {path} is a scenario that states it itself; instead: {instead}"
                )
        return settings_of(flags)
    settings = settings_of(flags)
    if flags.use_case is None:
        return settings
    case = CASES[flags.use_case]
    lengths = {"input_tokens": case.input_tokens, "output_tokens": case.output_tokens}
    stated = {setting.partition("=")[0] for setting in settings}
    of_slo = [key.removeprefix("slo.").removeprefix("--").replace("-", "_") for key in stated]
    targets = {} if "slo" in stated else unstated_targets(case, of_slo)
    loads = {"--request-rate", "--users", "--trace"}
    of_job = {} if stated & loads or not case.traffic else case.traffic
    return (
        *(
            f"--{key.replace('_', '-')}={text}"
            for key, text in lengths.items()
            if getattr(flags, key) is None
        ),
        *(f"slo.{key}={limit}" for key, limit in targets.items()),
        *(f"traffic[0].{key}={value}" for key, value in of_job.items()),
        *settings,
    )


def model_document(model: str, settings: Sequence[str]) -> Document:
    """Return the scenario of a model and settings, as YAML would have it; what is not stated has its default.

    Parameters
    ----------
    model : as commands name it
    settings : each KEY=VALUE or --FLAG=VALUE

    Raises
    ------
    InputError
        no setting states a load
    """
    written = {"name": _name(model), "model": model, "traffic": [{}], "fleet": {"hardware": [ANY]}}
    document = overridden(Document(model, written, {}), settings)
    lines = document.value["traffic"]
    if not (isinstance(lines, list) and len(lines) == 1 and isinstance(lines[0], dict)):
        return document
    first: dict[str, Any] = lines[0]
    loads = [document.place(("traffic", 0, key)) for key in LOADS if key in first]
    if len(loads) > 1:
        raise InputError(f"{' and '.join(loads)}: give one of them")
    if not loads:
        raise InputError(
            f"{model}: no load is stated; e.g. --request-rate '8 req/s', --users 200 or --trace requests.csv\n"
            f"  the largest load of some GPUs: capplan capacity {model} --gpus '8 x h100-sxm'"
        )
    assumed = _add_defaults(first, pooled=document.value.get("runner") == "pooling")
    return replace(document, assumed=assumed)


def _add_defaults(traffic: dict[str, Any], *, pooled: bool) -> tuple[Assumption, ...]:
    """Add the think time and the lengths that are not stated, and return what that assumes."""
    defaults: dict[str, object] = {"think_time": THINK_TIME} if "users" in traffic else {}
    if "trace" not in traffic:
        lengths = ("input_tokens",) if pooled else ("input_tokens", "output_tokens")
        defaults |= {key: written_length(DEFAULTS[key]) for key in lengths}
    missing = {key: value for key, value in defaults.items() if key not in traffic}
    traffic |= missing
    return tuple(
        Assumption(f"{key} {_words(value)}: not stated", f"traffic[0].{key}", f"traffic[0].{key}")
        for key, value in missing.items()
    )


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value)


def _name(model: str) -> str:
    """Return the name of the scenario of a model.

    Examples
    --------
    >>> _name("Qwen/Qwen3-32B"), _name("./models/config.json")
    ('qwen3-32b', 'models')
    """
    path = PurePath(model)
    last = path.parent.name if path.name == "config.json" else path.name
    return re.sub(r"[^a-z0-9.]+", "-", last.lower()).strip("-.") or "model"


def document_text(document: Document) -> str:
    """Return a scenario as a file has it."""
    return f"{schema_line('scenario')}\n{yaml_text(document.value)}"
