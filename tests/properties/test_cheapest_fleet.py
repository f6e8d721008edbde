"""The cheapest fleet is the cheapest there is: laws of the search over random scenarios, and questions that it once got wrong."""

import os
from collections import Counter
from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from capplan.fleet.decision import fleet_decision
from capplan.fleet.search import layouts as screening
from capplan.fleet.search.cheapest import Search, Terms, busy_replicas, layout_name
from capplan.fleet.search.layouts import search
from capplan.fleet.search.load_scale import regularity_class
from capplan.fleet.search.search_cache import SearchCache
from capplan.fleet.search.trial import Trial
from capplan.money.order import Survival
from capplan.questions.fleet import terms_of
from capplan.workload.request_class import Slo
from tests.asked import asked_in
from tests.fuzz.answers import asked_question
from tests.shipped import price_by_hand
from tests.sweeps import examples

EXAMPLES = int(os.environ.get("CAPPLAN_LAWS", examples(8, 50)))
"""Random scenarios of each law; 500 of each were run when the search was written."""
LAW = settings(max_examples=EXAMPLES, deadline=None)
DEVICES = ("l40s", "a100-sxm-80gb", "h100-sxm", "b200")
PRICES = {"l40s": 1.0, "a100-sxm-80gb": 2.5, "h100-sxm": 4.0, "b200": 6.0}
REQUESTS = 1500
"""Of a run: a tenth of the usual, and still some seconds at the highest rates; users are few, so that each of them asks several times."""
RUNS = SearchCache()
"""Simulated for one search of a law and found again by the other: what is compared is how they search."""


@st.composite
def scenarios(draw, shortest=30, longest=6000):
    """Return the text of a scenario, its devices left open; prompts have from `shortest` to `longest` tokens on average."""
    prompt, answer = draw(st.integers(shortest, longest)), draw(st.integers(5, 900))
    spread = draw(st.sampled_from([1.0, 2.0, 3.5]))
    lengths = (
        f"{{mean: {prompt}}}" if spread == 1.0 else f"{{mean: {prompt}, p95: {int(spread * prompt)}}}",
        f"{{mean: {answer}}}" if spread == 1.0 else f"{{mean: {answer}, p95: {int(spread * answer)}}}",
    )
    traffic = f"- {{name: a, request_rate: {draw(st.floats(0.2, 300.0)):.3f} req/s, input_tokens: {lengths[0]}, output_tokens: {lengths[1]}, arrival_cv: {draw(st.sampled_from([0.5, 1.0, 2.5]))}}}"
    if draw(st.booleans()):
        traffic += f"\n  - {{name: u, users: {draw(st.integers(1, 60))}, think_time: {draw(st.sampled_from([0.01, 3, 60]))} s, input_tokens: {prompt}, output_tokens: {answer}}}"
    first = draw(st.floats(0.05, 1.0)) + prompt / 2000.0
    return f"""name: law
model: {draw(st.sampled_from(["llama-3.1-8b", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen3-30B-A3B"]))}
engine: {draw(st.sampled_from(["vllm", "vllm", "trtllm"]))}
traffic:
  {traffic}
slo: {{ttft_p95: {first:.3f} s, tpot_{draw(st.sampled_from(["mean", "p95"]))}: {draw(st.floats(8.0, 90.0)):.2f} ms, confidence: {draw(st.sampled_from([50, 80, 90]))} %}}
fleet: {{hardware: [{", ".join(DEVICES)}], tensor_parallel: [1, 2], pipeline_parallel: [1]}}
"""


@lru_cache(maxsize=256)
def question_of(text):
    return asked_in(text).question


def asked(text, devices=DEVICES, **changes):
    question = question_of(text)
    return replace(
        question,
        devices=[device for device in question.devices if device.name in devices],
        requests=REQUESTS,
        **changes,
    )


def terms(**changes):
    usual = {"headroom_fraction": 0.2, "survive": Survival("replica", 1)}
    return Terms(**{**usual, **changes}, prices={name: price_by_hand(usd) for name, usd in PRICES.items()})


def searching(question, rules):
    return Search(question, search(question).candidates, rules, RUNS)


def cost(question, rules=None):
    """Return dollars per hour of the cheapest fleet, infinite where there is none."""
    rules = rules or terms()
    best = searching(question, rules).cheapest(question.slo.confidence)
    return float("inf") if best is None else best.gpus * PRICES[best.trial.candidate.layout.device.name]


some_devices = st.lists(st.sampled_from(DEVICES), min_size=1, max_size=2, unique=True)


