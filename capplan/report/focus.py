"""A bill in the columns of FOCUS 1.2 or 1.3, the FinOps Open Cost and Usage Specification, for FinOps tools.

By machine, rows are what providers charge: machines by what pays for them, reserved hours without a replica as `Unused`, people and the rest. By
class, the same charges are shared by the time of the GPUs: one row for input and one for output of each class and payment, and what the GPUs
cost while they wait is in rows of the sub-account `__idle__`, as OpenCost shows it. What is paid for a term is a Purchase in both:
`BilledCost` is what is paid in the month, `EffectiveCost` what is used up in it. The cost of capital, which nobody bills, is in `x_CapitalCost`;
tokens, the model and the device are in columns of our own, `x_...`, too.
https://focus.finops.org/focus-specification/v1-2/
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from typing import TypeAlias

from capplan.money.commitments import HOURS_PER_YEAR
from capplan.money.ledger import MachineEntry, Paid, cost_lines, machines_of, plain
from capplan.money.who_pays import Allocated, Share
from capplan.questions.money.who_pays import AskedBill
from capplan.report.answer import columns
from capplan.report.safe_text import csv_cell
from capplan.scenario.scenario_file import Scenario

VERSIONS = ("1.2", "1.3")
Columns: TypeAlias = dict[str, object]
COLUMNS = columns(
    "BilledCost BillingAccountId BillingAccountName BillingAccountType BillingCurrency "
    "BillingPeriodEnd BillingPeriodStart ChargeCategory ChargeClass ChargeDescription "
    "ChargeFrequency ChargePeriodEnd ChargePeriodStart CommitmentDiscountCategory "
    "CommitmentDiscountId CommitmentDiscountName CommitmentDiscountQuantity "
    "CommitmentDiscountStatus CommitmentDiscountType CommitmentDiscountUnit ConsumedQuantity "
    "ConsumedUnit ContractedCost ContractedUnitPrice EffectiveCost InvoiceIssuerName ListCost "
    "ListUnitPrice PricingCategory PricingCurrency PricingCurrencyContractedUnitPrice "
    "PricingCurrencyEffectiveCost PricingCurrencyListUnitPrice PricingQuantity PricingUnit "
    "ProviderName PublisherName RegionId RegionName ResourceId ResourceName ResourceType "
    "ServiceCategory ServiceName ServiceSubcategory SkuId SkuMeter SkuPriceId SubAccountId "
    "SubAccountName SubAccountType Tags"
)
NEWER_COLUMNS = columns(
    "AllocatedMethodDetails AllocatedMethodId AllocatedResourceId AllocatedResourceName "
    "AllocatedTags HostProviderName ServiceProviderName"
)
"""Columns that 1.3 has in addition."""
OWN_COLUMNS = columns(
    "x_CapitalCost x_Model x_Hardware x_Gpus x_GpuTimeShare x_Requests x_InputTokens x_OutputTokens"
)
OURS = "self-hosted fleet"
_CATEGORIES = {"on-demand": "Standard", "community": "Standard", "spot": "Dynamic"}
_UNITS = {
    "machine hours": "Hours",
    "GPU hours": "Hours",
    "hours": "Hours",
    "months": "Months",
    "node months": "Months",
    "GB": "GB",
    "GB months": "GB-Months",
}
"""Unit of a line -> the same in the unit format of FOCUS; others are counted in Units."""


def focus_text(
    asked: AskedBill,
    scenario: Scenario,
    month: tuple[int, int],
    by: str = "class",
    version: str = VERSIONS[0],
) -> str:
    """Return a bill as FOCUS CSV.

    Parameters
    ----------
    asked : the bill of that month, with its own hours
    scenario : its name stands for the account, its model is served, its currency billed, and its tags are on every row
    month : year and month
    by : what a row is of: `class` of requests, or `machine`
    version : of FOCUS

    Returns
    -------
    text; the effective cost of all rows and the cost of capital are together the cost of the fleet in the month, whatever the rows are of
    """
    columns = (*COLUMNS, *(NEWER_COLUMNS if version != VERSIONS[0] else ()), *OWN_COLUMNS)
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    start = datetime(*month, 1, tzinfo=UTC)
    end = datetime(month[0] + month[1] // 12, month[1] % 12 + 1, 1, tzinfo=UTC)
    file, name = scenario.file, scenario.name
    currency, usd_each = (file.currency.name, file.currency.usd) if file.currency else ("USD", 1.0)
    tags = json.dumps(file.tags, ensure_ascii=False)
    same = {
        "BillingPeriodStart": _stamp(start), "BillingPeriodEnd": _stamp(end), "ChargePeriodStart": _stamp(start),
        "ChargePeriodEnd": _stamp(end), "BillingAccountId": name, "BillingAccountName": name, "BillingAccountType": "Scenario",
        "x_Model": scenario.model, "BillingCurrency": currency, "PricingCurrency": "USD", "ChargeCategory": "Usage", "ChargeClass": "",
        "ChargeFrequency": "Usage-Based", "ProviderName": OURS, "PublisherName": OURS, "InvoiceIssuerName": OURS,
        "ServiceCategory": "AI and Machine Learning", "ServiceSubcategory": "Generative AI", "ServiceName": "LLM serving",
        "PricingCategory": "Standard", "Tags": tags, "HostProviderName": OURS,
        **dict.fromkeys(OWN_COLUMNS[3:], 0.0),
    }  # fmt: skip
    rows = _machine_rows(asked) if by == "machine" else _class_rows(asked, version)
    for row in (*rows, *_purchase_rows(asked)):
        whole = same | row
        whole |= _in_currency(whole, usd_each) | {
            "ServiceProviderName": whole["ProviderName"],
            "SubAccountType": "Tenant" if whole.get("SubAccountId") else "",
            "AllocatedTags": tags if whole.get("AllocatedResourceId") else "",
        }
        writer.writerow({column: csv_cell(whole.get(column, "")) for column in columns})
    return out.getvalue()


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


_IN_BOTH = ("ContractedUnitPrice", "EffectiveCost", "ListUnitPrice")
_MONEY = ("BilledCost", "ContractedCost", "ListCost", "x_CapitalCost", *_IN_BOTH)


def _in_currency(row: Columns, usd_each: float) -> Columns:
    """Return the amounts of a row in the currency that is billed, and those that FOCUS shows in the currency of prices too."""
    usd = {column: float(str(row[column])) for column in _MONEY}
    priced: Columns = {f"PricingCurrency{column}": usd[column] for column in _IN_BOTH}
    return priced | {column: value / usd_each for column, value in usd.items()}


def _costs(amount: Paid, quantity: float, unit: str, per: float = 1.0, pricing_unit: str = "") -> Columns:
    """Return the columns of an amount: its costs [$], what is consumed, and the unit prices, for `per` of that quantity."""
    priced = quantity * per or 1.0
    return {
        "BilledCost": amount.billed_usd, "EffectiveCost": amount.effective_usd, "x_CapitalCost": amount.capital_usd,
        "ListCost": amount.list_usd, "ContractedCost": amount.contracted_usd,
        "ListUnitPrice": amount.list_usd / priced, "ContractedUnitPrice": amount.contracted_usd / priced,
        "ConsumedQuantity": quantity, "ConsumedUnit": unit, "PricingQuantity": quantity * per, "PricingUnit": pricing_unit or unit,
    }  # fmt: skip


def _paid_by(entry: MachineEntry, hours: float, status: str = "Used") -> Columns:
    """Return the columns of what pays for machines: a reservation with some of its hours, used or not, or another way."""
    if not entry.is_reserved:
        return {"PricingCategory": _CATEGORIES.get(entry.part.offer.name, "Other")}
    unused = {"ConsumedQuantity": "", "ConsumedUnit": ""} if status == "Unused" else {}
    committed = {"PricingCategory": "Committed", "CommitmentDiscountStatus": status}
    return _reservation(entry, hours) | unused | committed


def _reservation(entry: MachineEntry, hours: float) -> Columns:
    name = entry.part.offer.name
    return {
        "CommitmentDiscountCategory": "Usage", "CommitmentDiscountId": "/".join(filter(None, (name, entry.part.sku))),
        "CommitmentDiscountName": name, "CommitmentDiscountType": "Reservation",
        "CommitmentDiscountQuantity": hours, "CommitmentDiscountUnit": "Hours",
    }  # fmt: skip


def _resource(name: str, kind: str) -> Columns:
    return {"ResourceId": name, "ResourceName": name, "ResourceType": kind}


def _seller(entry: MachineEntry) -> Columns:
    """Return the columns of who sells a machine, and where it is."""
    machine = entry.part.machine
    if machine is None or machine.is_owned or entry.part.offer.name == "owned":
        return {}
    of_seller = ("ProviderName", "PublisherName", "InvoiceIssuerName", "HostProviderName")
    region = machine.region or ""
    return {**dict.fromkeys(of_seller, machine.provider), "RegionId": region, "RegionName": region}


def _machine(entry: MachineEntry, asked: AskedBill, kind: str) -> Columns:
    """Return the columns of a machine that is charged; no two kinds of charges of it have the same price."""
    part, device = entry.part, _device(asked, entry)
    sku = part.sku or device
    return (
        _seller(entry)
        | _resource(sku, "Machine")
        | {
            "ServiceCategory": "Compute", "ServiceSubcategory": "Virtual Machines", "ServiceName": "GPU machines",
            "SkuId": sku, "SkuMeter": "Hours", "SkuPriceId": "/".join((sku, str(part.group), part.offer.name, kind)).rstrip("/"),
            "x_Hardware": device,
        }
    )  # fmt: skip


def _device(asked: AskedBill, entry: MachineEntry) -> str:
    return asked.plan.groups[entry.part.group].layout.device.name


def _machine_rows(asked: AskedBill) -> Iterator[Columns]:
    """Return what is charged: machines by what pays for them, with the hours in which nothing runs on reserved ones, and the other lines of the total cost."""
    for entry in machines_of(asked.entries):
        part, machine = entry.part, entry.part.machine
        own = " of your own" if machine and machine.is_owned else ""
        what = f"{part.units} x {machine.name}{own}" if machine else f"{part.gpus} GPUs"
        for status, kind, share, said in (
            ("Used", "", 1.0 - entry.unused_fraction, ""),
            ("Unused", "unused", entry.unused_fraction, "; no replica runs"),
        ):
            if share > 0.0:
                yield (
                    _costs(entry.paid.times(share), entry.machine_hours * share, "Hours")
                    | _machine(entry, asked, kind)
                    | _paid_by(entry, part.paid_gpus * asked.hours * share, status)
                    | _said(f"{what}, {part.offer.name}, planned; price from {part.offer.origin}{said}")
                    | {"x_Gpus": part.gpus * share}
                )
    others = (line for line in cost_lines(asked.entries) if not isinstance(line, MachineEntry))
    for number, line in enumerate(others):
        unit = _UNITS.get(line.unit, "Units")
        yield (
            _costs(line.paid, line.quantity, unit)
            | _resource(line.what, "Other cost")
            | _said(f"{line.what}, planned; price from {line.basis}")
            | {"SkuId": line.what, "SkuMeter": unit, "SkuPriceId": f"{line.what}/{number}", "HostProviderName": "Not Applicable"}
        )  # fmt: skip


def _said(text: str) -> Columns:
    return {"ChargeDescription": text}


def _purchase_rows(asked: AskedBill) -> Iterator[Columns]:
    """Return what is paid for a term: what is due upfront in the month in which it begins, and the month of a reservation."""
    for entry in machines_of(asked.entries):
        part, reserved = entry.part, entry.is_reserved
        months = entry.term.months if entry.term else 0.0
        for kind, often, usd, hours in (
            ("upfront", "One-Time", entry.paid.upfront_usd, months / 12.0 * HOURS_PER_YEAR),
            ("recurring", "Recurring", entry.paid.recurring_usd, asked.hours),
        ):
            quantity, unit = (part.gpus * hours, "Hours") if reserved else (float(part.gpus), "Units")
            if usd:
                yield (
                    _costs(Paid(0.0, usd, 0.0, 0.0, usd, usd, 0.0), quantity, unit)
                    | _machine(entry, asked, kind)
                    | (_reservation(entry, quantity) if reserved else {})
                    | _said(f"{part.gpus} GPUs, {part.offer.name} for {months:g} months, {kind}, planned; price from {part.offer.origin}")
                    | {"ChargeCategory": "Purchase", "ChargeFrequency": often, "ConsumedQuantity": "", "ConsumedUnit": ""}
                )  # fmt: skip


def _class_rows(asked: AskedBill, version: str) -> Iterator[Columns]:
    """Return the charges of the machines, shared by the classes and what waits, and the people and other costs of each class."""
    taken = groupby(asked.bill.allocated(asked.entries), lambda part: part.who or part.entry.part.group)
    for who, parts in taken:
        whole = tuple(parts)
        if isinstance(who, Share):
            yield from _rows_of_class(asked, who, whole, version)
        else:
            yield from _idle_rows(asked, who, whole, version)


def _rows_of_class(
    asked: AskedBill, share: Share, parts: Sequence[Allocated], version: str
) -> Iterator[Columns]:
    use, others = share.use, share.prefill_usd + share.decode_usd
    whose = f"{use.name}/{use.groups[0]}" if asked.plan.is_mix else use.name
    for taken in parts:
        amount, entry = taken.paid, taken.entry
        part = _time_fraction(asked, entry)
        others -= amount.effective_usd + amount.capital_usd
        first = taken.phase == "prefill"
        meter, tokens = ("Input Tokens", use.input_tokens) if first else ("Output Tokens", use.output_tokens)
        yield (
            _costs(amount, tokens * part, "Tokens", 1e-6, "1000000 Tokens")
            | _shared(asked, taken, meter, whose)
            | _class(share, entry, version)
            | _said(f"{meter} of {use.name}, planned, by the time of the GPUs")
            | ({"x_Requests": use.requests * part} if first else {})
            | {f"x_{meter.replace(' ', '')}": tokens * part}
        )
    left = others if others > 1e-9 * share.usd else 0.0
    for meter, usd, what in (
        ("Operations", left, "people and costs other than machines"),
        ("Requests", use.outside_usd, "retrieval and tools"),
    ):
        if usd:
            yield (
                _costs(plain(usd), use.requests, "Requests")
                | _class(share)
                | _beside(meter, whose)
                | _said(f"Requests of {use.name}, planned, {what}")
            )


def _time_fraction(asked: AskedBill, entry: MachineEntry) -> float:
    """Return the share of an entry in the GPU time of its group that is paid for."""
    return entry.part.paid_gpus / asked.group_gpus[entry.part.group]


_WAITS: Columns = {"SubAccountId": "__idle__", "SubAccountName": "__idle__"}


def _idle_rows(asked: AskedBill, place: int, parts: Sequence[Allocated], version: str) -> Iterator[Columns]:
    """Return what the GPUs of a group cost while they wait, in GPU hours; of reserved ones first the hours in which no replica runs."""
    group, others = asked.plan.groups[place], asked.bill.pools[place].idle_usd
    idle = 1.0 - asked.bill.pools[place].busy_fraction
    hours, resource = asked.group_gpus[place] * asked.hours * idle, _resource("__idle__", "GPU")
    waiting = f"{group.gpus} x {group.layout.device.name} while they wait for requests"
    for taken in parts:
        entry, part = taken.entry, _time_fraction(asked, taken.entry)
        others -= taken.paid.effective_usd + taken.paid.capital_usd
        unused = min(1.0, entry.unused_fraction / idle)
        for status, whose, share in (("Used", "idle", 1.0 - unused), ("Unused", "unused", unused)):
            if share > 0.0:
                mine = replace(taken, share=idle * share)
                machine = _resource(entry.part.sku or _device(asked, entry), "Machine")
                yield (
                    _costs(mine.paid, hours * part * share, "Hours")
                    | _shared(asked, mine, "Idle GPU Hours", f"{whose}-{place}", status)
                    | _WAITS
                    | (resource if version == VERSIONS[0] else machine)
                    | _said(f"{waiting}, spares included, planned")
                )
    if others > 1e-9 * asked.bill.pools[place].idle_usd:
        yield (
            _costs(plain(others), hours, "Hours")
            | _beside("Operations", f"idle-{place}")
            | _WAITS
            | resource
            | _said(f"costs in addition to {waiting}, planned")
        )


def _shared(asked: AskedBill, taken: Allocated, meter: str, whose: str, status: str = "Used") -> Columns:
    """Return the columns of a part of an entry: what is sold, what pays for it, and how it is shared."""
    entry, part, share = taken.entry, taken.entry.part, taken.share
    hours, device = part.paid_gpus * asked.hours * share, _device(asked, entry)
    sku = f"{device}/{meter.lower().replace(' ', '-')}"
    split = {"Elements": [{"AllocatedRatio": share, "UsageUnit": "Hours", "UsageQuantity": hours}]}
    return _paid_by(entry, hours, status) | {
        "SkuId": sku, "SkuMeter": meter, "SkuPriceId": "/".join(filter(None, (sku, whose, part.sku, part.offer.name))),
        "x_Hardware": device, "HostProviderName": _seller(entry).get("HostProviderName", OURS),
        "AllocatedMethodId": "gpu-time", "AllocatedMethodDetails": json.dumps(split),
        "x_Gpus": share * _time_fraction(asked, entry) * asked.plan.groups[part.group].gpus,
        "x_GpuTimeShare": share * part.paid_gpus / sum(asked.group_gpus),
    }  # fmt: skip


def _beside(meter: str, whose: str) -> Columns:
    """Return the columns of what is sold in addition to GPUs; the price of a request is of a class, so each class has its own."""
    sku = f"outside/{meter.lower()}"
    return {
        "SkuId": sku, "SkuMeter": meter, "SkuPriceId": f"{sku}/{whose}", "x_Hardware": "outside", "HostProviderName": "Not Applicable",
    }  # fmt: skip


def _class(share: Share, entry: MachineEntry | None = None, version: str = VERSIONS[0]) -> Columns:
    """Return the columns of a class; since 1.3 a charge that it shares stays one of the machine, allocated to the class."""
    name, tenant = share.use.name, share.use.tenant
    owner: Columns = {"SubAccountId": tenant, "SubAccountName": tenant}
    if entry is None or version == VERSIONS[0]:
        return _resource(name, "LLM traffic class") | owner
    allocated: Columns = {"AllocatedResourceId": name, "AllocatedResourceName": name}
    return _resource(entry.part.sku or "GPU", "Machine") | allocated | owner
