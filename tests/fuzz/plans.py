"""Plan files with small faults, and with the digest of what they then hold, through all that reads them.

    python -m tests.fuzz.plans --seconds 600 --seed 1 [--kind answer]

Whatever a plan file holds, it is read or refused in one line; what is read of it agrees with itself: counts are those of its
groups, costs those of its order. A finding is printed with the file that shows it and the line that repeats it.
"""

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

from capplan.cli.main import main as capplan
from capplan.deploy.export import ENGINES, TARGETS, export_text
from capplan.deploy.fleet_launch import fleet_launch
from capplan.errors import CapplanError
from capplan.questions.fleet import AskedFleet, asked_fleet
from capplan.questions.plans.plan_check import both_sides, changes
from capplan.questions.plans.plan_file import answer_of
from capplan.questions.plans.plan_row import plan_row
from capplan.readers.plan_file import PlanFile, read_plan_file
from capplan.report.answers.fleet import fleet_answer
from capplan.scenario.scenario import scenario_from
from tests.fuzz.readers import HOSTILE, SCENARIO, changed, places, sealed
from tests.fuzz.turns import asked_until_time_is_over, quiet

CASES = 2000
"""Of one kind and seed, at most."""
TURN_S = 3.0
"""Processor time of one kind and seed, at most."""
LONGEST_S = 10.0
LONGEST_LINE = 700
POOLS = {
    "fleet": {
        "hardware": ["l4"], "tensor_parallel": [1], "disaggregation": "only", "kv_link": "infiniband-ndr", "spare_replicas": 1,
    },
    "commitments": {"reserved_1y": {}, "min_replicas": 1, "max_replicas": 4},
}  # fmt: skip
SCENARIOS: Mapping[str, dict[str, Any]] = {"alike": SCENARIO, "pools": SCENARIO | POOLS}
NEAR = (
    2,
    3,
    999,
    0.5,
    1.0,
    1e-9,
    10**9,
    "bf16",
    "fp8",
    "h100-sxm",
    "sglang",
    "0.0.1",
    "closed form",
    "prefix_aware",
    "gpu_prefix_aware",
    "2026",
    "measured",
    True,
)
"""Values that are as possible as those of a sound file."""


LAST: list[tuple[tuple[Any, ...], object]] = []
"""What the last file has otherwise than a sound one: place and value."""


@cache
def sound(kind: str) -> dict[str, Any]:
    """Return the result of the plan file of a kind of scenario."""
    with tempfile.TemporaryDirectory() as folder:
        asked, plan = Path(folder) / "s.yaml", Path(folder) / "plan.json"
        asked.write_text(
            json.dumps({key: value for key, value in SCENARIOS[kind].items() if value is not None})
        )
        assert quiet(partial(capplan, ["fleet", str(asked), "--offline", "-o", str(plan)])) == 0
        found: dict[str, Any] = json.loads(plan.read_text())["result"]
    return found


@cache
def paths(kind: str) -> list[tuple[Any, ...]]:
    """Return the places of a sound file at which a value may change."""
    return [path for path in places(sound(kind)) if path]


@cache
def question(kind: str) -> AskedFleet:
    """Return the question of a sound plan file."""
    file = Path(tempfile.mkdtemp()) / "plan.json"
    file.write_text(json.dumps(sealed(sound(kind))))
    return asked_fleet(scenario_from(read_plan_file(file).document, file.parent), offline=True)


def faulty_plan(kind: str, random: Random) -> dict[str, Any]:
    """Return a plan file with one to three other values, and the digest of what it then holds."""
    result = sound(kind)
    LAST.clear()
    for turn in range(random.randint(1, 3)):
        found = paths(kind) if turn == 0 else [path for path in places(result) if path]
        new = random.choice((*HOSTILE, KeyError)) if random.random() < 0.5 else random.choice(NEAR)
        path = random.choice(found)
        result = changed(result, path, new)
        LAST.append((path, new))
    return sealed(result)


