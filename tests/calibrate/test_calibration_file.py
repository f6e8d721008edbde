"""The file: comes back as it was written, refused where it was changed or is older."""

import gzip
import json
import re
import shlex
from pathlib import Path

import pytest

from capplan.errors import InputError
from capplan.readers.calibration.file import calibration_text, read_calibration, read_calibration_file
from capplan.readers.calibration.record import SCHEMA_VERSION
from capplan.readers.calibration.refitted import refitted_overhead
from capplan.readers.catalogue.hardware import planned_device
from tests.files import written_to

ROOT = Path(__file__).resolve().parents[2]
VERSION = f"schema_version: {SCHEMA_VERSION}"


def test_a_file_comes_back_as_it_was_measured(calibration, written):
    back = read_calibration(written)
    assert back.machine == calibration.machine
    assert len(back.measurements) == len(calibration.measurements)
    for key, fit in calibration.fitted.items():
        for name, number in fit.numbers.items():
            assert back.fitted[key].numbers[name].value == pytest.approx(number.value, rel=1e-5)
    assert calibration_text(back) == written.read_text()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: re.sub(r"memory_bytes_per_s: [0-9.]+", "memory_bytes_per_s: 9.9e+12", text, count=1), "edited or truncated"),
        (lambda text: text[: text.rindex("- {operator")], "edited or truncated"),
        (lambda text: text[: len(text) // 3], ""),
        (lambda text: text.replace(VERSION, "schema_version: 3"), "schema_version 3 is not read, only 4"),
        (lambda text: text.replace(f"{VERSION}\n", ""), "has no schema_version"),
        (lambda text: text.replace("quick: true", "quick: true\nwarp: 9"), "unknown key 'warp'"),
        (lambda text: text.replace("repeats: ", "repeats: -"), "repeats"),
        (lambda _text: "just: a file\n", "has no schema_version"),
        (lambda _text: "", "is empty"),
    ],
)  # fmt: skip
def test_a_changed_or_foreign_file_is_refused_in_one_line(change, words, written, tmp_path):
    path = written_to(tmp_path / "changed.calibration.yaml", change(written.read_text()))
    with pytest.raises(InputError) as raised:
        read_calibration(path)
    first = str(raised.value).splitlines()[0]
    assert words in first
    assert "changed.calibration.yaml" in first


def test_an_efficiency_file_of_the_catalogue_is_not_mistaken_for_a_calibration():
    path = next((ROOT / "hardware_specs" / "efficiency").glob("*.yaml"))
    with pytest.raises(InputError, match="efficiency file of the catalogue"):
        read_calibration(path)


XEON = ROOT / "calibrate" / "devices" / "intel-xeon-1-thread.calibration.yaml"
ON_A_PROCESSOR = """name: small
model: qwen3-0.6b
calibration: {calibration}
weight_dtype: bf16
kv_dtype: bf16
max_model_len: 2048
max_num_seqs: 4
traffic: [{{name: chat, request_rate: 0.02 req/s, input_tokens: 64, output_tokens: 8}}]
fleet: {{hardware: [{hardware}]}}
"""


@pytest.mark.parametrize("hardware", ["cpu", "measured"])
def test_a_scenario_for_a_processor_takes_the_kernels_of_its_calibration(capplan, tmp_path, hardware):
    """The catalogue has a larger processor by the name of cpu, whose kernels are borrowed."""
    path = written_to(tmp_path / "small.yaml", ON_A_PROCESSOR.format(calibration=XEON, hardware=hardware))
    words = shlex.split("--hardware cpu --replicas 1 --until '200 s' --warm-up '0 s' --offline --format json")
    ran = capplan("simulate", path, *words)
    assert ran.code in (0, 4), ran.err
    assert "borrowed" not in ran.out
    load = shlex.split("--concurrency 1 --input-tokens 64 --output-tokens 8 --offline --format json")
    dtypes = ("--weight-dtype", "bf16", "--kv-dtype", "bf16", "--max-model-len", "2048")
    said = capplan.result("estimate qwen3-0.6b --hardware cpu --calibration", XEON, *dtypes, *load)["tpot_s"][
        "mean"
    ]
    assert json.loads(ran.out)["result"]["tpot_s"]["p50"] == pytest.approx(said, rel=0.02)


def test_a_calibration_of_a_card_leaves_the_processor_of_the_catalogue_as_it_is():
    card = XEON.with_name("h100-sxm.calibration.yaml")
    assert planned_device("cpu", str(card)).title == planned_device("cpu", None).title
    assert planned_device("cpu", str(XEON)).title != planned_device("cpu", None).title


def test_host_times_of_an_earlier_version_are_read(tmp_path):
    """A fit of a live vLLM that was written before a step waited for the launches of quantised products and latent attention."""
    kept = ROOT / "calibrate" / "live" / "results" / "fitted-2026-11-25.calibration.yaml.gz"
    text = gzip.decompress(kept.read_bytes()).decode()
    assert "eager_latent_s" not in text
    path = written_to(tmp_path / "fitted.calibration.yaml", text)
    host = refitted_overhead(read_calibration_file(path).host)
    assert (host.eager_latent_s, host.eager_scaled_s) == (0.0, 0.0)
    assert host.step_s > 0.0
