"""The docs as a site: pages that stand outside docs/, notebooks, generated pages, and links between all of them. A hook of MkDocs (mkdocs.yml)."""

import json
import posixpath
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
"""Beginning of the links of the README, so that it reads on a package index; on the site the same links lead to the site."""
FILES = "https://raw.githubusercontent.com/OWNER/capplan/main/docs/"
"""Beginning of the pictures of the README; the site has them."""
SITE = "https://OWNER.github.io/capplan/"
"""Beginning of a link to a page that only the site has."""
INDEXES = (
    "scenario.md",
    "numbers.md",
    *(f"methodology/{room}.md" for room in ("memory", "operators", "money")),
)
"""Pages of the menu below which the pages of their folders stand, in the order of their links."""
COMMAND_INDEX = "commands.md"
"""Page of the menu below which the pages of the commands stand."""
REPORT = ("report", "support-chat", "--offline", "--author", "Platform team", "--date", "2026-11-22", "-o")
"""Command of the report that the site shows, without its file."""
LIVE_REPORT = """# A live report

`capplan report support-chat -o plan.html` writes this page as one file that opens offline. [Open it by itself](examples/report.html),
or read [how to write and read it](report.md).

<iframe class="live" src="examples/report.html" title="Report of support-chat"></iframe>
"""
SHIM = "https://unpkg.com/iframe-worker/shim"
"""What the theme loads for the search of pages that are opened from a folder; docs/site/worker.js stands for it."""
PAGE_OF_SITE = re.compile(rf"{re.escape(SITE)}([\w/-]+)\.html(?=[)#])")
"""Target of a link to a page that only the site has, up to its anchor."""
PICTURE = re.compile(
    r'<picture>.*?srcset="([^"]+)".*?<img alt="([^"]+)" src="([^"]+)">.*?</picture>', re.DOTALL
)
BADGE = re.compile(r"^\[!\[[^\n]*\n", re.MULTILINE)
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")
"""Target of a link to another page."""


