"""The largest multiple of a scenario's traffic that a limited fleet carries: the fleet search over loads."""

from dataclasses import dataclass, replace
from math import ceil, floor, inf, log2

from capplan.fleet.load.demand import demand_of
from capplan.fleet.plan import Plan
from capplan.fleet.search.cheapest import LayoutName, Search, Sized, Terms, layout_name, search_of
from capplan.fleet.search.layouts import ScreenedLayout
from capplan.fleet.search.load_scale import STEPS_PER_DOUBLING, last_that_holds, scale_rate
from capplan.fleet.search.recommended import Confirmed, confirmed, near_cheapest, recommended
from capplan.questions.fleet import AskedFleet
from capplan.questions.money.budget import class_part

DOUBLINGS = 14
"""Doublings from the lightest load that is tried to the bound of the closed form."""
FIRST_STRIDE = 8
"""Steps below that bound at which the search begins."""
MOST_STEPS_DOWN = 4
"""Steps of the load that a surer plan of a few GPUs more may cost."""
DIGITS = 3
"""Digits of a load that is tried, so that the one that is printed is the one that was searched."""


@dataclass(frozen=True, slots=True)
class Found:
    """The largest load within the limits of a fleet, and what carries it."""

    asked: AskedFleet
    terms: Terms
    ratio: float
    """Multiple of the stated traffic."""
    plan: Plan
    chosen: Sized
    above: float
    """Multiple of the stated traffic that was tried next, and is more than the fleet carries."""


def at_load(asked: AskedFleet, ratio: float) -> AskedFleet:
    """Return a question at a multiple of its traffic, with whole users where it has any."""
    classes = tuple(class_part(item, ratio) for item in asked.question.demand.classes)
    scenario = replace(asked.scenario, classes=classes)
    return replace(asked, scenario=scenario, question=replace(asked.question, demand=demand_of(scenario)))


