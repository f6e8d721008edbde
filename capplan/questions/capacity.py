"""The largest load that some GPUs, or a budget, carry within the targets of a scenario: the search of `fleet`, asked the other way round."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, inf
from pathlib import Path
from typing import TypeAlias

from capplan.assumption import Assumption
from capplan.errors import CapplanError, InputError, Reason, unknown
from capplan.fleet.group import RoutedRequests
from capplan.fleet.load.demand import Demand, planned_demand
from capplan.fleet.plan import Plan
from capplan.fleet.search.cheapest import Sized
from capplan.fleet.search.recommended import plan_of
from capplan.fleet.search.trial import limits_by_latency
from capplan.model.weight_format import stored_formats
from capplan.money.price import usd_per_month
from capplan.quantity import SECONDS, quantity
from capplan.questions.fleet import AskedFleet, parts_of, terms_of
from capplan.questions.largest_load import Found, LoadSearch, at_load
from capplan.questions.levers.answer import asking_of
from capplan.questions.mix import mix_plan, together_of
from capplan.questions.narrower import WIDE
from capplan.questions.plans.plan_file import asked_of_plan
from capplan.readers.catalogue.hardware import SUFFIXES, catalogue_name, device_names
from capplan.readers.catalogue.scenarios import names_a_model
from capplan.readers.plan_file import is_plan_file, read_plan_file
from capplan.scenario.command_flags import ScenarioFlags
from capplan.scenario.one_line import LOADS, THINK_TIME
from capplan.scenario.reading import by_key, settings_of
from capplan.workload.multiples import dealt_by_share
from capplan.workload.request_class import Target

FULL_SHARE = 0.95
"""Share of the requests that a KV cache has room for from which on it is full."""
LARGER = (1.0, 1.02, 1.05, 1.1, 1.25)
"""Factors on the first load that was too much, at which it is looked for what is missed: loads of runs are steps of a scale."""
MORE_MONEY = 1.25
"""Factor on a budget of the row that says what more money adds."""
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

    plan: Plan | None
    """The plan that carries it; None if not one request meets the targets."""
    carried: Carried | None
    limit: str
    more: tuple[More, ...] = ()


Kind: TypeAlias = tuple[LoadSearch, Callable[[Sequence[str]], AskedFleet]]
"""Machines of one kind of GPU, or of any kind that is chosen, and what asks again with more settings."""


def carried_load(plan: Plan, demand: Demand, think_s: float) -> Carried:
    """Return the load that a fleet was found to carry.

        N = R (Z + T),   D = 86400 f R (i + o)

    Parameters
    ----------
    plan : with its mean response T [s]
    demand : at that load, with its peak R [req/s]; f, the mean of the traffic over its peak; i and o, tokens of a request
    think_s : [s]
        Z, time that a user thinks, for traffic that does not state its users

    Returns
    -------
    with N, users who are active at once, and D, tokens of a day

    References
    ----------
    Denning, Buzen 1978, "The operational analysis of queueing network models", doi:10.1145/356733.356735, interactive response time formula.
    """
    rates = planned_demand(demand, plan.responses_s)
    tokens = float(demand.lengths.input_tokens) + demand.generated_tokens
    users = demand.users or rates.peak_requests_per_s * (think_s + plan.e2e_s.mean)
    in_flight = sum(group.concurrency_per_replica * group.busy_replicas for group in plan.groups)
    return Carried(
        rates.peak_requests_per_s, users, in_flight, SECONDS_PER_DAY * rates.mean_requests_per_s * tokens
    )


def limit_text(found: Found) -> str:
    """Return what a fleet misses first as its load grows, in words."""
    terms, trial = found.terms, found.chosen.trial
    confidence = trial.question.slo.confidence
    slower, sure = trial.sure_slowness(found.chosen.busy), f"with the required confidence of {confidence:.0%}"
    with_headroom = f"with headroom of {terms.headroom_fraction:.0%}"
    ways = (
        (1.0, trial.limits, 1.0 - terms.headroom_fraction, with_headroom),
        *((slower[name], own, 1.0, sure) for name, own in limits_by_latency(trial.limits).items()),
    )
    for more in (found.above / found.ratio * step for step in LARGER):
        for slowness, limits, left, how in ways:
            words = _missed(found, more / left, slowness, limits)
            if words:
                return f"{words} {how} at {more - 1.0:.0%} more load; a replica spends its time on {found.plan.bottleneck}"
    return f"the number of GPUs: more load takes more of them; a replica spends its time on {found.plan.bottleneck}"


def _missed(found: Found, ratio: float, slowness: float, limits: Mapping[Target, float]) -> str:
    """Return what a fleet misses at a multiple of its load; empty text if it keeps all limits."""
    sized, trial = found.chosen, found.chosen.trial
    seen = trial.fleet(sized.busy, slowness, ratio)
    if seen.steady and trial.worst(seen, slowness, limits) <= 1.0:
        return ""
    lengths = trial.question.demand.lengths
    context = float(lengths.input_tokens) + float(lengths.output_tokens) / 2.0
    room = floor(trial.candidate.kv_cache_tokens / context)
    if seen.concurrency >= FULL_SHARE * room:
        return f"KV cache memory: each replica has room for {room:,} requests of {context:,.0f} tokens, and more are in flight"
    if not seen.steady or not limits:
        return "throughput: requests arrive faster than the replicas serve them"
    target = max(limits, key=lambda item: seen.value(item, slowness) / limits[item])
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
    kinds: Sequence[Kind], think_s: float, progress: Callable[[int, int], None] | None = None
) -> CapacityAnswer:
    """Return the largest load of a fleet, what limits it, and what changes add.

    Several kinds carry as much together as each of them by itself, as a router deals each its share of every class: requests that
    meet the targets in each share meet them together.

    Parameters
    ----------
    kinds : what may carry the load
    think_s : [s]
        time between two requests of a user
    progress : called with the searches that are done, and all of them
    """
    loads = [load for load, _ in kinds]
    if any(load.bound == inf for load in loads):
        raise InputError(
            f"{loads[0].asked.scenario.path}: nothing limits the fleet; give --gpus '8 x h100-sxm', --budget 20000, or fleet.max_gpus in the scenario"
        )
    found = {kind: each for kind, load in enumerate(loads) if (each := load.largest()) is not None}
    idle = [_why_none(load) for kind, load in enumerate(loads) if kind not in found]
    if not found:
        return CapacityAnswer(None, None, "; ".join(idle))
    changes: dict[str, dict[int, Callable[[], LoadSearch]]] = {}
    for place, each in found.items():
        for change, search_of in _changes(each, *kinds[place], alone=len(kinds) == 1):
            changes.setdefault(change, {})[place] = search_of
    more = []
    for done, (change, searches) in enumerate(changes.items()):
        if progress:
            progress(done + 1, len(changes) + 1)
        larger = {place: _larger(search_of, found[place]) for place, search_of in searches.items()}
        after = {**found, **{place: each for place, each in larger.items() if each is not None}}
        if all(larger.values()) and any(each.ratio > found[place].ratio for place, each in after.items()):
            more.append(_more(change, list(after.values()), think_s))
    plan, demand = _together(list(found.values()))
    limits = [limit_text(each) for each in found.values()]
    if len(kinds) > 1:
        limits = [
            f"{each.plan.hardware}: {words}" for each, words in zip(found.values(), limits, strict=True)
        ]
    carried = carried_load(plan, demand, think_s)
    return CapacityAnswer(plan, carried, "; ".join((*limits, *idle)), tuple(more))


def _larger(search_of: Callable[[], LoadSearch], found: Found) -> Found | None:
    """Return what a change carries, at least what is carried without it; None where the change cannot be made."""
    try:
        return search_of().largest(carried=found.ratio)
    except CapplanError:
        return None


def _more(change: str, found: Sequence[Found], think_s: float) -> More:
    """Return what kinds of GPUs carry together after a change."""
    loads = [carried_load(each.plan, each.chosen.trial.question.demand, think_s) for each in found]
    usd = [each.plan.usd_per_month for each in found]
    known = [cost for cost in usd if cost is not None]
    return More(
        change,
        sum(load.request_rate for load in loads),
        sum(load.users for load in loads),
        sum(known) if len(known) == len(usd) else None,
    )


def _together(found: Sequence[Found]) -> tuple[Plan, Demand]:
    """Return the plan of all kinds, each with its share of every class, and the traffic that they carry."""
    if len(found) == 1:
        return found[0].plan, found[0].chosen.trial.question.demand
    total = sum(each.ratio for each in found)
    asked = at_load(found[0].asked, total)
    parts = []
    for each in found:
        share, names = each.ratio / total, tuple(item.name for item in asked.scenario.classes)
        routed = RoutedRequests(names, share, max_model_len=each.asked.question.max_model_len, share=share)
        group = replace(each.plan.single, requests=routed)
        parts.append((at_load(each.asked, each.ratio), replace(each.plan, groups=(group,))))
    return _mixed(asked, parts), asked.question.demand


def _mixed(asked: AskedFleet, parts: Sequence[tuple[AskedFleet, Plan]]) -> Plan:
    """Return the plan of groups that each serve a part of the requests, judged by all of them."""
    together = together_of(parts, asked.scenario.classes)
    assert not isinstance(together, Reason)
    headroom = terms_of(asked).headroom_fraction
    return mix_plan(asked.question.demand, [plan for _, plan in parts], together, headroom)[0]


def _of_plan(
    path: Path, settings: tuple[str, ...], think_s: float, *, offline: bool
) -> tuple[AskedFleet, CapacityAnswer]:
    """Return the largest load of the groups of the mix in a plan file as they are, whose router goes on to deal as it does."""
    asked, answer = asked_of_plan(None, path, settings, offline=offline)
    plan = None if answer is None else answer.chosen
    if plan is None or plan.has_pools:
        raise InputError(
            f"{path}: its plan has separate pools, and the largest load is found for replicas that do both; give --gpus '8 x h100-sxm'"
        )
    ratio = min(
        group.planned_request_rate_limit_per_replica / group.request_rate_per_replica for group in plan.groups
    )
    larger = at_load(asked, ratio)
    parts = []
    for (part, alone), group in zip(parts_of(larger, plan), plan.groups, strict=True):
        together = together_of([(part, alone)], part.scenario.classes)
        assert not isinstance(together, Reason)
        sized = plan_of(Sized(together.parts[0].trial, group.busy_replicas, group.gpus), terms_of(part))
        parts.append((part, replace(sized, groups=(replace(sized.single, requests=group.requests),))))
    whole = _mixed(larger, parts)
    limit = f"the targets of all requests together, with the groups and the router of the plan, at {ratio:.2f} times its load"
    return asked, CapacityAnswer(whole, carried_load(whole, larger.question.demand, think_s), limit)


def _why_none(load: LoadSearch) -> str:
    """Return why a fleet carries nothing: what the cheapest fleet for the lightest load takes."""
    free = replace(load.terms, max_devices=None, max_usd_per_hour=None)
    sized = LoadSearch(load.asked, free).lightest()
    if sized is None:
        return "no number of GPUs meets the targets: capplan fleet with a small load says what is in the way"
    layout = sized.layout
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
    found: Found, load: LoadSearch, ask: Callable[[Sequence[str]], AskedFleet], *, alone: bool
) -> Iterator[tuple[str, Callable[[], LoadSearch]]]:
    """Return the changes whose gain is shown, and the search after each."""
    asked, terms, group = found.asked, found.terms, found.plan.single

    def changed(*settings: str) -> LoadSearch:
        other = replace(ask(settings), cache=asked.cache)
        new = replace(terms_of(other), max_devices=terms.max_devices, max_usd_per_hour=terms.max_usd_per_hour)
        return load.of(other, new)

    if terms.max_devices is not None:
        larger = replace(terms, max_devices=terms.max_devices + group.layout.devices)
        gpus = ("GPU" if group.layout.devices == 1 else "GPUs") if alone else group.hardware
        yield f"{group.layout.devices} more {gpus}", lambda: load.of(asked, larger)
    if terms.max_usd_per_hour is not None:
        richer = replace(terms, max_usd_per_hour=MORE_MONEY * terms.max_usd_per_hour)
        yield f"{MORE_MONEY - 1.0:.0%} more money", lambda: load.of(asked, richer)
    if stored_formats(asked.question.networks[group.weight_dtype])[0] in WIDE:
        yield "fp8 weights and KV cache", lambda: changed("weight_dtype=fp8", "kv_dtype=fp8")
    if asked.question.slo.targets:
        targets = tuple(
            replace(item, limit_s=LOOSER * item.stated_s - item.outside_s)
            for item in asked.question.slo.targets
        )
        looser = replace(asked.question, slo=replace(asked.question.slo, targets=targets))
        yield f"all targets {LOOSER:g} times as long", lambda: load.of(replace(asked, question=looser), terms)
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


def inventory(gpus: str) -> dict[str, int]:
    """Return how many GPUs of each kind there are, as `--gpus` says.

    Examples
    --------
    >>> inventory("8 x h100-sxm, 4 x l40s")
    {'h100-sxm': 8, 'l40s': 4}
    """
    found: dict[str, int] = {}
    for part in gpus.split(","):
        match = _GPUS.fullmatch(part)
        if match is None or not int(match[1]):
            raise InputError(f"--gpus: {part.strip()!r} is not a number of GPUs; e.g. --gpus '8 x h100-sxm'")
        name = catalogue_name(match[2])
        if name is None and not match[2].lower().endswith(SUFFIXES):
            raise unknown("hardware", match[2], device_names(), place="--gpus")
        name = name or match[2]
        if name in found:
            raise InputError(f"--gpus: {name} is given twice")
        found[name] = int(match[1])
    return found


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
    gpus : such as '8 x h100-sxm, 4 x l40s'; None: of the plan file, or as the scenario limits its fleet
    budget : [$/month]
    think_s : [s]
        time between two requests of a user, for traffic without users
    progress : called with the searches that are done, and all of them
    offline : never open a connection
    """
    plan = path if is_plan_file(path) else None
    have = None if gpus is None else inventory(gpus)
    if plan is None and names_a_model(path) and not any(_states_a_load(item) for item in settings):
        settings = ("--request-rate=1 req/s", *settings)
    asking = asking_of(None if plan else path, plan, () if plan else settings, offline=offline)
    settings = settings if plan else ()
    if plan is not None and have is None and budget is None:
        groups = read_plan_file(plan).answer.chosen.groups
        if len(groups) > 1:
            return _of_plan(plan, settings, think_s, offline=offline)
        have = {groups[0].hardware: groups[0].gpus}
    if budget is not None:
        settings = (*settings, f"budget.usd_per_month={budget}")
    hardware = _hardware(list(have or ()))
    asked = asking.changed((*settings, *hardware))
    _refuse_other_fleets(asked)
    terms = terms_of(asked)
    names: Sequence[str] = list(have or ())
    of_machines = asked.scenario.file.fleet.own or asked.scenario.file.fleet.max_machines
    if not names and of_machines and terms.max_devices is None and terms.max_usd_per_hour is None:
        names = [device.name for device in asked.question.devices]
    if len(names) > 1:
        _refuse_undealt(asked, budget)

    def kind(settings: Sequence[str], gpus: int | None) -> Kind:
        """Return machines and their limits: a number of GPUs, or the machines of the scenario."""
        of_kind = asking.changed(settings)
        limits = terms_of(of_kind) if gpus is None else replace(terms_of(of_kind), max_devices=gpus)
        load = LoadSearch(of_kind, limits, as_bought=have is not None)
        return load, lambda more: asking.changed((*settings, *more))

    kinds = [kind((*settings, *_hardware([name])), (have or {}).get(name)) for name in names]
    return asked, capacity_for(kinds or [kind((*settings, *hardware), None)], think_s, progress)


