"""Which lines of a clone each test runs, and runs of chosen tests against one fault: a plugin of pytest each."""

import json
import os
import signal
import sys
import time
from collections import defaultdict
from functools import _lru_cache_wrapper
from types import CodeType, FunctionType

import pytest
from hypothesis import Phase, settings

STEPS_TRACED = 300  # calls and lines of one function in one test; after that all its lines count as run
READERS = (
    "capplan.readers",
    "capplan.recorded",
    "capplan.families",
)  # their caches hold facts, not results of the rooms
TIMERS = ((signal.ITIMER_PROF, signal.SIGPROF, 1), (signal.ITIMER_REAL, signal.SIGALRM, 10))
LONGEST_S = (
    60.0  # of one test among the nearest; the same where it runs without any fault, so that a slow one shows
)
PROCESSES = {
    "subprocess",
    "executor",
}  # tests that name these start processes, which import the tree without the fault
QUICK_S = 0.3  # tests above it keep to the order of their file, so that what a file prepares is prepared once


class _Settled:
    """The same questions at every run, and no search for the smallest wrong answer."""

    def pytest_configure(self):
        settings.register_profile(
            "mutants", derandomize=True, database=None, phases=[Phase.explicit, Phase.generate], deadline=None
        )
        settings.load_profile("mutants")


class Cover(_Settled):
    """Write `{test: [seconds, {source file: lines}]}` of the tests that pass, for each file of tests when it is done."""

    def __init__(self, clone, rooms, targets):
        self.prefixes = tuple(f"{clone}/capplan/{room}/" for room in rooms)
        self.clone, self.targets = clone, targets
        self.lines, self.steps, self.shared_s, self.left_out = None, {}, {}, []
        self.of_files, self.of_fixtures, self.tests, self.failed = defaultdict(set), defaultdict(set), {}, []

    def _called(self, frame, *_):
        code = frame.f_code
        if not code.co_filename.startswith(self.prefixes):
            return None
        self.lines.add((code.co_filename, code.co_firstlineno))
        return self._stepped(frame, "call", None)

    def _stepped(self, frame, event, _):
        code = frame.f_code
        self.steps[code] += 1
        if self.steps[code] == STEPS_TRACED:
            self.lines.update((code.co_filename, line) for _, _, line in code.co_lines() if line)
        if self.steps[code] >= STEPS_TRACED:
            frame.f_trace = None
            return None
        if event == "line":
            self.lines.add((code.co_filename, frame.f_lineno))
        return self._stepped

    def _traced(self):
        """Yield once with the tracer on and return the lines that ran meanwhile."""
        outer, self.lines, self.steps = (self.lines, self.steps), set(), defaultdict(int)
        sys.settrace(self._called)
        answer = yield
        seen = self.lines
        self.lines, self.steps = outer
        sys.settrace(None if self.lines is None else self._called)
        return answer, seen

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector):
        answer, seen = yield from self._traced()
        self.of_files[collector.nodeid.partition("::")[0]] |= seen
        if answer.failed:
            self.left_out.append(f"left out, it cannot be read: {collector.nodeid}")
        return answer

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        start = time.process_time()
        answer, seen = yield from self._traced()
        self.of_fixtures[fixturedef.baseid, fixturedef.argname] |= seen
        if fixturedef.scope != "function":
            self.shared_s[fixturedef.baseid, fixturedef.argname] = time.process_time() - start
        self.lines |= seen
        return answer

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        for name in [n for n in sys.modules if n.startswith("capplan.") and not n.startswith(READERS)]:
            for cache in vars(sys.modules[name]).values():
                if isinstance(cache, _lru_cache_wrapper):
                    cache.cache_clear()
        start = time.process_time()
        answer, seen = yield from self._traced()
        given = [
            (base, name)
            for base, name in self.of_fixtures
            if name in item.fixturenames and item.nodeid.startswith(base)
        ]
        seen |= self.of_files[item.nodeid.partition("::")[0]].union(*(self.of_fixtures[key] for key in given))
        prepared_s = sum(self.shared_s.get(key, 0.0) for key in given)
        seconds = max(time.process_time() - start, prepared_s)
        self.tests[item.nodeid] = [seconds, _by_file(seen, self.clone)]
        if nextitem is None or nextitem.path != item.path:
            self._write(item.path)
        return answer

    def pytest_runtest_logreport(self, report):
        if report.failed or report.skipped:
            self.failed.append((report.nodeid, report.failed))

    def _write(self, path):
        for name, failed in self.failed:
            if failed:
                self.left_out.append(f"left out, it fails without any fault: {name}")
            self.tests.pop(name, None)
        self.targets[path].write_text(json.dumps(self.tests), encoding="utf-8")
        self.tests, self.failed = {}, []

    def pytest_terminal_summary(self, terminalreporter):
        for text in self.left_out:
            terminalreporter.write_line(text)


def _by_file(seen, clone):
    by_file = defaultdict(list)
    for name, line in sorted(seen):
        by_file[name.removeprefix(f"{clone}/")].append(line)
    return by_file


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


class Nearby(_Settled):
    """Run the nearest files first, in each tests that name the function of the fault, plain ones, laws, then commands;
    stop after some seconds; note what fails."""

    def __init__(self, notes, most_s, rings=None, places=()):
        self.notes, self.most_s, self.rings, self.places = notes, most_s, rings or {}, places
        self.enough = self.failed = False

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


class Chosen(_Settled):
    """Run the chosen tests only, quickest first, and stop a test that takes far longer than it did."""

    def __init__(self, seconds):
        self.seconds = seconds

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if item.nodeid in self.seconds]
        total = defaultdict(float)
        for item in items:
            total[item.path] += self.seconds[item.nodeid]

        def order(item):
            seconds = self.seconds[item.nodeid]
            return (0, seconds, "") if seconds < QUICK_S else (1, total[item.path], str(item.path))

        items.sort(key=order)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        limit_s = 20 + 8 * self.seconds[item.nodeid]
        for timer, sign, times in TIMERS:
            signal.signal(sign, lambda *_: os._exit(pytest.ExitCode.TESTS_FAILED))
            signal.setitimer(timer, times * limit_s)
        answer = yield
        for timer, _, _ in TIMERS:
            signal.setitimer(timer, 0)
        return answer
