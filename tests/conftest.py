"""What all tests share: the program in this process or in one of its own, golden files, and measured facts."""

import csv
import gc
import json
import logging
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# The same questions at every run, everywhere; `make fuzz` asks new ones, and more, with `--hypothesis-profile new`.
EVERYWHERE = {
    "database": None,
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile("same", derandomize=True, max_examples=40, **EVERYWHERE)
settings.register_profile("new", derandomize=False, max_examples=100, **EVERYWHERE)
settings.load_profile("same")
# A task of a cluster that failed and was dropped is reported when it is collected, and in Python 3.11 the traceback of that report, if
# written while a tree of syntax is built, breaks the tree: "AST constructor recursion depth mismatch".
logging.getLogger("asyncio").setLevel(logging.CRITICAL)
# Constants in the modules that happen to be loaded would be among the questions: with them a test asks
# something else when it runs alone.
providers.is_local_module_file = lambda _: False

# Tables are as wide as they want, whatever the screen: workers of pytest-xdist have COLUMNS set.
os.environ.pop("COLUMNS", None)
# One thread in each process: the products here are small, and threads that wait for each other keep the cores busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
SHARED = ROOT.parent / "shared"
"""Large tables of what was measured, where they lie beside the repository."""
LONG_CASES = json.loads((ROOT / "tests" / "rows" / "long_cases.json").read_text(encoding="utf-8"))
"""Cases of a test that take the longest, while the others stay in `make test`."""
IN_THIRDS = (
    "test_a_change_of_a_key_changes_an_answer",
    "test_a_flag_changes_what_is_answered",
    "test_a_device_that_borrows_kernels_has_one_label_everywhere",
    "test_google_by_itself_on_demand_or_not_at_all",
    "test_prompts_find_what_a_clock_for_every_prefix_finds",
    "test_with_more_memory_first_weights_fit_then_activations_then_a_sequence",
    "test_the_cache_of_a_live_engine_holds_what_is_predicted",
)
"""Sweeps over keys, flags, devices, models and settings, of which `make test` takes a third."""


@dataclass(frozen=True)
class Ran:
    """What a run of the program left behind."""

    code: int
    out: str
    err: str


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden anew; review the difference"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the cases that take seconds, before those of `make test` or of `make long` are chosen."""
    for item in items:
        name, _, case = item.name.partition("[")
        case = case.removesuffix("]")
        if case in LONG_CASES.get(name, ()) or (name in IN_THIRDS and crc32(case.encode()) % 3):
            item.add_marker(pytest.mark.long)


def pytest_configure(config):
    """Keep the prices of the person who runs the tests out of them."""
    folder = TemporaryDirectory(prefix="capplan-config-")
    os.environ["XDG_CONFIG_HOME"] = folder.name
    config.add_cleanup(folder.cleanup)


def pytest_sessionstart():
    """Collecting makes some million objects that all stay: looking through them for garbage again and again takes seconds."""
    gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.set_threshold(20_000)  # arrays and results by the thousand, few of which form cycles
    gc.enable()


@pytest.fixture(scope="session")
def root():
    return ROOT


@dataclass(frozen=True)
class Program:
    """The command line in this process."""

    capsys: pytest.CaptureFixture

    def __call__(self, line, *words):
        """Return what a command line left behind: its beginning as people type it, and further words."""
        from capplan.cli.main import main

        self.capsys.readouterr()
        code = main([*shlex.split(str(line)), *map(str, words)])
        caught = self.capsys.readouterr()
        return Ran(code, caught.out, caught.err)

    def result(self, *words, code=0):
        """Return the result in JSON of a command line that is answered with this code, or one of these."""
        ran = self(*words, *(() if "--format" in " ".join(map(str, words)) else ("--format", "json")))
        assert ran.code in (code if isinstance(code, tuple) else (code,)), ran.err
        return json.loads(ran.out)["result"]

    def refused(self, *words):
        """Return the message of a command line that is refused: nothing else is printed."""
        ran = self(*words)
        assert (ran.code, ran.out) == (2, ""), (ran.out, ran.err)
        assert "Traceback" not in ran.err
        return ran.err


@pytest.fixture
def capplan(capsys, monkeypatch):
    """Run a command line in this process, from the root of the repository."""
    monkeypatch.chdir(ROOT)
    return Program(capsys)


@pytest.fixture(scope="session")
def runs_of_replicas():
    from capplan.fleet.search.search_cache import SearchCache

    return SearchCache()


@pytest.fixture(scope="module")
def shared_runs(runs_of_replicas):
    """Let the fleets of a module share the runs of replicas with all that were asked before."""
    from tests.sweeps import share_runs

    with pytest.MonkeyPatch.context() as patch:
        share_runs(patch, runs_of_replicas)
        yield


@pytest.fixture(scope="module")
def few_requests():
    """Size the fleets of a module on short runs."""
    from tests.sweeps import size_on_few_requests

    with pytest.MonkeyPatch.context() as patch:
        size_on_few_requests(patch)
        yield


@pytest.fixture
def program():
    """Run the program in a process of its own, with chosen environment variables."""

    def run(*words, env=None, cwd=ROOT, timeout=60):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "NO_COLOR"))}
        environment |= {"PYTHONPATH": str(ROOT), **(env or {})}
        done = subprocess.run(
            [sys.executable, "-m", "capplan", *map(str, words)],
            capture_output=True,
            text=True,
            env=environment,
            cwd=cwd,
            timeout=timeout,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


_NUMBER = re.compile(r"(?<![A-Za-z])\d[\d,]*(?:\.\d+)?")
ROUNDING = 0.01
"""The last of three digits may differ between machines, whose libraries round sums differently."""


def _words_and_numbers(text):
    """Return a text without its numbers and column widths, and the numbers."""
    numbers = [float(found.replace(",", "")) for found in _NUMBER.findall(text)]
    return " ".join(re.sub("[─-]+", "-", _NUMBER.sub("0", text)).split()), numbers


@pytest.fixture
def same_but_for_rounding():
    """Compare what a program prints with what it should print, the last digit of a number apart."""

    def compare(text, expected, advice):
        words, numbers = _words_and_numbers(text)
        other_words, other_numbers = _words_and_numbers(expected)
        assert words == other_words, advice
        assert numbers == pytest.approx(other_numbers, rel=ROUNDING), advice

    return compare


@pytest.fixture
def golden(request, same_but_for_rounding):
    """Compare text with a file of tests/golden; `pytest --update-golden` writes it."""

    def compare(name, text, *, simulated=False):
        path = ROOT / "tests" / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path.relative_to(ROOT)} is missing: write it with pytest --update-golden"
        advice = "differs: pytest --update-golden, then review the diff"
        if simulated:
            same_but_for_rounding(text, path.read_text(encoding="utf-8"), advice)
        else:
            assert text == path.read_text(encoding="utf-8"), advice

    return compare


