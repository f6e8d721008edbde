"""A core that is not compiled says so, with the reason that the build recorded."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from calibrate.live.python_core import CORES
from capplan.cli.main import CORE, REASON_FILE, core_missing, core_words

ROOT = Path(__file__).parents[2]


@pytest.fixture
def build():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_build_and_the_program_name_the_same_files(build):
    cores = build.cores_of(ROOT)
    assert CORE in cores
    assert build.REASON_FILE == REASON_FILE
    assert cores == sorted(CORES)


def test_what_keeps_the_core_from_being_compiled_is_named(build, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "no-such-compiler")
    assert build.failure(tmp_path) == "no C compiler (no-such-compiler) was found"
    monkeypatch.setenv("CC", sys.executable)
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda _name: None)
    assert build.failure(tmp_path) == "Cython is not installed"
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda _name: True)
    monkeypatch.setattr(build.sysconfig, "get_path", lambda _name: str(tmp_path))
    assert build.failure(tmp_path) == "the headers of Python (Python.h) are missing"


def test_the_reason_is_recorded_and_removed(build, tmp_path):
    (tmp_path / build.FOLDER).mkdir(parents=True)
    data = {}
    build.record(tmp_path, "Cython is not installed", data)
    assert list(data["force_include"].values()) == [str(build.FOLDER / REASON_FILE)]
    assert core_missing(tmp_path / build.FOLDER) == "Cython is not installed"
    build.record(tmp_path, "", {})
    assert not (tmp_path / build.FOLDER / REASON_FILE).exists()
    assert core_words(tmp_path / build.FOLDER).endswith("; simulations take about 40 times as long")


@pytest.mark.long
def test_a_copy_without_the_compiled_files_says_so_in_its_version_and_once_in_fleet(tmp_path):
    for name in ("capplan", "hardware_specs", "model_configs", "scenarios"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "capplan").unlink()
    shutil.copytree(
        ROOT / "capplan", tmp_path / "capplan", ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    )
    (tmp_path / "capplan" / "serving" / REASON_FILE).write_text("no C compiler (cc) was found\n")

    def ran(*words):
        return subprocess.run([sys.executable, "-m", "capplan", *words], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, check=False)  # fmt: skip

    version = ran("--version").stdout
    assert version.split()[0] == "capplan"
    assert (
        version.split(" ", 2)[2]
        == "(core not compiled: no C compiler (cc) was found; simulations take about 40 times as long)\n"
    )
    for words in (("fleet", "nowhere.yaml"), ("simulate", "nowhere.yaml")):
        said = ran(*words).stderr
        assert said.count("core not compiled: no C compiler (cc) was found") == 1
    assert "core" not in ran("kv-size", "llama-3.1-8b").stderr
