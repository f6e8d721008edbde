"""Schedulers, offload tiers, speculation, priorities and deadlines of `capplan simulate`."""

import json
from dataclasses import replace

import numpy as np
import pytest

from capplan.cli.main import main
from capplan.fleet.engine_options import EngineOptions, TierSize, offload_tier
from capplan.fleet.simulation import Stream, simulated_fleet
from capplan.questions.simulation import admission_of
from capplan.replica.replica import replica_of
from capplan.replica.speculation import DraftModel, speculating_replica, speculation
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from capplan.serving.requests import Admission, Requests
from capplan.serving.step_table import decode_step_s
from capplan.workload.request_class import Slo
from tests.files import written_to

SCENARIO = """
name: chat
model: llama-3.1-8b
max_num_seqs: 64
traffic:
  - {name: people, request_rate: 4 req/s, input_tokens: 800, output_tokens: 100}
fleet: {hardware: h100-sxm}
"""
PLAN = ["--hardware", "h100-sxm", "--replicas", "1", "--until", "30 s", "--format", "json"]


@pytest.fixture(scope="module")
def replica():
    spec = asked_replica("llama-3.1-8b", "h100-sxm", ServingFlags(max_model_len=8192, offline=True)).spec
    return replica_of(spec)


def simulated(capsys, folder, *flags, scenario=SCENARIO, plan=PLAN):
    path = written_to(folder / "chat.yaml", scenario)
    assert main(["simulate", str(path), *plan, *flags]) in (0, 4)
    return json.loads(capsys.readouterr().out)


