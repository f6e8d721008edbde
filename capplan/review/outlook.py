"""What follows from the chosen plan, in a review: commitments, the months to come, energy."""

from capplan.report.answers.commitments import commitments_closing, commitments_tables
from capplan.report.answers.currency import currency_texts, paid_usd
from capplan.report.answers.energy import energy_tables
from capplan.report.answers.growth import growth_closing, growth_tables
from capplan.review.findings import Findings, Section


def outlook_section(given: Findings) -> Section:
    """Return the cheapest mix of commitments, the fleet of each month and the energy, where the scenario asks for them."""
    scenario, outlook = given.asked.scenario, given.outlook
    return Section(
        "Commitments, growth and energy",
        tables=(
            *commitments_tables(outlook.mixes),
            *growth_tables(outlook.growth),
            *energy_tables(outlook.energy),
        ),
        lines=(
            *commitments_closing(outlook.mixes),
            *currency_texts(scenario.currency, paid_usd(given.answer, outlook)),
            *growth_closing(outlook.growth, scenario),
        ),
    )
