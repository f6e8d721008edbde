"""Write a planning review to stdout or a file: as Markdown, as HTML, or in the formats of every command."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from capplan.errors import InputError
from capplan.readers.text_file import protecting_outputs
from capplan.report.charts.svg import svg_file
from capplan.report.data_text import rows_csv
from capplan.report.destination import beside, refuse_losing, write_whole
from capplan.report.grid import grid_of
from capplan.report.safe_text import markdown_paragraph, markdown_words, one_line
from capplan.report.show import say_warnings, send, show
from capplan.report.table_text import markdown_table
from capplan.review.findings import Review, Section, anchor
from capplan.review.moves import what_if_rows
from capplan.review.plans import WHY
from capplan.scenario.flags import OutputFlags

_BY_SUFFIX = {
    ".md": "markdown", ".markdown": "markdown", ".csv": "csv", ".html": "html", ".htm": "html", ".json": "json",
    ".txt": "table",
}  # fmt: skip


def review_output(to: OutputFlags) -> OutputFlags:
    """Return where a review goes, and its format: the one given, else the one of the file's suffix, else a table.

    Raises
    ------
    InputError
        The suffix names no format; raised before anything is computed.
    """
    if to.form is not None:
        return to
    form = "table" if to.file is None else _BY_SUFFIX.get(to.file.suffix.lower())
    if form is None:
        raise InputError(
            f"--output: {str(to.file)!r} has no suffix of a report; name it *.md, *.csv, *.html or *.json, or add --format"
        )
    return OutputFlags(form, to.file)


@contextmanager
def written_with(to: OutputFlags) -> Iterator[None]:
    """Refuse to read a file that stands beside the page under a name that its pictures or tables may take."""
    suffix = {"markdown": ".svg", "csv": ".csv"}.get(to.form or "")
    if to.file is None or suffix is None:
        yield
        return
    with protecting_outputs({**refuse_losing({"--output": to.file}, ()), **beside(to.file, suffix)}):
        yield


def show_review(review: Review, to: OutputFlags) -> int:
    """Print or write a review; its warnings go to stderr. Returns its exit code, 4 where there is no plan.

    Beside a Markdown file stand its pictures, beside a CSV file of the plans one file for each other topic.
    """
    if to.form in {"table", "json", "csv"}:
        answer = review.answer
        if to.form == "table":
            answer = replace(answer, tables=answer.tables[1:])
        if to.form == "csv" and to.file is not None:
            for topic, rows in topics(review):
                write_whole(to.file.with_suffix(f".{topic}.csv"), rows_csv(rows))
        return show(answer, to)
    say_warnings(review.answer)
    if to.form == "html":
        from capplan.review.html import review_html

        text = review_html(review)
    else:
        pictures = _pictures(review, to.file)
        for path, drawing in pictures:
            write_whole(path, drawing)
        text = review_markdown(review, [path.name for path, _ in pictures])
    send(text, to.file)
    return review.answer.exit_code


def topics(review: Review) -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]:
    """Yield the name and the rows of every table of a page but that of the plans; in base units, with all digits."""
    for section in review.sections:
        for place, table in enumerate(section.tables):
            if section.title != WHY:
                yield numbered(section.title, place), table.rows
    if review.sensitivity.what_if:
        yield "what-if", what_if_rows(review.sensitivity)


def _pictures(review: Review, file: Path | None) -> list[tuple[Path, str]]:
    """Return the pictures of a page in order, and the files beside it that they go to; none on stdout."""
    if file is None:
        return []
    return [
        (file.with_suffix(f".{numbered(section.title, place)}.svg"), svg_file(chart))
        for section in review.sections
        for place, chart in enumerate(section.pictures)
    ]


def numbered(title: str, place: int) -> str:
    """Return the part of a file's name for a table or a picture of a section.

    Examples
    --------
    >>> numbered("What it costs", 0), numbered("What it costs", 1)
    ('what-it-costs', 'what-it-costs-2')
    """
    return anchor(title) + (f"-{place + 1}" if place else "")


def review_markdown(review: Review, pictures: Sequence[str] = ()) -> str:
    """Return the page as Markdown, ready for a pull request.

    Parameters
    ----------
    review : the page
    pictures : file names of all pictures, in order; empty: the tables say the same
    """
    parts = [
        f"# Plan: {markdown_words(review.title)}",
        markdown_words(review.byline),
        f"**{markdown_words(review.decision)}**",
    ]
    left = iter(pictures)
    for section in review.sections:
        parts += _section(section, [name for _, name in zip(section.pictures, left, strict=False)])
    return "\n\n".join(parts) + "\n"


def _section(section: Section, pictures: Sequence[str]) -> list[str]:
    parts = [f"## {section.title}", *map(markdown_paragraph, section.text)]
    for name, chart in zip(pictures, section.pictures, strict=bool(pictures)):
        said = markdown_words(chart.title).replace("]", r"\]")
        parts.append(f"![{said}]({quote(name)})")
    for table in section.tables:
        if table.title:
            parts.append(f"### {markdown_words(table.title)}")
        parts.append(markdown_table(grid_of(table)))
    if section.lines:
        parts.append("\n".join(f"- {markdown_paragraph(line)}" for line in section.lines))
    if section.code:
        parts.append("\n".join(["```console", *(f"$ {one_line(line)}" for line in section.code), "```"]))
    return parts
