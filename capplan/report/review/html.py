"""A planning review as one self-contained HTML file: no scripts, nothing loaded, readable in print and in dark mode."""

from itertools import count

from capplan import __version__
from capplan.report.answer import Table
from capplan.report.grid import grid_of
from capplan.report.review.bars import svg_of
from capplan.report.review.findings import Review, Section
from capplan.report.safe_text import html_words

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #ffffff; --line: #c8c8c8; --soft: #f3f4f6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #16181c; --line: #4a4d52; --soft: #22252b; }
}
* { box-sizing: border-box; }
body { color: var(--ink); background: var(--paper); font: 15px/1.5 system-ui, sans-serif; max-width: 76rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin-bottom: .3rem; }
p.decision { font-size: 1.15rem; font-weight: 600; padding: .8rem 1rem; background: var(--soft);
  border-left: 4px solid #0072b2; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; margin: .5rem 0 1rem; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { border-bottom: 2px solid var(--line); vertical-align: bottom; }
th.number, td.number { text-align: right; } td.number { white-space: nowrap; }
td a { word-break: break-all; }
tbody tr:nth-child(even) { background: var(--soft); }
figure { margin: 1rem 0; max-width: 46rem; } figcaption { font-weight: 600; font-size: .9rem; }
svg { width: 100%; height: auto; }
pre { background: var(--soft); padding: .8rem; white-space: pre-wrap; overflow-wrap: anywhere; }
footer { margin-top: 3rem; font-size: .8rem; border-top: 1px solid var(--line); }
@page { size: A4 landscape; margin: 12mm; }
@media print {
  :root { --ink: #000; --paper: #fff; --line: #999; --soft: #f3f3f3; }
  body { margin: 0; max-width: none; font-size: 10pt; } table { font-size: 8pt; } div.wide { overflow: visible; }
  th, td { padding: .15rem .35rem; } h2, h3, figcaption { break-after: avoid; } figure, tr { break-inside: avoid; }
  rect, p.decision, tbody tr { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""


def review_html(review: Review) -> str:
    """Return the page; what people wrote in the scenario is text in it, never markup."""
    numbers = count(1)
    title = html_words(f"Plan: {review.title}")
    body = "\n".join(_section(section, numbers) for section in review.sections)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        f'<p class="decision">{html_words(review.decision)}</p>\n{body}\n'
        f"<footer>capplan {html_words(__version__)}</footer>\n</body>\n</html>\n"
    )


def _section(section: Section, numbers: "count[int]") -> str:
    parts = [f"<section>\n<h2>{html_words(section.title)}</h2>"]
    parts += [f"<p>{html_words(text)}</p>" for text in section.text]
    parts += [_table(table) for table in section.tables]
    for picture in section.pictures:
        caption = f"<figcaption>{html_words(picture.title)}</figcaption>"
        parts.append(f"<figure>{caption}\n{svg_of(picture, index=next(numbers))}\n</figure>")
    if section.lines:
        parts.append(
            "\n".join(["<ul>", *(f"<li>{html_words(line)}</li>" for line in section.lines), "</ul>"])
        )
    if section.code:
        parts.append(f"<pre><code>{html_words(chr(10).join(section.code))}</code></pre>")
    return "\n".join([*parts, "</section>"])


def _table(table: Table) -> str:
    grid = grid_of(table)
    kinds = [' class="number"' if right else "" for right in grid.right]
    heading = f"<h3>{html_words(table.title)}</h3>\n" if table.title else ""
    head = "".join(
        f'<th scope="col"{kind}>{html_words(text)}</th>'
        for text, kind in zip(grid.headings, kinds, strict=True)
    )
    rows = "\n".join(
        "<tr>"
        + "".join(f"<td{kind}>{_cell(text)}</td>" for text, kind in zip(line, kinds, strict=True))
        + "</tr>"
        for line in grid.cells
    )
    return f'{heading}<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>'


def _cell(text: str) -> str:
    """Return a cell; one that is nothing but an address becomes a link, which loads nothing until somebody follows it."""
    if text.startswith("https://") and " " not in text:
        return f'<a href="{html_words(text)}">{html_words(text)}</a>'
    return html_words(text)
