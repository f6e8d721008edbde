"""The whole planning review, put together and written: as Markdown, as one HTML file that loads nothing, or as an answer."""

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from capplan import __version__
from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.fleet.plan import Plan
from capplan.money.price import PriceRecord
from capplan.readers.text_file import protecting_outputs, read_text
from capplan.report.answer import Answer, Table
from capplan.report.answers.fleet import assumed_kernels, fleet_answer
from capplan.report.answers.fleet_outlook import over_time_assumptions
from capplan.report.charts.of_answers import has_roof
from capplan.report.charts.svg import svg_file, svg_of
from capplan.report.safe_text import html_words, markdown_paragraph, markdown_words, one_line, rows_csv
from capplan.report.screen_units import is_number
from capplan.report.show import BY_SUFFIX, beside, refuse_losing, say_warnings, send, show, write_whole
from capplan.report.tables import grid_of, markdown_table
from capplan.review import evidence, findings, levers
from capplan.review.evidence import WHY
from capplan.review.findings import Findings, Review, Section, anchor
from capplan.review.levers import (
    TRAFFIC,
    by_plan,
    charted,
    money_key,
    point_text,
    what_if_rows,
)
from capplan.scenario.flags import OutputFlags


def review_of(given: Findings) -> Review:
    """Return the page: the decision first, then why, what moves it and what may go wrong, then its evidence and sources."""
    said = findings.decision_sentence(given)
    first = _kept(_first(given))
    kept = (*first, *_kept(_middle(given)), *_kept(_appendix(given)))
    return Review(
        given.asked.scenario.name,
        said,
        kept,
        _answer(given, said, kept, [*evidence.plan_rows(given)]),
        byline(given),
        given.sensitivity,
        findings.decision_figures(given),
        len(first),
    )


def _kept(sections: Iterable[Section]) -> tuple[Section, ...]:
    """Return the sections that have something to say, without tables that have no rows."""
    whole = (
        replace(section, tables=tuple(table for table in section.tables if table.rows))
        for section in sections
    )
    return tuple(section for section in whole if section != Section(section.title))


def _first(given: Findings) -> Iterator[Section]:
    plan = given.chosen
    if plan is None:
        yield findings.missing_section(given)
        yield findings.certainty_section(given)
        return
    yield findings.decision_section(given, plan)
    yield findings.waterfall_section(given, plan)
    yield findings.verdicts_section(given, plan)
    yield findings.certainty_section(given)
    yield findings.choices_section(given, plan)


def _middle(given: Findings) -> Iterator[Section]:
    plan = given.chosen
    yield evidence.workload_section(given)
    if plan is not None:
        yield evidence.over_time_section(given)
        yield evidence.plans_section(given)
    yield evidence.uneconomical_section(given)
    yield evidence.rejections_section(given)
    if plan is not None:
        yield levers.moves_section(given, plan)
        yield levers.traffic_section(given, plan)
        yield levers.risks_section(given, plan)
    yield levers.levers_section(given)
    if plan is not None:
        yield evidence.sizing_section(given, plan)
        yield evidence.cost_section(given)
        yield evidence.total_section(given, plan)
        yield levers.outlook_section(given)


def _appendix(given: Findings) -> Iterator[Section]:
    yield from (evidence.memory_section(given, detail) for detail in given.details)
    yield from (evidence.roofline_section(detail) for detail in given.details if has_roof(detail.spec))
    yield from (evidence.latency_section(given, detail) for detail in given.details)
    yield evidence.assumptions_section(given, assumptions_of(given))
    yield evidence.sources_section(given)
    yield evidence.command_section(given)


def deciding_offers(plan: Plan | None) -> tuple[PriceRecord, ...]:
    """Return the offers that the cost of a plan is computed from; none without a plan or if a scenario states the prices."""
    groups = plan.groups if plan is not None else ()
    return tuple(record for group in groups if group.quote is not None for record in group.quote.records)


def byline(given: Findings) -> str:
    """Return versions, the days of the prices that the plan is paid at, and author of a page: never a day of the clock."""
    days = sorted({record.date or "an unknown day" for record in deciding_offers(given.chosen)})
    parts = [f"capplan {__version__}", *([f"prices as of {' and '.join(days)}"] if days else [])]
    return " · ".join(filter(None, [*parts, given.date, given.author]))


def assumptions_of(given: Findings) -> tuple[Assumption, ...]:
    """Return the assumptions of the question and those that the chosen plan adds."""
    if given.chosen is None:
        return given.asked.assumptions
    lengths = Assumption(
        "the latency breakdown shows one prompt and one decode step of the mean lengths",
        "capplan estimate with other lengths",
    )
    kernels = assumed_kernels((given.chosen,), given.asked.question)
    over_time = next(iter(given.outlook.over_time.values()), None)
    curve = over_time_assumptions(over_time) if over_time else ()
    return (*given.asked.assumptions, lengths, *kernels, *curve, *given.outlook.assumptions)


