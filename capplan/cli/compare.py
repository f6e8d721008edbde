"""`capplan compare`: a fleet of one's own against hosted APIs."""

from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.options import grouped

Api = Annotated[
    list[str] | None,
    typer.Option(
        "--api",
        metavar="PROVIDER/MODEL",
        help="Hosted API, such as openai/gpt-5; repeatable; default: all listed ones that serve the scenario's model.",
    ),
]


@grouped
def command(
    *,
    scenario: o.ScenarioOfPlan = None,
    api: Api = None,
    plan_file: o.PlanFile = None,
    settings: o.Settings = None,
    picture: o.Picture = None,
    offline: o.Offline = False,
    to: o.Output,
) -> int:
    """Compare a month of a scenario's fleet with hosted APIs, prompt caching included, and find the break-even traffic."""
    from capplan.questions.fleet import fleet_for
    from capplan.questions.money.comparison import asked_comparison, asked_prices
    from capplan.questions.plans.plan_check import current_day
    from capplan.questions.plans.plan_file import asked_of_plan
    from capplan.report.answers.compare import compare_answer
    from capplan.report.charts.static import cost_picture
    from capplan.report.show import row_progress, show, shown_anyway

    asked, answer = asked_of_plan(scenario, plan_file, settings or (), offline=offline)
    prices = asked_prices(api or (), asked)
    with row_progress("plans") as progress:
        answer = answer or fleet_for(asked, progress)
    compared = asked_comparison(asked, answer, prices, current_day())
    shown = compare_answer(compared, asked.scenario.name, asked.scenario.file.currency)
    if picture:
        with shown_anyway(shown, to):
            cost_picture(picture, compared.comparison, asked.scenario.name)
    return show(shown, to)
