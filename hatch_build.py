"""Build hook: compiles the simulator's flat core where Cython and a C compiler are at hand; without them it stays Python.

Nothing fails for want of a compiler: the uncompiled file gives the same numbers. `CAPPLAN_PURE=1` asks for no compilation.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CORE = Path("capplan", "serving", "flat_core.py")
DIRECTIVES = (
    "language_level=3,boundscheck=False,wraparound=False,initializedcheck=False,annotation_typing=False"
)
# Little is gained by more optimisation, and a first installation waits for it.
FLAGS = ["-O1", "-g0", "-fPIC", "-shared", "-ffp-contract=off", "-w"]


class CompiledCore(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled core to a wheel, or puts it beside its source in an editable installation."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell the wheel that it belongs to this platform."""
        if self.target_name != "wheel" or os.environ.get("CAPPLAN_PURE"):
            return
        source = Path(self.root) / CORE
        library = source.with_name(f"flat_core{sysconfig.get_config_var('EXT_SUFFIX')}")
        newest = max(source.stat().st_mtime, source.with_suffix(".pxd").stat().st_mtime)
        if not (library.exists() and library.stat().st_mtime > newest) and not compiled(source, library):
            return
        if version != "editable":
            build_data["force_include"][str(library)] = str(library.relative_to(self.root))
            build_data["pure_python"], build_data["infer_tag"] = False, True


def compiled(source: Path, library: Path) -> bool:
    """Return whether the core was compiled."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        for name in (source.name, source.with_suffix(".pxd").name):
            shutil.copy(source.with_name(name), folder)
        code, built = Path(folder, "flat_core.c"), Path(folder, library.name)
        translate = [sys.executable, "-m", "cython", "-3", "-X", DIRECTIVES, "flat_core.py", "-o", code.name]
        include = f"-I{sysconfig.get_path('include')}"
        for command in (translate, [compiler, *FLAGS, include, code.name, "-o", built.name]):
            done = subprocess.run(command, cwd=folder, capture_output=True, check=False)  # noqa: S603 - our own words
            if done.returncode:
                return False
        partial = library.with_suffix(".part")
        shutil.copy(built, partial)
        partial.replace(library)
    return True
