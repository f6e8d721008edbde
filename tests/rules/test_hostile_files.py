"""Files that mean harm: each is refused in one line, or read for what it is, with bounded work and memory."""

import json
import os
import random
import shlex

import pytest

from capplan.cli.main import main
from capplan.errors import InputError
from capplan.families.quantization.module_names import check_regular
from capplan.readers import text_file
from capplan.readers.plan_file import file_digest, read_plan_file, result_digest
from capplan.readers.text_file import csv_rows, digest, first_bytes, json_values, numbered_lines, system_text
from capplan.recorded.results.read import read_results
from capplan.recorded.traces.prometheus import SAMPLE
from tests.files import written_to
from tests.rules.test_hostile_input_cli import SCENARIO, TRAFFIC
from tests.tables import table

pytestmark = pytest.mark.usefixtures("shared_runs")

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip
OFFERS = """InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region
one,L4,1,0.8,0.3,east
"""
GROUP = {"weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}}


def error_of(capsys, *words):
    """Return what a command says that has to refuse its input."""
    assert main([*map(str, words)]) == 2
    said = capsys.readouterr().err
    assert max(map(len, said.splitlines())) < 700
    return said


def written(path, values):
    path.write_text(json.dumps(values))
    return str(path)


# Time


@pytest.mark.parametrize(
    "line", ["a " + "1" * 300_000 + "x", "a{" + "} 1" * 100_000 + "x", "a" + " " * 300_000 + "x"]
)
def test_a_line_that_is_no_sample_is_passed_over_at_once(line):
    """It used to take a time that grew with the square of its length: hours for the first one."""
    assert SAMPLE.match(line) is None


def quantised(pattern):
    """Return sections of a config that name modules by a pattern, one for each key that does."""
    exact = {"bits": 4, "group_size": 128}
    return {
        "ignore": {"quant_method": "compressed-tensors", "config_groups": {"g": GROUP}, "ignore": [pattern]},
        "targets": {"quant_method": "compressed-tensors", "config_groups": {"g": GROUP | {"targets": [pattern]}}},
        "dynamic": {"quant_method": "gptq", **exact, "dynamic": {f"-:{pattern[3:]}": {}}},
        "extra_config": {"quant_method": "auto-round", **exact, "extra_config": {pattern: {"bits": 16}}},
        "quantized_layers": {"quant_method": "modelopt", "quant_algo": "FP8", "quantized_layers": {pattern: {"quant_algo": "FP8"}}},
        "layers of quark": {
            "quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}, "exclude": [pattern],
        },
        "tensors of aqlm": {
            "quant_method": "aqlm", "num_codebooks": 1, "nbits_per_codebook": 16, "in_group_size": 8,
            "linear_weights_not_to_quantize": [pattern],
        },
    }  # fmt: skip


@pytest.mark.parametrize("key", list(quantised("re:a")))
@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("re:(a+)+$", "could take for ever"),
        ("re:(.|a)*x", "could take for ever"),
        ("re:" + ".*" * 20 + "x", "could take for ever"),
        ("re:" + "a" * 5000, "5,000 letters"),
        ("re:(", "not a regular expression"),
        ("re:[[a]]", "not a regular expression"),
    ],
    ids=lambda text: text[:12],
)
def test_a_pattern_of_a_config_that_matches_for_ever_is_refused(tmp_path, capsys, key, pattern, says):
    path = written(tmp_path / "config.json", CONFIG | {"quantization_config": quantised(pattern)[key]})
    assert says in error_of(capsys, "model", path)


def test_patterns_as_they_are_published_are_read(tmp_path):
    for pattern in (
        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
        r"re:model\.layers\.\d+\.self_attn\..*",
        "re:visual.*",
    ):
        check_regular(pattern[3:], "config.json")
        for key, section in quantised(pattern).items():
            path = written(tmp_path / "config.json", CONFIG | {"quantization_config": section})
            assert main(["model", path]) == 0, key


