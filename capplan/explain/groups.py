"""Quantities of a plan of several groups, explained: separate pools for prefill and decode, or a mix, whose groups are plans of their own part of the requests."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from capplan.errors import unknown
from capplan.explain.money import explained_outside
from capplan.explain.subject import (
    Explained,
    Input,
    PlanSubject,
    Subject,
    explained,
    in_words,
    input_of,
    within,
)
from capplan.explain.table import Stated, arguments, end_of_whole, tabled
from capplan.fleet.plan import paid_by_the_gpu
from capplan.money.commitments import named_offers
from capplan.money.price import SIDES
from capplan.questions.plans.facts import phase_facts
from capplan.report.quantities import (
    ACCURACY,
    METHODOLOGY,
    MONEY,
    OF_SEVERAL_GROUPS,
    PHASES,
    SIMULATION,
)


@dataclass
class GroupsSubject(PlanSubject, ABC):
    """A plan of several groups whose quantities are asked for."""

    def explained(self, quantity: str) -> Explained:
        """Return a quantity explained; InputError for one that the plan does not have."""
        place, _, key = quantity.partition(".")
        group = re.fullmatch(r"groups\[(\d+)\]", place)
        if group is not None and int(group[1]) < len(self.plan.groups):
            return self._of_group(int(group[1]), key)
        self._check(quantity)
        if quantity == "usd_per_month" or place in ("order", "survival", "transfer"):
            return tabled(self, quantity, self.explained)
        row = OF_SEVERAL_GROUPS.get(quantity)
        if row is not None:
            return tabled(self, quantity, self.explained, {"mean_total_tokens_per_s": Stated(None)}, row)
        if place == "outside":
            return explained_outside(self, quantity)
        if place == "offers":
            return self._at_an_offer(quantity)
        return self._simulated(quantity)

    def _check(self, quantity: str) -> None:
        if quantity not in self.numbers:
            raise unknown("quantity", quantity, self.numbers, hint="all of them: capplan explain PLAN")

    @abstractmethod
    def _of_group(self, at: int, key: str) -> Explained:
        """Explain a number of one group."""

    @abstractmethod
    def _simulated(self, quantity: str) -> Explained:
        """Explain what simulations say."""

    def _sum(self, term: str) -> str:
        return " + ".join(term.format(at) for at in range(len(self.plan.groups)))

    def _at_an_offer(self, quantity: str) -> Explained:
        """Explain what the groups cost at the lowest, the likely or the highest offers of their devices."""
        side = next(side for side in SIDES if side == quantity.split(".")[1])
        inputs = []
        for at, group in enumerate(self.plan.groups):
            assert group.quote is not None
            usd, records = group.quote.at(side)
            who = named_offers(records) or "scenario: prices.per_gpu_hour"
            inputs.append(input_of(f"p_{at}", "usd_per_gpu_hour", usd, "spec", f"{who}, with electricity"))
            inputs.append(self.number(f"g_{at}", f"groups[{at}].gpus"))
        formula = f"({self._sum('p_{0} g_{0}')}) times the hours of the period"
        if not paid_by_the_gpu([self.plan]):
            formula = "sum over the groups of their machines at these offers, times the hours of the period"
        return explained(quantity, self.numbers[quantity], formula, inputs, MONEY)


_SIMULATED = "over all N requests of the peak, simulated through both pools and the link between them"
_COUNTED = {
    "busy_fraction": "time in steps over time in service",
    "concurrency_per_replica": "mean requests at a replica",
}
_PLANNED = "planned_request_rate_limit_per_replica"
_PLANNED_FORMULA = "largest load of both pools, over the replicas, at which the targets hold with headroom as predicted and with the confidence"


@dataclass
class PoolsSubject(GroupsSubject):
    """A plan with separate pools whose quantities are asked for."""

    def _of_group(self, at: int, key: str) -> Explained:
        path, pool = f"groups[{at}]", self.plan.groups[at]
        quantity = f"{path}.{key}"
        self._check(quantity)
        value = self.numbers[quantity]
        if key == "usd_per_gpu_hour":
            label = "spec" if pool.quote and pool.quote.records else "config"
            price = input_of("p", key, value, label, pool.quote.basis if pool.quote else "unknown")
            return explained(quantity, value, "p", (price,), MONEY)
        if key == "usd_per_hour" and not paid_by_the_gpu([self.plan]):
            source = "explain order.usd_per_hour, the machines of this pool"
            machines = input_of("h", key, value, "derived", source)
            return explained(quantity, value, "h", (machines,), MONEY)
        if key in ("gpus", "usd_per_hour"):
            energy = pool.price.energy_usd_per_hour if pool.price else None
            return tabled(self, quantity, self.explained, {"energy_usd_per_gpu_hour": Stated(energy or 0.0)})
        if key == _PLANNED:
            return self._simulated(quantity, _PLANNED_FORMULA)
        if key == "replicas":
            return self._replicas(at, quantity)
        if key in _COUNTED:
            return self._simulated(quantity, f"{_COUNTED[key]}, {_SIMULATED}")
        layout = f"the pools {pool.layout.in_words()}, the cheapest pair that meets the targets"
        formula = "of the pair of layouts and counts that meets the targets at the least cost"
        chosen = input_of("", quantity, value, "derived", layout)
        return explained(quantity, value, formula, (chosen,), PHASES)

    def _replicas(self, at: int, quantity: str) -> Explained:
        """Explain the size of a pool: what its phase takes by itself, from time in steps to headroom, slow replicas and spares."""
        pool, facts = self.plan.groups[at], phase_facts(self.asked, self.plan, at)
        assert pool.busy_fraction is not None
        busy, simulated = pool.busy_replicas * pool.busy_fraction, "this phase by itself, simulated"
        rows: list[tuple[str, str, float | None, str]] = [
            ("b", "time in steps", busy, f"explain groups[{at}].busy_fraction"),
            ("n", "as predicted, at the peak", facts.at_peak, simulated),
            ("h", f"with headroom of {pool.headroom_fraction:.0%}", facts.with_headroom, simulated),
            ("c", f"with steps {facts.slowness:.2f} times as long", facts.slower, simulated),
            ("s", "spare replicas", pool.spare_replicas, "scenario: fleet.survive"),
        ]
        inputs = [
            Input(symbol, words, value, "-", "derived", source) for symbol, words, value, source in rows
        ]
        if pool.role != "prefill":  # a decode replica is in a step whenever it has a request, however few
            del inputs[0]
        formula = (
            "max(h, c) + s, or as the cheapest pair takes with all requests of the peak and the other pool"
        )
        return explained(quantity, self.numbers[quantity], formula, inputs, PHASES)

    def _simulated(self, quantity: str, formula: str = "") -> Explained:
        """Explain what the simulation of both pools says."""
        value = self.numbers[quantity]
        if quantity == "draft_tokens":
            layout = self.plan.groups[1].layout.in_words()
            source = f"scenario: speculation.draft_tokens, or the best number for the decode replicas {layout} at their usual batch"
            drafts = input_of("d", quantity, value, "derived", source)
            return explained(quantity, value, "d", (drafts,), PHASES)
        metric, _, statistic = quantity.partition(".")
        words = in_words(statistic) if statistic else metric
        count, page = self.plan.simulated_requests, PHASES
        inputs = [input_of("N", "simulated_requests", count, "derived", "the requests of the peak")]
        for at, group in enumerate(self.plan.groups):
            letter, source = group.role[0].upper(), f"explain groups[{at}].replicas, without spares"
            inputs.append(input_of(letter, f"{group.role} replicas", group.busy_replicas, "derived", source))
        inputs += arguments(self, "link", "l")
        if statistic in ("low", "high") and metric == "e2e_s":
            return end_of_whole(self, statistic)
        if statistic in ("low", "high"):
            formula, page = "mean times an end of the 80% interval of measured over predicted", ACCURACY
        elif quantity == "slo_met_probability" or metric == "target_probabilities":
            bears = "the target bears" if statistic else "the targets bear"
            formula = f"probability that both pools are at most as much slower than predicted as {bears}"
            page = ACCURACY
        return explained(quantity, value, formula or f"{words} {_SIMULATED}", inputs, page, label=self.label)


_LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
_MEANS = ("mean", "low", "high")
"""Statistics that are weighted by the requests of the groups."""
_PERCENTILE = "percentile over the requests of all groups together, each group as often as its rate"


@dataclass
class MixSubject(GroupsSubject):
    """A mix whose quantities are asked for."""

    groups: tuple[Subject, ...]
    """Each group as a plan of its own, with the requests that the router sends to it."""
    explained_of: Callable[[Subject, str], Explained]
    """Explanation of a quantity of such a plan."""

    def _simulated(self, quantity: str) -> Explained:
        """Explain what the simulations of the groups say together."""
        place, _, key = quantity.partition(".")
        value = self.numbers[quantity]
        if place == "e2e_s" and key in ("low", "high"):
            return end_of_whole(self, key)
        if place in _LATENCIES and key in _MEANS:
            return self._weighted(quantity, value, quantity)
        if place in _LATENCIES:
            return self._together(quantity, _PERCENTILE, quantity, SIMULATION)
        if place.startswith("class_latencies"):
            return self._together(
                quantity, "over the requests of the class, whichever group serves them", "", SIMULATION
            )
        if "hit_fraction" in place:
            source = "explain groups[0].class_prefix_hit_fractions[0], of each group and class"
            hits = Input("h", "class_prefix_hit_fractions", None, "-", "derived", source)
            formula = "sum(r i h) / sum(r i), over groups and classes of r req/s and prompts of i tokens"
            return explained(quantity, value, formula, (hits,), SIMULATION, label=self.label)
        if place.startswith("class_e2e_mean_s"):
            return self._of_class(quantity, value, int(place.partition("[")[2].removesuffix("]")))
        if quantity == "slo_met_probability" or place == "target_probabilities":
            largest = "largest part of the cases in which the requests of all groups together meet the targets, each group as slow as it is then at most"
            return self._together(quantity, largest, "", ACCURACY)
        hourly = self.number("h", "usd_per_hour")
        source = "scenario: traffic, over the hours that are paid for"
        rate = Input("r", "tokens_per_s", None, "token/s", "config", source)
        formula = "10^6 h / (3600 r), of a job or of requests h times its hours over them"
        return explained(quantity, value, formula, (hourly, rate), MONEY, label=self.label)

    def _of_group(self, at: int, key: str) -> Explained:
        """Explain a number of a group: of the plan that it is by itself, or of the rule of the router."""
        path, subject = f"groups[{at}]", self.groups[at]
        requests = self.plan.groups[at].requests
        if key == "requests.request_fraction":
            rates = [self._rate(n) for n in range(len(self.groups))]
            every = " + ".join(rate.symbol for rate in rates)
            value = self.numbers[f"{path}.{key}"]
            return explained(f"{path}.{key}", value, f"r_{at} / ({every})", rates, METHODOLOGY)
        if key.startswith("requests."):
            rule = input_of("", key, self.numbers.get(f"{path}.{key}"), "derived", f"the cheapest division of the requests: {requests.rule if requests else ''}")  # fmt: skip
            return explained(f"{path}.{key}", rule.value, "the rule of the router", (rule,), METHODOLOGY)
        return within(path, self.explained_of(subject, key), subject.numbers)

    def _rate(self, at: int) -> Input:
        """Return the request rate of a group."""
        group, source = self.plan.groups[at], f"explain groups[{at}].request_rate_per_replica"
        rate = group.request_rate_per_replica * group.busy_replicas
        name = f"groups[{at}] request_rate"
        return input_of(f"r_{at}", name, rate, "derived", f"{source}, of all busy replicas")

    def _together(self, quantity: str, formula: str, key: str, page: str) -> Explained:
        """Explain what the requests of all groups see together, by what those of each group see."""
        inputs: list[Input] = []
        for at, group in enumerate(self.plan.groups):
            if key:
                seen = self.numbers[f"groups[{at}].{key}"]
                inputs.append(input_of(f"t_{at}", key, seen, group.label, f"explain groups[{at}].{key}"))
            inputs.append(self._rate(at))
        return explained(quantity, self.numbers[quantity], formula, inputs, page, label=self.label)

    def _weighted(self, quantity: str, value: float, key: str) -> Explained:
        """Explain a mean over groups, weighted by their requests."""
        steps = [self._of_group(at, key) for at in range(len(self.groups))]
        inputs = [item for at, step in enumerate(steps) for item in (step.input(f"t_{at}"), self._rate(at))]
        formula = f"({self._sum('r_{0} t_{0}')}) / ({self._sum('r_{0}')})"
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
