"""What one change to a question is worth: its plan next to the plan of the scenario as it is, and why it costs more."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from capplan.accuracy.slowness import Latency, latency_of
from capplan.engine.profile import Scheduling
from capplan.errors import Reason
from capplan.fleet.over_time import OverTime
from capplan.fleet.plan import Plan, cost_of
from capplan.fleet.review import Question, spec_of_layout
from capplan.fleet.search.one_layout import trial_of
from capplan.fleet.search.search_cache import SearchCache
from capplan.money.price import TERM_YEARS
from capplan.questions.fleet import AskedFleet, terms_of
from capplan.replica.plans import started_scheduling
from capplan.scenario.money_terms import memory_usd_per_month
from capplan.scenario.scenario_file import ScenarioFile
from capplan.workload.request_class import Target

NO_TERM = "reserved"
"""Commitment of offers that do not say for how long."""


@dataclass(frozen=True, slots=True)
class Lever:
    """A change to a scenario, or why there is none to try."""

    name: str
    """Name of the lever: several changes may pull the same one."""
    change: str
    """Change in words."""
    settings: tuple[str, ...] = ()
    """Keys of the scenario and their new values, each KEY=VALUE."""
    risk: str = ""
    reason: str = ""
    """Why it is not applicable; empty where it is."""
    adds: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    """List keys and the values that the combination adds to them, so that a plan may use the change or not."""
    combines: bool = False
    """Whether the combination may set the keys of `settings`, instead of adding to lists."""
    keeps: bool = True
    """Whether users get the SLO targets of the scenario, for all of its traffic."""
    host_bytes: float = 0.0
    """Host memory that it adds to every replica, whose price is not in the plan."""
    slow: bool = False
    """Whether it is tried only where it is named."""
    broken: str = ""
    """What users no longer get, where that is not kept."""
    sized: Callable[[], Plan | None] | None = None
    """How its plan is found, where another search of the changed scenario does not say it; None: by that search."""


@dataclass(frozen=True, slots=True)
class LeverRow:
    """A lever by itself, and the plan of the changed question."""

    lever: Lever
    plan: Plan | None
    """None: not applicable, or no plan meets the targets."""
    usd_per_month_saved: float | None
    gpus_saved: int | None
    meets_targets: bool | None
    """Whether the plan meets the targets of the scenario as it is; None where the lever is not applicable, or saves nothing and is not sized."""
    reason: str
    """Why it is not applicable, is not sized or meets no targets; empty where it does."""
    memory_usd_per_month: float = 0.0
    """Cost of host memory in offload tiers, on top of the plan; 0 where it has no price."""
    dearer: str = ""
    """Why it costs more than the plan as it is: the target that decides; empty where it does not."""
    kg_co2_per_month: float | None = None
    """Carbon dioxide of its electricity, for another place of the machines; None if it is not asked for."""

    @property
    def applicable(self) -> bool:
        """Return whether there was a change to try."""
        return not self.lever.reason


@dataclass(frozen=True, slots=True)
class Combination:
    """The cheapest plan of all combinations of levers."""

    plan: Plan
    levers: tuple[Lever, ...]
    """Levers that it uses; empty where none makes the plan better."""
    settings: tuple[str, ...]
    tried: int
    """Combinations."""
    question: Question | None = None
    """The changed question; None where nothing is changed."""
    memory_usd_per_month: float = 0.0
    """Cost of host memory in offload tiers, on top of the plan."""


@dataclass(frozen=True, slots=True)
class LeversAnswer:
    """The plan as it is, every lever separately, and the best combination."""

    base: Plan | None
    rows: tuple[LeverRow, ...]
    """Most saved first, then those without a plan, then those that are not applicable."""
    best: Combination | None
    memory_usd_per_month: float
    """Cost of host memory in the offload tiers of the plan as it is, on top of the plan."""
    interrupted: bool = False
    """Whether Ctrl-C ended the search: rows are those found until then, and no combination was chosen."""


def lever_row(
    lever: Lever,
    plan: Plan | None,
    base: Plan | None,
    why: str = "",
    memory_usd_per_month: tuple[float, float] = (0.0, 0.0),
) -> LeverRow:
    """Return the row of a lever.

    Parameters
    ----------
    lever : Lever
    plan : of the changed question; None where it has none, or where the lever is not applicable
    base : the plan as it is
    why : reason for which the changed question has no plan
    memory_usd_per_month : [$/month]
        of host memory in offload tiers, with the lever and as it is
    """
    if plan is None:
        meets = None if lever.reason else False
        return LeverRow(lever, None, None, None, meets, lever.reason or why)
    kept = lever.keeps or (base is not None and cost_of(plan) == cost_of(base) and plan.gpus == base.gpus)
    if doubt := price_doubt(plan, base):
        lever = replace(lever, risk="; ".join(filter(None, (doubt, lever.risk))))
    return LeverRow(
        lever,
        plan,
        None if base is None else _saved(base, plan, memory_usd_per_month),
        None if base is None else base.gpus - plan.gpus,
        kept,
        "" if kept else lever.broken,
        memory_usd_per_month[0],
    )


def _saved(base: Plan, plan: Plan, memory_usd_per_month: tuple[float, float]) -> float | None:
    before, after = base.usd_per_month, plan.usd_per_month
    if before is None or after is None:
        return None
    return before - after + memory_usd_per_month[1] - memory_usd_per_month[0]


def price_doubt(plan: Plan, base: Plan | None) -> str:
    """Return why no headline counts the price of a plan, if the plan as it is has a better one: an estimate, or a reservation of no stated term; else empty."""

    def doubts(one: Plan | None) -> list[str]:
        prices = {group.hardware: group.price for group in one.groups if group.price} if one else {}
        return [
            *(f"the price of {name} is an estimate, nobody lists one" for name, price in prices.items() if price.estimated),
            *(
                f"the offers of {name} state no term, as \"as low as\" prices do not: ask for it, or plan with {' or '.join(TERM_YEARS)}"
                for name, price in prices.items()
                if price.records and price.commitment == NO_TERM and not price.estimated
            ),
        ]  # fmt: skip

    return "; ".join(doubts(plan)) if not doubts(base) else ""


def worth_usd_per_byte_month(usd_per_month_saved: float, host_bytes: float, replicas: float) -> float:
    """Return the price of host memory at which it saves as much as it costs.

        c = S / (n m)

    Parameters
    ----------
    usd_per_month_saved : [$/month]
        S, by the smaller fleet, without the memory.
    host_bytes : [B]
        m, of one replica.
    replicas : [-]
        n, spares included, as they have to take over.

    Returns
    -------
    [$/B/month]
        c; memory pays where it costs less; 0 or less where it saves nothing.

    Examples
    --------
    10,000 $ a month saved with 512 GB on each of 8 replicas: below 2.44 $ a month for a gigabyte.

    >>> round(1e9 * worth_usd_per_byte_month(10_000.0, 512e9, 8.0), 2)
    2.44

    References
    ----------
    Brealey, Myers, Allen 2020, "Principles of Corporate Finance", chapter 10.2 (break-even analysis).
    """
    return usd_per_month_saved / (replicas * host_bytes)


def most_saved_first(rows: Sequence[LeverRow]) -> tuple[LeverRow, ...]:
    """Return the rows by dollars saved, or GPUs without prices; those without a plan come after, in their order."""

    def key(row: LeverRow) -> tuple[int, float, float]:
        if row.plan is None:
            return (1 if row.applicable else 2), 0.0, 0.0
        dollars = inf if row.usd_per_month_saved is None else -row.usd_per_month_saved
        return 0, dollars, float(-(row.gpus_saved or 0))

    return tuple(sorted(rows, key=key))


def merged_settings(levers: Sequence[Lever], listed: Mapping[str, Sequence[str | int]]) -> tuple[str, ...]:
    """Return the settings of a combination: lists hold what they held and what the levers add.

    Parameters
    ----------
    levers : of the combination
    listed : key -> the values that the scenario has, or searches by default

    Examples
    --------
    >>> merged_settings([Lever("dtype", "", adds={"fleet.weight_dtypes": ("int4",)})], {"fleet.weight_dtypes": ("fp8",)})
    ('fleet.weight_dtypes=["fp8", "int4"]',)
    """
    lists: dict[str, dict[str | int, None]] = {}
    for lever in levers:
        for key, values in lever.adds.items():
            lists.setdefault(key, dict.fromkeys(listed.get(key, ()))).update(dict.fromkeys(values))
    added = [f"{key}=[{', '.join(map(_quoted, values))}]" for key, values in lists.items()]
    return (*added, *(setting for lever in levers if lever.combines for setting in lever.settings))


def _quoted(value: str | int) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def scaled_plan(plan: Plan, over_time: Sequence[OverTime], *, foreseen: bool) -> Plan:
    """Return a plan at the cost of its machines over time: in each window the order of the replicas that an autoscaler pays for, and of their spares.

    Parameters
    ----------
    plan : sized for the peak, with a price
    over_time : its replicas by window, of each pool where it has some
    foreseen : started ahead of a known load, instead of after the load was observed
    """
    hourly = 0.0
    for group, part in zip(plan.groups, over_time, strict=True):
        counts, windows = np.unique(part.foreseen if foreseen else part.paid, return_counts=True)
        usd = [group.usd_per_hour_of(int(count)) or 0.0 for count in counts]
        hourly += float(np.average(usd, weights=windows))
    return replace(
        plan,
        usd_per_hour=hourly,
        usd_per_million_output_tokens=None,
        usd_per_million_tokens=None,
        money=None,
        usd_per_month_low=None,
        usd_per_month_high=None,
    )


@dataclass(frozen=True, slots=True)
class Base:
    """The scenario, its question and its plan."""

    file: ScenarioFile
    asked: AskedFleet
    plan: Plan | None
    """The one that `fleet` recommends."""
    cheapest: Plan | None
    missing: str = ""
    """Why there is no plan; empty where there is one."""

    @property
    def scheduling(self) -> Scheduling | None:
        """Return the scheduling of one engine of the plan, of one that prefills in separate pools; None without a plan."""
        if self.plan is None:
            return None
        group = self.plan.groups[0]
        return started_scheduling(spec_of_layout(group.layout, self.asked.question))

    @property
    def memory_usd_per_month(self) -> float:
        """Return the cost of the host memory of the plan's offload tiers, where it has a price of its own."""
        return 0.0 if self.plan is None else memory_usd_per_month(self.asked.scenario, self.plan)

    @property
    def has_pools(self) -> bool:
        """Return whether the plan has separate pools for prefill and decode."""
        return self.plan is not None and self.plan.has_pools


