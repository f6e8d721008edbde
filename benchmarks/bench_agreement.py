"""How far `simulate` lies from what `fleet` says of its plan, by kind of traffic: open loops, users, several classes, sessions, separate pools.

    python -m benchmarks.bench_agreement [--scenarios 10] [--kind NAME]

Each row is a kind: random scenarios with a plan, those within 2 % in all three means (TTFT, TPOT, E2E), and the largest differences.
"""

import argparse

from tests.fuzz.answers import KINDS
from tests.fuzz.shown import AGREED, LATENCIES, simulated_over_planned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scenarios", type=int, default=10)
    parser.add_argument("--kind", choices=KINDS, action="append")
    given = parser.parse_args()
    for kind in given.kind or KINDS:
        found = [own for number in range(given.scenarios) if (own := simulated_over_planned(kind, number))]
        within = sum(max(map(abs, own.values())) <= AGREED for own in found)
        largest = {
            name: max((own.get(name, 0.0) for own in found), key=abs, default=0.0) for name in LATENCIES
        }
        said = ", ".join(f"{name} {value:+.1%}" for name, value in largest.items())
        print(f"{kind}: {within} of {len(found)} within {AGREED:.0%}; largest: {said}", flush=True)


if __name__ == "__main__":
    main()
