"""`capplan check`: whether a plan still holds."""

from typing import Annotated

from capplan.cli import options as o
from capplan.cli.options import grouped, whole

PriceAge = Annotated[
    int,
    whole("--max-price-age", of="days", metavar="DAYS", says="A price older than this no longer holds."),
]


@grouped
def command(
    *,
    scenario: o.ScenarioOfPlan = None,
    plan_file: o.NeededPlan,
    max_price_age: PriceAge = 365,
    settings: o.Settings = None,
    offline: o.Offline = False,
    to: o.Output,
) -> int:
    """Show whether a plan still holds: SLO targets, attainment, capacity, budget and the dates of its prices; exits 4 if not."""
    from capplan.questions.fleet import asked_fleet
    from capplan.questions.plans.plan_check import check_plan, current_day
    from capplan.questions.plans.plan_file import scenario_beside
    from capplan.readers.plan_file import read_plan_file
    from capplan.report.answers.plan_files import check_answer
    from capplan.report.show import show

    file = read_plan_file(plan_file)
    asked = asked_fleet(scenario_beside(scenario, file, settings or ()), offline=offline)
    return show(check_answer(asked, file, check_plan(asked, file, current_day(), max_price_age)), to)
