"""The file of finished points of a sweep: what is reused is of the same sweep, and nothing in it is lost."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest

from capplan.errors import InputError
from capplan.fleet.search import workers
from capplan.fleet.search.search_cache import content_key
from capplan.fleet.search.workers import finished_points, runner
from capplan.fleet.sweep import swept
from capplan.questions.sweep import asked_sweep
from capplan.readers.point_file import PointFile
from capplan.readers.text_file import data_folder
from capplan.scenario.command_flags import SweepFlags
from capplan.scenario.flags import LoadFlags, ServingFlags

LOADS = "1, 2, 4"


def points(model="llama-3.2-1b", prompt=50, loads=LOADS):
    flags = SweepFlags(hardware=["l4"], concurrency=loads)
    return asked_sweep(model, flags, LoadFlags(prompt, 8), ServingFlags(offline=True)).points


def worked_out(path, *asked):
    file = PointFile(path)
    return swept(asked, runner(None, file), refine=False), file


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the lines of a file of three finished points."""
    path = tmp_path_factory.mktemp("points") / "points.jsonl"
    worked_out(path, *points())
    return path.read_bytes()


PLACES = ("llama-3.2-1b", str(data_folder("scenarios") / "support-chat.yaml"))


@pytest.fixture(scope="module")
def keys_in_processes():
    """Return the keys of two points of each place, from processes that hash texts differently."""
    code = (
        "import sys; from capplan.questions.sweep import asked_sweep;"
        "from capplan.scenario.command_flags import SweepFlags;"
        "from capplan.scenario.flags import LoadFlags, ServingFlags;"
        "f = SweepFlags(hardware=['l4'], concurrency='1,2');"
        f"[print(*(p.key for p in asked_sweep(w, f, LoadFlags(50, 8), ServingFlags(offline=True)).points)) for w in {PLACES!r}]"
    )
    answers = []
    for seed in (0, 1, 7):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed), "LC_ALL": "C", "TZ": "Asia/Tokyo"},
            capture_output=True,
            text=True,
            check=True,
        )
        answers.append([line.split() for line in done.stdout.splitlines()])
    return answers


@pytest.mark.parametrize("place", range(len(PLACES)), ids=["a model", "a scenario"])
def test_keys_are_the_same_in_every_process(place, keys_in_processes):
    keys = [answer[place] for answer in keys_in_processes]
    assert len(set(keys[0])) == 2
    assert keys[0] == keys[1] == keys[2]


def test_a_key_says_all_of_an_array_and_knows_kinds_apart():
    long = np.arange(5000.0)
    other = long.copy()
    other[2500] = -1.0  # what the text of a long array leaves out
    assert content_key(long) == content_key(long.copy()) != content_key(other)
    apart = [1, 1.0, True, "1", None, [1], {"1": 1}, {1}, [[1]], [1, 1], np.array([1]), np.array([1.0])]
    assert len({content_key(value) for value in apart}) == len(apart)
    assert content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})


def test_a_sweep_that_was_finished_is_not_worked_out_again(tmp_path, finished, monkeypatch):
    path = tmp_path / "points.jsonl"
    path.write_bytes(finished)
    monkeypatch.setattr(workers, "point_result", lambda _: pytest.fail("worked out again"))
    rows, file = worked_out(path, *points())
    assert (len(rows), file.reused) == (3, 3)
    assert path.read_bytes() == finished


def test_an_interrupted_sweep_shows_its_own_points_alone(tmp_path, finished, monkeypatch):
    """The file also has the points of the same plan under shorter prompts."""
    path = tmp_path / "points.jsonl"
    path.write_bytes(finished)

    def cut_short(point):
        if point.concurrency == 32:
            raise KeyboardInterrupt
        return json.loads(finished.splitlines()[0])["row"] | {"concurrency": point.concurrency}

    monkeypatch.setattr(workers, "point_result", cut_short)
    file = PointFile(path)
    rows, interrupted = finished_points(points(prompt=400, loads="8, 16, 32"), None, file, None, refine=False)
    assert interrupted
    assert [row["concurrency"] for row in rows] == [8, 16]
    assert len(PointFile(path).rows) == 5


@pytest.mark.parametrize("lines", [1, 3])
def test_a_last_line_that_was_cut_anywhere_costs_that_point_alone(tmp_path, finished, lines, monkeypatch):
    whole = b"".join(finished.splitlines(keepends=True)[:lines])
    before = whole.rfind(b"\n", 0, -1) + 1
    monkeypatch.setattr(
        workers,
        "point_result",
        lambda point: json.loads(finished.splitlines()[0])["row"] | {"concurrency": point.concurrency},
    )
    for cut in (1, 5, 9, 40, len(whole) - before - 2, len(whole) - before - 1):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(whole[: before + cut])
        PointFile(path)
        assert path.read_bytes() == whole[: before + cut], "a file that is only read stays as it is"
        _, file = worked_out(path, *points())
        assert file.reused == lines - (cut < len(whole) - before - 1)
        assert path.read_bytes().startswith(whole[:before])
        assert len(PointFile(path).rows) == 3