def changelog_pages(text: str) -> dict[str, str]:
    r"""Return the changes as pages of the site: an index, and for each version its changes and the numbers that moved.

    Examples
    --------
    >>> text = "# Changes\n\nWhat.\n\n## [1.0.0] - 2026\n\n### Fixed\n\n- b\n\n### Numbers that moved\n\nc\n"
    >>> changelog_pages(text)["changelog/1.0.0.md"]
    '# [1.0.0] - 2026\n\n## Fixed\n\n- b\n'
    """
    head, *versions = re.split(r"^## ", text, flags=re.MULTILINE)
    versions = [re.sub(r"\]\((?!http|#)", "](../../", version) for version in versions]
    index, texts = [head.rstrip() + "\n"], {}
    for version in versions:
        title, _, below = version.partition("\n")
        name = title[1:].partition("]")[0].lower()
        changes, _, numbers = below.replace("\n### ", "\n## ").partition("\n## Numbers that moved\n")
        texts[f"changelog/{name}.md"] = f"# {title}\n{changes.rstrip()}\n"
        index.append(f"- [{title}](changelog/{name}.md)")
        if numbers:
            texts[f"changelog/{name}-numbers.md"] = f"# Numbers that moved in {title}\n{numbers}"
            index[-1] += f", [numbers that moved](changelog/{name}-numbers.md)"
    return {"changelog.md": "\n".join([*index, ""]), **texts}


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
    """Return the text of a page with its links as they are on the site; badges and other things from elsewhere are left out.

    Examples
    --------
    >>> site_text("[money](docs/money.md#terms)", "README.md"), site_text("[how](../CONTRIBUTING.md)", "docs/money.md")
    ('[money](money.md#terms)', '[how](contributing.md)')
    >>> site_text(f"[money]({REPOSITORY}docs/money.md) [licence]({REPOSITORY}LICENSE)", "README.md").replace(REPOSITORY, "")
    '[money](money.md) [licence](LICENSE)'
    """
    folder = posixpath.dirname(site_page(source))

    def target(match: re.Match[str]) -> str:
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        return posixpath.relpath(site_page(inside), folder or ".")

    def here(match: re.Match[str]) -> str:
        page = match[1]
        on_site = page in OUTSIDE or page.startswith("docs/")
        return posixpath.relpath(page, posixpath.dirname(source) or ".") if on_site else match[0]

    text = PICTURE.sub(r"![\2](\3#only-light)\n![\2](\1#only-dark)", BADGE.sub("", text))
    text = text.replace(FILES, f"{REPOSITORY}docs/")
    text = PAGE_OF_SITE.sub(rf"{REPOSITORY}docs/\1.md", text)
    return LINK.sub(target, re.sub(rf"{re.escape(REPOSITORY)}([^)#\s]+)", here, text))


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
    ```console
    2
    ```
    <BLANKLINE>
    <a href="sum.ipynb" download>This page as a notebook</a>
    """
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        shown = [output.get("text") or output["data"]["text/plain"] for output in cell.get("outputs", ())]
        parts += [f"```console\n{''.join(lines).rstrip()}\n```" for lines in shown]
    return "\n\n".join([*parts, f'<a href="{name}" download>This page as a notebook</a>'])


def report_page() -> str:
    """Return the report that the site shows, as `capplan report` writes it."""
    from capplan.cli.main import main

    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "plan.html"
        if main([*REPORT, str(page)]):
            raise RuntimeError(f"capplan {' '.join(REPORT)} failed")
        return page.read_text(encoding="utf-8")


def generated_pages() -> dict[str, str]:
    """Return the pages that only the site has, besides those of the changes."""
    from docs.generators import library_page, methodology, plan_numbers

    return {
        "library-reference.md": library_page.page(),
        "live-report.md": LIVE_REPORT,
        **{f"methodology/{page}.md": text for page, text in methodology.pages(ROOT).items()},
        **plan_numbers.pages(ROOT),
    }


def pages_below(index: str, generated: Mapping[str, str]) -> list[str]:
    """Return the pages of the folder of an index, as it links them first."""
    text = generated.get(index) or (ROOT / "docs" / index).read_text(encoding="utf-8")
    text = PAGE_OF_SITE.sub(r"\1.md", text)
    above, _, page = index.rpartition("/")
    found = re.findall(rf"\]\(({page.removesuffix('.md')}/[\w-]+\.md)\)", text)
    return [posixpath.join(above, name) for name in dict.fromkeys(found)]


def on_config(config: "MkDocsConfig") -> "MkDocsConfig":
    """Put the page of each command below the index of commands."""
    sys.path.insert(0, str(ROOT))
    from capplan.cli.commands import COMMANDS

    generated = generated_pages()

    def unfolded(entries: list[Any]) -> list[Any]:
        """Return a part of the menu."""
        below: dict[str, list[Any]] = {index: [index, *pages_below(index, generated)] for index in INDEXES}
        changes = changelog_pages((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
        below["changelog.md"] = list(changes)
        below[COMMAND_INDEX] = [
            COMMAND_INDEX,
            *({f"capplan {name}": f"commands/{name}.md"} for name in COMMANDS),
        ]
        return [
            {title: unfolded(value) if isinstance(value, list) else below.get(value, value)}
            for entry in entries
            for title, value in entry.items()
        ]

    config.nav = unfolded(config.nav or [])
    return config


def on_files(files: "Files", *, config: "MkDocsConfig") -> "Files":
    """Add the pages that stand outside docs/, notebooks as pages, and the generated pages."""
    from mkdocs.structure.files import File

    texts = {page: (ROOT / source).read_text(encoding="utf-8") for source, page in OUTSIDE.items()}
    for path in sorted((ROOT / "docs").rglob("*.ipynb")):
        page = site_page(path.relative_to(ROOT).as_posix())
        texts[page] = notebook_text(path.read_text(encoding="utf-8"), path.name)
    texts |= generated_pages()
    texts |= changelog_pages(texts["changelog.md"])
    texts["examples/report.html"] = report_page()
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: "Page", **_: object) -> str:
    """Point the links of a page to pages of the site; the search shows how-to pages first, and no evidence."""
    if page.file.src_uri.startswith("how-to/"):
        page.meta["search"] = {"boost": 3}
    elif page.file.src_uri.startswith("evidence/"):
        page.meta["search"] = {"exclude": True}
    sources = {name: source for source, name in OUTSIDE.items()}
    return site_text(markdown, sources.get(page.file.src_uri, f"docs/{page.file.src_uri}"))


def on_post_page(output: str, *, page: "Page", **_: object) -> str:
    """Load the worker of the search from the site."""
    return output.replace(SHIM, posixpath.relpath("site/worker.js", posixpath.dirname(page.url) or "."))
