"""The page of hosted gaps: its products are its gaps, its API prices those of the list worked out by hand, and a row is what a search finds."""

from math import prod

import pytest

from docs.generators.hosted_gaps import (
    DEVICES,
    EXPLAINED,
    FACTORS,
    FILE,
    HEAD,
    MODELS,
    PAGE,
    gap,
    row_of,
    smallest,
)
from docs.generators.page_tables import Table, table_in


def cells():
    return [list(row.values()) for row in table_in(FILE)]


def test_the_page_shows_the_smallest_gap_of_each_model():
    assert str(smallest(Table(HEAD, cells()))) in PAGE.read_text(encoding="utf-8")


def test_the_page_has_every_model_on_every_device():
    found = [(row[0], row[1]) for row in cells()]
    assert found == [(model.partition("/")[2], device) for model in MODELS for device in DEVICES]


def test_every_gap_is_the_product_of_its_causes():
    """Two decimals are printed, so a factor near one is up to half a percent off."""
    for _, _, _, own, api, ratio, left, *rest in cells():
        assert float(own) / float(api) == pytest.approx(float(ratio), rel=0.03)
        if float(ratio) < EXPLAINED:
            assert not left
            continue
        factors = [float(each) for each in rest[: len(FACTORS)] if each]
        assert prod(factors) * float(left.split()[0]) == pytest.approx(float(ratio), rel=0.03)
        assert min(factors) >= 1.0


def test_prices_of_apis_are_those_of_the_list_at_1500_and_300_tokens():
    by_hand = {
        "Llama-3.1-8B-Instruct": (1500 * 0.02 + 300 * 0.04) / 1800,
        "Qwen3-32B": (1500 * 0.08 + 300 * 0.28) / 1800,
        "gpt-oss-120b": (1500 * 0.037 + 300 * 0.17) / 1800,
        "DeepSeek-V3": 0.9,
        "DeepSeek-V3.2": (1500 * 0.2288 + 300 * 0.3432) / 1800,
    }
    for row in cells():
        assert float(row[4]) == pytest.approx(by_hand[row[0]], abs=0.0006)


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "device"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "h100-sxm"),
        ("openai/gpt-oss-120b", "h200-sxm"),
        ("Qwen/Qwen3-32B", "gb200"),
    ],
)
def test_a_row_is_what_a_search_finds(model, device):
    assert row_of(gap(model, device)) in cells(), "run: python -m docs.generators.hosted_gaps"
