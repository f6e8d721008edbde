"""Write docs/evidence/hosted-gaps.md and the file next to it, what a million tokens costs on five GPUs and at the cheapest API, with each gap taken apart: `python -m docs.generators.hosted_gaps`.

Three minutes of a processor; `make docs` leaves it out. `python -m docs.generators.hosted_gaps MODEL DEVICE` prints one line.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from math import prod
from pathlib import Path

from capplan.fleet.answer import FleetAnswer
from capplan.fleet.waterfall import waterfall
from capplan.money.comparison import ComparedApi
from capplan.questions.fleet import AskedFleet, asked_fleet
from capplan.questions.fleet_answer import fleet_for
from capplan.questions.money.comparison import asked_comparison, asked_prices
from capplan.questions.narrower import narrower_weights
from capplan.readers.catalogue.token_prices import token_prices
from capplan.scenario.scenario import read_scenario
from docs.generators.page_tables import Table

PAGE = Path(__file__).resolve().parents[1] / "evidence" / "hosted-gaps.md"
MODELS: Mapping[str, tuple[str, ...]] = {
    "meta-llama/Llama-3.1-8B-Instruct": (),
    "Qwen/Qwen3-32B": (),
    "openai/gpt-oss-120b": (),
    "deepseek-ai/DeepSeek-V3": ("fireworks/deepseek-v3-0324",),
    "deepseek-ai/DeepSeek-V3.2": (),
}
"""Models, and the APIs to compare each with: all that serve it where none is named."""
DEVICES = ("h100-sxm", "h200-sxm", "b200", "gb200", "mi300x")
TRAFFIC = "{name: chat, request_rate: 60 req/s, daily_curve: evening, input_tokens: {mean: 1500, p95: 3000}, output_tokens: {mean: 300, p95: 700}}"
SLO = "{ttft_p95: 2 s, tpot_p95: 50 ms}"
EXPLAINED = 1.5
"""A gap from here on is taken apart."""
EVEN = 0.5
"""Chance to meet the targets that counts as none required."""
FACTORS = ("price", "headroom", "confidence", "spares", "machines", "hours")
"""What a gap is made of, besides what is left of it; a plan of one device has all that its waterfall has."""
FILE = PAGE.with_suffix(".csv")
HEAD = ("model", "GPU", "replicas x GPUs", "$", "API $", "gap", "left", *FACTORS, "gap in fp8")


@dataclass(frozen=True, slots=True)
class Gap:
    """A fleet of one device next to the cheapest API for the same traffic."""

    model: str
    device: str
    plan: str
    usd: float
    """Of a million tokens, input and output together, at the mean load [$]."""
    api: str
    api_usd: float
    left: float
    """Gap that is left if every replica is full at all hours, in the cheapest machines."""
    factors: Mapping[str, float]
    """Cause -> how many times as much the fleet costs for it."""
    narrower: float | None
    """Gap with weights in fp8; None where they are narrow already."""

    @property
    def ratio(self) -> float:
        """Return how many times the price of the API the fleet costs."""
        return self.usd / self.api_usd


def gap_of(asked: AskedFleet, answer: FleetAnswer, device: str, api: ComparedApi) -> Gap:
    """Return the gap of the recommended plan: what is left of it, times the factor of each cause."""
    plan = answer.chosen
    assert plan is not None
    assert plan.usd_per_month is not None
    assert plan.money is not None
    month = plan.usd_per_month
    usd, low = plan.money.usd_per_million_tokens_at_mean, plan.offers["low"][0]
    api_usd = api.bill.usd * usd / month
    steps = waterfall(plan)
    factors: dict[str, float] = {"price": (plan.usd_per_hour or low) / low}
    for before, after in pairwise(steps):
        factors[after.step] = (after.usd_per_month or month) / (before.usd_per_month or month)
    if "headroom" not in factors:
        even = next(row.usd_per_month for row in answer.certainty if row.confidence == EVEN)
        factors["confidence"] = month / (even or month)
    left = usd / api_usd / prod(factors.values())
    narrow = narrower_weights(asked, plan)
    pools = " + ".join(f"{group.replicas} x {group.gpus_per_replica}" for group in plan.groups)
    ratio = None if narrow is None else usd * (narrow.usd_per_month or month) / month / api_usd
    return Gap(asked.scenario.file.model, device, pools, usd, api.price.name, api_usd, left, factors, ratio)


def gap(model: str, device: str) -> Gap:
    """Return the gap of a model on a device."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gap.yaml"
        fleet = f"fleet: {{hardware: [{device}]}}"
        path.write_text(f"name: gap\nmodel: {model}\ntraffic: [{TRAFFIC}]\nslo: {SLO}\n{fleet}\n", "utf-8")
        asked = asked_fleet(read_scenario(str(path)), offline=True)
        answer = fleet_for(asked)
        prices = asked_prices(MODELS.get(model, ()), asked)
        newest = date.fromisoformat(max(price.date for price in token_prices()))
        compared = asked_comparison(asked, answer, prices, newest).comparison
    return gap_of(asked, answer, device, compared.apis[0])