def idle(name: str, change: str, reason: str) -> Lever:
    """Return a lever that is not applicable."""
    return Lever(name, change, reason=reason)


def put_off(lever: Lever) -> Lever:
    """Return a slow lever as one that is tried where it is named; others as they are."""
    if not lever.slow or lever.reason:
        return lever
    return replace(lever, reason=f"takes a separate search; to try it: --lever {lever.name}")


def saves_nothing(lever: Lever) -> LeverRow:
    """Return the row of a lever whose cheapest plan costs more than the plan as it is, however much it is."""
    why = f"every plan with it costs more than the plan as it is; for the cheapest of them: --lever {lever.name}"
    return LeverRow(lever, None, None, None, None, why)


def first_line(error: Exception) -> str:
    """Return the first line of an error: why a change cannot be made."""
    return str(error).partition("\n")[0]


def why_dearer(base: AskedFleet, changed: AskedFleet, plan: Plan, cache: SearchCache) -> str:
    """Return what a change does to the plan as it is, with the number that decides; empty if all its targets are still met.

    Parameters
    ----------
    base : the scenario as it is
    changed : the scenario with the change
    plan : as it is
    cache : runs of both

    Returns
    -------
    a sentence without a full stop
    """
    if plan is None or len(plan.groups) > 1 or not base.question.slo.targets:
        return ""
    if plan.single.layout.device.name not in changed.question.efficiencies:
        return ""  # the change leaves the device of the plan out
    now, then = _held(base, plan, cache), _held(changed, plan, cache)
    same = f"{plan.gpus} x {plan.hardware} in replicas of {plan.single.layout.devices}"
    if isinstance(then, Reason):
        return f"{same} cannot serve it: {then.words}"
    if isinstance(now, Reason):
        return ""
    (values_s, slower), (values_now_s, slower_now) = then, now
    target = max(values_s, key=lambda item: values_s[item] / item.limit_s)
    if values_s[target] <= target.limit_s:
        return ""
    value = values_s[target] + target.outside_s
    before = {item.key: seen + item.outside_s for item, seen in values_now_s.items()}.get(target.key, 0.0)
    steps, slowness = "", slower[latency_of(target)]
    slowness_now = slower_now.get(latency_of(target), slowness)
    if abs(slowness / slowness_now - 1.0) > 0.01:
        steps = (
            f"; steps may be {slowness:.2f} times as long as predicted, instead of {slowness_now:.2f} times"
        )
    return (
        f"{target.key} of {same} may be {1e3 * value:,.0f} ms with the required confidence, instead of {1e3 * before:,.0f} ms; "
        f"the limit is {1e3 * target.stated_s:,.0f} ms{steps}"
    )


def _held(
    asked: AskedFleet, plan: Plan, cache: SearchCache
) -> tuple[dict[Target, float], Mapping[Latency, float]] | Reason:
    """Return the latency of a plan by target with steps as slow as the required confidence allows for, and this slowness by latency."""
    question = asked.question
    layout = plan.single.layout
    if layout.weight_format not in question.networks:
        layout = replace(layout, weight_format=next(iter(question.networks)))
    if layout.kv_format not in question.kv_formats:
        layout = replace(layout, kv_format=question.kv_formats[0])
    device = next((item for item in question.devices if item.name == layout.device.name), layout.device)
    layout = replace(layout, device=device)
    trial = trial_of(question, layout, terms_of(asked), cache)
    if isinstance(trial, Reason):
        return trial
    busy = plan.single.busy_replicas
    slower = trial.sure_slowness(busy)
    held = {target: slower[latency_of(target)] for target in trial.limits}
    return {target: trial.fleet(busy, slow).value(target, slow) for target, slow in held.items()}, slower
