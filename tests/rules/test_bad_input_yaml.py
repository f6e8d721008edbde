"""Every mistake in a file is one clear line that names file and key, never a traceback and never a number."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.errors import InputError
from capplan.readers.catalogue.prices import read_prices
from capplan.readers.text_file import read_json
from capplan.readers.yaml_file import parse_yaml, read_yaml
from capplan.recorded.traces.trace import read_trace
from capplan.scenario.scenario import read_scenario
from tests.files import written_to
from tests.sweeps import examples


def test_alias_bomb_is_refused_by_what_it_expands_to():
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(InputError, match="holds more than 200,000 values"):
        parse_yaml("\n".join(levels), "bomb.yaml")


def test_small_alias_is_read():
    assert parse_yaml("a: &x {b: 1}\nc: *x\n", "a.yaml").value == {"a": {"b": 1}, "c": {"b": 1}}


def test_core_schema_keeps_words_and_dates_as_text():
    value = parse_yaml(
        "a: no\nb: on\nc: 2026-11-20\nd: 1:30\ne: 0123\nf: null\ng: 1e3\nh: '5'\n", "a.yaml"
    ).value
    assert value == {
        "a": "no",
        "b": "on",
        "c": "2026-11-20",
        "d": "1:30",
        "e": "0123",
        "f": None,
        "g": 1000.0,
        "h": "5",
    }


@settings(max_examples=examples(100, 200))
@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*!#\n \t'\"|>%@,0123456789.~"), max_size=80))
def test_any_text_is_a_document_or_one_clear_error(text):
    try:
        said = parse_yaml(text, "any.yaml").name
    except InputError as error:
        said = str(error)
    assert said.startswith("any.yaml")


def test_file_of_50_mb_is_refused_with_the_limit(tmp_path):
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(50_000_000)
    path.write_bytes(b"a: b\n" * 10_000_000)
    with pytest.raises(InputError, match="is larger than 8 MB, the limit for"):
        read_yaml(path, kind="a scenario YAML")


@pytest.mark.parametrize(
    ("text", "says"), [("[" * 100_000, "nested too deeply"), ('{"a": ' + "9" * 6000 + "}", "too many digits")]
)
def test_json_out_of_all_proportion_is_one_clear_line(text, says, tmp_path):
    path = written_to(tmp_path / "config.json", text)
    with pytest.raises(InputError, match=says) as caught:
        read_json(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [partial(read_yaml, kind="a scenario YAML"), read_scenario])
def test_yaml_5000_levels_deep_is_refused(read, tmp_path):
    (tmp_path / "x.yaml").write_text("[" * 5000)
    with pytest.raises(InputError, match="is nested deeper"):
        read(tmp_path / "x.yaml")


def test_json_object_is_read(tmp_path):
    path = written_to(tmp_path / "config.json", {"hidden_size": 8})
    assert read_json(path) == {"hidden_size": 8}


def test_price_file_mistake_is_one_clear_line(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text(
        "sources: {page: {title: a, url: b}}\nprices:\n  - {device: h100-sxm, provider: A, commitment: on-demand, price: 3 $, date: 2026, source: page}\n"
    )
    with pytest.raises(InputError, match=r"line 3: prices\[0\].price: '3 \$' is not in \$/h"):
        read_prices(path)
    path.write_text(path.read_text().replace("3 $,", "3 $/h,").replace("2026", "20.11.2026"))
    with pytest.raises(InputError, match=r"prices\[0\].date"):
        read_prices(path)


def test_rows_that_are_no_mistakes_are_left_out_even_where_reading_is_strict(tmp_path):
    """No output, no prompt, too long, or a time beyond any clock: a log has such rows, and the others are replayed."""
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n1,2,0\n2,0,2\n3,1e12,2\n2e12,1,1\n5,1,1\n")
    assert len(read_trace(path).arrival_s) == 2
