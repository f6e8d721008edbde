"""What a line of traffic takes outside the GPUs -> its class of requests, with that time and money."""

from dataclasses import replace

from capplan.readers.yaml_file import KeyPath
from capplan.scenario.reading import Reading
from capplan.scenario.scenario_file import Traffic
from capplan.workload.request_class import Outside, RequestClass


def refuse_wrong_tools(reading: Reading, item: Traffic, at: KeyPath) -> None:
    """Refuse keys of tool calls that do not belong together."""
    outside = item.outside
    if outside is None:
        return
    key = (*at, "outside")
    if outside.tool_calls is None:
        given = next(
            (name for name in ("tool_time", "usd_per_tool_call") if getattr(outside, name) is not None), None
        )
        if given:
            raise reading.refuse(
                (*key, given), "is of one tool call; say how many there are, e.g. tool_calls: 3"
            )
        return
    if item.turns is not None and outside.tool_time is not None:
        raise reading.refuse(
            (*key, "tool_time"),
            "is think_time where a session has turns: all calls between two of them; leave it out",
        )
    if item.turns is None and outside.tool_time is None:
        raise reading.refuse((*key, "tool_calls"), "needs tool_time, e.g. tool_time: 400 ms")


def with_outside(reading: Reading, item: Traffic, index: int, described: RequestClass) -> RequestClass:
    """Return the class of a line of traffic with what its requests take outside.

    Users and sessions come back later by as much; nothing of it is on a device.

    Parameters
    ----------
    reading : of the file
    item : line of traffic
    index : [-]
        of the line
    described : its requests, or the turns of its sessions
    """
    said = item.outside
    if said is None:
        return described
    calls = said.tool_calls or 0.0
    wait_s = said.time or 0.0
    if described.sessions is None:
        wait_s += calls * (said.tool_time or 0.0)
    else:
        turns = described.sessions.turns.mean_tokens
        calls *= (turns - 1.0) / turns
    outside = Outside(wait_s, said.usd_per_request or 0.0, calls, said.usd_per_tool_call or 0.0)
    key = f"traffic[{index}].outside"
    if described.sessions is not None:
        words = "between turns a session holds no slot and no KV of its own: its blocks stay in the prefix cache until they are evicted"
        reading.assume(f"{item.name}: {words}", key)
    if wait_s:
        reading.assume(
            f"{item.name}: every request waits {wait_s:g} s before its prompt is sent, always as long", key
        )
    think_s, sessions = described.think_time_s, described.sessions
    return replace(
        described,
        outside=outside,
        think_time_s=None if think_s is None else think_s + wait_s,
        sessions=sessions and replace(sessions, think_time_s=sessions.think_time_s + wait_s),
    )
