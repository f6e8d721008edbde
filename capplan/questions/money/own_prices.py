"""Price lists that a person has, as a dated layer over those that ship, and what they change in dollars."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from capplan.errors import InputError
from capplan.money.token_price import TokenPrice
from capplan.questions.money.ledger import paid_plan
from capplan.questions.plans.plan_file import asked_of_plan
from capplan.readers.catalogue.offer_terms import PROJECT_FOLDER, known_machines, machines_in, user_folder
from capplan.readers.catalogue.price_exports import Priced, offers_in
from capplan.readers.catalogue.token_prices import litellm_prices, token_prices
from capplan.readers.text_file import read_text
from capplan.readers.yaml_file import schema_line, yaml_text

_MAX_BYTES = 2_000_000_000
_SAME_WITHIN = 1e-6


@dataclass(frozen=True, slots=True)
class PriceUpdate:
    """What the files of a person become, and what they change."""

    texts: Mapping[Path, str]
    """File of the layer -> its content."""
    machines: tuple[Mapping[str, Any], ...]
    """Machines whose price is another one, or new."""
    apis: tuple[Mapping[str, Any], ...]
    """Hosted APIs of the list so far whose price is another one."""
    counts: Mapping[str, int]
    """Offers read, by file."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Machines that the catalogue lacks, and how often they are offered."""


def price_update(files: Sequence[Path], day: str | None, *, project: bool) -> PriceUpdate:
    """Return what price lists add to the layer of the user, or of the project.

    Parameters
    ----------
    files : of LiteLLM, AWS, Azure or GCP in JSON, or a CSV of one's own offers
    day : of files that do not state it
    project : whether the layer is the folder .capplan here instead of that of the user
    """
    folder = Path(PROJECT_FOLDER) if project else user_folder()
    texts: dict[Path, str] = {}
    offers: list[Priced] = []
    counts: dict[str, int] = {}
    left_out: Counter[str] = Counter()
    apis: list[Mapping[str, Any]] = []
    for path in files:
        text = (
            read_text(path, kind="a price list", max_bytes=_MAX_BYTES)
            if path.suffix.lower() == ".json"
            else ""
        )
        if '"input_cost_per_token"' in text:
            if day is None:
                raise InputError(
                    f"{path}: states no date for its prices; say which day they are of: --date 2026-11-01"
                )
            prices = litellm_prices(path, day)
            texts[folder / "token_prices" / f"{day}-{_word(path.stem)}.json"] = text
            apis += _changed_apis(prices)
            counts[str(path)] = len(prices)
            continue
        found, missing = offers_in(path, day)
        offers += found
        left_out += missing
        counts[str(path)] = len(found)
    changed = tuple(_changed_machines(offers))
    for provider in dict.fromkeys(offer.provider for _, offer in offers):
        path = folder / "machines" / f"{_word(provider)}.yaml"
        texts[path] = _machine_file(path, provider, [one for one in offers if one[1].provider == provider])
    return PriceUpdate(texts, changed, tuple(apis), counts, left_out)


def _word(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "prices"


def _changed_machines(offers: Sequence[Priced]) -> list[dict[str, Any]]:
    """Return the offers whose price differs from that of the catalogue so far, the largest changes first."""
    known = {
        (item.provider, item.name, offer.region, offer.commitment): offer
        for item in known_machines()
        for offer in item.record.offers
    }
    rows = []
    for commitment, offer in offers:
        before = known.get((offer.provider, offer.sku, offer.region, commitment))
        if before is not None and abs(before.price - offer.usd_per_hour) <= _SAME_WITHIN * before.price:
            continue
        rows.append(
            {
                "machine": offer.sku,
                "provider": offer.provider,
                "region": offer.region,
                "commitment": commitment,
                "before_usd_per_hour": before.price if before else None,
                "date_before": before.date if before else None,
                "usd_per_hour": offer.usd_per_hour,
                "date": offer.date,
            }
        )
    return sorted(
        rows, key=lambda row: -abs(row["usd_per_hour"] - (row["before_usd_per_hour"] or row["usd_per_hour"]))
    )


def _changed_apis(prices: Sequence[TokenPrice]) -> list[dict[str, Any]]:
    """Return the APIs of the list so far that have another price of input or output."""
    known = {price.name.lower(): price for price in token_prices()}
    rows = []
    for price in prices:
        before = known.get(price.name.lower())
        if before is None or (before.rates.input, before.rates.output) == (
            price.rates.input,
            price.rates.output,
        ):
            continue
        rows.append(
            {
                "api": price.name,
                "before_input_usd_per_million_tokens": before.rates.input,
                "input_usd_per_million_tokens": price.rates.input,
                "before_output_usd_per_million_tokens": before.rates.output,
                "output_usd_per_million_tokens": price.rates.output,
                "date_before": before.date,
                "date": price.date,
            }
        )
    return rows


def _machine_file(path: Path, provider: str, offers: Sequence[Priced]) -> str:
    """Return the file of a provider in the layer: what it has so far, with these offers in the place of those that they replace."""
    machines: dict[str, dict[str, Any]] = {}
    pages: dict[str, str] = {}

    def put(sku: str, device: str, gpus: int, key: tuple[str | None, str], *terms: Any) -> None:
        machine = machines.setdefault(sku, {"sku": sku, "device": device, "gpus": gpus, "offers": {}})
        (region, commitment), (usd, listed, day, source) = key, terms
        price = {"price": f"{usd:.12g} $/h"} | ({"list_price": f"{listed:.12g} $/h"} if listed else {})
        row = {"region": region, "commitment": commitment, **price, "date": day, "source": source}
        machine["offers"][key] = row

    for item in machines_in(path) if path.exists() else ():
        record = item.record
        for old in record.offers:
            pages[old.source] = item.sources[old.source]
            key = (old.region, old.commitment)
            put(item.name, record.device, record.gpus, key, old.price, old.list_price, old.date, old.source)
    for commitment, offer in offers:
        source = _word(f"own {offer.date}")
        pages[source] = f"your own list of {offer.date}"
        key = (offer.region, commitment)
        terms = (offer.usd_per_hour, offer.list_usd_per_hour, offer.date, source)
        put(offer.sku, offer.device, offer.gpus, key, *terms)
    rows = [machine | {"offers": list(machine["offers"].values())} for machine in machines.values()]
    used = {offer["source"] for row in rows for offer in row["offers"]}
    sources = {key: {"title": text, "url": text} for key, text in pages.items() if key in used}
    return f"{schema_line('machines')}\n{yaml_text({'provider': provider, 'sources': sources, 'machines': rows})}"


@dataclass(frozen=True, slots=True)
class PlanCost:
    """What the machines of a plan cost at the prices of now."""

    usd: float
    """Cost of a month, or of one job."""
    order: str
    """Its machines and who sells them, in words."""


def plan_costs(plans: Sequence[Path], today: date, *, offline: bool) -> dict[Path, PlanCost]:
    """Return what the replicas of plans cost at the prices of now, each in the machines that a new order would have."""
    costs = {}
    for path in plans:
        asked, answer = asked_of_plan(None, path, offline=offline)
        assert answer is not None
        paid = paid_plan(asked, answer, "it has no price", today)
        usd = paid.machines_usd
        if paid.mix is None:
            usd = paid.hours * sum(
                group.usd_per_hour_of(group.busy_replicas) or 0.0 for group in paid.plan.groups
            )
        lines = [line for group in paid.plan.groups if group.order for line in group.order.lines]
        order = ", ".join(f"{line.count} x {line.machine.name} at {line.machine.provider}" for line in lines)
        costs[path] = PlanCost(usd, order)
    return costs
