"""Whether a device is in use, as the driver's own tool tells it; here the tool is a script that prints what it is told."""

import stat

import pytest

from capplan.calibrate.machine import busy_reason

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
        ("", "30000, 81559, 0\\n", "30000 of 81559 MiB are taken"),
        ("", "512, 81559, 97\\n", "utilisation is 97 %"),
        ("", "[N/A], 81559, [N/A]\\n", ""),
    ],
)
def test_a_device_is_busy_when_others_hold_it(driver, apps, figures, reason):
    driver(apps, figures)
    assert busy_reason("GPU-1234") == reason


def test_without_the_driver_s_tool_nobody_can_tell(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert busy_reason("GPU-1234") == ""
