"""What a command must not import: start-up is a feature. Times are in benchmarks/bench_startup.py."""

import subprocess
import sys
from pathlib import Path

import pytest

from capplan.cli.commands import COMMANDS
from tests.tables import table

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "pandas", "scipy", "huggingface_hub"}
PROBE = """
import contextlib, io, sys
from capplan.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    codes = {main(line.split()) for line in sys.argv[1:]}
print(max(codes), *sorted(sys.modules))
"""


def loaded(*words):
    return libraries(modules(" ".join(words)))


def libraries(found):
    return {name.partition(".")[0] for name in found}


def modules(*lines, code=0):
    """Return what one process has imported after these command lines, one after the other, whose largest exit code is `code`."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *lines],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ended, *found = done.stdout.split()
    assert ended == str(code), done.stderr
    return set(found)


@pytest.mark.parametrize("words", [("--help",), ("--version",)])
def test_help_loads_none_of_the_rooms_libraries(words):
    assert loaded(*words).isdisjoint({*HEAVY, "numpy", "pydantic", "yaml"})


def test_help_of_every_command_loads_no_numbers():
    found = modules(*(f"{name} --help" for name in COMMANDS))
    assert libraries(found).isdisjoint({*HEAVY, "numpy", "yaml", "fastapi", "uvicorn"})


@table
def test_a_command_on_shipped_data_loads_no_heavy_library(words):
    assert loaded(*words).isdisjoint(HEAVY)


def test_kv_size_of_a_shipped_model_reads_no_yaml():
    assert "yaml" not in loaded("kv-size", "llama-3.1-8b", "--context", "8192", "--format", "json")


@table
def test_reading_a_model_imports_the_file_of_its_family_alone(model, file):
    found = modules(f"kv-size {model} --context 8192")
    assert {
        name for name in found if name.startswith(("capplan.families.attention.", "capplan.families.hybrid."))
    } == {f"capplan.families.{file}"}


UNUSED = {
    "fleet",
    "money",
    "serving",
    "accuracy",
    "questions",
    "phases",
    "explain",
    "review",
    "deploy",
    "recorded",
}
OF_PLANS = {"questions", "money", "recorded", "explain", "review", "deploy"}
QUICK = {
    "kv-size llama-3.1-8b --context 8192": (62, UNUSED | {"operators", "workload", "hardware"}),
    "model llama-3.1-8b": (50, UNUSED | {"operators", "workload", "hardware", "memory", "engine"}),
    "hardware h100-sxm": (33, UNUSED | {"operators", "families"}),
    "list models": (57, {"fleet", "serving", "accuracy", "phases", "explain", "review", "deploy"}),
    "fit llama-3.1-8b --hardware h100-sxm": (125, OF_PLANS),
    "estimate llama-3.1-8b --hardware h100-sxm --concurrency 8": (125, OF_PLANS),
    "init --help": (18, UNUSED | {"operators", "workload", "hardware", "memory", "engine", "model"}),
    "--version": (9, UNUSED | {"operators", "workload", "hardware", "memory", "engine", "model", "readers"}),
}
"""Quick command -> the modules of its own that it imports at most, and the rooms that it has no use for."""


@pytest.mark.parametrize("line", QUICK)
def test_a_quick_command_imports_what_it_needs(line):
    most, unneeded = QUICK[line]
    own = {name for name in modules(line) if name.startswith("capplan.")}
    rooms = {name.split(".")[1] for name in own}
    assert rooms.isdisjoint(unneeded), sorted(rooms & unneeded)
    assert len(own) <= most, sorted(own)


def test_a_fleet_without_a_simulation_imports_what_it_needs():
    """No plan meets such a target, whatever its load."""
    found = modules("fleet scenarios/support-chat.yaml --set slo.tpot_p95=1us --offline", code=4)
    own = {name for name in found if name.startswith("capplan.")}
    assert {name.split(".")[1] for name in own}.isdisjoint({"explain", "review", "deploy", "recorded"})
    assert found.isdisjoint({"numpy.random", "numpy.ma"})
    assert len(own) <= 205, sorted(own)


def test_no_schema_of_a_plan_file_is_built_before_one_is_read():
    probe = "from capplan.readers.plan_file import AnswerRow as Row\nprint([of.__name__ for of in Row.__subclasses__() if of.__pydantic_complete__])"
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_nothing_but_what_ends_the_program_is_imported_before_ctrl_c_is_heard():
    probe = "import os, signal, sys\nbefore = set(sys.modules)\nimport capplan.__main__\nprint(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["capplan", "capplan.__main__"]
