"""The traffic of a scenario, drawn and summarised like a trace."""

from pathlib import Path

import numpy as np

from capplan.errors import InputError
from capplan.fleet.load.demand import demand_of
from capplan.fleet.load.session_load import offered_with_sessions, session_block_tokens
from capplan.readers.catalogue.models import read_model
from capplan.readers.catalogue.scenarios import shipped_scenarios
from capplan.readers.text_file import is_there
from capplan.recorded.traces.trace import trace_summary
from capplan.scenario.scenario import read_scenario
from capplan.scenario.several import refuse_several
from capplan.scenario.traffic_line import with_image_tokens
from capplan.scenario.workload_file import is_workload
from capplan.workload.statistics import Omissions, TracePart, WorkloadSummary

LEAST_REQUESTS, MOST_REQUESTS = 5_000, 50_000
SESSION_TIMES = 5.0
"""Time drawn over the mean time of a session, so that few of the sessions are cut at its start."""
_SEED = 0


def names_a_scenario(path: Path) -> bool:
    """Return whether a path is a YAML, or the name of a shipped scenario where no such file is.

    Examples
    --------
    >>> names_a_scenario(Path("agent-sessions")), names_a_scenario(Path("chat.yaml")), names_a_scenario(Path("log.csv"))
    (True, True, False)
    """
    return is_workload(path.name) or (path.name.lower() in shipped_scenarios() and not is_there(path))


def drawn_workload(path: Path, policies: tuple[str, ...] = ()) -> WorkloadSummary:
    """Return the summary of a scenario's traffic at its peak.

    Turns of sessions follow their think time after the turn before, as if every response came at once.

    Parameters
    ----------
    path : of the scenario
    policies : rules of eviction under which the prefix cache is run block by block
    """
    scenario = read_scenario(path)
    refuse_several(scenario)
    if any(item.images is not None for item in scenario.classes):
        scenario, _ = with_image_tokens(scenario, read_model(scenario.model, revision=scenario.file.revision))
    demand = demand_of(scenario)
    of_sessions = [item.sessions for item in demand.classes if item.sessions is not None]
    longest_s = max((item.turns.mean_tokens * item.think_time_s for item in of_sessions), default=0.0)
    rate = sum(demand.rates_per_s(0.0))
    seconds = float(np.clip(SESSION_TIMES * longest_s * rate, LEAST_REQUESTS, MOST_REQUESTS)) / rate
    offered = offered_with_sessions(
        demand,
        seconds=seconds,
        seed=_SEED,
        longest=demand.longest_tokens,
        response_s=0.0,
        turns_wait=False,
    )
    if offered.requests is None:
        raise InputError(
            f"{path}: when its users send requests follows from the responses\n  simulate it: capplan simulate {scenario.command_words()}"
        )
    told = "drawn from a scenario"
    if offered.crowd is not None:
        told += f" without its {offered.crowd.users:,} users, whose requests follow from the responses"
    drawn, unknown = offered.requests, np.full(len(offered.requests), np.nan)
    assert drawn.arrival_s is not None
    none, counts = np.zeros(0, dtype=np.int64), np.zeros(len(drawn), dtype=np.int64)
    part = TracePart(
        drawn.arrival_s,
        drawn.input_tokens,
        drawn.output_tokens,
        counts if drawn.block_counts is None else drawn.block_counts,
        none if drawn.block_ids is None else drawn.block_ids,
        unknown,
        unknown,
    )
    return trace_summary(path, told, [part], lambda: session_block_tokens(demand), policies, Omissions())
