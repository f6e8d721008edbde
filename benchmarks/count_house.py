"""How much code there is, before and after, and which of it says the same twice.

python -m benchmarks.count_house                  counts of the package and of the tests
python -m benchmarks.count_house --since COMMIT   the same beside those of a commit
python -m benchmarks.count_house --walk           files that one fleet question passes through, and how often a call climbs to a higher room
python -m benchmarks.count_house --pairs 30       pairs of classes that share most of their fields
python -m benchmarks.count_house --once           functions that are used once and whose body is one statement
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
FEWEST = 3
"""Fields that a pair of classes shares at least."""
MOST = 0.5
"""Share of the fields of the smaller class that a pair has in common, at least."""
SPELLINGS = {
    "an SLO target": "ttft_p95", "an option": "kv_dtype", "a price": "usd_per_gpu_hour", "a quantity": "kv_occupancy",
    "a GPU": "h200", "a family": "olmo2",
}  # fmt: skip
"""What stands for its kind: files that name it are those that a person opens to change or add one of the kind."""


@dataclass(frozen=True)
class Source:
    """One file."""

    place: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    def classes(self) -> Iterator[ast.ClassDef]:
        yield from (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    def functions(self) -> Iterator[ast.FunctionDef]:
        """Yield the functions at the top of the file."""
        yield from (node for node in self.tree.body if isinstance(node, ast.FunctionDef))


def sources_of(root: Path, part: str) -> list[Source]:
    return [
        Source(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted((root / part).rglob("*.py"))
    ]


def fields_of(node: ast.ClassDef) -> frozenset[str]:
    """Return the fields that a class states itself."""
    return frozenset(
        part.target.id
        for part in node.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    )


def bare_lines(source: Source) -> int:
    """Return the lines of a file without blank ones, comments, docstrings and imports."""
    left_out: set[int] = set()
    for node in ast.walk(source.tree):
        if not isinstance(node, (ast.Expr, ast.Import, ast.ImportFrom)):
            continue
        value = node.value if isinstance(node, ast.Expr) else None
        if value is None or (isinstance(value, ast.Constant) and isinstance(value.value, str)):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.text.splitlines(), start=1)
    return sum(1 for at, line in lines if line.strip() and line.strip()[0] != "#" and at not in left_out)


def pairs(sources: Sequence[Source]) -> list[tuple[int, float, str, str]]:
    """Return pairs of classes that share most fields of the smaller one, worst first: shared, share, place of each."""
    classes = [
        (f"{source.place}: {node.name}", fields_of(node)) for source in sources for node in source.classes()
    ]
    classes = [(place, fields) for place, fields in classes if len(fields) >= FEWEST]
    found = []
    for (place, own), (other_place, other) in combinations(classes, 2):
        shared, share = len(own & other), len(own & other) / min(len(own), len(other))
        if shared >= FEWEST and share > MOST:
            found.append((shared, share, place, other_place))
    return sorted(found, key=lambda pair: (-pair[0] * pair[1], pair[2:]))


def used_once(sources: Sequence[Source]) -> list[tuple[Source, ast.FunctionDef]]:
    """Return the functions whose name stands once beside their definition and their imports."""
    uses = Counter[str]()
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                uses[node.id] += 1
            elif isinstance(node, ast.Attribute):
                uses[node.attr] += 1
    return [(source, node) for source in sources for node in source.functions() if uses[node.name] == 1]


def body_of(node: ast.FunctionDef) -> list[ast.stmt]:
    """Return the statements of a function without its docstring."""
    return node.body[1:] if ast.get_docstring(node) is not None else node.body


def counts(root: Path) -> dict[str, int]:
    """Return what there is of everything, by its name."""
    found: dict[str, int] = {}
    for part in ("capplan", "tests"):
        sources = sources_of(root, part)
        nodes = [node for source in sources for node in ast.walk(source.tree)]
        found |= {
            f"{part}: files": len(sources),
            f"{part}: lines": sum(len(source.text.splitlines()) for source in sources),
            f"{part}: bare lines": sum(map(bare_lines, sources)),
            f"{part}: AST nodes": len(nodes),
            f"{part}: characters": sum(len(source.text) for source in sources),
            f"{part}: functions": sum(isinstance(node, ast.FunctionDef) for node in nodes),
            f"{part}: classes": sum(isinstance(node, ast.ClassDef) for node in nodes),
            f"{part}: lines with 'fmt: skip'": sum(source.text.count("fmt: skip") for source in sources),
        }
        if part == "capplan":
            once = used_once(sources)
            found |= {
                f"{part}: functions named once": len(once),
                f"{part}: of them with one statement": sum(len(body_of(node)) == 1 for _, node in once),
                f"{part}: pairs of classes that share most fields": len(pairs(sources)),
            }
        else:
            imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
            doors = Counter(
                (node.module, name.name)
                for node in imports
                if str(node.module).startswith("capplan")
                for name in node.names
            )
            found[f"{part}: names of the package that they import"] = len(doors)
            found[f"{part}: imports of these names"] = doors.total()
        for kind, name in SPELLINGS.items():
            found[f"{part}: files that name {kind} ({name})"] = sum(name in item.text for item in sources)
    return found


def counts_at(commit: str) -> dict[str, int]:
    """Return the counts of a commit of this repository."""
    packed = subprocess.run(
        ["git", "archive", commit, "capplan", "tests"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
        return counts(Path(folder))


def rooms_from_top() -> list[str]:
    """Return the rooms of docs/architecture.md, the highest first."""
    table = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## The rooms")[2]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", table, flags=re.MULTILINE)
    return [name for row in rows for name in re.findall(r"\w+", row)]


def walk(report: Callable[[str], None] = print) -> None:
    """Print which files one fleet question passes through, and the calls from a lower room up to a higher one."""
    from capplan.cli.main import main as capplan

    height = {name: -index for index, name in enumerate(rooms_from_top())}
    package, files, climbs = str(ROOT / "capplan") + "/", Counter[str](), Counter[tuple[str, str]]()

    def seen(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(package):
            return
        place = frame.f_code.co_filename.removeprefix(package)
        files[place] += 1
        caller = frame.f_back
        while caller and not caller.f_code.co_filename.startswith(package):
            caller = caller.f_back
        if caller and frame.f_code.co_name != "<module>":
            low, high = (
                name.removeprefix(package).partition("/")[0].removesuffix(".py") for name in (caller.f_code.co_filename, frame.f_code.co_filename)
            )  # fmt: skip
            if height.get(low, 0) < height.get(high, 0):
                climbs[low, high] += 1

    sys.setprofile(seen)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            capplan(["fleet", "small-team", "--offline"])
    finally:
        sys.setprofile(None)
    report(f"{len(files):8,}  files that a fleet question passes through")
    report(f"{sum(climbs.values()):8,}  calls from a lower room to a higher one")
    for (low, high), count in climbs.most_common(12):
        report(f"{count:8,}    {low} to {high}")


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--since", metavar="COMMIT")
    parser.add_argument("--walk", action="store_true")
    parser.add_argument("--pairs", type=int, default=0, metavar="N")
    parser.add_argument("--once", action="store_true")
    asked = parser.parse_args()
    if asked.walk:
        walk()
        return
    if asked.pairs or asked.once:
        sources = sources_of(ROOT, "capplan")
        for shared, share, place, other in pairs(sources)[: asked.pairs]:
            print(f"{shared:3} fields, {share:4.0%}  {place}  {other}")
        for source, node in used_once(sources) if asked.once else []:
            if len(body_of(node)) == 1 and not node.decorator_list:
                print(f"{source.place}:{node.lineno} {node.name}")
        return
    before = counts_at(asked.since) if asked.since else {}
    for what, number in counts(ROOT).items():
        print(f"{before[what]:9,} -> {number:9,}  {what}" if what in before else f"{number:9,}  {what}")


if __name__ == "__main__":
    main()
