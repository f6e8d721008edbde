"""Paths that lead nowhere, names of files that are no text, and numbers that no float holds: one line, exit code 2."""

import json
import os

import pytest

from capplan.errors import InputError, unknown
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.models import read_model
from capplan.readers.catalogue.prices import read_prices
from capplan.readers.plan_file import file_digest
from capplan.readers.text_file import json_values, read_json
from capplan.readers.yaml_file import parse_yaml, yaml_values
from capplan.recorded.results.read import read_results
from capplan.recorded.traces.trace import workload_of
from capplan.scenario.scenario import read_scenario

SCENARIO = {
    "name": "s",
    "model": "llama-3.2-1b",
    "traffic": [{"request_rate": "2 req/s", "input_tokens": 100, "output_tokens": 20}],
    "slo": {"ttft_p95": "1 s"},
    "fleet": {"hardware": ["l4"]},
}
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": 320,
}  # fmt: skip
NOWHERE = {
    "nobody's home": ("~nosuchuser/x", "no such home folder"),
    "zero byte": ("a\0b.yaml", "is not a file name|cannot be read"),
    "loop": ("./loop", "a loop|no such file|cannot be read|unknown"),
    "5,000 letters": ("./" + "a" * 5000, "cannot be read|unknown|no such file|file name too long"),
    "a file for a folder": ("./file/x.yaml", "cannot be read|no such file"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("no folder")
    return tmp_path


def scenario_of(folder, **keys):
    (folder / "s.yaml").write_text(json.dumps(SCENARIO | keys))
    return folder / "s.yaml"


KEYS = {
    "model": lambda path: {"model": path},
    "calibration": lambda path: {"calibration": path},
    "hardware": lambda path: {"fleet": {"hardware": [path]}},
    "prices": lambda path: {"prices": {"file": path}},
    "trace": lambda path: {"traffic": [{"trace": path}]},
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("place", NOWHERE)
def test_a_path_of_a_scenario_that_leads_nowhere_is_named(key, place, folder, capplan):
    path, says = NOWHERE[place]
    said = capplan.refused("fleet", scenario_of(folder, **KEYS[key](path)), "--offline")
    assert "Traceback" not in said
    assert max(map(len, said.splitlines())) < 1000 or "a" * 5000 in said  # where the system repeats it
    assert any(part in said for part in says.split("|"))


@pytest.mark.parametrize("place", NOWHERE)
@pytest.mark.parametrize("read", [read_model, device, read_prices, read_results, read_scenario, read_json])
def test_a_path_that_leads_nowhere_is_one_error_of_every_reader(read, place, folder):
    with pytest.raises(InputError):
        read(NOWHERE[place][0])


def test_what_cannot_be_looked_at_has_no_digest():
    assert [file_digest(path) for path in ("a\0b", "a" * 5000, "/dev/zero", None)] == [None] * 4


def test_a_folder_whose_name_is_no_text_holds_a_model(folder):
    name = os.fsdecode(b"bad\xffdir")
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(CONFIG))
    assert read_model(f"./{name}").name.encode() == "bad\ufffddir".encode()


def test_a_name_of_5000_letters_is_not_repeated():
    assert len(str(unknown("model", "x" * 5000, ["a"]))) < 200


MANY = "1" + "0" * 400
BEYOND = {
    "devices": ("fleet", {"hardware": ["l4"], "tensor_parallel": int(MANY)}),
    "as text": ("fleet", {"hardware": ["l4"], "tensor_parallel": MANY}),
    "20 digits": ("fleet", {"hardware": ["l4"], "max_gpus": 10**19}),
    "length": ("max_model_len", 10**19),
    "users": ("traffic", [{"users": 1e20, "think_time": "3 s", "input_tokens": 9, "output_tokens": 9}]),
    "no number": ("fleet", {"hardware": ["l4"], "max_gpus": "inf"}),
}


@pytest.mark.parametrize("mistake", BEYOND)
def test_a_number_that_is_too_large_is_refused_with_its_key(mistake, folder):
    key, value = BEYOND[mistake]
    with pytest.raises(InputError) as caught:
        read_scenario(scenario_of(folder, **{key: value}))
    assert key in str(caught.value)
    assert len(str(caught.value)) < 600


def test_an_offer_of_400_digits_of_devices_is_refused(folder):
    offer = "{device: l4, provider: A, commitment: on-demand, price: 3 $/h, date: 2026, source: page, devices: %s}"
    (folder / "p.yaml").write_text("sources: {page: {title: a, url: b}}\nprices:\n- " + offer % MANY)
    with pytest.raises(InputError, match=r"line 3: prices\[0\].devices: the number is out of range"):
        read_prices(folder / "p.yaml")


@pytest.mark.parametrize("levels", [45, 500, 100_000])
def test_deep_files_are_refused_by_every_container(levels, folder):
    nested = "[" * levels + "]" * levels
    (folder / "c.json").write_text(f'{{"a": {nested}}}')
    with pytest.raises(InputError, match="nested too deeply"):
        read_json(folder / "c.json")
    with pytest.raises(InputError, match="is nested too deeply"):
        json_values(nested, "x.json")
    for read in (parse_yaml, yaml_values):
        with pytest.raises(InputError, match="is nested deeper than 40 levels"):
            read(nested, "x.yaml")


def test_a_result_of_too_many_values_is_refused(monkeypatch):
    monkeypatch.setattr("capplan.readers.text_file.MOST_VALUES", 10)
    with pytest.raises(InputError, match="holds more than 10 values"):
        json_values("[" + "[]," * 20 + "[]]", "x.json")


def test_a_test_of_nothing_is_no_result(folder):
    (folder / "l.json").write_text('{"n_prompt": 0, "n_gen": 0, "avg_ns": 1e9, "model_type": "llama"}')
    with pytest.raises(InputError, match="n_prompt and n_gen are 0, so this row measured nothing"):
        read_results(folder / "l.json")
    (folder / "l.json").write_text('{"request_throughput": {"avg": 1}, "output_sequence_length": {"avg": 0}}')
    with pytest.raises(InputError, match=r"output_sequence_length.avg is 0, so this run measured no answer"):
        read_results(folder / "l.json")


LOGS = {
    "benchmarks that are no list": ({"benchmarks": True}, "benchmarks is not a list of mappings"),
    "requests that are no mapping": ({"benchmarks": [{"requests": [1]}]}, "benchmarks.0.requests is not a mapping"),
    "a request that is a number": ({"benchmarks": [{"requests": {"successful": [3]}}]}, "successful is not a list of mapp"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", LOGS)
def test_a_log_of_another_shape_names_the_key(mistake, folder):
    content, says = LOGS[mistake]
    (folder / "log.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=says):
        workload_of([folder / "log.json"])


def test_a_version_of_thousands_of_letters_is_refused_without_being_repeated(capplan):
    ran = capplan("fit", "llama-3.1-8b", "--hardware", "h100", "--engine-version", "1" * 5000, "--offline")
    assert ran.code == 2
    assert "has 5,000 letters; give one such as" in ran.err
    assert len(ran.err) < 300
