"""A file with several mistakes says all of them at once: one line each, with file, line and key, what is allowed and what is nearest."""

import re
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.errors import InputError, nearest
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.prices import read_prices
from capplan.readers.yaml_file import Document, parse_yaml
from capplan.scenario.scenario import read_scenario, scenario_from
from capplan.scenario.scenario_file import Promise
from capplan.scenario.workload_file import read_workload
from tests.files import written_to
from tests.sweeps import examples
from tests.tables import table

pytestmark = pytest.mark.usefixtures("shared_runs")

ROOT = Path(__file__).resolve().parents[2]
CHAT = (ROOT / "scenarios" / "support-chat.yaml").read_text()
H100 = (ROOT / "hardware_specs" / "h100-sxm.yaml").read_text()

MISTAKES = {
    10: ("request_rate: 20 req/s", "request_rate: -5 req/s", "traffic[0].request_rate", "'-5 req/s' is not above 0"),
    11: ("p95: 6000", "p95: 600", "traffic[0].input_tokens", "p95 600 is below p50 1500"),
    12: ("mean: 350", "men: 350", "traffic[0].output_tokens.men", "unknown key 'men': did you mean 'mean'"),
    13: ("hit_fraction: 0.85", "hit_fraction: 85", "traffic[0].shared_prefix.hit_fraction", "'85' is over 1"),
    14: ("ttft_p95", "p95_ttft", "slo.p95_ttft", "unknown key 'p95_ttft': did you mean 'ttft_p95'? (known: "),
    16: ("h200-sxm", "h210-sxm", "fleet.hardware[2]", "unknown hardware 'h210-sxm': did you mean 'h200-sxm'"),
    17: ("headroom: 20 %", "headroom: 200 %", "fleet.headroom", "'200 %' is over 0.95"),
    18: ("spare_replicas", "replicas-spare", "fleet.replicas-spare", "did you mean 'spare_replicas'"),
    19: ("provider: any", "provider: awz", "prices.provider", "unknown provider 'awz': did you mean 'aws'"),
    5: ("weight_dtype: fp8", "weight_dtype: fp9", "weight_dtype", "unknown weight dtype 'fp9'"),
    7: ("engine: vllm", "engine: vlm", "engine", "unknown engine 'vlm': did you mean 'vllm'?"),
}  # fmt: skip
"""Line of the shipped scenario -> what is written there, the mistake instead, its key, and what is said of it."""


def said_of(text, path, read=read_scenario):
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read(path)
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


def with_mistakes(text, lines):
    for line in lines:
        old, new, *_ = MISTAKES[line]
        assert old in text.splitlines()[line - 1]
        text = text.replace(old, new, 1)
    return text


