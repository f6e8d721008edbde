"""Rows of published deployments: drafts, layouts, lengths and phases are read as written, and what is missing is named in one line."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.accuracy.benchmark import benchmark_of
from capplan.accuracy.deployment import engine_inside, pool_of_gpus, stated_sharding
from capplan.accuracy.drafts import drafts_of
from capplan.accuracy.lengths import drawn_lengths, implied_output_tokens
from capplan.accuracy.replay import replayed_columns
from capplan.accuracy.serving import measured_columns, predict_row
from capplan.errors import InputError
from capplan.model.sharding import Sharding
from capplan.phases.step import acceptance_of_round, expected_tokens_per_round
from capplan.questions.benchmark_spec import benchmark_servers, benchmark_spec, stated_checkpoint
from capplan.questions.replayed_drafts import USUAL_ACCEPTANCE, drafting_of_run
from capplan.readers.catalogue.efficiency import shipped_intervals
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.models import read_model
from capplan.recorded.measured import impossible_number, noted_columns, noted_gpu, with_run_columns
from tests.tables import rows

ROW = {
    "engine": "vllm", "engine_version": "0.14.1", "model_hf_id": "openai/gpt-oss-120b", "weights_dtype": "mxfp4", "gpu": "H200",
    "num_gpus": "2", "tp": "2", "isl": "2048", "osl": "512", "concurrency": "8", "kind": "online_conc",
}  # fmt: skip
DECODE = {**ROW, "kind": "decode_only", "concurrency": "", "batch_per_gpu": "16"}
PREFILL = {**ROW, "kind": "prefill_only", "concurrency": "", "osl": ""}


def columns_of(row):
    benchmark = benchmark_of(with_run_columns(row))
    return replayed_columns(benchmark, benchmark_servers(benchmark))


def refusal(row):
    """Return the reason of a row whose values are all refused."""
    full = with_run_columns({"id": "r", **row})
    wrong = impossible_number(full, "serving")
    if wrong:
        return wrong
    found = predict_row(
        full,
        0,
        benchmark_servers,
        lambda benchmark: replayed_columns(benchmark, benchmark_servers(benchmark)),
        shipped_intervals(),
    )
    assert found
    assert {one.predicted for one in found} == {None}
    (reason,) = {one.reason for one in found}
    return reason


@pytest.mark.parametrize(
    ("text", "method", "drafts", "verified", "mean"),
    [
        ("MTP", "mtp", None, None, None),
        ("MTP1", "mtp", 1, None, None),
        ("mtp-3", "mtp", 3, None, None),
        ("NEXTN", "mtp", None, None, None),
        ("EAGLE 3-1-4", "eagle", 3, None, None),
        ("EAGLE-3 5-4-8", "eagle", 5, 8, None),
        ("EAGLE3", "eagle", None, None, None),
        ("EAGLE/MTP accept 2.46", "eagle", 3, None, 2.46),
        ("MTP6 accept 5.9", "mtp", 6, None, 5.9),
        ("DSpark", "dspark", None, None, None),
        ("MTP simulated (60 % accept)", "mtp", 1, None, 1.6),
    ],
)
def test_drafts_are_read_as_tables_write_them(text, method, drafts, verified, mean):
    found = drafts_of(text)
    assert (found.method, found.draft_tokens, found.verified_tokens) == (method, drafts, verified)
    if mean is None:
        assert found.acceptance_fraction is None
    else:
        assert expected_tokens_per_round(found.acceptance_fraction, float(drafts)) == pytest.approx(mean)


def test_usual_heads_accept_what_operators_count():
    """Ant Group counted 1.8 to 1.9, 2.4 to 2.7 and 2.9 to 3.3 tokens a round of 1, 2 and 3 drafts of DeepSeek-R1."""
    tokens = 1.0 + np.cumsum(np.cumprod(USUAL_ACCEPTANCE))
    assert [
        (low <= mean <= high)
        for mean, (low, high) in zip(tokens, ((1.8, 1.9), (2.4, 2.7), (2.9, 3.3)), strict=True)
    ] == [True] * 3


def test_an_acceptance_is_the_one_of_the_row_else_of_the_model_else_the_usual_one():
    r1, glm = (read_model(name, offline=True) for name in ("deepseek-ai/DeepSeek-R1", "zai-org/GLM-5.2-FP8"))
    kimi = read_model("moonshotai/Kimi-K2-Instruct", offline=True)

    def plan(text, network):
        return drafting_of_run(drafts_of(text), network)

    assert plan("MTP1", r1)[0].acceptance_fractions == (0.85,)
    assert plan("MTP3", r1)[0].acceptance_fractions == USUAL_ACCEPTANCE
    assert plan("MTP3", glm)[0].acceptance_fractions[0] == pytest.approx(0.84)
    assert plan("MTP3 accept 2.95", glm)[0].acceptance_fractions == (acceptance_of_round(2.95, 3),)
    assert plan("EAGLE 3-1-4", r1)[0].method == "mtp"
    assert plan("MTP2", kimi)[0].method == "eagle"
    assert len(plan("MTP5", r1)[0].acceptance_fractions) == 5
    for text in ("MTP", "MTP3", "EAGLE/MTP accept 2.46"):
        assert all("spec_decode" in one.replace for one in plan(text, r1)[1])
        assert plan(text, r1)[1]


@given(
    st.integers(1, 500),
    st.floats(1.0, 5000.0),
    st.floats(0.001, 100.0),
    st.floats(1e-4, 0.5),
    st.floats(0.0, 1e5),
)
def test_the_answers_of_a_closed_loop_follow_from_its_figures(clients, output, ttft_s, tpot_s, prompt):
    each_s = ttft_s + (output - 1.0) * tpot_s
    for tokens, moved in ((0.0, output), (prompt, prompt + output)):
        rate = clients * moved / each_s
        if abs(1.0 - rate * tpot_s / clients) > 1e-3:
            assert implied_output_tokens(clients, rate, ttft_s, tpot_s, tokens) == pytest.approx(
                output, rel=1e-6
            )


def test_a_missing_output_is_derived_and_its_throughput_is_no_test():
    row = {**ROW, "osl": "", "output_tok_s": "400", "ttft_ms_mean": "1000", "tpot_ms_mean": "10"}
    benchmark = benchmark_of(row)
    assert benchmark.output_tokens == round(400 * 0.99 / (8 - 4))
    found = {
        one.metric: one
        for one in predict_row(
            row,
            0,
            benchmark_servers,
            lambda _: {"output_tok_s": 1.0, "ttft_ms_mean": 1.0, "tpot_ms_mean": 1.0},
            shipped_intervals(),
        )
    }
    assert found["output_tok_s"].predicted is None
    assert "no test" in found["output_tok_s"].reason
    assert found["ttft_ms_mean"].predicted == 1.0


@pytest.mark.parametrize(
    ("cells", "place", "expected"),
    [
        ({"tp": "1", "ep": "16/32"}, 0, Sharding(1.0, 1.0, 16.0, 16.0)),
        ({"tp": "1", "ep": "16/32"}, 1, Sharding(1.0, 1.0, 32.0, 32.0)),
        ({"tp": "4/8"}, 1, Sharding(8.0)),
        ({"ep": "8", "dp": "1"}, 0, Sharding(8.0, 1.0, 8.0, 1.0)),
        ({"ep": "32", "dp": "32"}, 0, Sharding(1.0, 1.0, 32.0, 32.0)),
        ({"tp": "8", "ep": "8", "dp": "attn-dp"}, 0, Sharding(1.0, 1.0, 8.0, 8.0)),
        ({"tp": "8", "dp": "1/attn-dp"}, 1, Sharding(1.0, 1.0, 8.0, 8.0)),
        ({"layout": "tp"}, 0, Sharding(8.0)),
        ({"layout": "dep"}, 0, Sharding(1.0, 1.0, 8.0, 8.0)),
        ({"pp": "1"}, 0, None),
    ],
)  # fmt: skip
def test_two_degrees_tell_the_third(cells, place, expected):
    assert stated_sharding(cells, 8.0, place) == expected


@given(st.integers(1, 12), st.sampled_from([1, 2, 4, 8, 16, 32]), st.booleans())
def test_the_engines_of_a_pool_fill_its_gpus(servers, ranks, data):
    gpus = 4.0 * servers
    cells = {"ep": str(ranks), "dp": str(ranks), "tp": "1"} if data else {"tp": str(ranks)}
    count, sharding, assumed = pool_of_gpus(cells, gpus, "prefill", both=True)
    assert count * sharding.devices == gpus
    assert bool(assumed) == (gpus % ranks > 0)


def test_pools_are_replayed_and_divide_their_rates_by_their_own_gpus():
    row = {**ROW, "num_gpus": "6", "prefill_gpus": "4", "decode_gpus": "2", "tp": "2", "requests": "80"}
    benchmark = benchmark_of(row)
    assert [count for count, _ in benchmark.deployment.pools] == [2, 1]
    columns = columns_of(row)
    assert columns["output_tok_s_per_gpu"] == pytest.approx(columns["output_tok_s"] / 2)
    assert columns["input_tok_s_per_gpu"] == pytest.approx(
        (columns["total_tok_s"] - columns["output_tok_s"]) / 4
    )
    assert columns["ttft_ms_p50"] > 0.0


def test_a_decode_engine_is_its_batch_over_the_time_of_a_token():
    columns = columns_of(DECODE)
    assert columns["output_tok_s_per_gpu"] * columns["tpot_ms_mean"] / 1e3 == pytest.approx(16.0)
    assert columns["output_tok_s"] == pytest.approx(2 * columns["output_tok_s_per_gpu"])
    two = columns_of({**DECODE, "num_gpus": "4"})
    assert two["output_tok_s"] == pytest.approx(2 * columns["output_tok_s"])
    assert (
        columns_of({**DECODE, "spec_decode": "EAGLE 3-1-4 accept 3.0"})["tpot_ms_mean"]
        < columns["tpot_ms_mean"]
    )
    implied = benchmark_of(
        {**DECODE, "batch_per_gpu": "", "output_tok_s_per_gpu": "2000", "tpot_ms_mean": "8"}
    )
    assert implied.batch_per_gpu == pytest.approx(16.0)
    full = columns_of({**DECODE, "batch_per_gpu": ""})
    assert full["output_tok_s"] > columns["output_tok_s"]


def test_a_prefill_engine_is_a_closed_loop_of_prompts():
    full = columns_of(PREFILL)
    assert not any(name.startswith(("ttft", "tpot")) for name in full)
    one = columns_of({**PREFILL, "concurrency": "1"})
    assert one["input_tok_s"] <= full["input_tok_s"]
    assert one["ttft_ms_mean"] / 1e3 * one["input_tok_s"] == pytest.approx(2048.0, rel=0.02)
    hits = columns_of({**PREFILL, "prefix_hit_fraction": "0.5"})
    assert hits["input_tok_s"] > 1.3 * full["input_tok_s"]


def test_a_step_has_one_prompt_of_each_group():
    step = columns_of({**ROW, "kind": "step_time"})
    first = columns_of({**PREFILL, "concurrency": "1"})
    layers = len(read_model(ROW["model_hf_id"], offline=True).layers)
    assert step["layer_us"] * layers == pytest.approx(1e3 * step["step_ms"])
    assert step["step_ms"] == pytest.approx(first["ttft_ms_mean"], rel=0.5)


def test_lengths_of_benchmarks_are_spread_as_their_tools_spread_them():
    """SGLang's bench draws from 1 to the nominal length, and a row has the means; InferenceX draws 0.8 to 1.0 of it."""
    prompts, answers = drawn_lengths(
        "random uniform 1..nominal (range_ratio 0) nominal 1000/1000", (500.0, 505.0), 5000
    )
    assert np.mean(prompts) == pytest.approx(500.0, rel=0.03)
    assert np.std(prompts) == pytest.approx(1000.0 / np.sqrt(12.0), rel=0.03)
    assert answers.min() < 20.0
    found = benchmark_of(
        {
            **ROW,
            "isl": "1024",
            "osl": "1024",
            "length_distribution": "uniform 0.8-1.0 of nominal (InferenceX)",
        }
    )
    assert (found.input_tokens, found.output_tokens) == pytest.approx((921.6, 921.6))
    prompts, _ = drawn_lengths(found.lengths, (found.input_tokens, found.output_tokens), 5000)
    assert prompts.min() >= 818.0
    assert prompts.max() <= 1025.0


