"""Quantities of a mix explained: sums and bounds of its groups, each of which is a plan of its own part of the requests."""

from collections.abc import Callable
from dataclasses import dataclass

from capplan.errors import unknown
from capplan.explain.money import explained_outside, line_by_line
from capplan.explain.record import Explained, Input, explained, input_of, within
from capplan.explain.subject import PlanSubject, Subject
from capplan.explain.table import tabled
from capplan.fleet.price import HOURS_PER_MONTH, SIDES
from capplan.money.commitments import named_offers
from capplan.report.quantities import ACCURACY, METHODOLOGY, MONEY, SIMULATION

_SUMS = (
    "gpus",
    "replicas",
    "spare_replicas",
    "watts",
    "energy_usd_per_hour",
    "usd_per_hour",
    "usd_per_month",
)
"""Quantities of a mix that are the sum of those of its groups."""
_LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
_MEANS = ("mean", "low", "high")
"""Statistics that are weighted by the requests of the groups; the others are bounds."""
_BOUND = "the largest of the groups, which the percentile of all requests does not exceed"


@dataclass(slots=True)
class MixSubject(PlanSubject):
    """A mix whose quantities are asked for."""

    groups: tuple[Subject, ...]
    """Each group as a plan of its own, with the requests that the router sends to it."""
    explained_of: Callable[[Subject, str], Explained]
    """Explanation of a quantity of such a plan."""

    def explained(self, quantity: str) -> Explained:
        """Return a quantity explained; InputError for one that the plan does not have."""
        values = self.numbers
        place, _, key = quantity.partition(".")
        if (
            place.startswith("groups[")
            and (place.removeprefix("groups[").removesuffix("]")) in self._numbered
        ):
            return self._of_group(int(place.removeprefix("groups[").removesuffix("]")), key)
        if quantity not in values:
            raise unknown("quantity", quantity, values, hint="all of them: capplan explain PLAN")
        value = values[quantity]
        if quantity in ("order.gpus", "order.usd_per_hour"):
            return line_by_line(self, quantity)
        if place in ("order", "survival"):
            return tabled(self, quantity, self.explained)
        if quantity in _SUMS:
            symbols = [f"x_{at}" for at in range(len(self.groups))]
            return self._joined(quantity, value, quantity, symbols, " + ".join(symbols), MONEY)
        if place in _LATENCIES and key in _MEANS:
            return self._weighted(quantity, value, quantity, range(len(self.groups)))
        if place in _LATENCIES:
            symbols = [f"t_{at}" for at in range(len(self.groups))]
            return self._joined(quantity, value, quantity, symbols, f"max: {_BOUND}", SIMULATION)
        if place.startswith("class_e2e_mean_s"):
            return self._of_class(quantity, value, int(place.partition("[")[2].removesuffix("]")))
        if quantity == "slo_met_probability" or place == "target_probabilities":
            symbols = [f"P_{at}" for at in range(len(self.groups))]
            least = "min: one slowness decides about each group, and the targets hold with the least probability of them"
            return self._joined(quantity, value, quantity, symbols, least, ACCURACY)
        if place == "outside":
            return explained_outside(self, quantity)
        if place == "offers":
            return self._at_an_offer(quantity, value)
        hourly = input_of("h", "usd_per_hour", self.plan.usd_per_hour, "derived", "explain usd_per_hour")
        source = "scenario: traffic, over the hours that are paid for"
        rate = Input("r", "tokens_per_s", None, "token/s", "config", source)
        formula = "10^6 h / (3600 r), of a job or of requests h times its hours over them"
        return explained(quantity, value, formula, (hourly, rate), MONEY, label=self.label)

    @property
    def _numbered(self) -> tuple[str, ...]:
        return tuple(str(at) for at in range(len(self.groups)))

    def _of_group(self, at: int, key: str) -> Explained:
        """Explain a number of a group: of the plan that it is by itself, or of the rule of the router."""
        path, subject = f"groups[{at}]", self.groups[at]
        requests = self.plan.groups[at].requests
        if key == "requests.request_fraction":
            rates = [
                input_of(f"r_{n}", f"groups[{n}] request_rate", group.request_rate_per_replica * group.busy_replicas, "derived", f"explain groups[{n}].request_rate_per_replica, of all busy replicas")
                for n, group in enumerate(self.plan.groups)
            ]  # fmt: skip
            every = " + ".join(rate.symbol for rate in rates)
            value = self.numbers[f"{path}.{key}"]
            return explained(f"{path}.{key}", value, f"r_{at} / ({every})", rates, METHODOLOGY)
        if key.startswith("requests."):
            rule = input_of("", key, self.numbers.get(f"{path}.{key}"), "derived", f"the cheapest division of the requests: {requests.rule if requests else ''}")  # fmt: skip
            return explained(f"{path}.{key}", rule.value, "the rule of the router", (rule,), METHODOLOGY)
        return within(path, self.explained_of(subject, key), subject.numbers)

    def _joined(
        self, quantity: str, value: float, key: str, symbols: list[str], formula: str, page: str
    ) -> Explained:
        """Explain a number by that of each group, which are its steps."""
        steps = tuple(self._of_group(at, key) for at in range(len(self.groups)))
        inputs = tuple(
            input_of(symbol, step.quantity, step.value, step.label, f"explain groups[{at}].{key}")
            for at, (symbol, step) in enumerate(zip(symbols, steps, strict=True))
        )
        return explained(quantity, value, formula, inputs, page, steps=steps)

    def _weighted(self, quantity: str, value: float, key: str, places: range | tuple[int, ...]) -> Explained:
        """Explain a mean over groups, weighted by their requests."""
        inputs: list[Input] = []
        steps = []
        for at in places:
            group, step = self.plan.groups[at], self._of_group(at, key)
            steps.append(step)
            inputs += [
                input_of(f"t_{at}", step.quantity, step.value, step.label, f"explain groups[{at}].{key}"),
                input_of(f"r_{at}", f"groups[{at}] request_rate", group.request_rate_per_replica * group.busy_replicas, "derived", f"explain groups[{at}].request_rate_per_replica, of all busy replicas"),
            ]  # fmt: skip
        tops = " + ".join(f"r_{at} t_{at}" for at in places)
        formula = f"({tops}) / ({' + '.join(f'r_{at}' for at in places)})"
        return explained(quantity, value, formula, inputs, SIMULATION, steps=steps)

    def _of_class(self, quantity: str, value: float, index: int) -> Explained:
        """Explain the mean response time of a class by the groups that serve it."""
        name = self.asked.scenario.classes[index].name
        served = {
            at: group.requests.classes
            for at, group in enumerate(self.plan.groups)
            if group.requests and name in group.requests.classes
        }
        steps = [self._of_group(at, "e2e_s.mean") for at, classes in served.items() if len(classes) == 1]
        inputs = [input_of("", f"groups[{at}]", None, self.plan.groups[at].label, f"explain groups[{at}].e2e_s.mean; of several classes that of {name} in the same simulation") for at in served]  # fmt: skip
        formula = (
            "mean response time of the class at the groups that serve it, weighted by its requests there"
        )
        return explained(quantity, value, formula, inputs, SIMULATION, steps=steps)

    def _at_an_offer(self, quantity: str, value: float) -> Explained:
        """Explain what the groups cost at the lowest, the likely or the highest offers of their devices."""
        side = next(side for side in SIDES if side == quantity.split(".")[1])
        inputs = []
        for at, group in enumerate(self.plan.groups):
            assert group.price is not None
            usd, records = group.price.at(side)
            who = named_offers(records) or "scenario: prices.per_gpu_hour"
            inputs.append(input_of(f"p_{at}", "usd_per_gpu_hour", usd, "spec", f"{who}, with electricity"))
        hours = input_of("m", "hours", HOURS_PER_MONTH, "derived", "365 x 24 / 12 hours of an average month")
        formula = "sum over the groups of their machines at these offers, times the hours of the period"
        return explained(quantity, value, formula, (*inputs, hours), MONEY)