def row_of(found: Gap) -> list[str]:
    """Return the cells of a gap."""
    parts = [f"{found.factors[name]:.2f}" if name in found.factors else "" for name in FACTORS]
    left = f"{found.left:.2f}{'' if 'headroom' in found.factors else ' *'}"
    if found.ratio < EXPLAINED:
        left, *parts = [""] * (1 + len(FACTORS))
    narrower = "" if found.narrower is None else f"{found.narrower:.1f}"
    cells = (f"{found.usd:.3f}", f"{found.api_usd:.3f}", f"{found.ratio:.1f}", left, *parts, narrower)
    return [found.model.partition("/")[2], found.device, found.plan, *cells]


def smallest(table: Table) -> Table:
    """Return the GPU with the smallest gap of each model, of those on the table."""
    ratio = HEAD.index("gap")
    models = dict.fromkeys(row[0] for row in table.rows)
    rows = [
        min((row for row in table.rows if row[0] == model), key=lambda row: float(row[ratio]))
        for model in models
    ]
    return Table(HEAD, rows)


def written(found: Sequence[Gap]) -> str:
    """Return the page."""
    apis = {gap.model: gap.api for gap in found}
    offers = "; ".join(f"{model.partition('/')[2]} at {api}" for model, api in apis.items())
    beyond = [gap for gap in found if gap.ratio >= EXPLAINED and gap.left >= EXPLAINED]
    names = "; ".join(f"{gap.model.partition('/')[2]} on {gap.device} ({gap.left:.1f})" for gap in beyond)
    within = sum(gap.ratio < EXPLAINED for gap in found)
    table = Table(HEAD, [row_of(gap) for gap in found])
    return f"""# What a million tokens costs, next to the cheapest API

60 requests/s at the peak of an evening curve, 1,500 tokens in (95% below 3,000) and 300 out (95% below 700), TTFT p95 below 2 s, TPOT p95 below 50 ms, weights as published, on-demand prices,
by `python -m docs.generators.hosted_gaps`. Dollars are those of a million tokens, input and output together, at the mean load. The cheapest API for the same requests: {offers}.

Of {len(found)} fleets, {within} cost less than {EXPLAINED} times the API. The other gaps are products: what is left if every replica is full at all hours in the cheapest machines on the list, times what each cause adds:

- **price**: the median order over the cheapest one
- **headroom**: replicas are planned for less than they carry
- **confidence**: more replicas, because predictions have errors
- **spares**: replicas that may fail, whole machines at a time
- **machines**: GPUs of machines that stay idle
- **hours**: the load curve, because every replica is paid at all hours

`*`: separate pools, whose replicas are sized with headroom and confidence at once. Their confidence is the cost over the one at a chance of 50%; headroom is in what is left. The last column is the gap with weights in fp8, if they are published in 16 bits.

[Each model on each GPU](hosted-gaps.csv). The GPU with the smallest gap of each model:

{smallest(table)}

At least {EXPLAINED} is left of {len(beyond)} gaps: {names}. These causes do not explain them: such a GPU does not reach the price of the API with full replicas either. Weights in 16 bits, tight targets and rents above the provider's own cost are what to look at.
"""


def main(words: Sequence[str]) -> None:
    """Write the page, or print one line."""
    if words:
        print(Table(HEAD, [row_of(gap(*words))]))
        return
    found = [gap(model, device) for model in MODELS for device in DEVICES]
    PAGE.write_text(written(found), encoding="utf-8")
    FILE.write_text(Table(HEAD, [row_of(each) for each in found]).csv(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
