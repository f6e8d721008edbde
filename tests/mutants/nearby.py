"""The tests that are nearest to a fault, run against it: a plugin of pytest."""

import os
import signal
import time
from types import CodeType, FunctionType

import pytest
from hypothesis import Phase, settings

LONGEST_S = 60.0  # of one test; the same where it runs without any fault, so that a slow one shows
PROCESSES = {
    "subprocess",
    "executor",
}  # tests that name these start processes, which import the tree without the fault


def _names(item):
    """Return the names that a test mentions, itself or through functions of its file; of a doctest, what it is of."""
    test = getattr(item, "function", None)
    if test is None:
        return set(item.name.split("."))
    said = vars(item.module)
    codes, names = [getattr(getattr(test, "hypothesis", None), "inner_test", test).__code__], set()
    while codes:
        code = codes.pop()
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
        new = set(code.co_names) - names
        names |= new
        codes += [
            said[n].__code__
            for n in new
            if getattr(said.get(n), "__module__", "") == item.module.__name__
            and isinstance(said[n], FunctionType)
        ]
    return names


class Nearby:
    """Run the nearest files first, in each tests that name the function of the fault, plain ones, laws, then commands;
    stop after some seconds; note what fails."""

    def __init__(self, notes, most_s, rings=None, places=()):
        self.notes, self.most_s, self.rings, self.places = notes, most_s, rings or {}, places
        self.enough = self.failed = False

    def pytest_configure(self):
        """Ask the same questions at every run, and do not search for the smallest wrong answer."""
        settings.register_profile(
            "mutants", derandomize=True, database=None, phases=[Phase.explicit, Phase.generate], deadline=None
        )
        settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items):
        names = {item: _names(item) for item in items}
        items[:] = [item for item in items if not PROCESSES & names[item]]
        items.sort(
            key=lambda item: (
                self.rings.get(str(item.path), 0),
                next((n for n, place in enumerate(self.places) if place in names[item]), len(self.places)),
                "capplan" in getattr(item, "fixturenames", ()),
                hasattr(getattr(item, "obj", None), "hypothesis"),
            )
        )
        self.start_s = time.process_time()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        signal.signal(
            signal.SIGPROF, lambda *_: self._note(item.nodeid) or os._exit(pytest.ExitCode.TESTS_FAILED)
        )
        signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
        answer = yield
        signal.setitimer(signal.ITIMER_PROF, 0)
        if time.process_time() - self.start_s > self.most_s:
            self.enough = True
            item.session.shouldstop = "enough"
        return answer

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed = True
            self._note(report.nodeid)

    def _note(self, test):
        with self.notes.open("a", encoding="utf-8") as notes:
            notes.write(f"{test}\n")
