"""What people bring as request logs: input, expected, source of the format, one row each."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from capplan.errors import InputError
from capplan.recorded.traces.request_logs import log_formats
from capplan.recorded.traces.rows import seconds_of
from capplan.recorded.traces.trace import format_of, read_trace, workload_of

ROOT = Path(__file__).resolve().parents[2]
LITELLM = "https://docs.litellm.ai/docs/proxy/logging_spec"
LANGFUSE = "https://langfuse.com/docs/api-and-data-platform/features/blob-storage-export-fields"
OPENROUTER = "https://openrouter.ai/docs/agent-sdk/typescript/operations/getgenerationdata"
HELICONE = "https://docs.helicone.ai/rest/request/post-v1requestquery"
OTEL = "https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/"
OTLP = "https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding"
OPENAI = "https://platform.openai.com/docs/api-reference/usage/completions"
CHAT = "https://platform.openai.com/docs/api-reference/chat/object"
AIPERF = "https://github.com/ai-dynamo/aiperf/blob/main/docs/tutorials/working-with-profile-exports.md"


def lines(*entries):
    return "\n".join(map(json.dumps, entries))


def spend(second, prompt, output, **other):
    day = "2026-03-30T02:00"
    return {
        "request_id": f"c{second}",
        "call_type": "acompletion",
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "startTime": f"{day}:{second:02d}+00:00",
        "completionStartTime": f"{day}:{second:02d}.5+00:00",
        "endTime": f"{day}:{second + 2:02d}+00:00",
        **other,
    }


def span(number, parent, operation, tokens, start_s=0):
    counts = (
        [("gen_ai.usage.input_tokens", tokens[0]), ("gen_ai.usage.output_tokens", tokens[1])]
        if tokens
        else []
    )
    values = [{"key": key, "value": {"intValue": str(value)}} for key, value in counts]
    start = 1774836000 + start_s
    return {
        "traceId": "t",
        "spanId": f"s{number}",
        "parentSpanId": parent,
        "name": operation,
        "startTimeUnixNano": f"{start}000000000",
        "endTimeUnixNano": f"{start + 3}000000000",
        "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": operation}}, *values],
    }


def resource(*spans):
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


def raw(start_s, usage, **metadata):
    chunk = json.dumps({"choices": [], "usage": usage}) if usage else "{}"
    start = 1774836000 + start_s
    return {
        "metadata": {
            "request_start_ns": start * 10**9,
            "request_end_ns": (start + 4) * 10**9,
            "benchmark_phase": "profiling",
            "was_cancelled": False,
            **metadata,
        },
        "start_perf_ns": 1,
        "payload": {"messages": []},
        "responses": [{"perf_ns": 2, "packets": [{"name": "data", "value": chunk}]}],
    }


def bucket(start, requests, tokens, **other):
    result = {
        "object": "organization.usage.completions.result",
        "num_model_requests": requests,
        "input_tokens": tokens[0],
        "output_tokens": tokens[1],
        **other,
    }
    return {"object": "bucket", "start_time": start, "end_time": start + 3600, "results": [result]}


READ = (
    # name, file, text, (format, requests, requests/s, input mean, output mean), (mean TTFT, mean end), omitted, source
    (
        "array",
        "a.json",
        json.dumps([spend(0, 100, 10), spend(4, 300, 30)]),
        ("LiteLLM", 2, 0.5, 200, 20),
        (0.5, 2.0),
        (),
        LITELLM,
    ),
    (
        "array on many lines",
        "a.json",
        json.dumps([spend(0, 100, 10), spend(4, 300, 30)], indent=1),
        ("LiteLLM", 2, 0.5, 200, 20),
        (0.5, 2.0),
        (),
        LITELLM,
    ),
    (
        "lines",
        "a.jsonl",
        lines(spend(0, 100, 10), spend(4, 300, 30)),
        ("LiteLLM", 2, 0.5, 200, 20),
        (0.5, 2.0),
        (),
        LITELLM,
    ),
    (
        "not streamed",
        "a.jsonl",
        lines(
            spend(0, 100, 10, completionStartTime="2026-03-30T02:00:02+00:00"),
            spend(4, 300, 30, completionStartTime=None),
        ),
        ("LiteLLM", 2, 0.5, 200, 20),
        (None, 2.0),
        (),
        LITELLM,
    ),
    (
        "answers of the gateway's cache, failures and embeddings",
        "a.jsonl",
        lines(
            spend(0, 100, 10),
            spend(1, 9, 9, cache_hit="True"),
            spend(2, 9, 9, status="failure"),
            spend(3, 9, 0),
            spend(4, 300, 30, cache_hit="False"),
        ),
        ("LiteLLM", 2, 0.5, 200, 20),
        (0.5, 2.0),
        ("answer from the cache", "failed request", "no output token"),
        LITELLM,
    ),
    (
        "usage below its own key",
        "a.jsonl",
        lines(
            *(
                {
                    "startTime": 1774836000 + n,
                    "response": {"usage": {"prompt_tokens": 100 + 50 * n, "completion_tokens": 20}},
                }
                for n in (0, 4)
            )
        ),
        ("LiteLLM", 2, 0.5, 200, 20),
        (None, None),
        (),
        LITELLM,
    ),
    (
        "epoch of a callback",
        "a.jsonl",
        lines(
            {
                "startTime": 1774836000.0,
                "endTime": 1774836002.0,
                "completionStartTime": 1774836000.5,
                "prompt_tokens": 100,
                "completion_tokens": 10,
            },
            {
                "startTime": 1774836004.0,
                "endTime": 1774836006.0,
                "completionStartTime": 1774836004.5,
                "prompt_tokens": 300,
                "completion_tokens": 30,
            },
        ),
        ("LiteLLM", 2, 0.5, 200, 20),
        (0.5, 2.0),
        (),
        LITELLM,
    ),
    (
        "cells over several lines",
        "a.csv",
        'request_id,messages,startTime,prompt_tokens,completion_tokens\na,"one\ntwo, three",2026-03-30 02:00:00,100,10\nb,"{""x"": 1}",2026-03-30 02:00:04,300,30\n',
        ("LiteLLM", 2, 0.5, 200, 20),
        (None, None),
        (),
        LITELLM,
    ),
    (
        "observations",
        "o.csv",
        "id,traceId,type,startTime,endTime,inputUsage,outputUsage,latency,timeToFirstToken\n1,t,GENERATION,2026-03-30T02:00:00Z,2026-03-30T02:00:00Z,100,10,1.2,0.3\n2,t,SPAN,2026-03-30T02:00:01Z,,,,1.2,\n3,t,GENERATION,2026-03-30T02:00:04Z,,300,30,1.2,0.3\n",
        ("Langfuse", 2, 0.5, 200, 20),
        (0.3, 1.2),
        ("no generation",),
        LANGFUSE,
    ),
    (
        "blob storage: cached and reasoning tokens are parts",
        "o.jsonl",
        lines(
            *(
                {
                    "id": n,
                    "trace_id": "t",
                    "type": "GENERATION",
                    "start_time": f"2026-03-30 02:00:0{n}.000000",
                    "end_time": f"2026-03-30 02:00:0{n + 2}.000000",
                    "completion_start_time": f"2026-03-30 02:00:0{n}.500000",
                    "usage_details": {
                        "input": 40,
                        "input_cached_tokens": 60,
                        "output": 7,
                        "output_reasoning_tokens": 3,
                        "total": 110,
                    },
                }
                for n in (0, 4)
            )
        ),
        ("Langfuse", 2, 0.5, 100, 10),
        (0.5, 2.0),
        (),
        LANGFUSE,
    ),
    (
        "usage details as text in a cell",
        "o.csv",
        'id,traceId,type,startTime,usageDetails\n1,t,GENERATION,2026-03-30T02:00:00Z,"{""input"": 100, ""output"": 10}"\n2,t,GENERATION,2026-03-30T02:00:04Z,"{""input"": 300, ""output"": 30}"\n',
        ("Langfuse", 2, 0.5, 200, 20),
        (None, None),
        (),
        LANGFUSE,
    ),
    (
        "page of the API",
        "o.json",
        json.dumps(
            {
                "data": [
                    {
                        "traceId": "t",
                        "type": "GENERATION",
                        "startTime": "2026-03-30T02:00:00Z",
                        "usage": {"input": 100, "output": 10, "unit": "TOKENS"},
                    },
                    {
                        "traceId": "t",
                        "type": "GENERATION",
                        "startTime": "2026-03-30T02:00:04Z",
                        "usage": {"input": 300, "output": 30},
                    },
                ],
                "meta": {"page": 1},
            }
        ),
        ("Langfuse", 2, 0.5, 200, 20),
        (None, None),
        (),
        LANGFUSE,
    ),
    (
        "activity",
        "a.csv",
        "cost_total,tokens_prompt,tokens_completion,created_at\n0.1,100,10,2026-03-30 02:00:00.000\n0.1,300,30,2026-03-30 02:00:04.000\n",
        ("OpenRouter", 2, 0.5, 200, 20),
        (None, None),
        (),
        OPENROUTER,
    ),
    (
        "tokens of the model where they are stated",
        "g.jsonl",
        lines(
            {
                "data": {
                    "created_at": "2026-03-30T02:00:00Z",
                    "tokens_prompt": 9,
                    "tokens_completion": 9,
                    "native_tokens_prompt": 100,
                    "native_tokens_completion": 10,
                }
            },
            {
                "data": {
                    "created_at": "2026-03-30T02:00:04Z",
                    "tokens_prompt": 9,
                    "tokens_completion": 9,
                    "native_tokens_prompt": 300,
                    "native_tokens_completion": 30,
                }
            },
        ),
        ("OpenRouter", 2, 0.5, 200, 20),
        (None, None),
        (),
        OPENROUTER,
    ),
    (
        "page of requests",
        "h.json",
        json.dumps(
            {
                "data": [
                    {
                        "request_created_at": f"2026-03-30T02:00:0{n}+00:00",
                        "prompt_tokens": tokens,
                        "completion_tokens": tokens // 10,
                        "delay_ms": 2000,
                        "time_to_first_token": 500,
                        "response_status": status,
                    }
                    for n, tokens, status in ((0, 100, 200), (2, 9, 500), (4, 300, 200))
                ],
                "error": None,
            }
        ),
        ("Helicone", 2, 0.5, 200, 20),
        (0.5, 2.0),
        ("failed request",),
        HELICONE,
    ),
    (
        "spans: agents and tools are no requests",
        "s.json",
        json.dumps(
            resource(
                span(0, "", "invoke_agent", (400, 40)),
                span(1, "s0", "chat", (100, 10)),
                span(2, "s0", "execute_tool", None),
                span(3, "s0", "chat", (300, 30), 4),
            )
        ),
        ("OpenTelemetry spans", 2, 0.5, 200, 20),
        (None, 3.0),
        ("agent, a tool",),
        OTLP,
    ),
    (
        "spans of client and server of one request",
        "s.jsonl",
        lines(
            resource(span(1, "", "chat", (100, 10)), span(2, "s1", "chat", (100, 10))),
            resource(span(3, "", "chat", (300, 30), 4)),
        ),
        ("OpenTelemetry spans", 2, 0.5, 200, 20),
        (None, 3.0),
        ("inside the span",),
        OTLP,
    ),
    (
        "spans of the console exporter",
        "s.json",
        "\n".join(
            json.dumps(
                {
                    "name": "chat",
                    "context": {"trace_id": "0x1", "span_id": f"0x{n}"},
                    "parent_id": None,
                    "start_time": f"2026-03-30T02:00:0{n}.000000Z",
                    "end_time": f"2026-03-30T02:00:0{n + 3}.000000Z",
                    "attributes": {
                        "gen_ai.usage.input_tokens": 100 + 50 * n,
                        "gen_ai.usage.output_tokens": 20,
                    },
                },
                indent=4,
            )
            for n in (0, 4)
        ),
        ("OpenTelemetry spans", 2, 0.5, 200, 20),
        (None, 3.0),
        (),
        OTEL,
    ),
    (
        "spans of vLLM",
        "s.jsonl",
        lines(
            *(
                {
                    "startTimeUnixNano": str((1774836000 + n) * 10**9),
                    "attributes": {
                        "gen_ai.usage.prompt_tokens": 100 + 50 * n,
                        "gen_ai.usage.completion_tokens": 20,
                        "gen_ai.latency.time_to_first_token": 0.25,
                        "gen_ai.latency.e2e": 2.5,
                    },
                }
                for n in (0, 4)
            )
        ),
        ("OpenTelemetry spans", 2, 0.5, 200, 20),
        (0.25, 2.5),
        (),
        "https://docs.vllm.ai/en/latest/examples/online_serving/opentelemetry/",
    ),
    (
        "answers of a server",
        "c.jsonl",
        lines(
            *(
                {
                    "id": "c",
                    "object": "chat.completion",
                    "created": 1774836000 + n,
                    "usage": {"prompt_tokens": 100 + 50 * n, "completion_tokens": 20, "total_tokens": 1},
                }
                for n in (0, 4)
            )
        ),
        ("gateway log", 2, 0.5, 200, 20),
        (None, None),
        (),
        CHAT,
    ),
    (
        "raw records",
        "profile_export_raw.jsonl",
        lines(
            raw(0, {"prompt_tokens": 100, "completion_tokens": 10}),
            raw(1, None),
            raw(2, {"prompt_tokens": 9, "completion_tokens": 9}, was_cancelled=True),
            raw(3, {"prompt_tokens": 9, "completion_tokens": 9}, benchmark_phase="warmup"),
            raw(
                4,
                {
                    "prompt_tokens": 300,
                    "completion_tokens": 30,
                    "prompt_tokens_details": {"cached_tokens": 5},
                },
            ),
        ),
        ("AIPerf raw records", 2, 0.5, 200, 20),
        (None, 4.0),
        ("no token counts", "cancelled", "warm-up"),
        AIPERF,
    ),
    (
        "a list of a trace in ms",
        "t.json",
        json.dumps(
            [
                {"arrival_ms": 0, "input_tokens": 100, "output_tokens": 10},
                {"arrival_ms": 4000, "input_tokens": 300, "output_tokens": 30},
            ],
            indent=2,
        ),
        ("JSON list", 2, 0.5, 200, 20),
        (None, None),
        (),
        "https://docs.python.org/3/library/json.html",
    ),
    (
        "a list of AIPerf's trace, whose unit its columns tell",
        "t.json",
        json.dumps(
            [
                {"timestamp": 0, "input_length": 100, "output_length": 10},
                {"timestamp": 4000, "input_length": 300, "output_length": 30},
            ]
        ),
        ("JSON list", 2, 0.5, 200, 20),
        (None, None),
        (),
        "https://github.com/ai-dynamo/aiperf/blob/main/docs/tutorials/fixed-schedule.md",
    ),
    (
        "trace with delays",
        "t.jsonl",
        lines(
            {"session_id": "a", "input_length": 100, "output_length": 10, "timestamp": 0},
            {"session_id": "a", "input_length": 300, "output_length": 30, "delay": 4000},
        ),
        ("JSON lines", 2, 0.5, 200, 20),
        (None, None),
        (),
        "https://github.com/ai-dynamo/aiperf/blob/main/docs/tutorials/fixed-schedule.md",
    ),
)


@pytest.mark.parametrize(
    ("file", "text", "expected", "latencies", "omitted"),
    [row[1:6] for row in READ],
    ids=[row[0] for row in READ],
)
def test_request_logs_are_read(file, text, expected, latencies, omitted, tmp_path):
    path = tmp_path / file
    path.write_text(text, encoding="utf-8")
    found = workload_of([path])
    seconds = found.rate.seconds
    assert (found.format, found.requests, 2 / seconds) == expected[:3]
    assert (found.input_tokens.mean, found.output_tokens.mean) == expected[3:]
    measured = found.measured or {"ttft_s": None, "e2e_s": None}
    assert (measured["ttft_s"], measured["e2e_s"]) == pytest.approx(latencies)
    assert len(found.omissions) == len(omitted)
    for words in omitted:
        assert any(words in line for line in found.omissions), words
    replayed = read_trace(path, strict=False)
    assert replayed.arrival_s.tolist() == pytest.approx([0.0, seconds])


BUCKETS = (
    # name, file, text, (requests, requests/s on average, in the busiest window, input, output, hits), source
    (
        "page of the usage API",
        "u.json",
        json.dumps(
            {
                "object": "page",
                "data": [
                    bucket(1774836000, 3600, (360000, 36000), input_cached_tokens=180000),
                    bucket(1774839600, 7200, (1800000, 180000), input_cached_tokens=0),
                    bucket(1774836000, 100, (1, 1), batch=True),
                ],
                "has_more": False,
            }
        ),
        (10800, 1.5, 2.0, 200, 20, 1 / 12),
        OPENAI,
    ),
    (
        "hours without requests before and after",
        "u.json",
        json.dumps(
            {
                "object": "page",
                "data": [
                    {"start_time": 1774836000, "end_time": 1774839600, "results": []},
                    bucket(1774839600, 7200, (720000, 72000)),
                    {"start_time": 1774843200, "end_time": 1774846800, "results": []},
                    {"start_time": 1774846800, "end_time": 1774850400, "results": []},
                ],
            }
        ),
        (7200, 0.5, 2.0, 100, 10, None),
        OPENAI,
    ),
    (
        "export as CSV",
        "u.csv",
        "start_time,end_time,num_model_requests,input_tokens,output_tokens\n1774836000,1774839600,3600,360000,36000\n1774839600,1774843200,7200,1800000,180000\n",
        (10800, 1.5, 2.0, 200, 20, None),
        OPENAI,
    ),
    (
        "activity by day",
        "d.json",
        json.dumps(
            {
                "data": [
                    {
                        "date": "2026-03-01",
                        "requests": 86400,
                        "prompt_tokens": 8640000,
                        "completion_tokens": 864000,
                    },
                    {
                        "date": "2026-03-02",
                        "requests": 172800,
                        "prompt_tokens": 43200000,
                        "completion_tokens": 4320000,
                    },
                ]
            }
        ),
        (259200, 1.5, 2.0, 200, 20, None),
        "https://openrouter.ai/docs/api-reference/analytics/get-activity",
    ),
)


@pytest.mark.parametrize(
    ("file", "text", "expected"), [row[1:4] for row in BUCKETS], ids=[row[0] for row in BUCKETS]
)
def test_usage_exports_give_rates_by_window_and_mean_lengths(file, text, expected, tmp_path):
    path = tmp_path / file
    path.write_text(text, encoding="utf-8")
    found = workload_of([path])
    assert (found.requests, found.rate.mean, found.rate.peak_60s) == expected[:3]
    assert (found.input_tokens.mean, found.output_tokens.mean) == expected[3:5]
    assert found.prefix_hit_fraction == (None if expected[5] is None else pytest.approx(expected[5]))
    assert any("means only" in note for note in found.notes)
    with pytest.raises(InputError, match="the sums of hours or days, not individual requests"):
        read_trace(path)


MILLISECONDS = (
    # name, file, text, requests left out: two requests, four seconds apart
    (
        "a table whose first row has no time",
        "t.csv",
        "arrival_ms,input_tokens,output_tokens\nn/a,5,5\n0,5,5\n4000,5,5\n",
        1,
    ),
    (
        "an endless time first",
        "t.csv",
        "timestamp,input_tokens,output_tokens\ninf,5,5\n1774836000000,5,5\n1774836004000,5,5\n",
        1,
    ),
    (
        "a list whose first entry has a truth as its time",
        "t.json",
        json.dumps(
            [{"arrival_ms": stamp, "input_tokens": 5, "output_tokens": 5} for stamp in (False, 0, 4000)]
        ),
        1,
    ),
    (
        "lines whose first one has no time",
        "t.jsonl",
        lines(*({"timestamp": stamp, "input_length": 5, "output_length": 5} for stamp in ("n/a", 0, 4000))),
        1,
    ),
    (
        "times in quotes",
        "t.jsonl",
        lines(*({"timestamp": stamp, "input_length": 5, "output_length": 5} for stamp in ("0", "4000"))),
        0,
    ),
    (
        "times of turns in quotes",
        "t.jsonl",
        lines(
            *(
                {"session_id": "a", "delay": 1, "timestamp": stamp, "input_length": 5, "output_length": 5}
                for stamp in ("0", "4000")
            )
        ),
        0,
    ),
    (
        "truths for tokens of a log",
        "t.jsonl",
        lines(spend(0, 5, 5), spend(4, 5, 5), spend(2, True, 5), spend(3, 5, False)),
        2,
    ),
    (
        "truths for tokens of a trace",
        "t.jsonl",
        lines(
            *(
                {"timestamp": stamp, "input_length": tokens, "output_length": 5}
                for stamp, tokens in ((0, 5), (4000, 5), (8000, True))
            )
        ),
        1,
    ),
)


@pytest.mark.parametrize(
    ("file", "text", "left_out"), [row[1:] for row in MILLISECONDS], ids=[row[0] for row in MILLISECONDS]
)
def test_a_row_that_is_no_request_says_nothing_of_the_others(file, text, left_out, tmp_path):
    path = tmp_path / file
    path.write_text(text, encoding="utf-8")
    found = workload_of([path])
    assert (found.requests, found.rate.seconds, found.input_tokens.mean) == (2, 4.0, 5)
    assert [line.split()[0] for line in found.omissions] == [str(left_out)] * bool(left_out)


GOOD = "2026-03-30 02:00:0{},100,10"
REFUSED = (
    # name, file, text, words of the message, source
    (
        "the first failing line is named",
        "t.csv",
        "\n".join(
            [
                "arrival_s,input_tokens,output_tokens",
                "2026-03-30 02:00:00 Mars/Olympus,100,10",
                *["x,100,10"] * 40,
            ]
        ),
        "line 2: is not a request (time zone 'Mars/Olympus' is not known",
        "issue 11 of people's logs",
    ),
    (
        "also of JSON lines",
        "t.jsonl",
        "\n".join(
            ['{"timestamp": "soon", "input_length": 1, "output_length": 1}', *['{"timestamp": "x"}'] * 40]
        ),
        "line 1: is not a request",
        "the same",
    ),
    (
        "also of a gateway",
        "t.jsonl",
        lines(*(spend(0, 100, 10, startTime="30.03.26") for _ in range(40))),
        "line 1: is not a request",
        LITELLM,
    ),
    (
        "inputs of AIPerf",
        "inputs.json",
        json.dumps(
            {"data": [{"session_id": "a", "payloads": [{"messages": [{"role": "user", "content": "x"}]}]}]}
        ),
        "AIPerf's inputs.json, which has prompts as text",
        AIPERF,
    ),
    (
        "buckets of unknown width",
        "u.csv",
        "start_time,num_model_requests,input_tokens,output_tokens\n1774836000,3600,360000,36000\n",
        "how long its buckets are",
        OPENAI,
    ),
    (
        "days that lie a week apart, or weeks",
        "u.csv",
        "date,requests,prompt_tokens,completion_tokens\n2026-03-01,100,1000,200\n2026-03-08,100,1000,200\n",
        "how long its buckets are",
        "https://openrouter.ai/docs/api-reference/analytics/get-activity",
    ),
    (
        "buckets of no time",
        "u.csv",
        "start_time,end_time,num_model_requests,input_tokens,output_tokens\n1,1.001,3600,360000,36000\n17748360,17748360.001,3600,360000,36000\n",
        "shorter than a minute",
        OPENAI,
    ),
    (
        "a bucket without an end",
        "u.csv",
        "start_time,end_time,num_model_requests,input_tokens,output_tokens\n1774836000,1e999,3600,360000,36000\n",
        "line 2: a time or a count is out of range",
        OPENAI,
    ),
    (
        "a count of any size",
        "s.jsonl",
        '{"startTimeUnixNano": "1774836000000000000", "attributes": {"gen_ai.usage.input_tokens": 1, "gen_ai.usage.output_tokens": '
        + "9" * 400
        + "}}",
        "is not a request",
        OTEL,
    ),
    (
        "nothing but embeddings",
        "s.json",
        json.dumps(resource(span(0, "", "embeddings", (400, 0)))),
        "no request can be used: 1 row left out: a span of an agent, a tool or an embedding (first in line 1)",
        OTEL,
    ),
)


@pytest.mark.parametrize(
    ("file", "text", "words"), [row[1:4] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_what_is_no_request_log_says_so(file, text, words, tmp_path):
    path = tmp_path / file
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as refused:
        workload_of([path])
    assert words in str(refused.value)


EPOCH = datetime(2026, 3, 30, 2, 0, 0, 500000, tzinfo=UTC).timestamp()
TIMES = (
    # as written, source
    ("2026-03-30 02:00:00.5 UTC", "BigQuery"),
    ("2026-03-30 02:00:00.500000 +0000 UTC", "Go"),
    ("2026-03-30 04:00:00.5 +0200 CEST", "Go"),
    ("2026-03-30T02:00:00.5Z", "ISO 8601"),
    ("2026-03-30 02:00:00.5+00", "PostgreSQL"),
    ("2026-03-29 22:00:00.5 America/New_York", "SQL with a zone"),
    ("2026-03-30T04:00:00.5+02:00", "ISO 8601"),
    ("2026-03-30 02:00:00.500 GMT", "HTTP"),
)


@pytest.mark.parametrize("written", [row[0] for row in TIMES])
def test_dates_name_their_zone_in_any_way(written):
    assert seconds_of(written) == pytest.approx(EPOCH, abs=1e-6)


@pytest.mark.parametrize("per_second", [1, 10**3, 10**6, 10**9])
@pytest.mark.parametrize("quote", ["", '"'])
def test_epochs_in_seconds_to_nanoseconds(per_second, quote, tmp_path):
    path = tmp_path / "t.jsonl"
    rows = [
        f'{{"startTime": {quote}{(1774836000 + s) * per_second}{quote}, "prompt_tokens": 5, "completion_tokens": 5}}'
        for s in (0, 4)
    ]
    path.write_text("\n".join(rows), encoding="utf-8")
    assert workload_of([path]).rate.seconds == pytest.approx(4.0, abs=1e-5)


def test_every_format_has_its_source():
    formats = json.loads((ROOT / "capplan/recorded/traces/logs.json").read_text(encoding="utf-8"))
    assert set(formats) == set(log_formats())
    assert all(keys["source"].startswith("https://") for keys in formats.values())


@pytest.mark.long
def test_parquet_is_read_as_the_same_log_in_csv(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    path = tmp_path / "logs.parquet"
    start = datetime(2026, 3, 30, 2, tzinfo=UTC)
    table = pa.table(
        {
            "startTime": pa.array([start, start.replace(second=4)], pa.timestamp("us", "UTC")),
            "messages": ["not", "read"],
            "prompt_tokens": [100, 300],
            "completion_tokens": [10, 30],
        }
    )
    parquet.write_table(table, path)
    found = workload_of([path])
    assert (found.format, found.requests, found.rate.seconds) == ("LiteLLM", 2, 4.0)
    assert (found.input_tokens.mean, found.output_tokens.mean) == (200, 20)
    plain = pa.table(
        {
            "arrival_ms": [0, 4000],
            "input_tokens": [100, 300],
            "output_tokens": [10, 30],
            "hash_ids": [[1], [1, 2]],
        }
    )
    parquet.write_table(plain, path)
    found = workload_of([path])
    assert (found.format, found.requests, found.rate.seconds) == ("table of requests", 2, 4.0)
    assert any("hash_ids" in note for note in found.notes)
    parquet.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(InputError, match="name them arrival_s, input_tokens and output_tokens"):
        workload_of([path])
    whole = path.read_bytes()
    path.write_bytes(whole[:200])
    with pytest.raises(InputError, match="cannot be read"):
        format_of(path)
    dates = pa.table(
        {"arrival_s": pa.array([-(2**31)], pa.date32()), "input_tokens": [1], "output_tokens": [1]}
    )
    parquet.write_table(dates, path)
    with pytest.raises(InputError, match="row 1: cannot be read"):  # found by make fuzz
        workload_of([path])


def test_parquet_without_its_reader_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "logs.parquet"
    path.write_bytes(b"PAR1 and so on PAR1")
    with pytest.raises(InputError, match=r"pip install 'capplan\[parquet\]'"):
        workload_of([path])