def test_a_rate_per_gpu_counts_where_no_total_is_measured():
    assert set(measured_columns({**ROW, "output_tok_s_per_gpu": "9"})) == {"output_tok_s_per_gpu"}
    assert set(measured_columns({**ROW, "output_tok_s": "9", "output_tok_s_per_gpu": "9"})) == {
        "output_tok_s"
    }
    assert set(measured_columns({**PREFILL, "input_tok_s": "9", "input_tok_s_per_gpu": "9"})) == {
        "input_tok_s"
    }
    assert set(measured_columns({**ROW, "output_tok_s": "9", "input_tok_s": "9"})) == {"output_tok_s"}


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("vllm+llm-d", "vllm"),
        ("sglang+dynamo", "sglang"),
        ("TRTLLM+Dynamo", "trtllm"),
        ("moreh-vllm", "vllm"),
        ("deepseek-internal", "sglang"),
    ],
)
def test_the_engine_inside_is_named_as_an_assumption(text, engine):
    found, _, assumed = engine_inside(text)
    assert found == engine
    assert [one.replace for one in assumed] == ["engine"]
    assert assumed[0].what.startswith(f"{text} is replayed as {engine}")


@pytest.mark.parametrize(
    ("notes", "columns"),
    [
        ("isl/osl are the run means; 80 requests; date is the snapshot", {"requests": "80"}),
        ("998 of 1000 ok; output cap 4000", {"requests": "1000"}),
        ("10 prompts per slot, 2 per slot warm-up", {"requests_per_client": "10"}),
        ("57674 in tok/s per node, 16,384 tokens/GPU per batch", {"tokens_per_gpu_step": "16384"}),
        ("V3.2 NVFP4, max-num-batched-tokens 20480 instead; max-num-batched-tokens 32768", {"max_num_batched_tokens": "20480"}),
        ("214 TOTAL tok/s/GPU; low-latency TP", {"total_tok_s_per_gpu": "214", "layout": "tp"}),
        ("2708 TOTAL tok/s/GPU; balanced DP+DeepEP", {"total_tok_s_per_gpu": "2708", "layout": "dep"}),
        ("68.9 tok/s per user, MTP on per model card", {"spec_decode": "MTP"}),
        ("prefix hit up to about 0.94", {"most_prefix_hit_fraction": "0.94"}),
        ("TP8 + decode context parallel 8: KV capacity x8", {"dcp": "8"}),
        ("about 100K input; tpot column holds ITL; v2 runner arm", {"tpot_is": "ITL"}),
        ("p1w1d1w1; tpot columns hold ITL p50/p99; guide gives seconds", {"tpot_is": "ITL"}),
        ("100 requests submitted at once", {}),
    ],
)  # fmt: skip
def test_notes_in_words_are_columns(notes, columns):
    assert noted_columns(notes) == columns


