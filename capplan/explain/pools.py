"""Quantities of a plan with separate pools for prefill and decode, explained."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from capplan.errors import unknown
from capplan.explain.money import explained_outside, line_by_line
from capplan.explain.record import Explained, Input, explained, input_of
from capplan.explain.subject import PlanSubject
from capplan.explain.table import arguments, tabled
from capplan.fleet.plan import Group, paid_by_the_gpu
from capplan.fleet.price import SIDES
from capplan.money.commitments import named_offers
from capplan.report.quantities import ACCURACY, METHODOLOGY, MONEY, PHASES, PLAN

_BOTH = ("prefill", "decode")
_SUMS = ("gpus", "replicas", "spare_replicas", "usd_per_hour")
"""Quantities of a plan that are the sum of those of its pools."""
_SIMULATED = "over all N requests of the peak, simulated through both pools and the link between them"
_PLANNED = "planned_request_rate_limit_per_replica"
_PLANNED_FORMULA = "largest load of both pools, over the replicas, at which the targets hold with headroom as predicted and with the confidence"


@dataclass(slots=True)
class PoolsSubject(PlanSubject):
    """A plan with separate pools whose quantities are asked for."""

    def explained(self, quantity: str) -> Explained:
        """Return a quantity explained; InputError for one that the plan does not have."""
        values = self.numbers
        if quantity not in values:
            raise unknown("quantity", quantity, values, hint="all of them: capplan explain PLAN")
        value = values[quantity]
        if quantity in ("order.gpus", "order.usd_per_hour"):
            return line_by_line(self, quantity)
        if quantity in _SUMS:
            inputs = {f"x_{name[0]}": f"groups[{at}].{quantity}" for at, name in enumerate(_BOTH)}
            return self._worked(quantity, "x_p + x_d", inputs, MONEY if "usd" in quantity else METHODOLOGY)
        if quantity == "usd_per_month" or quantity.partition(".")[0] in ("order", "survival", "transfer"):
            return tabled(self, quantity, self.explained)
        if quantity.startswith("usd_per_million"):
            what = "scenario: traffic, mean over the hours that are paid for"
            rate = Input("r", "tokens_per_s", None, "token/s", "config", what)
            return self._worked(quantity, "10^6 h / (3600 r)", {"h": "usd_per_hour"}, MONEY, (rate,))
        if quantity == "watts":
            powers = [
                input_of(f"w_{name[0]}", f"{name} watts", pool.layout.device.tdp_w, "spec", "hardware_specs")
                for name, pool in zip(_BOTH, self.plan.groups, strict=True)
            ]
            inputs = {f"g_{name[0]}": f"groups[{at}].gpus" for at, name in enumerate(_BOTH)}
            return self._worked(quantity, "w_p g_p + w_d g_d", inputs, MONEY, tuple(powers))
        if quantity == "energy_usd_per_hour":
            inputs = {f"g_{name[0]}": f"groups[{at}].gpus" for at, name in enumerate(_BOTH)}
            costs = tuple(
                replace(_electricity(pool), symbol=f"e_{pool.role[0]}") for pool in self.plan.groups
            )
            return self._worked(quantity, "e_p g_p + e_d g_d", inputs, MONEY, costs)
        if quantity.startswith("outside."):
            return explained_outside(self, quantity)
        if quantity.startswith("offers."):
            return self._at_an_offer(quantity, value)
        if quantity.startswith("groups["):
            return self._of_pool(quantity, value)
        if quantity == "draft_tokens":
            layout = self.plan.groups[1].layout.in_words(self.plan.groups[1].weight_dtype)
            source = f"scenario: speculation.draft_tokens, or the best number for the decode replicas {layout} at their usual batch"
            return explained(
                quantity, value, "d", (input_of("d", quantity, value, "derived", source),), PHASES
            )
        return self._simulated(quantity, value)

    def _worked(
        self,
        quantity: str,
        formula: str,
        inputs: Mapping[str, str],
        page: str,
        more: tuple[Input, ...] = (),
    ) -> Explained:
        """Return a quantity that a formula works out of others, which are its steps."""
        numbers = self.numbers
        steps = tuple(self.explained(name) for name in inputs.values())
        values = tuple(
            input_of(symbol, name, numbers[name], step.label, f"explain {name}")
            for (symbol, name), step in zip(inputs.items(), steps, strict=True)
        )
        return explained(quantity, numbers[quantity], formula, (*values, *more), page, steps=steps)

    def _at_an_offer(self, quantity: str, value: float) -> Explained:
        """Explain what both pools cost at the lowest, the likely or the highest offers of their devices."""
        offers = []
        for at, pool in enumerate(self.plan.groups):
            assert pool.price is not None
            usd, records = pool.price.at(next(side for side in SIDES if side == quantity.split(".")[1]))
            who = named_offers(records) or "scenario: prices.per_gpu_hour"
            offers.append(
                input_of(f"p_{pool.role[0]}", "usd_per_gpu_hour", usd, "spec", f"{who}, with electricity")
            )
            offers.append(
                input_of(f"g_{pool.role[0]}", f"groups[{at}].gpus", pool.gpus, "derived", "the pool")
            )
        formula = "(p_p g_p + p_d g_d) times the hours of the period"
        return explained(quantity, value, formula, offers, MONEY)

    def _of_pool(self, quantity: str, value: float) -> Explained:
        path, key = quantity.split(".")
        pool = self.plan.groups[int(path.removeprefix("groups[").removesuffix("]"))]
        if key == "usd_per_gpu_hour":
            basis = pool.price.basis if pool.price else "unknown"
            price = input_of(
                "p", key, value, "spec" if pool.price and pool.price.records else "config", basis
            )
            return explained(quantity, value, "p", (price,), MONEY)
        if key == "usd_per_hour" and not paid_by_the_gpu([self.plan]):
            machines = input_of(
                "h", key, value, "derived", "explain order.usd_per_hour, the machines of this pool"
            )
            return explained(quantity, value, "h", (machines,), MONEY)
        if key == "gpus":
            return tabled(self, quantity, self.explained)
        if key == "usd_per_hour":
            inputs = {"p": f"{path}.usd_per_gpu_hour", "g": f"{path}.gpus"}
            return self._worked(quantity, PLAN[key].formula, inputs, MONEY, (_electricity(pool),))
        if key == _PLANNED:
            return self._simulated(quantity, value, _PLANNED_FORMULA)
        if key in ("busy_fraction", "concurrency_per_replica"):
            what = (
                "time in steps over time in service"
                if key == "busy_fraction"
                else "mean requests at a replica"
            )
            return self._simulated(quantity, value, f"{what}, {_SIMULATED}")
        layout = (
            f"the pools {pool.layout.in_words(pool.weight_dtype)}, the cheapest pair that meets the targets"
        )
        chosen = input_of("", quantity, value, "derived", layout)
        return explained(
            quantity,
            value,
            "of the pair of layouts and counts that meets the targets at the least cost",
            (chosen,),
            PHASES,
        )

    def _simulated(self, quantity: str, value: float, formula: str = "") -> Explained:
        """Explain what the simulation of both pools says."""
        metric, _, statistic = quantity.partition(".")
        words = "mean" if statistic == "mean" else f"{statistic[1:]}th percentile" if statistic else metric
        inputs = [
            input_of(
                "N", "simulated_requests", self.plan.simulated_requests, "derived", "the requests of the peak"
            ),
            *(
                input_of(
                    group.role[0].upper(),
                    f"{group.role} replicas",
                    group.busy_replicas,
                    "derived",
                    f"explain groups[{at}].replicas, without spares",
                )
                for at, group in enumerate(self.plan.groups)
            ),
            *arguments(self, "link", "l"),
        ]
        page = PHASES
        if statistic in ("low", "high"):
            formula, page = "mean times an end of the 80% interval of measured over predicted", ACCURACY
        elif quantity == "slo_met_probability":
            formula = (
                "probability that both pools are at most as much slower than predicted as the targets bear"
            )
            page = ACCURACY
        return explained(quantity, value, formula or f"{words} {_SIMULATED}", inputs, page, label=self.label)


def _electricity(pool: Group) -> Input:
    energy = pool.price.energy_usd_per_hour if pool.price else None
    return input_of("e", "energy_usd_per_gpu_hour", energy or 0.0, "config", "scenario: prices.electricity")
