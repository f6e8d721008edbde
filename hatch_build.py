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
CORE = "flat_core"
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
        library = root / FOLDER / f"{CORE}{sysconfig.get_config_var('EXT_SUFFIX')}"
        newest = max((root / FOLDER / f"{CORE}{end}").stat().st_mtime for end in (".py", ".pxd"))
        current = library.exists() and library.stat().st_mtime > newest
        reason = "" if current else failure(root, library)
        record(root, reason, build_data)
        if reason:
            return
        if version != "editable":
            build_data["force_include"][str(library)] = str(library.relative_to(root))
            build_data["pure_python"], build_data["infer_tag"] = False, True


def record(root: Path, reason: str, build_data: dict[str, Any]) -> None:
    """Write why the core is not compiled beside it, for `capplan --version`; remove the file where it is."""
    path = root / FOLDER / REASON_FILE
    path.unlink(missing_ok=True)
    if reason:
        path.write_text(f"{reason}\n", encoding="utf-8")
        build_data.setdefault("force_include", {})[str(path)] = str(path.relative_to(root))


def failure(root: Path, library: Path) -> str:
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
    include = f"-I{headers}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / FOLDER).mkdir(parents=True)
        for package in (FOLDER.parent, FOLDER):
            (folder / package / "__init__.py").touch()
        shutil.copy(root / FOLDER / f"{CORE}.pxd", folder / FOLDER)
        source = (root / FOLDER / f"{CORE}.py").read_text(encoding="utf-8")
        source = source.replace("from capplan.serving.c_math import", "from cython.cimports.libc.math import")
        (folder / FOLDER / f"{CORE}.py").write_text(source, encoding="utf-8")
        stem = FOLDER / CORE
        translate = [sys.executable, "-m", "cython", "-3", "-X", DIRECTIVES, f"{stem}.py"]
        build = [compiler, *FLAGS, include, f"{stem}.c", "-o", library.name]
        for command in (translate, build):
            done = subprocess.run(command, cwd=folder, capture_output=True, check=False)  # noqa: S603 - our own words
            if done.returncode:
                return f"{Path(command[0]).name} failed on {CORE}.py"
        partial = library.with_suffix(".part")
        shutil.copy(folder / library.name, partial)
        partial.replace(library)
    return ""
