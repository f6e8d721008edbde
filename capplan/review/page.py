"""The planning review of a scenario: every section put together, and the same as an answer for JSON, CSV and terminal."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from capplan import __version__
from capplan.assumption import Assumption
from capplan.report.answer import Answer, Table
from capplan.report.answers.fleet import assumed_kernels, fleet_answer
from capplan.report.answers.fleet_outlook import over_time_assumptions, over_time_parts
from capplan.review import decision, evidence, levers, plans
from capplan.review.findings import Findings, Review, Section
from capplan.review.levers import outlook_section
from capplan.review.plans import cost_section, total_section


def review_of(given: Findings) -> Review:
    """Return the page: the decision first, then why, what moves it and what may go wrong, then its evidence and sources."""
    said = decision.decision_sentence(given)
    first = _kept(
        [
            decision.decision_section(given),
            decision.verdicts_section(given),
            decision.certainty_section(given),
            decision.choices_section(given),
        ]
    )
    kept = (*first, *_kept([*_middle(given), *_appendix(given)]))
    return Review(
        given.asked.scenario.name,
        said,
        kept,
        _answer(given, said, kept, plans.plan_rows(given)),
        byline(given),
        given.sensitivity,
        len(first),
    )


def _kept(sections: Sequence[Section]) -> tuple[Section, ...]:
    """Return the sections that have something to say."""
    return tuple(section for section in sections if section != Section(section.title))


def _middle(given: Findings) -> list[Section]:
    sections = [evidence.workload_section(given), evidence.over_time_section(given)]
    if given.chosen is not None:
        sections.append(plans.plans_section(given))
    sections += [plans.uneconomical_section(given), evidence.rejections_section(given)]
    sections += [
        levers.moves_section(given),
        levers.traffic_section(given),
        levers.risks_section(given),
        levers.levers_section(given),
    ]
    if given.chosen is None:
        return sections
    return [
        *sections,
        plans.sizing_section(given),
        cost_section(given),
        total_section(given),
        outlook_section(given),
    ]


def _appendix(given: Findings) -> list[Section]:
    sections = []
    if given.chosen is not None:
        sections = [
            *(evidence.memory_section(given, detail) for detail in given.details),
            *map(evidence.roofline_section, given.details),
            *(evidence.latency_section(given, detail) for detail in given.details),
        ]
    return [
        *sections,
        evidence.assumptions_section(given, assumptions_of(given)),
        evidence.sources_section(given),
        evidence.command_section(given),
    ]


def byline(given: Findings) -> str:
    """Return versions, dates and author of a page: of its inputs and its command line, never of the clock."""
    days = [
        record.date
        for price in given.asked.prices.values()
        if price
        for record in price.records
        if record.date
    ]
    parts = [f"capplan {__version__}", *([f"prices as of {max(days)}"] if days else [])]
    written = given.written
    parts += [written.date] if written.date else []
    return " · ".join([*parts, *([written.author] if written.author else [])])


def assumptions_of(given: Findings) -> tuple[Assumption, ...]:
    """Return the assumptions of the question and those that the chosen plan adds."""
    items = [
        Assumption(
            "the latency breakdown shows one prompt and one decode step of the mean lengths",
            "capplan estimate with other lengths",
        )
    ]
    if given.chosen is None:
        return given.asked.assumptions
    kernels = assumed_kernels((given.chosen,), given.asked.question)
    over_time = next(iter(over_time_parts(given.outlook).values()), None)
    curve = over_time_assumptions(over_time) if over_time else ()
    return (*given.asked.assumptions, *items, *kernels, *curve, *given.outlook.assumptions)


def _answer(given: Findings, said: str, sections: Sequence[Section], rows: list[dict[str, Any]]) -> Answer:
    fleet = fleet_answer(given.asked, given.answer, given.outlook)
    tables = [
        table if len(section.tables) > 1 and table.title else _titled(table, section.title)
        for section in sections
        for table in section.tables
        if section.title != "Assumptions"
    ]
    csv = Table(rows) if rows else fleet.tables[0]
    result = {
        **fleet.result,
        "decision": said,
        "margins": [
            [
                {
                    "target": m.target.key,
                    "limit_s": m.limit_s,
                    "predicted_s": m.predicted_s,
                    "low_s": m.low_s,
                    "high_s": m.high_s,
                    "margin_fraction": m.margin_fraction,
                    "met_probability": m.met_probability,
                }
                for m in margins
            ]
            for margins in given.margins
        ],
        "author": given.written.author,
        "date": given.written.date,
        "what_if": levers.what_if_rows(given.sensitivity),
        "sections": [
            {"title": section.title, "tables": [list(table.rows) for table in section.tables]}
            for section in sections
        ],
    }
    return Answer(
        command="report",
        result=result,
        tables=(csv, *tables),
        headline=said,
        closing=fleet.closing,
        assumptions=assumptions_of(given),
        warnings=fleet.warnings,
        exit_code=fleet.exit_code,
    )


def _titled(table: Table, title: str) -> Table:
    return replace(table, title=title)
