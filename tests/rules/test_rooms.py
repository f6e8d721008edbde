"""Who may import whom, and which room owns which library; read from the source, lazy imports included."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    "cli", "explain", "library", "review", "report", "deploy", "calibrate", "questions", "scenario", "recorded", "readers", "families",
    "fleet", "money", "accuracy", "replica", "phases", "memory", "operators", "serving", "model", "hardware", "engine", "workload",
)  # fmt: skip
BOTTOM = ("assumption", "numbers", "ranges", "errors", "quantity", "keys")
OWNERS = {
    "pydantic": {"scenario", "readers"},
    "pydantic_core": {"readers", "keys"},
    "yaml": {"readers"},
    "huggingface_hub": {"readers"},
    "rich": {"report"},
    "pandas": {"library"},
    "typer": {"cli"},
    "click": set(),
    "torch": {"calibrate"},
    "fastapi": {"cli"},
    "uvicorn": {"cli"},
}
"""Library -> the rooms that may import it."""
FILES = [
    *(ROOT / "capplan").glob("*.py"),
    *(f for room in ROOMS for f in (ROOT / "capplan" / room).rglob("*.py")),
]


@cache
def imported(path):
    """Return (module, whether it stands at the top of the file) of every import in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = set(map(id, tree.body))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write capplan.ROOM.FILE"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.append((whole if node.module == "capplan" else str(node.module), id(node) in top))
    return found


def room_of(path):
    return path.relative_to(ROOT).parts[1].removesuffix(".py")


def upward(path, own):
    height = ROOMS.index(own) if own in ROOMS else len(ROOMS)
    for module, _ in imported(path):
        parts = module.split(".")
        if parts[0] != "capplan" or len(parts) < 2 or parts[1] in (own, "__version__", *BOTTOM):
            continue
        if parts[1] not in ROOMS or ROOMS.index(parts[1]) <= height:
            yield f"{path.relative_to(ROOT)}: {own} must not import {module}, which is not below it"


def test_a_room_imports_only_rooms_below_it():
    assert len(FILES) > 40
    rooms = [(path, room_of(path)) for path in FILES]
    assert [line for path, own in rooms if own[:2] != "__" for line in upward(path, own)] == []


INTERNALS = (
    "capplan.fleet.decision", "capplan.fleet.search", "capplan.fleet.load.demand", "capplan.fleet.load.waits", "capplan.fleet.pools.joint",
    "capplan.fleet.pools.search", "capplan.fleet.pools.sizing",
)  # fmt: skip
"""What finds a plan; what follows from it for those who print or explain it is in the plan or in `questions/plans/facts.py`."""


def test_pages_and_explanations_ask_no_search():
    pages = [path for path in FILES if room_of(path) in {"report", "review", "explain"}]
    assert [
        f"{path.relative_to(ROOT)}: {module}"
        for path in pages
        for module, _ in imported(path)
        if module.startswith(INTERNALS)
    ] == []


def test_a_library_is_imported_only_in_the_rooms_that_own_it():
    wrong = []
    for path in FILES:
        own = room_of(path)
        for module, top in imported(path):
            library = module.split(".")[0]
            if library in OWNERS and own not in OWNERS[library]:
                wrong.append(f"{path.relative_to(ROOT)}: {library} belongs to {OWNERS[library] or 'nobody'}")
            if library == "pandas" and top:
                wrong.append(f"{path.relative_to(ROOT)}: pandas at the top; import it where it is used")
    assert wrong == []


def test_every_folder_of_the_package_is_a_room():
    folders = {p.name for p in (ROOT / "capplan").iterdir() if p.is_dir() and p.name[0] not in "_."}
    assert folders == set(ROOMS)
