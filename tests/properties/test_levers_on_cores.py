"""Rows of levers by processes are those of one process, and Ctrl-C or an error leaves none behind."""

from math import sqrt
from multiprocessing import active_children

import pytest

from capplan.questions.levers import cores
from capplan.questions.levers.answer import asked_levers, levers_of
from capplan.questions.levers.cores import Cores

TASKS = [4.0, 9.0, 2.25, 16.0]
DONE = list(enumerate([2.0, 3.0, 1.5, 4.0]))


@pytest.fixture
def at_once(monkeypatch):
    """Start processes for the first task."""
    monkeypatch.setattr(cores, "ALONE_S", -1.0)


def test_short_work_is_done_here():
    assert list(Cores(sqrt, 2).results(TASKS)) == DONE
    assert not active_children()


def test_long_work_is_done_by_processes(at_once):
    assert sorted(Cores(sqrt, 2).results(TASKS)) == DONE
    assert list(Cores(sqrt, 1).results(TASKS)) == DONE
    assert not active_children()


@pytest.mark.parametrize("ended", [ValueError, KeyboardInterrupt])
def test_no_process_is_left_where_the_work_ends_early(at_once, ended):
    def begin():
        for _ in Cores(sqrt, 2).results([1.0, 4.0, -1.0 if ended is ValueError else 9.0]):
            if ended is KeyboardInterrupt:
                raise KeyboardInterrupt

    with pytest.raises(ended):
        begin()
    assert not active_children()


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
