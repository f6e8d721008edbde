"""Sessions of several turns: the lengths of their prompts, the blocks that a turn names, and hits that follow from their traffic."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engine.profile import Scheduling
from capplan.errors import InputError
from capplan.fleet.load.demand import demand_of
from capplan.fleet.load.offered import split_crowd
from capplan.fleet.load.session_load import offered_with_sessions, peak_stream, session_block_tokens
from capplan.fleet.search.layouts import search
from capplan.fleet.search.simulated_layout import demand_at_replica
from capplan.fleet.search.trial import Trial
from capplan.fleet.simulation import Stream, simulated_fleet
from capplan.recorded.traces.trace import read_trace
from capplan.replica.replica import replica_of
from capplan.scenario.drawn_workload import drawn_workload
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from capplan.scenario.scenario import read_scenario
from capplan.serving.block_cache import PrefixCaching
from capplan.serving.prefix_cache import hit_curve
from capplan.serving.requests import NO_REQUESTS, ClosedLoopUsers, Requests, Visits
from capplan.serving.simulator import simulate
from capplan.serving.step_table import StepTable
from capplan.serving.terms import EngineSetup
from capplan.workload.length import fixed
from capplan.workload.request_class import Slo
from capplan.workload.sessions import Sessions, drawn_turns, output_blocks, turn_blocks
from tests.asked import asked_of
from tests.constant_steps import constant_steps
from tests.files import written_to

FIXED = {"turns": 10, "input_tokens": 1600, "added_tokens": 320, "output_tokens": 160, "think_time": "4 s"}


@pytest.fixture
def classes(tmp_path):
    """Return a scenario with this line of traffic, and others."""

    def read(*others, **traffic):
        path = tmp_path / "s.yaml"
        path.write_text(json.dumps({"name": "s", "model": "meta-llama/Llama-3.1-8B-Instruct", "traffic": [traffic, *others], "fleet": {"hardware": ["h100-sxm"]}}))  # fmt: skip
        return read_scenario(path)

    return read


@pytest.mark.parametrize("who", [{"users": 5}, {"request_rate": 5}])
def test_burstiness_is_rejected_where_requests_follow_responses(classes, who):
    """It changed nothing there, and was named as the way to replace an assumption."""
    with pytest.raises(InputError, match=r"traffic\[0\]\.arrival_cv: says how requests arrive by themselves"):
        classes(arrival_cv=2, **who, **FIXED)
    words = [line.what for line in classes(**who, **FIXED).assumptions]
    assert not any("arrivals are a Poisson process" in text for text in words)
    assert any("plans take turns for a Poisson process" in text for text in words) == ("users" not in who)


def test_users_without_turns_have_no_burstiness_either(classes):
    line = {"users": 5, "think_time": "4 s", "input_tokens": 900, "output_tokens": 90}
    with pytest.raises(InputError, match="those of users follow responses and think times"):
        classes(arrival_cv=2, **line)
    assert not any("Poisson" in said.what for said in classes(**line).assumptions)


@given(n=st.integers(1, 12), f=st.integers(1, 300), a=st.integers(1, 40), o=st.integers(1, 40))
def test_prompts_of_fixed_sessions_are_an_arithmetic_series(n, f, a, o):
    """Sum of a series: f + (n - 1) / 2 (a + o) in the mean; whatever was said before is at the start of the next prompt."""
    turns = drawn_turns(Sessions(fixed(n), fixed(f), fixed(a), fixed(o), 1.0), 3, np.random.default_rng(1))
    assert turns.input_tokens.mean() == pytest.approx(f + (n - 1) / 2 * (a + o))
    blocks = turn_blocks(turns, 0, 1)
    curve = hit_curve(blocks.prompt_ids, blocks.prompt_counts, block_tokens=1)
    again = sum(f + (k - 1) * (a + o) for k in range(1, n))
    assert float(curve.hit_fraction(np.inf)) * turns.input_tokens.sum() / 3 == pytest.approx(again)


def test_blocks_of_a_response_are_those_of_the_next_prompt():
    turns = drawn_turns(
        Sessions(fixed(3), fixed(40), fixed(20), fixed(30), 1.0, 16), 2, np.random.default_rng(1)
    )
    blocks = turn_blocks(turns, 16, 8)
    prompts = np.split(blocks.prompt_ids, np.cumsum(blocks.prompt_counts)[:-1])
    outputs = np.split(blocks.output_ids, np.cumsum(blocks.output_counts)[:-1])
    for row in (0, 1, 3, 4):
        said = [*prompts[row], *outputs[row]]
        assert list(prompts[row + 1][: len(said)]) == said
    assert set(prompts[2]) & set(prompts[5]) == {0, 1}


def test_hits_are_those_of_the_draw_where_everything_fits_and_fewer_under_load(classes):
    demand = demand_of(classes(request_rate=5, **FIXED))
    prompts = [1600 + 480 * turn for turn in range(10)]
    found = sum(prompt + 160 for prompt in prompts[:-1]) / sum(prompts)
    (plenty,) = demand.with_cache(1e12).hit_fractions
    assert plenty == pytest.approx(found, abs=0.01)
    by_load = [demand.with_cache(2e5, (), share).hit_fractions[0] for share in (0.01, 0.5, 1.0, 5.0, 50.0)]
    assert by_load == sorted(by_load, reverse=True)
    assert by_load[0] == plenty
    assert by_load[-1] < 0.2
    by_cache = [demand.with_cache(tokens, (), 10.0).hit_fractions[0] for tokens in (1e4, 3e5, 1e6, 1e7)]
    assert by_cache == sorted(by_cache)


def test_longer_think_times_leave_fewer_hits_and_users_as_many(classes):
    """Sessions in flight grow with the think time; users are as many whatever they think, and think as long as a cache keeps what they said."""

    def hits(share, **traffic):
        return demand_of(classes(**FIXED | traffic)).with_cache(3e5, (), share).hit_fractions[0]

    assert hits(1.0, request_rate=5, think_time="40 s") < hits(1.0, request_rate=5, think_time="4 s")
    assert hits(1.0, users=60, think_time="40 s") == hits(1.0, users=60, think_time="4 s")
    assert hits(0.3, users=200) == hits(1.0, users=60)


def test_requests_that_nobody_repeats_take_room_in_the_cache_too(classes):
    """Sessions next to other requests found as much as without them, in the plan and in the simulation."""
    other = {"name": "o", "request_rate": 6, "input_tokens": 3000, "output_tokens": 9}
    flags = ServingFlags(gpu_memory_utilization=0.9, max_model_len=8192, offline=True)
    replica = replica_of(asked_replica("llama-3.1-8b", "h100-sxm", flags).spec)
    planned, simulated = [], []
    for others, waits in (((), (1.5,)), ((other,), (2.8, 0.4))):
        demand = demand_of(classes(*others, name="s", request_rate=4, **FIXED | {"think_time": "12 s"}))
        offered = offered_with_sessions(demand, seconds=400.0, seed=3, longest=8192, response_s=waits)
        names = tuple(item.name for item in demand.classes)
        stream = Stream(
            offered.requests, names, session_block_tokens(demand), crowd=offered.crowd, warm_up_share=0.3
        )
        outcome = simulated_fleet(replica, stream, slo=Slo())
        simulated.append(outcome.classes["s"].prefix_hit_fraction)
        responses_s = tuple(outcome.classes[name].e2e_s.mean for name in names)
        planned.append(demand_at_replica(demand, replica, 1.0, responses_s).hit_fractions[0])
    assert planned[1] < 0.8 * planned[0]
    assert planned == pytest.approx(simulated, abs=0.05)


def test_one_turn_changes_nothing(classes):
    """A session of one turn is a request: the same classes, and no hits."""
    plain = {key: FIXED[key] for key in ("input_tokens", "output_tokens")}
    one, none = classes(request_rate=5, **FIXED | {"turns": 1}), classes(request_rate=5, **plain)
    assert one.classes == none.classes
    assert not demand_of(one).reuses


@pytest.mark.parametrize(("memory", "least", "most"), [(0.9, 0.8, 0.95), (0.4, 0.2, 0.8)])
def test_the_hits_of_a_plan_are_those_of_a_block_by_block_simulation(classes, memory, least, most):
    """The curve with the sessions in flight at one replica, against an engine that pins, keeps and evicts blocks."""
    scenario = classes(request_rate=4, **FIXED | {"think_time": "12 s"})
    flags = ServingFlags(gpu_memory_utilization=memory, max_model_len=8192, offline=True)
    replica = replica_of(asked_replica("llama-3.1-8b", "h100-sxm", flags).spec)
    demand = demand_of(scenario)
    offered = offered_with_sessions(demand, seconds=400.0, seed=3, longest=8192, response_s=1.5)
    outcome = simulated_fleet(
        replica, Stream(None, ("requests",), session_block_tokens(demand), crowd=offered.crowd), slo=Slo()
    )
    (expected,) = demand_at_replica(demand, replica, 1.0, outcome.all.e2e_s.mean).hit_fractions
    assert least < outcome.all.prefix_hit_fraction < most
    assert expected == pytest.approx(outcome.all.prefix_hit_fraction, abs=0.08)


@pytest.mark.parametrize(
    ("users", "think"), [(45, "8 s"), (60, "4 s"), (60, "8 s"), (75, "8 s"), (90, "4 s")]
)
def test_users_who_wait_for_responses_leave_less_of_the_cache_to_those_who_think(classes, users, think):
    """Prompts of users who wait stay in the cache: 60 users have 43 % hits, 90 have 6 %; without that they would have 59 % and 40 %."""
    flags = ServingFlags(gpu_memory_utilization=0.5, max_model_len=8192, offline=True)
    replica = replica_of(asked_replica("llama-3.1-8b", "h100-sxm", flags).spec)
    demand = demand_of(classes(users=users, **FIXED | {"think_time": think}))
    offered = offered_with_sessions(demand, seconds=200.0, seed=3, longest=8192, response_s=6.0)
    stream = Stream(None, ("requests",), session_block_tokens(demand), crowd=offered.crowd, warm_up_share=0.3)
    outcome = simulated_fleet(replica, stream, slo=Slo())
    response_s, found = outcome.all.e2e_s.mean, outcome.all.prefix_hit_fraction
    (expected,) = demand_at_replica(demand, replica, 1.0, response_s).hit_fractions
    assert expected == pytest.approx(found, abs=0.08)


@pytest.mark.long
def test_drawn_traffic_keeps_its_rate_and_summarises_like_a_trace(classes, tmp_path):
    scenario = classes(request_rate=20, **FIXED | {"turns": {"mean": 6, "p95": 12}})
    summary = drawn_workload(tmp_path / "s.yaml")
    assert summary.rate.mean == pytest.approx(20, rel=0.06)
    assert summary.input_tokens.mean == pytest.approx(scenario.classes[0].input_tokens.mean_tokens, rel=0.06)
    assert summary.prefix is not None
    assert summary.prefix.unlimited_token_hit_fraction > 0.6


def test_the_shipped_sessions_are_read():
    (coding,) = read_scenario(Path(__file__).parents[2] / "scenarios" / "agent-sessions.yaml").classes
    assert coding.sessions is not None
    assert coding.requests_per_conversation == pytest.approx(12, rel=0.01)
    assert coding.reuse.unlimited_token_hit_fraction > 0.85


@pytest.mark.parametrize("replicas", [1, 2])
def test_users_wait_for_the_response_to_each_turn_before_they_think(classes, replicas):
    """A turn used to follow the mean response: load piled up where users would have waited, and TPOT p95 was 1.6 times that of the plan."""
    demand = demand_of(classes(users=replicas, **FIXED | {"think_time": "2 s"}))
    flags = ServingFlags(max_model_len=8192, offline=True)
    replica = replica_of(asked_replica("llama-3.1-8b", "h100-sxm", flags).spec)
    offered = offered_with_sessions(demand, seconds=300.0, seed=3, longest=8192, response_s=1.5)
    assert offered.requests is None
    assert offered.crowd.users == replicas
    stream = Stream(None, ("requests",), session_block_tokens(demand), crowd=offered.crowd)
    outcome = simulated_fleet(replica, stream, replicas=replicas, slo=Slo())
    assert len(outcome.parts) == replicas
    for part in outcome.parts:
        order = np.argsort(part.arrival_s)
        ends = (part.arrival_s + part.e2e_s)[order]
        assert np.all(part.arrival_s[order][1:] >= ends[:-1])
        prompts = part.input_tokens[order]
        assert np.all(
            (np.diff(prompts) > 0) | (prompts[1:] == 1600)
        )  # the next turn of a session, or the first of another
    assert outcome.all.prefix_hit_fraction > 0.8


def test_turns_wait_for_the_response_before_them_at_the_replica_of_their_session(classes):
    """Turns followed the mean response: load piled up where sessions would have waited, and TPOT was up to a fifth over the plan."""
    demand = demand_of(classes(request_rate=4, **FIXED | {"think_time": "2 s"}))
    flags = ServingFlags(max_model_len=8192, offline=True)
    replica = replica_of(asked_replica("llama-3.1-8b", "h100-sxm", flags).spec)
    offered = offered_with_sessions(demand, seconds=200.0, seed=3, longest=8192, response_s=1.5)
    visits = offered.crowd.visits
    assert offered.requests is None
    parts = split_crowd(offered.crowd, 2)
    assert sum(part.visits.turns.size for part in parts) == visits.turns.size
    for part in parts:
        outcome = simulate(None, replica.engine, crowd=part)
        prompts, first = part.visits.requests.input_tokens, np.append(0, np.cumsum(part.visits.turns)[:-1])
        sent = {
            (begin_s, prompt)
            for begin_s, prompt in zip(part.visits.wait_s[first], prompts[first], strict=True)
        }
        seen = set(zip(outcome.arrival_s.tolist(), outcome.input_tokens.tolist(), strict=True))
        assert {(round(at, 6), prompt) for at, prompt in sent} <= {
            (round(at, 6), prompt) for at, prompt in seen
        }
        assert outcome.arrival_s.size == len(prompts)
    alone = visits.of(np.array([int(visits.turns.argmax())]))
    outcome = simulate(None, replica.engine, crowd=ClosedLoopUsers(NO_REQUESTS, 0, visits=alone))
    waited = outcome.arrival_s - np.append(0.0, (outcome.arrival_s + outcome.e2e_s)[:-1])
    assert waited == pytest.approx(alone.wait_s)


def test_turns_that_wait_are_as_many_in_flight_as_a_product_form_says():
    """Baskett et al. 1975: p(n) ~ prod r W s(i) / i for turns at a rate r, of W steps that take s(n) with n of them in flight; so plans draw a Poisson process."""
    step_s, rise_s, steps, rate, think_s, turns, sessions = 0.01, 0.002, 200, 1.5, 20.0, 10, 40_000
    knots, one = np.array([0.0, 1000.0]), np.array([1.0])
    times = step_s + rise_s * knots
    table = StepTable(
        knots, times, 0.0 * knots, one, np.zeros((2, 1)), knots, times, one, one, np.zeros((1, 1))
    )
    engine = EngineSetup(table, Scheduling("mixed", 400, 100_000), kv_blocks=10**6)
    flights = np.arange(1, 400)
    weights = np.append(1.0, np.cumprod(rate * steps * (step_s + rise_s * flights) / flights))
    expected_s = float(weights @ np.append(0, flights) / weights.sum()) / rate
    rng, ones = np.random.default_rng(5), np.ones(sessions * turns, dtype=np.int64)
    wait_s = rng.exponential(think_s, ones.size)
    wait_s[::turns] = np.cumsum(rng.exponential(turns / rate, sessions))
    visits = Visits(Requests(ones, steps * ones), np.full(sessions, turns), wait_s)
    came_s = np.cumsum(rng.exponential(1.0 / rate, ones.size))
    waiting = simulate(None, engine, crowd=ClosedLoopUsers(NO_REQUESTS, 0, visits=visits))
    poisson = simulate(Requests(ones, steps * ones, came_s), engine)
    follows = wait_s + expected_s
    follows[::turns] = wait_s[::turns]
    sent_s = np.sort(follows.reshape(sessions, turns).cumsum(axis=1).ravel())
    timed = simulate(Requests(ones, steps * ones, sent_s), engine)
    load_s = wait_s[::turns].max()
    seen = [
        outcome.e2e_s[(outcome.arrival_s > 500.0) & (outcome.arrival_s < load_s)].mean() / expected_s
        for outcome in (waiting, poisson, timed)
    ]
    assert seen[:2] == pytest.approx([1.0, 1.0], abs=0.02)
    assert seen[2] > 1.03  # as if nobody waited


FEW = """name: few
model: llama-3.1-8b
traffic: [{name: s, request_rate: 0.5 req/s, turns: {mean: 12, p95: 30}, think_time: 10 s, input_tokens: 4000, added_tokens: 500,
           output_tokens: {mean: 300, p95: 600}}]
