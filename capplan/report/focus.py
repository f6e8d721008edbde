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
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from capplan.money.cash import CostLine, MachineCharge
from capplan.money.commitments import HOURS_PER_YEAR
from capplan.money.who_pays import Share
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


@dataclass(frozen=True, slots=True)
class _Amount:
    """What a charge costs [$]."""

    billed: float
    effective: float
    listed: float
    contracted: float
    capital: float = 0.0

    def times(self, share: float) -> "_Amount":
        columns = (self.billed, self.effective, self.listed, self.contracted, self.capital)
        return _Amount(*(usd * share for usd in columns))


def _plain(usd: float) -> _Amount:
    """Return an amount that is billed as it is used, at the only price there is."""
    return _Amount(usd, usd, usd, usd)


def _amount(charge: MachineCharge) -> _Amount:
    return _Amount(
        charge.billed_usd, charge.effective_usd, charge.list_usd, charge.contracted_usd, charge.capital_usd
    )


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


def _costs(amount: _Amount, quantity: float, unit: str, per: float = 1.0, pricing_unit: str = "") -> Columns:
    """Return the columns of an amount: its costs [$], what is consumed, and the unit prices, for `per` of that quantity."""
    priced = quantity * per or 1.0
    return {
        "BilledCost": amount.billed, "EffectiveCost": amount.effective, "x_CapitalCost": amount.capital,
        "ListCost": amount.listed, "ContractedCost": amount.contracted, "ListUnitPrice": amount.listed / priced, "ContractedUnitPrice": amount.contracted / priced,
        "ConsumedQuantity": quantity, "ConsumedUnit": unit, "PricingQuantity": quantity * per, "PricingUnit": pricing_unit or unit,
    }  # fmt: skip


def _paid_by(charge: MachineCharge, hours: float, status: str = "Used") -> Columns:
    """Return the columns of what pays for a charge: a reservation with some of its hours, used or not, or another way."""
    name = charge.part.offer.name
    if not charge.is_reserved:
        return {"PricingCategory": _CATEGORIES.get(name, "Other")}
    unused = {"ConsumedQuantity": "", "ConsumedUnit": ""} if status == "Unused" else {}
    committed = {"PricingCategory": "Committed", "CommitmentDiscountStatus": status}
    return _reservation(charge, hours) | unused | committed


def _reservation(charge: MachineCharge, hours: float) -> Columns:
    name = charge.part.offer.name
    return {
        "CommitmentDiscountCategory": "Usage", "CommitmentDiscountId": "/".join(filter(None, (name, charge.part.sku))),
        "CommitmentDiscountName": name, "CommitmentDiscountType": "Reservation",
        "CommitmentDiscountQuantity": hours, "CommitmentDiscountUnit": "Hours",
    }  # fmt: skip


def _seller(charge: MachineCharge) -> Columns:
    """Return the columns of who sells a machine, and where it is."""
    machine = charge.part.machine
    if machine is None or machine.is_owned or charge.part.offer.name == "owned":
        return {}
    sold_by = dict.fromkeys(
        ("ProviderName", "PublisherName", "InvoiceIssuerName", "HostProviderName"), machine.provider
    )
    region = machine.region or ""
    return {**sold_by, "RegionId": region, "RegionName": region}


def _machine(charge: MachineCharge, asked: AskedBill, kind: str) -> Columns:
    """Return the columns of a machine that is charged; no two kinds of charges of it have the same price."""
    part = charge.part
    device = asked.plan.groups[part.group].layout.device.name
    sku = part.sku or device
    return _seller(charge) | {
        "ServiceCategory": "Compute",
        "ServiceSubcategory": "Virtual Machines",
        "ServiceName": "GPU machines",
        "ResourceId": sku,
        "ResourceName": sku,
        "ResourceType": "Machine",
        "SkuId": sku,
        "SkuMeter": "Hours",
        "SkuPriceId": "/".join((sku, str(part.group), part.offer.name, kind)).rstrip("/"),
        "x_Hardware": device,
    }


