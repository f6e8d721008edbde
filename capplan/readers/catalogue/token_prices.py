"""Prices of hosted APIs: the table that ships, one's own, and LiteLLM's price file."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from capplan.errors import InputError, unknown
from capplan.keys import (
    ONLY_KNOWN_KEYS,
    Day,
    Discount,
    Seconds,
    Tokens,
    UsdPerMillionTokensHour,
    first_day,
)
from capplan.money.token_price import CacheRules, LongerLife, PeakHours, TokenPrice, TokenRates
from capplan.readers.catalogue.models import same_model
from capplan.readers.catalogue.offer_terms import OwnFile, PageSource, own_files
from capplan.readers.record import Record, refuse_unlisted, validated
from capplan.readers.text_file import data_folder, read_json
from capplan.readers.yaml_file import read_yaml

HINT = "more: hosted.file reads LiteLLM's price file or a YAML of your own"
_PRICE_FILE_BYTES = 64_000_000
_WINDOW = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)")
_LITELLM_TIER = re.compile(r"input_cost_per_token_above_(\d{1,6})k_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTier(TokenRates):
    """Prices of requests with long prompts, for all of their tokens."""

    above: Tokens
    """Tokens of the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTerms(CacheRules):
    """Rules of a provider's prompt cache and batches, for all its models or for a generation of them."""

    __pydantic_config__ = ONLY_KNOWN_KEYS
    providers: tuple[str, ...] = ()
    """Names of the providers, `*` for any text; the key if none is listed."""
    models: tuple[str, ...] = ()
    """Names of the models, `*` for any text; all models if none is listed."""
    time_to_live: Seconds | None = None
    """Time that a cached prefix is kept since its last use."""
    minimum_prefix: Tokens | None = None
    """Shortest prefix that is cached."""
    longer: LongerLife | None = None
    """A longer time to live, at another price of writes."""
    paid_storage: bool = False
    """Whether cached tokens are paid for by the hour; a model without cache_storage then has no cache on demand."""
    batch_discount: Discount | None = None
    """Discount on all prices if the answer may take a day."""
    batch_read_discount: Discount | None = None
    """Discount on cache reads in batches, if it differs from batch_discount."""
    token_source: str | None = None
    """Key in `sources` of token_ratio."""
    source: str
    """Key in `sources`."""

    def covers(self, key: str, provider: str, model: str) -> bool:
        """Return whether these terms are those of a model of a provider."""
        names, models = self.providers or (key,), self.models or ("*",)
        return any(fnmatchcase(provider.lower(), name.lower()) for name in names) and any(
            fnmatchcase(model.lower(), name.lower()) for name in models
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedPrices(TokenRates):
    """Prices that a provider announced."""

    on: Day
    """First day of these prices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOffer(TokenRates):
    """The prices of a hosted API."""

    provider: str
    model: str
    """The provider's name."""
    serves: str | None = None
    """Hub id of the open model behind it."""
    cache_storage: UsdPerMillionTokensHour | None = None
    tiers: list[TokenTier] = field(default_factory=list)
    context: Annotated[int, Field(ge=1)] | None = None
    minimum_prefix: Tokens | None = None
    """Shortest prefix that is cached, instead of the provider's."""
    batch_discount: Discount | None = None
    """Discount on batches, instead of the provider's."""
    batch_read_discount: Discount | None = None
    """Discount on cache reads in batches, instead of the provider's."""
    services: dict[Literal["flex", "priority"], TokenRates] = field(default_factory=dict)
    """Prices of other service tiers."""
    change: ChangedPrices | None = None
    """Other prices from a stated day."""
    retires: Day | None = None
    """Day on which the provider ends the model."""
    date: Day
    source: str
    second_source: str | None = None
    """Key in `sources` of another list with the same prices; none: one source states them."""
    disagreement: str | None = None
    """What another source states instead."""


class TokenPriceFile(Record):
    """Prices of hosted APIs by the token."""

    sources: dict[str, PageSource]
    providers: dict[str, CacheTerms] = Field(default_factory=dict)
    """Terms of the models of a provider; the first that cover a model count."""
    prices: Annotated[list[TokenOffer], Field(min_length=1)]

    def terms_of(self, provider: str, model: str) -> CacheTerms | None:
        """Return the terms that cover a model, None if there are none."""
        return next(
            (terms for key, terms in self.providers.items() if terms.covers(key, provider, model)), None
        )

    @model_validator(mode="after")
    def _every_source_exists(self) -> "TokenPriceFile":
        used = {item.source for item in self.prices} | {item.source for item in self.providers.values()}
        used |= {item.second_source for item in self.prices if item.second_source}
        used |= {item.token_source for item in self.providers.values() if item.token_source}
        refuse_unlisted(used, self.sources)
        return self


def _rates(offer: TokenRates) -> TokenRates:
    return TokenRates(offer.input, offer.output, offer.cache_read, offer.cache_write)


def _on_terms(
    price: TokenPrice,
    terms: CacheTerms | None,
    *,
    storage: float | None = None,
    shortest: float | None = None,
    discount: float | None,
    read_discount: float | None = None,
    longer_write_ratio: float | None = None,
) -> TokenPrice:
    """Return a price on the terms of its provider, but for those that it states itself."""
    terms = terms or CacheTerms(source="")
    unknown = terms.paid_storage and price.rates.cache_read is not None
    longer = terms.longer
    if longer_write_ratio is not None:
        longer = LongerLife(longer.time_to_live if longer else 3600.0, longer_write_ratio)
    return replace(
        price,
        storage_usd_per_million_tokens_hour=None if unknown and storage is None else storage or 0.0,
        minimum_prefix_tokens=_stated(shortest, terms.minimum_prefix),
        batch_discount_fraction=_stated(discount, terms.batch_discount),
        batch_read_discount_fraction=terms.batch_read_discount if read_discount is None else read_discount,
        time_to_live_s=terms.time_to_live,
        longer_life=longer,
        **{item.name: getattr(terms, item.name) for item in fields(CacheRules)}
        | {"peak": terms.peak or price.peak},
    )


def _kept(provider: str, model: str) -> tuple[float | None, float | None]:
    """Return the price of storage and the shortest prefix of a model that the list that ships has too, be it under another name of its provider."""
    file = _shipped()
    terms = file.terms_of(provider, model)
    rows = [row for row in file.prices if row.model.lower() == model.lower()]
    same = [row for row in rows if row.provider.lower() == provider.lower()]
    alike = [row for row in rows if terms and file.terms_of(row.provider, row.model) is terms]
    return next(((row.cache_storage, row.minimum_prefix) for row in same or alike), (None, None))


def _stated(*values: float | None) -> float:
    return next((value for value in values if value is not None), 0.0)


def _price(offer: TokenOffer, file: TokenPriceFile) -> TokenPrice:
    price = TokenPrice(
        provider=offer.provider,
        model=offer.model,
        serves=offer.serves,
        rates=_rates(offer),
        tiers=tuple((tier.above, _rates(tier)) for tier in sorted(offer.tiers, key=lambda tier: tier.above)),
        context_tokens=offer.context,
        change=(offer.change.on, _rates(offer.change)) if offer.change else None,
        retires=offer.retires,
        services=tuple(offer.services.items()),
        date=offer.date,
        source=file.sources[offer.source].url,
    )
    return _on_terms(
        price, file.terms_of(offer.provider, offer.model), storage=offer.cache_storage,
        shortest=offer.minimum_prefix, discount=offer.batch_discount, read_discount=offer.batch_read_discount,
    )  # fmt: skip


def read_token_prices(path: str | os.PathLike[str]) -> tuple[TokenPrice, ...]:
    """Return the prices in a token-price YAML, in the schema of the table that ships."""
    file = _file(path)
    return tuple(_price(offer, file) for offer in file.prices)


def _file(path: str | os.PathLike[str]) -> TokenPriceFile:
    return validated(TokenPriceFile, read_yaml(path, kind="a token-price YAML"))


@lru_cache(maxsize=1)
def _shipped() -> TokenPriceFile:
    return _file(data_folder("hardware_specs") / "token_prices.yaml")


def token_offers() -> tuple[TokenOffer, ...]:
    """Return the rows of the list of hosted APIs that ships with the package."""
    return tuple(_shipped().prices)


def token_prices() -> tuple[TokenPrice, ...]:
    """Return the prices of hosted APIs that ship with the package, or of one's own lists, which replace them."""
    return _token_prices(own_files("token_prices"))


@lru_cache(maxsize=4)
def _token_prices(own: tuple[OwnFile, ...]) -> tuple[TokenPrice, ...]:
    known = {offer.name.lower(): offer for offer in (_price(row, _shipped()) for row in _shipped().prices)}
    for file in own:
        for price in litellm_prices(file.path, file.path.name[:10]):
            shipped = known.get(price.name.lower(), price)
            known[price.name.lower()] = replace(price, serves=shipped.serves, retires=shipped.retires)
    return tuple(known.values())


def litellm_prices(path: str | os.PathLike[str], day: str) -> tuple[TokenPrice, ...]:
    """Return the text models in LiteLLM's `model_prices_and_context_window.json`.

    Parameters
    ----------
    path : path
    day : date of the file, which it does not state itself

    Returns
    -------
    prices; entries without a price per token (images, audio, by the second, for nothing) are left out
    """
    name = os.fspath(path)
    prices = []
    for key, entry in read_json(path, kind="LiteLLM's price file", max_bytes=_PRICE_FILE_BYTES).items():
        if isinstance(entry, Mapping) and key != "sample_spec":
            price = _of_litellm(name, key, entry, day)
            prices += [price] if price else []
    if not prices:
        raise InputError(
            f"{name}: has no model with input_cost_per_token and output_cost_per_token; LiteLLM's "
            "model_prices_and_context_window.json is expected, or a token-price YAML"
        )
    return tuple(prices)


def _of_litellm(name: str, key: str, entry: Mapping[str, Any], day: str) -> TokenPrice | None:
    def usd(field: str) -> float | None:
        value = entry.get(field)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < 1.0:
            raise InputError(
                f"{name}: {key}.{field}: {str(value)[:40]!r} is not a price in dollars per token"
            )
        return float(f"{value * 1e6:.12g}")

    def rates_of(mark: str, usual_output: float | None = None) -> TokenRates | None:
        inputs, outputs = usd(f"input_cost_per_token{mark}"), usd(f"output_cost_per_token{mark}")
        outputs = usual_output if outputs is None else outputs
        if not inputs or not outputs:
            return None
        read, write = usd(f"cache_read_input_token_cost{mark}"), usd(f"cache_creation_input_token_cost{mark}")
        return TokenRates(inputs, outputs, read, write or None)

    listed = rates_of("")
    if listed is None:
        return None
    provider = str(entry.get("litellm_provider") or key.partition("/")[0])
    model = key.removeprefix(f"{provider}/")
    terms = _shipped().terms_of(provider, model)
    rates, peak = _cheap_hours(entry, listed, terms)
    starts = sorted(int(match[1]) for match in map(_LITELLM_TIER.fullmatch, entry) if match)
    tiers = [(1000.0 * start, rates_of(f"_above_{start}k_tokens", listed.output)) for start in starts]
    services = [(service, rates_of(f"_{service}")) for service in ("flex", "priority")]
    batch, batch_read = usd("input_cost_per_token_batches"), usd("cache_read_input_token_cost_batches")
    read, hour = usd("cache_read_input_token_cost"), usd("cache_creation_input_token_cost_above_1hr")
    context, shortest = entry.get("max_input_tokens"), entry.get("prompt_cache_min_tokens")
    own = float(shortest) if isinstance(shortest, int) and shortest > 0 else None
    storage, least = _kept(provider, model)
    price = TokenPrice(
        provider=provider,
        model=model,
        rates=rates,
        tiers=tuple((above, each) for above, each in tiers if each is not None),
        context_tokens=context if isinstance(context, int) and context > 0 else None,
        peak=peak,
        services=tuple((service, each) for service, each in services if each is not None),
        date=day,
        source=name,
    )
    if not isinstance(entry.get("off_peak_pricing"), Mapping) and terms:
        terms = replace(terms, peak=None)
    return _on_terms(
        price, terms, storage=storage, shortest=own or least,
        discount=max(1.0 - batch / listed.input, 0.0) if batch else None,
        read_discount=max(1.0 - batch_read / read, 0.0) if batch_read and read else None,
        longer_write_ratio=hour / listed.input if hour else None,
    )  # fmt: skip


def _cheap_hours(
    entry: Mapping[str, Any], listed: TokenRates, terms: CacheTerms | None
) -> tuple[TokenRates, PeakHours | None]:
    """Return the prices of the cheap hours and the hours at which LiteLLM's listed prices, those of the peak, are asked for.

    An hour of which a part is dear counts as dear; without hours that can be read, the listed prices are those of all hours.
    """
    cheap = entry.get("off_peak_pricing")
    if not isinstance(cheap, Mapping):
        return listed, None
    ratio = _ratio(cheap.get("input_cost_per_token"), listed.input)
    hours = _whole_hours(cheap.get("hours_utc"))
    if ratio is None or (not hours and not (terms and terms.peak)):
        return listed, None
    read, write = listed.cache_read, listed.cache_write
    rates = TokenRates(
        listed.input / ratio,
        listed.output / ratio,
        None if read is None else read / ratio,
        None if write is None else write / ratio,
    )
    dear = tuple(sorted(set(range(24)) - hours))
    return rates, PeakHours(dear, ratio, day_fraction=1.0) if dear else None


def _ratio(cheap_usd: object, listed_usd_per_million: float) -> float | None:
    """Return the price at the peak over that of the cheap hours; None if there is no such price."""
    if isinstance(cheap_usd, bool) or not isinstance(cheap_usd, (int, float)) or not 0.0 < cheap_usd < 1.0:
        return None
    return max(listed_usd_per_million / (cheap_usd * 1e6), 1.0)


def _whole_hours(written: object) -> set[int]:
    """Return the hours that lie in windows such as 16:30-00:30; empty if they cannot be read."""
    windows = written if isinstance(written, list) else str(written).split(",")
    minutes: set[int] = set()
    for window in windows:
        match = _WINDOW.fullmatch(str(window).strip())
        if match is None:
            return set()
        first, last = (60 * int(match[i]) + int(match[i + 1]) for i in (1, 3))
        minutes |= {minute % 1440 for minute in range(first, last if last > first else last + 1440)}
    return {hour for hour in range(24) if set(range(60 * hour, 60 * hour + 60)) <= minutes}


def age_days(price: TokenPrice, today: date) -> int:
    """Return the age of a price; a date without a day means its first day."""
    return (today - first_day(price.date)).days


def refuse_unused_day(day: str | None, prices: Iterable[TokenPrice], place: str) -> None:
    """Raise the error for a date that no price took over, because each states its own."""
    kept = [price for price in prices if price.date != day]
    if day is not None and kept:
        raise InputError(f"{place}: {kept[0].name} states its own date, {kept[0].date}; leave the date out")


def find_price(name: str, known: Sequence[TokenPrice]) -> TokenPrice:
    """Return the price of PROVIDER/MODEL in a list.

    Parameters
    ----------
    name : PROVIDER/MODEL; case does not matter
    known : prices to look through

    Raises
    ------
    InputError
        unknown provider or model, with the nearest names
    """
    provider, slash, model = name.partition("/")
    if not slash or not provider or not model:
        near = [price.name for price in known if price.model.lower() == name.lower()][:3]
        meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise InputError(f"--api: {name!r} is not PROVIDER/MODEL{meant}\n  e.g. --api openai/gpt-5")
    listed = {price.name.lower(): price for price in known}.get(name.lower())
    if listed is not None:
        return listed
    models = [price.model for price in known if price.provider.lower() == provider.lower()]
    if models:
        raise unknown(f"model of {provider}", model, models, place="--api", hint=HINT)
    providers = {price.provider for price in known}
    raise unknown("provider", provider, providers, place="--api", hint=HINT)


def prices_of_model(hub_id: str, known: Iterable[TokenPrice]) -> list[TokenPrice]:
    """Return the listed APIs that serve an open model, under any of the ids of its checkpoints."""
    return [price for price in known if same_model(price.serves or price.model, hub_id)]
