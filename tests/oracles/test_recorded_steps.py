"""The simulator takes the steps that a running engine took, recorded batch by batch.

vLLM 0.32.0 and llama.cpp's server (`slots-...`) on a processor (`make live`), vLLM 0.20.2 on an H100.
"""

from pathlib import Path

import pytest

from calibrate.live.simulated_steps import agreement, recorded_load
from calibrate.live.step_logs import read_packed
from capplan.serving.simulator import simulate

RUNS = sorted((Path(__file__).parents[1] / "data" / "steps").glob("*.json.gz"))


def name_of(path: Path) -> str:
    return path.name.removesuffix(".json.gz")


@pytest.mark.parametrize("path", RUNS, ids=name_of)
def test_each_recorded_step_has_the_same_prompts_decodes_and_preemptions(path: Path) -> None:
    result = agreement(read_packed(path))
    assert result.exact, result


@pytest.mark.parametrize("path", RUNS, ids=name_of)
def test_the_compiled_core_takes_as_many_steps_tokens_and_preemptions(path: Path) -> None:
    log = read_packed(path)
    requests, engine, admission = recorded_load(log)
    outcome = simulate(requests, engine, admission=admission)
    assert outcome.steps == len(log.steps)
    assert outcome.preemptions == sum(len(step.preempted) for step in log.steps)
    assert outcome.prefill_tokens == sum(new for step in log.steps for _, new, _ in step.prompts)


def test_the_runs_hold_what_they_are_about() -> None:
    logs = {name_of(path): read_packed(path) for path in RUNS}
    assert len(logs) == 29
    preempted = {name: sum(len(step.preempted) for step in log.steps) for name, log in logs.items()}
    assert min(preempted[name] for name in ("small-cache", "small-cache-128", "asynchronous-small")) >= 10
    hits = {
        name: sum(before > 0 for step in log.steps for _, _, before in step.prompts)
        for name, log in logs.items()
    }
    caching = ("sessions", "shared-prefix", "slots-sessions", "slots-sessions-few", "slots-shared-prefix")
    assert min(hits[name] for name in caching) >= 50
    assert all(len(log.steps) > 300 for log in logs.values())
