"""How far `simulate` lies from what `fleet` says of its plan, by kind of traffic: open loops, users, several classes, sessions, separate pools.

    python -m benchmarks.bench_agreement [--scenarios 10] [--draws 1] [--kind NAME]

Each row is a kind: random scenarios with a plan, those within 2 % in all three means (TTFT, TPOT, E2E), the mean difference and the largest.
What is simulated is the mean of some draws, since one of sessions differs by several percent from the next.
"""

import argparse
from statistics import mean

from tests.fuzz.answers import KINDS, SLOW_KINDS
from tests.fuzz.shown import AGREED, LATENCIES, simulated_over_planned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scenarios", type=int, default=10)
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--kind", choices=(*KINDS, *SLOW_KINDS), action="append")
    given = parser.parse_args()
    seeds = range(7, 7 + given.draws)
    for kind in given.kind or KINDS:
        asked = (simulated_over_planned(kind, number, seeds) for number in range(given.scenarios))
        found = [own for own in asked if own]
        within = sum(max(map(abs, own.values())) <= AGREED for own in found)
        said = []
        for name in LATENCIES:
            values = [own.get(name, 0.0) for own in found] or [0.0]
            said.append(f"{name} {mean(values):+.1%} (largest {max(values, key=abs):+.1%})")
        print(f"{kind}: {within} of {len(found)} within {AGREED:.0%}; {', '.join(said)}", flush=True)


if __name__ == "__main__":
    main()