def chat_trace(folder, chats=12, turns=5):
    """Conversations whose prompts grow by two blocks of 512 tokens each turn, one turn a minute."""
    lines, fresh = [], 0
    held = {chat: [] for chat in range(chats)}
    for turn in range(turns):
        for chat in range(chats):
            held[chat] += [fresh, fresh + 1]
            fresh += 2
            lines.append(
                {
                    "timestamp": 60_000 * turn + 4_000 * chat,
                    "input_length": 512 * len(held[chat]) + 10,
                    "output_length": 20,
                    "hash_ids": [*held[chat], 10**6 + fresh],
                }
            )
    path = written_to(folder / "chats.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_a_tier_holds_what_the_devices_have_no_room_for(tmp_path, capsys):
    """A small cache forgets a chat before its next turn; a host of 64 GB does not: all but new blocks are found."""
    small = SCENARIO + "gpu_memory_utilization: 0.255\nmax_num_batched_tokens: 2048\n"
    trace = ["--trace", chat_trace(tmp_path), "--until", "10 min"]
    alone = simulated(capsys, tmp_path, *trace, scenario=small)["result"]
    found = simulated(capsys, tmp_path, *trace, "--kv-offload", "host:64 GB", scenario=small)
    result = found["result"]
    assert list(alone["prefix_hit_fractions"]) == ["device"]
    assert list(result["prefix_hit_fractions"]) == ["device", "host"]
    assert sum(result["prefix_hit_fractions"].values()) == pytest.approx(result["prefix_hit_fraction"])
    # two thirds of all tokens are found, a third of those in the small cache of the device
    assert result["prefix_hit_fractions"]["host"] > 0.4
    reused = sum(1024 * turn for turn in range(5)) / sum(1024 * (turn + 1) + 10 for turn in range(5))
    assert result["prefix_hit_fraction"] == pytest.approx(reused, abs=1e-9)
    assert alone["prefix_hit_fraction"] < reused / 2
    assert result["ttft_s"]["mean"] < alone["ttft_s"]["mean"]
    assert any("offload tiers" in line["assumption"] for line in found["assumptions"])


def test_a_tier_in_the_scenario_is_a_tier_in_the_flags(tmp_path, capsys):
    trace = ["--trace", chat_trace(tmp_path), "--until", "10 min"]
    by_flag = simulated(capsys, tmp_path, *trace, "--kv-offload", "disk:1 TB@5 GB/s")
    said = SCENARIO + "kv_offload: [{name: disk, capacity: 1 TB, bandwidth: 5 GB/s}]\n"
    by_file = simulated(capsys, tmp_path, *trace, scenario=said)
    assert by_flag["result"] == by_file["result"]


def test_each_rank_loads_its_part_and_replicated_heads_again():
    """Llama-3.1-8B caches 128 KiB a token: 2 ranks over PCIe at 63 GB/s each load half of it side by side."""

    def load_s(model, tensor):
        spec = asked_replica(
            model, "h100-sxm", ServingFlags(tensor_parallel=tensor, max_model_len=4096, offline=True)
        ).spec
        return offload_tier(replica_of(spec), TierSize("host", 1e12), 16, 1000.0)

    one, two = load_s("llama-3.1-8b", 1), load_s("llama-3.1-8b", 2)
    assert one.load_s_per_block == pytest.approx(16 * 131072 / 63e9)
    assert two.load_s_per_block == pytest.approx(one.load_s_per_block / 2)
    assert one.capacity_blocks == two.capacity_blocks == int(1e12 / (16 * 131072))


def test_rounds_take_as_long_as_the_command_spec_says(replica):
    """A draft model on the same devices, at every batch and draft length: the same seconds by another way."""
    draft = DraftModel(
        asked_replica("llama-3.2-1b", "h100-sxm", ServingFlags(max_model_len=8192, offline=True)).spec
    )
    for length in (1, 4):
        rounds = speculating_replica(replica, draft, 0.7, length, 1000.0)
        for batch in (1, 8, 64):
            row = speculation(
                replica, draft, 0.7, draft_tokens=[length], batches=[batch], context_tokens=1024.0
            ).rows[0]
            found = float(decode_step_s(rounds.table, float(batch), 1024.0))
            assert found == pytest.approx(row["round_s"], rel=1e-3)
            assert rounds.tokens_per_step == pytest.approx(row["expected_tokens_per_round"])
        assert rounds.query_tokens == length + 1
        assert rounds.kv_blocks < replica.kv_blocks


def test_drafts_that_cost_nothing_and_are_not_made_change_nothing(replica):
    rounds = speculating_replica(replica, 0.0, 0.7, 0, 1000.0)
    assert rounds.tokens_per_step == 1.0
    for name in ("decode_s", "head_s", "decode_attention_s"):
        assert getattr(rounds.table, name) == pytest.approx(getattr(replica.table, name))


def test_the_speculation_of_a_scenario_is_that_of_the_flags(tmp_path, capsys):
    said = SCENARIO + "speculation: {draft_step_time: 1 ms, acceptance: 0.6, draft_tokens: 3}\n"
    flags = ["--draft-step-time", "1 ms", "--acceptance", "0.6", "--draft-tokens", "3"]
    by_file = simulated(capsys, tmp_path, scenario=said)["result"]
    assert by_file == simulated(capsys, tmp_path, *flags)["result"]
    over = simulated(capsys, tmp_path, "--acceptance", "0.9", scenario=said)["result"]
    assert over["tokens_per_step"] > by_file["tokens_per_step"]


def test_plans_are_sized_with_drafts_and_without_tiers_and_that_is_said(tmp_path, capsys):
    path = tmp_path / "chat.yaml"
    path.write_text(
        SCENARIO
        + "speculation: {draft_step_time: 1 ms, acceptance: 0.6, draft_tokens: 3}\nkv_offload: [{name: host, capacity: 1 TB}]\n"
    )
    assert main(["fleet", str(path), "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    warnings = printed["warnings"]
    assert printed["result"]["chosen"]["draft_tokens"] == 3
    assert not any("speculation" in line for line in warnings)
    assert any(line.startswith("kv_offload has no effect") for line in warnings)


def test_a_flag_holds_where_a_class_says_nothing(tmp_path):
    requests = Requests(np.array([10, 10]), np.array([2, 2]), np.array([0.0, 1.0]))
    stream = Stream(requests, ("people", "batch"))
    item = type("Class", (), {})
    people, batch = item(), item()
    people.name, people.deadline_s, people.priority = "people", None, None
    batch.name, batch.deadline_s, batch.priority = "batch", 3.0, 2
    assert admission_of(stream, 5, 9.0, [people, batch]).deadline_s == (9.0, 3.0)
    assert admission_of(stream, 5, None, [people, batch]).deadline_s == (np.inf, 3.0)
    assert admission_of(stream, 5, None, [people, batch]).priority == (0, 2)
    assert admission_of(stream, 5, None, []).priority == ()


def test_a_tier_that_nobody_knows_the_speed_of_is_refused(tmp_path, capplan):
    path = written_to(tmp_path / "chat.yaml", SCENARIO)
    trace = chat_trace(tmp_path)
    assert "its bandwidth to h100-sxm is not known" in capplan.refused(
        "simulate", path, *PLAN, "--trace", trace, "--kv-offload", "nvme:1 TB"
    )
    twice = ["--kv-offload", "host:1 TB", "--kv-offload", "host:2 TB"]
    assert "a different name" in capplan.refused("simulate", path, *PLAN, "--trace", trace, *twice)


def test_a_preempted_request_finds_its_own_blocks_again(replica):
    """In a cache that is too small some prompts are worked on twice; those that find their blocks are worked on less."""
    small = replace(replica, kv_blocks=400)
    rng = np.random.default_rng(5)
    requests = Requests(rng.integers(200, 900, 120), rng.integers(100, 600, 120), np.arange(120) * 0.05)
    stream = Stream(requests, ("chat",))
    plain = simulated_fleet(small, stream, slo=Slo())
    reused = simulated_fleet(small, stream, slo=Slo(), use=EngineOptions(reuse_preempted=True))
    assert plain.all.preemptions > 20
    assert plain.all.prefix_hit_fraction == 0.0
    assert reused.parts[0].cached_tokens > 0
    assert reused.parts[0].prefill_tokens < plain.parts[0].prefill_tokens
    assert reused.all.e2e_s.mean < plain.all.e2e_s.mean
    ample = simulated_fleet(replica, stream, slo=Slo(), use=EngineOptions(reuse_preempted=True))
    alone = simulated_fleet(replica, stream, slo=Slo())
    assert (ample.all.preemptions, ample.all.prefix_hit_fraction) == (0, 0.0)
    assert ample.all == alone.all


def test_a_rate_that_nobody_can_serve_is_said_before_the_run(tmp_path, capsys, monkeypatch):
    """The word comes first, then the requests; here the run is cut off, and the word has been said."""
    path = written_to(tmp_path / "chat.yaml", SCENARIO.replace("4 req/s", "4000 req/s"))

    def never(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("capplan.library.simulated_fleet.run_fleet", never)
    assert main(["simulate", str(path), *PLAN]) == 130
    said = capsys.readouterr().err
    assert "4e+03 req/s is" in said
    assert "--until '1 min'" in said


def test_hits_and_preemptions_of_the_classes_add_up(replica):
    """In a small cache, where those who matter go first and alone find their prefix."""
    rng = np.random.default_rng(2)
    count = 200
    of_class = np.arange(count) % 2
    requests = Requests(
        rng.integers(200, 900, count), rng.integers(100, 400, count), np.arange(count) * 0.04,
        cached_tokens=np.where(of_class == 0, 160, 0), class_index=of_class,
    )  # fmt: skip
    small = replace(replica, kv_blocks=500)
    admission = Admission(priority=(0, 1))
    found = simulated_fleet(
        small, Stream(requests, ("people", "batch")), replicas=2, slo=Slo(), admission=admission
    )
    people, batch = found.classes["people"], found.classes["batch"]
    assert people.preemptions + batch.preemptions == found.all.preemptions > 0
    assert (people.prefix_hit_fraction > 0.1, batch.prefix_hit_fraction) == (True, 0.0)
    assert people.prefix_hit_fraction > found.all.prefix_hit_fraction > 0.0
