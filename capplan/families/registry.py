"""Which function reads which `model_type`: every file of this folder brings its own table."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from os.path import commonprefix
from pkgutil import iter_modules
from typing import TypeAlias

from capplan.families.config import Config
from capplan.model.network import Network

Family: TypeAlias = Callable[[Config, str], Network]

_FRAMEWORK = ("config", "registry", "model_config")


def family(model_type: str) -> Family | None:
    """Return the reader of one `model_type`, or None; files with names like it are looked into first.

    Start-up is a feature: reading a Llama imports llama.py and no other family.
    """
    names = sorted(_modules(), key=lambda name: -len(commonprefix((name, model_type))))
    for name in names:
        reader = _table(name).get(model_type)
        if reader is not None:
            return reader
    return None


@cache
def families() -> dict[str, Family]:
    """Return the reader of each `model_type`, from all files of this folder."""
    return {model_type: reader for name in _modules() for model_type, reader in _table(name).items()}


@cache
def refused() -> dict[str, str]:
    """Return why a `model_type` that is known is not modelled."""
    return {kind: reason for name in _modules() for kind, reason in _refusals(name).items()}


def _package() -> str:
    return __name__.rpartition(".")[0]


def _modules() -> list[str]:
    paths = import_module(_package()).__path__
    return [
        module.name for module in iter_modules(paths) if not module.ispkg and module.name not in _FRAMEWORK
    ]


def _table(name: str) -> dict[str, Family]:
    table: dict[str, Family] = getattr(import_module(f"{_package()}.{name}"), "FAMILIES", {})
    return table


def _refusals(name: str) -> dict[str, str]:
    table: dict[str, str] = getattr(import_module(f"{_package()}.{name}"), "REFUSED", {})
    return table
