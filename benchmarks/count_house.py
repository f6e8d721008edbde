"""How much code there is, and which of it says the same twice: files, classes, fields, lines, pairs of like classes, functions used once.

python -m benchmarks.count_house              counts
python -m benchmarks.count_house --pairs 30   pairs of classes that share most of their fields
python -m benchmarks.count_house --once       functions that are used once and whose body is one statement
"""

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "capplan"
FEWEST = 3
"""Fields that a pair of classes shares at least."""
MOST = 0.5
"""Share of the fields of the smaller class that a pair has in common, at least."""
SPELLINGS = ("ttft_p95", "lora", "usd_per_gpu_hour")
"""Quantities whose representations are counted."""


@dataclass(frozen=True)
class Source:
    """One file."""

    path: Path
    text: str

    @property
    def place(self) -> str:
        """Return the path below the package."""
        return str(self.path.relative_to(ROOT))

    @cached_property
    def tree(self) -> ast.Module:
        """Return the file parsed."""
        return ast.parse(self.text)

    def classes(self) -> Iterator[ast.ClassDef]:
        """Yield the classes of the file."""
        yield from (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    def functions(self) -> Iterator[ast.FunctionDef]:
        """Yield the functions at the top of the file."""
        yield from (node for node in self.tree.body if isinstance(node, ast.FunctionDef))


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
        is_text = (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, (ast.Import, ast.ImportFrom)):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.text.splitlines(), start=1)
    return sum(1 for at, line in lines if line.strip() and line.strip()[0] != "#" and at not in left_out)


def pairs(sources: list[Source]) -> list[tuple[int, float, str, str]]:
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


def used_once(sources: list[Source]) -> list[tuple[Source, ast.FunctionDef]]:
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


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=0, metavar="N", help="print the N worst pairs")
    parser.add_argument("--once", action="store_true", help="print functions of one statement used once")
    asked = parser.parse_args()
    sources = [Source(path, path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))]
    like, once = pairs(sources), used_once(sources)
    if asked.pairs:
        for shared, share, place, other in like[: asked.pairs]:
            print(f"{shared:3} fields, {share:4.0%}  {place}  {other}")
        return
    if asked.once:
        for source, node in once:
            if len(body_of(node)) == 1 and not node.decorator_list:
                print(f"{source.place}:{node.lineno} {node.name}")
        return
    classes = [node for source in sources for node in source.classes()]
    counts = {
        "files": len(sources),
        "classes": len(classes),
        "fields": sum(len(fields_of(node)) for node in classes),
        "lines": sum(len(source.text.splitlines()) for source in sources),
        "lines without docstrings, comments, blanks, imports": sum(map(bare_lines, sources)),
        "functions used once": len(once),
        "of them with one statement": sum(len(body_of(node)) == 1 for _, node in once),
        "pairs of classes that share most fields": len(like),
    }
    for name in SPELLINGS:
        counts[f"classes with a field {name}"] = sum(name in fields_of(node) for node in classes)
        counts[f"files that name {name}"] = sum(name in source.text for source in sources)
    for what, number in counts.items():
        print(f"{number:8,}  {what}")


if __name__ == "__main__":
    main()