@pytest.mark.long
@LAW
@given(scenarios(), some_devices, st.floats(1.0, 3.0), st.floats(1.0, 3.0))
def test_looser_targets_never_cost_more(text, few, first, second):
    question = asked(text, few)
    looser = tuple(
        replace(target, limit_s=target.limit_s * factor)
        for target, factor in zip(question.slo.targets, (first, second), strict=True)
    )
    assert cost(replace(question, slo=replace(question.slo, targets=looser))) <= cost(question)
    surer = Slo(question.slo.targets, min(question.slo.confidence + 0.1, 0.95))
    if surer.confidence in screening.CONFIDENCES:
        assert cost(question) <= cost(replace(question, slo=surer))


@pytest.mark.long
@LAW
@given(scenarios(), some_devices, st.floats(0.05, 1.0))
def test_less_traffic_never_costs_more(text, few, part):
    question = asked(text, few)
    classes = tuple(
        replace(
            item,
            request_rate_per_s=item.request_rate_per_s and item.request_rate_per_s * part,
            users=item.users and item.users * part,
        )
        for item in question.demand.classes
    )
    less = replace(question, demand=replace(question.demand, classes=classes))
    assert cost(less) <= cost(question)


@pytest.mark.long
@LAW
@given(scenarios(), some_devices, st.floats(0.0, 0.6), st.integers(0, 2))
def test_less_headroom_and_fewer_spares_never_cost_more(text, few, headroom, spares):
    question = asked(text, few)
    generous = terms(headroom_fraction=headroom + 0.1, survive=Survival("replica", spares + 1))
    assert cost(question, terms(headroom_fraction=headroom, survive=Survival("replica", spares))) <= cost(
        question, generous
    )


ONE_USER = """name: law
model: Qwen/Qwen2.5-0.5B
engine: trtllm
traffic:
  - {name: a, request_rate: 98.000 req/s, input_tokens: {mean: 30}, output_tokens: {mean: 414}, arrival_cv: 2.5}
  - {name: u, users: 1, think_time: 3 s, input_tokens: 30, output_tokens: 414}
slo: {ttft_p95: 1.015 s, tpot_mean: 8.00 ms, confidence: 50 %}
fleet: {hardware: [l40s, a100-sxm-80gb, h100-sxm, b200], tensor_parallel: [1, 2], pipeline_parallel: [1]}
"""
"""Beside a hundred requests a second, whose only request in the run comes at its start."""


@LAW
@given(st.one_of(scenarios(), scenarios(6000, 36_000)), some_devices)
@example(ONE_USER, ["a100-sxm-80gb"])
@pytest.mark.long
def test_the_search_finds_what_trying_every_layout_to_the_end_finds(text, few):
    """With bounds so loose that nothing is left out by them."""
    question, rules = asked(text, few), terms()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(screening, "TARGET_SLACK", 50.0)
        patch.setattr(screening, "RATE_SLACK", 50.0)
        every = search(question).candidates
    costs = []
    for candidate in every:
        trial = Trial(candidate, question, {})
        busy = busy_replicas(trial, trial.limits, question.slo.confidence, rules)
        if busy is not None:
            gpus = rules.gpus(candidate.layout, busy)
            costs.append(gpus * PRICES[candidate.layout.device.name])
    assert cost(question, rules) == min(costs, default=float("inf"))


@pytest.mark.long
@LAW
@given(scenarios(), some_devices, st.integers(0, 99), st.floats(1.0, 1.5))
def test_neither_a_likely_layout_nor_a_limit_on_the_cost_changes_what_is_found(text, few, pick, extra):
    """The layout sized first may be any; all within a cost are those that trying every layout to the end finds there."""
    question, rules = asked(text, few), terms()
    found = searching(question, rules)
    assume(found.candidates)
    first = found.candidates[pick % len(found.candidates)]
    best = found.cheapest(question.slo.confidence, likely=layout_name(first.layout))
    cheapest = cost(question, rules)
    assume(best is not None)
    assert best.gpus * PRICES[best.trial.candidate.layout.device.name] == cheapest
    sizes = {}
    for candidate in found.candidates:
        trial = Trial(candidate, question, {})
        busy = busy_replicas(trial, trial.limits, question.slo.confidence, rules)
        gpus = 0 if busy is None else rules.gpus(candidate.layout, busy)
        if busy is not None and gpus * PRICES[candidate.layout.device.name] <= extra * cheapest:
            sizes[layout_name(candidate.layout)] = gpus
    within = found.within(extra * cheapest, question.slo.confidence)
    names = [item.trial.candidate.layout for item in within]
    assert {layout_name(name): item.gpus for name, item in zip(names, within, strict=True)} == sizes


