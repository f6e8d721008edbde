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
        "hardware: [h100-sxm]", "hardware: [h100-sxm], machines: {only: [dgx-spark]}"
    ),
    "users.yaml": re.sub(r"- \{.*\}", f"- {USERS}", SCENARIO),
    "scrape.txt": "vllm:request_success_total 3\nvllm:request_prompt_tokens_sum 9\nvllm:request_prompt_tokens_count 3\n",
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
    (folder / "llm.sh").write_text("vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2\n")
    (folder / "result.json").write_text(json.dumps(RESULT))
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
    for line in runnable:
        words = shlex.split(line)[1:]
        again = capplan(*words)
        assert again.code in (0, 4), (line, again.err)
        if "--plan plan.json" in case.line and "small.yaml" not in case.line and "small.yaml" in words:
            assert SETTING in words, line


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