@pytest.mark.parametrize(
    "content",
    [
        b"my only notes\n",
        b"my only notes",
        b"{",
        b'{"key": "a", "secret": 1}',
        b'{"key": "a", "row": 5}\n',
        b'{"key": "a", "row": {}}\n',
        b'{"key": ["a"], "row": {}}\n',
        b"[" * 100_000 + b"\n{}\n",
        b"9" * 5000 + b"\n",
        b"\xff\xfe\n",
        b"\n\n",
    ],
    ids=lambda content: repr(content[:12]),
)
def test_a_file_of_anything_else_is_refused_and_stays_as_it_is(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    if content == b"{":
        PointFile(path)  # the first letter of a point: cut short
    else:
        with pytest.raises(InputError, match="line 1 is not a finished point"):
            PointFile(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "change",
    [
        {"requests_per_s": -1.0},
        {"requests_per_s": float("nan")},
        {"ttft_s": 5},
        {"e2e_s": {"mean": "x"}},
        {"gpus": None},
        {"request_rate": float("inf")},
        {"concurrency": -1},
    ],
    ids=str,
)
def test_a_row_with_a_cell_that_cannot_be_is_refused(tmp_path, finished, change):
    path = tmp_path / "points.jsonl"
    line = json.loads(finished.splitlines()[1])
    lines = finished.splitlines(keepends=True)
    lines[1] = json.dumps({"key": line["key"], "row": line["row"] | change}).encode() + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(InputError, match="is not a finished point; name a"):
        worked_out(path, *points())


def test_rows_of_other_versions_stay_in_the_file_and_count_for_nothing(tmp_path, finished, monkeypatch):
    """An older version without a cell, a newer one with more cells: their keys are others."""
    path = tmp_path / "points.jsonl"
    row = json.loads(finished.splitlines()[0])["row"]
    older = {key: value for key, value in row.items() if key != "preemptions"}
    lines = [
        json.dumps({"key": key, "row": other, "more": 1})
        for key, other in (("0" * 32, older), ("1" * 32, row | {"joules": 1.0}))
    ]
    path.write_text("\n".join(lines) + "\n")
    rows, file = worked_out(path, *points())
    assert (len(rows), file.reused) == (3, 0)
    assert path.read_bytes() == "".join(f"{line}\n" for line in lines).encode() + finished
    assert worked_out(path, *points())[1].reused == 3


WRITES = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
from capplan.readers.point_file import PointFile
row = json.loads(Path(sys.argv[2]).read_text())
file = PointFile(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(300):
    file.keep(SimpleNamespace(key=f"{sys.argv[3]}{number}"), row)
"""


@pytest.mark.long
def test_processes_that_write_side_by_side_lose_no_point(tmp_path, root, finished):
    """All of them have read a file whose last line was cut, and begin at once."""
    path, row = tmp_path / "points.jsonl", tmp_path / "row.json"
    path.write_bytes(finished[:-20])
    row.write_text(json.dumps(json.loads(finished.splitlines()[0])["row"]))
    words = [sys.executable, "-c", WRITES, str(path), str(row)]
    writers = [
        subprocess.Popen([*words, name], cwd=root, stdin=PIPE, stdout=PIPE, text=True) for name in "abcd"
    ]
    assert [writer.stdout.readline() for writer in writers] == ["ready\n"] * 4
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.close()
    assert [writer.wait(timeout=60) for writer in writers] == [0] * 4
    assert len(PointFile(path).rows) == 2 + 4 * 300


def test_a_row_under_the_key_of_another_load_is_refused(tmp_path, finished):
    path = tmp_path / "points.jsonl"
    first, second, _ = (json.loads(line) for line in finished.splitlines())
    path.write_text(json.dumps({"key": first["key"], "row": second["row"]}) + "\n")
    with pytest.raises(InputError, match="another load or plan"):
        worked_out(path, *points())


def test_a_file_that_cannot_be_written_is_named_before_anything_is_worked_out(tmp_path):
    for path in (tmp_path / "none" / "points.jsonl", tmp_path, Path("/dev/zero")):
        with pytest.raises(InputError, match=f"--points {path}"):
            PointFile(path)


def test_plans_that_differ_in_anything_share_no_key():
    (point,) = points(loads="4")
    spec = point.contender.spec
    others = [
        *points(loads="4", prompt=51),
        *points("qwen3-0.6b", loads="4"),
        *points(loads="5"),
        replace(point, routing="random"),
        replace(point, seed=2),
        replace(point, contender=replace(point.contender, usd_per_hour=2.0)),
        replace(point, contender=replace(point.contender, spec=replace(spec, max_model_len=4096))),
    ]
    assert len({point.key, *(other.key for other in others)}) == 8
    assert points(loads="4")[0].key == point.key
