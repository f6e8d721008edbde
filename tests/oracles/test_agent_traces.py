"""Recorded sessions of agents, in the forms that AIPerf publishes: turns, gaps, block reuse and sub-agents side by side."""

import json

import pytest

from capplan.errors import InputError
from capplan.recorded.traces.trace import format_of, read_trace, trace_file, workload_of
from tests.tables import table


def turn(at_s, tokens, ids, out=10, **more):
    return {"t": at_s, "type": "n", "in": tokens, "out": out, "hash_ids": ids, **more}


def weka(tmp_path, *sessions, **keys):
    path = tmp_path / "weka.jsonl"
    lines = [
        json.dumps({"id": str(n), "block_size": 64, "hash_id_scope": "local", **keys, "requests": own})
        for n, own in enumerate(sessions)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_turns_of_a_session_find_the_blocks_of_the_turn_before(tmp_path):
    path = weka(tmp_path, [turn(0.0, 128, [1, 2]), turn(30.0, 192, [1, 2, 3])], [turn(5.0, 64, [1])])
    trace = read_trace(path)
    assert (format_of(path), trace.block_tokens) == ("Weka", 64)
    assert trace.arrival_s.tolist() == [0.0, 5.0, 30.0]
    first, other, later = (trace.block_ids[a:b].tolist() for a, b in ((0, 2), (2, 3), (3, 6)))
    assert later[:2] == first
    assert other[0] not in first, "ids of another session are other blocks"
    shared = read_trace(weka(tmp_path, [turn(0.0, 64, [1])], [turn(1.0, 64, [1])], hash_id_scope="global"))
    assert shared.block_ids[0] == shared.block_ids[1]


@pytest.mark.parametrize("from_marker", [True, False])
def test_sub_agents_run_side_by_side_at_their_recorded_times(tmp_path, from_marker):
    """Published traces count the times of a sub-agent from its marker or from the start of the session."""
    base = 0.0 if from_marker else 20.0
    child = [turn(base + 1.0, 64, [9]), turn(base + 4.0, 64, [9])]
    path = weka(
        tmp_path,
        [
            turn(0.0, 64, [1]),
            {"t": 20.0, "type": "subagent", "requests": child},
            {"t": 20.0, "type": "subagent", "requests": child},
            turn(60.0, 64, [1]),
        ],
    )
    assert read_trace(path).arrival_s.tolist() == [0.0, 21.0, 21.0, 24.0, 24.0, 60.0]
    file = trace_file(path)
    assert sum(len(part) for part in file.parts()) == 6
    assert "2 sub-agents, at most 2 at the same time" in file.omissions.notes
    assert any(note.startswith("1 sessions of 6 turns") for note in file.omissions.notes)


def test_the_summary_of_a_session_has_its_reuse(tmp_path):
    ids = list(range(20))
    path = weka(tmp_path, [turn(10.0 * n, 64 * (n + 1), ids[: n + 1]) for n in range(20)])
    found = workload_of([path])
    assert found.requests == 20
    assert found.prefix.unlimited_hit_fraction == pytest.approx(190.0 / 210.0, rel=0.01)


def test_turns_with_a_delay_follow_the_turn_before_them(tmp_path):
    path = tmp_path / "sessions.jsonl"
    rows = [
        {"session_id": "a", "timestamp": 0, "input_length": 512, "output_length": 5, "hash_ids": [1]},
        {"session_id": "b", "timestamp": 1000, "input_length": 512, "output_length": 5, "hash_ids": [1]},
        {"session_id": "a", "delay": 2500, "input_length": 1024, "output_length": 5, "hash_ids": [1, 2]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert read_trace(path).arrival_s.tolist() == [0.0, 1.0, 2.5]


@table
def test_a_session_without_its_keys_is_refused(tmp_path, broken):
    path = tmp_path / "weka.jsonl"
    path.write_text(json.dumps({"block_size": 64, "requests": [], **broken}) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="block_size"):
        read_trace(path)


def test_numbers_beyond_reason_drop_their_request_and_many_sub_agents_take_no_time(tmp_path):
    """Ten thousand sub-agents of one session, each at work for a second, begin every half second: three overlap."""
    agents = [
        {"t": 0.5 * n, "type": "subagent", "requests": [turn(0.5 * n, 64, [1]), turn(0.5 * n + 1.0, 64, [1])]}
        for n in range(10_000)
    ]
    file = trace_file(
        weka(tmp_path, [turn(0.0, 64, [1]), turn(10**400, 64, [1]), turn(0.0, 10**400, [1]), *agents])
    )
    assert sum(len(part) for part in file.parts()) == 20_001
    assert "10,000 sub-agents, at most 3 at the same time" in file.omissions.notes
