"""A planning review as Markdown, ready for a pull request; the pictures are left out, their tables say the same."""

from capplan.report.grid import grid_of
from capplan.report.markdown import markdown_table
from capplan.report.review import Review, Section


def review_markdown(review: Review) -> str:
    """Return the page."""
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
