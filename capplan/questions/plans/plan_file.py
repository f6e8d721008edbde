"""A plan file -> the answer in it, without another search."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from math import inf, isclose, nan
from pathlib import Path
from typing import Any

from capplan.accuracy.bounded import BoundedSpread
from capplan.errors import InputError, TargetError
from capplan.fleet.answer import Certainty, Choices, FleetAnswer, PoolsSearch
from capplan.fleet.group import Group, GroupFigures, RoutedRequests, with_their_machines
from capplan.fleet.load.demand import Demand
from capplan.fleet.load.waits import waits_of
from capplan.fleet.plan import Plan, PlanFigures, Transfer
from capplan.fleet.pools.link import LinkUse
from capplan.fleet.search.candidates import DEGREES, Layout
from capplan.model.sharding import Sharding
from capplan.model.weight_format import kv_bytes_per_element
from capplan.money.order import Survival
from capplan.money.price import HOURS_PER_MONTH
from capplan.questions.fleet import AskedFleet, asked_fleet
from capplan.questions.fleet_answer import fleet_for
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.scenarios import scenario_folder
from capplan.readers.plan_file import AGAIN, PlanFile, StatedGroup, StatedPlan, is_plan_file, read_plan_file
from capplan.scenario.reading import overridden
from capplan.scenario.scenario import read_scenario, scenario_from
from capplan.scenario.scenario_file import Scenario
from capplan.serving.outcome import SeenByUsers
from capplan.workload.request_class import outside_use


def answer_of(file: PlanFile, asked: AskedFleet) -> FleetAnswer:
    """Return the answer in a plan file; InputError where its targets are not those of the scenario, or its figures contradict each other."""
    _refuse_other_targets(file, asked)
    found, apart = file.answer, file.answer.disaggregated
    plans = tuple(_plan(row, file, asked) for row in found.plans)
    choices = None
    if found.choices is not None:
        named: dict[str, Plan] = {str(choice): plans[place] for choice, place in found.choices.items()}
        choices = Choices(**named, recommended=plans[found.recommended], why=found.why or "")
    return FleetAnswer(
        tuple(plan for place, plan in enumerate(plans) if place != found.plan_file.unlisted),
        found.rejected,
        found.evaluated,
        choices=choices,
        certainty=found.certainty,
        uneconomical=tuple(found.uneconomical),
        tight=found.tight_target,
        next_steps=found.next_steps,
        pools=PoolsSearch(apart.rejected, apart.evaluated, apart.simulated_pairs) if apart else None,
        by_commitments=asked.scenario.file.commitments is not None,
    )


def chosen_in(file: PlanFile, asked: AskedFleet) -> Plan:
    """Return the recommended plan of a plan file, under the prices of a question that has its weight dtype."""
    return _plan(file.answer.chosen, file, asked)


def _refuse_other_targets(file: PlanFile, asked: AskedFleet) -> None:
    """Raise the error for a plan that does not say of each target of the scenario how likely it is to hold."""
    targets = {target.key for target in asked.question.slo.targets}
    for held in (set(file.inputs.targets), *(set(row.target_probabilities) for row in file.answer.plans)):
        if held != targets:
            of_plan, of_scenario = (", ".join(sorted(keys)) or "none" for keys in (held, targets))
            raise InputError(
                f"{file.path}: was made for the targets {of_plan}, and those of {asked.scenario.name} are {of_scenario}\n  {AGAIN}"
            )


def _unreadable(file: PlanFile, what: str) -> InputError:
    """Return the error for a word in a plan file that this version does not know."""
    return InputError(
        f"{file.path}: was written by capplan {file.version} and can no longer be read: {what}\n  {AGAIN}"
    )


def _plan(row: StatedPlan, file: PlanFile, asked: AskedFleet) -> Plan:
    responses_s = row.class_e2e_mean_s or row.e2e_s.mean
    groups = [_group(group, file, asked) for group in row.groups]
    plan = Plan(
        groups=tuple(map(_surviving, with_their_machines(groups))),
        **_same_fields(PlanFigures, row) | {"usd_per_month_high": _high_usd_per_month(row)},
        tpot_s=row.tpot_s or BoundedSpread(nan, nan, nan, nan, nan, nan, nan),
        money=row.money,
        outside=outside_use(asked.question.demand.classes, responses_s, HOURS_PER_MONTH),
        unlike_waits=_seen(row, asked.question.demand),
        transfer=_transfer(row.transfer, asked),
    )
    if not _alike(plan.usd_per_month, row.usd_per_month):
        raise InputError(
            f"{file.path}: a plan of ${row.usd_per_hour} per hour has usd_per_month {row.usd_per_month}, and {HOURS_PER_MONTH:g} hours make {plan.usd_per_month}\n  {AGAIN}"
        )
    return plan


def _same_fields(figures: type, row: StatedPlan | StatedGroup) -> dict[str, Any]:
    """Return what a plan or a group has as its file holds it."""
    return {field.name: getattr(row, field.name) for field in fields(figures)}


def _alike(worked_out: float | None, written: float | None) -> bool:
    if worked_out is None or written is None:
        return worked_out is written
    return isclose(worked_out, written, rel_tol=1e-9)


def _transfer(use: LinkUse | None, asked: AskedFleet) -> Transfer | None:
    """Return what moves KV caches between pools; InputError for separate pools under a scenario that has none."""
    if use is None:
        return None
    limits = asked.scenario.fleet.pools
    if limits is None:
        raise InputError(
            f"{asked.scenario.path}: fleet.disaggregation is off, and the plan has separate pools for prefill and decode\n"
            "  name the scenario that it was made for, or leave the scenario out"
        )
    return Transfer(limits.link, use)


def _surviving(group: Group) -> Group:
    """Return a group that survives what the scenario says, or as many replicas as it has spares, if these are others."""
    if group.spares_for(group.busy_replicas) == group.spare_replicas:
        return group
    return replace(group, survive=Survival("replica", group.spare_replicas))


def _group(row: StatedGroup, file: PlanFile, asked: AskedFleet) -> Group:
    layout = layout_of(row, file, asked)
    if row.requests is not None:
        _refuse_other_classes(row.requests, file, asked)
    return Group(
        **_same_fields(GroupFigures, row),
        layout=layout,
        survive=asked.scenario.fleet.survive,
        headroom_fraction=file.inputs.headroom_fraction,
        price=asked.prices.get(row.hardware),
    )


def _refuse_other_classes(requests: RoutedRequests, file: PlanFile, asked: AskedFleet) -> None:
    """Raise the error for requests of a class that the scenario does not have."""
    known = {item.name for item in asked.scenario.classes}
    for name in requests.classes:
        if name not in known:
            raise _unreadable(file, f"the scenario has no traffic {name!r}")


def layout_of(row: StatedGroup | Certainty, file: PlanFile | None, asked: AskedFleet) -> Layout:
    """Return the layout that a group, or the cheapest fleet at one confidence, states in names and degrees."""
    known = {item.name: item for item in asked.question.devices}
    name, weights, kv = row.hardware or "", row.weight_dtype or "", row.kv_dtype or ""
    if file is not None and weights not in asked.question.networks:
        raise _unreadable(file, f"the scenario has no weights in {weights!r}")
    kv_bytes_per_element(kv)  # an unknown dtype is an error
    sharding = Sharding(*(float(getattr(row, degree) or 1) for degree in DEGREES))
    return Layout(known.get(name) or device(name), sharding, weights, kv, row.max_num_batched_tokens)


def _high_usd_per_month(row: StatedPlan) -> float | None:
    """Return the high end of the cost, which a file with a low end leaves empty where no number of replicas is enough."""
    high = row.usd_per_month_high
    return inf if high is None and row.usd_per_month_low is not None else high


def _seen(row: StatedPlan, demand: Demand) -> SeenByUsers | None:
    """Return the latencies with the wait of each request; None if all wait equally long."""
    if row.outside is None or not waits_of(demand.classes).are_unlike:
        return None
    seen, classes = row.outside, row.outside.seen_by_class_s
    if [one.name for one in classes] != [item.name for item in demand.classes]:
        return SeenByUsers(seen.seen_ttft_s, seen.seen_e2e_s)
    by_class = tuple(one.ttft_s for one in classes), tuple(one.e2e_s for one in classes)
    return SeenByUsers(seen.seen_ttft_s, seen.seen_e2e_s, by_class)


def scenario_beside(scenario: Path | None, file: PlanFile, settings: Sequence[str]) -> Scenario:
    """Return the scenario that a plan is held against: a file, or the one it was made for, with some keys overridden."""
    if scenario is not None:
        return read_scenario(scenario, settings)
    overrides = (*file.settings, *settings)
    return scenario_from(overridden(file.document, settings), scenario_folder(file.scenario), overrides)


def asked_of_plan(
    scenario: Path | None, plan: Path | None, settings: Sequence[str] = (), *, offline: bool
) -> tuple[AskedFleet, FleetAnswer | None]:
    """Return the question of a scenario, or of the one a plan was made for, and the answer in the plan file.

    Keys that `settings` override need a new search, so capplan rejects them together with a plan file.
    """
    if plan is not None and settings:
        raise InputError(
            f"--set: {settings[0]} may change the plan, and --plan keeps the one of {plan}; leave one of them out"
        )
    if plan is None:
        if scenario is None:
            raise InputError(
                "no scenario is given\n  e.g. support-chat, the path of a YAML, or --plan plan.json"
            )
        return asked_fleet(read_scenario(scenario, settings), offline=offline), None
    file = read_plan_file(plan)
    as_read = scenario_beside(scenario, file, file.settings if scenario else ())
    asked = asked_fleet(as_read, offline=offline)
    asked = replace(asked, warnings=(*file.remarks, *asked.warnings))
    return asked, answer_of(file, asked)


def answered(
    path: Path, progress: Callable[[int, int], None] | None = None, *, offline: bool
) -> tuple[AskedFleet, FleetAnswer, Plan]:
    """Return the question, the plans and the recommended one of a plan file, or of a scenario that is searched.

    Raises
    ------
    TargetError
        no plan meets the targets of the scenario
    """
    if is_plan_file(path):
        asked, answer = asked_of_plan(None, path, offline=offline)
    else:
        asked, answer = asked_fleet(read_scenario(path), offline=offline), None
    answer = answer or fleet_for(asked, progress)
    plan = answer.chosen
    if plan is None:
        raise TargetError(
            f"{asked.scenario.name}: no plan meets the targets\n  what is in the way: capplan fleet {asked.scenario.command_words()}"
        )
    return asked, answer, plan