def agrees(file: PlanFile, asked: AskedFleet) -> None:
    """Assert that the plans of a file are those that are read of it, and that their figures follow from each other."""
    answer = answer_of(file, asked)
    written = {id(row): row for row in [file.result["chosen"], *file.result["plans"]]}
    plans = [answer.chosen, *answer.plans] if answer.chosen else answer.plans
    for plan, row in zip(plans, written.values(), strict=False):
        assert plan is not None
        again = plan_row(plan)
        for key in ("gpus", "replicas", "spare_replicas", "usd_per_hour", "usd_per_month"):
            same = again[key] == row[key] or math.isclose(again[key], row[key], rel_tol=1e-9)
            assert same, f"{key} is {row[key]} in the file, {again[key]} by what is read"
        for key in ("ttft_s", "tpot_s", "e2e_s", "slo_met_probability", "hardware"):
            assert again[key] == row[key], f"{key} is {row[key]} in the file, {again[key]} by what is read"
    fleet_answer(asked, answer)


def answered(file: PlanFile, kind: str) -> None:
    """Read the answer of a plan file for its own scenario."""
    asked = question(kind)
    if file.inputs.content != sound(kind)["plan_file"]["inputs"]["content"]:
        asked = asked_fleet(scenario_from(file.document, file.path.parent), offline=True)
    agrees(file, replace(asked, warnings=()))


def exported(file: PlanFile, random: Random) -> None:
    """Export a plan file for some target."""
    target = random.choice(list(TARGETS))
    image = None if target in (*ENGINES, "keda", "skypilot") else "registry/name:tag"
    assert export_text(file, fleet_launch(file, image=image), target)


def compared(path: Path, other: Path) -> None:
    """Put a plan file beside a sound one."""
    before, after = both_sides(other, path, offline=True)
    changes(before, after)


def through(reader: str, kind: str, path: Path, random: Random) -> None:
    """Read a plan file as a command does."""
    if reader == "difference":
        other = path.with_name("sound.json")
        if not other.exists():
            other.write_text(json.dumps(sealed(sound("alike"))))
        compared(path, other)
        return
    file = read_plan_file(path)
    if reader == "answer":
        answered(file, kind)
    elif reader == "export":
        exported(file, random)
    else:
        words = {"check": ["check", "--plan", str(path)], "explain": ["explain", str(path), "gpus"]}[reader]
        code = quiet(partial(capplan, [*words, "--offline"]))
        assert code in (0, 2, 3, 4), f"exit {code}"


@dataclass(frozen=True)
class Turn:
    """A reader of plan files, and the kind of plans that it is given."""

    reader: str
    kind: str

    def __call__(self, folder: Path, number: int) -> int:
        """Read files for a moment of processor time, and return how many; the same number gives the same files."""
        random = Random(f"{self.reader} {self.kind} {number}")
        sound(self.kind), question(self.kind)
        until, read, path = time.process_time() + TURN_S, 0, folder / "plan.json"
        latest = time.monotonic() + 10.0 * TURN_S  # on a machine that others use
        while read < CASES and time.process_time() < until and time.monotonic() < latest:
            path.write_text(json.dumps(faulty_plan(self.kind, random)))
            began = time.process_time()
            try:
                through(self.reader, self.kind, path, random)
            except CapplanError as refusal:
                first = str(refusal).split("\n", 1)[0].replace(str(folder), "")
                assert first
                assert len(first) < LONGEST_LINE, f"a line of {len(first)} letters: {first[:200]}"
            took = time.process_time() - began
            assert took < LONGEST_S, f"took {took:.1f} s"
            read += 1
        return read


TURNS: Mapping[str, Callable[[Path, int], int]] = {
    f"{reader}-{kind}": Turn(reader, kind)
    for reader in ("answer", "export", "difference", "check", "explain")
    for kind in SCENARIOS
}


if __name__ == "__main__":
    sys.exit(asked_until_time_is_over("plans", __doc__, TURNS, lambda *_: LAST))