@pytest.mark.parametrize("name", ["re:a{}", "*a{}", "model.layers.0.a*{}", "a{}"])
def test_more_names_than_modules_are_refused(tmp_path, capsys, name):
    """Each pattern is held against each matrix, so their number counts."""
    names = [name.replace("{}", str(number)) for number in range(120_000)]
    section = {"quant_method": "fp8", "modules_to_not_convert": names}
    path = written(tmp_path / "config.json", CONFIG | {"quantization_config": section})
    assert "has more than 2,000 patterns or 100,000 names" in error_of(capsys, "model", path)


def test_numbers_inside_of_names_are_no_numbers_of_ours(tmp_path, capsys):
    section = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers." + "9" * 5000 + ".mlp"]}
    assert main(["model", written(tmp_path / "config.json", CONFIG | {"quantization_config": section})]) == 0
    capsys.readouterr()
    for group in (None, "x", [1]):
        section = {"quant_method": "auto-round", "bits": 4, "group_size": 128}
        section["extra_config"] = {"a": {"bits": 8, "group_size": group}}
        path = written(tmp_path / "config.json", CONFIG | {"quantization_config": section})
        assert "extra_config.a.group_size" in error_of(capsys, "model", path)


@pytest.mark.parametrize(
    "value",
    [[0] * 5000, [[1] * 3000] * 2, {"a": [1] * 3000}, "x" * 5000],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("key", ["model_type", "num_hidden_layers", "hidden_size", "tie_word_embeddings"])
def test_a_long_value_of_a_config_is_not_repeated_whole(tmp_path, capplan, key, value):
    assert (
        len(capplan.refused("model", written(tmp_path / "config.json", CONFIG | {key: value})).split("\n")[0])
        < 500
    )


# Memory


def test_tables_values_and_lines_have_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(text_file, "MOST_CELLS", 6)
    assert len(csv_rows("a,b\n1,2\n3,4\n", "x.csv")) == 2
    for text in ("a,b\n1,2\n3,4\n5,6\n", "a,b\n" + "1\n" * 3, "a\n1,2,3,4,5,6\n", "a,b,c,d,e,f,g\n"):
        with pytest.raises(InputError, match=r"x.csv: has more than 6 cells"):
            csv_rows(text, "x.csv")
    monkeypatch.setattr(text_file, "MOST_VALUES", 5)
    with pytest.raises(InputError, match="holds more than 5 values"):
        json_values("{}" * 6, "x.json")
    path = written_to(tmp_path / "t.csv", "0,1,1\n" * 100)
    monkeypatch.setattr(text_file, "MOST_STREAM_BYTES", 500)
    with pytest.raises(InputError, match="is larger than"):
        list(numbered_lines(path, kind="a trace"))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_table_is_read_whatever_ends_its_lines(end):
    text = end.join(["a,b", "1,2", "", '"3,\n4",5', "6", "7,8,9"])
    assert csv_rows(text, "x.csv") == [
        {"a": "1", "b": "2"}, {"a": "3,\n4", "b": "5"}, {"a": "6", "b": None}, {"a": "7", "b": "8"},
    ]  # fmt: skip


def test_values_far_apart_in_a_text_are_found():
    assert json_values('{"a": 1}' + " \n" * 500_000 + "[2]", "x.json") == [{"a": 1}, [2]]


def test_a_digest_is_that_of_a_small_plain_file(tmp_path):
    path = written_to(tmp_path / "s.yaml", "name: s")
    assert file_digest(path) == digest(path, 7) == digest(str(path), 8)
    assert digest(path, 6) is None
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(2**42)  # takes no space
    for place in (tmp_path / "huge", "/dev/zero", tmp_path, "a\0b", "", tmp_path / "none"):
        assert file_digest(place) is None, place
    assert first_bytes(tmp_path / "huge", 4) == b"\0" * 4
    assert first_bytes(tmp_path, 4) == first_bytes(tmp_path / "none", 4) == b""
    assert system_text(tmp_path / "none") == ""
    assert system_text(path) == "name: s"


@pytest.mark.parametrize(
    "change",
    [{"completed": 5e-324}, {"mean_ttft_ms": 1e30}, {"mean_e2el_ms": 1e19}, {"max_concurrency": 1e15}],
    ids=str,
)
def test_a_result_that_nobody_can_have_measured_is_refused(tmp_path, change):
    """Lengths of 1e308 tokens and a time of 1e305 s became infinite later on."""
    measured = {
        "backend": "vllm", "completed": 10, "total_input_tokens": 5000, "total_output_tokens": 500, "duration": 10.0,
        "request_throughput": 1.0, "output_throughput": 50.0, "mean_ttft_ms": 30.0, "mean_tpot_ms": 9.0, "mean_e2el_ms": 500.0,
        "max_concurrency": 4, "num_prompts": 10,
    }  # fmt: skip
    assert len(read_results(written(tmp_path / "r.json", measured))) == 1
    with pytest.raises(InputError, match=r"r\.json: .*(cannot be|out of range)"):
        read_results(written(tmp_path / "r.json", measured | change))


# Plan files

PLACES = (
    ("evaluated",), ("why",), ("chosen", "replicas"), ("chosen", "spare_replicas"), ("chosen", "tensor_parallel"), ("chosen", "ttft_s"),
    ("chosen", "ttft_s", "mean"), ("chosen", "e2e_s", "low"), ("chosen", "slo_met_probability"), ("chosen", "target_probabilities", "ttft_p95"),
    ("chosen", "usd_per_month"), ("chosen", "weight_dtype"), ("chosen", "label"), ("chosen", "routing"), ("chosen", "few_open_loops_measured"),
    ("chosen", "watts"), ("plans",), ("plans", 0, "kv_cache_tokens"), ("choices", "fewest"), ("recommended",), ("certainty", 0, "gpus"), ("rejected",),
    ("plan_file", "inputs"), ("plan_file", "inputs", "launch", "max_num_seqs"), ("plan_file", "inputs", "targets", "ttft_p95"),
    ("plan_file", "inputs", "prices", 0, "usd_per_gpu_hour"), ("plan_file", "inputs", "confidence"),
)  # fmt: skip
FREE_TEXTS = {"why", "weight_dtype"}
IMPOSSIBLE = (True, -1, 10**400, 1e308, float("nan"), float("inf"), "abc", [], {}, [[]], "\x1b[31m")


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """Return the plan file of a scenario, as a value, and the path of the scenario."""
    folder = tmp_path_factory.mktemp("plan")
    scenario = written(folder / "s.yaml", SCENARIO)
    assert main(["fleet", scenario, "--offline", "-o", str(folder / "plan.json")]) == 0
    return json.loads((folder / "plan.json").read_text()), scenario


def sealed(envelope, place, value):
    """Return the text of a plan file with another value at a place, signed as if capplan had written it."""
    changed = json.loads(json.dumps(envelope))
    recommended = ("plans", changed["result"]["recommended"])
    for whole in (place, (*recommended, *place[1:])) if place[0] == "chosen" else (place,):
        inner = changed["result"]
        for key in whole[:-1]:
            inner = inner[key]
        inner[whole[-1]] = value
    changed["result"]["plan_file"]["result_sha256"] = result_digest(changed["result"])
    return json.dumps(changed)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_a_plan_file_with_a_figure_that_cannot_be_is_refused(tmp_path, plan, place):
    path = tmp_path / "plan.json"
    was = plan[0]["result"]
    for key in place:
        was = was[key]
    for value in IMPOSSIBLE:
        of_its_kind = (place[-1] in FREE_TEXTS, isinstance(was, bool), isinstance(was, list))
        if any(
            fits and isinstance(value, kind) and not (value and kind is list)
            for fits, kind in zip(of_its_kind, (str, bool, list), strict=True)
        ):
            continue
        try:
            path.write_text(sealed(plan[0], place, value))
        except OverflowError:
            continue  # no digest can be made of it
        with pytest.raises(InputError, match=r"plan\.json"):
            read_plan_file(path)


def test_a_plan_whose_replicas_are_all_spares_is_refused(tmp_path, plan):
    path = tmp_path / "plan.json"
    count = plan[0]["result"]["chosen"]["replicas"]
    spare = json.loads(sealed(plan[0], ("chosen", "groups", 0, "spare_replicas"), count))
    path.write_text(sealed(spare, ("chosen", "spare_replicas"), count))
    with pytest.raises(InputError, match="so none is at work"):
        read_plan_file(path)


@table
@pytest.mark.parametrize("command", ["check", "export", "explain"])
def test_a_figure_that_the_rest_of_its_plan_contradicts_is_refused(
    tmp_path, plan, capsys, command, place, value, words
):
    path = written_to(tmp_path / "plan.json", sealed(plan[0], place, value))
    line = {
        "check": ["check", "--plan", str(path), "--offline"],
        "export": ["export", "--plan", str(path), "--target", "vllm"],
        "explain": ["explain", str(path), "gpus", "--offline"],
    }
    assert main(line[command]) == 2
    assert words in capsys.readouterr().err


@table
def test_a_word_that_no_plan_has_ends_every_command_in_one_line(tmp_path, plan, capsys, place, value):
    path = written_to(tmp_path / "plan.json", sealed(plan[0], place, value))
    for line in (
        ["check", "--plan", str(path), "--offline"],
        ["export", "--plan", str(path), "--target", "k8s"],
        ["report", "--plan", str(path), "--offline"],
    ):
        assert main(line) in (0, 2, 4)  # whatever a command does not read cannot be wrong for it
        capsys.readouterr()


def test_a_plan_is_read_only_with_a_scenario_of_the_same_targets(tmp_path, plan, capsys):
    path = written_to(tmp_path / "plan.json", plan[0])
    assert main(["report", "--plan", str(path), "--offline"]) == 0
    capsys.readouterr()
    other = written(tmp_path / "s.yaml", SCENARIO | {"slo": {"tpot_p99": "1 s"}})
    said = error_of(capsys, "report", other, "--plan", path, "--offline")
    assert "was made for the targets ttft_p95, and those of s are tpot_p99" in said


# Traffic that hardly is any


def test_users_who_do_not_think_are_always_in_flight(tmp_path, capsys, capplan):
    users = {key: TRAFFIC[key] for key in ("input_tokens", "output_tokens")} | {
        "users": 10,
        "think_time": "0 s",
    }
    path = written(tmp_path / "s.yaml", SCENARIO | {"traffic": [users]})
    words = shlex.split(f"simulate {path} --hardware l4 -tp 1 --replicas 1 --until '20 s' --offline")
    found = capplan.result(*words)
    in_flight = found["requests_per_s"] * found["e2e_s"]["mean"]
    assert in_flight == pytest.approx(10.0, rel=0.05)  # Little's law
    assert main(["fleet", path, "--offline", "--format", "json"]) == 0
    capsys.readouterr()
    assert "have no rate, only a number in flight" in error_of(capsys, "sweep", path, "--offline")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"users": 5, "think_time": "1e12 s"}, "one request in eleven days"),
        ({"users": 1e-300, "think_time": "3 s"}, "one request in eleven days"),
        ({"request_rate": "2 req/s", "mean_rate": "1e-300 req/s"}, "traffic[0].mean_rate: the mean rate is"),
        ({"request_rate": "2 req/s", "active_hours": 5e-324}, "traffic[0].active_hours: the mean rate is"),
    ],
    ids=str,
)
def test_traffic_next_to_none_is_refused(tmp_path, capsys, changes, says):
    """Its latencies came out as 0, or its cost per token as a division by zero."""
    lengths = {key: TRAFFIC[key] for key in ("input_tokens", "output_tokens")}
    path = written(tmp_path / "s.yaml", SCENARIO | {"traffic": [lengths | changes]})
    assert says in error_of(capsys, "fleet", path, "--offline")


