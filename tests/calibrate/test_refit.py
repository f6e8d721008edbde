"""Refits from result files find the host times that the results were made with, and every command takes them."""

import hashlib
import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from calibrate.choose_rows import of_one_server
from capplan.accuracy.benchmark import benchmark_of
from capplan.accuracy.replay import Servers, replayed_columns
from capplan.calibrate import refit as refit_module
from capplan.calibrate.refit import refitted, run_of
from capplan.engine.lookup import profile
from capplan.engine.profile import HostOverhead
from capplan.errors import InputError
from capplan.questions.benchmark_spec import benchmark_spec
from capplan.questions.validation import replica_of_result
from capplan.readers.calibration.file import calibration_text, read_calibration, read_calibration_file
from capplan.readers.calibration.refitted import refitted_overhead
from capplan.readers.catalogue.hardware import device
from capplan.recorded.results.read import read_results
from capplan.recorded.results.record import BenchmarkResult, latency
from capplan.replica.replica import replica_of
from capplan.report.answers.calibrate import refit_answer
from capplan.report.tables import grid_of
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from tests.asked import asked_of
from tests.files import written_to

ROOT = Path(__file__).resolve().parents[2]
MODEL = "llama-3.1-8b"
TRUE = {
    "step_s": 3e-3,
    "sequence_s": 4e-5,
    "request_s": 0.06,
    "decode_excess_ratio": 1.0,
    "prefill_excess_ratio": 1.2,
}
"""A host slower than the one that the engine has here."""


RATIOS = (0.99, 0.994, 0.998, 1.002, 1.006, 1.01)
"""Of runs repeated as they were."""


def result(concurrency, tpot_s=None, ttft_s=None, **more):
    values = {
        "tool": "vllm bench serve",
        "path": f"{concurrency}.json",
        "model": MODEL,
        "hardware": "h100-sxm",
    }
    lengths = {"input_tokens": 1000.0, "output_tokens": 200.0, "requests": 20 * int(concurrency or 1)}
    spreads = {"tpot_s": latency(tpot_s), "ttft_s": latency(ttft_s)}
    return BenchmarkResult(**(values | lengths | spreads | more), concurrency=concurrency)


@pytest.fixture(scope="module")
def spec():
    return replica_of_result(result(1.0), ServingFlags(offline=True))


def results_with(spec, numbers, concurrencies=(1, 4, 16, 64), lengths=(100.0, 400.0)):
    """Return results that a replica with these host times would have measured."""
    host = HostOverhead.of_named(spec.profile.host.named | numbers)
    made = []
    for concurrency in map(float, concurrencies):
        for tokens in lengths:
            more = {"output_tokens": tokens, "path": f"{concurrency:g}-{tokens:g}.json"}
            tpot_s, ttft_s = run_of(result(concurrency, 1.0, 1.0, **more), spec).replayed_s(host)
            made.append((result(concurrency, tpot_s, ttft_s, **more), spec))
    return made


@pytest.fixture(scope="module")
def refit(spec):
    return refitted(results_with(spec, TRUE))


@pytest.fixture(scope="module")
def host_file(refit, tmp_path_factory):
    path = tmp_path_factory.mktemp("host") / "host.calibration.yaml"
    path.write_text(calibration_text(None, refit))
    return path


@pytest.mark.long
def test_the_error_falls_and_the_numbers_come_back(refit):
    assert refit.after_median_ape < 0.01 < refit.before_median_ape
    assert refit.left_out_median_ape < 0.03
    assert (refit.results, len(refit.points)) == (8, 16)
    for name, value in TRUE.items():
        found = refit.numbers[name]
        assert found.low <= value <= found.high, name


@pytest.mark.long
def test_many_results_are_left_out_some_at_a_time(spec, monkeypatch):
    """So that the time of a refit grows as its results, not as their square."""
    left_out = []
    without = refit_module._Problem.without
    monkeypatch.setattr(refit_module, "MOST_GROUPS", 3)
    monkeypatch.setattr(
        refit_module._Problem,
        "without",
        lambda self, runs, *more: left_out.append([*runs]) or without(self, runs, *more),
    )
    found = refitted(results_with(spec, TRUE))
    assert left_out == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert found.left_out_median_ape < 0.05


