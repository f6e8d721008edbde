"""Names that obey nobody's rules, files that cannot be written, numbers out of this world: one line, and nothing is lost."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from capplan.cli.main import main
from capplan.report.answer import Answer, Table
from capplan.report.safe_text import LONGEST_LINE, MOST_LINES, csv_text, json_text, message
from capplan.report.show import refuse_unwritable, write_whole
from capplan.report.tables import markdown_text, plain_text, terminal_text
from capplan.review.findings import Review, Section
from capplan.review.page import review_html, review_markdown
from tests.files import written_to
from tests.interrupts import started

NASTY = "# <script>alert(1)</script>\n# HEADING\n[x](javascript:y) \x1b[2J\x1b]0;t\x07\x9b1m\u202e\udcff"
TRAFFIC = {"request_rate": "2 req/s", "input_tokens": {"mean": 100}, "output_tokens": {"mean": 20}}
SCENARIO = {
    "name": "s", "model": "llama-3.2-1b", "weight_dtype": "bf16", "kv_dtype": "bf16", "traffic": [TRAFFIC],
    "slo": {"ttft_p95": "1 s"}, "fleet": {"hardware": ["l4"], "tensor_parallel": 1, "pipeline_parallel": 1},
}  # fmt: skip
CONTROLS = [chr(c) for c in (*range(9), *range(11, 32), *range(127, 160), 0x202E, 0xDCFF)]


def answer():
    rows = [{"plan": NASTY, "n": 1}, {"plan": "=1+1", "n": -2}]
    return Answer("sweep", {"name": NASTY}, (Table(rows, title=NASTY),), NASTY, (NASTY,), (), (NASTY,))


@pytest.mark.parametrize("of", [plain_text, markdown_text, csv_text, json_text])
def test_no_control_character_of_a_name_reaches_an_answer(of):
    text = of(answer())
    assert not [c for c in CONTROLS if c in text]
    assert "alert(1)" in text


def test_a_terminal_gets_no_escape_sequence_but_its_own_colours():
    text = terminal_text(answer(), width=300, colour=False)
    assert not [c for c in CONTROLS if c in text]


def test_names_are_words_in_markdown_and_html():
    section = Section(
        "Title", text=(NASTY,), lines=(NASTY,), tables=(Table([{"plan": NASTY}], title=NASTY),), code=(NASTY,)
    )
    review = Review(NASTY, NASTY, (section,), answer())
    for text in (markdown_text(answer()), review_markdown(review)):
        outside_code = text.partition("```console")[0]
        assert "<script" not in outside_code
        assert "\n# HEADING" not in outside_code
        assert "](javascript" not in outside_code
        assert not [line for line in outside_code.splitlines()[1:] if line.startswith("# ")]
    page = review_html(replace(review, byline=NASTY))
    before, _, own = page.rpartition("<script>")  # the page's own, at its very end
    assert "<script" not in before
    assert "alert(1)" in before
    assert "alert(1)" not in own
    assert not [c for c in CONTROLS if c in page]


def test_json_keeps_every_letter_of_a_name():
    assert json.loads(json_text(answer()))["result"]["name"] == NASTY


@pytest.mark.parametrize("begin", ["=", "+", "-", "@"])
def test_a_name_is_no_formula_in_a_spreadsheet_and_a_number_stays_one(begin):
    rows = [{"title": f"{begin}cmd|' /C calc'!A0", "n": -2.5}]
    line = csv_text(Answer("hardware", {}, (Table(rows),))).splitlines()[1]
    assert line.startswith(f"'{begin}cmd")
    assert line.endswith(",-2.5")


def test_a_message_is_short_however_long_the_value_is(capplan):
    assert main(["estimate", "a" * 5000, "--hardware", "l4", "--concurrency", "1", "--offline"]) == 2
    assert main(["hardware", "b" * 200]) == 2
    said = capplan.refused("sweep", "c" * 5000, "--hardware", "d" * 5000, "--concurrency", "1", "--offline")
    assert max(map(len, said.splitlines())) <= 2 * LONGEST_LINE
    assert len(message("line\n" * 10_000).splitlines()) == MOST_LINES + 1
    assert "\x1b" not in message("\x1b[2J")


# Files


def test_a_file_keeps_its_mode_and_a_failed_write_keeps_the_file(tmp_path, monkeypatch):
    path = written_to(tmp_path / "a.json", "old")
    for mode in (0o600, 0o640, 0o644):
        path.chmod(mode)
        assert main(["hardware", "l4", "-o", str(path)]) == 0
        assert path.stat().st_mode & 0o777 == mode

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    kept = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    assert main(["hardware", "h100-sxm", "-o", str(path)]) == 2
    assert path.read_bytes() == kept
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device"))
    )
    assert main(["hardware", "l4", "-o", str(tmp_path / "a.json")]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["command"] == "hardware"
    assert "No space left on device" in said.err


@pytest.mark.parametrize(
    "words",
    [
        ("sweep", "llama-3.2-1b", "--hardware", "l4", "--picture", "a.jpg"),
        ("sweep", "llama-3.2-1b", "--hardware", "l4", "--picture", "none/a.svg"),
        ("sweep", "llama-3.2-1b", "--hardware", "l4", "--points", "none/a.jsonl", "--concurrency", "1"),
        ("sweep", "llama-3.2-1b", "--hardware", "l4", "-o", "none/a.json"),
        ("validate", "-o", "none/a.json"),
        ("validate", "--predictions", "none/a.csv"),
        ("fleet", "s.yaml", "-o", "none/a.json"),
        ("fleet", "s.yaml", "-o", "loop"),
        ("report", "s.yaml", "-o", "none/a.html"),
        ("simulate", "s.yaml", "-o", "none/a.json"),
        ("workload", "t.csv", "--picture", "a.jpg"),
    ],
    ids=" ".join,
)
def test_an_output_that_cannot_be_is_refused_before_anything_is_computed(
    tmp_path, monkeypatch, capsys, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "s.yaml").write_text(json.dumps(SCENARIO))
    for place in ("capplan.fleet.search.workers.point_result", "capplan.questions.fleet_answer.fleet_for"):
        monkeypatch.setattr(place, lambda *_, **__: pytest.fail("was computed"))
    assert main([*words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("--")


def test_names_of_files_that_are_no_unicode_are_spelled_out(tmp_path):
    path = tmp_path / "a.json"
    write_whole(path, '{"name": "\udcff"}')
    assert json.loads(path.read_text())["name"] == "\udcff"
    refuse_unwritable(path)


# Broken machines


def run(words, cwd=None, **streams):
    return subprocess.run(
        [sys.executable, "-m", "capplan", *words], cwd=cwd, text=True, check=False, **streams
    )


@pytest.mark.long
def test_a_full_or_closed_stdout_is_one_line(root):
    with open("/dev/full", "w") as full:
        for words in (["hardware", "l4"], ["--help"], ["hardware", "l4", "--format", "json"]):
            done = run(words, root, stdout=full, stderr=subprocess.PIPE)
            assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
            assert "No space left" in done.stderr
    line = f"{sys.executable} -m capplan hardware l4"
    closed = subprocess.run(
        ["sh", "-c", f"{line} >&-"], cwd=root, capture_output=True, text=True, check=False
    )
    assert closed.returncode == 2
    assert "stdout is closed" in closed.stderr
    quiet = subprocess.run(
        ["sh", "-c", f"{line} --format json 2>&-"], cwd=root, capture_output=True, text=True, check=False
    )
    assert quiet.returncode == 0
    assert json.loads(quiet.stdout)["command"] == "hardware"


def test_a_working_folder_that_is_gone_is_said(root, tmp_path):
    (tmp_path / "s.yaml").write_text(json.dumps(SCENARIO))
    line = f"mkdir gone; cd gone; rmdir ../gone; PYTHONPATH={root} {sys.executable} -m capplan fleet ../s.yaml --offline"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


# Numbers


def test_a_rate_next_to_nothing_has_latencies_above_nothing(tmp_path, capsys):
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(SCENARIO | {"traffic": [TRAFFIC | {"request_rate": "1e-14 req/s"}]}))
    assert main(["fleet", str(path), "--offline", "--format", "json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["result"]["chosen"]["ttft_s"]["mean"] > 0.001
    assert "is planned for as 1e-06 req/s" in said.err


@pytest.mark.parametrize(
    ("slo", "says"),
    [
        ({"ttft_p50": "10 s", "ttft_p99": "1 s"}, "are they swapped"),
        ({"ttft_p95": "800 s"}, "is the unit right"),
        ({"ttft_p95": "1 s"}, None),
    ],
    ids=str,
)
def test_targets_that_say_nothing_are_warned_of(tmp_path, slo, says):
    from capplan.scenario.scenario import read_scenario

    path = written_to(tmp_path / "s.yaml", SCENARIO | {"slo": slo})
    warnings = "\n".join(read_scenario(path).warnings)
    assert says in warnings if says else "slo" not in warnings


@pytest.mark.parametrize("after_s", [0.08, 0.2, 0.4])
def test_ctrl_c_at_any_moment_leaves_no_traceback(root, after_s):
    """While modules are imported as well; the very start of Python itself is not ours."""
    words = [sys.executable, "-m", "capplan", "fleet", "scenarios/support-chat.yaml", "--offline"]
    running = started(words, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(after_s)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    if "<frozen " in err and f"{root}{os.sep}capplan" not in err:
        return  # on a busy machine Python itself may still be starting
    # or the signal may come before Python hears signals at all, and ends it by itself
    assert running.returncode in {130, -signal.SIGINT}
    assert "Traceback" not in err
