"""Rows of levers by processes are those of one process, and Ctrl-C, an error or the end of the command leaves none behind, of a sweep neither."""

import os
import signal
import sys
import time
from contextlib import contextmanager, suppress
from math import sqrt
from multiprocessing import active_children, get_context
from subprocess import PIPE

import pytest

from capplan.questions.levers import cores
from capplan.questions.levers.answer import asked_levers, levers_of
from capplan.questions.levers.cores import results_of
from tests.interrupts import started

TASKS = [4.0, 9.0, 2.25, 16.0]
DONE = list(enumerate([2.0, 3.0, 1.5, 4.0]))


@pytest.fixture
def at_once(monkeypatch):
    """Start processes for the first task."""
    monkeypatch.setattr(cores, "ALONE_S", -1.0)


def test_short_work_is_done_here():
    assert list(results_of(sqrt, TASKS, 2)) == DONE
    assert not active_children()


def test_long_work_is_done_by_processes(at_once):
    assert sorted(results_of(sqrt, TASKS, 2)) == DONE
    assert list(results_of(sqrt, TASKS, 1)) == DONE
    assert not active_children()


@pytest.mark.parametrize("ended", [ValueError, KeyboardInterrupt])
def test_no_process_is_left_where_the_work_ends_early(at_once, ended):
    def begin():
        for _ in results_of(sqrt, [1.0, 4.0, -1.0 if ended is ValueError else 9.0], 2):
            if ended is KeyboardInterrupt:
                raise KeyboardInterrupt

    with pytest.raises(ended):
        begin()
    assert not active_children()


class KilledElsewhere:
    """The square root, which ends every process that it is given to."""

    def __call__(self, value):
        return sqrt(value)

    def __reduce__(self):
        return os._exit, (1,)


class PlaceOfWork:
    """The process that a task is done in."""

    def __call__(self, seconds):
        time.sleep(seconds)
        return os.getpid()


def test_the_process_that_asks_works_too(at_once):
    done = {place for _, place in results_of(PlaceOfWork(), [2.0] * 6, 2)}
    assert len(done) == 2
    assert os.getpid() in done


def test_what_a_killed_process_had_is_done_here(at_once):
    assert sorted(results_of(KilledElsewhere(), TASKS, 2)) == DONE
    assert not active_children()


def test_processes_of_others_go_on(at_once):
    other = get_context("spawn").Process(target=time.sleep, args=(60.0,))
    other.start()
    try:
        assert sorted(results_of(sqrt, TASKS, 2)) == DONE
        assert other.is_alive()
    finally:
        other.kill()
        other.join()


WAITING = """
import time
from capplan.questions.levers import cores
cores.ALONE_S = -1.0
for place, _ in cores.results_of(time.sleep, [0.0, 600.0, 600.0], 2):
    print(place, flush=True)
"""
SWEEPING = """
import time
from capplan.fleet.search.workers import executor
with executor(2, None) as pool:
    for point, _ in pool.finished(time.sleep, [0.0, 600.0, 600.0]):
        print(int(point), flush=True)
"""
INTERRUPTED = """
import os, signal, time
from capplan.questions.levers import cores
cores.ALONE_S = -1.0

class Work:
    pickled = 0

    def __call__(self, seconds):
        time.sleep(60.0)

    def __reduce__(self):
        Work.pickled += 1
        if Work.pickled == 2:
            time.sleep(0.5)
            os.killpg(0, signal.SIGINT)
        return time.sleep, (1.0,)

try:
    list(cores.results_of(Work(), [0.0, 600.0, 600.0], 2))
except KeyboardInterrupt:
    print("interrupted")
"""


@contextmanager
def script(text):
    """Yield a script with pipes, which end when it and all processes that it started have ended."""
    pipes = {"stdout": PIPE, "stderr": PIPE, "text": True}
    with started([sys.executable, "-c", text], **pipes, start_new_session=True) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("text", [WAITING, SWEEPING], ids=["levers", "sweep"])
def test_processes_end_with_the_one_that_started_them(text, number):
    with script(text) as process:
        assert process.stdout.readline() == "0\n"
        process.send_signal(number)
        assert process.communicate(timeout=60)[0] == ""


def test_an_interrupt_while_processes_start_says_nothing_of_them():
    with script(INTERRUPTED) as process:
        assert process.communicate(timeout=60) == ("interrupted\n", "")


@pytest.mark.long
def test_rows_are_the_same_on_two_cores(at_once, tmp_path):
    """Processes know no run that sized the scenario as it is."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: s\nmodel: llama-3.1-8b\ntraffic: [{request_rate: 20 req/s, input_tokens: 900, output_tokens: 120}]\n"
        "slo: {ttft_p95: 600 ms, tpot_p95: 30 ms}\nfleet: {hardware: [h100-sxm, l40s], tensor_parallel: 1}\n"
    )
    asking, base = asked_levers(path, None, offline=True)
    names = ("weight-dtype", "commitment", "prompts", "kv-dtype")
    alone, together = (levers_of(asking, base, names, cores=count) for count in (1, 2))
    assert together.rows == alone.rows
    assert together.best == alone.best
