"""Empty environments, what runs in them, and the figures that docs/evidence/reliability.md is written from."""

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints"
FIGURES = ROOT / "tests" / "installs" / "figures.json"
SMOKE = (
    "tests/golden",
    "tests/rules/test_terminal.py",
    "tests/rules/test_bad_input_cli.py",
    "tests/rules/test_installed_elsewhere.py",
    "tests/rules/test_packaging.py",
    "tests/properties/test_simulate_and_sweep.py",
    "capplan",
    "--ignore=capplan/calibrate",
)
"""What shows that the program works: what people see, what it refuses, processes, a wheel and all doctests but those of torch."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment that was empty at first."""

    folder: Path

    @property
    def python(self) -> Path:
        """Return its interpreter."""
        return self.folder / "bin" / "python"

    def run(self, *words: str, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> str:
        """Run its Python and return what it printed; SystemExit with the end of that where it failed."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        done = subprocess.run(
            [str(self.python), *words],
            cwd=cwd,
            env={**clean, **(env or {})},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(words)[:200]}\n{(done.stdout + done.stderr)[-4000:]}")
        return done.stdout

    def install(self, *words: str, env: Mapping[str, str] | None = None) -> None:
        """Install packages."""
        self.run("-m", "pip", "install", "--quiet", *words, env=env)

    def versions(self, *names: str) -> dict[str, str]:
        """Return the versions of installed packages, all where none is named."""
        found = json.loads(self.run("-m", "pip", "list", "--format", "json"))
        by_name = {plain_name(item["name"]): item["version"] for item in found}
        return {name: by_name[name] for name in names if name in by_name} if names else by_name


@contextmanager
def empty(python: str = sys.executable) -> Iterator[Environment]:
    """Yield a new environment of a Python."""
    with tempfile.TemporaryDirectory() as name:
        subprocess.run([python, "-m", "venv", name], check=True)
        yield Environment(Path(name))


def plain_name(name: str) -> str:
    """Return the name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def project() -> dict[str, Any]:
    """Return pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def declared(*extras: str) -> list[str]:
    """Return the requirements of the program, of what builds it and of extras; torch is installed by itself."""
    about = project()
    optional = about["project"]["optional-dependencies"]
    lists = [
        about["project"]["dependencies"],
        about["build-system"]["requires"],
        *(optional[extra] for extra in extras),
    ]
    return [line for line in dict.fromkeys(chain.from_iterable(lists)) if not line.startswith("torch")]


def lowest(requirements: Sequence[str]) -> list[str]:
    """Return requirements as the lowest versions that they allow."""
    floors: dict[str, tuple[tuple[int, ...], str]] = {}
    for line in requirements:
        found = re.match(r"([\w.-]+)(?:[>=]=([\d.]+))?", line)
        assert found, line
        name, version = plain_name(found[1]), found[2]
        if version:
            parts = tuple(map(int, version.split(".")))
            floors[name] = max(floors.get(name, ((), "")), (parts, version))  # of several the strictest
    return [f"{name}=={version}" for name, (_, version) in floors.items()]


def record(kind: str, key: str, figures: Mapping[str, Any]) -> None:
    """Keep the figures of a trial for docs/evidence/reliability.md, in place of those of an earlier one."""
    kept = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    kept.setdefault(kind, {})[key] = dict(figures)
    FIGURES.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def add_cases(fuzzer: str, cases: Mapping[str, int], findings: int, seconds: float) -> None:
    """Add the cases of a fuzzer to those of earlier runs."""
    kept = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    before = kept.get("fuzz", {}).get(fuzzer, {"cases": {}, "findings": 0, "cpu_s": 0})
    counted = {kind: before["cases"].get(kind, 0) + cases.get(kind, 0) for kind in {*before["cases"], *cases}}
    total = {
        "cases": counted,
        "findings": before["findings"] + findings,
        "cpu_s": round(before["cpu_s"] + seconds),
    }
    record("fuzz", fuzzer, total)
