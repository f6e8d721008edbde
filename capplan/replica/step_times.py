"""Step times of plans by what they depend on, which searches of similar questions share."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from capplan.replica.plans import LabelledRates, Plans, knots_of, plans_tables
from capplan.replica.spec import ReplicaSpec
from capplan.replica.tables import Knots, stacked_tables, table_of_plan
from capplan.serving.step_table import StepTable


@dataclass(frozen=True, slots=True)
class PlanTimes:
    """Step times of one plan, and the kernel rates behind them."""

    table: StepTable
    rates: LabelledRates


class StepTimes:
    """Step times of plans, computed once at each knots; those of several plans at equal knots are computed as one array.

    A plan has the same times whichever plans are computed with it, to the last digit.
    """

    def __init__(self, key: Callable[[ReplicaSpec], Hashable] | None = None) -> None:
        """Start empty; the key of a specification is equal for plans with equal step times. Without keys nothing is shared."""
        self._key = key
        self._known: dict[tuple[Hashable, Knots], PlanTimes] = {}

    def together(self, plans: Plans) -> tuple[StepTable, list[LabelledRates]]:
        """Return the step times of plans at the same knots for all, as arrays of plans, and the rates of each."""
        if any(_by_itself(spec) for spec in plans.specs):
            steps = plans_tables(plans)
            return steps.table, list(steps.rates)
        each = self._at(plans, knots_of(plans))
        return stacked_tables([times.table for times in each]), [times.rates for times in each]

    def of_each(self, plans: Plans) -> list[PlanTimes]:
        """Return the step times of each plan at the knots that it has by itself."""
        groups: dict[tuple[Knots, int | None], list[int]] = {}
        for row, spec in enumerate(plans.specs):
            knots = knots_of(plans.selected([row]))
            groups.setdefault((knots, row if _by_itself(spec) else None), []).append(row)
        found: dict[int, PlanTimes] = {}
        for (knots, _), rows in groups.items():
            found.update(zip(rows, self._at(plans.selected(rows), knots), strict=True))
        return [found[row] for row in range(len(plans.specs))]

    def _at(self, plans: Plans, knots: Knots) -> Sequence[PlanTimes]:
        """Return the step times of each plan at some knots."""
        known = self._known if self._key else {}
        keys = [(self._key(spec) if self._key else row, knots) for row, spec in enumerate(plans.specs)]
        missing = [row for row, key in enumerate(keys) if key not in known]
        if missing:
            steps = plans_tables(plans.selected(missing), knots)
            for place, row in enumerate(missing):
                known[keys[row]] = PlanTimes(table_of_plan(steps.table, place), steps.rates[place])
        return [known[key] for key in keys]


def _by_itself(spec: ReplicaSpec) -> bool:
    """Return whether step times are those of cards with layers in turn, which are computed plan by plan."""
    return bool(spec.device.cards) or spec.efficiency.layer_split is not None
