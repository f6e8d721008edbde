"""Answers before and after a change of the house: the JSON and files of every command, number by number.

    python -m tests.fuzz.same_answers since COMMIT [--random 60] [--seed 7] [--only bill --only levers] [--of support] [--runs 2]
    python -m tests.fuzz.same_answers write FOLDER [--random 60] ...
    python -m tests.fuzz.same_answers compare BEFORE AFTER

`write` asks shipped scenarios, models and random scenarios. `compare` prints the leaves that differ, like ones together, and ends with 1 where
there are any. `since` writes and compares the answers of a commit, checked out and compiled in a temporary folder, and of this working tree.
"""

import argparse
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from capplan.cli.main import main as capplan
from capplan.fleet.search.search_cache import SearchCache
from tests.fuzz.answers import KINDS, scenario_text
from tests.sweeps import share_runs, size_on_few_requests

ROOT = Path(__file__).resolve().parents[2]
DIGEST = "result_sha256"
"""Key of a digest of a result with the folder it stands in: its leaves are compared by themselves."""
SHOWN = 4
"""Places that are printed of each kind of difference."""
TARGETS = (
    "vllm",
    "sglang",
    "trtllm",
    "compose",
    "k8s",
    "kserve",
    "llm-d",
    "dynamo",
    "keda",
    "skypilot",
    "grafana",
)
OF_PLAN = (
    ("bill",), ("compare", "--api", "openai/gpt-5-mini"), ("check",), ("report",), ("explain",), ("simulate", "--until", "120 s"), ("bill", "--focus", "focus.csv"),
    ("levers", "--lever", "answers"), ("levers", "--lever", "weight-dtype"), *(("export", "--target", name) for name in TARGETS),
)  # fmt: skip
"""What is asked of every plan."""
OF_SCENARIO = (("fleet",), ("workload",), ("sweep",), ("report",))
MODELS = (
    "llama-3.1-8b", "llama-3.1-70b", "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b", "deepseek-v3", "deepseek-v3.2", "gemma-3-27b-it",
    "Qwen/Qwen3.6-27B", "zai-org/GLM-5", "deepseek-ai/DeepSeek-V4-Pro", "bge-m3", "llama-4-scout", "moonshotai/Kimi-K2-Instruct",
)  # fmt: skip
OF_MODEL = (
    ("model",), ("kv-size", "--context", "32768"), ("fit", "--hardware", "h100-sxm", "-tp", "8"),
    ("estimate", "--hardware", "h200-sxm", "-tp", "8", "--concurrency", "32"), ("estimate", "--hardware", "b200", "-tp", "8", "--request-rate", "1 req/s"),
    ("sweep", "--hardware", "h200-sxm", "-tp", "8", "--concurrency", "4"), ("spec", "--hardware", "h200-sxm", "-tp", "8", "--draft-step-time", "2 ms", "--acceptance", "0.7"),
)  # fmt: skip
ALONE = (
    ("list", "models"), ("list", "hardware"), ("list", "machines"), ("list", "engines"), ("list", "prices"), ("list", "scenarios"), ("hardware",),
    ("hardware", "h100-sxm"),
)  # fmt: skip