@pytest.mark.long
def test_numbers_that_the_results_cannot_tell_are_said(spec):
    (one, _), *_ = results_with(spec, TRUE, (8,), (200.0,))
    bare = [(replace(one, ttft_s=latency(), tpot_s=latency(one.tpot_s.mean * r)), spec) for r in RATIOS]
    found = refitted(bare)
    for name in ("request_s", "sequence_s", "decode_excess_ratio"):
        assert not found.numbers[name].constrained, name
        assert any(name in remark and "not constrained" in remark for remark in found.remarks)
    assert found.numbers["request_s"].value == pytest.approx(spec.profile.host.request_s, rel=0.01)


def test_a_refit_needs_a_usable_result(spec):
    with pytest.raises(InputError, match="0 usable results of 1: a refit needs at least 1") as raised:
        refitted([(result(4.0), spec)])
    assert "no time per output token" in str(raised.value)
    with pytest.raises(InputError, match="0 usable results of 0"):
        refitted([])


@pytest.mark.long
def test_one_result_is_matched_and_leaves_wide_intervals(spec, refit):
    one = refitted(results_with(spec, TRUE, (16,), (400.0,)))
    assert one.after_median_ape < 0.03 < one.before_median_ape
    for name in ("step_s", "sequence_s", "request_s"):
        alone, many = one.numbers[name], refit.numbers[name]
        assert (alone.high - alone.low) / alone.value > (many.high - many.low) / many.value, name
    assert not any(number.constrained for number in one.numbers.values())


def test_measured_and_replayed_times_share_a_unit(refit):
    """Otherwise a row shows 12,000 ms measured next to 9.1 s replayed."""
    points = tuple(replace(point, after_s=1.5e3 * point.after_s) for point in refit.points)
    table = refit_answer(replace(refit, points=points), None).tables[0]
    headings = [heading for heading in grid_of(table).headings if "(" in heading]
    assert len(headings) == 4
    assert {heading.rpartition(" ")[2] for heading in headings} == {"(ms)"}


@pytest.fixture(scope="module")
def processor(spec):
    return replace(spec, device=replace(spec.device, architecture="cpu"))


def rows(**ratios):
    """Return the host times of a processor with these ratios of rows."""
    return {name: TRUE[name] for name in ("step_s", "sequence_s", "request_s")} | ratios


@pytest.mark.long
def test_a_batch_that_suits_the_kernels_of_a_processor_less_is_found(processor):
    """Two sequences take 25 % longer than one or four do, as with matrix products that work on blocks of rows."""
    made = results_with(
        processor, rows(rows_1_ratio=1.0, rows_2_ratio=1.25, rows_4_ratio=1.0), (1, 2, 4, 8), (400.0,)
    )
    found = refitted(made)
    assert found.after_median_ape < 0.02
    assert found.numbers["rows_2_ratio"].value / found.numbers["rows_1_ratio"].value > 1.1
    assert [name for name in found.numbers if name.startswith("rows_")] == [
        f"rows_{measured}_ratio" for measured in (1, 2, 4, 8, 1000)
    ]


@pytest.mark.long
def test_decode_steps_that_streams_show_are_each_met(processor):
    """Batches of three and six suit the kernels better than two, four and eight, which have no loop of their own."""
    true = {1: 1.0, 2: 1.2, 3: 0.8, 4: 1.1, 6: 0.75, 8: 1.1}
    numbers = rows(**{f"rows_{sequences}_ratio": ratio for sequences, ratio in true.items()})
    host = HostOverhead.of_named(processor.profile.host.named | numbers)
    steps = []
    for sequences in map(float, true):
        seen = result(sequences, 1.0, kind="decode", context_tokens=1100.0)
        (seconds,) = run_of(seen, refit_module._with_rows(processor, list(true))).replayed_s(host)
        steps.append((replace(seen, tpot_s=latency(seconds)), processor))
    found = refitted(results_with(processor, numbers, (1, 8), (400.0,)), steps)
    assert [point.sequences for point in found.steps] == list(true)
    assert all(point.after_s == pytest.approx(point.measured_s, rel=0.03) for point in found.steps)
    assert found.results == 2  # steps are no loads, and none is left out
    alone = refitted(results_with(processor, numbers, (1, 8), (400.0,)))
    assert not alone.steps
    assert "rows_3_ratio" not in alone.numbers


