"""The planning review of a scenario as data: a decision, and sections of text, tables and pictures.

Every writer (Markdown, HTML, terminal, CSV, JSON) prints this one structure.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from capplan.fleet.plan import FleetAnswer, Plan
from capplan.fleet.question import Question
from capplan.fleet.review import PlanDetail, TargetMargin, plan_details, target_margins
from capplan.hardware.device import Source
from capplan.questions.fleet import AskedFleet, parts_of
from capplan.questions.outlook import Outlook, outlook_of
from capplan.questions.sensitivity import Sensitivity, sensitivity_of
from capplan.report.answer import Answer, Table
from capplan.report.charts.records import Chart


@dataclass(frozen=True, slots=True)
class Section:
    """One heading with what stands under it, in this order."""

    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Chart, ...] = ()
    lines: tuple[str, ...] = ()
    code: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Review:
    """A whole page."""

    title: str
    decision: str
    sections: tuple[Section, ...]
    answer: Answer
    """The same for JSON, CSV and the terminal."""
    byline: str = ""
    """Versions, dates, author."""
    sensitivity: Sensitivity = field(default_factory=Sensitivity)
    """Points of the slider of a page."""
    first_screen: int = 0
    """Sections that a reader sees at once."""


@dataclass(frozen=True, slots=True)
class Written:
    """What people say about a page."""

    date: str | None = None
    """YYYY-MM-DD; never that of the clock, so that the same inputs give the same bytes."""
    author: str | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """What the sections are written from."""

    asked: AskedFleet
    answer: FleetAnswer
    command: str
    """As it was typed."""
    model_source: Source
    margins: tuple[tuple[TargetMargin, ...], ...]
    """Margins of every plan."""
    details: tuple[PlanDetail, ...] = ()
    """Details of the chosen plan, one for each group; empty where there is no plan."""
    outlook: Outlook = field(default_factory=Outlook)
    """Commitments, growth and energy of the plans, and their replicas over time."""
    sensitivity: Sensitivity = field(default_factory=Sensitivity)
    written: Written = field(default_factory=Written)
    levers: Mapping[str, Any] | None = None
    """What every lever is worth, where that was asked for."""

    @property
    def chosen(self) -> Plan | None:
        """The plan to decide on."""
        return self.answer.chosen

    @property
    def plans(self) -> tuple[Plan, ...]:
        """All plans, the one to decide on first."""
        chosen = self.chosen
        others = [plan for plan in self.answer.plans if plan != chosen]
        return (*((chosen,) if chosen else ()), *others)


def findings(
    asked: AskedFleet,
    answer: FleetAnswer,
    command: str,
    source: Source,
    written: Written | None = None,
    *,
    levers: Mapping[str, Any] | None = None,
    others: bool = True,
) -> Findings:
    """Return everything that a review needs to know about the plans of a search.

    Parameters
    ----------
    asked : the question
    answer : its plans
    command : as it was typed
    source : of the model
    written : what people say about the page
    levers : what every lever is worth, where that was asked for
    others : whether the plans of other devices are taken at other traffic too

    Returns
    -------
    Findings
    """
    chosen = answer.chosen
    found = Findings(asked, answer, command, source, margins=())
    return replace(
        found,
        margins=tuple(target_margins(plan, asked.question) for plan in found.plans),
        details=plan_details(chosen, _questions(asked, chosen)) if chosen else (),
        outlook=outlook_of(asked, answer),
        sensitivity=sensitivity_of(asked, answer, others=others),
        written=written or Written(),
        levers=levers,
    )


def _questions(asked: AskedFleet, plan: Plan) -> list[Question]:
    """Return the question of the requests of each group of a plan: of a mix its part, else all."""
    if plan.is_mix:
        return [part.question for part, _ in parts_of(asked, plan)]
    return [asked.question] * len(plan.groups)


def anchor(title: str) -> str:
    """Return a title as an id and as a part of a file's name.

    Examples
    --------
    >>> anchor("Memory of one b200 (GB)")
    'memory-of-one-b200-gb'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
