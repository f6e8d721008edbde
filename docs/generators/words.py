"""Find words of docs/words/capplan.yml in pages, help texts and messages: `python -m docs.generators.words` (`make lint`).

Looked at are README, CONTRIBUTING, SECURITY and all pages, without code, outputs and links, and the texts of at least three words in the package:
help, messages and docstrings.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from capplan.readers.yaml_file import parse_yaml

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = "docs/words/capplan.yml"
_CODE = re.compile(r"```.*?```|`[^`\n]*`|<!--.*?-->|\]\([^)]*\)", re.DOTALL)
_WORDS = 3


def vocabulary(root: Path) -> dict[re.Pattern[str], str]:
    """Return the patterns of words that are not used, and what stands instead."""
    swap: Mapping[str, str] = parse_yaml((root / VOCABULARY).read_text(encoding="utf-8"), VOCABULARY).value[
        "swap"
    ]
    return {re.compile(pattern, re.IGNORECASE): instead for pattern, instead in swap.items()}


def prose(page: str) -> str:
    r"""Return the text of a page with code, outputs, comments and targets of links blank, line for line.

    Examples
    --------
    >>> prose("a `b` c\n```\nd\n```\ne").splitlines()
    ['a  c', '', '', '', 'e']
    """
    return _CODE.sub(lambda match: "\n" * match[0].count("\n"), page)


def texts(root: Path) -> Iterator[tuple[str, int, str]]:
    """Yield file, first line and text of everything that is looked at: paragraphs of pages, and texts of the package."""
    pages = [root / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    pages += sorted((root / "docs").rglob("*.md"))
    for page in pages:
        number = 1
        for paragraph in re.split(r"(\n\s*\n)", prose(page.read_text(encoding="utf-8"))):
            yield page.relative_to(root).as_posix(), number, paragraph
            number += paragraph.count("\n")
    for path in sorted((root / "capplan").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            if len(node.value.split()) >= _WORDS:
                yield path.relative_to(root).as_posix(), node.lineno, node.value


def findings(root: Path) -> list[str]:
    """Return a line for each word that is not used, with the place of its paragraph or text and what stands instead."""
    swap = vocabulary(root)
    found = []
    for file, line, text in texts(root):
        words = " ".join(text.split())  # a phrase may go on in the next line
        for pattern, instead in swap.items():
            if match := pattern.search(words):
                found.append(f"{file}:{line}: write {instead!r} instead of {match[0]!r}")
    return found


def main() -> int:
    """Print the findings; 1 if there are any."""
    found = findings(ROOT)
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
