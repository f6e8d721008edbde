"""The cheapest mix of commitments: the tables and the record that `capplan fleet` adds."""

from typing import Any

from capplan.fleet.pools.plan import POOLS
from capplan.fleet.price import HOURS_PER_MONTH
from capplan.money.commitments import HOURS_PER_YEAR, Mix
from capplan.questions.money.commitments import AskedMix
from capplan.report.answer import Table

_TITLES = {
    "pool": "",
    "commitment": "",
    "price_basis": "price from",
    "used_fraction": "in use",
    "usd_per_gpu_hour": "",
    "usd_per_month": "",
    "usd_per_month_low": "low",
    "usd_per_month_high": "high",
    "usd_per_year": "",
    "mix": "",
    "plan": "each replica",
}


def mix_rows(mix: Mix) -> list[dict[str, Any]]:
    """Return the parts of a mix, each with its price per device and hour and its cost."""
    pools = any(part.group for part in mix.parts)
    return [
        {
            **({"pool": POOLS[part.group]} if pools else {}),
            "commitment": part.offer.name,
            "replicas": part.replicas,
            "gpus": part.replicas * part.devices,
            "used_fraction": part.used_fraction,
            "usd_per_gpu_hour": part.offer.usd_per_hour(1.0),
            **_totals(
                part.usd_per_hour,
                part.usd_per_hour * part.offer.low_ratio,
                part.usd_per_hour * part.offer.high_ratio,
            ),
            "price_basis": part.offer.origin,
        }
        for part in mix.parts
    ]


def _totals(usd_per_hour: float, low: float, high: float) -> dict[str, float]:
    return {
        "usd_per_month": usd_per_hour * HOURS_PER_MONTH,
        "usd_per_month_low": low * HOURS_PER_MONTH,
        "usd_per_month_high": high * HOURS_PER_MONTH,
        "usd_per_year": usd_per_hour * HOURS_PER_YEAR,
    }


def mix_totals(mix: Mix) -> dict[str, float]:
    """Return what a mix costs a month, low, likely and high, and a year."""
    return _totals(mix.usd_per_hour, mix.usd_per_hour_at("low"), mix.usd_per_hour_at("high"))


def pure_rows(mix: Mix) -> list[dict[str, Any]]:
    """Return what each commitment alone would cost, and the mix."""
    rows = [
        {
            "commitment": f"{offer.name} alone",
            **_totals(usd, usd * offer.low_ratio, usd * offer.high_ratio),
        }
        for offer, usd in mix.pure
    ]
    return [*rows, {"commitment": "the mix", **mix_totals(mix)}]


def commitments_result(mixes: tuple[AskedMix, ...]) -> dict[str, Any] | None:
    """Return the mix of the recommended plan, each commitment alone, and the mixes of the other plans."""
    if not mixes:
        return None
    mix = mixes[0].mix
    return {
        "rows": mix_rows(mix),
        **mix_totals(mix),
        "people_usd_per_month": mix.people_usd_per_hour * HOURS_PER_MONTH,
        "pure": pure_rows(mix),
        "plans": [_plan_row(item) for item in mixes],
    }


def _plan_row(item: AskedMix) -> dict[str, Any]:
    return {
        "hardware": item.plan.hardware,
        "plan": " + ".join(group.layout.in_words(group.weight_dtype) for group in item.plan.groups),
        "gpus": item.plan.gpus,
        "mix": " + ".join(
            ", ".join(f"{p.replicas * p.devices} {p.offer.name}" for p in item.mix.parts if p.group == place)
            for place in range(len(item.plan.groups))
        ),
        **mix_totals(item.mix),
    }


def commitments_tables(mixes: tuple[AskedMix, ...]) -> tuple[Table, ...]:
    """Return the mix of the recommended plan, against each commitment alone, and the mixes of other plans."""
    if not mixes:
        return ()
    mix = mixes[0].mix
    tables = [
        Table(mix_rows(mix), title="Commitments: the cheapest mix for the load curve", titles=_TITLES),
        Table(pure_rows(mix), title="The mix against one commitment alone", titles=_TITLES),
    ]
    if len(mixes) > 1:
        rows = sorted((_plan_row(item) for item in mixes), key=lambda row: float(row["usd_per_month"]))
        shown = ("hardware", "plan", "gpus", "mix", "usd_per_month", "usd_per_year")
        tables.append(
            Table(rows, title="Every plan with its own mix, cheapest first", shown=shown, titles=_TITLES)
        )
    return tuple(tables)


def commitments_closing(mixes: tuple[AskedMix, ...]) -> tuple[str, ...]:
    """Return the totals of the mix in words, and a plan that its mix makes cheaper."""
    if not mixes:
        return ()
    mix = mixes[0].mix
    usd = mix.usd_per_hour * HOURS_PER_YEAR
    lines = [
        "GPUs x $/GPU/h x in use (where only hours in use are paid for) x 730 = $/month; low and high: the range of the offers"
    ]
    lines += [f"the mix costs ${mix.usd_per_hour * HOURS_PER_MONTH:,.0f} a month, ${usd:,.0f} a year"]
    best = min(mixes, key=lambda item: item.mix.usd_per_hour)
    if best.mix.usd_per_hour < mix.usd_per_hour:
        row = _plan_row(best)
        lines.append(
            f"with commitments {row['gpus']} x {row['hardware']} ({row['plan']}) would cost less: ${row['usd_per_month']:,.0f} a month"
        )
    return tuple(lines)
