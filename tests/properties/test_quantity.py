"""Laws of the one parser of quantities, which reads the same in YAML and in flags, whoever writes it."""

import math
from fractions import Fraction

import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st

from capplan import quantity as q
from capplan.cli.main import as_click
from capplan.cli.options import LOAD, fraction, measure, whole
from capplan.errors import InputError
from capplan.quantity import quantity
from capplan.questions.sweep import loads_of
from capplan.readers.record import validated
from capplan.readers.yaml_file import parse_yaml
from capplan.scenario.scenario_file import ScenarioFile
from tests.tables import table

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


PREFIX = {"": 1, "k": 1000, "K": 1000, "M": 10**6}
PER = {"s": 1, "min": 60, "h": 3600, "d": 86400}
RATES = {
    "": 1, "rps": 1, "qps": 1, "rpm": Fraction(1, 60),
    **{f"{stem}/{time}": Fraction(1, seconds) for stem in ("", "req", "requests") for time, seconds in PER.items()},
}  # fmt: skip
TOKENS = {"": 1, "tokens": 1, "tok": 1}
COUNTS = st.decimals("0.001", "999", places=3).map(lambda number: f"{number.normalize():f}")
SPACE = st.sampled_from(["", " ", "  "])


def in_yaml(key, text):
    """Return what a scenario reads."""
    written = {
        "request_rate": "1 req/s",
        "input_tokens": "5",
        "max_model_len": "9",
        "max_num_seqs": "7",
        key: text,
    }
    document = parse_yaml(
        f"name: a\nmodel: b\nmax_model_len: {written['max_model_len']}\nmax_num_seqs: {written['max_num_seqs']}\n"
        f"traffic: [{{request_rate: {written['request_rate']}, input_tokens: {written['input_tokens']}, output_tokens: 5}}]\n",
        "a.yaml",
    )
    read = validated(ScenarioFile, document)
    (traffic,) = read.traffic
    found = {
        "request_rate": traffic.request_rate,
        "input_tokens": traffic.input_tokens.fixed,
        "max_model_len": read.max_model_len,
        "max_num_seqs": read.max_num_seqs,
    }
    return found[key]


def reader(option):
    return option.parser


RATE = reader(LOAD["request_rate"])
COUNT = reader(whole("--count", of="things", says=""))
LENGTH = reader(LOAD["input_tokens"])


@given(
    number=COUNTS, prefix=st.sampled_from(sorted(PREFIX)), unit=st.sampled_from(sorted(RATES)), space=SPACE
)
def test_a_rate_is_the_same_in_yaml_and_in_flags(number, prefix, unit, space):
    text = f"{number}{space}{prefix}{unit}" if prefix else f"{number}{space}{unit}"
    exact = float(Fraction(number) * PREFIX[prefix] * RATES[unit])
    assert in_yaml("request_rate", text) == RATE(text) == exact
    assert loads_of(text, None)[0] == (exact,)


@given(
    number=st.integers(1, 999),
    prefix=st.sampled_from(sorted(PREFIX)),
    unit=st.sampled_from(sorted(TOKENS)),
    space=SPACE,
)
def test_a_length_is_the_same_in_yaml_and_in_flags(number, prefix, unit, space):
    text = f"{number}{space}{prefix}{unit}"
    exact = number * PREFIX[prefix]
    assert in_yaml("input_tokens", text) == in_yaml("max_model_len", text) == LENGTH(text) == exact


@given(number=COUNTS, prefix=st.sampled_from(sorted(PREFIX)), space=SPACE)
def test_a_count_is_the_same_in_yaml_and_in_flags_and_whole(number, prefix, space):
    text = f"{number}{space}{prefix}"
    exact = Fraction(number) * PREFIX[prefix]
    if exact.denominator == 1:
        assert in_yaml("max_num_seqs", text) == COUNT(text) == exact
        assert loads_of(None, f"{number}{prefix}")[1] == (exact,) if exact <= 100_000 else True
    else:
        with pytest.raises(InputError, match="must be a whole number"):
            in_yaml("max_num_seqs", text)
        with pytest.raises(InputError, match="is not a whole number of things"):
            COUNT(text)


@pytest.mark.parametrize(
    "text", ["1,8192", "8.192.000", "10 m", "10 MB", "ten", "1_0", "5 %", "0x10", "", "--", "5 req/s", "1e"]
)
def test_what_is_no_count_is_none_in_either_place(text):
    with pytest.raises(InputError):
        in_yaml("input_tokens", f"'{text}'")
    with pytest.raises(InputError):
        LENGTH(text)


@table
def test_what_could_mean_two_things_is_refused_with_the_reason_in_both_places(text, why):
    with pytest.raises(InputError, match=why):
        in_yaml("request_rate", f"'{text}'")
    with pytest.raises(InputError, match=why):
        RATE(text)


@pytest.mark.parametrize(("text", "why"), [("5 m", "write min or ms"), ("800", "the unit is missing")])
def test_a_time_needs_its_unit(text, why):
    with pytest.raises(InputError, match=why):
        reader(measure("--time", says=""))(text)


def test_a_list_of_rates_may_say_its_unit_once():
    assert loads_of("1, 2, 4 req/min", None)[0] == (1 / 60, 2 / 60, 4 / 60)
    assert loads_of("60rpm,120rpm", None)[0] == (1.0, 2.0)
    assert loads_of("1, 2, 3k", None)[0] == (1.0, 2.0, 3000.0)
    assert loads_of("1k, 2 req/min", None)[0] == (2 / 60, 1000 / 60)


def test_every_number_of_a_command_goes_through_the_one_reader():
    """An option whose value typer itself turns into a number would read 32k otherwise."""
    from capplan.cli.commands import COMMANDS
    from capplan.cli.main import app

    program = typer.main.get_command(app)
    with program.make_context("capplan", ["--help"], resilient_parsing=True) as context:
        for name in COMMANDS:
            for parameter in program.get_command(context, name).params:
                assert parameter.type.name not in ("integer", "float"), (name, parameter.name)
    assert fraction("--share", says="").parser("20 %") == 0.2
    assert as_click is not None
