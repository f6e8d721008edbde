"""Levers of the purchase: layouts, devices, commitments, routing."""

from typing import get_args

from capplan.fleet.price import choose_price
from capplan.questions.fleet import PIPELINE_PARALLEL, TENSOR_PARALLEL
from capplan.questions.levers.as_it_is import Base, idle
from capplan.questions.levers.lever import Lever, merged_settings
from capplan.readers.catalogue.hardware import device_names
from capplan.readers.catalogue.prices import Commitment, price_records, read_prices

COMMITMENT_RISKS = {
    "on-demand": "none: machines can be handed back at any hour",
    "community": "hosts that the provider does not vouch for",
    "spot": "machines are taken away at short notice, which is not modelled",
    "reserved": "paid for whether used or not, for the whole term",
    "capacity-block": "for a fixed number of days, booked ahead",
    "owned": "an estimate of the cost of ownership; capital is bound for years",
}
FREE_TO_TAKE = ("on-demand", "reserved")
"""Commitments that the combination may take: the others can end while users are served, or need capital."""

NO_PRICE = "the plan as it is has no price to compare with: give prices.per_gpu_hour"


def _unpriced(base: Base) -> bool:
    return base.plan is not None and base.plan.usd_per_hour is None


def parallelism(base: Base) -> list[Lever]:
    """Return all degrees of tensor and pipeline parallelism, where the scenario allows only some."""
    fleet, name = base.file.fleet, "parallelism"
    adds: dict[str, tuple[str | int, ...]] = {}
    for key, now, every in (
        ("tensor_parallel", fleet.tensor_parallel, TENSOR_PARALLEL),
        ("pipeline_parallel", fleet.pipeline_parallel, PIPELINE_PARALLEL),
    ):
        if now is not None and set(every) - set(now):
            adds[f"fleet.{key}"] = tuple(sorted({*now, *every}))
    if not adds:
        return [idle(name, "other degrees of parallelism", "the search tries every legal degree already")]
    words = ", ".join(
        f"{key.partition('.')[2]} {', '.join(map(str, values))}" for key, values in adds.items()
    )
    settings = merged_settings([Lever(name, words, adds=adds)], {})
    return [Lever(name, words, settings, "none: another start-up flag", adds=adds)]


def other_devices(base: Base) -> tuple[str, ...]:
    """Return the devices of the catalogue that the scenario leaves out and that have a price under its terms."""
    scenario = base.asked.scenario
    records = read_prices(scenario.price_file) if scenario.price_file else price_records()
    here = {item.name for item in scenario.fleet.hardware}
    return tuple(
        name
        for name in device_names()
        if name not in here and choose_price(records, name, scenario.prices) is not None
    )


def devices(base: Base) -> list[Lever]:
    """Return every other device that has a price, in one question."""
    names = other_devices(base)
    if _unpriced(base):
        return [idle("device", "another device", NO_PRICE)]
    if not names:
        return [idle("device", "another device", "no other device has a price under the scenario's terms")]
    change = f"another device, of {len(names)} with a price"
    settings = merged_settings([Lever("device", change, adds={"fleet.hardware": names})], {})
    risk = "another stack to run; prices and supply differ by provider"
    return [Lever("device", change, settings, risk)]


def commitments(base: Base) -> list[Lever]:
    """Return the other ways to pay for the same devices."""
    scenario = base.asked.scenario
    if _unpriced(base):
        return [idle("commitment", "another commitment", NO_PRICE)]
    levers = []
    for commitment in get_args(Commitment):
        change = f"{scenario.prices.commitment} -> {commitment}"
        if commitment == scenario.prices.commitment:
            continue
        if all(item.name in scenario.prices.overrides for item in scenario.fleet.hardware):
            levers.append(idle("commitment", change, "the scenario has its own prices: prices.per_gpu_hour"))
            continue
        settings = (f"prices.commitment={commitment}",)
        levers.append(
            Lever(
                "commitment", change, settings, COMMITMENT_RISKS[commitment],
                combines=commitment in FREE_TO_TAKE,
            )
        )  # fmt: skip
    return levers


def disaggregation(base: Base) -> list[Lever]:
    """Return separate prefill and decode pools, on the devices of the scenario, or the scenario without them; slow."""
    name, change = "disaggregation", "prefill and decode in separate pools"
    scenario = base.asked.scenario
    if scenario.fleet.pools is not None:
        risk = "none: replicas that do both are simpler to run"
        change, settings = "prefill and decode in the same replicas", ("fleet.disaggregation=off",)
        return [Lever(name, change, settings, risk, combines=True)]
    if any(item.users is not None for item in scenario.classes):
        return [idle(name, change, "not modelled with users who wait for each response")]
    if scenario.speculation is not None or scenario.kv_offload:
        return [idle(name, change, "not modelled with speculation or offload tiers")]
    risk = "two pools to run and to scale; KV caches cross the network, whose congestion is not modelled"
    return [Lever(name, change, ("fleet.disaggregation=only",), risk, combines=True, slow=True)]
