"""Send a planning review where it was asked to go: as Markdown, as HTML, or as the answer that every command has."""

from dataclasses import replace
from pathlib import Path

from capplan.errors import InputError
from capplan.report.grid import grid_of
from capplan.report.review.findings import Review, Section
from capplan.report.show import say_warnings, send, show
from capplan.report.table_text import markdown_table

FORMS = ("table", "json", "csv", "markdown", "html")
_BY_SUFFIX = {
    ".md": "markdown", ".markdown": "markdown", ".csv": "csv", ".html": "html", ".htm": "html", ".json": "json",
    ".txt": "table",
}  # fmt: skip


def review_form(form: str | None, output: Path | None) -> str:
    """Return the form of a review: what was asked, else what the file's name says, else a table.

    Raises
    ------
    InputError
        The name of the file says nothing; raised before anything is computed.
    """
    if form is not None:
        return form
    if output is None:
        return "table"
    found = _BY_SUFFIX.get(output.suffix.lower())
    if found is None:
        raise InputError(
            f"--output: {str(output)!r} names no form of a report; name it *.md, *.csv, *.html or *.json, or add --format"
        )
    return found


def show_review(review: Review, form: str, output: Path | None = None) -> int:
    """Print or write a review; its warnings go to stderr. Returns its exit code, 4 where there is no plan."""
    if form in {"table", "json", "csv"}:
        answer = review.answer
        if form == "table":
            answer = replace(answer, tables=answer.tables[1:])
        return show(answer, form, output)
    say_warnings(review.answer)
    if form == "html":
        from capplan.report.review.html import review_html

        text = review_html(review)
    else:
        text = review_markdown(review)
    send(text, output)
    return review.answer.exit_code


def review_markdown(review: Review) -> str:
    """Return the page as Markdown, ready for a pull request; the pictures are left out, their tables say the same."""
    parts = [f"# Plan: {review.title}", f"**{review.decision}**"]
    for section in review.sections:
        parts += _section(section)
    return "\n\n".join(parts) + "\n"


def _section(section: Section) -> list[str]:
    parts = [f"## {section.title}", *section.text]
    for table in section.tables:
        if table.title:
            parts.append(f"### {table.title}")
        parts.append(markdown_table(grid_of(table)))
    if section.lines:
        parts.append("\n".join(f"- {line}" for line in section.lines))
    if section.code:
        parts.append("\n".join(["```console", *(f"$ {line}" for line in section.code), "```"]))
    return parts
