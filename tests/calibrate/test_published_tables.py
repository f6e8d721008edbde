"""Published deployments on the page of accuracy, and files that scripts write into the package, character by character."""

import csv

import numpy as np
import pytest

from calibrate.fit_kernels import CATALOGUE_NAMES, HEAD
from calibrate.fit_serving import PUBLISHED_TABLE, host_times_text, intervals_text
from calibrate.interval_fit import of_dense
from calibrate.published_tables import (
    PublishedRun,
    furthest_published,
    published_claims,
    published_groups,
    published_judgements,
    published_refusals,
    published_residuals,
    published_runs,
    published_section,
    published_table,
)
from calibrate.targets import PUBLISHED
from capplan.accuracy.bounded import unmeasured_width
from capplan.accuracy.score import Prediction
from capplan.engine.lookup import HOST_TIMES_FILE, host_times
from capplan.readers.catalogue.efficiency import (
    INTERVALS_FILE,
    efficiency_folder,
    efficiency_text,
    intervals_in,
    read_efficiency,
    shipped_slowness,
)
from capplan.replica.replica import replica_of
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica

ROWS = [
    {"id": "d1", "source": "a", "kind": "decode_only", "num_gpus": "72", "batch_per_gpu": "256", "gpu": "H100", "engine": "sglang", "model_hf_id": "o/R1"},
    {"id": "d2", "source": "a", "kind": "decode_only", "num_gpus": "8"},
    {"id": "s1", "source": "b", "kind": "online_conc", "num_gpus": "8", "concurrency": "1"},
    {"id": "s2", "source": "b", "kind": "online_conc", "num_gpus": "8", "concurrency": "64"},
    {"id": "p1", "source": "b", "kind": "online_conc", "num_gpus": "16", "prefill_gpus": "8", "decode_gpus": "8", "concurrency": "64"},
    {"id": "x1", "source": "c (experimental token-position sweep)", "kind": "online_conc", "num_gpus": "8", "concurrency": "16"},
    {"id": "n1", "source": "c", "kind": "offline_max"},
]  # fmt: skip
PREDICTIONS = [
    Prediction("d1", "output_tok_s", 100.0, 130.0, 90.0, 170.0),
    Prediction("d2", "output_tok_s_per_gpu", 100.0, 90.0, 80.0, 120.0),
    Prediction("s1", "ttft_ms_p50", 100.0, 150.0, 90.0, 160.0),
    Prediction("s1", "tpot_ms_mean", 10.0, 9.0, 8.0, 11.0),
    Prediction("s2", "tpot_ms_mean", 10.0, 5.0, 4.0, 7.0),
    Prediction("p1", "output_tok_s", 10.0, 12.0, 4.0, 17.0),
    Prediction("x1", "tpot_ms_mean", 10.0, 1.0, 0.5, 2.0),
    Prediction("n1", "output_tok_s", 10.0, None, reason="isl: missing"),
]


def published(gpu, measured_ms, predicted_ms=10.0, model="a"):
    replica = replica_of(asked_replica("gpt-oss-120b", gpu, ServingFlags(offline=True)).spec)
    return PublishedRun(replica, model, "b", [Prediction("r", "tpot_ms_mean", measured_ms, predicted_ms)])


def test_a_published_run_stands_for_mixtures_only_and_for_a_timed_device():
    near, far, foreign = (
        published_residuals([published(gpu, 20.0)])[0] for gpu in ("h100-sxm", "mi300x", "tpu-v5p")
    )
    assert near.log_ratio == pytest.approx(np.log(2.0))
    assert far.log_ratio == pytest.approx(np.log(2.0) / unmeasured_width(1))
    assert foreign.log_ratio == pytest.approx(np.log(2.0) / unmeasured_width(2))
    assert all(of_dense(key) is False for key in near.keys)


def test_a_claim_counts_what_was_no_slower_than_it_allows_and_a_model_eight_times_at_most():
    """A hundred runs of one model are far too slow, two of another are as predicted: each model weighs as much as its rows, at most eight."""
    slow, right = [published("h100-sxm", 100.0)] * 100, [published("h100-sxm", 10.0, model="c")] * 2
    (claim,) = published_claims([*slow, *right], shipped_slowness()).values()
    assert claim.held == pytest.approx(2 / 10)
    assert (claim.values, claim.models) == (102, 2)


