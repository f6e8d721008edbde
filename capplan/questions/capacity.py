"""The largest load that some GPUs, or a budget, carry within the targets of a scenario: the search of `fleet`, asked the other way round."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import floor, inf
from pathlib import Path

from capplan.assumption import Assumption
from capplan.errors import CapplanError, InputError, unknown
from capplan.fleet.load.demand import planned_demand
from capplan.fleet.search.cheapest import Terms
from capplan.model.weight_format import stored_formats
from capplan.money.price import usd_per_month
from capplan.quantity import SECONDS, quantity
from capplan.questions.fleet import AskedFleet, terms_of
from capplan.questions.largest_load import Found, LoadSearch
from capplan.questions.levers.answer import asking_of
from capplan.readers.catalogue.hardware import SUFFIXES, catalogue_name, device_names
from capplan.readers.catalogue.scenarios import names_a_model
from capplan.readers.plan_file import PlanFile, is_plan_file, read_plan_file
from capplan.scenario.command_flags import ScenarioFlags
from capplan.scenario.one_line import LOADS, THINK_TIME
from capplan.scenario.reading import by_key, settings_of

FULL_SHARE = 0.95
"""Share of the requests that a KV cache has room for from which on it is full."""
LARGER = (1.0, 1.02, 1.05, 1.1, 1.25)
"""Factors on the first load that was too much, at which it is looked for what is missed: loads of runs are steps of a scale."""
MORE_MONEY = 1.25
"""Factor on a budget of the row that says what more money adds."""
WIDE = ("fp32", "bf16", "fp16")
"""Weight formats instead of which fp8 is tried."""
LOOSER = 1.5
"""Factor on all targets of the row that says what looser ones add."""
SECONDS_PER_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Carried:
    """The largest load, as the loads of scenarios are stated."""

    request_rate: float
    """Requests per second at the peak."""
    users: float
    """Users who are active at once."""
    concurrency: float
    """Requests in flight in all replicas, waiting ones included."""
    tokens_per_day: float
    """Input and output tokens of a day at the mean rate of the traffic."""


@dataclass(frozen=True, slots=True)
class More:
    """What one change adds."""

    change: str
    request_rate: float
    """The largest rate then."""
    users: float
    usd_per_month: float | None
    """Cost of the fleet that carries it."""


@dataclass(frozen=True, slots=True)
class CapacityAnswer:
    """The largest load, what it is limited by, and what changes add."""

    found: Found | None
    """None if not one request meets the targets."""
    carried: Carried | None
    limit: str
    more: tuple[More, ...] = ()


def carried_load(found: Found, think_s: float) -> Carried:
    """Return the load that a fleet was found to carry.

        N = R (Z + T),   D = 86400 f R (i + o)

    Parameters
    ----------
    found : the plan, with its peak R [req/s] and mean response T [s]; f, the mean of the traffic over its peak; i and o, tokens
        of a request
    think_s : [s]
        Z, time that a user thinks, for traffic that does not state its users

    Returns
    -------
    with N, users who are active at once, and D, tokens of a day

    References
    ----------
    Denning, Buzen 1978, "The operational analysis of queueing network models", doi:10.1145/356733.356735, interactive response time formula.
    """
    plan, demand = found.plan, found.chosen.trial.question.demand
    rates = planned_demand(demand, plan.responses_s)
    tokens = float(demand.lengths.input_tokens) + demand.generated_tokens
    users = demand.users or rates.peak_requests_per_s * (think_s + plan.e2e_s.mean)
    return Carried(
        rates.peak_requests_per_s,
        users,
        plan.single.concurrency_per_replica * plan.single.busy_replicas,
        SECONDS_PER_DAY * rates.mean_requests_per_s * tokens,
    )


def limit_text(found: Found) -> str:
    """Return what a fleet misses first as its load grows, in words."""
    terms, trial = found.terms, found.chosen.trial
    confidence = trial.question.slo.confidence
    slower = trial.candidate.slowness.quantile(confidence)
    ways = (
        (1.0, 1.0 - terms.headroom_fraction, f"with headroom of {terms.headroom_fraction:.0%}"),
        (slower, 1.0, f"with the required confidence of {confidence:.0%}"),
    )
    for more in (found.above / found.ratio * step for step in LARGER):
        for slowness, left, how in ways:
            words = _missed(found, more / left, slowness)
            if words:
                return f"{words} {how} at {more - 1.0:.0%} more load; a replica spends its time on {found.plan.bottleneck}"
    return f"the number of GPUs: more load takes more of them; a replica spends its time on {found.plan.bottleneck}"


def _missed(found: Found, ratio: float, slowness: float) -> str:
    """Return what a fleet misses at a multiple of its load; empty text if it meets all targets."""
    sized, trial = found.chosen, found.chosen.trial
    seen = trial.fleet(sized.busy, slowness, ratio)
    if seen.steady and trial.worst(seen, slowness, trial.limits) <= 1.0:
        return ""
    lengths = trial.question.demand.lengths
    context = float(lengths.input_tokens) + float(lengths.output_tokens) / 2.0
    room = floor(trial.candidate.kv_cache_tokens / context)
    if seen.concurrency >= FULL_SHARE * room:
        return f"KV cache memory: each replica has room for {room:,} requests of {context:,.0f} tokens, and more are in flight"
    if not seen.steady or not trial.limits:
        return "throughput: requests arrive faster than the replicas serve them"
    target = max(trial.limits, key=lambda item: seen.value(item, slowness) / trial.limits[item])
    value = seen.value(target, slowness) + target.outside_s
    return f"{target.metric.upper()} {target.statistic}: {_time(value)} is over the target of {_time(target.stated_s)}"


def _time(seconds: float) -> str:
    """Return a time in words.

    Examples
    --------
    >>> _time(0.0401), _time(1.25)
    ('40.1 ms', '1.25 s')
    """
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{1e3 * seconds:.3g} ms"


def capacity_for(
    asked: AskedFleet,
    terms: Terms,
    *,
    as_bought: bool,
    think_s: float,
    ask: Callable[[Sequence[str]], AskedFleet],
    progress: Callable[[int, int], None] | None = None,
) -> CapacityAnswer:
    """Return the largest load of a fleet, what limits it, and what changes add.

    Parameters
    ----------
    asked : the question, whose traffic is multiplied
    terms : limits of the fleet: GPUs, dollars or machines
    as_bought : whether a cheaper fleet of more GPUs than the limit counts as more
    think_s : [s]
        time between two requests of a user
    ask : keys to override -> the changed question
    progress : called with the searches that are done, and all of them
    """
    load = LoadSearch(asked, terms, as_bought=as_bought)
    if load.bound == inf:
        raise InputError(
            f"{asked.scenario.path}: nothing limits the fleet; give --gpus '8 x h100-sxm', --budget 20000, or fleet.max_gpus in the scenario"
        )
    found = load.largest()
    if found is None:
        return CapacityAnswer(None, None, _why_none(load))
    more, changes = [], list(_changes(found, as_bought=as_bought, ask=ask))
    for done, (change, search_of) in enumerate(changes):
        if progress:
            progress(done + 1, len(changes) + 1)
        try:
            larger = search_of().largest(carried=found.ratio)
        except CapplanError:
            continue
        if larger is not None:
            load_then = carried_load(larger, think_s)
            more.append(More(change, load_then.request_rate, load_then.users, larger.plan.usd_per_month))
    return CapacityAnswer(found, carried_load(found, think_s), limit_text(found), tuple(more))


def _why_none(load: LoadSearch) -> str:
    """Return why a fleet carries nothing: what the cheapest fleet for the lightest load takes."""
    free = replace(load.terms, max_devices=None, max_usd_per_hour=None)
    sized = LoadSearch(load.asked, free).lightest()
    if sized is None:
        return "no number of GPUs meets the targets: capplan fleet with a small load says what is in the way"
    layout = sized.trial.candidate.layout
    spare = free.spares(layout, sized.busy)
    spares = (
        f", of which {spare * layout.devices} are spare so that {free.survive.what_fails} may fail; without spares: --set fleet.spare_replicas=0"
        if spare
        else ""
    )
    usd = free.usd_per_hour(layout, sized.busy)
    cost = "" if usd is None else f" for ${usd_per_month(usd):,.0f} per month"
    return f"the cheapest fleet for the lightest load takes {sized.gpus} x {layout.device.name}{cost}{spares}"


def _changes(
    found: Found, *, as_bought: bool, ask: Callable[[Sequence[str]], AskedFleet]
) -> Iterator[tuple[str, Callable[[], LoadSearch]]]:
    """Return the changes whose gain is shown, and the search after each."""
    asked, terms, group = found.asked, found.terms, found.plan.single

    def changed(*settings: str) -> LoadSearch:
        other = replace(ask(settings), cache=asked.cache)
        new = replace(terms_of(other), max_devices=terms.max_devices, max_usd_per_hour=terms.max_usd_per_hour)
        return LoadSearch(other, new, as_bought=as_bought)

    if terms.max_devices is not None:
        larger = replace(terms, max_devices=terms.max_devices + group.layout.devices)
        yield (
            f"{group.layout.devices} more {'GPU' if group.layout.devices == 1 else 'GPUs'}",
            lambda: LoadSearch(asked, larger, as_bought=as_bought),
        )
    if terms.max_usd_per_hour is not None:
        richer = replace(terms, max_usd_per_hour=MORE_MONEY * terms.max_usd_per_hour)
        yield f"{MORE_MONEY - 1.0:.0%} more money", lambda: LoadSearch(asked, richer, as_bought=as_bought)
    if stored_formats(asked.question.networks[group.weight_dtype])[0] in WIDE:
        yield "fp8 weights and KV cache", lambda: changed("weight_dtype=fp8", "kv_dtype=fp8")
    if asked.question.slo.targets:
        targets = tuple(
            replace(item, limit_s=LOOSER * item.stated_s - item.outside_s)
            for item in asked.question.slo.targets
        )
        looser = replace(asked.question, slo=replace(asked.question.slo, targets=targets))
        yield (
            f"all targets {LOOSER:g} times as long",
            lambda: LoadSearch(replace(asked, question=looser), terms, as_bought=as_bought),
        )
    if group.spare_replicas:
        yield "no spare replicas", lambda: changed("fleet.survive=null", "fleet.spare_replicas=0")


def think_time(flags: ScenarioFlags) -> tuple[float, tuple[Assumption, ...], ScenarioFlags]:
    """Return the think time of users who are counted at a request rate [s], what that assumes, and the flags that are keys of a scenario."""
    if flags.users is not None:
        return 0.0, (), flags
    if flags.think_time is not None:
        return quantity(flags.think_time, SECONDS, "--think-time"), (), replace(flags, think_time=None)
    what = f"users: each thinks for {THINK_TIME} after a response"
    return quantity(THINK_TIME, SECONDS, ""), (Assumption(what, "--think-time"),), flags


_GPUS = re.compile(r"\s*([0-9]{1,6})\s*x\s*(\S{1,60})\s*")


@dataclass(frozen=True, slots=True)
class Inventory:
    """What may carry the load: GPUs of one kind, or dollars."""

    gpus: int | None = None
    hardware: str | None = None
    usd_per_month: float | None = None

    @property
    def settings(self) -> tuple[str, ...]:
        """Keys of a scenario that the inventory overrides."""
        found = settings_of(ScenarioFlags(hardware=(self.hardware and [self.hardware]) or None))
        return found if self.usd_per_month is None else (*found, f"budget.usd_per_month={self.usd_per_month}")


def inventory(gpus: str | None, budget: float | None, plan: PlanFile | None = None) -> Inventory:
    """Return what may carry a load, as `--gpus` and `--budget` say, or the GPUs of a plan.

    Examples
    --------
    >>> inventory("8 x h100-sxm", None).gpus
    8
    """
    if gpus is None and plan is not None and budget is None:
        chosen = plan.answer.chosen
        if len(chosen.groups) > 1:
            raise InputError(
                f"{plan.path}: its plan has several groups of replicas, and the largest load is found for one; give --gpus '8 x h100-sxm'"
            )
        return Inventory(chosen.groups[0].gpus, chosen.groups[0].hardware)
    if gpus is None:
        return Inventory(usd_per_month=budget)
    if "," in gpus:
        raise InputError(
            f"--gpus: {gpus!r} has several kinds; ask for one kind at a time: their loads add up behind a router that deals by weight, and the chance that all hold is the product of theirs"
        )
    match = _GPUS.fullmatch(gpus)
    if match is None or not int(match[1]):
        raise InputError(f"--gpus: {gpus!r} is not a number of GPUs; e.g. --gpus '8 x h100-sxm'")
    hardware = catalogue_name(match[2])
    if hardware is None and not match[2].lower().endswith(SUFFIXES):
        raise unknown("hardware", match[2], device_names(), place="--gpus")
    return Inventory(int(match[1]), hardware or match[2], budget)


def asked_capacity(
    path: Path,
    settings: tuple[str, ...],
    gpus: str | None,
    budget: float | None,
    think_s: float,
    progress: Callable[[int, int], None] | None = None,
    *,
    offline: bool,
) -> tuple[AskedFleet, CapacityAnswer]:
    """Return the question of a scenario, a model or a plan file, and the largest load that GPUs or dollars carry.

    Parameters
    ----------
    path : scenario YAML or name, model, or plan file
    settings : keys that are overridden
    gpus : such as '8 x h100-sxm'; None: of the plan file, or as the scenario limits its fleet
    budget : [$/month]
    think_s : [s]
        time between two requests of a user, for traffic without users
    progress : called with the searches that are done, and all of them
    offline : never open a connection
    """
    plan = path if is_plan_file(path) else None
    have = inventory(gpus, budget, read_plan_file(plan) if plan else None)
    if plan is None and names_a_model(path) and not any(_states_a_load(item) for item in settings):
        settings = ("--request-rate=1 req/s", *settings)
    asking = asking_of(None if plan else path, plan, () if plan else settings, offline=offline)
    settings = (*(settings if plan else ()), *have.settings)
    asked = asking.changed(settings)
    _refuse_several_kinds(asked)
    terms = terms_of(asked)
    if have.gpus is not None:
        terms = replace(terms, max_devices=have.gpus)
    answer = capacity_for(
        asked,
        terms,
        as_bought=have.gpus is not None,
        think_s=think_s,
        ask=lambda more: asking.changed((*settings, *more)),
        progress=progress,
    )
    return asked, answer


def _states_a_load(setting: str) -> bool:
    key = by_key(setting).partition("=")[0].strip()
    return key == "traffic" or key in {f"traffic[0].{load}" for load in LOADS}


def _refuse_several_kinds(asked: AskedFleet) -> None:
    """Raise the error for fleets of several kinds of replicas, and for budgets that commitments pay."""
    scenario, pools = asked.scenario, asked.scenario.fleet.pools
    for key, wrong in (
        ("fleet.mix", scenario.fleet.mix != "off"),
        ("fleet.disaggregation", pools is not None and not pools.screened),
        ("commitments", scenario.file.commitments is not None),
    ):
        if wrong:
            raise InputError(
                f"{scenario.path}: {key}: the largest load is found for identical replicas at the price of prices.commitment; leave it out: --set {key}=null"
            )
