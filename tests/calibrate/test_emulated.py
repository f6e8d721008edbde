"""Formats that a device only emulates are never timed, and never stand for one that it has units for, or the other way round."""

import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.calibrate.machine import abilities_of, processor_abilities, product_rates
from capplan.calibrate.measure import calibrated
from capplan.calibrate.shapes import cases
from capplan.engine.lookup import profile
from capplan.errors import Refusal
from capplan.fleet.search.candidates import Ranges, layouts
from capplan.model.weight_format import in_weight_format
from capplan.operators.device_rates import device_rates
from capplan.readers.calibration.file import calibration_text, read_calibration
from capplan.readers.calibration.measured_device import device_from_calibration, efficiency_from_calibration
from capplan.readers.catalogue.models import read_model
from tests.calibrate.faked.card import A100, T4, Card
from tests.files import written_to

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "calibrate" / "devices" / "intel-xeon-1-thread.calibration.yaml"
V100 = Card("v100-sxm-32gb", "Tesla V100-SXM2-32GB", "7.0", T4.ratio)
LOAD = ("--concurrency", "1", "--input-tokens", "64", "--output-tokens", "8", "--offline")
MODEL = "qwen3-0.6b"


def in_format(name):
    return ("--weight-dtype", name, "--kv-dtype", name)


@given(
    st.fixed_dictionaries({"fp32": st.floats(1e9, 1e12)}),
    st.dictionaries(st.sampled_from(["bf16", "fp16", "int8"]), st.floats(0.02, 30.0)),
)
def test_a_format_is_native_if_its_products_are_at_least_half_as_fast_as_those_of_fp32(wide, ratios):
    rates = wide | {name: ratio * wide["fp32"] for name, ratio in ratios.items()}
    able = processor_abilities(rates)
    slow = {name for name, rate in rates.items() if rate < 0.5 * wide["fp32"]}
    assert set(able.emulated) == slow
    assert {able.wide, *able.formats} == set(rates) - slow
    assert able.wide == next(name for name in ("bf16", "fp16", "fp32") if name in rates and name not in slow)
    planned = {
        case.dtype for case in cases(able, quick=False) if case.operator not in ("copy", "read", "launch")
    }
    assert planned == set(rates) - slow


def test_this_processor_shows_its_formats_in_its_first_second():
    rates = product_rates(1)
    assert {"fp32", "bf16", "fp16"} <= set(rates)
    assert min(rates.values()) > 1e6


ASKS = (
    "import time; from capplan.calibrate.machine import opened; begin = time.thread_time(); target = opened('cpu')\n"
    "print(target.abilities.wide, *target.machine.emulated, time.thread_time() - begin)"
)