@pytest.mark.long
def test_prompts_that_suit_the_kernels_of_a_processor_less_are_found(processor):
    """Steps with 512 tokens take 20 % longer than the rate at 128 tokens says."""
    made = [
        (replace(one, input_tokens=tokens, path=f"{one.path}-{tokens:g}"), own)
        for tokens in (128.0, 512.0)
        for one, own in results_with(processor, {}, (1, 2, 4), (100.0,))
    ]
    host = HostOverhead.of_named(processor.profile.host.named | rows(rows_128_ratio=1.0, rows_512_ratio=1.2))
    timed = []
    for one, own in made:
        tpot_s, ttft_s = run_of(one, own).replayed_s(host)
        timed.append((replace(one, tpot_s=latency(tpot_s), ttft_s=latency(ttft_s)), own))
    found = refitted(timed)
    assert found.after_median_ape < 0.02
    assert found.numbers["rows_512_ratio"].value / found.numbers["rows_128_ratio"].value > 1.1


def test_the_kernels_of_a_gpu_suit_every_number_of_rows(refit):
    own = [name for name in (*refit.numbers, *refit.kept) if name.startswith("rows_")]
    assert own == []
    assert refit.kept["decode_attention_ratio"] == 1.0


def slow_device(factor):
    """Return results of a replica on a device whose rates are lower than its record says."""
    return {**TRUE, "compute_rate_ratio": factor, "memory_rate_ratio": factor}


@pytest.mark.long
@pytest.mark.parametrize("factor", [0.25, 0.35, 1.25])
def test_results_of_a_device_that_its_record_misses_teach_its_rates(spec, factor):
    made = results_with(spec, slow_device(factor), (1, 4, 16, 64), (100.0, 400.0))
    found = refitted(made)
    assert found.left_out_median_ape < 0.05
    if factor > 1.0:  # within the datasheet: faster steps are explained, by kernels or by the host
        assert found.before_median_ape > 0.05
        return
    assert found.before_median_ape > 0.2
    for name in ("compute_rate_ratio", "memory_rate_ratio"):
        assert found.numbers[name].value < 0.7, name


@pytest.mark.long
def test_copies_of_one_result_count_once(spec):
    made = results_with(spec, TRUE, (1, 4, 16), (100.0, 400.0))
    copies = [(replace(result, path=f"copy-of-{result.path}"), own) for result, own in made]
    found = refitted([*made, *copies])
    assert found.results == 6
    assert sum("holds the same run as" in remark for remark in found.remarks) == 6


def test_results_of_two_devices_are_not_mixed(spec):
    made = results_with(spec, TRUE, (1, 2, 4), (200.0,))
    other = replica_of_result(result(1.0, hardware="h200-sxm"), ServingFlags(offline=True))
    with pytest.raises(InputError, match="several devices: h100-sxm, h200-sxm"):
        refitted([*made, *((r, other) for r, _ in made)])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"concurrency": None}, "neither its concurrency nor its request rate"),
        ({"input_tokens": None}, "lengths are not known"),
        ({"tpot_s": latency()}, "no time per output token"),
        ({"accepted_tokens_per_step": 2.5}, "speculative decoding"),
    ],
)
def test_a_result_that_cannot_be_used_says_why(changed, words, spec):
    assert words in run_of(replace(result(4.0, 0.01), **({"requests": None} | changed)), spec)


@pytest.mark.parametrize(
    ("changed", "kind", "metrics"),
    [
        ({}, "online_conc", {"tpot_s", "ttft_s"}),
        ({"concurrency": None, "request_rate_per_s": 2.0}, "online_rate", {"tpot_s", "ttft_s"}),
        ({"kind": "decode", "context_tokens": 1100.0}, "static_batch", {"tpot_s"}),
        ({"kind": "prefill"}, "static_batch", {"ttft_s"}),
        ({"kind": "offline", "tpot_s": latency(), "ttft_s": latency(), "output_tokens_per_s": 1e3}, "offline_max", {"token_s"}),
        ({"kind": "static_batch", "tpot_s": latency(), "ttft_s": latency(), "e2e_s": latency(3.0)}, "static_batch", {"e2e_s"}),
    ],
)  # fmt: skip
def test_every_kind_of_result_is_replayed_as_what_it_was(changed, kind, metrics, spec):
    run = run_of(replace(result(4.0, 0.01, 0.1), **changed), spec)
    assert (run.benchmark.kind, {value.metric for value in run.values}) == (kind, metrics)
    assert all(seconds > 0 for seconds in run.replayed_s(spec.profile.host))


def test_a_result_without_model_or_hardware_names_the_flags():
    with pytest.raises(InputError, match="give --model and --hardware"):
        replica_of_result(replace(result(1.0), model=None, hardware=None), ServingFlags())


