"""What `capplan fleet` shows of models that share devices: the pool, what each of them takes of it, and a fleet for each."""

from collections import Counter
from typing import Any

from capplan.fleet.order import Order
from capplan.fleet.plan import Plan
from capplan.fleet.price import usd_per_month
from capplan.questions.plans.plan_row import machine_rows, plan_row
from capplan.questions.sharing import SharedPool, SharingAnswer, SharingModel
from capplan.report.answer import Answer, Table
from capplan.report.answers.fleet_money import currency_texts
from capplan.report.answers.fleet_words import against_text
from capplan.report.answers.order import lines_texts
from capplan.report.answers.plan_words import layout_text, purchase_text
from capplan.scenario.several.models import one_by_one

_TITLES = {
    "model": "",
    "replica": "layout",
    "request_rate": "peak",
    "alone": "a fleet of its own",
    "slice": "MIG slice",
    "cut": "cut into",
    "hour": "",
}


def sharing_answer(found: SharingAnswer) -> Answer:
    """Return the pool, its models, and the fleets that it takes the place of."""
    rows = [_row(found, model, plan) for model, plan in zip(found.models, found.pool.plans, strict=True)]
    columns = (
        "model",
        "network",
        "request_rate",
        "memory_fraction",
        "slice",
        "replica",
        "replicas",
        "ttft_p95_s",
        "tpot_p95_s",
        "slo_met_probability",
    )
    known = tuple(name for name in columns if any(row[name] is not None for row in rows))
    return Answer(
        command="fleet",
        result=_result(found, rows),
        tables=(
            Table(
                rows,
                title=f"In the pool of {found.pool.gpus} x {found.pool.hardware}",
                shown=known,
                titles=_TITLES,
                assumed=_assumed(found),
                spare=("network", "replica"),
            ),
            *_hours(found),
            *_cut(found),
            Table(
                _apart(found),
                title="A fleet for each",
                shown=("model", "alone", "gpus", "usd_per_month"),
                titles=_TITLES,
            ),
        ),
        headline=_headline(found),
        closing=(
            *_slices_text(found),
            *_ordered_texts(found.pool),
            one_by_one("sharing"),
            *currency_texts(found.scenario.currency, {"per month": found.pool.usd_per_month}),
        ),
        assumptions=found.assumptions,
        warnings=found.warnings,
    )


def _row(found: SharingAnswer, model: SharingModel, plan: Plan) -> dict[str, Any]:
    at = found.models.index(model)
    idle = model.paid is None
    return {
        "model": model.name,
        "network": model.network_name,
        "request_rate": None
        if idle
        else sum(item.request_rate_at() for item in model.asked.question.demand.classes),
        "memory_fraction": model.memory_fraction,
        "slice": plan.hardware.partition(":")[2] or None,
        "replica": layout_text(plan),
        "replicas": int(found.pool.hourly_replicas[at].max()),
        "ttft_p95_s": None if idle else plan.ttft_s.p95 * found.slices,
        "tpot_p95_s": None if idle else plan.tpot_s.p95 * found.slices,
        "slo_met_probability": None if idle else plan.slo_met_probability,
    }


def _slices_text(found: SharingAnswer) -> tuple[str, ...]:
    """Return what the latencies of slices stand for; nothing where a device has one model at a time."""
    if found.slices == 1:
        return ()
    return (
        f"TTFT and TPOT are those of a device that all {found.slices} models keep busy; while the others pause, a step takes down to "
        f"1/{found.slices} of the time",
    )


def _ordered_texts(pool: SharedPool) -> tuple[str, ...]:
    """Return the machines of the pool, and those to order today."""
    order, today = pool.order, pool.stated_order
    return lines_texts(order.lines if order else (), today.lines if today else ())


def _order_row(order: Order | None, hardware: str) -> dict[str, Any] | None:
    """Return the machines of a pool with the keys of JSON; None without an order."""
    if order is None:
        return None
    return {
        "machines": machine_rows(order.lines, hardware),
        "gpus": order.gpus,
        "usd_per_hour": order.usd_per_hour,
        "usd_per_month": float(usd_per_month(order.usd_per_hour)),
    }


