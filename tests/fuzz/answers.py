"""Random scenarios over the product of features, and the laws that hold every command to one answer.

    python -m tests.fuzz.answers --seconds 600 --seed 1 [--kind sessions]

The laws: what `fleet` calls met, a simulation of all replicas of that plan meets, with other random draws, as often as its
certainty says; k copies of a plan carry k times the load; a device's best plan alone is its best plan among others, and the same after another question;
every page has one peak; no listed plan is as sure as a step of the ladder of certainty for less.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise
from math import inf
from random import Random

from capplan.errors import Reason
from capplan.fleet.answer import FleetAnswer
from capplan.fleet.load.demand import planned_demand
from capplan.fleet.load.routed import run_fleet
from capplan.fleet.plan import Plan, cost_of
from capplan.fleet.search.latencies import is_steady
from capplan.fleet.search.one_layout import trial_of
from capplan.fleet.search.search_cache import SearchCache
from capplan.fleet.simulation import FleetOutcome
from capplan.questions.fleet import AskedFleet, terms_of
from capplan.questions.fleet_answer import fleet_for
from capplan.questions.simulation import asked_stream, chosen_of, operation_of_plan
from capplan.replica.replica import replica_of
from capplan.scenario.command_flags import EngineFlags, OperationFlags, RequestFlags, SpeculationFlags
from capplan.scenario.engine_use import engine_use_of
from capplan.serving.requests import ClosedLoopUsers
from capplan.workload.request_class import Target
from tests.asked import asked_in
from tests.fuzz.turns import Broken, laws_until_time_is_over

MODELS = ("llama-3.1-8b", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b", "Qwen/Qwen3-32B")
DEVICES = {"l40s": 1.0, "a100-sxm-80gb": 2.5, "h100-sxm": 4.0, "h200-sxm": 4.5, "b200": 6.0}
KINDS = (
    "open", "users", "classes", "mixed", "sessions", "session-users", "pools", "pool-users", "drafts",
    "session-mixed", "user-drafts", "mixed-drafts", "pool-drafts",
)  # fmt: skip
"""Who sends (requests, users, two classes, both, sessions), and with what: separate pools, drafts."""
SLOW_KINDS = ("pool-mixed", "pool-user-drafts", "pool-sessions", "session-drafts")
"""Minutes each, so only on request; the last one differs from its simulation by more than the law allows (docs/simulation.md)."""
NOISE = 1.05
"""Factor on a target within which a run of a different seed may miss it."""
SLOW_NOISE = 1.10
"""Factor on the largest slowness at which targets hold, within which a run of a different seed may differ."""
UNSURE = 0.05
"""Probability by which a plan may be surer than it says, where that is more than the factor: three replicas are sized as two are."""
SURER = 0.01
"""Probability from which a recommended plan counts as surer than that of a part of its load: it may cost a few percent more for that."""
POOLS_SLACK = 0.03
"""Part of the cost by which k copies of two pools may be cheaper than pools for k times the load: a replica or two, sized on short runs."""
REQUESTS_PER_REPLICA = 6000
"""Near saturation a queue takes thousands of requests to grow to its length."""
REQUESTS_PER_USER = 120
"""Users who all begin at once send in waves at first, which fixed lengths keep together for dozens of requests: half of them."""
USERS_WARM_UP = 0.5
OUTLAST = 2.0
"""Factor on a load of users and others, so that neither part ends before the run: users of slower replicas send their requests later,
while what arrives comes sooner."""
LENGTHENED = 5
"""Times as long a run decides where targets seem to hold at more slowness than a plan bears: queues grow, and caches fill with sessions, for long."""
MOST_REQUESTS = 250_000
MOST_TURNS = 12_000
"""Of sessions, whose blocks are found in a cache one by one."""


def lengths(random: Random, least: int, most: int) -> str:
    """Return a length, fixed or spread."""
    mean = round(least * (most / least) ** random.random())
    spread = random.choice([1.0, 1.0, 2.0, 3.0])
    return str(mean) if spread == 1.0 else f"{{mean: {mean}, p95: {round(spread * mean)}}}"


def open_class(random: Random, name: str) -> str:
    """Return a class of requests that come at a rate."""
    rate = 0.5 * 400.0 ** random.random()
    return (
        f"  - {{name: {name}, request_rate: {rate:.3g} req/s, arrival_cv: {random.choice([0.5, 1.0, 1.0, 2.5])}, "
        f"input_tokens: {lengths(random, 60, 6000)}, output_tokens: {lengths(random, 5, 700)}}}\n"
    )


def user_class(random: Random, name: str) -> str:
    """Return a class of users who wait for each response."""
    users = round(3 * 300.0 ** random.random())
    think = random.choice([0, 0.5, 2, 10, 40])
    return (
        f"  - {{name: {name}, users: {users}, think_time: {think} s, "
        f"input_tokens: {lengths(random, 60, 6000)}, output_tokens: {lengths(random, 5, 700)}}}\n"
    )


def session_class(random: Random, name: str, *, users: bool) -> str:
    """Return a class of sessions: turns with a prompt that grows."""
    load = (
        f"users: {round(10 * 100.0 ** random.random())}"
        if users
        else f"request_rate: {0.5 * 60.0 ** random.random():.3g} req/s"
    )
    turns = random.randint(3, 15)
    return (
        f"  - {{name: {name}, {load}, turns: {{mean: {turns}, p95: {round(2.4 * turns)}}}, think_time: {random.choice([5, 15, 40])} s, "
        f"input_tokens: {lengths(random, 300, 4000)}, added_tokens: {lengths(random, 50, 800)}, output_tokens: {lengths(random, 30, 400)}}}\n"
    )


def traffic(kind: str, random: Random) -> str:
    """Return the traffic of a kind of scenario."""
    if kind == "classes":
        return user_class(random, "a") + user_class(random, "b")
    if "session" in kind:
        sessions = session_class(random, "s", users=kind == "session-users")
        return sessions + open_class(random, "o") if "mixed" in kind else sessions
    users = user_class(random, "u") if "user" in kind or "mixed" in kind else ""
    return users if "user" in kind else users + open_class(random, "o")


def scenario_text(kind: str, random: Random) -> str:
    """Return a random scenario of a kind."""
    devices = random.sample(sorted(DEVICES), random.choice([1, 1, 2, 3]))
    ttft = round(random.choice([0.4, 0.8, 1.5, 3.0, 6.0]) * random.uniform(0.8, 1.2), 3)
    tpot = round(random.choice([12, 20, 30, 50, 80]) * random.uniform(0.8, 1.2), 2)
    asked = "only" if kind == "pool-sessions" else "allowed"
    pools = f", disaggregation: {asked}, kv_link: infiniband-ndr" if kind.startswith("pool") else ""
    drafts = "speculation: {method: eagle, acceptance: [0.75, 0.68, 0.62], draft_tokens: 3}\n" if "drafts" in kind else ""  # fmt: skip
    model = "Qwen/Qwen3-32B" if "drafts" in kind else random.choice(MODELS)
    prices = ", ".join(f"{name}: {usd} $/h" for name, usd in DEVICES.items())
    confidence = random.choice([50, 80, 80, 90])
    return (
        f"name: law\nmodel: {model}\nweight_dtype: {random.choice(['bf16', 'fp8'])}\ntraffic:\n{traffic(kind, random)}"
        f"slo: {{ttft_{random.choice(['p95', 'p95', 'mean', 'p99'])}: {ttft} s, tpot_{random.choice(['p95', 'mean'])}: {tpot} ms, confidence: {confidence} %}}\n"
        f"fleet: {{hardware: [{', '.join(devices)}], tensor_parallel: [1, 2], pipeline_parallel: 1, "
        f"headroom: {random.choice([0, 10, 20])} %, spare_replicas: {random.choice([0, 0, 1])}{pools}}}\n"
        f"{drafts}prices: {{per_gpu_hour: {{{prices}}}}}\n"
    )


def simulated(
    asked: AskedFleet, plan: Plan, seed: int, slowness: float = 1.0, *, lengthened: int = 1
) -> FleetOutcome:
    """Simulate all replicas of a plan whose steps take longer by a factor: arrivals and thoughts come sooner, limits are that much shorter."""
    if slowness != 1.0 and not plan.has_pools and asked.question.demand.has_sessions:
        plan = _as_slow(asked, plan, slowness)
    chosen = chosen_of(asked, plan)
    operation = operation_of_plan(chosen, OperationFlags(), None)
    each = plan.groups[-1]
    rate = each.request_rate_per_replica * each.busy_replicas
    most = MOST_TURNS if asked.question.demand.has_sessions else MOST_REQUESTS
    of_users = REQUESTS_PER_USER * asked.question.demand.users
    count = min(max(REQUESTS_PER_REPLICA * chosen.replicas, of_users, 6000), most) * lengthened
    sampled = asked_stream(chosen, RequestFlags(None, count / rate, seed))
    use, _ = engine_use_of(
        asked.scenario, sampled.spec, EngineFlags(), SpeculationFlags(), planned_drafts=chosen.draft_tokens, offline=True
    )  # fmt: skip
    stream = sampled.stream
    until_s = inf
    if slowness > 1.0 and stream.requests is not None and stream.crowd is not None and stream.crowd.users:
        stream = asked_stream(chosen, RequestFlags(None, OUTLAST * slowness * count / rate, seed)).stream
        until_s = count / rate
    if asked.question.demand.users and not asked.question.demand.has_sessions:
        stream = replace(stream, warm_up_share=USERS_WARM_UP)
    if slowness != 1.0:
        requests, crowd = stream.requests, stream.crowd
        if requests is not None and requests.arrival_s is not None:
            requests = replace(requests, arrival_s=requests.arrival_s / slowness)
        if crowd is not None:
            crowd = sooner(crowd, slowness)
        ends = {name: getattr(stream, name) / slowness for name in ("warm_up_s", "load_ends_s")}
        stream = replace(stream, requests=requests, crowd=crowd, **ends)
    return run_fleet(
        replica_of(sampled.spec),
        stream,
        operation,
        replicas=chosen.replicas,
        slo=asked.scenario.slo,
        until_s=until_s,
        use=use,
    )


def _as_slow(asked: AskedFleet, plan: Plan, slowness: float) -> Plan:
    """Return a plan whose response times are those of slower replicas: users send the next turn of a session after them."""
    busy = plan.single.busy_replicas
    trial = trial_of(asked.question, plan.single.layout, terms_of(asked))
    assert not isinstance(trial, Reason)
    waits = tuple(slowness * response_s for response_s in trial.fleet(busy, slowness).responses_s)
    return replace(plan, class_e2e_mean_s=waits)


def sooner(crowd: ClosedLoopUsers, factor: float) -> ClosedLoopUsers:
    """Return users who think for a part of their time."""
    visits = crowd.visits and replace(crowd.visits, wait_s=crowd.visits.wait_s / factor)
    return replace(crowd, think_s=None if crowd.think_s is None else crowd.think_s / factor, visits=visits)


def excess(
    asked: AskedFleet, plan: Plan, seed: int, slowness: float = 1.0, *, lengthened: int = 1, alone: str = ""
) -> tuple[float, str]:
    """Return the largest ratio of a target's value to its limit, and the words of it; `alone`: of this target only.

    In a lengthened run no target holds while a queue grows.
    """
    outcome = simulated(asked, plan, seed, slowness, lengthened=lengthened)
    if lengthened > 1 and not asked.question.demand.users:
        columns = outcome.requests.columns
        order = columns["arrival_s"].argsort()
        arrival_s, e2e_s = (columns[name][order] for name in ("arrival_s", "e2e_s"))
        if not is_steady(arrival_s, arrival_s + e2e_s):
            return inf, "a queue"
    ratios = [
        (outcome.value(target) * slowness / target.limit_s, target.key)
        for target in asked.scenario.slo.targets
        if alone in ("", target.key)
    ]
    return max(ratios, default=(0.0, "no target"))


def least_excess(
    asked: AskedFleet, plan: Plan, seeds: Sequence[int], slowness: float = 1.0, *, alone: str = ""
) -> tuple[float, str]:
    """Return the least of the largest ratios of some runs; runs after the first one that meets its targets are not made."""
    found = []
    for seed in seeds:
        found.append(excess(asked, plan, seed, slowness, alone=alone))
        if found[-1][0] <= NOISE:
            break
    return min(found)


def best_plans(answer: FleetAnswer) -> list[Plan]:
    """Return the recommended plan and the cheapest of each device."""
    first: dict[str, Plan] = {}
    for plan in answer.plans:
        first.setdefault(plan.hardware, plan)
    plans = [*([answer.chosen] if answer.chosen else ()), *first.values()]
    return [plan for at, plan in enumerate(plans) if plan not in plans[:at]]


def called(plan: Plan) -> str:
    """Return a plan in words."""
    if not plan.has_pools:
        return f"{plan.replicas} x {plan.hardware} {plan.single.layout.in_words()}"
    return " + ".join(str(group.replicas) for group in plan.groups) + f" x {plan.hardware}"


def met_in_simulation(asked: AskedFleet, answer: FleetAnswer, seed: int) -> list[Broken]:
    """Hold that what a plan says it meets is met by all of its replicas, as predicted and as slow as its certainty says."""
    found = []
    for plan in best_plans(answer)[:2]:
        ratio, which = least_excess(asked, plan, (seed + 1000, seed + 2000))
        sure = plan.slo_met_probability
        if ratio > NOISE:
            found.append(
                Broken("met", f"{called(plan)}, {sure:.0%} sure: {which} is {ratio:.2f} of its limit")
            )
        if sure < asked.scenario.slo.confidence - 0.005:
            found.append(Broken("confidence", f"{called(plan)} is printed and only {sure:.0%} sure"))
        chances = plan.target_probabilities.values()
        if chances and not sum(chances) - len(chances) + 1.0 - 1e-9 <= sure <= min(chances) + 1e-9:
            found.append(Broken("chances", f"{called(plan)}: all targets {sure:.3f}, each {[*chances]}"))
        if not plan.has_pools:
            for target in asked.scenario.slo.targets:
                if 0.02 < plan.target_probabilities[target.key] < 0.98:
                    found += _certainty(asked, plan, seed, target)
    return found


def _certainty(asked: AskedFleet, plan: Plan, seed: int, target: Target) -> list[Broken]:
    """Hold that one target is met by replicas as slow as its probability says, and missed by slower ones."""
    trial = trial_of(asked.question, plan.single.layout, terms_of(asked))
    assert not isinstance(trial, Reason)
    slowness, sure = trial.slowness_of(target), plan.target_probabilities[target.key]
    slowest = slowness.quantile(sure)
    low = slowest / SLOW_NOISE
    high = max(slowest * SLOW_NOISE, slowness.quantile(min(sure + UNSURE, 0.99)))
    found = []
    held, which = least_excess(asked, plan, (seed + 3000, seed + 4000), low, alone=target.key)
    if held > NOISE:
        found.append(
            Broken("certainty", f"{called(plan)}: {which} is {held:.2f} at slowness {low:.2f}, and {sure:.0%} are sure of {slowest:.2f}")
        )  # fmt: skip
    missed, which = excess(asked, plan, seed + 3000, high, alone=target.key)
    if missed <= 1.0 / NOISE:
        missed, which = max((missed, which), excess(asked, plan, seed + 4000, high, alone=target.key))
    if missed <= 1.0 / NOISE:
        longer = excess(asked, plan, seed + 3000, high, lengthened=LENGTHENED, alone=target.key)
        missed, which = max((missed, which), longer)
    if missed <= 1.0 / NOISE:
        found.append(
            Broken("certainty", f"{called(plan)}: {which} is only {missed:.2f} at slowness {high:.2f}, where {slowest:.2f} is said to be the most")
        )  # fmt: skip
    return found


def at_most_linear(text: str, answer: FleetAnswer, random: Random) -> list[Broken]:
    """Hold that k copies of a plan, spares included, carry k times the load: of the cheapest one, and of a recommended one that is as sure."""
    copies = random.choice([2, 3])
    if answer.chosen is None:
        return []
    more = fleet_for(asked_in(times(text, copies)))
    pairs = [(answer.plans[0], more.plans[0] if more.plans else None)]
    if more.chosen and more.chosen.slo_met_probability <= answer.chosen.slo_met_probability + SURER:
        pairs.append((answer.chosen, more.chosen))
    for plan, larger in pairs:
        once = copies * cost_of(plan)
        slack = POOLS_SLACK if plan.has_pools or (larger and larger.has_pools) else 0.0
        if larger is None or cost_of(larger) > once * (1.0 + slack + 1e-9):
            said = "no plan" if larger is None else f"${cost_of(larger):.2f} an hour ({called(larger)})"
            return [Broken("linear", f"{copies} times the load: {said}, and {copies} copies of {called(plan)} ${once:.2f}")]  # fmt: skip
    return []


def times(text: str, copies: int) -> str:
    """Return a scenario with some times its traffic and its spares."""
    import yaml

    said = yaml.safe_load(text)
    for item in said["traffic"]:
        for key in ("users", "request_rate"):
            if key in item:
                number, *unit = str(item[key]).split()
                value = copies * float(number)
                item[key] = round(value) if key == "users" else " ".join([f"{value:.12g}", *unit])
    said["fleet"]["spare_replicas"] *= copies
    return yaml.safe_dump(said)


def alone_as_among(text: str, answer: FleetAnswer, random: Random) -> list[Broken]:
    """Hold that the best plan of one of the devices is the same without the others."""
    asked = asked_in(text)
    names = [device.name for device in asked.question.devices]
    if len(names) == 1:
        return []
    name = random.choice(names)
    fewer = [device for device in asked.question.devices if device.name == name]
    alone = fleet_for(replace(asked, question=replace(asked.question, devices=fewer)))
    mine = [_said(plan) for plan in answer.plans if plan.hardware == name][:1]
    its = [_said(plan) for plan in alone.plans if plan.hardware == name][:1]
    return [Broken("alone", f"{name}: {its} alone, {mine} among {names}")] if mine and mine != its else []


def same_after_another(text: str, answer: FleetAnswer, random: Random) -> list[Broken]:
    """Hold that a search that shares what another question found, as levers do, finds what it finds by itself."""
    shared = SearchCache()
    other = times(text, random.choice([2, 3]))
    fleet_for(replace(asked_in(other), cache=shared))
    again = fleet_for(replace(asked_in(text), cache=shared))
    mine, its = ([_said(plan) for plan in each.plans] for each in (answer, again))
    return [Broken("cache", f"{its} after another question, {mine} by itself")] if its != mine else []


def _said(plan: Plan) -> tuple[str, float, float]:
    return called(plan), cost_of(plan), round(plan.slo_met_probability, 6)


def one_peak(asked: AskedFleet, answer: FleetAnswer) -> list[Broken]:
    """Hold that the replicas of each group of the recommended plan together carry the peak of the answer."""
    plan = answer.chosen
    if plan is None:
        return []
    demand = planned_demand(asked.question.demand, plan.responses_s)
    carried = [group.busy_replicas * group.request_rate_per_replica for group in plan.groups]
    return [
        Broken("peak", f"{rate:.4g} req/s by replicas, {demand.peak_requests_per_s:.4g} by the demand")
        for rate in carried
        if abs(rate / demand.peak_requests_per_s - 1.0) > 1e-6
    ]


def one_ladder(answer: FleetAnswer) -> list[Broken]:
    """Hold that the cost of certainty grows with it, and that no listed plan nor next step is as sure for less."""
    rows = [row for row in answer.certainty if row.usd_per_month is not None]
    broken = [
        Broken(
            "ladder",
            f"{a.confidence:.0%} costs ${a.usd_per_month:.0f}, {b.confidence:.0%} ${b.usd_per_month:.0f}",
        )
        for a, b in pairwise(rows)
        if a.usd_per_month > b.usd_per_month * (1.0 + 1e-9)
    ]
    listed = [
        (plan.slo_met_probability, plan.usd_per_month, called(plan))
        for plan in answer.plans
        if plan.usd_per_month is not None
    ]
    steps = answer.next_steps.surer if answer.next_steps else ()
    listed += [
        (step.confidence, step.usd_per_month, "next step") for step in steps if step.usd_per_month is not None
    ]
    for row in rows:
        for probability, cost, name in listed:
            if probability >= row.confidence and cost < row.usd_per_month * (1.0 - 1e-9):
                broken.append(
                    Broken(
                        "ladder",
                        f"{row.confidence:.0%} for ${row.usd_per_month:.0f}, but {name} for ${cost:.0f}",
                    )
                )
    return broken


def laws(text: str, random: Random) -> list[Broken]:
    """Return the laws that a scenario breaks."""
    asked = asked_in(text)
    answer = fleet_for(asked)
    seed = random.randint(1, 10**6)
    return [
        *met_in_simulation(asked, answer, seed),
        *one_peak(asked, answer),
        *one_ladder(answer),
        *at_most_linear(text, answer, random),
        *alone_as_among(text, answer, random),
        *same_after_another(text, answer, random),
    ]


def asked_question(kind: str, number: int) -> tuple[str, Random]:
    """Return the scenario of a kind and a number, and the random state for its laws."""
    random = Random(f"{kind} {number}")
    return scenario_text(kind, random), random


def questions(seed: int, kind: str | None) -> Iterator[tuple[str, int]]:
    """Yield kinds and numbers without end, all kinds in turn or only one."""
    return ((each, number) for number in count(seed) for each in ([kind] if kind else KINDS))


if __name__ == "__main__":
    of_kind = (*KINDS, *SLOW_KINDS)
    sys.exit(
        laws_until_time_is_over(
            "answers", __doc__, of_kind, questions, lambda *of: laws(*asked_question(*of))
        )
    )