@pytest.fixture(scope="session")
def numbers():
    """Return the numbers of an answer in order, without what only echoes the question: words, and values of that name."""

    def found(value, asked):
        if isinstance(value, dict):
            return [
                n
                for key, inner in value.items()
                if key != asked or isinstance(inner, (dict, list))
                for n in found(inner, asked)
            ]
        if isinstance(value, list):
            return [len(value), *(number for inner in value for number in found(inner, asked))]
        return [value] if isinstance(value, (int, float)) else []

    return found


@pytest.fixture(scope="session")
def host_file():
    """Return the text of a calibration whose host takes 20 ms a step: vLLM on an H100."""
    from capplan.engine.lookup import profile
    from capplan.readers.calibration.file import calibration_text
    from capplan.readers.calibration.record import HostRefit, ResultPoint

    own = profile("vllm")
    point = ResultPoint("run.json", "tpot_s", "llama-3.1-8b", 1.0, 0.03, 0.01, 0.03, 0.03)
    slow = own.host.named | {"step_s": 0.02}
    return calibration_text(
        None,
        HostRefit(
            engine="vllm",
            engine_version=own.version,
            hardware="h100-sxm",
            tools=(),
            models=(),
            numbers={},
            kept=slow,
            before_median_ape=0.1,
            after_median_ape=0.1,
            left_out_median_ape=0.1,
            date="2026-01-01",
            remarks=(),
            points=(point,),
        ),
    )


def completed(table, row):
    """Return a row of a table with what its notes say in columns of their own."""
    from capplan.recorded.measured import with_run_columns, with_start_columns

    complete = {"runs": with_run_columns, "starts": with_start_columns}.get(table)
    return complete(row) if complete else row


@dataclass(frozen=True)
class Measured:
    """Measured facts: the rows that were drawn for tests/data, or the whole tables that they were drawn from."""

    whole: bool
    tables: dict = field(default_factory=dict)

    def table(self, name):
        """Return the records of tests/data/NAME.csv, or of the whole table in the same columns."""
        if name not in self.tables:
            from calibrate.choose_rows import TABLES

            if self.whole and name in TABLES:
                self.tables[name] = TABLES[name](SHARED / "data", every=True)
            else:
                with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
                    self.tables[name] = list(csv.DictReader(file))
            self.tables[name] = [completed(name, row) for row in self.tables[name]]
        return self.tables[name]

    def facts(self, trace):
        """Return what plain counting says of the drawn excerpt of a trace."""
        (row,) = (row for row in self.table("traces/facts") if row["trace"] == trace)
        return {key: float(value) for key, value in row.items() if key not in ("trace", "source")}

    def configs(self):
        """Return config.json by model: all that were collected, or those that ship."""
        if self.whole:
            paths = sorted((SHARED / "data" / "configs").glob("*.json"))
            return {
                path.stem.replace("--", "/", 1): json.loads(path.read_text(encoding="utf-8"))
                for path in paths
            }
        from capplan.readers.catalogue.models import shipped_config

        index = json.loads((ROOT / "model_configs" / "index.json").read_text(encoding="utf-8"))["models"]
        folders = {path.name.replace("--", "/", 1) for path in (ROOT / "model_configs").glob("*--*")}
        asked = folders | {row["model"] for row in self.table("models")}
        return {name: shipped_config(name)[0] for name in sorted(asked) if name in index}


@pytest.fixture
def trace(measured, tmp_path):
    """Return the path of a published trace: the whole file, or the drawn excerpt in the format of the file."""

    def path(name):
        if measured.whole:
            return SHARED / "traces" / name
        from calibrate.choose_traces import published_text

        rows = measured.table(f"traces/{name.partition('.')[0]}")
        for file, text in published_text(name, rows).items():
            (tmp_path / file).write_text(text, encoding="utf-8")
        return tmp_path / name.removesuffix(".gz")

    return path


@pytest.fixture
def shared():
    """Return the folder beside the repository in which the large tables lie."""
    if not SHARED.is_dir():
        pytest.skip("the large tables are not beside the repository")
    return SHARED


@pytest.fixture(
    scope="session",
    params=[False, *([True] if SHARED.is_dir() else [])],
    ids=["drawn", "whole"][: 1 + SHARED.is_dir()],
)
def measured(request):
    """Ask the drawn rows in every clone, and the whole tables too where they lie beside the repository."""
    return Measured(request.param)
