"""The library checks what the command line checks, in the same words: both take the ranges of the records that they share."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capplan as cp
from capplan.cli.main import main
from capplan.errors import CapplanError, InputError
from capplan.ranges import Positive, Share, Text, Whole
from capplan.scenario.command_flags import PLAN_RANGES, REQUEST_RANGES
from capplan.scenario.flags import LOAD_RANGES, SERVING_RANGES
from tests.sweeps import examples
from tests.tables import table

MODEL, DEVICE = "llama-3.1-8b", "h100-sxm"
OF_LIBRARY = {
    name: allowed
    for name, allowed in {**SERVING_RANGES, **LOAD_RANGES}.items()
    if name
    not in (
        "runner",
        "max_loras",
        "max_lora_rank",
        "revision",
    )  # a text whose own tests are in test_hub_access.py
}


def outside(allowed):
    """Return values that are not in a range, of every kind that people pass by mistake."""
    kinds = [st.sampled_from([True, "8", [8], {"n": 8}, (1, 2), float("nan"), float("inf"), float("-inf")])]
    if isinstance(allowed, Whole):
        kinds += [st.integers(max_value=allowed.least - 1), st.integers(min_value=allowed.most + 1), st.floats(1.01, 1.99)]  # fmt: skip
    elif isinstance(allowed, Share):
        kinds += [st.floats(max_value=-1e-9), st.floats(min_value=1.0 + 1e-9)]
    elif isinstance(allowed, Positive):
        kinds += [st.floats(max_value=0.0)]
    if isinstance(allowed, Text):
        kinds = [st.integers(), st.floats(), st.booleans(), st.just(["bf16"])]
    return st.one_of(kinds)


def refused(function, *given, **options):
    with pytest.raises(InputError) as caught:
        function(*given, **options)
    return str(caught.value)


@settings(max_examples=examples(150, 2000), deadline=None)
@given(st.data())
def test_every_number_outside_its_range_is_an_input_error_that_names_it(data):
    name = data.draw(st.sampled_from(sorted(OF_LIBRARY)))
    value = data.draw(outside(OF_LIBRARY[name]))
    load = {} if name in ("concurrency", "request_rate") else {"concurrency": 4}
    words = refused(cp.estimate, MODEL, DEVICE, **{name: value}, **load)
    assert words.startswith(f"{name}: ")
    assert "\n" not in words
    if name in ("kv_dtype", "tensor_parallel", "engine", "engine_version", "max_num_batched_tokens"):
        assert refused(cp.kv_size, MODEL, [4096], **{name: value}) == words


@table
def test_the_library_refuses_in_the_words_of_the_command_line(name, value, capsys):
    load = {} if name in ("concurrency", "request_rate") else {"concurrency": 4}
    words = refused(cp.estimate, MODEL, DEVICE, **{name: value}, **load)
    flag = "--" + name.replace("_", "-")
    written = f"{value:g} req/s" if name == "request_rate" else str(value)
    at = ["--concurrency", "4"] if load else []
    assert main(["estimate", MODEL, "--hardware", DEVICE, f"{flag}={written}", *at]) == 2
    of_command = capsys.readouterr().err.strip()
    assert re.sub(r"'[^']*'", str(value), of_command, count=1).replace(flag, name) in (words, f"error: {words}")  # fmt: skip


@pytest.mark.parametrize("contexts", [[-1], [0], "8192", 8192, [1.5], ["8192"], [True], None])
def test_contexts_are_a_list_of_tokens(contexts):
    assert refused(cp.kv_size, MODEL, contexts).startswith("contexts: ")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cp.estimate(MODEL, DEVICE, concurency=4), "did you mean 'concurrency'"),
        (lambda: cp.kv_size(MODEL, [1], tensor_paralel=2), "did you mean 'tensor_parallel'"),
        (lambda: cp.estimate(5, DEVICE, concurrency=1), "model: 5"),
        (lambda: cp.estimate(MODEL, None, concurrency=1), "hardware"),
        (lambda: cp.estimate(MODEL, DEVICE, concurrency=1, offline="yes"), "offline"),
        (lambda: cp.estimate(MODEL, DEVICE, concurrency=1, calibration=5), "calibration"),
        (lambda: cp.plan_fleet({"model": MODEL}), "a value of type dict is not a scenario"),
        (lambda: cp.simulate("small-team", seed=-1), "seed: -1"),
        (lambda: cp.simulate("small-team", until_s=0.0), "until_s: 0.0"),
        (lambda: cp.simulate("small-team", trace=5), "trace"),
        (lambda: cp.compare("small-team", "openai/gpt"), "apis"),
        (lambda: cp.load_scenario("small-team", 5), "settings"),
        (lambda: cp.load_scenario(5), "path"),
    ],
)
def test_what_is_no_option_and_no_path_is_refused_in_words(call, words):
    with pytest.raises(CapplanError) as caught:
        call()
    assert words in str(caught.value)


def test_every_field_that_is_a_number_has_a_range():
    from dataclasses import fields

    from capplan.scenario.command_flags import PlanFlags, RequestFlags
    from capplan.scenario.flags import LoadFlags, ServingFlags

    for record, ranges in ((ServingFlags, SERVING_RANGES), (LoadFlags, LOAD_RANGES), (RequestFlags, REQUEST_RANGES), (PlanFlags, PLAN_RANGES)):  # fmt: skip
        numbers = {field.name for field in fields(record) if re.match(r"(int|float)\b", str(field.type))}
        kept_back = {"requests"} | ({"seed"} if record is LoadFlags else set())
        assert numbers - kept_back <= set(ranges)
