"""Keys of time and money outside the GPUs that say nothing, or that do not belong together, are refused in one clear line."""

import pytest

SMALL = "tests/golden/small.yaml"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["traffic[0].outside.time=-1 s"], "traffic[0].outside.time: '-1 s' is below 0"),
        (["traffic[0].outside.usd_per_request=-1"], "traffic[0].outside.usd_per_request: '-1' is below 0"),
        (["traffic[0].outside.usd_per_request=2 EUR"], "traffic[0].outside.usd_per_request: '2 EUR' is not dollars"),
        (["traffic[0].outside.tool_calls=0"], "traffic[0].outside.tool_calls"),
        (["traffic[0].outside.tool_calls=3"], "traffic[0].outside.tool_calls: needs tool_time, e.g. tool_time: 400 ms"),
        (["traffic[0].outside.tool_time=3 s"], "traffic[0].outside.tool_time: is of one tool call; say how many there are"),
        (["traffic[0].outside.usd_per_tool_call=3"], "outside.usd_per_tool_call: is of one tool call; say how many there are"),
        (["traffic[0].outside.retrieval=3 s"], "unknown key 'retrieval'"),
        (["slo.outside=included"], "slo.outside: says whether targets of ttft or e2e include the time outside, and there is no such time"),
        (["slo={tpot_p95: 20 ms, outside: included}", "traffic[0].outside.time=1 s"], "and there is no such target"),
        (["traffic[0].outside.time=300 ms"], "slo.ttft_p95: 0.3 s are over before the prompt is sent: up to 0.3 s are spent outside"),
        (
            ["traffic[0].turns=3", "traffic[0].think_time=1 s", "traffic[0].added_tokens=9", "traffic[0].outside={tool_calls: 1, tool_time: 1 s}"],
            "traffic[0].outside.tool_time: is think_time where a session has turns",
        ),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(capplan, settings, said):
    assert said in capplan.refused(
        "fleet", SMALL, "--offline", *(word for setting in settings for word in ("--set", setting))
    )
