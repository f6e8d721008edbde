"""The docs as a site: pages of the repository that stand outside docs/, and links between all of them. A hook of MkDocs (mkdocs.yml)."""

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
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")
"""Target of a link to another page."""


def site_page(source: str) -> str:
    """Return where a file of the repository stands on the site.

    Examples
    --------
    >>> site_page("README.md"), site_page("docs/tutorials/a.md")
    ('index.md', 'tutorials/a.md')
    """
    return OUTSIDE.get(source) or source.removeprefix("docs/")


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

    return LINK.sub(target, text)


def on_files(files: "Files", *, config: "MkDocsConfig") -> "Files":
    """Add the pages that stand outside docs/."""
    from mkdocs.structure.files import File

    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: "Page", **_: object) -> str:
    """Point the links of a page to pages of the site."""
    sources = {name: source for source, name in OUTSIDE.items()}
    return site_text(markdown, sources.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