def _hardware(names: list[str]) -> tuple[str, ...]:
    return settings_of(ScenarioFlags(hardware=names or None))


def _refuse_undealt(asked: AskedFleet, budget: float | None) -> None:
    """Raise the error for several kinds of GPUs whose loads do not add up: a budget of all, or requests that are not dealt by share."""
    classes = asked.scenario.classes
    undealt = [item.name for item in classes if not dealt_by_share(item) or item.arrival_cv != 1.0]
    why = ""
    if budget is not None:
        why = "--budget pays for one kind of GPU"
    elif undealt:
        why = f"the prompts of one user, of a session and of cached prefixes stay together, and so do bursts ({', '.join(undealt)})"
    elif len(classes) > 1 and any(item.users for item in classes):
        why = "users of several classes are not dealt as whole users of each"
    if why:
        raise InputError(
            f"{asked.scenario.path}: several kinds of GPU: {why}; ask about one: --gpus '8 x h100-sxm'"
        )


def _states_a_load(setting: str) -> bool:
    key = by_key(setting).partition("=")[0].strip()
    return key == "traffic" or key in {f"traffic[0].{load}" for load in LOADS}


def _refuse_other_fleets(asked: AskedFleet) -> None:
    """Raise the error for mixes and separate pools that a scenario asks for, and for budgets that commitments pay."""
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
