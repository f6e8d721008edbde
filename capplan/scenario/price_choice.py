"""The prices of a scenario -> which offers are paid, in base units."""

from functools import partial

from capplan.errors import InputError
from capplan.fleet.price import PriceChoice
from capplan.readers.catalogue.hardware import device, normalised
from capplan.readers.catalogue.prices import price_records, read_prices
from capplan.readers.yaml_file import KeyPath
from capplan.scenario.reading import Reading
from capplan.scenario.scenario_file import Prices

ANY_PROVIDER = "any"


def _provider(reading: Reading, prices: Prices) -> str:
    if prices.provider is None or normalised(prices.provider) == ANY_PROVIDER:
        if prices.provider is None:
            reading.assume("prices of any provider, the median offer", "prices.provider")
        return ANY_PROVIDER
    if prices.file and prices.file.lower().endswith(".csv"):
        return prices.provider  # the file has one provider, whatever its name
    offers = read_prices(reading.resolved(prices.file)) if prices.file else price_records()
    known = {normalised(offer.provider): offer.provider for offer in offers}
    provider = known.get(normalised(prices.provider))
    if provider is None:
        names = {ANY_PROVIDER, *(name.lower() for name in known.values())}
        raise reading.unknown("provider", prices.provider, names, ("prices", "provider"))
    return provider


def price_choice(reading: Reading, prices: Prices) -> PriceChoice:
    """Return which offers are paid, or the prices of one's own, with electricity where it is apart."""
    default = PriceChoice()
    if prices.commitment is None:
        reading.assume(f"{default.commitment} prices", "prices.commitment")
    overrides: dict[str, float] = {}
    for name, usd in prices.per_gpu_hour.items():
        try:
            overrides[device(name).name] = usd
        except InputError as error:
            at: KeyPath = ("prices", "per_gpu_hour", name)
            reading.note(reading.refuse(at, str(error)), at)
    return PriceChoice(
        commitment=prices.commitment or default.commitment,
        provider=reading.attempt(partial(_provider, reading, prices), ANY_PROVIDER, ("prices", "provider")),
        region=prices.region,
        overrides=overrides,
        usd_per_kwh=prices.electricity,
        facility_ratio=reading.attempt(partial(_facility_ratio, reading, prices), 1.0, ("prices",)),
    )


def _facility_ratio(reading: Reading, prices: Prices) -> float:
    """Return the power of the building over that of the devices; refused without a price of electricity."""
    ratio, usd = prices.facility_ratio, prices.electricity
    if usd is None:
        if ratio is not None:
            raise reading.refuse(
                ("prices", "facility_ratio"),
                "multiplies electricity, and none is given; e.g. electricity: 0.12 $/kWh, or leave facility_ratio out",
            )
        return PriceChoice().facility_ratio
    reading.assume(
        f"electricity at {usd:g} $/kWh is added to the price, for the thermal design power of all devices, spares included, "
        "at all hours; nothing for hosts and switches",
        "prices.electricity",
    )
    if ratio is None:
        ratio = PriceChoice().facility_ratio
        reading.assume(
            f"facility ratio of {ratio:g}: nothing for cooling and losses", "prices.facility_ratio"
        )
    return ratio