def _machine_rows(asked: AskedBill) -> Iterator[Columns]:
    """Return what is charged: machines by what pays for them, with the hours in which nothing runs on reserved ones, and the other lines of the total cost."""
    for charge in asked.charges:
        part, gpu_hours = charge.part, charge.part.paid_gpus * asked.hours
        what = (
            f"{part.units} x {part.machine.name}{' of your own' if part.machine.is_owned else ''}"
            if part.machine
            else f"{part.gpus} GPUs"
        )
        for status, share in (("Used", 1.0 - charge.unused_fraction), ("Unused", charge.unused_fraction)):
            if share > 0.0:
                yield (
                    _costs(_amount(charge).times(share), charge.hours * share, "Hours")
                    | _machine(charge, asked, "" if status == "Used" else "unused")
                    | _paid_by(charge, gpu_hours * share, status)
                    | {
                        "ChargeDescription": f"{what}, {part.offer.name}, planned; price from {part.offer.origin}{'' if status == 'Used' else '; no replica runs'}",
                        "x_Gpus": part.gpus * share,
                    }
                )
    for number, line in enumerate(line for line in asked.lines if line.commitment is None):
        yield _other_line(line, number)


def _other_line(line: CostLine, number: int) -> Columns:
    unit = _UNITS.get(line.unit, "Units")
    return _costs(_plain(line.usd), line.quantity, unit) | {
        "ChargeDescription": f"{line.what}, planned; price from {line.basis}", "SkuId": line.what, "SkuMeter": unit,
        "SkuPriceId": f"{line.what}/{number}", "ResourceId": line.what, "ResourceName": line.what, "ResourceType": "Other cost",
        "HostProviderName": "Not Applicable",
    }  # fmt: skip


def _purchase_rows(asked: AskedBill) -> Iterator[Columns]:
    """Return what is paid for a term: what is due upfront in the month in which it begins, and the month of a reservation."""
    for charge in asked.charges:
        part, reserved = charge.part, charge.is_reserved
        months = charge.term_months or 0.0
        for kind, usd, hours in (
            ("upfront", charge.upfront_usd, months / 12.0 * HOURS_PER_YEAR),
            ("recurring", charge.recurring_usd, asked.hours),
        ):
            if not usd:
                continue
            quantity, unit = (part.gpus * hours, "Hours") if reserved else (float(part.gpus), "Units")
            yield (
                _costs(_Amount(usd, 0.0, usd, usd), quantity, unit)
                | _machine(charge, asked, kind)
                | (_reservation(charge, quantity) if reserved else {})
                | {
                    "ChargeCategory": "Purchase",
                    "ChargeFrequency": "One-Time" if kind == "upfront" else "Recurring",
                    "ChargeDescription": f"{part.gpus} GPUs, {part.offer.name} for {months:g} months, {kind}, planned; price from {part.offer.origin}",
                    "ConsumedQuantity": "",
                    "ConsumedUnit": "",
                }
            )


def _class_rows(asked: AskedBill, version: str) -> Iterator[Columns]:
    """Return the charges of the machines, shared by the classes and what waits, and the people and other costs of each class."""
    groups, bill = asked.plan.groups, asked.bill
    for share in bill.shares:
        use, (first_group, last_group) = share.use, share.groups
        whose = f"{use.name}/{first_group}" if asked.plan.is_mix else use.name
        others = 0.0
        for meter, usd, tokens, group in (
            ("Input Tokens", share.prefill_usd, use.input_tokens, first_group),
            ("Output Tokens", share.decode_usd, use.output_tokens, last_group),
        ):
            pool, first = bill.pools[group], meter == "Input Tokens"
            of_pool = usd / pool.busy_usd * pool.busy_fraction if pool.busy_usd else 0.0
            others += usd
            for charge in _of_group(asked, group):
                amount, part = _amount(charge).times(of_pool), _time_fraction(asked, charge)
                others -= amount.effective + amount.capital
                yield (
                    _costs(amount, tokens * part, "Tokens", 1e-6, "1000000 Tokens")
                    | _shared(asked, charge, of_pool, meter, whose)
                    | _class(share, charge, version)
                    | {
                        "ChargeDescription": f"{meter} of {use.name}, planned, by the time of the GPUs",
                        "x_Gpus": of_pool * groups[group].gpus * part,
                        **({"x_Requests": use.requests * part} if first else {}),
                        f"x_{meter.replace(' ', '')}": tokens * part,
                    }
                )
        left = others if others > 1e-9 * share.usd else 0.0
        for meter, usd, what in (
            ("Operations", left, "people and costs other than machines"),
            ("Requests", use.outside_usd, "retrieval and tools"),
        ):
            if usd:
                said = {"ChargeDescription": f"Requests of {use.name}, planned, {what}"}
                yield (
                    _costs(_plain(usd), use.requests, "Requests")
                    | _class(share)
                    | _beside(meter, whose)
                    | said
                )
    yield from _idle_rows(asked, version)


def _of_group(asked: AskedBill, group: int) -> list[MachineCharge]:
    return [charge for charge in asked.charges if charge.part.group == group and charge.part.paid_gpus]


