"""Sensors and users of a card as drivers and their tools show them, and collectives on a card: in a graph where they can be captured."""

import stat
from types import SimpleNamespace

import pytest
import torch

from capplan.calibrate import collectives
from capplan.calibrate import machine as readings
from capplan.calibrate.collectives import Group
from capplan.calibrate.machine import Watch, busy_reason, opened, sensors_of
from capplan.errors import InputError
from tests.calibrate.faked.card import H200, MI300X
from tests.calibrate.faked.cuda import CudaError
from tests.tables import table

AMD = SimpleNamespace(name="AMD Instinct MI300X", uuid="1", pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0)


@pytest.fixture
def amd_files(tmp_path, monkeypatch):
    """The files of the amdgpu driver about one card."""
    folder = tmp_path / "0000:c1:00.0"
    sensors = folder / "hwmon" / "hwmon4"
    sensors.mkdir(parents=True)
    for place, text in {
        folder / "gpu_busy_percent": "0",
        folder / "mem_info_vram_used": "300000000",
        folder / "mem_info_vram_total": "206141652992",
        sensors / "freq1_input": "2100000000",
        sensors / "power1_average": "710000000",
        sensors / "temp1_input": "64000",
    }.items():
        place.write_text(text + "\n")
    monkeypatch.setattr(readings, "PCI_DEVICES", tmp_path)
    return folder


def test_an_amd_card_shows_clock_power_and_heat_in_files(amd_files):
    watch = Watch(sensors_of(AMD))
    watch.look()
    assert watch.range("clock_hz").median == 2.1e9
    assert watch.range("power_w").median == pytest.approx(710.0)
    assert watch.range("temperature_c").median == pytest.approx(64.0)
    assert watch.range("memory_clock_hz") is None
    assert not watch.is_hot()


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("gpu_busy_percent", "0", ""),
        ("gpu_busy_percent", "83", "utilisation is 83%"),
        ("mem_info_vram_used", "90000000000", "85831 of 196592 MiB are in use"),
        ("mem_info_vram_used", "odd", ""),
    ],
)
def test_an_amd_card_is_busy_by_its_files(file, text, said, amd_files):
    (amd_files / file).write_text(text)
    assert readings.busy_reason(AMD) == said


def test_without_a_driver_there_are_no_sensors(monkeypatch):
    def missing(_name):
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    monkeypatch.setattr(readings.ctypes, "CDLL", missing)
    watch = Watch(sensors_of(SimpleNamespace(name="a card", uuid="GPU-1")))
    watch.look()
    assert (watch.readings, watch.is_hot(), watch.range("clock_hz")) == ([], False, None)


@pytest.fixture
def ranks(monkeypatch):
    """Two ranks of which only this one runs: what the other says is always the same as here."""

    def gather(problems, problem):
        problems[:] = [problem] * len(problems)

    for name, function in {
        "all_gather_object": gather, "barrier": lambda: None, "all_reduce": lambda _values, **_more: None,
        "init_process_group": lambda *_words, **_more: None, "is_initialized": lambda: False,
    }.items():  # fmt: skip
        monkeypatch.setattr(collectives.distributed, name, function)
    return Group(0, 2, 2)


@pytest.mark.parametrize("card", [H200, MI300X], ids=lambda card: card.entry)
@pytest.mark.parametrize("capturable", [True, False])
def test_a_collective_is_timed_twenty_at_a_time_in_a_graph_where_it_can_be_captured(
    card, capturable, insert, ranks, monkeypatch
):
    state, target = insert(card)
    calls = []

    def reduce(_operator, _elements, _group, _target, _dtype):
        def call():
            calls.append(state.capturing is not None)
            if state.capturing is not None and not capturable:
                raise CudaError("CUDA error: operation not permitted when stream is capturing")
            state.kernel(50e-6)

        return call

    monkeypatch.setattr(collectives, "_call", reduce)
    monkeypatch.setattr(collectives, "OPERATORS", ("all_reduce",))
    monkeypatch.setattr(collectives, "CUDA_SIZES", (1024.0, 2.0**20))
    clock = SimpleNamespace(perf_counter=lambda: state.host_s)
    monkeypatch.setattr(collectives, "time", clock)
    rows = collectives.collective_times(ranks, target, quick=False, tell=print)
    assert [m.library for m in rows] == ["rccl" if card is MI300X else "nccl"] * 2
    assert [m.median_s for m in rows] == pytest.approx([50e-6] * 2, rel=0.15)
    assert sum(calls) == (2 * 20 if capturable else 2)


def test_one_rank_s_error_on_a_card_is_the_end_of_all(insert, ranks, monkeypatch):
    from capplan.errors import InputError

    state, target = insert(H200)

    def broken(*_words):
        def call():
            state.broken = "NCCL error: unhandled system error"
            state.check()

        return call

    def lost(*_words):
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(collectives, "_call", broken)
    skipped = []
    assert collectives.collective_times(ranks, target, quick=True, tell=skipped.append) == []
    assert "NCCL error" in skipped[0]
    monkeypatch.setattr(collectives.distributed, "all_gather_object", lost)
    with pytest.raises(InputError, match="rank 0 of 2: the collectives ended: Connection closed by peer"):
        collectives.collective_times(ranks, target, quick=True, tell=skipped.append)
    assert torch.cuda.is_available()


APPS, FIGURES = "--query-compute-apps", "--query-gpu=memory.used"


@pytest.fixture
def driver(tmp_path, monkeypatch):
    def says(apps, figures):
        tool = tmp_path / "nvidia-smi"
        tool.write_text(
            f'#!/bin/sh\ncase "$1" in {APPS}*) printf "{apps}";; {FIGURES}*) printf "{figures}";; esac\n'
        )
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return says


@table
def test_a_device_is_busy_when_others_hold_it(driver, apps, figures, reason):
    driver(apps, figures)
    assert busy_reason(SimpleNamespace(name="a card", uuid="1234")) == reason


def test_without_the_driver_s_tool_nobody_can_tell(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert busy_reason(SimpleNamespace(name="a card", uuid="1234")) == ""


@pytest.fixture
def one_gpu(monkeypatch):
    """A driver's view of one GPU, for the part of `opened` that decides before anything runs on it."""
    import torch

    seen = SimpleNamespace(
        name="NVIDIA H200",
        uuid="1234",
        multi_processor_count=132,
        L2_cache_size=50 * 1024**2,
        major=9,
        minor=0,
    )
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_properties": lambda _device: seen,
        "set_device": lambda _device: None,
        "mem_get_info": lambda _device: (100e9, 150e9),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)


def test_a_busy_device_is_refused_unless_forced(driver, one_gpu):
    driver("4242, 30000\\n", "31000, 150000, 0\\n")
    with pytest.raises(InputError, match=r"cuda:0 \(NVIDIA H200\) is in use: 1 other process") as raised:
        opened("cuda")
    assert "--force" in str(raised.value)
    target = opened("cuda", force=True)
    assert (target.machine.name, target.machine.device, target.free_bytes) == ("NVIDIA H200", "cuda:0", 100e9)
    assert target.usable_bytes == pytest.approx(0.6 * 100e9)
    assert "1234" not in target.machine.uuid_hash
    assert len(target.machine.uuid_hash) == 12


def test_a_device_that_the_machine_lacks_is_refused(driver, one_gpu):
    driver("", "512, 150000, 0\\n")
    with pytest.raises(InputError, match="no device cuda:3: torch sees 1"):
        opened("cuda:3")
