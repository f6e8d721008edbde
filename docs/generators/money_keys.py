"""What docs/scenario.md says of the keys about money."""

from collections.abc import Mapping
from types import MappingProxyType

from capplan.money.energy import DECODE_FRACTION, HOST_FRACTION, IDLE_FRACTION, PREFILL_FRACTION
from capplan.money.price import ASSUMED_OTHER, OtherPrices
from capplan.questions.money.commitments import RESERVED_DISCOUNTS
from capplan.scenario.money_terms import MONTHS
from capplan.scenario.scenario_file import Owned, Spot

_OWNED, _SPOT = Owned.model_validate({"capex": "1 $", "electricity": "0.1 $/kWh"}), Spot()
_SHOWN = {
    "cross_zone_per_gb": "{:.2f} $",
    "logs_per_gb": "{:.2f} $",
    "staging": "{:.0%}",
    "egress_per_gb": "{:.2f} $",
    "load_balancers": "{:g} $/month",
    "weights_per_gb": "{:g} $/month",
    "cpu_node": "{:g} $/month",
    "support": "{:.0%}",
}
DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "traffic.tenant": "the class itself",
        "traffic.requests_per_conversation": "-",
        "prices.people": "nobody",
        "prices.overhead": "none",
        "prices.other": "nothing",
        "prices.other.defaults": "no",
        **{f"prices.other.{key}": f"{_SHOWN.get(key, '{:g}').format(value)} with defaults, else none" for key, value in ASSUMED_OTHER.items()},
        "prices.other.bytes_per_token": f"{OtherPrices().bytes_per_token:g} B",
        "prices.other.text_bytes_per_token": f"{OtherPrices().text_bytes_per_token:g} B",
        "prices.other.other_zone_fraction": "two of three zones",
        "prices.host_memory_per_gb": "part of the price of the machines",
        "prices.date": "-",
        "commitments": "on demand only",
        "commitments.reserved_1y": "not allowed",
        "commitments.reserved_3y": "not allowed",
        "commitments.spot": "not allowed",
        "commitments.owned": "not allowed",
        **{f"commitments.{term}.price": "a listed offer, else the discount" for term in ("reserved_1y", "reserved_3y")},
        **{f"commitments.{name.replace('-', '_')}.discount": f"a listed offer, else {off:.0%}" for name, off in RESERVED_DISCOUNTS.items()},
        "commitments.spot.headroom": f"{_SPOT.headroom:.0%}",
        "commitments.spot.most": f"{_SPOT.most:.0%}",
        "commitments.owned.life": f"{_OWNED.life:g} years",
        "commitments.owned.residual": "nothing",
        **{f"commitments.{term}.upfront": "nothing" for term in ("reserved_1y", "reserved_3y")},
        "commitments.interest": "not counted",
        "commitments.owned.interest": f"{_OWNED.interest:.0%}",
        "commitments.owned.upkeep": f"{_OWNED.upkeep:.0%}",
        "commitments.owned.facility_ratio": f"{_OWNED.facility_ratio:g}",
        "commitments.owned.power": "the thermal design power",
        "commitments.owned.idle": f"{_OWNED.idle:.0%}",
        "commitments.owned.people": "nobody",
        "commitments.min_replicas": "1",
        "commitments.max_replicas": "as many as the peak needs",
        "commitments.begin": "the month of the bill",
        "tags": "none",
        "currency": "dollars only",
        "budget": "any cost",
        "budget.includes": "machines only",
        "energy": "not shown",
        "energy.idle": f"{IDLE_FRACTION:.0%}",
        "energy.decode": f"{DECODE_FRACTION:.0%}",
        "energy.prefill": f"{PREFILL_FRACTION:.0%}",
        "energy.host": f"{HOST_FRACTION:.0%}",
        "energy.measured": "the fractions above",
        **{f"energy.measured.{phase}": "the fraction above" for phase in ("idle", "decode", "prefill")},
        "energy.facility_ratio": "prices.facility_ratio, else 1",
        "energy.grid": "not shown",
        "energy.rack_limit": "not shown",
        "energy.gpus_per_server": "8",
        "growth": "none",
        "growth.per_month": "-",
        "growth.months": f"{MONTHS}",
        "growth.rates": "-",
        **{f"growth.{kind}_price_decline": "prices stay" for kind in ("gpu", "token")},
        "hosted": "as below",
        "hosted.time_to_live": "the provider's, else 5 min",
        "hosted.prefixes": "1",
        "hosted.batch_fraction": "jobs that have a day",
        "hosted.file": "the shipped list",
        "hosted.date": "-",
        "hosted.discount": "none",
        "hosted.surcharge": "none",
        "hosted.token_ratios": "1.3 for Claude Opus 4.7 and later, else 1",
        "hosted.service": "standard",
        "hosted.caching": "cheapest",
        "hosted.provisioned": "paid by the token",
        **{f"hosted.provisioned.{key}": "1" for key in ("output_weight", "least", "step")},
    }
)  # fmt: skip
"""Key that may be left out -> what holds then."""

EXAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "traffic.tenant": "support",
        "traffic.requests_per_conversation": "4",
        "prices.date": "2026-11-01",
        "prices.host_memory_per_gb": "3 $/month",
        "commitments": "{reserved_1y: {discount: 30 %}, spot: {}}",
        **{f"commitments.{term}": "{discount: 30 %}" for term in ("reserved_1y", "reserved_3y")},
        "commitments.spot": "{headroom: 25 %, most: 30 %}",
        "commitments.owned": "{capex: 38000 $, electricity: 0.11 $/kWh}",
        "commitments.owned.facility_ratio": "1.3",
        "prices.other": "{defaults: true, support: 5 %}",
        "prices.other.defaults": "true",
        "prices.other.egress_per_gb": "0.05 $",
        "prices.other.load_balancers": "60 $/month",
        "prices.other.weights_per_gb": "0.03 $/month",
        "prices.other.cpu_nodes": "4",
        "prices.other.cpu_node": "120 $/month",
        "prices.other.bytes_per_token": "250 B",
        "prices.other.text_bytes_per_token": "4.5 B",
        "prices.other.other_zone_fraction": "50 %",
        "prices.other.cross_zone_per_gb": "0.01 $",
        "prices.other.logs_per_gb": "0.25 $",
        "prices.other.staging": "15 %",
        "hosted.caching": "default",
        "hosted.provisioned": "{price: 1 $/h, tokens_per_minute: 2500, least: 15, step: 5}",
        "hosted.provisioned.tokens_per_minute": "2500",
        "hosted.provisioned.output_weight": "4",
        "hosted.provisioned.least": "15",
        "hosted.provisioned.step": "5",
        "commitments.interest": "8 %",
        "commitments.min_replicas": "2",
        "commitments.max_replicas": "40",
        "commitments.begin": "2026-12",
        "tags": "{cost_center: platform}",
        "currency": "{name: EUR, usd: 1.16}",
        "currency.name": "EUR",
        "currency.usd": "1.16",
        "energy": "{grid: 380 g/kWh, rack_limit: 40 kW}",
        "energy.measured": "{idle: 75 W, decode: 420 W, prefill: 640 W}",
        "energy.facility_ratio": "1.25",
        "energy.gpus_per_server": "8",
        "growth": "{per_month: 6 %, months: 18}",
        "growth.per_month": "6 %",
        "growth.months": "18",
        "growth.rates": "{1: 20 req/s, 2: 24 req/s, 3: 40 req/s}",
        "growth.gpu_price_decline": "25 %",
        "growth.token_price_decline": "40 %",
        "budget": "{usd_per_month: 50000}",
        "hosted": "{time_to_live: 1 h, prefixes: 40}",
        "hosted.prefixes": "40",
        "hosted.file": "model_prices_and_context_window.json",
        "hosted.date": "2026-11-01",
        "hosted.discount": "12 %",
        "hosted.surcharge": "10 %",
        "hosted.token_ratios": "{anthropic: 1.2, google: 0.9}",
        "hosted.service": "flex",
        "budget.includes": "[people, overhead]",
    }
)  # fmt: skip
"""Key -> as it may be written, where its unit has no example."""

TABLES = {
    "commitments": "commitments.",
    "reserved_1y": "commitments.reserved_1y.",
    "reserved_3y": "commitments.reserved_3y.",
    "spot": "commitments.spot.",
    "owned": "commitments.owned.",
    "currency": "currency.",
    "budget": "budget.",
    "growth": "growth.",
    "energy": "energy.",
    "measured": "energy.measured.",
    "other": "prices.other.",
    "provisioned": "hosted.provisioned.",
    "hosted": "hosted.",
}
"""Mark of the page -> the start of its keys."""

PAGE = """### other

Costs of the service other than GPUs, each a line of the [total cost](money.md#total-cost). Nothing is counted unless you state it or ask for defaults.

<other>

## commitments

On demand is always allowed. The cheapest mix follows the [load duration curve](money.md#what-to-reserve-rent-and-buy): what runs most hours is reserved or owned, and peaks are rented by the hour.

<commitments>

### reserved_1y

<reserved_1y>

### reserved_3y

<reserved_3y>

### spot

<spot>

### owned

<owned>

## currency

<currency>

## budget

<budget>

## growth

By the same part each month, or to stated rates; the first month is today's.

<growth>

## energy

With this section, even an empty one (`energy: {}`), `capplan fleet` shows the [energy](money.md#energy-carbon-dioxide-and-racks) of its plan.

<energy>

### measured

<measured>

## hosted

How hosted APIs are used, for [`capplan compare`](reference/hosted-apis.md). Prices in a file of your own are in the [schema](schema/token_prices.json) of the list that ships.

<hosted>

### provisioned

Throughput by the hour: units for the busiest hour, paid at all hours, of the one API that is compared.

<provisioned>
"""
