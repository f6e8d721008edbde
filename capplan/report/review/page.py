"""The planning review of a scenario: every section put together, and the same as an answer for JSON, CSV and terminal."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from capplan.assumption import Assumption
from capplan.report.answer import Answer, Table
from capplan.report.answers.fleet import assumed_kernels, fleet_answer
from capplan.report.review import evidence, plans
from capplan.report.review.cost import cost_section
from capplan.report.review.decision import (
    choices_section,
    decision_section,
    decision_sentence,
    insensible_section,
)
from capplan.report.review.findings import Findings, Review, Section
from capplan.report.review.outlook import outlook_section


def review_of(given: Findings) -> Review:
    """Return the page: the decision first, then its evidence, then its assumptions and sources."""
    sections: list[Section] = [decision_section(given)]
    if given.chosen is not None:
        sections.append(choices_section(given))
    sections += [insensible_section(given), plans.workload_section(given)]
    if given.chosen is not None:
        sections += [
            plans.plans_section(given),
            plans.sizing_section(given),
            cost_section(given),
            outlook_section(given),
            evidence.memory_section(given),
            evidence.latency_section(given),
        ]
    sections += [
        evidence.rejections_section(given),
        evidence.assumptions_section(given, assumptions_of(given)),
        evidence.sources_section(given),
        evidence.command_section(given),
    ]
    decision = decision_sentence(given)
    kept = tuple(section for section in sections if section != Section(section.title))
    return Review(
        given.asked.scenario.name, decision, kept, _answer(given, decision, kept, plans.plan_rows(given))
    )


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
    return (*given.asked.assumptions, *items, *kernels, *given.outlook.assumptions)


def _answer(
    given: Findings, decision: str, sections: Sequence[Section], rows: list[dict[str, Any]]
) -> Answer:
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
        "decision": decision,
        "margins": [
            [
                {
                    "target": m.target.key,
                    "limit_s": m.target.limit_s,
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
        "sections": [
            {"title": section.title, "tables": [list(table.rows) for table in section.tables]}
            for section in sections
        ],
    }
    return Answer(
        command="report",
        result=result,
        tables=(csv, *tables),
        headline=decision,
        closing=fleet.closing,
        assumptions=assumptions_of(given),
        warnings=fleet.warnings,
        exit_code=fleet.exit_code,
    )


def _titled(table: Table, title: str) -> Table:
    return replace(table, title=title)
