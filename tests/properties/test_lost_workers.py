"""Whatever computes the points of a sweep may end at any moment: nothing is lost, and nothing waits for ever without a word."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from capplan.cli.main import main
from capplan.errors import InputError
from capplan.fleet.search import workers
from capplan.fleet.search.workers import executor, finished_points, runner
from capplan.fleet.sweep import swept
from capplan.questions.sweep import asked_sweep
from capplan.readers.point_file import PointFile
from capplan.scenario.command_flags import SweepFlags
from capplan.scenario.flags import LoadFlags, ServingFlags

LOADS = ",".join(map(str, range(1, 25)))
MANY_LOADS = ",".join(map(str, range(1, 201)))
"""More than a worker finishes before it is ended."""


def points(loads=LOADS):
    flags = SweepFlags(hardware=["l4"], concurrency=loads)
    return asked_sweep("llama-3.2-1b", flags, LoadFlags(50, 8), ServingFlags(offline=True)).points


@pytest.fixture(scope="module")
def expected():
    """Return what one process finds that nobody ends."""
    return swept(points(), runner(None, PointFile(None)), refine=False)


def swept_with_a_loss(pool, path, lose, loads=LOADS):
    """Return what a pool finds that loses something once the first point is finished."""
    lost = []

    def progress(done, total):
        if not lost:
            lost.append(done)
            lose()

    return finished_points(points(loads), pool, PointFile(path), progress, refine=False)


@pytest.mark.long
def test_a_killed_process_is_replaced_and_no_point_is_lost(tmp_path, expected):
    said = []

    def lose():
        for child in multiprocessing.active_children():
            os.kill(child.pid, signal.SIGKILL)

    with executor(2, None, said.append) as pool:
        rows, ended = swept_with_a_loss(pool, tmp_path / "points.jsonl", lose)
    assert ended is None
    assert rows == expected
    assert len((tmp_path / "points.jsonl").read_text().splitlines()) == len(expected)
    assert ["killed" in line for line in said] == [True]


def test_processes_that_always_end_are_named_after_a_few():
    said = []
    with executor(2, None, said.append) as pool, pytest.raises(workers.LostWorkersError, match="try fewer"):
        list(pool.finished(os._exit, [9, 9]))
    assert len(said) == workers.MOST_LOST


def ended(process):
    process.kill()
    process.wait()


@contextmanager
def cluster(folder, count):
    """Yield the address, the scheduler and the workers of a cluster of processes on this machine."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DASK_TEMPORARY_DIRECTORY": str(folder)}  # fmt: skip
    said = (folder / "said.txt").open("w")

    def started(*words):
        whole = [sys.executable, "-m", *words, "--host", "127.0.0.1"]
        return subprocess.Popen(whole, env=environment, stdout=said, stderr=said, cwd=folder)

    about = folder / "scheduler.json"
    scheduler = started("distributed.cli.dask_scheduler", "--port", "0", "--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(about))  # fmt: skip
    running = []
    try:
        while not (about.exists() and about.read_text().endswith("}")):
            assert scheduler.poll() is None
            time.sleep(0.1)
        address = json.loads(about.read_text())["address"]
        running += [
            started("distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard")
            for _ in range(count)
        ]
        yield address, scheduler, running
    finally:
        for process in (*running, scheduler):
            ended(process)
        said.close()


@pytest.mark.long
def test_killed_workers_of_a_dask_cluster_lose_no_point(tmp_path, expected):
    """One with points that it has not finished, and one with rows that nobody has fetched."""
    said = []
    with cluster(tmp_path, 3) as (address, _, running), executor(1, address, said.append) as pool:
        pool._client.wait_for_workers(3)

        def lose():
            ended(running[0])
            while any(pool._client.processing().values()):
                time.sleep(0.1)
            ended(running[1])

        rows, stopped = swept_with_a_loss(pool, tmp_path / "points.jsonl", lose)
    assert stopped is None
    assert rows == expected
    assert len((tmp_path / "points.jsonl").read_text().splitlines()) == len(expected)
    assert "dashboard http://127.0.0.1:" in said[-1]


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_without_its_scheduler_the_work_goes_on_here_with_the_same_answer(
    how, tmp_path, expected, monkeypatch
):
    monkeypatch.setattr(workers, "LOOK_EVERY_S", 0.5)
    said = []
    with cluster(tmp_path, 1) as (address, scheduler, _), executor(1, address, said.append) as pool:
        monkeypatch.setattr(workers, "ANSWER_S", 1.0)
        rows, stopped = swept_with_a_loss(pool, tmp_path / "points.jsonl", lambda: scheduler.send_signal(how))
    assert (rows, stopped) == (expected, None)
    assert f"--dask {address}: the scheduler" in said[-1]
    assert "this process computes the other" in said[-1]
    assert len((tmp_path / "points.jsonl").read_text().splitlines()) == len(expected)


@pytest.mark.long
@pytest.mark.parametrize("live", [0, 1])
def test_what_a_frozen_worker_holds_is_computed_here_with_the_same_answer(
    live, tmp_path, expected, monkeypatch
):
    """Whether it was the only one, or another one goes on and finishes its own points."""
    monkeypatch.setattr(workers, "LOOK_EVERY_S", 0.5)
    monkeypatch.setattr(workers, "JOIN_AFTER_S", 1.0)
    said = []
    with cluster(tmp_path, 1 + live) as (address, _, running), executor(1, address, said.append) as pool:
        pool._client.wait_for_workers(1 + live)
        rows, stopped = swept_with_a_loss(pool, None, lambda: running[0].send_signal(signal.SIGSTOP))
    assert (rows, stopped) == (expected, None)
    assert said[-1] == "Dask: nothing was finished for 1 s; this process computes too"


def test_a_port_that_says_nothing_is_named_in_a_stated_time(monkeypatch):
    monkeypatch.setattr(workers, "CONNECT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(InputError, match=f"--dask {address}: no scheduler answers"), executor(1, address):
            pass


@pytest.mark.parametrize(
    "address", ["tls://127.0.0.1:9", "ucx://127.0.0.1:9", "inproc://1", ":::", "tcp://[::1", "nope", ""]
)
def test_an_address_that_no_scheduler_has_is_one_line(address, monkeypatch):
    monkeypatch.setattr(workers, "CONNECT_S", 0.5)
    with pytest.raises(InputError, match=r"--dask .*: no scheduler answers"), executor(1, address):
        pass


@pytest.mark.parametrize("count", [0, 1])
def test_a_scheduler_without_workers_is_named_in_a_stated_time(count, tmp_path, monkeypatch):
    """Whether it never had one, or lost the last one in the middle."""
    monkeypatch.setattr(workers, "PATIENCE_S", 1.0)
    monkeypatch.setattr(workers, "LOOK_EVERY_S", 0.5)
    said = []
    with cluster(tmp_path, count) as (address, _, running):
        if count:
            monkeypatch.setattr(workers, "PATIENCE_S", 60.0)
            with executor(1, address) as pool:
                monkeypatch.setattr(workers, "PATIENCE_S", 1.0)
                _, stopped = swept_with_a_loss(pool, None, lambda: ended(running[0]), MANY_LOADS)
            assert "has had no workers for 1 s" in str(stopped)
            return
        refused = pytest.raises(workers.LostWorkersError, match="start one: dask worker tcp://")
        with refused, executor(1, address, said.append):
            pass
    assert said == ["Dask: no workers yet; waiting up to 1 s"]


def test_a_worker_with_another_version_is_refused():
    with pytest.raises(workers.LostWorkersError, match="install the same version"):
        workers._of_this_version("0.0.0", len, ())


def test_a_lost_run_prints_what_was_finished_and_then_why(monkeypatch, capsys):
    """A point that kills its process: the others are shown, and the exit code is not that of an answer."""
    real = workers.Processes.finished

    def first_only(self, compute, some):
        yield from real(self, compute, some[:1])
        raise workers.LostWorkersError("--workers 2: gone")

    monkeypatch.setattr(workers.Processes, "finished", first_only)
    words = ["sweep", "llama-3.2-1b", "--hardware", "l4", "--concurrency", "1,2", "--input-tokens", "50", "--output-tokens", "8"]  # fmt: skip
    assert main([*words, "--workers", "2", "--offline", "--format", "json"]) == 2
    said = capsys.readouterr()
    result = json.loads(said.out)["result"]
    assert result["interrupted"]
    assert [point["concurrency"] for point in result["plans"][0]["points"]] == [1]
    assert said.err.splitlines()[-1] == "--workers 2: gone"
