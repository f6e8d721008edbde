"""A plan as a row with the keys of the interface, which a plan file holds and programs read, and what the plan was made from.

A plan file states scenario, files, model, engine, prices, and what the engines are started with.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from capplan.fleet.answer import Certainty
from capplan.fleet.group import Group
from capplan.fleet.load.demand import planned_demand
from capplan.fleet.plan import Plan
from capplan.fleet.pools.link import LinkTerms
from capplan.fleet.review import spec_of_layout
from capplan.fleet.unit_costs import UnitCosts
from capplan.money.order import OrderLine
from capplan.money.price import ChosenPrice, usd_per_month
from capplan.questions.fleet import SAME_RATE, AskedFleet
from capplan.readers.catalogue.hardware import network_of_sku
from capplan.readers.catalogue.models import model_source
from capplan.readers.catalogue.scenarios import scenario_folder
from capplan.readers.plan_file import COMPOSED, StatedGroup, StatedPlan
from capplan.readers.text_file import MAX_BYTES, digest, path_of, whole_path
from capplan.replica.plans import plans_of, started_scheduling
from capplan.replica.replica import memory_of, replica_of, typical_context_tokens
from capplan.replica.speculation import best_speculating_replica

MONTHS_PER_YEAR = 12.0
OWN_PRICE = "the scenario"
"""Who offers a price that the scenario states."""
OF_ANY_FLEET = ("confidence", "hardware", "gpus", "usd_per_month")
"""Keys of the cheapest fleet at one confidence that it has with several groups too."""
OF_GROUPS_ALONE = ("role", "model", "busy_fraction", "requests")
"""Keys of a group that a plan of one group does not repeat."""


def plan_row(plan: Plan) -> dict[str, Any]:
    """Return one plan with the keys of the interface.

    What its groups of replicas are like is in `groups`; a plan of one group has these keys itself too.
    """
    from capplan.fleet.waterfall import waterfall

    groups = [_columns(StatedGroup, group) | group.layout.degrees for group in plan.groups]
    first = groups[0] if len(groups) == 1 else {}
    return {
        **{key: value for key, value in first.items() if key not in OF_GROUPS_ALONE},
        **_columns(StatedPlan, plan),
        **(asdict(plan.money) if plan.money else dict.fromkeys(field.name for field in fields(UnitCosts))),
        "offers": offers_row(plan),
        "outside": outside_row(plan),
        "groups": groups,
        "transfer": asdict(plan.transfer.at_peak) if plan.transfer else None,
        "order": order_row(plan),
        "survival": survival_row(plan),
        "waterfall": [asdict(step) for step in waterfall(plan)],
    }


def _columns(stated: type, of: Plan | Group) -> dict[str, Any]:
    """Return what a plan file holds of a plan or a group under the names that it has there; what has no end is None."""
    names = [field.name for field in fields(stated) if field.name not in COMPOSED]
    return {name: _column(getattr(of, name)) for name in names}


def _column(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [_column(each) for each in value]
    return None if value == inf else value


def order_row(plan: Plan) -> dict[str, Any] | None:
    """Return the machines of a plan, line by line; None without a price."""
    order = plan.order
    if order is None:
        return None
    return {
        "machines": machine_rows(order.lines, plan.hardware),
        "placement": [
            {
                "sku": item.machine.sku or None,
                "machines": item.machines,
                "replicas": item.replicas,
                "machines_per_replica": item.span,
            }
            for item in order.placed
        ],
        "gpus": order.gpus,
        "gpus_owned": order.gpus_owned,
        "gpus_idle": order.gpus_idle,
        "free_replicas": order.free_replicas,
        "energy_usd_per_hour": order.energy_usd_per_hour,
        "usd_per_hour": order.usd_per_hour,
        "usd_per_month": float(usd_per_month(order.usd_per_hour)),
    }


def machine_rows(lines: Sequence[OrderLine], hardware: str) -> list[dict[str, Any]]:
    """Return the machines of an order with the keys of the interface; those of no device are of the hardware of the plan."""
    return [
        {
            "sku": line.machine.sku or None,
            "provider": line.machine.provider,
            "region": line.machine.region,
            "hardware": line.machine.device or hardware,
            "gpus": line.machine.gpus,
            "count": line.count,
            "usd_per_hour": line.machine.usd_per_hour,
            "date": line.machine.date,
            "source": line.machine.source or None,
        }
        for line in lines
    ]


def survival_row(plan: Plan) -> dict[str, Any] | None:
    """Return what a plan survives, and how likely enough of it is in service; None without a price."""
    found, survive = plan.availability, plan.groups[0].survive
    if found is None:
        return None
    now, more = found.now, found.more
    return {
        "domain": survive.domain,
        "count": survive.count,
        "time_fraction": now.time_fraction,
        "month_probability": now.month_probability,
        "failures_per_month": now.failures_per_month,
        "hours_to_repair": survive.failures.repair_s / 3600.0,
        "one_machine_more": more
        and {
            "machine": more.machine,
            "usd_per_month": float(usd_per_month(more.usd_per_hour)),
            "time_fraction": more.availability.time_fraction,
            "month_probability": more.availability.month_probability,
        },
    }


def certainty_row(row: Certainty) -> dict[str, Any]:
    """Return the cheapest fleet at one confidence; its layout is left out where it has several groups."""
    return {name: value for name, value in asdict(row).items() if row.has_layout or name in OF_ANY_FLEET}


def offers_row(plan: Plan) -> dict[str, Any] | None:
    """Return what a plan costs at the lowest offers, at those it is priced at, and at the highest; None without a price."""
    job_hours = plan.money.job_hours if plan.money else None
    return {
        side: {
            "usd_per_hour": usd,
            "usd_per_month": usd_per_month(usd),
            "usd_per_year": MONTHS_PER_YEAR * usd_per_month(usd),
            "usd_per_job": None if job_hours is None else usd * job_hours,
            "providers": [record.provider for record in records] or [OWN_PRICE],
            "dates": [record.date for record in records],
        }
        for side, (usd, records) in plan.offers.items()
    } or None


def outside_row(plan: Plan) -> dict[str, Any] | None:
    """Return what requests take outside the GPUs, and what users see with it; None where nothing is stated.

    To the latency of each request what its class waits is added.
    """
    use = plan.outside
    if use is None:
        return None
    return {
        "longest_wait_s": use.longest_wait_s,
        "mean_wait_s": use.mean_wait_s,
        "seen_ttft_s": asdict(plan.seen.ttft_s),
        "seen_e2e_s": asdict(plan.seen.e2e_s),
        "seen_by_class_s": [
            {"name": item.name, "ttft_s": asdict(ttft), "e2e_s": asdict(e2e)}
            for item, ttft, e2e in zip(use.classes, *plan.seen.by_class, strict=False)
        ],
        "usd_per_month": None if use.of_job else use.usd,
        "usd_per_job": use.usd if use.of_job else None,
    }


def plan_inputs(asked: AskedFleet, chosen: Plan | None) -> dict[str, Any]:
    """Return the inputs of a plan, as `readers.plan_file.InputsRow` reads them.

    Parameters
    ----------
    asked : the question of the scenario
    chosen : the recommended plan; None where there is none

    Returns
    -------
    the scenario as written, a digest of every file that it names, and what was looked up for it
    """
    scenario, question = asked.scenario, asked.question
    demand = question.demand
    if chosen is not None:
        demand = demand.of_plan(chosen.responses_s, chosen.class_prefix_hit_fractions)
    lengths = demand.lengths
    ordered = {group.hardware: group.quote for group in chosen.groups} if chosen else {}
    return {
        "content": scenario.written,
        "files": list(_named_files(asked)),
        "model": {
            "name": scenario.model,
            "revision": scenario.file.revision,
            "source": model_source(scenario.model, scenario.file.revision).title,
        },
        "engine": {
            "name": scenario.engine,
            "version": question.profile.asked_version or question.profile.version,
        },
        "targets": {
            target.key: chosen.engine_limit_s(target) if chosen else target.limit_s
            for target in scenario.slo.targets
        },
        "confidence": scenario.slo.confidence,
        "budget_usd_per_month": scenario.budget_usd_per_month,
        "headroom_fraction": scenario.fleet.headroom_fraction,
        "request_rate": planned_demand(
            question.demand, chosen.responses_s if chosen else 0.0
        ).peak_requests_per_s,
        "input_tokens": float(lengths.input_tokens),
        "output_tokens": float(lengths.output_tokens),
        "cached_tokens": float(lengths.cached_tokens),
        "prices": [_price(name, price) for name, price in {**asked.prices, **ordered}.items() if price],
        "launch": _launch(asked, chosen) if chosen else None,
    }


def _named_files(asked: AskedFleet) -> Iterator[dict[str, Any]]:
    scenario = asked.scenario
    folder = scenario_folder(Path(scenario.path))
    written: Mapping[str, Any] = scenario.written
    traces = [
        (f"traffic[{at}].trace", item.get("trace")) for at, item in enumerate(written.get("traffic", []))
    ]
    paths = [(key, str(whole_path(folder / path_of(name)))) for key, name in traces if name]
    paths += [
        (key, path)
        for key, path in (
            ("calibration", scenario.calibration),
            ("prices.file", scenario.price_file),
            ("hosted.file", scenario.hosted.file),
            ("model", scenario.model),
            ("speculation.draft", scenario.speculation.draft if scenario.speculation else None),
        )
        if path
    ]
    for key, path in paths:
        at = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
        if (sha256 := digest(at, MAX_BYTES)) is not None:
            yield {"key": key, "path": str(at), "sha256": sha256}


def _price(hardware: str, price: ChosenPrice) -> dict[str, Any]:
    return {
        "hardware": hardware,
        "usd_per_gpu_hour": price.usd_per_hour,
        "low_usd_per_gpu_hour": price.low_usd_per_hour,
        "high_usd_per_gpu_hour": price.high_usd_per_hour,
        "energy_usd_per_gpu_hour": price.energy_usd_per_hour,
        "commitment": price.commitment,
        "offers": price.offers,
        "providers": [record.provider for record in price.records],
        "dates": [record.date for record in price.records],
        "sources": [record.source for record in price.records],
    }


def _limits(asked: AskedFleet, group: Group) -> dict[str, Any]:
    """Return the limits with which one engine of a group is started."""
    spec = spec_of_layout(group.layout, asked.question)
    scheduling, drafting = started_scheduling(spec), asked.question.drafting
    sequences = scheduling.max_num_seqs
    if drafting is not None and group.draft_tokens and memory_of(spec).state_blocks < inf:
        stated, context = replace(drafting, draft_tokens=group.draft_tokens), typical_context_tokens(spec)
        drafts = best_speculating_replica(replica_of(spec), stated, 1.0, context)
        sequences = drafts.scheduling.max_num_seqs // int(spec.sharding.data)
    return {
        "max_num_seqs": sequences,
        "max_num_batched_tokens": scheduling.max_num_batched_tokens,
        "memory_fraction": float(np.ravel(plans_of([spec]).launch.memory_fraction)[0]),
    }


def _launch(asked: AskedFleet, plan: Plan) -> dict[str, Any]:
    """Return what one engine is started with; of a plan with separate pools, one that decodes."""
    scenario, group = asked.scenario, plan.groups[-1]
    speculation = scenario.speculation
    servers = [
        {
            "devices_per_server": each.layout.device.node_devices,
            "vendor": each.layout.device.vendor,
            **_limits(asked, each),
        }
        for each in plan.groups
    ]
    return {
        "max_model_len": asked.question.max_model_len,
        "gpu_memory_utilization": scenario.file.gpu_memory_utilization,
        **servers[-1],
        "servers": servers if any(server != servers[-1] for server in servers) else [],
        "runner": "pooling" if scenario.pooled else "generate",
        "chunked_prefill": scenario.file.chunked_prefill,
        "cuda_graphs": scenario.file.cuda_graphs,
        "adapters": scenario.lora and asdict(scenario.lora),
        "prefix_caching": scenario.file.prefix_caching is not False,
        "published_weight_dtypes": list(asked.published_formats),
        "speculation": speculation
        and {"method": speculation.method, "draft": speculation.draft, "draft_tokens": group.draft_tokens},
        "kv_offload": [asdict(tier) for tier in scenario.kv_offload],
    }


def slower_networks(plan: Plan) -> dict[str, tuple[float, float]]:
    """Return the machines whose network is slower than the plan counts on, of those that one replica spans or between which KV caches go.

        m / g < b (1 - 10^-3)

    Returns
    -------
    sku -> rates for each GPU [B/s]: m / g of the machine, whose network carries m for g GPUs, and b, which the plan counts on
    """
    found = {}
    link = plan.transfer.terms if plan.transfer is not None else None
    sent = link is not None and link.bytes_per_s is None and link.name == LinkTerms().name
    for group in plan.groups:
        counted = group.layout.device.network_bytes_per_s
        for placed in group.order.placed() if group.order and counted else ():
            each = network_of_sku(placed.machine.sku) if placed.span > 1 or sent else None
            if counted and each is not None and each < counted * (1.0 - SAME_RATE):
                found[placed.machine.sku] = (each, counted)
    return found


def is_at_one_provider(plan: Plan) -> bool:
    """Return whether all machines of a plan that are to be paid are at one provider, or nothing says at which."""
    order = plan.order
    lines = order.lines if order is not None else ()
    return len({line.machine.provider for line in lines if line.machine.source}) <= 1
