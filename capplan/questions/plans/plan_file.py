"""A plan file -> the answer in it, without another search."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from math import inf, nan
from pathlib import Path
from typing import Any

from capplan.accuracy.bounded import BoundedSpread
from capplan.errors import InputError, Refusal, TargetError
from capplan.fleet.plan import (
    PHASES,
    Certainty,
    Choices,
    FleetAnswer,
    Group,
    NextSteps,
    Plan,
    PoolsSearch,
    Role,
    Step,
    TightTarget,
    Transfer,
    Uneconomical,
    Unproven,
)
from capplan.fleet.pools.link import LinkTerms, LinkUse
from capplan.fleet.price import HOURS_PER_MONTH
from capplan.fleet.scenario import Scenario
from capplan.fleet.search.candidates import Layout, Rejection
from capplan.fleet.survival import Survival
from capplan.fleet.unit_costs import UnitCosts
from capplan.model.sharding import Sharding
from capplan.questions.fleet import AskedFleet, asked_fleet, fleet_for
from capplan.readers.catalogue.hardware import device
from capplan.readers.plan_file import AGAIN, PlanFile, is_plan_file, read_plan_file
from capplan.readers.plan_record import has_pools
from capplan.scenario.reading import overridden
from capplan.scenario.scenario import read_scenario, scenario_from
from capplan.workload.outside import outside_use

_OF_GROUP = (
    "replicas", "spare_replicas", "concurrency_per_replica", "request_rate_per_replica", "kv_cache_tokens", "label",
)  # fmt: skip
"""Fields of a group that its row has under the same name."""
_OF_PLAN = (
    "slo_met_probability", "few_open_loops_measured", "target_probabilities", "usd_per_hour", "usd_per_month_low",
)  # fmt: skip
"""Fields of any plan that its row has under the same name."""
_OF_ALIKE = (
    "usd_per_million_output_tokens",
    "usd_per_million_tokens",
    "bottleneck",
    "checked",
    "draft_tokens",
    "routing",
)
"""The same of a plan of identical replicas."""


def answer_of(file: PlanFile, asked: AskedFleet) -> FleetAnswer:
    """Return the answer in a plan file; InputError where another version wrote it in a form that cannot be read."""
    _refuse_other_targets(file, asked)
    try:
        return _answer(file.result, asked)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{file.path}: was written by capplan {file.version} and can no longer be read\n  {AGAIN}"
        ) from error


def _refuse_other_targets(file: PlanFile, asked: AskedFleet) -> None:
    """Raise the error for a plan that does not say of each target of the scenario how likely it is to hold."""
    targets = {target.key for target in asked.question.slo.targets}
    choices = file.result["choices"] or {}
    rows = [*choices.values(), *file.result["plans"]]
    every = (
        [set(file.inputs.targets)]
        if has_pools(file.result)
        else [set(file.result["chosen"]["target_probabilities"])]
    )
    for held in (*every, *(set(row["target_probabilities"]) for row in rows)):
        if held != targets:
            of_plan, of_scenario = (", ".join(sorted(keys)) or "none" for keys in (held, targets))
            raise InputError(
                f"{file.path}: was made for the targets {of_plan}, and those of {asked.scenario.name} are {of_scenario}\n  {AGAIN}"
            )


def _answer(result: Mapping[str, Any], asked: AskedFleet) -> FleetAnswer:
    plans = tuple(_either(row, asked) for row in result["plans"])
    choices = None
    if result["choices"] is not None:
        named = {name: _either(result["choices"][name], asked) for name in ("cheapest", "surest", "fewest")}
        choices = Choices(**named, recommended=_either(result["chosen"], asked), why=result["why"])
    return FleetAnswer(
        plans,
        tuple(_rejection(row) for row in result["rejected"]),
        result["evaluated"],
        choices=choices,
        certainty=tuple(_certainty(row, asked) for row in result["certainty"]),
        uneconomical=tuple(
            _uneconomical(row) for row in result.get("uneconomical") or result.get("insensible") or ()
        ),
        tight=_tight(result.get("tight_target")),
        next_steps=_next_steps(result.get("next_steps")),
        pools=_pools_search(result["disaggregated"]),
    )


def chosen_in(file: PlanFile, asked: AskedFleet) -> Plan:
    """Return the recommended plan of a plan file, under the prices of a question that has its weight dtype."""
    return _either(file.result["chosen"], asked)


def _rejection(row: Mapping[str, Any]) -> Rejection:
    return Rejection(row["hardware"], row["reason"], row["count"], Refusal(row["code"]))


def _pools_search(row: Mapping[str, Any] | None) -> PoolsSearch | None:
    """Return how separate pools were searched; None if they were not, or in a file that does not say so."""
    if row is None:
        return None
    rejected = tuple(_rejection(item) for item in row["rejected"])
    return PoolsSearch(rejected, row["evaluated"], row["simulated_pairs"])


def _pools_plan(row: Mapping[str, Any], link: LinkTerms, asked: AskedFleet) -> Plan:
    use = LinkUse(**{("name" if key == "link" else key): value for key, value in row["transfer"].items()})
    groups = tuple(
        _group(role, row["pools"][role] | {key: row[key] for key in ("weight_dtype", "kv_dtype")}, asked)
        for role in PHASES
    )
    return Plan(
        groups, **_shared(row, asked), transfer=Transfer(link, use), requests=row["simulated_requests"]
    )


def _shared(row: Mapping[str, Any], asked: AskedFleet) -> dict[str, Any]:
    """Return the fields that plans of every kind have."""
    responses_s = row.get("class_e2e_mean_s", row["e2e_s"]["mean"])
    return {
        **{name: row[name] for name in _OF_PLAN},
        **{name: _spread(row[name]) for name in ("ttft_s", "tpot_s", "e2e_s")},
        "money": _money(row),
        "usd_per_month_high": _high_usd_per_month(row),
        "outside": outside_use(asked.question.demand.classes, responses_s, HOURS_PER_MONTH),
        "class_e2e_s": tuple(row.get("class_e2e_mean_s", ())),
    }


def _survives(row: Mapping[str, Any], layout: Layout, asked: AskedFleet) -> Survival:
    """Return what replicas of a row survive: as the scenario says, or their spares, if these are others."""
    stated, price = asked.scenario.fleet.survive, asked.prices.get(layout.device.name)
    busy, spares = row["replicas"] - row["spare_replicas"], row["spare_replicas"]
    node = layout.device.node_devices
    planned = price.spares(layout.devices, node, busy, stated) if price else stated.least_spares(busy)
    return stated if planned == spares else Survival("replica", spares)


def _group(role: Role, row: Mapping[str, Any], asked: AskedFleet) -> Group:
    layout = _layout(row, asked)
    return Group(
        role,
        layout,
        row["weight_dtype"],
        survive=_survives(row, layout, asked),
        **{name: row[name] for name in _OF_GROUP},
        planned_rate_limit_per_replica=row["planned_request_rate_limit_per_replica"],
        request_rate_limit_per_replica=row.get("request_rate_limit_per_replica"),
        sure_rate_limit_per_replica=row.get("sure_request_rate_limit_per_replica"),
        busy_fraction=row.get("busy_fraction"),
        price=asked.prices.get(layout.device.name),
    )


def _layout(row: Mapping[str, Any], asked: AskedFleet) -> Layout:
    known = {item.name: item for item in asked.question.devices}
    hardware = known.get(row["hardware"]) or device(row["hardware"])
    degrees = [float(row[f"{name}_parallel"]) for name in ("tensor", "pipeline", "expert", "data")]
    if row["weight_dtype"] not in asked.question.networks:
        raise KeyError(row["weight_dtype"])
    return Layout(hardware, Sharding(*degrees), row["weight_dtype"], row["kv_dtype"])


def _either(row: Mapping[str, Any], asked: AskedFleet) -> Plan:
    """Return a plan of identical replicas, or of separate pools; InputError if the scenario allows no pools."""
    if "pools" not in row:
        return _plan(row, asked)
    limits = asked.scenario.fleet.pools
    if limits is None:
        raise InputError(
            f"{asked.scenario.path}: fleet.disaggregation is off, and the plan has separate pools for prefill and decode\n"
            "  name the scenario that it was made for, or leave the scenario out"
        )
    return _pools_plan(row, limits.link, asked)


def _plan(row: Mapping[str, Any], asked: AskedFleet) -> Plan:
    alike = {name: row[name] for name in _OF_ALIKE}
    return Plan((_group("serve", row, asked),), **_shared(row, asked), **alike)


def _high_usd_per_month(row: Mapping[str, Any]) -> float | None:
    """Return the high end of the cost, which a file with a low end leaves empty where no number of replicas is enough."""
    high: float | None = row["usd_per_month_high"]
    return inf if high is None and row["usd_per_month_low"] is not None else high


def _certainty(row: Mapping[str, Any], asked: AskedFleet) -> Certainty:
    """Return the cheapest fleet at one confidence; without its layout where it has separate pools, or the file is an older one."""
    cost = {name: row[name] for name in ("confidence", "hardware", "gpus", "usd_per_month")}
    if row.get("kv_dtype") is None:
        return Certainty(**cost)
    return Certainty(
        **cost,
        replicas=row["replicas"],
        spare_replicas=row["spare_replicas"],
        layout=_layout(row, asked),
        weight_dtype=row["weight_dtype"],
    )


def _uneconomical(row: Mapping[str, Any]) -> Uneconomical:
    names = {field.name for field in fields(Uneconomical)}
    known = {name: value for name, value in row.items() if name in names}
    return Uneconomical(**{**known, "gpus_at": _gpus_at(row)})


def _gpus_at(row: Mapping[str, Any]) -> tuple[tuple[float, int], ...]:
    return tuple((entry["limit_s"], entry["gpus"]) for entry in row["gpus_at"])


def _tight(row: Mapping[str, Any] | None) -> TightTarget | None:
    return None if row is None else TightTarget(**{**row, "gpus_at": _gpus_at(row)})


def _next_steps(row: Mapping[str, Any] | None) -> NextSteps | None:
    """Return the next steps of a recommended plan; None where it has none, or the file is an older one."""
    if row is None:
        return None
    surer = tuple(Step(step["confidence"], step["gpus"], step["usd_per_month"]) for step in row["surer"])
    predicted = row["as_predicted"]
    unproven = tuple(
        Unproven(device["hardware"], device["gpus"], device["usd_per_month"]) for device in row["unmeasured"]
    )
    return NextSteps(surer, predicted["gpus"], predicted["usd_per_month"], unproven)


def _spread(values: Mapping[str, float | None]) -> BoundedSpread:
    """Return a latency; not a number where no request has it."""
    known = {name: nan if value is None else value for name, value in values.items()}
    return BoundedSpread(**{field.name: known[field.name] for field in fields(BoundedSpread)})


def _money(row: Mapping[str, Any]) -> UnitCosts | None:
    if row["usd_per_million_tokens_at_mean"] is None:
        return None
    return UnitCosts(
        row["usd_per_million_output_tokens_at_mean"],
        row["usd_per_million_tokens_at_mean"],
        row["job_hours"],
        row["usd_per_job"],
        row["usd_per_thousand_requests"],
    )


def scenario_beside(scenario: Path | None, file: PlanFile, settings: Sequence[str]) -> Scenario:
    """Return the scenario that a plan is held against: a file, or the one it was made for, with some keys overridden."""
    if scenario is not None:
        return read_scenario(scenario, settings)
    return scenario_from(overridden(file.document, settings), file.scenario.resolve().parent)


def asked_of_plan(
    scenario: Path | None, plan: Path | None, settings: Sequence[str] = (), *, offline: bool
) -> tuple[AskedFleet, FleetAnswer | None]:
    """Return the question of a scenario, or of the one a plan was made for, and the answer in the plan file.

    Keys that `settings` override need a new search, so they are refused beside a plan file.
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
            f"{asked.scenario.name}: no plan meets the targets\n  what is in the way: capplan fleet {path}"
        )
    return asked, answer, plan
