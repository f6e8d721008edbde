"""Every mistake in a file is one clear line that names file and key, never a traceback and never a number."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.errors import InputError
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.prices import read_prices
from capplan.readers.text_file import read_json
from capplan.readers.yaml_file import parse_yaml, read_yaml
from capplan.recorded.traces.trace import read_trace
from capplan.scenario.scenario import read_scenario
from tests.sweeps import examples

ROOT = Path(__file__).resolve().parents[2]
CHAT = (ROOT / "scenarios" / "support-chat.yaml").read_text()
H100 = (ROOT / "hardware_specs" / "h100-sxm.yaml").read_text()


def changed(text, old, new):
    assert old in text
    return text.replace(old, new)


SCENARIOS = {
    "negative traffic": (("20 req/s", "-20 req/s"), ["line 10: traffic[0].request_rate: '-20 req/s' is not above 0"]),
    "traffic of zero": (("20 req/s", "0 req/s"), ["traffic[0].request_rate", "is not above 0"]),
    "a time where a rate is due": (("20 req/s", "5 s"), ["traffic[0].request_rate", "is not in req/s", "'20 req/s'"]),
    "absurd traffic": (("20 req/s", "1e30 req/s"), ["traffic[0].request_rate", "out of range"]),
    "p95 below the median": (("p95: 6000", "p95: 600"), ["traffic[0].input_tokens: p95 600 is below p50 1500"]),
    "p95 that no length has": (("p95: 900", "p95: 9000"), ["traffic[0].output_tokens: p95 9000", "3.87 times the mean"]),
    "mean of nan": (("p50: 1500", "p50: .nan"), ["line 11", ".nan is not a finite number"]),
    "negative length": (("p50: 1500", "p50: -1500"), ["traffic[0].input_tokens.p50", "not above 0"]),
    "slo of zero": (("800 ms", "0 ms"), ["slo.ttft_p95", "'0 ms' is not above 0"]),
    "slo without unit": (("800 ms", "800"), ["slo.ttft_p95", "the unit is missing", "'800 ms'"]),
    "unknown statistic": (("ttft_p95", "ttft_95"), ["unknown key 'ttft_95': did you mean 'ttft_p95'"]),
    "empty hardware list": (("[a100-sxm-80gb, h100-sxm, h200-sxm, b200]", "[]"), ["fleet.hardware: is empty"]),
    "unknown hardware": (("h200-sxm", "h210-sxm"), ["fleet.hardware[2]: unknown hardware 'h210-sxm': did you mean 'h200-sxm'"]),
    "misspelt key": (("headroom", "headrom"), ["fleet.headrom: unknown key 'headrom': did you mean 'headroom'"]),
    "two percent signs": (("20 %", "20%%"), ["fleet.headroom: '20%%' is not a percentage", "'20 %'"]),
    "headroom of everything": (("20 %", "100 %"), ["fleet.headroom", "is over 0.95"]),
    "negative spares": (("spare_replicas: 1", "spare_replicas: -1"), ["fleet.spare_replicas: -1 should be greater"]),
    "spares in words": (("spare_replicas: 1", "spare_replicas: one"), ["fleet.spare_replicas: one must be a whole number"]),
    "unknown weight dtype": (("weight_dtype: fp8", "weight_dtype: fp9"), ["weight_dtype: unknown weight dtype 'fp9'", "'fp8'"]),
    "unknown kv dtype": (("kv_dtype: fp8", "kv_dtype: fp9"), ["kv_dtype: unknown KV dtype 'fp9'", "'fp8'"]),
    "unknown engine": (("engine: vllm", "engine: vlm"), ["engine: unknown engine 'vlm'", "'vllm'"]),
    "version as a number": (("engine: vllm", "engine: vllm\nengine_version: 0.19"), ["engine_version: 0.19 must be text"]),
    "unknown commitment": (("on-demand", "ondemand"), ["prices.commitment: unknown commitment 'ondemand': did you mean 'on-demand'"]),
    "unknown provider": (("provider: any", "provider: awz"), ["prices.provider: unknown provider 'awz': did you mean 'aws'"]),
    "no traffic rate": (("    request_rate: 20 req/s  # at peak\n", ""), ["traffic[0]", "give exactly one of request_rate, users"]),
    "users without think time": (("request_rate: 20 req/s", "users: 5"), ["traffic[0]: users and think_time belong together"]),
    "two kinds of rate": (("    request_rate: 20 req/s", "    users: 5\n    think_time: 3 s\n    request_rate: 20 req/s"), ["request_rate and users given"]),
    "no traffic": (("traffic:", "traffic: []\nold:"), ["traffic: is empty"]),
    "no model": (("model: meta-llama/Llama-3.1-70B-Instruct\n", ""), ["model: is missing"]),
    "prefix longer than the prompt": (("tokens: 1200", "tokens: 12000"), ["shared_prefix.tokens: 12000 tokens are more than the mean prompt"]),
    "hit fraction over one": (("0.85", "85"), ["shared_prefix.hit_fraction: '85' is over 1"]),
    "missing trace": (("request_rate: 20 req/s", "trace: nope.csv"), ["nope.csv: no such file"]),
    "duplicate key": (("engine: vllm", "engine: vllm\nengine: sglang"), ["line 8: 'engine' is given twice"]),
    "slo as a list": (("slo: {ttft_p95: 800 ms, tpot_p95: 40 ms}", "slo: [1]"), ["slo: must be 'key: value' lines"]),
    "tensor parallel of zero": (("headroom: 20 %", "tensor_parallel: [0]"), ["fleet.tensor_parallel[0]: 0 should be greater"]),
    "less than no think time": (("request_rate: 20 req/s", "users: 5\n    think_time: -1 s"), ["traffic[0].think_time: '-1 s' is below 0"]),
    "no users": (("request_rate: 20 req/s", "users: 0\n    think_time: 3 s"), ["traffic[0].users: '0' is not above 0"]),
    "curve of 23 hours": (("    shared", f"    daily_curve: {[1] * 23}\n    shared"), ["line 13: traffic[0].daily_curve: has 23 values; give 24", "office"]),
    "curve of zeros": (("    shared", f"    daily_curve: {[0] * 24}\n    shared"), ["traffic[0].daily_curve: is 0 in every hour"]),
    "curve below zero": (("    shared", f"    daily_curve: {[1] * 23 + [-1]}\n    shared"), ["traffic[0].daily_curve[23]: '-1' is below 0"]),
    "curve of nan": (("    shared", f"    daily_curve: [{'1, ' * 23}.nan]\n    shared"), ["line 13", ".nan is not a finite number"]),
    "unknown shape": (("    shared", "    daily_curve: ofice\n    shared"), ["traffic[0].daily_curve: unknown shape 'ofice': did you mean 'office'?"]),
    "mean above the peak": (("    shared", "    mean_rate: 21 req/s\n    shared"), ["line 13: traffic[0].mean_rate: 21 req/s is above the peak of 20 req/s"]),
    "two means": (("    shared", "    mean_rate: 2 req/s\n    active_hours: 10\n    shared"), ["line 14: traffic[0].active_hours: states the mean rate a second time, besides mean_rate"]),
    "25 hours of a day": (("    shared", "    active_hours: 25\n    shared"), ["traffic[0].active_hours: '25' is over 24, so"]),
    "no hour of a day": (("    shared", "    active_hours: 0 h\n    shared"), ["traffic[0].active_hours: '0 h' is not above 0"]),
    "mean of users": (("request_rate: 20 req/s", "users: 5\n    think_time: 3 s\n    mean_rate: 1 req/s"), ["traffic[0].mean_rate", "give daily_curve or active_hours"]),
    "hours of a job": (("request_rate: 20 req/s", "requests: 5\n    within: 3 h\n    active_hours: 8"), ["traffic[0].active_hours", "a batch job is paid for while it runs"]),
    "full confidence": (("slo: {", "slo: {confidence: 1, "), ["slo.confidence: '1' is not below 1; e.g. '80 %'"]),
    "no confidence": (("slo: {", "slo: {confidence: 0 %, "), ["slo.confidence: '0 %' is not above 0; e.g. '80 %'"]),
    "unknown routing": (("headroom: 20 %", "routing: round-robbin"), ["fleet.routing: unknown routing 'round-robbin': did you mean 'round_robin'?"]),
    "same name twice": (("slo:", "  - {name: chat, request_rate: 1 req/s, input_tokens: 5, output_tokens: 5}\nslo:"), ["traffic[1].name: 'chat' names two kinds"]),
}  # fmt: skip


@pytest.mark.parametrize("mistake", SCENARIOS)
def test_scenario_mistake_is_one_clear_line(mistake, tmp_path):
    (old, new), says = SCENARIOS[mistake]
    path = tmp_path / "my scenario ü.yaml"
    path.write_text(changed(CHAT, old, new))
    with pytest.raises(InputError) as caught:
        read_scenario(path)
    first = str(caught.value).splitlines()[0]
    assert caught.value.exit_code == 2
    assert str(tmp_path) in first
    for words in says:
        assert words in first


YAMLS = {
    "tag": ('a: !!python/object/apply:os.system ["ls"]\n', "the tag"),
    "list": ("- a\n- b\n", "is a list"),
    "text": ("just words\n", "is a single value"),
    "comments only": ("# nothing\n", "is empty apart from comments"),
    "two documents": ("a: 1\n---\nb: 2\n", "a second document"),
    "tab": ("a:\n\t- b\n", "is not YAML"),
    "unclosed": ("a: {b: 1\n", "is not YAML"),
    "loop": ("a: &a [*a]\n", "*a refers to itself"),
    "no anchor": ("a: *b\n", "is not YAML"),
    "key that is a list": ("[a, b]: 1\n", "a key must be a plain word"),
    "deep": ("[" * 5000, "is nested deeper"),
    "infinite": ("a: .inf\n", "is not a finite number"),
    "huge": ("a: 1e999\n", "is not a finite number"),
}


@pytest.mark.parametrize("mistake", YAMLS)
def test_yaml_mistake_is_refused_with_its_line(mistake, tmp_path):
    text, says = YAMLS[mistake]
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_yaml(path, kind="a scenario YAML")
    if says == "is not YAML" or mistake == "no anchor":
        assert "line " in str(caught.value)
    else:
        assert says in str(caught.value)


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


CONTENTS = {
    "GGUF": (b"GGUF\x03\x00\x00\x00", "a GGUF weights file"),
    "safetensors": ((64).to_bytes(8, "little") + b'{"__metadata__":{}}', "a safetensors weights file"),
    "zip": (b"PK\x03\x04rest", "a zip archive or a PyTorch checkpoint"),
    "gzip": (b"\x1f\x8b\x08rest", "gzip-compressed"),
    "latin-1": (b"name: caf\xe9\n", "line 1 is not UTF-8 text"),
    "nul": (b"a: b\x00c\n", "holds binary data"),
    "empty": (b"", "is empty"),
    "blank": (b" \n\n", "is empty"),
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("read", [lambda p: read_yaml(p, kind="a scenario YAML"), read_json])
def test_file_that_is_something_else_is_named(content, read, tmp_path):
    data, says = CONTENTS[content]
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(InputError, match=says):
        read(path)


def test_file_of_50_mb_is_refused_with_the_limit(tmp_path):
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(50_000_000)
    path.write_bytes(b"a: b\n" * 10_000_000)
    with pytest.raises(InputError, match="is larger than 8 MB, the limit for"):
        read_yaml(path, kind="a scenario YAML")


def test_missing_file_and_folder_are_named(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_scenario(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="is a folder"):
        read_scenario(tmp_path)


JSONS = {
    "list": ("[1, 2]", "is a list"),
    "number": ("3", "is a number"),
    "words": ("hello", "is not JSON"),
    "unclosed": ('{"a": 1', "line 1, column 8"),
    "nan": ('{"a": NaN}', "NaN is not a number"),
    "infinite": ('{"a": -Infinity}', "-Infinity is not a number"),
    "twice": ('{"a": 1, "a": 2}', "'a' is given twice"),
    "deep": ("[" * 100_000, "nested too deeply"),
    "digits": ('{"a": ' + "9" * 6000 + "}", "too many digits"),
}


@pytest.mark.parametrize("mistake", JSONS)
def test_json_mistake_is_one_clear_line(mistake, tmp_path):
    text, says = JSONS[mistake]
    path = tmp_path / "config ü.json"
    path.write_text(text)
    with pytest.raises(InputError, match=says) as caught:
        read_json(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_json_object_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"hidden_size": 8}))
    assert read_json(path) == {"hidden_size": 8}


HARDWARE = {
    "gigabits": (("80 GB", "80 Gb"), "memory.capacity.value: '80 Gb' is not in B"),
    "no unit": (("700 W", "700"), "chip.power.value: '700' is not in W"),
    "misspelt key": (("bandwidth: {value: 3350", "bandwith: {value: 3350"), "unknown key 'bandwith': did you mean 'bandwidth'"),
    "source that is not listed": (("source: modal", "source: nobody"), "the source 'nobody' is used but not listed"),
    "source that is not used": (("source: modal", "source: log"), "the source 'modal' is listed but no figure uses it"),
    "unknown dtype": (("  fp8:", "  fp9:"), "unknown key 'fp9': did you mean 'fp8'"),
    "no devices": (("devices: {value: 8", "devices: {value: 0"), "link.devices.value: 0 should be greater"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", HARDWARE)
def test_hardware_mistake_is_one_clear_line(mistake, tmp_path):
    (old, new), says = HARDWARE[mistake]
    path = tmp_path / "gpu.yaml"
    path.write_text(changed(H100, old, new))
    with pytest.raises(InputError) as caught:
        device(str(path))
    assert says in str(caught.value).splitlines()[0]


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


TRACES = {
    "no column": ("a,b\n1,2\n", "has no column 'arrival_s'"),
    "words": ("arrival_s,input_tokens,output_tokens\n0,1,1\nx,2,2\n", "line 3: is not a request"),
    "negative": (
        "arrival_s,input_tokens,output_tokens\n0,1,1\n1,-2,2\n",
        "line 3: a token count is negative",
    ),
    "no end": (
        "arrival_s,input_tokens,output_tokens\n0,1,1\n1,inf,2\n",
        "line 3: a token count is not a finite",
    ),
    "before the start": (
        "arrival_s,input_tokens,output_tokens\n-1,1,1\n1,2,2\n",
        "line 2: the time stamp is negative",
    ),
    "one": ("arrival_s,input_tokens,output_tokens\n0,1,1\n", "fewer than two requests"),
    "empty": ("", "is empty"),
}


def test_rows_that_are_no_mistakes_are_left_out_even_where_reading_is_strict(tmp_path):
    """No output, no prompt, too long, or a time beyond any clock: a log has such rows, and the others are replayed."""
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n1,2,0\n2,0,2\n3,1e12,2\n2e12,1,1\n5,1,1\n")
    assert len(read_trace(path).arrival_s) == 2


@pytest.mark.parametrize("mistake", TRACES)
def test_trace_mistake_is_one_clear_line(mistake, tmp_path):
    text, says = TRACES[mistake]
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        read_trace(path)
