"""The planning review of a scenario as data: a decision, and sections of text, tables and pictures.

Every writer (Markdown, HTML, terminal, CSV, JSON) prints this one structure.
"""

from dataclasses import dataclass, field, replace

from capplan.fleet.plan import FleetAnswer, FleetPlan
from capplan.fleet.review import PlanDetail, Sizing, TargetMargin, plan_detail, sizing_of, target_margins
from capplan.hardware.device import Source
from capplan.questions.fleet import AskedFleet
from capplan.questions.outlook import Outlook, outlook_of
from capplan.report.answer import Answer, Table
from capplan.report.review.bars import Bars


@dataclass(frozen=True, slots=True)
class Section:
    """One heading with what stands under it, in this order."""

    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Bars, ...] = ()
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
    """Commitments, growth and energy of the plans; their replicas over time are shown by `capplan fleet`."""

    @property
    def chosen(self) -> FleetPlan | None:
        """The plan to decide on."""
        return self.answer.chosen


def findings(asked: AskedFleet, answer: FleetAnswer, command: str, source: Source) -> Findings:
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
        replace(outlook_of(asked, answer), over_time=None),
    )
