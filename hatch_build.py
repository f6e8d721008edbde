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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("capplan", "serving")
SHARED = "memoryviews"
"""Compiled module without a source: what Cython would repeat in each library that has views of arrays."""
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
        cores = cores_of(root)
        libraries = [root / FOLDER / library_of(core) for core in (SHARED, *cores)]
        newest = max(
            (root / FOLDER / f"{core}{end}").stat().st_mtime for core in cores for end in (".py", ".pxd")
        )
        current = all(library.exists() and library.stat().st_mtime > newest for library in libraries)
        reason = "" if current else failure(root)
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


def cores_of(root: Path) -> list[str]:
    """Return the names of the compiled files: each has a .pxd with its types beside it."""
    return sorted(path.stem for path in (root / FOLDER).glob("*.pxd"))


def library_of(core: str) -> str:
    """Return the name of the library that a file is compiled to."""
    return f"{core}{sysconfig.get_config_var('EXT_SUFFIX')}"


def failure(root: Path) -> str:
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
    cores = cores_of(root)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / FOLDER).mkdir(parents=True)
        for package in (FOLDER.parent, FOLDER):
            (folder / package / "__init__.py").touch()
        for core in cores:
            shutil.copy(root / FOLDER / f"{core}.pxd", folder / FOLDER)
            source = (root / FOLDER / f"{core}.py").read_text(encoding="utf-8")
            source = source.replace(
                "from capplan.serving.c_math import", "from cython.cimports.libc.math import"
            )
            for other in cores:
                used = f"capplan.serving.{other} import"
                source = source.replace(f"from {used}", f"from cython.cimports.{used}")
            (folder / FOLDER / f"{core}.py").write_text(source, encoding="utf-8")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            failed = "".join(
                pool.map(
                    lambda core: compiling(core, folder, [compiler, *FLAGS, f"-I{headers}"]), (SHARED, *cores)
                )
            )
        if failed:
            return failed.rstrip("; ")
        for core in (SHARED, *cores):
            partial = (root / FOLDER / library_of(core)).with_suffix(".part")
            shutil.copy(folder / library_of(core), partial)
            partial.replace(root / FOLDER / library_of(core))
    return ""


def compiling(core: str, folder: Path, compiler: list[str]) -> str:
    """Compile one file in a folder, and return which program failed on it; empty if none did."""
    stem = FOLDER / core
    words = ["-3", "--shared", f"capplan.serving.{SHARED}", "-X", DIRECTIVES, f"{stem}.py"]
    if core == SHARED:
        words = ["--generate-shared", f"{stem}.c"]
    translate = [sys.executable, "-m", "cython", *words]
    for command in (translate, [*compiler, f"{stem}.c", "-o", library_of(core)]):
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False)  # noqa: S603 - our own words
        if done.returncode:
            return f"{Path(command[0]).name} failed on {core}; "
    return ""
