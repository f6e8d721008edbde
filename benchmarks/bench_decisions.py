"""How repeatable the answer of a fleet search is, and how it agrees with a simulation of the same fleet.

    python benchmarks/bench_decisions.py [--seeds 3] [SCENARIO ...]

For every scenario: the cheapest plan of each seed, the spread of its replicas, and TTFT and TPOT of the recommended plan as
`fleet` says and as `simulate` finds on a whole fleet, at the same load.
"""

import argparse
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from capplan.fleet.load.offered import SamplePath
from capplan.fleet.plan import Plan
from capplan.fleet.review import Question, spec_of_layout
from capplan.fleet.simulation import Stream, simulated_fleet
from capplan.questions.fleet import AskedFleet, asked_fleet
from capplan.questions.fleet_answer import fleet_for
from capplan.replica.replica import replica_of
from capplan.scenario.scenario import read_scenario

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
PER_REPLICA = 15_000


def replayed(question: Question, plan: Plan, seed: int) -> tuple[float, float]:
    """Return p95 of TTFT and TPOT [s] of a whole fleet, each replica simulated, under the load that the plan is for."""
    replica = replica_of(spec_of_layout(plan.single.layout, question))
    demand = question.demand
    path = SamplePath(
        demand, count=PER_REPLICA * plan.single.busy_replicas, seed=seed, longest=question.max_model_len,
        response_s=plan.e2e_s.mean if demand.users else 0.0,
    )  # fmt: skip
    offered = path.offered(1.0)
    stream = Stream(
        offered.requests, tuple(c.name for c in demand.classes), crowd=offered.crowd, warm_up_share=0.15
    )
    outcome = simulated_fleet(replica, stream, replicas=plan.single.busy_replicas, slo=question.slo)
    return outcome.all.ttft_s.p95, outcome.all.tpot_s.p95


def report(asked: AskedFleet, seeds: int) -> None:
    """Print what one scenario gives."""
    answers: Counter[str] = Counter()
    begin = time.process_time()
    for seed in range(seeds):
        answer = fleet_for(replace(asked, question=replace(asked.question, seed=seed)))
        plan = answer.choices.cheapest if answer.choices else None
        answers[
            f"{plan.single.busy_replicas:3} x {plan.single.layout.device.name} {plan.single.layout.in_words()}"
            if plan
            else "none"
        ] += 1
    each = (time.process_time() - begin) / seeds
    print(f"{asked.scenario.name}: {each:.1f} CPU-seconds a search")
    for text, count in answers.most_common():
        print(f"    {count:2} of {seeds}: {text}")
    plan = fleet_for(asked).chosen
    if plan is not None and not asked.question.demand.reuses:
        ttft, tpot = replayed(asked.question, plan, 1)
        print(
            f"    TTFT p95 {plan.ttft_s.p95 * 1e3:.0f} ms in fleet, {ttft * 1e3:.0f} in simulate; TPOT p95 {plan.tpot_s.p95 * 1e3:.1f} and {tpot * 1e3:.1f}"
        )


def main() -> None:
    """Run the scenarios that are named, or all that are shipped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("scenarios", nargs="*", type=Path, default=sorted(SCENARIOS.glob("*.yaml")))
    given = parser.parse_args()
    for path in given.scenarios:
        report(asked_fleet(read_scenario(path), offline=True), given.seeds)


if __name__ == "__main__":
    main()
