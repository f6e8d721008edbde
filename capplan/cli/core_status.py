"""Whether the flat core of the simulator is compiled, and why not: the reason is recorded when capplan is built."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "serving"
REASON_FILE = "core_not_compiled.txt"
"""Written by hatch_build.py beside the core where it could not compile it."""
CORE = "flat_core"
TIMES_SLOWER = 40
"""How many times as long simulations take without the compiled core, about."""
UNRECORDED = "its compiled files are missing"


def core_missing(folder: Path = FOLDER) -> str:
    """Return why the core is not compiled; empty where it is."""
    if any((folder / f"{CORE}{end}").is_file() for end in EXTENSION_SUFFIXES):
        return ""
    recorded = folder / REASON_FILE
    return recorded.read_text(encoding="utf-8").strip() if recorded.is_file() else UNRECORDED


def core_words(folder: Path = FOLDER) -> str:
    """Return what the program says of its core."""
    reason = core_missing(folder)
    if not reason:
        return "compiled core"
    return f"core not compiled: {reason}; simulations take about {TIMES_SLOWER} times as long"
