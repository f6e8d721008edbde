"""Exports of plans that carry random hostile texts: the same commands and keys as with plain names.

    python -m tests.fuzz.exports --seconds 600 --seed 1 [--kind one-k8s]

A shell and a YAML reader read each export again. A finding is printed with the text, where it stood, and the line that repeats it.
"""

import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from random import Random

from capplan.deploy.export import TARGETS
from capplan.errors import InputError
from tests.fuzz.turns import asked_until_time_is_over, quiet
from tests.plan_files import plan_in
from tests.properties.test_hostile_exports import HOSTILE, asked, exported, same_commands_and_keys

CASES = 500
"""Of one kind and seed, at most."""
TURN_S = 2.0
"""Processor time of one kind and seed, at most."""
PLANS: Mapping[str, tuple[str, ...]] = {
    "one": (),
    "pools": ("fleet.disaggregation=only", "fleet.kv_link=infiniband-ndr", "slo.tpot_p95=30 ms"),
}
PIECES = (
    *HOSTILE,
    "a",
    "7",
    "owner/name",
    " ",
    "\n",
    "'",
    '"',
    "$",
    "(",
    ")",
    "{",
    "}",
    ";",
    "&",
    ">",
    "<",
    "!",
    "%",
    "@",
    ":",
    "- ",
    "\t",
    "\ud800",
    "é",
)
"""What texts are made of."""
PLAIN = {
    "hardware": "h100-sxm",
    "model": {"revision": "main"},
    "checkpoint": "owner/name",
    "image": "registry/name:tag",
}
NOT_STARTED = ("sglang", "trtllm")
"""Engines whose commands differ from those of vLLM by name only."""
LAST: list[object] = []


@cache
def plan(kind: str) -> Path:
    """Return the plan file of a kind."""
    folder = Path(tempfile.mkdtemp(prefix=f"capplan-fuzz-{kind}-"))
    quiet(lambda: len(str(plan_in(folder, *PLANS[kind]))))
    return folder / "plan.json"


def some(kind: str, target: str, folder: Path, number: int) -> int:
    """Export a plan with hostile texts for a moment of processor time, and return how often; the same number gives the same texts."""
    random, done = Random(f"{kind} {target} {number}"), 0
    sound, empty = plan(kind), folder / "empty"
    empty.mkdir(exist_ok=True)
    until, latest = time.process_time() + TURN_S, time.monotonic() + 10.0 * TURN_S
    while done < CASES and time.process_time() < until and time.monotonic() < latest:
        text = "".join(random.choices(PIECES, k=random.randint(1, 4)))
        place, hostile = random.choice(list(asked(text)))
        LAST[:] = [place, text]
        done += 1
        try:
            expected = exported(sound, target, folder, **{key: PLAIN[key] for key in hostile if key in PLAIN})
            found = exported(sound, target, folder, **hostile)
        except InputError as error:
            refusal = str(error)
        else:
            refusal = ""
        assert not any(letter in refusal for letter in "\x1b\r\x00\u202e"), repr(refusal)
        if refusal:
            continue
        same_commands_and_keys(found, expected, target, place, text, empty)
    return done


TURNS = {
    f"{kind}-{target}": partial(some, kind, target)
    for kind in PLANS
    for target in TARGETS
    if target not in NOT_STARTED and (kind, target) != ("pools", "keda")
}


if __name__ == "__main__":
    sys.exit(asked_until_time_is_over("exports", __doc__, TURNS, lambda *_: LAST))