def _time_fraction(asked: AskedBill, charge: MachineCharge) -> float:
    """Return the share of a charge in the GPU time of its group that is paid for."""
    return charge.part.paid_gpus / asked.group_gpus[charge.part.group]


def _idle_rows(asked: AskedBill, version: str) -> Iterator[Columns]:
    """Return what the GPUs cost while they wait, in GPU hours; of reserved ones first the hours in which no replica runs."""
    waits: Columns = {"SubAccountId": "__idle__", "SubAccountName": "__idle__"}
    idle_resource = {"ResourceId": "__idle__", "ResourceName": "__idle__", "ResourceType": "GPU"}
    for place, (group, pool) in enumerate(zip(asked.plan.groups, asked.bill.pools, strict=True)):
        idle, others = 1.0 - pool.busy_fraction, pool.idle_usd
        if idle <= 0.0:
            continue
        hours, device = asked.group_gpus[place] * asked.hours * idle, group.layout.device.name
        for charge in _of_group(asked, place):
            amount, part = _amount(charge).times(idle), _time_fraction(asked, charge)
            others -= amount.effective + amount.capital
            unused = min(1.0, charge.unused_fraction / idle)
            for status, share in (("Used", 1.0 - unused), ("Unused", unused)):
                if share <= 0.0:
                    continue
                mine, whose = hours * part * share, f"idle-{place}" if status == "Used" else f"unused-{place}"
                yield (
                    _costs(amount.times(share), mine, "Hours")
                    | _shared(asked, charge, idle * share, "Idle GPU Hours", whose, status)
                    | waits
                    | (idle_resource if version == VERSIONS[0] else _machine_resource(charge, device))
                    | {
                        "ChargeDescription": f"{group.gpus} x {device} while they wait for requests, spares included, planned",
                        "x_Gpus": idle * part * share * group.gpus,
                    }
                )
        if others > 1e-9 * pool.idle_usd:
            what = f"costs in addition to {group.gpus} x {device} while they wait for requests, planned"
            beside = _beside("Operations", f"idle-{place}")
            yield (
                _costs(_plain(others), hours, "Hours")
                | beside
                | waits
                | idle_resource
                | {"ChargeDescription": what}
            )


def _shared(
    asked: AskedBill, charge: MachineCharge, of_pool: float, meter: str, whose: str, status: str = "Used"
) -> Columns:
    """Return the columns of a part of a charge: what is sold, what pays for it, and how it is shared."""
    part, hours = charge.part, charge.part.paid_gpus * asked.hours * of_pool
    device = asked.plan.groups[part.group].layout.device.name
    sku = f"{device}/{meter.lower().replace(' ', '-')}"
    host = _seller(charge).get("HostProviderName", OURS)
    split = {"Elements": [{"AllocatedRatio": of_pool, "UsageUnit": "Hours", "UsageQuantity": hours}]}
    return _paid_by(charge, hours, status) | {
        "SkuId": sku, "SkuMeter": meter, "SkuPriceId": "/".join(filter(None, (sku, whose, part.sku, part.offer.name))),
        "x_Hardware": device, "HostProviderName": host, "AllocatedMethodId": "gpu-time", "AllocatedMethodDetails": json.dumps(split),
        "x_GpuTimeShare": of_pool * part.paid_gpus / sum(asked.group_gpus),
    }  # fmt: skip


def _beside(meter: str, whose: str) -> Columns:
    """Return the columns of what is sold in addition to GPUs; the price of a request is of a class, so each class has its own."""
    sku = f"outside/{meter.lower()}"
    return {
        "SkuId": sku,
        "SkuMeter": meter,
        "SkuPriceId": f"{sku}/{whose}",
        "x_Hardware": "outside",
        "HostProviderName": "Not Applicable",
    }


def _machine_resource(charge: MachineCharge, device: str) -> Columns:
    sku = charge.part.sku or device
    return {"ResourceId": sku, "ResourceName": sku, "ResourceType": "Machine"}


def _class(share: Share, charge: MachineCharge | None = None, version: str = VERSIONS[0]) -> Columns:
    """Return the columns of a class; since 1.3 a charge that it shares stays one of the machine, allocated to the class."""
    name, tenant = share.use.name, share.use.tenant
    owner: Columns = {"SubAccountId": tenant, "SubAccountName": tenant}
    if charge is None or version == VERSIONS[0]:
        return {"ResourceId": name, "ResourceName": name, "ResourceType": "LLM traffic class"} | owner
    allocated: Columns = {"AllocatedResourceId": name, "AllocatedResourceName": name}
    return _machine_resource(charge, "GPU") | allocated | owner