class LoadSearch:
    """The searches of one question at multiples of its traffic; they share what does not depend on the load."""

    def __init__(self, asked: AskedFleet, terms: Terms, *, as_bought: bool = False) -> None:
        """Take the question and the limits of the fleet.

        With `as_bought` the number of GPUs is no limit of the scenario: a load is carried if a fleet without that limit takes no more
        of them, so that a cheaper fleet of more GPUs is not passed over.
        """
        self.asked = asked
        self.terms = terms
        self.as_bought = as_bought
        self._known: dict[float, Confirmed | None] = {}
        self._last: ScreenedLayout | None = None
        """Layout that carried the load before, which is tried first."""

    def of(self, asked: AskedFleet, terms: Terms) -> "LoadSearch":
        """Return the searches of another question, or of other limits."""
        return LoadSearch(asked, terms, as_bought=self.as_bought)

    def trials(self, ratio: float, *, limited: bool = True) -> Search:
        """Return the search at a multiple of the traffic, with or without the limit on GPUs."""
        question = at_load(self.asked, ratio).question
        terms = self.terms if limited else replace(self.terms, max_devices=None)
        return search_of(question, terms, self.asked.cache)

    def served(self, ratio: float) -> Confirmed | None:
        """Return a fleet that carries a multiple of the traffic within the limits; None if none does."""
        if ratio not in self._known:
            fleet = self._within(self.trials(ratio))
            self._known[ratio] = self._bought(fleet, ratio) if fleet and self.as_bought else fleet
            if (found := self._known[ratio]) is not None:
                self._last = found.sized.trial.candidate
        return self._known[ratio]

    def _within(self, trials: Search) -> Confirmed | None:
        """Return a fleet that carries the traffic of a search within its limits; the one that carried another load is tried first."""
        sure, last = trials.question.slo.confidence, _named(self._last)
        mine = [item for item in trials.candidates if _named(item) == last]
        again = trials.among(mine).cheapest(sure) if mine else None
        fleet = None if again is None else confirmed(again, trials.terms)
        if fleet is not None:
            return fleet
        first = trials.cheapest(sure)
        if first is None:
            return None
        return confirmed(first, trials.terms) or next(iter(near_cheapest(trials, None)), None)

    def _bought(self, fleet: Confirmed, ratio: float) -> Confirmed | None:
        """Return the cheapest of a fleet and those of more GPUs; None if that takes more GPUs than the limit."""
        usd = fleet.usd_per_hour
        if usd is None:
            return fleet
        trials = self.trials(ratio, limited=False)
        cheaper = trials.cheapest(trials.question.slo.confidence, under=usd * (1.0 - 1e-9))
        found = None if cheaper is None else confirmed(cheaper, trials.terms)
        if found is None or (found.usd_per_hour or inf) >= usd:
            return fleet
        return found if found.gpus <= (self.terms.max_devices or inf) else None

    @property
    def bound(self) -> float:
        """Return an upper bound on the multiple of the traffic that any layout carries; infinite without a limit on the fleet, 0 without a layout."""
        sure, left = self.asked.question.slo.confidence, 1.0 - self.terms.headroom_fraction
        shares = (
            (self.terms.busy_allowed(item.layout), min(item.share_bound * left, item.sure_share_bounds[sure]))
            for item in search_of(self.asked.question, self.terms, self.asked.cache).candidates
        )
        return max((busy * share for busy, share in shares if share > 0.0), default=0.0)

    def largest(self, most: float = inf, carried: float | None = None) -> Found | None:
        """Return the largest multiple of the traffic that the fleet carries, below `most`; None if it carries none.

        Of a multiple that is known to be `carried` the search goes up.
        """
        bound = min(self.bound, most)
        if not bound:
            return None
        top = ceil(STEPS_PER_DOUBLING * log2(bound)) + (1 if bound < most else 0)
        least, first, stride = top - DOUBLINGS * STEPS_PER_DOUBLING, top - FIRST_STRIDE, FIRST_STRIDE
        if carried is not None:
            least, stride = floor(STEPS_PER_DOUBLING * log2(carried) + 0.5), 1
            top, first = max(top, least + 1), least + 2 * stride

        def holds(step: int) -> bool:
            return self.served(self.ratio_at(step)) is not None

        low, high = last_that_holds(holds, least, top, min(first, top - 1), stride, growth=2)
        if (found := self.served(self.ratio_at(low))) is None:
            return None
        if carried is not None:
            return Found(
                self.asked, self.terms, self.ratio_at(low), found.plan, found.sized, self.ratio_at(high)
            )
        for step in range(low, max(low - MOST_STEPS_DOWN, least), -1):
            plan = self._recommended(self.ratio_at(step))
            if plan is not None and plan.gpus <= (self.terms.max_devices or inf):
                low, found = step, self.served(self.ratio_at(step)) or found
                break
        else:
            plan = found.plan
        return Found(
            self.asked, self.terms, self.ratio_at(low), plan or found.plan, found.sized, self.ratio_at(high)
        )

    def _recommended(self, ratio: float) -> Plan | None:
        """Return the plan that `fleet` recommends at a multiple of the traffic."""
        trials = self.trials(ratio, limited=not self.as_bought)
        fleets = near_cheapest(trials, _named(self._last))
        return recommended(fleets, trials.terms)[0].plan if fleets else None

    def ratio_at(self, step: int) -> float:
        """Return the multiple of the traffic at a step of the scale: of a rate with few digits, or of whole users."""
        demand, ratio = self.asked.question.demand, scale_rate(step)
        if demand.users:
            return max(round(ratio * demand.users), 1) / demand.users
        rate = sum(demand.rates_of_classes(0.0))
        return float(f"{ratio * rate:.{DIGITS}g}") / rate

    def lightest(self) -> Sized | None:
        """Return the cheapest fleet for a load near none; None if no number of GPUs meets the targets."""
        trials = self.trials(self.ratio_at(-DOUBLINGS * STEPS_PER_DOUBLING))
        return trials.cheapest(trials.question.slo.confidence)


def _named(candidate: ScreenedLayout | None) -> LayoutName | None:
    return None if candidate is None else layout_name(candidate.layout)
