"""Answers before and after a change of the house: the JSON and text of every command, number by number.

    python -m tests.fuzz.same_answers write FOLDER [--random 60] [--only bill --only levers] [--of support] [--runs 2]
    python -m tests.fuzz.same_answers compare BEFORE AFTER

`write` asks shipped scenarios, models and random scenarios; `compare` prints the leaves of AFTER that BEFORE has not, like ones together, and
ends with 1 where there are any.
"""

import argparse
import io
import json
import os
import re
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
from tests.fuzz.answers import KINDS, scenario_text
from tests.sweeps import size_on_few_requests

ROOT = Path(__file__).resolve().parents[2]
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


def answer(words: Sequence[str], folder: Path, *, text: bool = False) -> str:
    """Return what a command prints, without the temporary folder and the version."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = capplan([*words, "--offline"] if words[0] not in OFFLINE else [*words])
    said = f"{out.getvalue()}\n{'' if code in (0, 3, 4) and not text else err.getvalue()}exit {code}\n"
    return said.replace(str(folder), "FOLDER").replace(str(ROOT), "ROOT")


OFFLINE = {"list", "hardware", "workload", "export", "diff", "explain"}
"""Commands that open no connection anyway."""


def asked(name: str, only: Sequence[str], to: Path) -> str:
    """Write the answers to the questions about a scenario, a model or nothing."""
    kind, _, of = name.partition(":")
    wanted = [*only]
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        folder = Path(place)
        patch.chdir(folder)
        size_on_few_requests(patch)
        questions: list[tuple[str, ...]] = []
        if kind == "alone":
            questions = [*ALONE]
        elif kind == "model":
            questions = [(words[0], of, *words[1:]) for words in OF_MODEL]
        else:
            scenario, plan = folder / "scenario.yaml", folder / "plan.json"
            if kind == "random":
                random = Random(f"same {of}")
                scenario.write_text(scenario_text(KINDS[int(of) % len(KINDS)], random))
            else:
                scenario = ROOT / "scenarios" / of
            questions = [(words[0], str(scenario), *words[1:]) for words in OF_SCENARIO]
            questions.append(("fleet", str(scenario), "-o", str(plan)))
            questions += [
                (*words, "--plan", str(plan)) if words[0] != "explain" else ("explain", str(plan))
                for words in OF_PLAN
            ]
            questions.append(("diff", str(scenario), str(plan)))
        for words in questions:
            if wanted and words[0] not in wanted and "-o" not in words:
                continue
            plain = words[0] == "export" or "--focus" in words
            said = answer(words if plain or "-o" in words else [*words, "--format", "json"], folder)
            if "focus.csv" in words and (folder / "focus.csv").exists():
                said += (folder / "focus.csv").read_text()
            if "-o" in words and (folder / "plan.json").exists():
                said = (
                    (folder / "plan.json")
                    .read_text()
                    .replace(str(folder), "FOLDER")
                    .replace(str(ROOT), "ROOT")
                )
            file = "_".join(
                re.sub(r"[^\w.-]+", "-", word.replace(str(folder), "").replace(str(ROOT), "")).strip("-")
                for word in words
            )
            target = to / name.replace(":", "_").replace("/", "-") / f"{file}.txt"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(said)
    return name


def leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{at}.{key}")
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
    names = sorted(path.relative_to(after).as_posix() for path in after.rglob("*.txt"))
    compared = 0
    for name in names:
        if not (before / name).exists():
            kinds["not asked before"] += 1
            places.setdefault("not asked before", []).append(name)
            continue
        old, new = ((folder / name).read_text() for folder in (before, after))
        compared += 1
        if old == new:
            continue
        olds, news = leaves_of(old), leaves_of(new)
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
        if olds == news:
            kinds["order of keys or spaces"] += 1
            places.setdefault("order of keys or spaces", []).append(name)
    for kind, count in kinds.most_common():
        print(f"{count:>6}  {kind}", *(f"\n          {place}" for place in places[kind][:SHOWN]))
    print(json.dumps({"answers": compared, "kinds_of_differences": len(kinds)}))
    return 1 if kinds else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("write", "compare"))
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--random", type=int, default=60)
    parser.add_argument("--only", action="append", default=[], help="commands; repeatable")
    parser.add_argument("--of", default="", help="scenarios and models whose name has these letters")
    parser.add_argument("--runs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if given.verb == "compare":
        return compare(*given.folders)
    folder = given.folders[0].resolve()
    names = [
        "alone:", *(f"model:{name}" for name in MODELS), *(f"shipped:{path.name}" for path in sorted((ROOT / "scenarios").glob("*.yaml"))),
        *(f"random:{number}" for number in range(given.random)),
    ]  # fmt: skip
    names = [name for name in names if given.of in name]
    with ProcessPoolExecutor(given.runs) as pool:
        for count, name in enumerate(pool.map(partial(asked, only=given.only, to=folder), names), 1):
            print(f"{count}/{len(names)} {name}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
