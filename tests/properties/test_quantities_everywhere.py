"""A number of requests, tokens or things reads the same in YAML and in flags, whoever writes it."""

from fractions import Fraction

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from capplan.cli.main import as_click
from capplan.cli.options import LOAD, fraction, measure, whole
from capplan.errors import InputError
from capplan.questions.sweep import loads_of
from capplan.readers.record import validated
from capplan.readers.yaml_file import parse_yaml
from capplan.scenario.scenario_file import ScenarioFile

PREFIX = {"": 1, "k": 1000, "K": 1000, "M": 10**6}
PER = {"s": 1, "min": 60, "h": 3600, "d": 86400}
RATES = {
    "": 1, "rps": 1, "qps": 1, "rpm": Fraction(1, 60),
    **{f"{stem}/{time}": Fraction(1, seconds) for stem in ("", "req", "requests") for time, seconds in PER.items()},
}  # fmt: skip
TOKENS = {"": 1, "tokens": 1, "tok": 1}
NUMBERS = st.decimals("0.001", "999", places=3).map(lambda number: f"{number.normalize():f}")
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
    number=NUMBERS, prefix=st.sampled_from(sorted(PREFIX)), unit=st.sampled_from(sorted(RATES)), space=SPACE
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


@given(number=NUMBERS, prefix=st.sampled_from(sorted(PREFIX)), space=SPACE)
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


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10 m", "did you mean 'M'"), ("10 s", "a time is given where a rate is expected"), ("10 tok/s", "is not in req/s"),
        ("1,5", "groups of three digits"), ("0", "is not above"), ("-3", "is not above"),
    ],
)  # fmt: skip
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