def _answer(given: Findings, said: str, sections: Sequence[Section], rows: list[dict[str, Any]]) -> Answer:
    fleet = fleet_answer(given.asked, given.answer, given.outlook)
    tables = [
        table if len(section.tables) > 1 and table.title else replace(table, title=section.title)
        for section in sections
        for table in section.tables
        if section.title != "Assumptions"
    ]
    csv = Table(rows) if rows else fleet.tables[0]
    result = {
        **fleet.result,
        "decision": said,
        "margins": [list(margins) for margins in given.margins],
        "author": given.author,
        "date": given.date,
        "what_if": levers.what_if_rows(given.sensitivity),
        "sections": [
            {"title": section.title, "tables": [list(table.rows) for table in section.tables]}
            for section in sections
        ],
    }
    return replace(
        fleet,
        command="report",
        result=result,
        tables=(csv, *tables),
        headline=said,
        assumptions=assumptions_of(given),
        first_screen=None,
    )


def review_html(review: Review) -> str:
    """Return the page; what people wrote in the scenario is text in it, never markup."""
    numbers = count(1)
    title = html_words(f"Plan: {review.title}")
    style, script = _resource("page.css"), _resource("page.js")
    policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    entries = "\n".join(
        f'<li><a href="#{anchor(section.title)}">{html_words(section.title)}</a></li>'
        for section in review.sections
    )
    sections = [_html_section(section, numbers, review) for section in review.sections]
    first, rest = "\n".join(sections[: review.first_screen]), "\n".join(sections[review.first_screen :])
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"/>\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#plan">To the plan</a>\n<nav aria-label="Sections"><ul>\n{entries}\n</ul></nav>\n'
        f'<main id="plan">\n<h1>{title}</h1>\n'
        f'<p class="byline">{html_words(review.byline)}</p>\n'
        f'<p class="decision">{html_words(review.decision)}</p>\n'
        f'{_figures(review)}<div class="first">\n{first}\n</div>\n{rest}\n</main>\n'
        f"<footer>{html_words(review.byline)}</footer>\n"
        f'<div id="tip" role="status"></div>\n{_points(review)}<script>{script}</script>\n</body>\n</html>\n'
    )


def _figures(review: Review) -> str:
    """Return the numbers of the decision as one sees them from across the table."""
    pairs = (
        f"<div><dt>{html_words(what)}</dt><dd>{html_words(value)}</dd></div>"
        for value, what in review.figures
    )
    return f'<dl class="figures">{"".join(pairs)}</dl>\n' if review.figures else ""


def _resource(name: str) -> str:
    return read_text(Path(__file__).with_name(name), kind="a part of the page")


