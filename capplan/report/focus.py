"""A bill in the columns of FOCUS 1.2, the FinOps Open Cost and Usage Specification, for FinOps tools.

By class, one row for input and one for output, each by what pays for the GPUs: rent, a reservation, spot or owned machines. What
the GPUs cost while they wait is a row of its own, without a sub-account, as OpenCost shows it, and what requests take outside the GPUs
another. By machine, one row for each line of the total cost: machines of the order or parts of the mix, people, and the rest. All mandatory columns of 1.2 are there, and those of commitments; tokens, the model and the device are in columns of our own,
`x_...`, as the specification allows until it has columns for tokens.
https://focus.finops.org/focus-specification/v1-2/
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from capplan.money.who_pays import Share
from capplan.questions.money.who_pays import AskedBill
from capplan.report.safe_text import csv_cell
from capplan.scenario.scenario_file import Currency

COLUMNS = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart",
    "CommitmentDiscountCategory", "CommitmentDiscountId", "CommitmentDiscountName", "CommitmentDiscountQuantity",
    "CommitmentDiscountStatus", "CommitmentDiscountType", "CommitmentDiscountUnit",
    "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "ContractedUnitPrice", "EffectiveCost", "InvoiceIssuerName", "ListCost",
    "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "RegionId", "RegionName", "ResourceId",
    "ResourceName", "ResourceType", "ServiceCategory", "ServiceName", "ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceId",
    "SubAccountId", "SubAccountName", "Tags", "x_Model", "x_Hardware", "x_Gpus", "x_GpuTimeShare", "x_Requests", "x_InputTokens",
    "x_OutputTokens",
)  # fmt: skip
_CATEGORIES = {
    "on-demand": "Standard",
    "spot": "Dynamic",
    "reserved-1y": "Committed",
    "reserved-3y": "Committed",
}


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
class _Payment:
    """One way in which the GPUs of a group are paid for."""

    name: str
    fraction: float
    """Share of the cost of the group."""
    time_fraction: float
    """Share of the GPU hours of the group that are paid for."""
    category: str
    committed_gpu_hours: float = 0.0


def focus_text(
    asked: AskedBill,
    scenario: str,
    model: str,
    month: tuple[int, int],
    currency: Currency | None,
    by: str = "class",
) -> str:
    """Return a bill as FOCUS CSV.

    Parameters
    ----------
    asked : the bill of that month, with its own hours
    scenario : its name, which stands for the account
    model : that is served
    month : year and month
    currency : None: US dollars
    by : what a row is of: `class` of requests, or `machine`

    Returns
    -------
    text; the billed cost of all rows together is that of the fleet in the month, whatever the rows are of
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    start = datetime(*month, 1, tzinfo=UTC)
    end = datetime(month[0] + month[1] // 12, month[1] % 12 + 1, 1, tzinfo=UTC)
    name, usd_each = (currency.name, currency.usd) if currency else ("USD", 1.0)
    same = {
        "BillingPeriodStart": _stamp(start), "BillingPeriodEnd": _stamp(end), "ChargePeriodStart": _stamp(start),
        "ChargePeriodEnd": _stamp(end), "BillingAccountId": scenario, "BillingAccountName": scenario, "x_Model": model,
        "BillingCurrency": name, "ChargeCategory": "Usage", "ChargeClass": "", "ChargeFrequency": "Usage-Based",
        "ProviderName": "self-hosted fleet", "PublisherName": "self-hosted fleet", "InvoiceIssuerName": "self-hosted fleet",
        "ServiceCategory": "AI and Machine Learning", "ServiceSubcategory": "Generative AI", "ServiceName": "LLM serving",
        "Tags": "{}", "x_Gpus": 0.0,
    }  # fmt: skip
    rows = _machine_rows(asked, usd_each) if by == "machine" else _rows(asked, usd_each)
    for row in rows:
        writer.writerow({column: csv_cell((same | row).get(column, "")) for column in COLUMNS})
    return out.getvalue()


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _payments(asked: AskedBill, group: int) -> list[_Payment]:
    """Return how the GPUs of a group of replicas are paid for."""
    if asked.mix is None:
        return [_Payment("", 1.0, 1.0, "Standard")]
    parts = [part for part in asked.mix.parts if part.group == group]
    total, gpus = sum(part.usd_per_hour for part in parts), asked.group_gpus[group]
    return [
        _Payment(
            part.offer.name,
            part.usd_per_hour / total if total else part.paid_gpus / gpus,
            part.paid_gpus / gpus,
            _CATEGORIES.get(part.offer.name, "Other"),
            part.gpus * asked.hours,
        )
        for part in parts
    ]


def _machine_rows(asked: AskedBill, usd_each: float) -> Iterator[dict[str, object]]:
    """Return a row for each line of the total cost: a machine at its provider, a part of the mix, people and the rest."""
    for number, line in enumerate(asked.lines):
        is_machine, region = line.commitment is not None, line.region or ""
        category = _CATEGORIES.get(line.commitment or "on-demand", "Other")
        committed = line.quantity if category == "Committed" else 0.0
        payment = _Payment(line.commitment or "", 1.0, 1.0, category, committed)
        sku, unit = line.sku or line.what, _UNITS.get(line.unit, "Units")
        maker = dict.fromkeys(("ProviderName", "PublisherName", "InvoiceIssuerName"), line.provider)
        yield _charge(line.usd / usd_each, line.quantity, 1.0, unit, unit, payment, 1.0) | {
            "ChargeDescription": f"{line.what}, planned; price from {line.basis}",
            "SkuId": sku, "SkuMeter": unit, "SkuPriceId": f"{sku}/{number}",
            "RegionId": region, "RegionName": region,
            "ResourceId": sku, "ResourceName": sku, "ResourceType": "Machine" if is_machine else "Other cost",
            "x_Gpus": line.gpus,
            **({"ServiceCategory": "Compute", "ServiceSubcategory": "Virtual Machines", "ServiceName": "GPU machines"} if is_machine else {}),
            **(maker if line.provider else {}),
        }  # fmt: skip


def _rows(asked: AskedBill, usd_each: float) -> Iterator[dict[str, object]]:
    groups, bill = asked.plan.groups, asked.bill
    time = _gpu_time(asked)
    for share in bill.shares:
        use, (first_group, last_group) = share.use, share.groups
        whose = f"{use.name}/{first_group}" if asked.plan.is_mix else use.name
        for meter, usd, quantity, group in (
            ("Input Tokens", share.prefill_usd, use.input_tokens, first_group),
            ("Output Tokens", share.decode_usd, use.output_tokens, last_group),
        ):
            first = meter == "Input Tokens"
            device = groups[group].layout.device.name
            for payment in _payments(asked, group):
                part, pool = payment.time_fraction, bill.pools[group]
                of_pool = usd / pool.busy_usd * pool.busy_fraction if pool.busy_usd else 0.0
                yield _charge(
                    usd * payment.fraction / usd_each, quantity * part, 1e-6, "Tokens", "1000000 Tokens", payment, of_pool
                ) | _sku(device, meter, whose, payment) | _class(share) | {
                    "ChargeDescription": f"{meter} of {use.name}, planned, by the time of the GPUs",
                    "x_Hardware": device,
                    "x_GpuTimeShare": of_pool * time[group] * part,
                    "x_Gpus": of_pool * groups[group].gpus * part,
                    "x_Requests": use.requests * part if first else 0.0,
                    "x_InputTokens": quantity * part if first else 0.0,
                    "x_OutputTokens": 0.0 if first else quantity * part,
                }  # fmt: skip
        if use.outside_usd:
            nothing = _Payment("", 1.0, 1.0, "Standard")
            yield _charge(
                use.outside_usd / usd_each, use.requests, 1.0, "Requests", "Requests", nothing, 0.0
            ) | _sku("outside", "Requests", whose, nothing) | _class(share) | {
                "ChargeDescription": f"Requests of {use.name}, planned, retrieval and tools",
                "x_Hardware": "outside", "x_GpuTimeShare": 0.0, "x_Requests": 0.0, "x_InputTokens": 0.0, "x_OutputTokens": 0.0,
            }  # fmt: skip
    yield from _idle_rows(asked, usd_each)


def _gpu_time(asked: AskedBill) -> list[float]:
    """Return the share of each group of replicas in the time of all GPUs that is paid for."""
    return [each / sum(asked.group_gpus) for each in asked.group_gpus]


def _idle_rows(asked: AskedBill, usd_each: float) -> Iterator[dict[str, object]]:
    """Return what the GPUs cost while they wait, in GPU hours."""
    groups = zip(asked.plan.groups, asked.bill.pools, _gpu_time(asked), strict=True)
    for place, (group, pool, time) in enumerate(groups):
        idle = 1.0 - pool.busy_fraction
        if idle <= 0.0:
            continue
        device, hours = group.layout.device.name, asked.group_gpus[place] * asked.hours * idle
        for payment in _payments(asked, place):
            part = payment.time_fraction
            meter = "Idle GPU Hours"
            yield _charge(pool.idle_usd * payment.fraction / usd_each, hours * part, 1.0, "Hours", "Hours", payment, idle) | _sku(
                device, meter, f"idle-{place}", payment
            ) | {
                "ChargeDescription": f"{group.gpus} x {device} while they wait for requests, spares included, planned",
                "ResourceId": "__idle__", "ResourceName": "__idle__", "ResourceType": "GPU", "SubAccountId": "__idle__",
                "SubAccountName": "__idle__", "x_Hardware": device, "x_Requests": 0.0, "x_InputTokens": 0.0, "x_OutputTokens": 0.0,
                "x_GpuTimeShare": idle * part * time, "x_Gpus": idle * part * group.gpus,
            }  # fmt: skip


def _charge(
    cost: float, quantity: float, each: float, unit: str, pricing_unit: str, payment: _Payment, of_all: float
) -> dict[str, object]:
    """Return the columns of an amount: its cost, quantity and unit price, and the commitment that covers it."""
    price = cost / (quantity * each) if quantity else 0.0
    committed = payment.category == "Committed"
    return {
        "BilledCost": cost, "EffectiveCost": cost, "ListCost": cost, "ContractedCost": cost,
        "ConsumedQuantity": quantity, "ConsumedUnit": unit, "PricingQuantity": quantity * each, "PricingUnit": pricing_unit,
        "ListUnitPrice": price, "ContractedUnitPrice": price, "PricingCategory": payment.category,
        "CommitmentDiscountCategory": "Usage" if committed else "", "CommitmentDiscountId": payment.name if committed else "",
        "CommitmentDiscountName": payment.name if committed else "", "CommitmentDiscountStatus": "Used" if committed else "",
        "CommitmentDiscountType": "Reservation" if committed else "", "CommitmentDiscountUnit": "Hours" if committed else "",
        "CommitmentDiscountQuantity": payment.committed_gpu_hours * of_all if committed else "",
    }  # fmt: skip


def _sku(device: str, meter: str, whose: str, payment: _Payment) -> dict[str, object]:
    """Return the columns of what is sold; the price of a token is that of a class, so each class has its own."""
    sku = f"{device}/{meter.lower().replace(' ', '-')}"
    return {"SkuId": sku, "SkuMeter": meter, "SkuPriceId": "/".join(filter(None, (sku, whose, payment.name)))}


def _class(share: Share) -> dict[str, object]:
    name, tenant = share.use.name, share.use.tenant
    return {
        "ResourceId": name, "ResourceName": name, "ResourceType": "LLM traffic class",
        "SubAccountId": tenant, "SubAccountName": tenant,
    }  # fmt: skip
