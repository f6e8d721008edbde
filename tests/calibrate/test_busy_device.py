"""Whether a device is in use, as the driver's own tool tells it; here the tool is a script that prints what it is told."""

import stat
from types import SimpleNamespace

import pytest

from capplan.calibrate.machine import busy_reason, opened
from capplan.errors import InputError

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


@pytest.mark.parametrize(
    ("apps", "figures", "reason"),
    [
        ("", "512, 81559, 0\\n", ""),
        ("4242, 30000\\n", "31000, 81559, 0\\n", "1 other process(es), the first with pid 4242"),
        ("4242, 30000, python3\\n", "", "1 other process(es), the first with pid 4242 (python3)"),
        ("", "30000, 81559, 0\\n", "30000 of 81559 MiB are in use"),
        ("", "512, 81559, 97\\n", "utilisation is 97%"),
        ("", "[N/A], 81559, [N/A]\\n", ""),
    ],
)
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