def test_a_refit_comes_back_from_its_file(refit, host_file):
    back = read_calibration_file(host_file)
    assert back.kernels is None
    assert calibration_text(None, back.host) == host_file.read_text()
    for name, number in refit.numbers.items():
        assert back.host.numbers[name].value == pytest.approx(number.value, rel=1e-5)
    with pytest.raises(InputError, match="no measured kernels"):
        read_calibration(host_file)


def with_checksum(values, path):
    """Write a file whose checksum is that of these values, as another version of capplan would have written it."""
    body = {key: value for key, value in values.items() if key not in ("schema_version", "checksum")}
    checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
    path.write_text(json.dumps({**values, "checksum": checksum}))
    return path


def test_a_refit_from_before_streams_were_counted_is_read(host_file, tmp_path):
    values = yaml.safe_load(host_file.read_text())
    assert values["host"]["kept"].pop("stream_s") == 0.0
    path = with_checksum(values, tmp_path / "older.calibration.yaml")
    assert read_calibration_file(path).host == read_calibration_file(host_file).host


def test_a_negative_host_time_is_refused_by_its_key(host_file, tmp_path):
    values = yaml.safe_load(host_file.read_text())
    values["host"]["numbers"]["step_s"]["low"] = -1.0
    path = with_checksum(values, tmp_path / "negative.calibration.yaml")
    with pytest.raises(
        InputError, match=r"host\.numbers\.step_s\.low: -1\.0 should be greater than or equal to 0"
    ):
        read_calibration_file(path)


def test_kernels_and_host_share_a_file(calibration, refit, tmp_path):
    path = written_to(tmp_path / "both.calibration.yaml", calibration_text(calibration, refit))
    back = read_calibration_file(path)
    assert back.host.numbers.keys() == refit.numbers.keys()
    assert len(back.kernels.measurements) == len(calibration.measurements)


@pytest.mark.parametrize(
    ("old", "new"), [("step_s: {value: ", "step_s: {value: 9"), ("  points:\n", "  points:\n  - {}\n"), ("hardware: h100-sxm", "hardware: h200-sxm")]
)  # fmt: skip
def test_a_changed_refit_is_refused(old, new, host_file, tmp_path):
    path = tmp_path / "changed.calibration.yaml"
    assert old in host_file.read_text()
    path.write_text(host_file.read_text().replace(old, new))
    with pytest.raises(InputError, match=r"changed\.calibration\.yaml"):
        read_calibration_file(path)


def test_host_times_of_another_version_of_the_schema_are_refused(refit, tmp_path):
    path = tmp_path / "other.calibration.yaml"
    path.write_text(calibration_text(None, replace(refit, kept={**refit.kept, "warp_s": 1.0})))
    with pytest.raises(InputError, match="warp_s is missing or not known"):
        read_calibration_file(path)


def test_every_replica_takes_the_refitted_host(refit, host_file):
    asked = asked_replica(MODEL, "h100-sxm", ServingFlags(calibration=host_file, offline=True))
    for name in TRUE:
        assert getattr(asked.spec.profile.host, name) == pytest.approx(refit.numbers[name].value, rel=1e-5)
    assert asked.spec.profile.host.eager_layer_s == profile("vllm").host.eager_layer_s
    lines = [line.what for line in asked.assumptions if "host times" in line.what]
    assert len(lines) == 1
    assert "8 results of vllm bench serve" in lines[0]


def test_host_times_of_another_engine_or_device_are_refused(host_file):
    with pytest.raises(InputError, match="refitted for vllm, not for sglang"):
        asked_replica(MODEL, "h100-sxm", ServingFlags(engine="sglang", calibration=host_file, offline=True))
    with pytest.raises(InputError, match="refitted on h100-sxm, not on h200-sxm"):
        asked_replica(MODEL, "h200-sxm", ServingFlags(calibration=host_file, offline=True))


def test_host_times_of_another_version_are_used_and_said(host_file):
    asked = asked_replica(
        MODEL, "h100-sxm", ServingFlags(engine_version="0.5.4", calibration=host_file, offline=True)
    )
    assert any("are used for 0.5.4" in warning for warning in asked.warnings)