def _hours(found: SharingAnswer) -> tuple[Table, ...]:
    """Return the replicas of each model in the hours of a day, where devices are moved between them."""
    if found.terms.by != "hour":
        return ()
    pool = found.pool
    rows = [
        {"hour": hour}
        | {model.name: int(pool.hourly_replicas[at, hour]) for at, model in enumerate(found.models)}
        | {"gpus": int(gpus)}
        for hour, gpus in enumerate(pool.hourly_gpus)
    ]
    return (Table(rows, title="Replicas by the hour, and GPUs for this hour and the next", titles=_TITLES),)


def _cut(found: SharingAnswer) -> tuple[Table, ...]:
    """Return what the GPUs are cut into, those cut alike in one row; nothing where they are whole."""
    alike = Counter(found.pool.cut)
    rows = [{"gpus": gpus, "cut": " + ".join(slices)} for slices, gpus in alike.items()]
    return (Table(rows, title="How the GPUs are cut, without spares", titles=_TITLES),) if rows else ()


def _assumed(found: SharingAnswer) -> frozenset[tuple[int, str]]:
    """Return the latencies that rest on kernels that were not measured on the device."""
    names = ("ttft_p95_s", "tpot_p95_s", "slo_met_probability")
    rows = [index for index, plan in enumerate(found.pool.plans) if plan.single.label == "assumed"]
    return frozenset((index, name) for index in rows for name in names)


def _apart(found: SharingAnswer) -> list[dict[str, Any]]:
    rows = [
        {
            "model": model.name,
            "alone": purchase_text(model.paid.plan),
            "gpus": model.paid.plan.gpus,
            "usd_per_month": model.paid.machines_usd,
        }
        for model in found.models
        if model.paid
    ]
    return [*rows, {"model": "together", "alone": None, **_apart_in_all(found)}]


def _apart_in_all(found: SharingAnswer) -> dict[str, float]:
    """Return the devices and the cost of the fleets that the pool takes the place of."""
    return {
        "gpus": sum(paid.plan.gpus for paid in found.apart),
        "usd_per_month": sum(paid.machines_usd for paid in found.apart),
    }


def _result(found: SharingAnswer, rows: list[dict[str, Any]]) -> dict[str, Any]:
    pool = found.pool
    return {
        "scenario": found.scenario.name,
        "sharing": {
            "by": found.terms.by,
            "hardware": pool.hardware,
            "gpus": pool.gpus,
            "spare_gpus": pool.spare_gpus,
            "gpus_by_hour": pool.hourly_gpus.tolist(),
            "usd_per_month": pool.usd_per_month,
            "usd_per_gpu_hour": None if pool.price is None else pool.price.total_usd_per_hour,
            "order": _order_row(pool.order, pool.hardware),
            "stated_order": _order_row(pool.stated_order, pool.hardware),
            "cut": [list(slices) for slices in pool.cut],
            **{f"apart_{name}": value for name, value in _apart_in_all(found).items()},
        },
        "models": [
            {
                **row,
                "replicas_by_hour": hours.tolist(),
                "alone": plan_row(model.paid.plan) if model.paid else None,
            }
            for row, hours, model in zip(rows, pool.hourly_replicas, found.models, strict=True)
        ],
    }


def _headline(found: SharingAnswer) -> str:
    pool, apart = found.pool, _apart_in_all(found)
    usd = pool.usd_per_month
    spare = f" ({pool.spare_gpus} of them spare)" if pool.spare_gpus else ""
    return (
        f"{found.scenario.name}: {pool.gpus} x {pool.hardware}{spare} for {len(found.models)} models, ${usd:,.0f} per month, {against_text(usd, apart['usd_per_month'])} a fleet for "
        f"each ({apart['gpus']} GPUs, ${apart['usd_per_month']:,.0f})"
    )
