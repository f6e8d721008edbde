"""Laws of money."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.money.price import (
    PriceRecord,
    Prices,
    choose_price,
    energy_usd_per_hour,
)

OFFERS = st.lists(
    st.builds(
        PriceRecord,
        device=st.sampled_from(["h100-sxm", "b200"]),
        provider=st.sampled_from(["A", "B", "C", "D"]),
        commitment=st.sampled_from(["on-demand", "spot"]),
        price=st.floats(0.1, 20),
        source=st.just("page"),
        date=st.sampled_from([None, "2024", "2026-01", "2026-10-07"]),
        quality=st.sampled_from(["list", "estimate", "doubtful"]),
    ),
    max_size=12,
)


@given(offers=OFFERS)
def test_chosen_price_lies_between_the_offers_and_never_rests_on_a_doubtful_one(offers):
    chosen = choose_price(offers, "h100-sxm", Prices())
    usable = [
        o
        for o in offers
        if o.device == "h100-sxm" and o.commitment == "on-demand" and o.quality != "doubtful"
    ]
    if not usable:
        assert chosen is None
        return
    assert set(chosen.records) <= set(usable)
    assert chosen.usd_per_hour > 0
    assert chosen.low_usd_per_hour <= chosen.usd_per_hour <= chosen.high_usd_per_hour
    if any(o.quality == "list" for o in usable):
        assert {o.quality for o in chosen.records} == {"list"}
        assert "estimate" not in chosen.basis
    else:
        assert chosen.warning
        assert "estimate" in chosen.basis


@given(prices=st.lists(st.floats(0.1, 20), min_size=1, max_size=7))
def test_the_price_is_the_lower_median_which_somebody_asks_for(prices):
    offers = [
        PriceRecord("b200", f"P{index}", "on-demand", usd, "page", None) for index, usd in enumerate(prices)
    ]
    chosen = choose_price(offers, "b200", Prices())
    assert chosen.offers == len(prices)
    assert (chosen.low_usd_per_hour, chosen.high_usd_per_hour) == (min(prices), max(prices))
    assert chosen.usd_per_hour == sorted(prices)[(len(prices) - 1) // 2]
    assert len(chosen.records) == 1
    assert chosen.records[0].usd_per_hour == chosen.usd_per_hour


@given(offers=OFFERS)
def test_override_wins(offers):
    chosen = choose_price(offers, "b200", Prices(per_gpu_hour={"b200": 3.0}))
    assert chosen.usd_per_hour == 3.0
    assert (chosen.records, chosen.offers, chosen.basis) == ((), 0, "the scenario")


@pytest.mark.parametrize(
    ("newest", "old", "kept"),
    [
        ("2026-10-29", "2026-05-02", True), ("2026-10-29", "2026-05-01", False),  # 180 days
        ("2026-12-28", "2026", True), ("2026-12-29", "2026", False),  # a year alone is its July
        ("2026-11-11", "2026-05", True), ("2026-11-12", "2026-05", False),  # a month alone its 15th
        ("2026-09", "2026-03-19", True), ("2026-09", "2026-03-18", False),
        ("2026-09-16", None, False),
    ],
)  # fmt: skip
def test_an_offer_counts_for_180_days(newest, old, kept):
    offers = [
        PriceRecord("b200", "New", "on-demand", 6.0, "page", date=newest),
        PriceRecord("b200", "Old", "on-demand", 14.0, "page", date=old),
    ]
    assert choose_price(offers, "b200", Prices()).high_usd_per_hour == (14.0 if kept else 6.0)
    assert choose_price(offers, "b200", Prices(provider="old")).usd_per_hour == 14.0  # of its own provider


def test_an_offer_of_a_term_counts_for_a_year():
    def offer(provider, usd, day):
        return PriceRecord("b200", provider, "reserved-1y", usd, "page", date=day)

    year = Prices(commitment="reserved-1y")
    offers = [offer("A", 3.0, "2026-07-01"), offer("B", 2.0, "2025-07-01"), offer("C", 1.0, "2025-06-30")]
    chosen = choose_price(offers, "b200", year)
    assert (chosen.usd_per_hour, chosen.high_usd_per_hour, chosen.offers) == (2.0, 3.0, 2)


@given(
    rented=st.floats(1, 20), own=st.floats(1, 20), off=st.floats(0.05, 0.9), at=st.sampled_from(["A", "any"])
)
def test_a_discount_for_a_term_is_taken_off_the_price_on_demand(rented, own, off, at):
    """A asks for `own` on demand and `off` less for a year; of one provider the price is its own."""
    offers = [
        PriceRecord("b200", "A", "on-demand", 8 * own, "page", sku="a.8x", devices=8, date="2026-10-01"),
        PriceRecord("b200", "A", "on-demand", 50.0, "page", sku="a.1x", date="2026-10-01"),
        PriceRecord("b200", "A", "reserved-1y", 8 * own * (1 - off), "page", sku="a.8x", devices=8, date="2026-10-01"),
        *(PriceRecord("b200", name, "on-demand", rented, "page", date="2026-10-01") for name in "BCD"),
    ]  # fmt: skip
    chosen, demand = (
        choose_price(offers, "b200", Prices(commitment=commitment, provider=at))
        for commitment in ("reserved-1y", "on-demand")
    )
    assert demand.usd_per_hour == (own if at == "A" else rented)
    assert chosen.usd_per_hour == pytest.approx((1 - off) * demand.usd_per_hour)


def test_offers_without_any_date_are_all_taken():
    offers = [
        PriceRecord("b200", name, "on-demand", usd, "page", None)
        for name, usd in (("A", 4.0), ("B", 2.0), ("C", 3.0), ("D", 1.0))
    ]
    chosen = choose_price(offers, "b200", Prices())
    assert chosen.usd_per_hour == 2.0  # the lower of the two in the middle, which somebody asks for
    assert (chosen.low_usd_per_hour, chosen.high_usd_per_hour) == (1.0, 4.0)


def test_energy_of_a_kilowatt_for_an_hour_is_the_price_of_a_kilowatt_hour():
    assert energy_usd_per_hour(1000.0, 0.31) == pytest.approx(0.31)
