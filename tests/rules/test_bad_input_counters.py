"""Counters that no server ever had: refused with their line or left out with a note; never a share over one or a negative length."""

import json
import math

import pytest

from capplan.cli.main import main
from capplan.errors import InputError
from capplan.recorded.traces.trace import workload_of

SUMS = {
    f"vllm:request_{name}_tokens_{part}": value
    for name in ("prompt", "generation")
    for part, value in (("sum", 90), ("count", 9))
}
PROMPT = "vllm:request_prompt_tokens"


def scraped(tmp_path, *further, **instead):
    path = tmp_path / "scrape.txt"
    values = SUMS | {f"{PROMPT}_{part}": value for part, value in instead.items()}
    path.write_text(
        "\n".join(
            ["# TYPE is what follows", *(f"{name} {value}" for name, value in values.items()), *further]
        )
        + "\n"
    )
    return path


IMPOSSIBLE = {
    "negative sum": ({"sum": -90}, (), f"line 2: {PROMPT}_sum is -90; a counter is never negative"),
    "negative hits": ({}, ("vllm:prefix_cache_queries_total 9", "vllm:prefix_cache_hits_total -5"), "line 7: vllm:prefix_cache_hits_total is -5"),
    "no tokens": ({"sum": 0}, (), "9 requests with 0 tokens each"),
    "endless prompts": ({"sum": "1e17"}, (), r"9 requests with 1.11111e\+16 tokens each"),
    "no sum": ({"sum": "NaN"}, (), f"has {PROMPT}_count and no {PROMPT}_sum"),
    "half a request": ({"count": 0.5}, (), "has no request lengths"),
    "all in the bucket of zero": ({}, (f'{PROMPT}_bucket{{le="0"}} 9', f'{PROMPT}_bucket{{le="+Inf"}} 9'), "its sum and count give a mean of 10 tokens per request, its buckets one of 0 to 0"),
    "all above the mean": ({}, (f'{PROMPT}_bucket{{le="50"}} 0', f'{PROMPT}_bucket{{le="+Inf"}} 9'), "its buckets one of 50 to inf"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", IMPOSSIBLE)
def test_impossible_counters_are_refused(mistake, tmp_path, capsys):
    instead, further, says = IMPOSSIBLE[mistake]
    path = scraped(tmp_path, *further, **instead)
    with pytest.raises(InputError, match=says):
        workload_of([path])
    assert main(["workload", str(path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


LEFT_OUT = {
    "more hits than queries": (("vllm:prefix_cache_queries_total 100", "vllm:prefix_cache_hits_total 500"), "vllm:prefix_cache_hits_total is more than"),
    "more accepted than drafted": (("vllm:spec_decode_num_draft_tokens_total 10", "vllm:spec_decode_num_accepted_tokens_total 20", "vllm:spec_decode_num_drafts_total 5"), "vllm:spec_decode_num_accepted_tokens_total is more than"),
    "bound that is a word": ((f'{PROMPT}_bucket{{le="abc"}} 5',), "is a bucket without an upper bound (first in line 6)"),
    "bound below zero": ((f'{PROMPT}_bucket{{le="-5"}} 5',), "is a bucket without an upper bound"),
    "bound that is no number": ((f'{PROMPT}_bucket{{le="NaN"}} 5',), "is a bucket without an upper bound"),
    "value with two points": (("vllm:num_requests_running 1.2.3",), "is not a Prometheus sample"),
    "value of 300 digits": (("vllm:request_success_total 1e300",), "a value is out of range"),
    "only the last bucket": ((f'{PROMPT}_bucket{{le="+Inf"}} 9',), ""),
    "cache of 400 digits": ((f'vllm:cache_config_info{{block_size="{"9" * 400}",num_gpu_blocks="9"}} 1',), ""),
    "shares that are none": (("sglang:spec_accept_rate 3", "sglang:spec_accept_length -2", "sglang:cache_hit_rate 7"), "no counters of the prefix cache"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", LEFT_OUT)
def test_counters_that_say_nothing_are_left_out_and_that_is_said(mistake, tmp_path, capsys):
    further, says = LEFT_OUT[mistake]
    path = scraped(tmp_path, *further)
    found = workload_of([path])
    assert any(says in line for line in (*found.omissions, *found.notes))
    assert (found.requests, found.input_tokens.mean) == (9, 10.0)
    assert (found.prefix_hit_fraction, found.acceptance_fraction, found.accepted_tokens_per_round, found.kv_cache_tokens) == (None,) * 4  # fmt: skip
    assert main(["workload", str(path), "--format", "json"]) == 0
    json.loads(capsys.readouterr().out, parse_constant=math.log)  # which has no text


def test_a_latency_without_its_sum_is_unknown_rather_than_zero(tmp_path):
    path = scraped(tmp_path, "vllm:time_to_first_token_seconds_count 9")
    assert workload_of([path]).measured["ttft_s"] is None


def test_lengths_keep_the_mean_of_the_sums_where_the_buckets_agree(tmp_path):
    path = scraped(tmp_path, *(f'{PROMPT}_bucket{{le="{b}"}} {n}' for b, n in ((5, 3), (20, 8), ("+Inf", 9))))
    assert workload_of([path]).input_tokens.mean == pytest.approx(10.0, rel=0.01)