@pytest.mark.long
def test_the_command_refits_from_files_and_estimate_uses_what_it_wrote(capplan, tmp_path, spec):
    """Round trip: what the results measured at a concurrency is what estimate says of it afterwards, and not before."""
    paths, tpots = [], {}
    for made, _ in results_with(spec, TRUE, lengths=(200.0, 500.0)):
        values = {
            "completed": made.requests, "duration": 1.0, "total_input_tokens": 1000 * made.requests,
            "total_output_tokens": made.requests * made.output_tokens,
            "model_id": "alias", "max_concurrency": made.concurrency, "mean_ttft_ms": made.ttft_s.mean * 1e3,
            "mean_tpot_ms": made.tpot_s.mean * 1e3,
        }  # fmt: skip
        tpots[made.concurrency, made.output_tokens] = made.tpot_s.mean
        paths.append(tmp_path / made.path)
        paths[-1].write_text(json.dumps(values))
    path = tmp_path / "host.calibration.yaml"
    place = ("--hardware", "h100-sxm", "--offline", "--format", "json")
    ran = capplan("calibrate", "--from", *paths, "--model", MODEL, *place, "-o", path)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)["result"]
    assert found["after"]["median_ape"] < found["before"]["median_ape"]
    assert set(found["fitted"]) == {*TRUE, "compute_rate_ratio", "memory_rate_ratio", "link_rate_ratio"}
    assert found["file"] == str(path)
    load = ("--concurrency", "16", "--input-tokens", "1000", "--output-tokens", "500")
    errors = []
    for more in ((), ("--calibration", path)):
        ran = capplan("estimate", MODEL, *load, *more, *place)
        assert ran.code == 0, ran.err
        answer = json.loads(ran.out)
        errors.append(abs(answer["result"]["tpot_s"]["mean"] / tpots[16.0, 500.0] - 1.0))
    assert errors[1] < 0.05 < errors[0]
    assert any("host times of vllm" in str(line) for line in answer["assumptions"])


@pytest.mark.long
def test_a_measured_device_is_refitted_with_its_own_kernels_and_one_file_has_both(capplan, tmp_path):
    """Results on a processor whose calibration is shipped: the host is 50 ms per step slower than any that is known here."""
    written = ROOT / "calibrate" / "devices" / "intel-xeon-1-thread.calibration.yaml"
    own = asked_replica(
        "qwen3-0.6b", "cpu", ServingFlags(calibration=written, max_model_len=2048, offline=True)
    ).spec
    more = {"model": "qwen3-0.6b", "hardware": "cpu", "input_tokens": 64.0, "output_tokens": 32.0}
    slow = replace(own.profile.host, step_s=0.05)
    paths = []
    for concurrency in (1.0, 2.0, 3.0, 4.0, 6.0, 8.0):
        tpot_s, ttft_s = run_of(result(concurrency, 1.0, 1.0, **more), own).replayed_s(slow)
        values = {
            "completed": 20 * concurrency, "duration": 1.0, "total_input_tokens": 1280 * concurrency,
            "total_output_tokens": 640 * concurrency, "max_concurrency": concurrency,
            "mean_ttft_ms": ttft_s * 1e3, "mean_tpot_ms": tpot_s * 1e3,
        }  # fmt: skip
        paths.append(tmp_path / f"{concurrency:g}.json")
        paths[-1].write_text(json.dumps(values))
    path = tmp_path / "both.calibration.yaml"
    place = ("--hardware", "cpu", "--offline", "--format", "json")
    ran = capplan(
        "calibrate --from", *paths, "--model", "qwen3-0.6b", *place, "--calibration", written, "-o", path
    )
    assert ran.code == 0, ran.err
    back = read_calibration_file(path)
    assert back.kernels == read_calibration(written)
    assert back.host.hardware == "cpu"
    tpots = []
    for file in (written, path):
        words = shlex.split("--input-tokens 64 --output-tokens 32 --max-model-len 2048 --concurrency 1")
        found = capplan.result("estimate", "qwen3-0.6b", *words, *place, "--calibration", file)
        tpots.append(found["tpot_s"]["mean"])
    assert 0.04 < tpots[1] - tpots[0] < 0.06


