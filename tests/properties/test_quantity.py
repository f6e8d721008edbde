"""Laws of the one parser of quantities."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capplan import quantity as q
from capplan.errors import InputError
from capplan.quantity import quantity

DECIMAL = ["", "k", "M", "G", "T", "P", "E"]
BINARY = ["", "Ki", "Mi", "Gi", "Ti", "Pi"]
NUMBERS = st.integers(min_value=0, max_value=10**6)
UNITS = [
    q.BYTES,
    q.BYTES_PER_S,
    q.FLOP_PER_S,
    q.SECONDS,
    q.REQUESTS_PER_S,
    q.TOKENS,
    q.USD_PER_HOUR,
    q.WATTS,
    q.FRACTION,
]


@given(number=NUMBERS, power=st.integers(0, 6), space=st.sampled_from(["", " ", "  "]))
def test_decimal_prefix_is_a_power_of_1000(number, power, space):
    assert quantity(f"{number}{space}{DECIMAL[power]}B", q.BYTES) == float(number * 1000**power)


@given(number=NUMBERS, power=st.integers(0, 5))
def test_binary_prefix_is_a_power_of_1024(number, power):
    assert quantity(f"{number} {BINARY[power]}B", q.BYTES) == float(number * 1024**power)


@given(number=st.integers(1, 10**6), power=st.integers(1, 3))
def test_small_prefix_divides_by_a_power_of_1000(number, power):
    prefix = ["", "m", "u", "n"][power]
    assert quantity(f"{number} {prefix}s", q.SECONDS) == number / 1000**power


@given(whole=st.integers(0, 999), tenth=st.integers(0, 9))
def test_decimals_are_right_to_the_last_bit(whole, tenth):
    assert quantity(f"{whole}.{tenth} TFLOP/s", q.FLOP_PER_S) == float((whole * 10 + tenth) * 10**11)


@given(number=st.integers(1, 10**6))
def test_bits_are_an_eighth_of_bytes(number):
    assert quantity(f"{number} Gbit/s", q.BYTES_PER_S) == quantity(f"{number} GB/s", q.BYTES_PER_S) / 8


@given(text=st.text(max_size=80), unit=st.sampled_from(UNITS))
@example(text="E0", unit=q.BYTES)
def test_any_text_is_a_finite_number_or_one_clear_line(text, unit):
    try:
        message, value = "", quantity(text, unit)
    except InputError as error:
        message, value = str(error), 0.0
    assert math.isfinite(value)
    assert not message or "write it as" in message


@given(number=st.floats(min_value=0, max_value=1, allow_nan=False))
def test_percent_is_a_hundredth_of_the_bare_fraction(number):
    assert quantity(f"{number * 100!r} %", q.FRACTION) == pytest.approx(
        quantity(number, q.FRACTION), rel=1e-12, abs=1e-300
    )


@pytest.mark.parametrize(
    ("text", "unit", "says"),
    [
        ("80 Gb", q.BYTES, "b is bits: write GB for bytes"),
        ("20%%", q.FRACTION, "is not a percentage"),
        ("5 s", q.REQUESTS_PER_S, "a time is given where a rate is expected"),
        ("5 req/s", q.SECONDS, "a rate is given where a time is expected"),
        ("500", q.SECONDS, "the unit is missing"),
        (500, q.BYTES, "the unit is missing"),
        ("989 TFLOPS", q.FLOP_PER_S, "write TFLOP/s"),
        ("4.8 tb/s", q.BYTES_PER_S, "did you mean 'TB/s'"),
        ("nan s", q.SECONDS, "is not a number"),
        (math.nan, q.TOKENS, "is not a number"),
        (math.inf, q.TOKENS, "is not a number"),
        ("1e400 s", q.SECONDS, "is out of range"),
        ("1e30 GB", q.BYTES, "is out of range"),
        (20, q.FRACTION, "needs its unit"),
        ("1,55 GB", q.BYTES, "groups of three"),
        (True, q.TOKENS, "is not a number"),
        (None, q.BYTES, "is not a"),
        ([1], q.BYTES, "is not a"),
    ],
)
def test_wrong_quantity_says_what_is_allowed_and_gives_an_example(text, unit, says):
    with pytest.raises(InputError) as caught:
        quantity(text, unit, "file.yaml: some.key")
    message = str(caught.value)
    assert message.startswith("file.yaml: some.key: ")
    assert says in message
    number, prefixed = unit.example.split() if " " in unit.example else (unit.example, "")
    assert f"'{text if says == 'the unit is missing' else number} {prefixed}".rstrip() in message
    assert "\n" not in message


def test_an_example_of_every_unit_is_read():
    for unit in UNITS:
        assert quantity(unit.example, unit) > 0
