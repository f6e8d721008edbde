"""How far `simulate` lies from what `fleet` says of its plan, by kind of traffic: open loops, users, several classes, sessions, separate pools.

    python -m benchmarks.bench_agreement [--scenarios 10] [--kind NAME]

Each row is a kind: random scenarios with a plan, those within 2 % in all three means (TTFT, TPOT, E2E), and the largest differences.
"""

import argparse
import tempfile
from pathlib import Path
from random import Random

from tests.fuzz.answers import KINDS, scenario_text
from tests.fuzz.shown import AGREED, printed

LATENCIES = ("ttft_s", "tpot_s", "e2e_s")


def differences(kind: str, number: int) -> dict[str, float]:
    """Return simulated over planned less one of each mean of a random scenario; nothing without a plan."""
    with tempfile.TemporaryDirectory() as folder:
        scenario, plan = Path(folder) / "asked.yaml", Path(folder) / "plan.json"
        scenario.write_text(scenario_text(kind, Random(f"agreement {kind} {number}")))
        found = printed("fleet", str(scenario), "--offline")
        if not found or not found["chosen"]:
            return {}
        printed("fleet", str(scenario), "--offline", "-o", str(plan))
        run = printed("simulate", "--plan", str(plan), "--offline") or {}
    means = {
        name: (found["chosen"][name]["mean"], (run.get(name) or {}).get("mean"))
        for name in LATENCIES
        if found["chosen"][name]
    }
    return {name: seen / planned - 1.0 for name, (planned, seen) in means.items() if planned and seen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scenarios", type=int, default=10)
    parser.add_argument("--kind", choices=KINDS, action="append")
    given = parser.parse_args()
    for kind in given.kind or KINDS:
        found = [own for number in range(given.scenarios) if (own := differences(kind, number))]
        within = sum(max(map(abs, own.values())) <= AGREED for own in found)
        largest = {
            name: max((own.get(name, 0.0) for own in found), key=abs, default=0.0) for name in LATENCIES
        }
        said = ", ".join(f"{name} {value:+.1%}" for name, value in largest.items())
        print(f"{kind}: {within} of {len(found)} within {AGREED:.0%}; largest: {said}", flush=True)


if __name__ == "__main__":
    main()