@pytest.mark.long
def test_the_shipped_claims_are_those_of_the_published_runs(shared):
    found = published_claims(published_runs(shared / "data" / PUBLISHED_TABLE), shipped_slowness())
    for name, claim in shipped_slowness().published.items():
        assert (claim.values, claim.models) == (found[name].values, found[name].models)
        assert claim.held == pytest.approx(found[name].held, abs=1e-3)


def test_runs_count_by_phase_servers_and_load():
    assert [published_groups(row) for row in ROWS] == [
        ("decode pool",), ("decode pool",), ("one server", "low load"), ("one server",), ("separate pools",), ("one server",), ("offline_max",),
    ]  # fmt: skip


def test_scores_are_of_their_group_and_leave_out_what_is_not_judged():
    judged = {entry.target.title: entry for entry in published_judgements(ROWS, PREDICTIONS)}
    assert set(judged) == {target.title for target in PUBLISHED}
    assert judged["decode pools, output tokens/s"].value == pytest.approx(0.1)
    assert judged["decode pools, output tokens/s, nine of ten"].value == pytest.approx(0.3)
    assert judged["decode pools, output tokens/s, nine of ten"].met
    assert judged["TTFT at low load"].value == pytest.approx(0.5)
    assert judged["one server, closed loop, TPOT"].score.n == 2
    assert judged["separate pools, output tokens/s"].met
    assert judged["prefill pools, input tokens/s"].value is None


def test_each_value_of_a_predicted_run_has_a_line_with_its_interval():
    table = published_table(ROWS, PREDICTIONS)
    assert len(table.rows) == 7
    assert table.csv().splitlines()[1] == (
        "d1,a,R1,72 x H100,sglang,decode pool,256,output tokens/s,130,90,170,100"
    )
    assert [row[0] for row in furthest_published(table).rows][:2] == ["x1", "s2"]
    assert published_refusals(PREDICTIONS, ROWS).rows == [["isl: missing", "1"]]


def test_the_section_is_that_of_a_file(tmp_path):
    path = tmp_path / "published.csv"
    row = {
        "id": "r1", "source": "s", "engine": "vllm+llm-d", "engine_version": "", "date": "2026-02", "model_hf_id": "openai/gpt-oss-20b", "weights_dtype": "mxfp4",
        "gpu": "H200", "num_gpus": "1", "tp": "1", "isl": "2000", "osl": "500", "batch_per_gpu": "32", "kind": "decode_only", "output_tok_s_per_gpu": "3000",
        "spec_decode": "EAGLE 3-1-4",
    }  # fmt: skip
    refused = {**row, "id": "r2", "gpu": "Ascend 910C"}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, row)
        writer.writeheader()
        writer.writerows([row, refused])
    page = published_section(path)
    text = page.text
    assert "1 of 2 published runs are predicted, 50 % (" in text
    assert "| vllm+llm-d is replayed as vllm | engine | 1 |" in text
    assert "unknown hardware 'Ascend 910C'" in text
    (line,) = page.files["published-deployments"].rows
    assert line[:8] == [
        "r1",
        "s",
        "gpt-oss-20b",
        "1 x H200",
        "vllm+llm-d",
        "decode pool",
        "32",
        "output tokens/s",
    ]
    assert "| r1 | gpt-oss-20b | 1 x H200 | vllm+llm-d | decode pool | 32 | output tokens/s |" in text


def test_shipped_host_times_can_be_written_again():
    assert host_times_text(host_times()) == HOST_TIMES_FILE.read_text(encoding="utf-8")


def test_shipped_intervals_can_be_written_again():
    assert intervals_text(intervals_in(INTERVALS_FILE)) == INTERVALS_FILE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("file", "names"), CATALOGUE_NAMES.values())
def test_shipped_efficiencies_can_be_written_again(file, names):
    path = efficiency_folder() / f"{file}.yaml"
    assert efficiency_text(read_efficiency(path)[0], names, HEAD) == path.read_text(encoding="utf-8")
