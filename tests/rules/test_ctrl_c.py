"""Ctrl-C where a shell ignores it, as for a job in the background: capplan goes on, and what is to hear it hears it."""

import os
import re
import signal
import sys
import time
from subprocess import PIPE

import pytest

from calibrate.campaign import Step, campaign
from tests.interrupts import started
from tests.tables import table

SENT = re.compile(r"SIGINT\)$", re.MULTILINE)
HEARS = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
SLEEPS = "import sys, time\ntry:\n time.sleep(60)\nexcept KeyboardInterrupt:\n sys.exit(130)"


@pytest.fixture
def ignored():
    """Ignore Ctrl-C as a job in the background does, whose children inherit that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("hears", [True, False])
def test_a_program_hears_ctrl_c_as_the_test_says_whoever_calls_the_tests(hears, ignored):
    running = started([sys.executable, "-c", HEARS], hears=hears, stdout=PIPE, text=True)
    out, _ = running.communicate(timeout=30)
    assert out.strip() == str(hears)


def test_every_test_that_sends_ctrl_c_starts_its_program_with_the_one_helper(root):
    senders = [path for path in (root / "tests").rglob("test_*.py") if SENT.search(path.read_text("utf-8"))]
    assert len(senders) >= 3
    assert [path.name for path in senders if "tests.interrupts" not in path.read_text("utf-8")] == []


def test_capplan_in_the_background_goes_on_after_ctrl_c(root, tmp_path):
    """Interrupted while it waits for a config that is a pipe: it reads the rest and answers."""
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    words = [sys.executable, "-m", "capplan", "model", str(pipe), "--format", "json"]
    running = started(words, hears=False, cwd=root, stdout=PIPE, stderr=PIPE, text=True)
    with pipe.open("w") as writer:  # opened once the program has opened its end
        time.sleep(0.2)
        running.send_signal(signal.SIGINT)
        time.sleep(0.2)
        writer.write((root / "model_configs" / "Qwen--Qwen3-0.6B" / "config.json").read_text("utf-8"))
    out, err = running.communicate(timeout=30)
    assert running.returncode == 0, err
    assert '"command": "model"' in out


@pytest.mark.long
def test_a_campaign_in_the_background_still_interrupts_a_step_that_takes_too_long(tmp_path, ignored):
    steps = [Step("slow", (sys.executable, "-c", SLEEPS), 1.5)]
    (done,) = campaign(tmp_path, steps, 1.0, lambda _line: None)
    assert (done.code, done.ended) == (130, "interrupted (out of time)")


INTERRUPTS = """
import os, signal, sys, time
from types import SimpleNamespace
import capplan.__main__ as program

def run():
{body}

sys.path.insert(0, {folder!r})
sys.modules["capplan.cli.main"] = SimpleNamespace(main=run)
sys.exit(program.main())
"""
SWALLOWS = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntry:\n time.sleep(0.1)\nexcept KeyboardInterrupt:\n print('swallowed')"


@table
def test_what_ctrl_c_is_made_of_ends_with_130_and_another_error_is_shown(body, code, said, root, tmp_path):
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    if "swallows" not in body:
        body = (
            f"import threading; threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()\n {body}"
        )
    program = INTERRUPTS.format(body=f" {body}", folder=str(tmp_path))
    running = started([sys.executable, "-c", program], cwd=root, stdout=PIPE, stderr=PIPE, text=True)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (code, ""), err
    assert (err.splitlines() or [""])[-1] == said
    assert ("Traceback" in err) == (code == 1)