def test_gaps_between_tokens_seldom_have_the_prompts_of_others():
    """The median gap is a step without prompts; the median of the requests' means has its share of all of them."""
    row = {**ROW, "isl": "16384", "concurrency": "16", "tpot_ms_p50": "5"}
    gaps, means = (
        columns_of({**row, "notes": notes})["tpot_ms_p50"] for notes in ("tpot column holds ITL", "")
    )
    alone = columns_of({**row, "concurrency": "1"})["tpot_ms_p50"]
    assert alone < gaps < 0.8 * means
    drafts = [
        columns_of({**row, "spec_decode": "MTP3", "notes": notes})["tpot_ms_p50"]
        for notes in ("tpot column holds ITL", "")
    ]
    assert drafts[0] == drafts[1], "tokens of a round come together"


@pytest.mark.parametrize(
    ("changes", "sequences"),
    [
        ({"engine_version": "0.5.9", "spec_decode": "EAGLE/MTP accept 2.5"}, 48),
        ({"engine_version": "0.5.9"}, None),
        ({"engine_version": "0.5.15", "model_hf_id": "deepseek-ai/DeepSeek-V4-Flash", "weights_dtype": "fp4"}, 256),
        ({"engine_version": "0.5.15", "model_hf_id": "deepseek-ai/DeepSeek-V4-Flash", "weights_dtype": "fp4", "tp": "4", "ep": "4", "dp": "4"}, 64),
        ({"engine_version": "0.5.9", "spec_decode": "EAGLE/MTP accept 2.5", "notes": "max_num_seqs=100"}, 100),
    ],
)  # fmt: skip
def test_a_run_of_sglang_has_the_limit_of_its_engine(changes, sequences):
    """`max_running_requests` of srt/server_args.py, 0.4.6 to 0.5.9, and srt/arg_groups after: of all groups of attention together."""
    row = {
        **ROW,
        "engine": "sglang",
        "gpu": "B200",
        "num_gpus": "4",
        "tp": "4",
        "model_hf_id": "deepseek-ai/DeepSeek-R1",
        "weights_dtype": "fp8",
    }
    row |= {"num_gpus": "8", "tp": "8"} if changes.get("weights_dtype") is None else {}
    assert benchmark_spec(benchmark_of(with_run_columns({**row, **changes}))).max_num_seqs == sequences


