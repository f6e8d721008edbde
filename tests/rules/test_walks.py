"""Tutorials and how-tos are walked as they are written: with an installed wheel, from an empty folder, block by block."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.long
DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
COMMANDS = ("capplan ", "mkdir ", "cp ", "sed ")
"""First words of the command lines that a walk runs."""
CONNECTED = ("workload", "cache", "list", "hardware", "export", "check", "diff", "verify-plan", "calibrate")
"""Commands without `--offline`."""
MISSES = {"verify-plan --plan plan.json --results bench.json", "--replicas 1", "budget.usd_per_month=20000"}
"""Parts of commands that miss a target, as the page says."""
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md")) + sorted((DOCS / "tutorials").glob("*.ipynb"))
HOW_TOS = sorted((DOCS / "how-to").glob("*.md"))
WITHOUT_COMMANDS = {"troubleshoot", "serve", "follow-production"}
"""How-tos that a reader looks things up in, or whose lines test_serve.py and test_prometheus_server.py run."""
BROUGHT = {
    "calibrate-my-gpu": {"bench.json": DOCS / "examples" / "vllm_bench_serve.json"},
    "size-for-a-trace": {"trace.csv": DOCS.parent / "tests" / "data" / "traces" / "AzureLLMInferenceTrace_conv.csv"},
}  # fmt: skip
"""How-to -> what a reader has before it begins."""
EXTRA = "capplan[calibrate]"
"""On a page that needs more than `pip install capplan`."""
PLAIN = "import sys\nfor name in ('torch', 'scipy', 'distributed', 'mcp'):\n    sys.modules[name] = None\n"
"""Makes Python lack what a plain installation lacks: the libraries of the extras."""
LEFT = {
    "first-plan": ("init fleet fleet explain levers report report export export verify-plan",
                   {"chat.yaml", "plan.json", "plan.html", "plan.md", "chat.k8s.yaml"}, "recalibrate: time to first token"),
    "from-a-plan-to-an-order": ("list hardware fleet fleet fleet explain export export check", {"plan.json", "machines.yaml"}, ""),
    "from-a-request-trace-to-a-fleet": (None, {"trace.csv", "workload.yaml", "points.jsonl"}, ""),
}  # fmt: skip
"""Tutorial -> its commands in order, files that it leaves, and words of its last answer."""
OF_A_CLONE = "../tests/data/"
"""In a command that runs in a clone, as its page says."""


class Walk:
    """A folder of its own, and the program as it was installed."""

    def __init__(self, installed, folder, without_extras):
        self.folder = folder
        (without_extras / "sitecustomize.py").write_text(PLAIN)
        self.paths = {True: str(installed), False: f"{without_extras}{os.pathsep}{installed}"}
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": self.paths[False],
            "COLUMNS": "80",
        }

    def python(self, *words):
        """Run Python where the wheel is all that can be imported of the project."""
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )

    def command(self, line):
        """Run one command line of a page."""
        words = line.removeprefix("$ ").partition("  #")[0]
        assert words.startswith(COMMANDS), line
        name = words.split()[1]
        offline = "" if name in CONNECTED or not words.startswith("capplan ") else " --offline"
        old = " --max-price-age 36500" if name == "check" else ""
        short = " --minutes 0.15" if words.startswith("capplan calibrate --device") else ""
        programs = f'python() {{ "{sys.executable}" "$@"; }}; capplan() {{ python -m capplan "$@"; }}'
        script = f"{programs}; {words}{offline}{old}{short}"
        ran = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )
        if "emulates bf16" in ran.stderr:  # as the page says of such processors
            return self.command(f"{line} --weight-dtype fp32 --kv-dtype fp32")
        allowed = (0, 4) if any(part in line for part in MISSES) else (0,)
        assert ran.returncode in allowed, f"{line}: {ran.stderr}"
        return ran.stdout

    def page(self, text):
        """Write the files of a page, and run its commands and programs; return the commands that ran and what the last one printed."""
        commands, printed = [], ""
        self.env["PYTHONPATH"] = self.paths[EXTRA in text]
        for _, kind, body in BLOCK.findall(text):
            named = re.match(r"# file: (\S+)\n", body)
            if named:
                path = self.folder / named[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(body)
            if kind == "json":
                (self.folder / "bench.json").write_text(body)
            elif kind == "python":
                ran = self.python("-c", body)
                assert ran.returncode == 0, ran.stderr
            elif kind in ("bash", "console"):
                lines = body.splitlines()
                prompted = [line for line in lines if line.startswith("$ ")]
                plain = [line.strip() for line in lines if line.strip().startswith(COMMANDS)]
                for line in (line for line in prompted or plain if OF_A_CLONE not in line):
                    printed = self.command(line)
                    commands.append(line.removeprefix("$ ").split()[1])
        return commands, printed


@pytest.fixture
def walk(installed, tmp_path, tmp_path_factory):
    return Walk(installed, tmp_path, tmp_path_factory.mktemp("plain"))


def text_of(path):
    """Return a page, or a notebook as one program."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return "```python\n{}\n```\n".format("\n\n".join(cells))


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_is_walked_with_the_wheel_from_an_empty_folder(page, walk):
    ran = walk.python("-c", "import capplan; print(capplan.__file__)")
    assert ran.stdout.startswith(walk.paths[True])
    commands, printed = walk.page(text_of(page))
    assert commands or page.suffix == ".ipynb"
    named, files, says = LEFT.get(page.stem, (None, set(), ""))
    assert (named or " ".join(commands)) == " ".join(commands)
    assert files <= {path.name for path in walk.folder.iterdir()}
    assert says in printed
    if "machines.yaml" in files:
        plan = json.loads((walk.folder / "plan.json").read_text())["result"]["chosen"]
        machines = plan["order"]["machines"]
        assert plan["survival"]["domain"] == "machine"
        assert all(line["provider"] == "AWS" and line["region"] and line["date"] for line in machines)
        tasks = list(yaml.safe_load_all((walk.folder / "machines.yaml").read_text()))
        assert sum(task["num_nodes"] for task in tasks) == sum(line["count"] for line in machines)


@pytest.mark.parametrize("page", HOW_TOS, ids=lambda page: page.stem)
def test_a_how_to_is_walked_with_the_wheel(page, walk):
    for name, file in BROUGHT.get(page.stem, {}).items():
        (walk.folder / name).write_bytes(file.read_bytes())
    commands, _ = walk.page(page.read_text(encoding="utf-8"))
    assert (not commands) == (page.stem in WITHOUT_COMMANDS)