@pytest.mark.long
@LAW
@given(scenarios(), some_devices)
def test_replicas_are_as_many_as_needed_and_not_one_more(text, few):
    """At the load of the plan all targets hold; with one replica fewer they do not, on the scale of loads.

    With users, of whom each replica has a whole number, the fleets of both sizes are simulated as they are.
    """
    question, rules = asked(text, few), terms(headroom_fraction=0.0)
    found = searching(question, rules)
    best = found.cheapest(question.slo.confidence)
    assume(best is not None)
    trial = best.trial

    def carries(replicas):
        if trial.demand.users:
            held = trial.meets(replicas, 1.0, trial.limits)
        else:
            limit = trial.limit(regularity_class(best.busy, trial.classes), 1.0, trial.limits)
            held = limit * replicas >= trial.total_rate * (1 - 1e-9)
        return held and trial.probability(replicas) >= question.slo.confidence

    assert carries(best.busy)
    if best.busy not in trial.classes:  # with one fewer than these, arrivals are less regular
        assert not carries(best.busy - 1)


def found_once(traffic, slo, model="llama-3.1-8b", engine="vllm"):
    return (
        f"name: law\nmodel: {model}\nengine: {engine}\ntraffic:\n{traffic}slo: {slo}\n"
        "fleet: {hardware: [l40s, a100-sxm-80gb, h100-sxm, b200], tensor_parallel: [1, 2], pipeline_parallel: [1]}\n"
    )


ONE_USER = """  - {name: a, request_rate: 249.479 req/s, input_tokens: {mean: 476}, output_tokens: {mean: 476}, arrival_cv: 0.5}
  - {name: u, users: 1, think_time: 0.01 s, input_tokens: 476, output_tokens: 476}
"""
SHORT_RUN = "  - {name: a, request_rate: 300.000 req/s, input_tokens: {mean: 30}, output_tokens: {mean: 299}, arrival_cv: 2.5}\n"
BURSTS = "  - {name: a, request_rate: %s req/s, input_tokens: {mean: %s}, output_tokens: {mean: %s}, arrival_cv: 2.5}\n"


@pytest.mark.long
@LAW
@given(scenarios())
@example(found_once(ONE_USER, "{ttft_p95: 0.501 s, tpot_mean: 38.16 ms, confidence: 80 %}"))
@example(found_once(BURSTS % (180, 34, 179), "{ttft_p95: 1.017 s, tpot_mean: 11.00 ms, confidence: 50 %}"))
@example(found_once(BURSTS % (278, 30, 176), "{ttft_p95: 1.015 s, tpot_mean: 17.00 ms, confidence: 80 %}"))
@example(
    found_once(
        SHORT_RUN, "{ttft_p95: 1.015 s, tpot_mean: 10.00 ms, confidence: 80 %}", "Qwen/Qwen2.5-0.5B", "trtllm"
    )
)
def test_choices_are_what_they_are_called(text):
    question = asked(text, ("h100-sxm", "b200"))
    answer = fleet_decision(question, terms())
    assume(answer.choices is not None)
    choices, costs = (
        answer.choices,
        [plan.gpus * PRICES[plan.single.layout.device.name] for plan in answer.plans],
    )
    assert costs == sorted(costs)
    cheapest = choices.cheapest.gpus * PRICES[choices.cheapest.single.layout.device.name]
    assert cheapest == costs[0]
    assert choices.fewest.gpus == min(plan.gpus for plan in answer.plans)
    surest = choices.surest.gpus * PRICES[choices.surest.single.layout.device.name]
    assert surest <= 1.25 * cheapest + 1e-9
    assert choices.surest.slo_met_probability >= choices.cheapest.slo_met_probability
    recommended = choices.recommended.gpus * PRICES[choices.recommended.single.layout.device.name]
    assert recommended == cheapest or (
        recommended < 1.05 * cheapest
        and choices.recommended.slo_met_probability >= choices.cheapest.slo_met_probability + 0.05
    )
    rows = [row for row in answer.certainty if row.gpus is not None]
    money = [row.gpus * PRICES[row.hardware] for row in rows]
    assert money == sorted(money)
    for row in answer.certainty:
        if row.confidence == question.slo.confidence:
            assert row.gpus * PRICES[row.hardware] == costs[0]


@pytest.mark.long
@LAW
@given(scenarios(), st.integers(0, 99))
def test_a_short_run_bounds_the_rate_of_a_full_one(text, pick):
    """Of one layout, as predicted and as slow as the confidence asks for; the bound decides which layouts are tried to the end."""
    question = replace(question_of(text), requests=15_000)
    found = sorted(search(question).candidates, key=lambda item: item.layout.device.name)
    assume(found)
    candidate = found[pick % len(found)]
    trial = Trial(candidate, question, {})
    for slowness in (1.0, *candidate.slowness.each(question.slo.confidence).values()):
        assert trial.limit(16, slowness, trial.limits) <= trial.rate_bound(slowness, trial.limits)


