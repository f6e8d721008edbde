"""Commands that answers, errors, pages and files print run as they stand; those with a PLACEHOLDER have a command and options that exist."""

import ast
import itertools
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
from tests.tables import rows

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
    fills: dict[str, list[str]]  # file of the package -> its texts that this line fills in
    file: str = ""
    sample: bool = False


PRINTING = rows("printed")
CASES = [Case(**{"fills": {}, **row}) for row in PRINTING["cases"]]
SAMPLE = [case for case in CASES if case.sample]
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
    for template in itertools.chain.from_iterable(case.fills.values()):
        pattern = re.escape(template).replace(re.escape("{}"), ".*")
        assert any(re.fullmatch(pattern, line) for line in found), (template, found)
    for line in runnable:
        words = shlex.split(line)[1:]
        again = capplan(*words)
        assert again.code in (0, 4), (line, again.err)
        assert "--" in line or again.out.strip(), line
        if "--plan plan.json" in case.line and "small.yaml" not in case.line and "small.yaml" in words:
            assert SETTING in words, line


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
    executed = {(file, text) for case in CASES for file, texts in case.fills.items() for text in texts}
    assert filled == executed | {(file, text) for file, text, _ in PRINTING["elsewhere"]}


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
