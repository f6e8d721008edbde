"""Kernels of engines where their libraries are installed: timed beside torch's, named in their rows, and taken for their own fits."""

import pytest

from capplan.calibrate.kernels.case import Case
from capplan.calibrate.kernels.engines import ENGINES, engines_on
from capplan.calibrate.machine import abilities_of
from capplan.calibrate.measure import calibrated
from capplan.calibrate.shapes import cases
from capplan.readers.calibration.file import calibration_text
from capplan.readers.calibration.measured_device import efficiency_from_calibration
from capplan.readers.catalogue.efficiency import efficiency_for
from tests.calibrate.faked import engines
from tests.calibrate.faked.card import A100, H200
from tests.files import written_to

STREAMS = [Case("read", "fp32", {"moved_bytes": float(2**power)}) for power in range(16, 28)]


def test_without_the_libraries_nothing_of_engines_is_planned():
    assert not any(case.library for case in cases(abilities_of("9.0"), quick=False))


def test_each_library_is_timed_on_the_cards_it_is_built_for():
    everywhere = {library for _, library in engines_on(abilities_of("8.0"), has=lambda _name: True)}
    assert everywhere == {"flashinfer", "vllm"}
    assert {library for _, library in engines_on(abilities_of("9.0"), has=lambda _name: True)} == {
        library for _, library in ENGINES
    }
    assert not engines_on(abilities_of("gfx942"), has=lambda _name: True)
    assert not engines_on(abilities_of(""), has=lambda _name: True)


@pytest.mark.long
def test_kernels_of_engines_replace_their_own_fits_and_no_others(insert, monkeypatch, tmp_path):
    state, target = insert(H200)
    engines.install(monkeypatch, state)
    planned = [
        case for case in cases(target.abilities, quick=False) if case.library or case.operator == "matmul"
    ]
    chosen = {}
    for case in planned:
        chosen.setdefault(case.kind, []).append(case)
    few = [
        case
        for kind, group in chosen.items()
        for case in group[:: max(len(group) // 16, 1)]
        if kind[1] in ("bf16", "fp8", "fp8_block")
    ]
    found = calibrated(target, quick=True, planned=[*STREAMS, *few])
    assert not found.missing, found.remarks
    assert {m.library for m in found.measurements} >= {library for _, library in ENGINES}
    path = written_to(tmp_path / "h200.calibration.yaml", calibration_text(found))
    record, own = (
        efficiency_for(target_device := H200.device),
        efficiency_from_calibration(path, target_device),
    )
    for key in (
        "attention/bf16@vllm:flash", "attention/bf16@sglang:flash", "matmul/fp8@vllm", "matmul/fp8_block@vllm",
        "matmul/fp8_block@sglang", "latent_attention/bf16@vllm", "experts/bf16@vllm:unquantizedfusedmoe_triton_tritonexperts",
    ):  # fmt: skip
        assert path.name in own.fits[key].fitted_on, key
        assert "scaled by" not in own.fits[key].fitted_on or ";" in own.fits[key].fitted_on, key
    for key in ("attention/bf16@trtllm:own", "matmul/fp8@trtllm", "experts/bf16@sglang:fused_moe_triton"):
        assert "scaled by" in own.fits[key].fitted_on
    assert set(record.fits) == set(own.fits)
    for name in (
        "FlashAttention 3",
        "FlashMLA",
        "DeepGEMM",
        "vLLM's CUTLASS product",
        "vLLM's Triton experts",
    ):
        assert name in own.merged.what


@pytest.mark.long
def test_a_library_whose_call_has_changed_is_dropped_and_named(insert, monkeypatch):
    state, target = insert(A100)
    engines.install(monkeypatch, state)

    def other(*_words):
        raise TypeError("fused_experts() missing 1 required positional argument: 'activation'")

    import sys

    monkeypatch.setattr(sys.modules["vllm.model_executor.layers.fused_moe"], "fused_experts", other)
    planned = [case for case in cases(target.abilities, quick=False) if case.operator == "experts"][::3]
    found = calibrated(target, quick=True, planned=[*STREAMS, *planned])
    assert found.missing == ("experts in bf16 of vllm",)
    assert any("missing 1 required positional argument" in line for line in found.remarks)
    assert "experts/bf16" in found.fitted


@pytest.mark.parametrize("library", ["flash_attn_interface", "flash_mla"])
def test_on_other_cards_a_hopper_library_stands_for_nothing(library):
    assert library not in {name for _, name in engines_on(abilities_of("8.9"), has=lambda _name: True)}
