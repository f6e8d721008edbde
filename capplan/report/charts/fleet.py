"""The charts of a fleet: what certainty costs, and the load over time against the replicas."""

from capplan.fleet.plan import FleetAnswer
from capplan.questions.outlook import Outlook
from capplan.report.charts.certainty import certainty_chart
from capplan.report.charts.load import load_chart
from capplan.report.charts.records import Chart


def fleet_charts(answer: FleetAnswer, outlook: Outlook) -> list[Chart]:
    """Return what certainty costs, and load against fleet where the load has a curve; none where there is no plan."""
    certainty = certainty_chart(answer.certainty)
    charts: list[Chart] = [certainty] if certainty else []
    return [*charts, load_chart(outlook.over_time)] if outlook.over_time else charts
