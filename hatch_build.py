"""Build hook: compiles the simulator's flat core where Cython and a C compiler are at hand; without them it stays Python.

Nothing fails for want of a compiler: the uncompiled file gives the same numbers. `CAPPLAN_PURE=1` asks for no compilation.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("capplan", "serving")
CORES = ("engine_parts", "flat_core")
"""Compiled files, of which later ones use earlier ones."""
COMPILED_IMPORTS = {
    "capplan.serving.c_math": "cython.cimports.libc.math",
    "capplan.serving.engine_parts": "cython.cimports.capplan.serving.engine_parts",
}
REASON_FILE = "core_not_compiled.txt"
DIRECTIVES = (
    "language_level=3,boundscheck=False,wraparound=False,initializedcheck=False,annotation_typing=False"
)
# -O3 gains little more, and a first installation waits for it.
FLAGS = ["-O2", "-g0", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-w"]


class CompiledCore(BuildHookInterface[BuilderConfig]):
    """Adds the compiled core to a wheel, or puts it beside its source in an editable installation."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell the wheel that it belongs to this platform."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        if os.environ.get("CAPPLAN_PURE"):
            record(root, "CAPPLAN_PURE was set when capplan was built", build_data)
            return
        libraries = [root / FOLDER / f"{core}{sysconfig.get_config_var('EXT_SUFFIX')}" for core in CORES]
        newest = max(
            (root / FOLDER / f"{core}{end}").stat().st_mtime for core in CORES for end in (".py", ".pxd")
        )
        current = all(library.exists() and library.stat().st_mtime > newest for library in libraries)
        reason = "" if current else failure(root, libraries)
        record(root, reason, build_data)
        if reason:
            return
        if version != "editable":
            for library in libraries:
                build_data["force_include"][str(library)] = str(library.relative_to(root))
            build_data["pure_python"], build_data["infer_tag"] = False, True


def record(root: Path, reason: str, build_data: dict[str, Any]) -> None:
    """Write why the core is not compiled beside it, for `capplan --version`; remove the file where it is."""
    path = root / FOLDER / REASON_FILE
    path.unlink(missing_ok=True)
    if reason:
        path.write_text(f"{reason}\n", encoding="utf-8")
        build_data.setdefault("force_include", {})[str(path)] = str(path.relative_to(root))


def failure(root: Path, libraries: list[Path]) -> str:
    """Compile the core, and return why that failed; empty if it did not."""
    name = os.environ.get("CC", "cc")
    compiler = shutil.which(name)
    if compiler is None:
        return f"no C compiler ({name}) was found"
    if importlib.util.find_spec("Cython") is None:
        return "Cython is not installed"
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").is_file():
        return "the headers of Python (Python.h) are missing"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / FOLDER).mkdir(parents=True)
        for package in (FOLDER.parent, FOLDER):
            (folder / package / "__init__.py").touch()
        for core in CORES:
            shutil.copy(root / FOLDER / f"{core}.pxd", folder / FOLDER)
            source = (root / FOLDER / f"{core}.py").read_text(encoding="utf-8")
            for python, compiled in COMPILED_IMPORTS.items():
                source = source.replace(f"from {python} import", f"from {compiled} import")
            (folder / FOLDER / f"{core}.py").write_text(source, encoding="utf-8")
        for core, library in zip(CORES, libraries, strict=True):
            stem = FOLDER / core
            translate = [sys.executable, "-m", "cython", "-3", "-X", DIRECTIVES, f"{stem}.py"]
            build = [compiler, *FLAGS, f"-I{headers}", f"{stem}.c", "-o", library.name]
            for command in (translate, build):
                done = subprocess.run(command, cwd=folder, capture_output=True, check=False)  # noqa: S603 - our own words
                if done.returncode:
                    return f"{Path(command[0]).name} failed on {core}.py"
        for library in libraries:
            partial = library.with_suffix(".part")
            shutil.copy(folder / library.name, partial)
            partial.replace(library)
    return ""