def answer(words: Sequence[str], folder: Path) -> str:
    """Return what a command prints, without the temporary folder and the version."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = capplan([*words, "--offline"] if words[0] not in OFFLINE else [*words])
    return f"{out.getvalue()}\n{'' if code in (0, 3, 4) else err.getvalue()}exit {code}\n"


OFFLINE = {"list", "hardware", "workload", "export", "diff", "explain"}
"""Commands that open no connection anyway."""


def asked(name: str, only: Sequence[str], to: Path, scenarios: Path) -> str:
    """Write the answers to the questions about a scenario, a model or nothing."""
    kind, _, of = name.partition(":")
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        folder = Path(place)
        patch.chdir(folder)
        size_on_few_requests(patch)
        share_runs(patch, SearchCache())
        for words in questions_about(kind, of, folder, scenarios):
            if only and words[0] not in only and "-o" not in words:
                continue
            plain = words[0] == "export" or "--focus" in words or "-o" in words
            said = answer(words if plain else [*words, "--format", "json"], folder)
            for option, file in (("--focus", "focus.csv"), ("-o", "plan.json")):
                if option in words and (folder / file).exists():
                    said = (folder / file).read_text() + (said if option == "--focus" else "")
            for path, stands in ((folder, "FOLDER"), (scenarios, "SCENARIOS"), (ROOT, "ROOT")):
                said = said.replace(str(path), stands)
            parts = (
                re.sub(r"[^\w.-]+", "-", Path(word).name if word.startswith("/") else word) for word in words
            )
            target = (
                to
                / name.replace(":", "_").replace("/", "-")
                / f"{'_'.join(part.strip('-') for part in parts)}.txt"
            )
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(said)
    return name


def questions_about(kind: str, of: str, folder: Path, scenarios: Path) -> list[tuple[str, ...]]:
    """Return the commands that are asked about a scenario, a model or nothing."""
    if kind == "alone":
        return [*ALONE]
    if kind == "model":
        return [(words[0], of, *words[1:]) for words in OF_MODEL]
    scenario, plan = (
        str((scenarios if kind == "random" else ROOT / "scenarios") / of),
        str(folder / "plan.json"),
    )
    return [
        *((words[0], scenario, *words[1:]) for words in OF_SCENARIO),
        ("fleet", scenario, "-o", plan),
        *(("explain", plan) if words == ("explain",) else (*words, "--plan", plan) for words in OF_PLAN),
        ("diff", scenario, plan),
    ]


def leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from () if key == DIGEST else leaves(item, f"{at}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, f"{at}[{index}]")
    else:
        yield at, value


def leaves_of(text: str) -> dict[str, Any]:
    """Return the leaves of an answer by their path; lines of a text without one."""
    body = text.rpartition("exit ")[0] if "\nexit " in text else text
    try:
        return dict(leaves(json.loads(body)))
    except ValueError:
        return {f"line {number}": line for number, line in enumerate(text.splitlines())}


def compare(before: Path, after: Path) -> int:
    """Print which leaves differ between two folders of answers; 1 if any."""
    kinds: Counter[str] = Counter()
    places: dict[str, list[str]] = {}
    names = sorted({path.relative_to(at).as_posix() for at in (before, after) for path in at.rglob("*.txt")})
    compared = count = 0
    for name in names:
        missing = [
            at for at, folder in (("before", before), ("after", after)) if not (folder / name).exists()
        ]
        if missing:
            kinds[f"not asked {missing[0]}"] += 1
            places.setdefault(f"not asked {missing[0]}", []).append(name)
            continue
        old, new = ((folder / name).read_text() for folder in (before, after))
        olds, news = leaves_of(old), leaves_of(new)
        compared, count = compared + 1, count + len(news)
        if old == new:
            continue
        for path in dict.fromkeys((*olds, *news)):
            if (
                path not in olds
                or path not in news
                or olds[path] != news[path]
                or type(olds[path]) is not type(news[path])
            ):
                kind = f"{name.partition('/')[2].partition('_')[0].removesuffix('.txt')} {re.sub(r'[0-9]+', 'N', path)}"
                kinds[kind] += 1
                places.setdefault(kind, []).append(
                    f"{name} {path}: {str(olds.get(path, '-'))[:100]} -> {str(news.get(path, '-'))[:100]}"
                )
        if olds == news and DIGEST not in new:
            kinds["order of keys or spaces"] += 1
            places.setdefault("order of keys or spaces", []).append(name)
    for kind, often in kinds.most_common():
        print(f"{often:>6}  {kind}", *(f"\n          {place}" for place in places[kind][:SHOWN]))
    print(json.dumps({"answers": compared, "leaves": count, "kinds_of_differences": len(kinds)}))
    return 1 if kinds else 0


def write(given: argparse.Namespace, to: Path, scenarios: Path) -> None:
    """Write the answers of this tree to a folder."""
    names = [
        "alone:", *(f"model:{name}" for name in MODELS), *(f"shipped:{path.name}" for path in sorted((ROOT / "scenarios").glob("*.yaml"))),
        *(f"random:{path.name}" for path in sorted(scenarios.glob("*.yaml"))),
    ]  # fmt: skip
    names = [name for name in names if given.of in name]
    with ProcessPoolExecutor(given.runs) as pool:
        asking = partial(asked, only=given.only, to=to, scenarios=scenarios)
        for count, name in enumerate(pool.map(asking, names), 1):
            print(f"{count}/{len(names)} {name}", file=sys.stderr, flush=True)


def write_scenarios(folder: Path, count: int, seed: int) -> None:
    """Write random scenarios of every kind in turn."""
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        text = scenario_text(kind, Random(f"same {seed} {number}"))
        (folder / f"{number:03}-{kind}.yaml").write_text(text)


def write_of(commit: str, folder: Path, words: Sequence[str]) -> Path:
    """Write the answers of a commit to the same questions, and return their folder."""
    tree, answers = folder / "tree", folder / "before"
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=ROOT, check=True)
    try:
        compile_core = (
            "import hatch_build, pathlib; raise SystemExit(hatch_build.failure(pathlib.Path()) or None)"
        )
        asked_again = "tests/fuzz/same_answers.py"
        shutil.copy(ROOT / asked_again, tree / asked_again)
        for call in (("-c", compile_core), ("-m", "tests.fuzz.same_answers", "write", str(answers), *words)):
            environment = os.environ | {"PYTHONPATH": str(tree)}
            subprocess.run([sys.executable, *call], cwd=tree, env=environment, check=True)
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    return answers


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("since", "write", "compare"))
    parser.add_argument("of_what", nargs="+", help="a commit, or one or two folders")
    parser.add_argument("--random", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--scenarios", type=Path, help="folder whose scenarios are asked in place of random ones"
    )
    parser.add_argument("--only", action="append", default=[], help="commands; repeatable")
    parser.add_argument("--of", default="", help="scenarios and models whose name has these letters")
    parser.add_argument("--runs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if given.verb == "compare":
        return compare(*map(Path, given.of_what))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        scenarios = (given.scenarios or folder / "scenarios").resolve()
        if given.scenarios is None:
            scenarios.mkdir()
            write_scenarios(scenarios, given.random, given.seed)
        if given.verb == "write":
            write(given, Path(given.of_what[0]).resolve(), scenarios)
            return 0
        only = [word for name in given.only for word in ("--only", name)]
        words = ["--scenarios", str(scenarios), *only, "--of", given.of, "--runs", str(given.runs)]
        before = write_of(given.of_what[0], folder, words)
        write(given, folder / "after", scenarios)
        return compare(before, folder / "after")


if __name__ == "__main__":
    sys.exit(main())