@pytest.mark.long
def test_a_refit_on_some_measured_results_helps_the_others(measured, tmp_path):
    """gpt-oss-120b on B200s under vLLM 0.13.0: refitted on every other result, judged on the rest by the path of validate."""
    rows = [row for row in measured.table("runs") if of_one_server(row)]
    assert len(rows) >= 16
    runs = []
    for row in rows[::2]:
        values = {
            "hw": row["gpu"], "conc": float(row["concurrency"]), "model": row["model_hf_id"], "framework": "vllm",
            "tp": int(float(row["tp"])), "pp": 1, "ep": 1, "isl": float(row["isl"]) / 0.9, "osl": float(row["osl"]) / 0.9,
            "output_tput_per_gpu": 1.0, "mean_ttft": float(row["ttft_ms_mean"]) / 1e3, "mean_tpot": float(row["tpot_ms_mean"]) / 1e3,
        }  # fmt: skip
        path = written_to(tmp_path / f"{row['id']}.json", values)
        runs += read_results(path, engine_version="0.13.0")
    found = refitted([(run, replica_of_result(run, ServingFlags(offline=True))) for run in runs])
    path = written_to(tmp_path / "b200.calibration.yaml", calibration_text(None, found))
    errors = {}
    for calibration in (None, path):
        for row in rows[1::2]:
            benchmark = benchmark_of(row)
            columns = replayed_columns(benchmark, Servers(replica_of(benchmark_spec(benchmark, calibration))))
            errors.setdefault(calibration, []).append(
                abs(columns["tpot_ms_mean"] / float(row["tpot_ms_mean"]) - 1.0)
            )
    assert np.median(errors[path]) < 0.05
    assert np.median(errors[path]) < np.median(errors[None])


@pytest.mark.long
def test_a_fleet_takes_the_refitted_host_of_its_device_alone(host_file):
    text = "\n".join([
        "name: chat", f"model: {MODEL}", f"calibration: {host_file}", "traffic:", "  - {name: chat, request_rate: 5 req/s, "
        "input_tokens: {mean: 500}, output_tokens: {mean: 100}}", "slo: {tpot_p95: 50 ms}", "fleet: {hardware: [%s]}",
    ])  # fmt: skip
    path = written_to(host_file.parent / "chat.yaml", text % "h100-sxm")
    asked = asked_of(path)
    own, refitted_s = device("h100-sxm"), refitted_overhead(read_calibration_file(host_file).host).step_s
    assert asked.question.profile_on(own).host.step_s == pytest.approx(refitted_s)
    assert any("host times" in line.what for line in asked.assumptions)
    path.write_text(text % "h200-sxm, h100-sxm")
    both = asked_of(path)
    assert both.question.profile_on(own).host.step_s == pytest.approx(refitted_s)
    assert both.question.profile_on(device("h200-sxm")).host == profile("vllm").host
    assert any("h200-sxm keeps the host times" in line for line in both.warnings)
    path.write_text(text % "h200-sxm")
    with pytest.raises(InputError, match="refitted on h100-sxm, not on h200-sxm"):
        asked_of(path)


def test_measured_rows_of_the_same_engine_device_and_version_take_the_refitted_host(host_file):
    from capplan.readers.calibration.refitted import row_profile

    newest, old, other = profile("vllm"), profile("vllm", "0.5.4"), profile("sglang")
    own = device("h100-sxm")
    assert row_profile(host_file, newest, own).host != newest.host
    assert row_profile(host_file, newest, device("h200-sxm")) == newest
    assert row_profile(host_file, old, own) == old
    assert row_profile(host_file, other, own) == other
    assert row_profile(None, newest, own) == newest


def test_a_refit_is_compared_with_what_the_engine_has_here(capplan, host_file):
    found = capplan.result("calibrate", "--compare", host_file, "h100-sxm")
    rows = {row["quantity"]: row for row in found["rows"]}
    assert rows["host vllm step_s"]["second"] == profile("vllm").host.step_s
    assert rows["host vllm step_s"]["ratio"] > 1.5
    found = capplan.result("calibrate", "--compare", host_file, host_file)
    assert all(row["agrees"] for row in found["rows"] if row["ratio"] is not None)


def test_a_refit_that_takes_kernels_beyond_the_datasheet_is_refused():
    """A run of four GPUs, replayed on one: no host time explains it, and the refit would make every later plan too small."""
    four = replica_of_result(result(1.0, tensor_parallel=4), ServingFlags(offline=True))
    runs = results_with(four, {}, (64,), (400.0,))
    one = replica_of_result(result(1.0), ServingFlags(offline=True))
    with pytest.raises(InputError, match=r"contradict the stated replica.*times the datasheet") as raised:
        refitted([(measured, one) for measured, _ in runs])
    assert "-tp" in str(raised.value)
    assert refitted(runs).after_median_ape < 0.05