def test_notes_name_a_gpu_only_where_they_name_one():
    assert noted_gpu("hardware from the surrounding recipe: 8xH200") == {"gpu": "H200", "num_gpus": "8"}
    assert (
        noted_gpu("8xH200 or 4xB200 unclear")
        == noted_gpu("GPU unclear (H20 or H200)")
        == noted_gpu("TP8PP2")
        == {}
    )
    assert {device(name).name for name in ("H20-96G", "H800", "GB300", "MI355X")} == {
        "h20",
        "h800-sxm",
        "gb300",
        "mi355x",
    }


@pytest.mark.parametrize(("cells", "line"), rows("measured")["published"])
def test_a_refused_row_says_why_and_the_way_out_in_one_line(cells, line):
    reason = refusal({**ROW, "output_tok_s": "100", **cells})
    assert line in reason
    assert "\n" not in reason


def test_checkpoints_of_others_are_the_shipped_model_in_their_dtype():
    assert stated_checkpoint("amd/DeepSeek-R1-MXFP4-Preview", "auto")[:2] == ("DeepSeek-R1", "mxfp4")
    assert stated_checkpoint("tencent/Hy3-FP8", "fp8")[:2] == ("Hy3", "fp8")
    for known in ("nvidia/GLM-5.2-NVFP4", "Qwen/Qwen3-0.6B", "nobody/nothing-FP8", "./configs/mine-FP8"):
        assert stated_checkpoint(known, "auto") == (known, "auto", ())


