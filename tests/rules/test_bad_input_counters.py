"""Counters that no server ever had: refused with their line or left out with a note; never a share over one or a negative length."""

import json
import math

import pytest

from capplan.cli.main import main
from capplan.errors import InputError
from capplan.recorded.traces.trace import workload_of
from tests.files import written_to
from tests.tables import table

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


@table
def test_impossible_counters_are_refused(mistake, instead, further, says, tmp_path, capplan):
    path = scraped(tmp_path, *further, **instead)
    with pytest.raises(InputError, match=says):
        workload_of([path])
    assert "Traceback" not in capplan.refused("workload", path)


@table
def test_counters_that_say_nothing_are_left_out_and_that_is_said(mistake, further, says, tmp_path, capsys):
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


def two_histograms(
    *label_sets, prefix="vllm:", names=("request_prompt_tokens", "request_generation_tokens"), tail=""
):
    """Ten requests for each set of labels: half of them below 100 tokens, all below 1,000."""
    return "".join(
        f'{prefix}{name}_bucket{{{labels},le="{bound}"}} {count}{tail}\n'
        if bound
        else f"{prefix}{name}_{part}{{{labels}}} {count}\n"
        for name in names
        for labels in label_sets
        for part, bound, count in (
            ("bucket", "100", 5),
            ("bucket", "1000", 10),
            ("bucket", "+Inf", 10),
            ("sum", "", 3000),
            ("count", "", 10),
        )
    )


def summary_of(tmp_path, text, **options):
    path = written_to(tmp_path / "scrape.prom", text)
    return workload_of([path], **options)


@pytest.mark.parametrize("label", ["model_name", "model"])
def test_counters_of_several_models_are_read_one_model_at_a_time(tmp_path, label):
    text = two_histograms(f'{label}="A",engine="0"', f'{label}="A",engine="1"', f'{label}="B",engine="0"')
    with pytest.raises(InputError, match=r"the requests of 2 models: A, B"):
        summary_of(tmp_path, text)
    assert summary_of(tmp_path, text, model="A").requests == 20
    assert summary_of(tmp_path, text, model="B").requests == 10
    with pytest.raises(InputError, match="unknown model 'C'"):
        summary_of(tmp_path, text, model="C")


def test_exemplars_and_time_stamps_of_openmetrics_change_nothing(tmp_path):
    plain = summary_of(tmp_path, two_histograms('engine="0"')).input_tokens
    assert plain.p50 < plain.p95
    for tail in (' # {trace_id="a b} c"} 0.5', " 1700000000.25", ' 1700000000.25 # {trace_id="x"} 0.5 1.7e9'):
        assert summary_of(tmp_path, two_histograms('engine="0"', tail=tail)).input_tokens == plain


def test_ranks_that_share_requests_count_once_and_data_parallel_ones_each(tmp_path):
    ranks = [
        f'tp_rank="{tp}",pp_rank="{pp}",dp_rank="{dp}"'
        for tp in range(4)
        for pp in range(2)
        for dp in range(3)
    ]
    names = ("prompt_tokens_histogram", "generation_tokens_histogram")
    for prefix in ("sglang:", "sglang_", "ray_sglang_"):
        assert summary_of(tmp_path, two_histograms(*ranks, prefix=prefix, names=names)).requests == 30


def test_two_scrapes_in_one_file_and_servers_of_both_phases_are_not_added(tmp_path):
    with pytest.raises(InputError, match="more than one scrape"):
        summary_of(tmp_path, 2 * two_histograms('engine="0"'))
    with pytest.raises(InputError, match="both count each request"):
        summary_of(tmp_path, two_histograms('engine_type="prefill"', 'engine_type="decode"'))