@pytest.mark.long
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="an instruction set of x86")
def test_a_processor_with_avx2_alone_is_timed_in_fp32():
    """This processor, of whose units libraries are told to use no newer ones."""
    limited = os.environ | {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", ASKS],
        cwd=ROOT,
        env=limited,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    wide, *emulated, seconds = done.stdout.split()
    assert (wide, emulated) == ("fp32", ["bf16", "fp16"])
    assert float(seconds) < 1.0


@pytest.mark.parametrize(
    ("capability", "wide", "emulated"),
    [("7.0", "fp16", ("bf16",)), ("7.5", "fp16", ("bf16",)), ("8.0", "bf16", ())],
)
def test_cards_before_ampere_have_no_units_for_bf16(capability, wide, emulated):
    able = abilities_of(capability)
    assert (able.wide, able.emulated) == (wide, emulated)


@pytest.mark.parametrize(
    ("card", "wide"), [(T4, "fp16"), (V100, "fp16"), (A100, "bf16")], ids=["T4", "V100", "A100"]
)
def test_a_card_is_timed_in_its_own_16_bits_and_the_file_says_which(card, wide, insert, tmp_path, capplan):
    _, target = insert(card)
    lines = []
    found = calibrated(
        target, quick=True, planned=cases(target.abilities, quick=True)[::3], tell=lines.append
    )
    lacks = wide == "fp16"
    said = [line for line in found.remarks if "only emulates bf16: fp16 is timed" in line]
    assert bool(said) == lacks
    assert set(said) <= set(lines)
    assert {m.dtype for m in found.measurements if m.operator == "matmul"} & {"bf16", "fp16"} == {wide}
    path = written_to(tmp_path / "card.calibration.yaml", calibration_text(found))
    assert read_calibration(path).machine.emulated == (("bf16",) if lacks else ())
    words = ("estimate", MODEL, "--hardware", "measured", "--calibration", path, *LOAD)
    plain, half = capplan(*words, *in_format("bf16")), capplan(*words, *in_format("fp16"))
    assert half.code == 0, half.err
    assert plain.code == (2 if lacks else 0)
    if lacks:
        assert f"{card.name} only emulates bf16" in plain.err
        assert "--weight-dtype fp16" in plain.err


def on_a_processor(path, rates, emulated, formats):
    """Write the calibration of a processor, with the shipped fits under the names of other formats; return its path."""
    own = read_calibration(SHIPPED)
    kernels = ("matmul", "attention", "experts", "latent_attention", "elementwise")
    fitted = {f"{kernel}/{name}": own.fitted[f"{kernel}/bf16"] for kernel in kernels for name in formats}
    found = replace(
        own,
        machine=replace(own.machine, emulated=emulated),
        peaks=replace(own.peaks, flop_per_s=rates),
        fitted={**fitted, "launch/fp32": own.fitted["launch/fp32"]},
    )
    path.write_text(calibration_text(found))
    return path


@pytest.fixture
def old(tmp_path):
    """Return the calibration of a processor that emulates both formats of 16 bits."""
    rates = {"fp32": 1e11, "int8": 2e11}
    return on_a_processor(tmp_path / "old.calibration.yaml", rates, ("bf16", "fp16"), ("fp32",))


def test_nothing_is_predicted_in_a_format_that_a_processor_emulates(old, capplan):
    place = ("--hardware", "cpu", "--calibration", old)
    for name in ("bf16", "fp16"):
        message = capplan.refused("estimate", MODEL, *place, *LOAD, *in_format(name))
        assert f"only emulates {name}, which its calibration did not time" in message
        assert "--weight-dtype fp32 and --kv-dtype fp32" in message
    assert "only emulates bf16" in capplan.refused("estimate", MODEL, *place, *LOAD)


def test_what_was_timed_is_what_is_used(old, capplan):
    """In fp32 no kernel that was timed is marked as borrowed, and twice the rate halves the time of a long prompt."""
    ran = capplan(
        f"estimate {MODEL} --hardware cpu --calibration {old}", *LOAD, *in_format("fp32"), "--format", "json"
    )
    assert ran.code == 0, ran.err
    answer = json.loads(ran.out)
    words = " ".join(str(line) for line in answer["assumptions"])
    assert not re.search(
        r"(matmul|attention|experts|elementwise) in \w+: ", words.replace("linear_attention", "")
    )


def test_formats_that_no_unit_of_a_processor_multiplies_are_marked_as_borrowed(old, capplan):
    """Matrices in four bits would be multiplied in fp32; the others of such a model are in bf16, and refused."""
    own = device_from_calibration(old)
    efficiency = efficiency_from_calibration(old, own)
    rates = device_rates(own, efficiency, weight_format="w4a16-g128", kv_format="fp32", engine="vllm")
    assert any("matmul in w4a16: efficiencies of fp32" in line.what for line in rates.assumptions)
    assert rates.matmul.flop_per_s == own.peak_flop_per_s["fp32"]
    assert rates.matmul_activation_bytes == 4.0
    place = (
        "--hardware",
        "cpu",
        "--calibration",
        old,
        *LOAD,
        "--weight-dtype",
        "w4a16-g128",
        "--kv-dtype",
        "fp32",
    )
    assert "only emulates bf16" in capplan.refused("estimate", MODEL, *place)


def test_fp32_on_a_processor_that_was_timed_in_bf16_is_marked_as_borrowed(tmp_path, capplan):
    path = on_a_processor(tmp_path / "new.calibration.yaml", {"bf16": 1e12}, ("fp16",), ("bf16",))
    place = ("--hardware", "cpu", "--calibration", path, *LOAD, "--format", "json")
    ran = capplan("estimate", MODEL, *place, *in_format("fp32"))
    assert ran.code == 0, ran.err
    said = " ".join(str(line) for line in json.loads(ran.out)["assumptions"])
    for kernel in ("matmul", "attention"):
        assert f"{kernel} in fp32: efficiencies of bf16" in said
    plain = capplan("estimate", MODEL, *place)
    assert (plain.code, "efficiencies of bf16" in plain.out) == (0, False)
    assert "only emulates fp16" in capplan.refused("estimate", MODEL, *place, *in_format("fp16"))


@pytest.mark.parametrize("name", ["bf16", "fp32"])
def test_a_search_refuses_layouts_in_emulated_formats_and_takes_others(name, old):
    network = in_weight_format(read_model(MODEL, offline=True), name)
    ranges = Ranges((1,), (1,), kv_formats=(name,))
    legal, rejected = layouts(network, [device_from_calibration(old)], ranges, profile("vllm"))
    assert bool(legal) == (name == "fp32")
    assert {reason.code for _, reason in rejected} == ({Refusal.WEIGHT_DTYPE} if name == "bf16" else set())


def test_the_kernels_of_a_gpu_never_stand_for_those_that_a_processor_was_timed_with(old):
    """An elementwise pass on a processor was predicted with the launch of an H100, which quantises."""
    efficiency = efficiency_from_calibration(old, device_from_calibration(old))
    measured = {key.partition("/")[0] for key, fit in efficiency.fits.items() if fit.label == "measured"}
    assert measured == {"matmul", "attention", "experts", "latent_attention", "elementwise"}
    assert not [
        key
        for key, fit in efficiency.fits.items()
        if fit.label != "measured" and key.partition("/")[0] in measured
    ]


def test_the_words_name_formats_and_how_much_slower_they_are(target):
    able = processor_abilities({"fp32": 80e9, "bf16": 10e9, "fp16": 16e9, "int8": 100e9})
    words = replace(target, abilities=able).emulated_words
    assert "only emulates bf16 and fp16, 5.0 times slower than fp32 or more: fp32 is timed" in words
    assert replace(target, abilities=processor_abilities({"fp32": 1.0, "bf16": 2.0})).emulated_words == ""
