"""The core of the simulator as Python, compiled or not, so that its steps can be watched, and timed by something else."""

import sys
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from math import inf
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from capplan.serving.outcome import Outcome
from capplan.serving.requests import Admission, ClosedLoopUsers, Requests
from capplan.serving.simulator import ADMIT_ALL, flat_requests, kind_of, limits_and_tables, written
from capplan.serving.terms import EngineSetup

CORES = (
    "engine_parts",
    "flat_trees",
    "flat_queue",
    "flat_batch",
    "flat_steps",
    "flat_engine",
    "flat_slots",
    "flat_static",
    "flat_pools",
)
"""Compiled files, of which later ones use earlier ones."""


@cache
def python_core() -> SimpleNamespace:
    """Return what the files of the core name, as Python, whether compiled ones are beside them or not."""
    loaded: dict[str, ModuleType] = {}
    for name in (f"capplan.serving.{core}" for core in CORES):
        known = find_spec(name)
        assert known is not None
        assert known.origin is not None
        spec = spec_from_file_location(name, Path(known.origin).with_name(f"{name.rpartition('.')[2]}.py"))
        assert spec is not None
        assert spec.loader is not None
        loaded[name] = module_from_spec(spec)
        with mock.patch.dict(sys.modules, loaded):
            spec.loader.exec_module(loaded[name])
    return SimpleNamespace(
        **{name: value for module in loaded.values() for name, value in vars(module).items()}
    )


def python_engine(
    requests: Requests,
    engine: EngineSetup,
    *,
    crowd: ClosedLoopUsers | None = None,
    admission: Admission = ADMIT_ALL,
) -> Any:
    """Return the engine as Python at time zero, whose methods can be replaced."""
    asked = () if crowd is None else (crowd.requests,)
    limits, tables = limits_and_tables(engine, (requests, *asked), admission)
    kind = getattr(python_core(), kind_of(engine).__name__)
    return kind(limits, tables, flat_requests(requests, crowd, named=engine.caching is not None))


def outcome_of(core: Any, until_s: float = inf) -> Outcome:
    """Run an engine of `python_engine`, and return its outcome."""
    core.advance(until_s)
    ledger, gauges = written(core)
    return ledger.outcome(core.now_s, [gauges])
