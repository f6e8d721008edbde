"""The docs as a site: pages of the repository that stand outside docs/, notebooks, and links between all of them. A hook of MkDocs (mkdocs.yml)."""

import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "calibrate/README.md": "calibrate.md",
    "hardware_specs/README.md": "hardware.md",
    "model_configs/README.md": "model-configs.md",
}
"""Page of the repository -> its page of the site; those of docs/ keep their names."""
REPOSITORY = "https://github.com/OWNER/capplan/blob/main/"
"""Where links of the README lead, so that it reads on a package index; on the site they lead to the site."""
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")
"""Target of a link to another page."""


def site_page(source: str) -> str:
    """Return where a file of the repository stands on the site.

    Examples
    --------
    >>> site_page("README.md"), site_page("docs/tutorials/a.md"), site_page("docs/tutorials/b.ipynb")
    ('index.md', 'tutorials/a.md', 'tutorials/b.md')
    """
    page = source.removesuffix(".ipynb") + ".md" if source.endswith(".ipynb") else source
    return OUTSIDE.get(page) or page.removeprefix("docs/")


def site_text(text: str, source: str) -> str:
    """Return the text of a page with its links as they are on the site.

    Examples
    --------
    >>> site_text("[money](docs/money.md#terms)", "README.md"), site_text("[how](../CONTRIBUTING.md)", "docs/money.md")
    ('[money](money.md#terms)', '[how](contributing.md)')
    """
    folder = posixpath.dirname(site_page(source))

    def target(match: re.Match[str]) -> str:
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        return posixpath.relpath(site_page(inside), folder or ".")

    return LINK.sub(
        target,
        text.replace(f"({REPOSITORY}", f"({posixpath.relpath('.', posixpath.dirname(source) or '.')}/"),
    )


def notebook_text(text: str, name: str) -> str:
    """Return a notebook as a page: its text, its code, and what the code shows.

    Examples
    --------
    >>> cells = [{"cell_type": "code", "source": ["1 + 1"], "outputs": [{"data": {"text/plain": ["2"]}}]}]
    >>> print(notebook_text(json.dumps({"cells": cells}), "sum.ipynb"))
    ```python
    1 + 1
    ```
    <BLANKLINE>
    ```text
    2
    ```
    <BLANKLINE>
    <a href="../sum.ipynb" download>This page as a notebook</a>
    """
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        shown = [output.get("text") or output["data"]["text/plain"] for output in cell.get("outputs", ())]
        parts += [f"```text\n{''.join(lines).rstrip()}\n```" for lines in shown]
    return "\n\n".join([*parts, f'<a href="../{name}" download>This page as a notebook</a>'])


def on_files(files: "Files", *, config: "MkDocsConfig") -> "Files":
    """Add the pages that stand outside docs/, and notebooks as pages."""
    from mkdocs.structure.files import File

    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for path in sorted((ROOT / "docs").rglob("*.ipynb")):
        content = notebook_text(path.read_text(encoding="utf-8"), path.name)
        page = site_page(path.relative_to(ROOT).as_posix())
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, *, page: "Page", **_: object) -> str:
    """Point the links of a page to pages of the site."""
    sources = {name: source for source, name in OUTSIDE.items()}
    return site_text(markdown, sources.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
