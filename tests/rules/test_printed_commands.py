"""Commands that answers, errors, pages and files print run as they stand; those with a PLACEHOLDER have a command and options that exist."""

import ast
import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from capplan.cli.main import app, main
from capplan.readers.plan_file import result_digest
from tests.plan_files import SCENARIO
from tests.sweeps import long_but, size_on_few_requests

ROOT = Path(__file__).resolve().parents[2]
PRINTED = re.compile(r"(?:: |^\s*(?:\$ )?)(capplan [a-z][a-z-]*(?: [^\n]*)?)$", re.MULTILINE)
"""A command stands after a colon and a space or on a line of its own, and ends with the line."""
ASKS = ("capplan init",)
"""Commands that ask people at a terminal."""
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b|\.\.\.")
SETTING = "slo.ttft_p95=650 ms"
USERS = "{users: 50, think_time: 20 s, input_tokens: 900, output_tokens: 120}"
FILES = {
    "small.yaml": SCENARIO,
    "poor.yaml": SCENARIO + "budget: {usd_per_month: 100}\n",
    "hopeless.yaml": SCENARIO.replace("tpot_p95: 30 ms", "tpot_p95: 0.1 ms"),
    "unsold.yaml": SCENARIO.replace(
        "hardware: [h100-sxm]", "hardware: [h100-sxm], machines: [p6-b200.48xlarge]"
    ),
    "users.yaml": re.sub(r"- \{.*\}", f"- {USERS}", SCENARIO),
    "scrape.txt": "vllm:request_success_total 3\nvllm:request_prompt_tokens_sum 9\nvllm:request_prompt_tokens_count 3\n",
    "counters.txt": "vllm:request_success_total 3\n"
    + "".join(
        f'vllm:request_{kind}_tokens_bucket{{le="{end}"}} {count}\n'
        for kind in ("prompt", "generation")
        for end, count in ((10, 0), ("+Inf", 3))
    )
    + "".join(
        f"vllm:request_{kind}_tokens_sum 90\nvllm:request_{kind}_tokens_count 3\n"
        for kind in ("prompt", "generation")
    ),
}


class Case(NamedTuple):
    """A command line whose output prints commands, and how often; `file` is one that it writes and that prints them too."""

    line: str
    commands: int
    file: str = ""


