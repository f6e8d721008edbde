"""Layers of real models on virtual cards: cold, routed many ways, and without a traceback where torch lacks a kernel."""

import pytest

from capplan.calibrate.layers import layer_bytes
from capplan.calibrate.measure import calibrated
from capplan.calibrate.shapes import cases
from capplan.calibrate.verify import layer_copies, touched_layer_bytes, verified
from capplan.model.network import layer_counts
from capplan.readers.calibration.file import calibration_text
from capplan.readers.calibration.measured_device import device_from_calibration, torch_efficiency
from capplan.readers.catalogue.models import read_model
from tests.calibrate.faked.card import A100, B200, T4
from tests.calibrate.faked.cuda import CudaError
from tests.tables import table


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Keep the calibration of every card that was measured."""
    return tmp_path_factory.mktemp("cards")


@pytest.fixture
def proofs(insert, monkeypatch, folder):
    """Calibrate a card, once, and verify a model on it; return the proofs and what was said."""
    monkeypatch.setattr("capplan.calibrate.verify.CUDA_DECODES", ((1, 512), (32, 4096)))
    monkeypatch.setattr("capplan.calibrate.verify.CUDA_PREFILLS", ((1, 256), (1, 4096)))
    monkeypatch.setattr("capplan.calibrate.verify.MOST_COPIES", 2)

    def of(card, model, fault=None):
        state, target = insert(card)
        path = folder / f"{card.entry}.calibration.yaml"
        if not path.exists():
            found = calibrated(target, quick=True, planned=cases(target.abilities, quick=True)[::3])
            path.write_text(calibration_text(found))
        if fault:
            state.faults.append(fault(state))
        own, lines = device_from_calibration(path), []
        network = read_model(model, offline=True)
        return verified(
            network, target, own, torch_efficiency(path, own), quick=True, tell=lines.append
        ), lines

    return of


@pytest.mark.parametrize(
    ("card", "model"),
    [(A100, "qwen3-30b-a3b"), (T4, "qwen3-0.6b"), (B200, "deepseek-v2-lite")],
    ids=["MoE on an A100", "fp16 on a T4", "MLA on a B200"],
)
def test_layers_run_on_every_card_and_stand_beside_their_prediction(card, model, proofs):
    rows, _ = proofs(card, model)
    assert {p["phase"] for p in rows} == {"prefill", "decode"}
    assert all(p["measured_s"] > 0 and p["predicted_s"] > 0 for p in rows)


@pytest.mark.long
def test_experts_that_torch_cannot_run_are_left_out_with_a_line(proofs):
    def broken(state):
        def fault(called, _tensors):
            if called == "index_add_":
                raise CudaError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED")

        return fault

    from capplan.errors import InputError

    with pytest.raises(InputError, match="none of its layers can be built"):
        proofs(A100, "qwen3-30b-a3b", broken)


@pytest.mark.long
def test_a_card_that_is_lost_while_it_verifies_keeps_the_rows_so_far(proofs):
    def breaking(state):
        seen = []

        def fault(called, _tensors):
            seen.append(called)
            if called == "scaled_dot_product_attention" and seen.count(called) > 60:
                state.broken = "CUDA error: unspecified launch failure"
                state.check()

        return fault

    rows, lines = proofs(A100, "qwen3-0.6b", breaking)
    assert rows
    assert any("the device failed" in line for line in lines)


@pytest.mark.parametrize("model", ["qwen3-0.6b", "llama-3.1-8b", "qwen3-30b-a3b"])
def test_as_many_copies_of_a_layer_run_as_the_cache_forgets(model, insert):
    _, target = insert(B200)
    layer = layer_counts(read_model(model, offline=True))[0][0]
    copies = layer_copies(layer, target)
    assert copies >= 3
    assert copies * touched_layer_bytes(layer) >= 4 * 126e6
    assert copies * layer_bytes(layer) < target.usable_bytes


def test_a_dry_run_says_what_how_long_and_how_much_and_runs_nothing(insert, capplan):
    state, _ = insert(A100)
    before = dict(state.calls)
    result = capplan.result("calibrate", "--dry-run", "--device", "cuda", "--quick")
    assert result["device"] == "NVIDIA A100-SXM4-80GB"
    assert result["shapes"] == sum(row["shapes"] for row in result["rows"])
    assert 0 < result["seconds"] <= result["budget_s"]
    assert 0 < result["peak_bytes"] < 0.6 * result["free_bytes"]
    assert {"torch.mm", "copy_"} <= {row["library"] for row in result["rows"]}
    assert state.calls == before


@pytest.mark.long
def test_the_command_calibrates_a_card_and_shows_its_clock(insert, capplan, tmp_path, monkeypatch):
    insert(A100)
    monkeypatch.setattr(
        "capplan.calibrate.measure.cases", lambda able, *, quick: cases(able, quick=quick)[::3]
    )
    path = tmp_path / "a100.calibration.yaml"
    ran = capplan("calibrate", "--device", "cuda", "--quick", "-o", path)
    assert ran.code == 0, ran.err
    assert "clock 1980 MHz" in ran.out
    assert "clocks and settings are left unchanged" in ran.err
    used = capplan(
        f"estimate llama-3.1-8b --hardware a100-sxm-80gb --calibration {path} --concurrency 4 --input-tokens 500 --output-tokens 50 --offline"
    )
    assert used.code == 0, used.err
    assert "kernels of engines are kept and scaled" in " ".join(used.out.split())
    assert "was measured on NVIDIA A100-SXM4-80GB, not on h100-sxm" in capplan.refused(
        f"estimate llama-3.1-8b --hardware h100-sxm --calibration {path} --concurrency 4 --offline"
    )
    compared = capplan("calibrate", "--compare", path, path)
    assert "sustained matmul" in compared.out
    assert "clock [MHz]: 1980" in compared.out


@table
def test_what_cannot_be_done_is_one_line(words, said, insert, capplan):
    insert(A100)
    assert said in capplan.refused("calibrate", *words)


def test_a_busy_card_is_refused_with_who_uses_it_and_planned_anyway(insert, capplan, monkeypatch):
    insert(A100)
    monkeypatch.setattr(
        "capplan.calibrate.machine.busy_reason",
        lambda _p: "1 other process(es), the first with pid 7 (python)",
    )
    assert "is in use: 1 other process(es), the first with pid 7 (python)" in capplan.refused(
        "calibrate --device cuda -o x.yaml"
    )
    dry = capplan("calibrate", "--dry-run", "--device", "cuda", "--quick")
    assert dry.code == 0
    assert "pid 7 (python); a run needs --force" in dry.err