def _digest(text: str) -> str:
    """Return what the policy of a page allows a style or a script by."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _html_section(section: Section, numbers: "count[int]", review: Review) -> str:
    heading = f"<summary><h2>{html_words(section.title)}</h2></summary>"
    parts = [f'<section id="{anchor(section.title)}">\n<details open="open">\n{heading}']
    parts += [f"<p>{html_words(text)}</p>" for text in section.text]
    if section.title == TRAFFIC:
        parts.append(_slider(review))
    for picture in section.pictures:
        caption = f"<figcaption>{html_words(picture.title)}</figcaption>"
        parts.append(f"<figure>{caption}\n{svg_of(picture, index=next(numbers))}\n</figure>")
    parts += [_table(table, section.title) for table in section.tables]
    if section.lines:
        parts += ["<ul>", *(f"<li>{html_words(line)}</li>" for line in section.lines), "</ul>"]
    if section.code:
        parts.append(f"<pre><code>{html_words(chr(10).join(section.code))}</code></pre>")
    return "\n".join([*parts, "</details>\n</section>"])


def _slider(review: Review) -> str:
    """Return the plan and the traffic to choose, with what they come to; points are in the page."""
    what_if = review.sensitivity.what_if
    options = "".join(f"<option>{html_words(by_plan(plan))}</option>" for plan, _ in what_if)
    points = what_if[0][1]
    today = next(at for at, point in enumerate(points) if point.traffic_ratio == 1.0)
    said = html_words(point_text(points[today], money_key(what_if[0][0])))
    return (
        '<div class="what-if">\n'
        f"<label>Plan <select>{options}</select></label>\n"
        f'<label>Peak traffic <input type="range" min="0" max="{len(points) - 1}" step="1" value="{today}"/></label>\n'
        f"<output>{said}</output>\n</div>"
    )


def _points(review: Review) -> str:
    """Return the points of the slider as data in the page; no letter in it is markup."""
    plans = [
        {
            "charted": charted(plan, review.sensitivity),
            "points": [
                {"ratio": point.traffic_ratio, "gpus": point.gpus, "usd": point.usd}
                | {"said": point_text(point, money_key(plan))}
                for point in points
            ],
        }
        for plan, points in review.sensitivity.what_if
    ]
    if not plans:
        return ""
    text = json.dumps(plans).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f'<script type="application/json" id="what-if-points">{text}</script>\n'


def _table(table: Table, section: str) -> str:
    grid = grid_of(table)
    kinds = [' class="number"' if right else "" for right in grid.right]
    heading = f"<h3>{html_words(table.title)}</h3>\n" if table.title else ""
    head = "".join(
        f'<th scope="col"{kind}>{html_words(text)}</th>' if text else "<td></td>"
        for text, kind in zip(grid.headings, kinds, strict=True)
    )
    rows = "\n".join(
        f"<tr>{''.join(map(_cell, grid.headings, line, kinds, values))}</tr>"
        for line, values in zip(grid.cells, grid.values, strict=True)
    )
    name = html_words(table.title or section)
    return (
        f'{heading}<div class="wide" role="region" tabindex="0" aria-label="{name}"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>"
    )


def _cell(label: str, text: str, kind: str, value: Any) -> str:
    """Return a cell, with its number in base units and full precision; an address becomes a link, which loads nothing until somebody follows it."""
    kind = kind or (' class="short"' if len(text) <= SHORT_TEXT else "")
    exact = f' data-value="{value!r}"' if is_number(value) else ""
    said = html_words(text)
    if text.startswith("https://") and " " not in text:
        said = f'<a href="{said}">{said}</a>'
    return f'<td{kind} data-label="{html_words(label)}"{exact}>{said}</td>'


SHORT_TEXT = 18
"""Letters of a cell that stay on one line."""
_BY_SUFFIX = {**BY_SUFFIX, ".html": "html", ".htm": "html", ".txt": "table", ".zip": "csv"}


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
            f"--output: {str(to.file)!r} has no suffix of a report; name it *.md, *.html, *.zip, *.csv or *.json, or add --format"
        )
    return OutputFlags(form, to.file)


@contextmanager
def written_with(to: OutputFlags) -> Iterator[None]:
    """Refuse to read a file that stands next to the page under a name that its pictures may take."""
    if to.file is None or to.form != "markdown":
        yield
        return
    with protecting_outputs({**refuse_losing({"--output": to.file}, ()), **beside(to.file, ".svg")}):
        yield


def show_review(review: Review, to: OutputFlags) -> int:
    """Print or write a review; its warnings go to stderr. Returns its exit code, 4 where there is no plan.

    Next to a Markdown file stand its pictures. A CSV file has the plans; a ZIP file has every table, and a README of them.
    """
    if to.form in {"table", "json", "csv"}:
        answer = review.answer
        if to.form == "table":
            answer = replace(answer, tables=answer.tables[1:])
        if to.form == "csv" and to.file is not None and to.file.suffix.lower() == ".zip":
            say_warnings(answer)
            write_whole(to.file, tables_zip(review))
            return answer.exit_code
        return show(answer, to)
    say_warnings(review.answer)
    if to.form == "html":
        text = review_html(review)
    else:
        pictures = _pictures(review, to.file)
        for path, drawing in pictures:
            write_whole(path, drawing)
        text = review_markdown(review, [path.name for path, _ in pictures])
    send(text, to.file)
    return review.answer.exit_code


def topics(review: Review) -> Iterator[tuple[str, str, Sequence[Mapping[str, Any]]]]:
    """Yield file, title and rows of every table of a page; in base units, with all digits."""
    yield "plans", "Plans, cheapest first", review.answer.csv_rows or review.answer.tables[0].rows
    for section in review.sections:
        for place, table in enumerate(section.tables):
            if section.title != WHY:
                own = f": {table.title}" if table.title not in ("", section.title) else ""
                title = f"{section.title}{own}"
                yield numbered(section.title, place), title, table.rows
    if review.sensitivity.what_if:
        title = "What if the traffic changes: the points of the slider"
        yield "what-if", title, what_if_rows(review.sensitivity)


def tables_zip(review: Review) -> bytes:
    """Return a ZIP of one CSV for each table, and a README that says what each one is; the same page gives the same bytes."""
    kept = [(f"{name}.csv", title, rows_csv(rows)) for name, title, rows in topics(review)]
    lines = [
        f"# {markdown_words(review.title)}: the tables of its review",
        markdown_paragraph(review.answer.headline),
        "Each column is in the base unit that its name states, with all digits: `_s` seconds, `_bytes` bytes, `_usd` dollars, `_fraction` a part of one.",
        "| file | table | rows |\n| --- | --- | ---: |\n"
        + "\n".join(
            f"| {name} | {markdown_words(title)} | {text.count(chr(10)) - 1} |" for name, title, text in kept
        ),
    ]
    files = [("README.md", "\n\n".join(lines) + "\n"), *((name, text) for name, _, text in kept)]
    packed = BytesIO()
    with ZipFile(packed, "w", ZIP_DEFLATED) as archive:
        for name, text in files:
            archive.writestr(ZipInfo(name, (1980, 1, 1, 0, 0, 0)), text, ZIP_DEFLATED)
    return packed.getvalue()


def _pictures(review: Review, file: Path | None) -> list[tuple[Path, str]]:
    """Return the pictures of a page in order, and the files next to it that they go to; none on stdout."""
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
