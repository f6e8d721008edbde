"""Which function reads which `model_type`: every file of this folder brings its own table."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TypeAlias

from capplan.inputs.families.config import Config
from capplan.model.network import Network

Family: TypeAlias = Callable[[Config, str], Network]

_FRAMEWORK = ("config", "blocks", "stacks", "vision", "registry")


@cache
def families() -> dict[str, Family]:
    """Return the reader of each `model_type`, from all files of this folder."""
    return {model_type: reader for module in _modules() for model_type, reader in _table(module).items()}


@cache
def refused() -> dict[str, str]:
    """Return why a `model_type` that is known is not modelled."""
    return {kind: reason for module in _modules() for kind, reason in _refusals(module).items()}


def _modules() -> list[str]:
    package = __name__.rpartition(".")[0]
    paths = import_module(package).__path__
    return [f"{package}.{module.name}" for module in iter_modules(paths) if module.name not in _FRAMEWORK]


def _table(module: str) -> dict[str, Family]:
    table: dict[str, Family] = getattr(import_module(module), "FAMILIES", {})
    return table


def _refusals(module: str) -> dict[str, str]:
    table: dict[str, str] = getattr(import_module(module), "REFUSED", {})
    return table
