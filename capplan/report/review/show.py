"""Write a planning review to stdout or a file: as Markdown, as HTML, or in the formats of every command."""

from dataclasses import replace

from capplan.errors import InputError
from capplan.questions.flags import OutputFlags
from capplan.report.grid import grid_of
from capplan.report.review.findings import Review, Section
from capplan.report.safe_text import markdown_paragraph, markdown_words, one_line
from capplan.report.show import say_warnings, send, show
from capplan.report.table_text import markdown_table

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


def show_review(review: Review, to: OutputFlags) -> int:
    """Print or write a review; its warnings go to stderr. Returns its exit code, 4 where there is no plan."""
    if to.form in {"table", "json", "csv"}:
        answer = review.answer
        if to.form == "table":
            answer = replace(answer, tables=answer.tables[1:])
        return show(answer, to)
    say_warnings(review.answer)
    if to.form == "html":
        from capplan.report.review.html import review_html

        text = review_html(review)
    else:
        text = review_markdown(review)
    send(text, to.file)
    return review.answer.exit_code


def review_markdown(review: Review) -> str:
    """Return the page as Markdown, ready for a pull request; the pictures are left out, their tables say the same."""
    parts = [f"# Plan: {markdown_words(review.title)}", f"**{markdown_words(review.decision)}**"]
    for section in review.sections:
        parts += _section(section)
    return "\n\n".join(parts) + "\n"


def _section(section: Section) -> list[str]:
    parts = [f"## {section.title}", *map(markdown_paragraph, section.text)]
    for table in section.tables:
        if table.title:
            parts.append(f"### {markdown_words(table.title)}")
        parts.append(markdown_table(grid_of(table)))
    if section.lines:
        parts.append("\n".join(f"- {markdown_paragraph(line)}" for line in section.lines))
    if section.code:
        parts.append("\n".join(["```console", *(f"$ {one_line(line)}" for line in section.code), "```"]))
    return parts
