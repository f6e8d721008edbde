"""A bill in the columns of FOCUS 1.2, the FinOps Open Cost and Usage Specification, for FinOps tools.

One row for the input and one for the output of every class, of one month, and one for what its requests take outside the GPUs, if anything. All mandatory columns of 1.2 are there; tokens, the model
and the device are in columns of our own, `x_...`, as the specification allows until it has columns for tokens.
https://focus.finops.org/focus-specification/v1-2/
"""

import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime

from capplan.money.who_pays import Share
from capplan.questions.money.who_pays import AskedBill
from capplan.report.data_text import csv_cell

COLUMNS = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart",
    "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "ContractedUnitPrice", "EffectiveCost", "InvoiceIssuerName", "ListCost",
    "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "ResourceId",
    "ResourceName", "ResourceType", "ServiceCategory", "ServiceName", "ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceId",
    "SubAccountId", "SubAccountName", "Tags", "x_Model", "x_Hardware", "x_Gpus", "x_GpuTimeShare", "x_Requests", "x_InputTokens",
    "x_OutputTokens",
)  # fmt: skip


def focus_text(asked: AskedBill, scenario: str, model: str, month: tuple[int, int]) -> str:
    """Return a bill as FOCUS CSV.

    Parameters
    ----------
    asked : the bill of a month
    scenario : its name, which stands for the account
    model : that is served
    month : year and month

    Returns
    -------
    text; the billed cost of all rows together is that of the fleet
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    start = datetime(*month, 1, tzinfo=UTC)
    end = datetime(month[0] + month[1] // 12, month[1] % 12 + 1, 1, tzinfo=UTC)
    period = {
        "BillingPeriodStart": _stamp(start), "BillingPeriodEnd": _stamp(end), "ChargePeriodStart": _stamp(start),
        "ChargePeriodEnd": _stamp(end),
    }  # fmt: skip
    for share in asked.bill.shares:
        for row in _rows(share, asked):
            account = {"BillingAccountId": scenario, "BillingAccountName": scenario, "x_Model": model}
            writer.writerow({column: csv_cell(value) for column, value in (row | period | account).items()})
    return out.getvalue()


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _rows(share: Share, asked: AskedBill) -> Iterator[dict[str, object]]:
    groups, use = asked.plan.groups, share.use
    category = "Other" if asked.by_mix else "Standard"  # a mix is partly committed, partly not
    meters = [
        ("Input Tokens", share.prefill_usd, use.input_tokens, groups[0].layout.device.name),
        ("Output Tokens", share.decode_usd, use.output_tokens, groups[-1].layout.device.name),
    ]
    meters += [("Requests", use.outside_usd, use.requests, "outside")] if use.outside_usd else []
    for meter, usd, quantity, device in meters:
        unit, each = ("Requests", 1.0) if device == "outside" else ("Tokens", 1e-6)
        price = usd / (quantity * each)
        sku = f"{device}/{meter.lower().replace(' ', '-')}"
        how = "retrieval and tools" if device == "outside" else "by the time of the GPUs"
        yield {
            "BilledCost": usd, "EffectiveCost": usd, "ListCost": usd, "ContractedCost": usd, "BillingCurrency": "USD",
            "ChargeCategory": "Usage", "ChargeClass": "", "ChargeFrequency": "Usage-Based",
            "ChargeDescription": f"{meter} of {use.name}, planned, {how}",
            "ConsumedQuantity": quantity, "ConsumedUnit": unit, "PricingQuantity": quantity * each,
            "PricingUnit": unit if device == "outside" else "1000000 Tokens",
            "ListUnitPrice": price, "ContractedUnitPrice": price, "PricingCategory": category,
            "ProviderName": "own fleet", "PublisherName": "own fleet", "InvoiceIssuerName": "own fleet",
            "ResourceId": use.name, "ResourceName": use.name, "ResourceType": "LLM traffic class",
            "ServiceCategory": "AI and Machine Learning", "ServiceSubcategory": "Generative AI", "ServiceName": "LLM serving",
            "SkuId": sku, "SkuMeter": meter, "SkuPriceId": sku, "SubAccountId": use.tenant, "SubAccountName": use.tenant, "Tags": "{}",
            "x_Hardware": device, "x_Gpus": asked.plan.gpus, "x_GpuTimeShare": share.fraction, "x_Requests": use.requests,
            "x_InputTokens": use.input_tokens if meter == "Input Tokens" else 0.0,
            "x_OutputTokens": use.output_tokens if meter == "Output Tokens" else 0.0,
        }  # fmt: skip