@given(chosen=st.sets(st.sampled_from(sorted(MISTAKES)), min_size=2))
def test_every_mistake_of_a_scenario_has_its_line_in_the_order_of_the_file(chosen, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "s.yaml"
    lines = said_of(with_mistakes(CHAT, sorted(chosen)), path)
    assert len(lines) == len(chosen)
    for found, number in zip(lines, sorted(chosen), strict=True):
        _, _, key, says = MISTAKES[number]
        assert found.startswith(f"{path}: line {number}: {key}: ")
        assert says in found


def test_five_mistakes_are_five_lines_on_stderr_and_exit_2(tmp_path, capplan):
    path = written_to(tmp_path / "s.yaml", with_mistakes(CHAT, (10, 14, 16, 17, 19)))
    ran = capplan("fleet", str(path))
    assert (ran.code, ran.out) == (2, "")
    lines = ran.err.splitlines()
    assert [int(re.search(r": line (\d+): ", line)[1]) for line in lines] == [10, 14, 16, 17, 19]


@pytest.mark.parametrize("number", MISTAKES)
def test_one_mistake_keeps_its_further_lines(number, tmp_path):
    lines = said_of(with_mistakes(CHAT, [number]), tmp_path / "s.yaml")
    assert MISTAKES[number][3].replace(" (known: ", "") in lines[0]
    if "unknown" in lines[0]:
        assert lines[1].startswith("  known: ")


@table
def test_a_misspelt_key_of_traffic_is_all_that_is_said(key, misspelt, tmp_path):
    said = said_of(CHAT.replace(f"{key}:", f"{misspelt}:", 1), tmp_path / "s.yaml")
    assert f"unknown key {misspelt!r}: did you mean {key!r}?" in said[0]
    assert not any("missing" in line or "none given" in line for line in said)


def test_a_key_at_the_wrong_level_names_the_right_one(tmp_path):
    text = CHAT + "hardware: [h100-sxm]\nttft_p95: 1 s\nrequest_rate: 3 req/s\n"
    said = said_of(text, tmp_path / "s.yaml")
    for meant in ("fleet.hardware", "slo.ttft_p95", "traffic[0].request_rate"):
        assert any(f"did you mean {meant}?" in line for line in said)


def test_a_misspelt_key_is_not_missing_as_well(tmp_path):
    text = CHAT.replace("model: meta", "modle: meta").replace("headroom: 20 %", "headroom: 2")
    first, second = said_of(text, tmp_path / "s.yaml")
    assert "unknown key 'modle': did you mean 'model'" in first
    assert "fleet.headroom: '2' is over 1" in second


def test_what_cannot_be_read_brings_no_further_complaint(tmp_path):
    text = CHAT.replace("request_rate: 20 req/s", "request_rate: fast").replace(
        "slo: {", "slo: {confidence: 2, "
    )
    lines = said_of(text, tmp_path / "s.yaml")
    assert [re.search(r"line \d+: ([\w\[\]. ]+):", line)[1] for line in lines] == [
        "traffic[0].request_rate",
        "slo.confidence",
    ]


def test_two_kinds_of_traffic_have_their_mistakes_each(tmp_path):
    second = "  - {name: other, request_rate: 1, users: 5, input_tokens: 5, output_tokens: {p95: 3}}\n"
    text = with_mistakes(CHAT, [11]).replace("slo:", f"{second}slo:")
    lines = said_of(text, tmp_path / "s.yaml")
    assert [line.split(": ")[2] for line in lines] == [
        "traffic[0].input_tokens",
        "traffic[1]",
        "traffic[1].output_tokens",
    ]


@pytest.mark.parametrize("rate", ["abc", "-3", "1e30"])
def test_a_rate_that_cannot_be_read_is_the_only_mistake_of_a_scenario_with_regions(rate, tmp_path):
    text = (ROOT / "scenarios" / "follow-the-sun.yaml").read_text()
    written = text.replace("80 req/s", rate, 1)
    (line,) = [said for said in said_of(written, tmp_path / "s.yaml") if not said.startswith("  ")]
    assert "traffic[0].request_rate" in line


def test_a_scenario_of_nothing_but_mistakes_is_still_read_to_its_end(tmp_path):
    text = "nam: 3\nmodel: [1]\ntraffic: [5, {request_rate: {}}, []]\nslo: 7\nfleet: [x]\nprices: {file: 3}\n"
    lines = said_of(text, tmp_path / "s.yaml")
    assert [int(re.search(r": line (\d+): ", line)[1]) for line in lines] == [1, 2, *[3] * 5, 4, 5, 6]


def test_a_mistake_in_another_file_has_its_place_in_this_one_too(tmp_path):
    (tmp_path / "w.yaml").write_text(
        "name: w\ntraffic: [{request_rate: 4 s, input_tokens: 0, output_tokens: 10}]\n"
    )
    text = with_mistakes(CHAT, [17])
    old = next(line for line in text.splitlines() if "request_rate" in line)
    missing = said_of(text.replace(old, "    trace: nope.csv"), tmp_path / "s.yaml")
    assert [line.split(": ")[1:3] for line in missing] == [
        ["line 10", "traffic[0].trace"],
        ["line 17", "fleet.headroom"],
    ]
    assert "nope.csv: no such file" in missing[0]
    first, second, third = said_of(text.replace(old, "    trace: w.yaml"), tmp_path / "s.yaml")
    assert f"line 10: traffic[0].trace: {tmp_path / 'w.yaml'}: line 2: traffic[0].request_rate" in first
    assert second.startswith(f"{tmp_path / 'w.yaml'}: line 2: traffic[0].input_tokens: ")
    assert "line 17: fleet.headroom" in third


def test_other_files_say_all_of_their_mistakes_too(tmp_path):
    path = tmp_path / "prices.yaml"
    offer = "{device: h100-sxm, provider: A, commitment: ondemand, price: 3 $, date: 2026, sorce: page}"
    lines = said_of(f"sources: {{page: {{title: a, url: b}}}}\nprices:\n  - {offer}\n", path, read_prices)
    assert [line.split(": ")[2] for line in lines] == [
        "prices[0].commitment",
        "prices[0].price",
        "prices[0].sorce",
    ]
    text = H100.replace("80 GB", "80 Gb").replace("700 W", "700")
    assert len(said_of(text, tmp_path / "gpu.yaml", lambda p: device(str(p)))) == 2
    workload = (
        "name: w\ntraffic: [{request_rate: 4 s, input_tokens: 0, output_tokens: 10}]\nrate_by_hour: [-1]\n"
    )
    assert len(said_of(workload, tmp_path / "w.yaml", read_workload)) == 3


@given(name=st.sampled_from(sorted(Promise.model_fields)), joint=st.sampled_from("_-. "), order=st.randoms())
def test_words_in_another_order_are_the_same_key(name, joint, order):
    words = name.split("_")
    order.shuffle(words)
    assert nearest(joint.join(words).upper(), Promise.model_fields)[0] == name


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-1e3, 1e3) | st.sampled_from(["", "x", "5 s", "20 %", "fp8"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "mean", "p95", "x"]), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


def paths_of(value, start=()):
    yield start
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, held in inner:
        yield from paths_of(held, (*start, key))


WHOLE = parse_yaml(CHAT, "s.yaml").value
PATHS = [path for path in paths_of(WHOLE) if path]


@settings(max_examples=examples(100, 200))
@given(changes=st.dictionaries(st.sampled_from(PATHS), JUNK, min_size=1, max_size=5))
def test_whatever_is_written_is_a_scenario_or_lines_that_name_the_file(changes, tmp_path_factory):
    value = deepcopy(WHOLE)
    for (*parents, last), junk in sorted(changes.items(), key=lambda item: len(item[0]), reverse=True):
        place = value
        for part in parents:
            place = place[part]
        place[last] = junk
    try:
        found = scenario_from(Document("s.yaml", value, {}), tmp_path_factory.getbasetemp())
    except InputError as error:
        lines = [line for line in str(error).splitlines() if not line.startswith("  ")]
        assert lines
        assert all(line.startswith("s.yaml: ") for line in lines)
    else:
        assert found.classes