RUSHED = {
    # 3,000 requests a second of a small model: 1,500 of them end before the first responses do, so a queue seems to grow. In
    # an engine that launches quickly: the closed form waits for no launches.
    "a run as short as a response": """name: law
model: Qwen/Qwen2.5-0.5B
engine: trtllm
traffic:
  - {name: a, request_rate: 295 req/s, input_tokens: {mean: 349, p95: 1221}, output_tokens: {mean: 168, p95: 588}}
slo: {ttft_p95: 758 ms, tpot_p95: 47 ms}
fleet: {hardware: [b200], tensor_parallel: [1], pipeline_parallel: [1]}
""",
    # 500 users share 1,400 requests: their first rush, all at once, would decide about the largest rate.
    "users who ask too seldom in a short run": """name: law
model: llama-3.1-8b
traffic:
  - {name: a, request_rate: 0.5 req/s, input_tokens: 346, output_tokens: 223}
  - {name: u, users: 24, think_time: 3 s, input_tokens: 346, output_tokens: 223}
slo: {ttft_p95: 479 ms, tpot_p95: 66 ms, confidence: 50 %}
fleet: {hardware: [h100-sxm], tensor_parallel: [1], pipeline_parallel: [1]}
""",
}


@pytest.mark.parametrize("text", RUSHED.values(), ids=RUSHED)
def test_a_short_run_that_would_mislead_still_bounds_the_rate(text):
    question = replace(question_of(text), requests=15_000)
    trial = Trial(search(question).candidates[0], question, {})
    bound = trial.rate_bound(1.0, trial.limits)
    assert bound / 1.6 < trial.limit(16, 1.0, trial.limits) <= bound


CODER = """name: coder
model: Qwen/Qwen3-Coder-480B-A35B-Instruct
weight_dtype: fp8
kv_dtype: fp8
traffic:
  - {name: dev, users: 300, think_time: 25 s, turns: {mean: 20, p95: 50}, input_tokens: {mean: 12000, p95: 30000},
     added_tokens: {p50: 700, p95: 6000}, output_tokens: {mean: 350, p95: 1200}}
slo: {ttft_p95: 4 s, tpot_p95: 50 ms}
fleet: {hardware: [b200], tensor_parallel: [4, 8], pipeline_parallel: 1, data_parallel: 1}
"""


@pytest.mark.parametrize(
    "text", [CODER, asked_question("sessions", 1)[0], asked_question("session-users", 2)[0]]
)
def test_with_sessions_the_best_layout_is_the_least_of_all_that_are_sized(text):
    """Hits depend on the load, so bounds rest on the most hits that a layout may have."""
    asked = asked_in(text)
    question, terms, sure = asked.question, terms_of(asked), asked.question.slo.confidence
    layouts = search(question).candidates
    for device in question.devices:
        best = Search(question, layouts, terms).best_of(device.name, sure, Counter())
        each = Search(question, layouts, terms)
        sized = [each.sized(layout, sure) for layout in layouts if layout.layout.device.name == device.name]
        least = min((fleet.gpus for fleet in sized if fleet is not None), default=None)
        assert (None if best is None else best.gpus) == least


def test_more_replicas_than_users_are_not_judged_as_if_each_had_one():
    """Beside 17 requests a second there are 30 users: on 81 replicas most have none, and a replica with one is slower than all together."""
    text = """name: law
model: Qwen/Qwen3-32B
weight_dtype: fp8
traffic:
  - {name: u, users: 30, think_time: 0 s, input_tokens: 3981, output_tokens: 8}
  - {name: o, request_rate: 17.4 req/s, input_tokens: {mean: 3837, p95: 7674}, output_tokens: {mean: 17, p95: 51}}
slo: {ttft_p99: 6.555 s, tpot_p95: 22.58 ms, confidence: 95 %}
fleet: {hardware: [b200], tensor_parallel: [1], pipeline_parallel: 1}
"""
    question = replace(question_of(text), requests=15_000)
    trial = Trial(search(question).candidates[0], question, {})
    slower, total = trial.candidate.slowness.each(0.95)["ttft"], trial.total_rate
    needed = trial.replicas_for(total, slower, trial.limits)
    assert needed > 30
    assert trial.may_be_enough(total, slower, trial.limits, needed, short=True)
    assert total / trial.rate_bound(slower, trial.limits, total=total) <= needed