def test_a_trace_of_years_and_a_start_of_days_have_no_line_of_minutes(tmp_path, capsys):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{i}e7,50,5\n" for i in range(10)))
    path = written(tmp_path / "s.yaml", SCENARIO | {"traffic": [{"trace": str(trace)}]})
    assert main(["fleet", path, "--offline", "--format", "json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["result"]["over_time"] is None
    assert "longer than a year" in said.err
    fleet = SCENARIO["fleet"] | {"start_up": "1e12 s"}
    path = written(
        tmp_path / "s.yaml", SCENARIO | {"traffic": [TRAFFIC | {"daily_curve": "office"}], "fleet": fleet}
    )
    assert "fleet.start_up: '1e12 s' is over 86400" in error_of(capsys, "fleet", path, "--offline")


# Before anything is computed


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--points", "none/p.jsonl"), "--points none/p.jsonl: cannot be written"),
        (("--points", "notes.txt"), "--points notes.txt: line 1 is not a finished point"),
        (("--dask", "tcp://127.0.0.1:1"), "--dask"),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_where_points_go_is_settled_before_the_search_for_plans(tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("my only notes\n")
    monkeypatch.setattr("capplan.questions.sweep.asked_fleet", lambda *_, **__: pytest.fail("was computed"))
    monkeypatch.setattr("capplan.fleet.search.workers.ANSWER_S", 0.5)
    assert says in error_of(capsys, "sweep", written(tmp_path / "s.yaml", SCENARIO), "--offline", *words)
    assert (tmp_path / "notes.txt").read_text() == "my only notes\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("fleet", "s.yaml", "-o", "s.yaml"), "--output: 's.yaml' is read by this command"),
        (("fleet", "s.yaml", "-o", "link.yaml"), "--output: 'link.yaml' is read by this command"),
        (("workload", "t.csv", "-o", "./t.csv"), "is read by this command"),
        (("workload", "t.csv", "--picture", "a.svg", "-o", "a.svg"), "is written by --plot already"),
        (("sweep", "s.yaml", "--points", "s.yaml"), "--points: 's.yaml' is read by this command"),
        (("sweep", "s.yaml", "--points", "p.jsonl", "-o", "p.jsonl"), "is written by"),
        (("simulate", "s.yaml", "--trace", "t.csv", "-o", "t.csv"), "is read by this command"),
        (("validate", "t.csv", "--predictions", "t.csv"), "--predictions: 't.csv' is read by this command"),
        (("report", "--plan", "s.yaml", "-o", "s.yaml"), "is read by this command"),
        (("bill", "s.yaml", "--focus", "s.yaml"), "--focus: 's.yaml' is read by this command"),
        (("simulate", "named.yaml", "-o", "t.csv"), "t.csv' is read by this command"),
        (("report", "named.yaml", "-o", "p.csv"), "p.csv' is read by this command"),
        (
            ("levers", "named.yaml", "--set", "traffic[0].trace=gone.csv", "-o", "p.csv"),
            "gone.csv: no such file",
        ),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_an_answer_never_takes_the_place_of_what_it_was_made_from(tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "s.yaml", SCENARIO)
    (tmp_path / "link.yaml").symlink_to("s.yaml")
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,5,5\n1,5,5\n")
    named = {"traffic": [{"trace": "t.csv"}], "prices": {"file": "p.csv", "date": "2026-11-01"}}
    written(tmp_path / "named.yaml", SCENARIO | named)
    (tmp_path / "p.csv").write_text(OFFERS)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert says in error_of(capsys, *words)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("command", ["fleet", "model", "hardware", "workload", "validate"])
def test_a_word_with_a_nul_is_refused(capsys, command):
    assert "holds a NUL character" in error_of(capsys, command, "a\0b")


@pytest.mark.long
def test_a_row_of_points_holds_figures_that_can_be_and_nothing_else(tmp_path, capsys):
    words = shlex.split(
        "sweep llama-3.2-1b --hardware l4 --concurrency 1 --input-tokens 50 --output-tokens 8"
    )
    words += ["--offline", "--points", str(tmp_path / "p.jsonl")]
    assert main(words) == 0
    capsys.readouterr()
    point = json.loads((tmp_path / "p.jsonl").read_text())
    draw = random.Random(0)
    for name in (*point["row"], "another"):
        for value in draw.sample((True, -1, 10**400, 1e308, "abc", [], {}, "\x1b[31m"), 4):
            if (name == "holds" and value is True) or (name == "plan" and isinstance(value, str)):
                continue
            text = json.dumps({"key": point["key"], "row": point["row"] | {name: value}}) + "\n"
            (tmp_path / "p.jsonl").write_text(text)
            said = error_of(capsys, *words)
            assert "is not a finished point" in said or "another load or plan" in said, (name, value)
            assert os.path.getsize(tmp_path / "p.jsonl") == len(text.encode())