def test_a_whole_layout_on_more_gpus_is_that_many_engines():
    row = {**ROW, "tp": "", "ep": "8", "dp": "8", "num_gpus": "24"}
    assert benchmark_of(row).deployment.replicas == 3
    assert benchmark_of(row).sharding == Sharding(1.0, 1.0, 8.0, 8.0)
    with pytest.raises(InputError, match="does not use all 24 GPUs"):
        benchmark_of({**ROW, "tp": "8", "num_gpus": "24"})


def test_hits_are_those_of_the_row_else_its_most_else_those_of_agents():
    agents = {**ROW, "length_distribution": "agentic multi-turn trace, mean input about 55K"}
    for cells, hits, assumed in (
        ({}, 0.94, True),
        ({"prefix_hit_fraction": "0.5"}, 0.5, False),
        ({"notes": "prefix hit up to about 0.9"}, 0.9, True),
        ({"length_distribution": "fixed"}, 0.0, False),
    ):
        found = benchmark_of(with_run_columns({**agents, **cells}))
        assert found.cached_fraction == hits
        assert any(one.replace == "prefix_hit_fraction" for one in found.assumptions) == assumed


def test_a_closed_loop_without_clients_is_full_or_all_at_once():
    assert benchmark_of({**ROW, "concurrency": "", "output_tok_s": "9"}).kind == "online_conc"
    at_once = {**ROW, "concurrency": "", "ttft_ms_mean": "9"}
    assert benchmark_of({**at_once, "requests": "50"}).kind == "online_burst"
    assert benchmark_of({**at_once, "source": "GPUStack performance lab"}).kind == "online_burst"
    assert benchmark_of({**ROW, "requests": "50"}).kind == "online_conc"


@pytest.mark.parametrize(
    ("version", "date", "expected"),
    [
        ("nightly 2026-02", "", "0.15.1"),
        ("commit 947927bdb", "2026-05-01", "0.20.0"),
        ("v0.14.1", "2026-05-01", "v0.14.1"),
        ("", "2026-02-13", "0.15.1"),
    ],
)
def test_versions_in_words_are_the_release_of_their_day(version, date, expected):
    full = with_run_columns({**ROW, "engine_version": version, "date": date})
    assert benchmark_of(full).engine_version == expected