slo: {ttft_p95: 9 s, tpot_p95: 300 ms, confidence: 50 %}
fleet: {hardware: [l40s], tensor_parallel: [1], pipeline_parallel: 1, headroom: 0 %, spare_replicas: 0}
"""


@pytest.mark.long
def test_a_replica_that_does_not_recover_from_a_surge_of_sessions_is_not_planned(tmp_path):
    """Eleven sessions in the mean fill 60 % of a cache, and at times all of it: prompts are then computed again, responses take longer, and more sessions come."""
    question = asked_of(written_to(tmp_path / "few.yaml", FEW)).question
    (layout,) = search(question).candidates
    trial = Trial(layout, question, {})
    assert trial.with_hits(1.0, trial.responses_s).hit_fractions[0] > 0.9
    demand = trial.with_hits(1.0, trial.responses_s)
    stream = peak_stream(
        demand, replicas=1, seed=1, longest=question.max_model_len, response_s=12.0, routing=None
    )
    assert simulated_fleet(trial.replica, stream, slo=question.slo).all.ttft_s.mean > 3.0
    assert trial.fleet(1).ttft_s.mean > 3.0
    stream = peak_stream(
        demand, replicas=2, seed=1, longest=question.max_model_len, response_s=9.0, routing=None
    )
    seen, planned = simulated_fleet(trial.replica, stream, replicas=2, slo=question.slo).all, trial.fleet(2)
    assert planned.steady
    assert [seen.ttft_s.mean, seen.tpot_s.mean] == pytest.approx(
        [planned.ttft_s.mean, planned.tpot_s.mean], rel=0.05
    )


TABLE = constant_steps(0.01, 0.02)
BLOCK = 16


def chats(seed, people, turns):
    """Rows of a chat trace in which every prompt is all that was said before and something new; times are far apart."""
    rng = np.random.default_rng(seed)
    said = dict.fromkeys(range(people), 0)
    shared = int(rng.integers(0, 5)) * BLOCK
    rows = []
    for turn in range(turns):
        for person in range(people):
            prompt = (
                said[person] + int(rng.integers(1 + BLOCK * (turn == 0), 200)) + (shared if turn == 0 else 0)
            )
            answer = int(rng.integers(1, 150))
            system = [10**6 + place for place in range(shared // BLOCK)]
            own = [1000 * (person + 1) + place for place in range(len(system), -(-prompt // BLOCK))]
            rows.append((prompt, answer, [*system, *own]))
            said[person] = prompt + answer
    return rows


def columns(rows, gap_s=100.0):
    whole = [ids[: prompt // BLOCK] for prompt, _, ids in rows]
    prompts = np.array([prompt for prompt, _, _ in rows])
    outputs = np.array([answer for _, answer, _ in rows])
    counts = np.array([len(ids) for ids in whole])
    ids = np.array([block for own in whole for block in own], dtype=np.int64)
    return ids, counts, prompts, outputs, np.arange(len(rows)) * gap_s


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), people=st.integers(1, 4), turns=st.integers(1, 4))
def test_only_what_is_new_is_worked_on(seed: int, people: int, turns: int) -> None:
    """In a large cache a turn finds all whole blocks of the turn before and of its answer, and the system prompt."""
    rows = chats(seed, people, turns)
    ids, counts, prompts, outputs, arrival = columns(rows)
    answers, output_counts = output_blocks(ids, counts, prompts, outputs, BLOCK)
    requests = Requests(
        prompts,
        outputs,
        arrival,
        block_ids=ids,
        block_counts=counts,
        output_ids=answers,
        output_counts=output_counts,
    )
    outcome = simulate(
        requests, EngineSetup(TABLE, Scheduling("mixed", 4, 4096), 10**5, caching=PrefixCaching(BLOCK))
    )
    found, known = 0, set()
    for row, (prompt, _, blocks) in enumerate(rows):
        own = blocks[: prompt // BLOCK]
        before = row - people
        if before >= 0:
            have = (rows[before][0] + rows[before][1]) // BLOCK
            known.update(own[:have])
        lead = next((place for place, block in enumerate(own) if block not in known), len(own))
        found += min(lead * BLOCK, prompt - 1)
        known.update(own)
    assert outcome.cached_tokens == found


FORKED = [
    (48, 40, [1, 2, 3]),
    (64, 40, [1, 2, 9, 10]),
    (64, 10, [1, 2, 3, 4]),
    (112, 10, [1, 2, 3, 5, 6, 7, 8]),
]
SHORT = [(40, 5, [1, 2, 3]), (47, 40, [1, 2, 3]), (100, 1, [1, 2, 4, 5, 6, 7, 8])]


@pytest.mark.parametrize(
    ("rows", "counts", "ids"), [(FORKED, [2, 0, 0, 0], [5, 6]), (SHORT, [0, 3, 0], [4, 5, 6])]
)
def test_the_next_turn_is_the_one_that_goes_on_also_after_one_that_completes_no_block(rows, counts, ids):
    """Not another chat with the same system prompt, nor a prompt that is too short to hold the answer; of a short answer to a short
    question the turn after the next knows it."""
    named, lengths, prompts, outputs, _ = columns(rows)
    found, each = output_blocks(named, lengths, prompts, outputs, BLOCK)
    assert each.tolist() == counts
    assert found.tolist() == ids


def test_a_trace_of_small_blocks_is_read_with_its_answers_and_one_of_large_blocks_without(tmp_path):
    """A prompt that ends within 512 tokens of its last name could go on in many ways."""
    rows = chats(3, 3, 3)
    small = tmp_path / "small.jsonl"
    lines = [
        {"timestamp": 10.5 * place, "chat_id": place, "input_length": p, "output_length": o, "hash_ids": ids}
        for place, (p, o, ids) in enumerate(rows)
    ]
    small.write_text("".join(json.dumps(line) + "\n" for line in lines))
    requests = read_trace(small).requests()
    assert requests.output_ids is not None
    assert int(requests.output_counts.sum()) == requests.output_ids.size > 0
    part = requests.at(np.arange(3, 9))
    assert part.output_ids.tolist() == requests.output_ids[int(requests.output_counts[:3].sum()) :].tolist()
    assert requests.between(3, 9).output_ids.tolist() == part.output_ids.tolist()
    large = tmp_path / "large.jsonl"
    lines = [
        {
            "timestamp": 1000 * place,
            "input_length": 512 * (place + 1),
            "output_length": 600,
            "hash_ids": list(range(place + 1)),
        }
        for place in range(6)
    ]
    large.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_trace(large).requests().output_ids is None