CASES = (
    Case("check small.yaml --plan plan.json --set 'slo.tpot_p95=1 ms'", 1),
    Case("check --plan plan.json --max-price-age 1", 1),
    Case("check --plan old.json", 0),
    Case("export --plan plan.json --target sglang", 1),
    Case("report --plan plan.json --format markdown", 2),
    Case("fleet poor.yaml", 1),
    Case("simulate hopeless.yaml", 1),
    Case("explain hopeless.yaml", 1),
    Case("compare hopeless.yaml", 0),
    Case("init 'new one.yaml' --from llm.sh --offline", 2, "new one.yaml"),
    Case("simulate small.yaml --set 'traffic[0].trace=scrape.txt'", 0),
    Case("workload users.yaml", 1),
    Case("calibrate --from result.json --model llama-3.1-8b --hardware h100-sxm --weight-dtype fp8 -o a.calibration.yaml", 1),
    Case("fleet no-such-scenario", 0),
    Case("list machines no-such-machine", 1),
    Case("levers --plan plan.json --lever weights", 0),
    Case("fleet unsold.yaml", 1),
    Case("bill hopeless.yaml", 1),
    Case("levers small.yaml", 1),
    Case("verify-plan --plan plan.json --results slow.json", 2),
    Case("fleet shared-gpus --set 'fleet.hardware=[l4]'", 1),
    Case("simulate small.yaml --trace counters.txt", 1),
    Case("list models no-such-model", 1),
    Case("fleet llama-3.1-8b", 1),
    Case("init second.yaml --from small.yaml --offline", 1),
    Case("init second.yaml --from plan.json --offline", 1),
    Case("fleet plan.json", 1),
    Case("fleet pod.yaml", 1),
)  # fmt: skip
SAMPLE = {CASES[1], CASES[3], CASES[6], CASES[9], CASES[11], CASES[14]}
RESULT = {
    "backend": "vllm", "num_prompts": 200, "completed": 200, "duration": 40.0, "request_rate": 5.0, "total_input_tokens": 180_000,
    "total_output_tokens": 24_000, "mean_ttft_ms": 60.0, "mean_tpot_ms": 7.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder, with a space in its name, that has a plan with an overridden key and what the cases read."""
    folder = tmp_path_factory.mktemp("printed commands")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "pod.yaml").write_text((Path(__file__).parents[1] / "golden" / "export-k8s.yaml").read_text())
    (folder / "llm.sh").write_text("vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2\n")
    (folder / "result.json").write_text(json.dumps(RESULT))
    slow = RESULT | {
        "mean_ttft_ms": 300.0,
        "median_ttft_ms": 300.0,
        "mean_tpot_ms": 21.0,
        "median_tpot_ms": 21.0,
    }
    (folder / "slow.json").write_text(json.dumps(slow))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        size_on_few_requests(patch)
        assert main(["fleet", "small.yaml", "--set", SETTING, "-o", "plan.json", "--offline"]) == 0
        (folder / "kept.json").write_bytes((folder / "plan.json").read_bytes())
        envelope = json.loads((folder / "plan.json").read_text())
        envelope["result"]["plan_file"]["data"]["prices"] = "of another day"
        envelope["result"]["plan_file"]["result_sha256"] = result_digest(envelope["result"])
        (folder / "old.json").write_text(json.dumps(envelope))
        yield folder


def commands_in(text):
    """Return the commands that a text prints, each once."""
    lines = "\n".join(line.split("; read from ")[0] for line in text.splitlines())
    return list(dict.fromkeys(match.strip("` ") for match in PRINTED.findall(lines)))


@pytest.mark.usefixtures("shared_runs")
@pytest.mark.parametrize("case", long_but(SAMPLE, CASES), ids=lambda case: case.line)
def test_a_printed_command_runs_as_it_stands(capplan, folder, monkeypatch, case):
    monkeypatch.chdir(folder)
    size_on_few_requests(monkeypatch)
    (folder / "plan.json").write_bytes((folder / "kept.json").read_bytes())
    ran = capplan(*shlex.split(case.line))
    found = commands_in(
        ran.out + "\n" + ran.err + "\n" + ((folder / case.file).read_text() if case.file else "")
    )
    runnable = [line for line in found if not PLACEHOLDER.search(line) and line not in ASKS]
    assert len(runnable) >= case.commands, ran
    for (_, template), by in FILLED.items():
        pattern = re.escape(template).replace(re.escape("{}"), ".*")
        assert by != case.line or any(re.fullmatch(pattern, line) for line in found), (template, found)
    for line in runnable:
        words = shlex.split(line)[1:]
        again = capplan(*words)
        assert again.code in (0, 4), (line, again.err)
        assert "--" in line or again.out.strip(), line
        if "--plan plan.json" in case.line and "small.yaml" not in case.line and "small.yaml" in words:
            assert SETTING in words, line


FILLED = {
    ("capplan/scenario/one_line.py", "capplan capacity {} --gpus '8 x h100-sxm'"): "fleet llama-3.1-8b",
    ("capplan/scenario/first_scenario.py", "capplan fleet {}"): "init 'new one.yaml' --from llm.sh --offline",
    ("capplan/cli/init.py", "capplan fleet {}"): "init 'new one.yaml' --from llm.sh --offline",
    (
        "capplan/deploy/known_deployment.py",
        "capplan fleet {}",
    ): "init second.yaml --from small.yaml --offline",
    (
        "capplan/deploy/known_deployment.py",
        "capplan export --plan {} --target k8s",
    ): "init second.yaml --from plan.json --offline",
    (
        "capplan/deploy/export.py",
        "capplan fleet {}{} --set engine={} -o plan.json",
    ): "export --plan plan.json --target sglang",
    ("capplan/questions/fleet.py", "capplan list machines {}"): "fleet unsold.yaml",
    ("capplan/questions/listing.py", "capplan list {}"): "list models no-such-model",
    ("capplan/questions/money/ledger.py", "capplan fleet {}"): "bill hopeless.yaml",
    ("capplan/questions/plans/plan_file.py", "capplan fleet {}"): "explain hopeless.yaml",
    ("capplan/questions/simulation.py", "capplan fleet {}"): "simulate hopeless.yaml",
    (
        "capplan/questions/several_models.py",
        "capplan fleet {}",
    ): "fleet shared-gpus --set 'fleet.hardware=[l4]'",
    ("capplan/readers/plan_file.py", "capplan fleet {} {}{}-o {}"): "check --plan old.json",
    ("capplan/readers/yaml_file.py", "capplan init --from {}"): "fleet pod.yaml",
    (
        "capplan/recorded/traces/trace.py",
        "capplan workload {} -o workload.yaml",
    ): "simulate small.yaml --trace counters.txt",
    ("capplan/report/answers/calibrate.py", "capplan estimate {}"): CASES[12].line,
    ("capplan/report/answers/fleet_words.py", "capplan levers {}"): "fleet poor.yaml",
    (
        "capplan/report/answers/fleet_words.py",
        "capplan levers {} --lever engine",
    ): "",  # of large mixtures of experts, which tests/properties/test_default_pools.py plans
    ("capplan/report/answers/levers.py", "capplan fleet {} {}"): "levers small.yaml",
    (
        "capplan/report/answers/plan_files.py",
        "capplan fleet {} -o {}",
    ): "check --plan plan.json --max-price-age 1",
    (
        "capplan/report/answers/plan_files.py",
        "capplan fleet {}",
    ): "verify-plan --plan plan.json --results slow.json",
    (
        "capplan/report/answers/watched.py",
        "capplan replan --plan {}{}",
    ): "",  # asks a server, as tests/oracles/test_prometheus_server.py does with both of these lines
    ("capplan/report/answers/watched.py", "capplan fleet {} -o {}"): "",
    ("capplan/review/levers.py", "capplan levers {}"): "report --plan plan.json --format markdown",
    ("capplan/scenario/scenario.py", "capplan fleet {}"): "fleet plan.json",
    ("capplan/scenario/drawn_workload.py", "capplan simulate {}"): "workload users.yaml",
    (
        "capplan/cli/main.py",
        "capplan {} {}",
    ): "",  # completions of a shell, which tests of the program itself install
    (
        "capplan/cli/main.py",
        "capplan {}--help",
    ): "",  # the help of a command, which the tests of all commands ask for
}
"""File and text of each command that is filled in -> the case that executes it."""
ELSEWHERE = {
    ("capplan/cli/main.py", "capplan {} {}"),  # completions of a shell, installed by the tests of the program
    ("capplan/cli/main.py", "capplan {}--help"),  # asked of all commands by their tests
    ("capplan/cli/main.py", "capplan {} ({})"),  # the version
    ("capplan/review/page.py", "capplan {}"),  # the version
    ("capplan/readers/calibration/measured_device.py", "capplan calibrate on {}"),  # the name of a source
    (
        "capplan/report/answers/fleet.py",
        "capplan verify-plan on one replica may save {}",
    ),  # part of a sentence
    ("capplan/explain/table.py", "capplan hardware {}"),
    ("capplan/explain/table.py", "capplan model {}"),
    ("capplan/explain/table.py", "capplan model {}: its mixers"),  # sources of inputs, executed below
}


def test_every_command_that_is_filled_in_is_executed():
    """A new text with a command needs a case that prints it: what it fills in may be anything."""
    filled = set()
    for file in sorted((ROOT / "capplan").rglob("*.py")):
        place = file.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                text = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
                found = re.findall(
                    r"(?:: |^\s*|\n  )(capplan [a-z{][a-z{}-]*(?: [^\n;]*)?)$", text, re.MULTILINE
                )
                filled |= {(place, line) for line in found if "{}" in line and not PLACEHOLDER.search(line)}
    assert filled == FILLED.keys() | ELSEWHERE
    assert set(FILLED.values()) - {""} <= {case.line for case in CASES}


@pytest.mark.long
def test_the_commands_that_explained_inputs_come_from_run(capplan, folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "plan.json").write_bytes((folder / "kept.json").read_bytes())
    listed = capplan.result("explain", "plan.json")["quantities"]
    ran = set()
    for quantity in (row["quantity"] for row in listed if row["quantity"].endswith("_per_gpu")):
        explained = capplan("explain", "plan.json", quantity, "--format", "json")
        ran |= set(re.findall(r'"source": "(capplan [^":;]*)', explained.out))
    for source in ran:
        assert capplan(*shlex.split(source)[1:]).code == 0, source
    assert {words.split()[1] for words in ran} == {"hardware", "model"}


def templates():
    """Return the texts of the package that hold a command after a colon, with {} for what is filled in."""
    found = {}
    for file in sorted((ROOT / "capplan").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        silent |= {
            id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
        }
        for node in ast.walk(tree):
            if id(node) in silent:
                continue
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(node, ast.JoinedStr):
                text = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            if isinstance(text, str):
                for line in re.findall(r": (capplan [a-z-]+ ?[^\n;]*)", text):
                    found[line] = file.relative_to(ROOT)
    return found


@pytest.mark.parametrize("line", templates())
def test_a_text_of_the_package_names_a_command_and_options_that_exist(line):
    """So that a way out is not a command of an older version; what is filled in is asked by the cases above."""
    words = re.sub(r"[^ ]*\{\}[^ ]*", "x", line).split()[1:]
    command = typer.main.get_command(app).get_command(None, words[0])
    assert command is not None, line
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in words[1:]:
        assert not word.startswith("-") or word in options | {"--help"}, line
