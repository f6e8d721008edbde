"""The planning review of a scenario as data: a decision, and sections of text, tables and pictures.

Every writer (Markdown, HTML, terminal, CSV, JSON) prints this one structure.
"""

import re
from dataclasses import dataclass, field, replace

from capplan.fleet.plan import FleetAnswer, FleetPlan
from capplan.fleet.review import PlanDetail, Sizing, TargetMargin, plan_detail, sizing_of, target_margins
from capplan.hardware.device import Source
from capplan.questions.fleet import AskedFleet
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
    """Of every plan."""
    detail: PlanDetail | None
    """Of the chosen plan; None where there is none."""
    sizing: Sizing | None
    outlook: Outlook = field(default_factory=Outlook)
    """Commitments, growth and energy of the plans, and their replicas over time."""
    sensitivity: Sensitivity = field(default_factory=Sensitivity)
    written: Written = field(default_factory=Written)

    @property
    def chosen(self) -> FleetPlan | None:
        """The plan to decide on."""
        return self.answer.chosen


def findings(
    asked: AskedFleet, answer: FleetAnswer, command: str, source: Source, written: Written | None = None
) -> Findings:
    """Return everything that a review needs to know about the plans of a search."""
    question, chosen = asked.question, answer.chosen
    if chosen is not None:
        others = [plan for plan in answer.plans if plan != chosen]
        answer = replace(answer, plans=(chosen, *others))
    return Findings(
        asked,
        answer,
        command,
        source,
        tuple(target_margins(plan, question) for plan in answer.plans),
        plan_detail(chosen, question) if chosen else None,
        sizing_of(chosen, asked.scenario.fleet.headroom_fraction) if chosen else None,
        outlook_of(asked, answer),
        sensitivity_of(asked, answer),
        written or Written(),
    )


def anchor(title: str) -> str:
    """Return a title as an id and as a part of a file's name.

    Examples
    --------
    >>> anchor("Memory of one b200 (GB)")
    'memory-of-one-b200-gb'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
