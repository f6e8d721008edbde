"""A campaign on a card: every step alone, in time, and everything in one folder."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from calibrate.campaign import CALIBRATION, MINUTES, MODELS, Step, campaign, main, steps_of
from calibrate.extra_kernels import timed_rows
from tests.calibrate.faked.card import A100, B200, T4

ROOT = Path(__file__).resolve().parents[2]
SLEEPS = "import signal,sys,time\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(130))\nprint('ready', flush=True)\ntime.sleep(60)"
STAYS = SLEEPS.replace("sys.exit(130)", "None").replace(
    "time.sleep(60)", "[time.sleep(1) for _ in range(60)]"
)


class OnceReady(subprocess.Popen):
    """A step whose time begins when it has said that it hears Ctrl-C, however slowly it starts."""

    def __init__(self, *words, stdout, **more):
        self.said = Path(stdout.name)
        super().__init__(*words, stdout=stdout, **more)

    def wait(self, timeout=None):
        until = time.monotonic() + 20.0
        while self.poll() is None and "ready" not in self.said.read_text() and time.monotonic() < until:
            time.sleep(0.02)
        return super().wait(timeout)


def python(name, text, longest_s):
    return Step(name, (sys.executable, "-c", text), longest_s)


def test_each_step_is_on_its_own_and_the_summary_says_how_it_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("calibrate.campaign.GRACE_S", 20.0)
    monkeypatch.setattr(
        "calibrate.campaign.subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": OnceReady})
    )
    steps = [
        python("works", "print('done')", 20.0),
        python("fails", "raise SystemExit(3)", 20.0),
        python("slow", SLEEPS, 1.5),
    ]
    lines = []
    done = campaign(tmp_path / "out", steps, 1.0, lines.append)
    assert [(one.code, one.ended) for one in done] == [
        (0, "by itself"),
        (3, "by itself"),
        (130, "interrupted (out of time)"),
    ]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [step["name"] for step in summary["steps"]] == ["works", "fails", "slow"]
    assert summary["libraries"]["torch"]
    assert (tmp_path / "out" / "works.out").read_text() == "done\n"
    assert len(lines) == 3
    monkeypatch.setattr("calibrate.campaign.GRACE_S", 0.5)
    (stuck,) = campaign(tmp_path / "stuck", [python("stuck", STAYS, 1.5)], 1.0, lines.append)
    assert (stuck.code, stuck.ended) == (-9, "killed")


def test_steps_for_which_no_time_is_left_are_skipped(tmp_path):
    done = campaign(tmp_path, [python("late", "print(1)", 5.0)], 0.01, lambda _line: None)
    assert done[0].ended == "skipped (no time left)"


def test_a_campaign_is_under_ten_minutes_calibrates_in_full_and_verifies_four_models(tmp_path):
    steps = {step.name: step for step in steps_of(tmp_path, "cuda", MINUTES, MODELS)}
    assert MINUTES < 10.0
    assert "--quick" not in steps["calibrate"].command
    assert sum(name.startswith("verify") for name in steps) == 4
    assert all(str(tmp_path) in " ".join(step.command) for step in steps.values())


@pytest.mark.parametrize("card", [A100, B200, T4], ids=lambda card: card.entry)
def test_extra_kernels_run_or_say_why_not(card, insert):
    _, target = insert(card)
    rows = timed_rows(target)
    kinds = {row["what"] for row in rows if "median_s" in row}
    assert {"mxfp4 experts, unpacked", "layer, decode"} <= kinds
    assert ("w4a16 product" in kinds) or card is T4
    layers = {
        (row["model"], row["sequences"], row["captured"]): row
        for row in rows
        if row["what"] == "layer, decode"
    }
    slow, quick = layers["llama-3.1-8b", 1, False], layers["llama-3.1-8b", 1, True]
    assert slow["median_s"] >= quick["median_s"]


def test_the_script_finds_what_it_needs_and_names_its_usage():
    done = subprocess.run(
        ["bash", str(ROOT / "calibrate" / "campaign.sh")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert "usage: bash calibrate/campaign.sh OUT" in done.stderr


@pytest.mark.long
def test_a_campaign_on_a_processor_writes_a_plan_and_a_calibration(tmp_path, monkeypatch):
    monkeypatch.setattr("calibrate.campaign.CALIBRATED_FRACTION", 0.05)
    monkeypatch.setattr("calibrate.campaign.EXTRA_S", 0.5)
    code = main([str(tmp_path), "--device", "cpu", "--minutes", "2", "--models"])
    said = (tmp_path / "calibrate.err").read_bytes()
    assert code == 0, said
    assert b"\r" not in said, "a file has no line that is written over and over"
    assert (tmp_path / CALIBRATION).exists()
    assert json.loads((tmp_path / "plan.json").read_text())["result"]["shapes"] > 100
