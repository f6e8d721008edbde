"""The wheel holds one import package with its data, and the program runs from it."""

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from capplan import __version__

ROOT = Path(__file__).resolve().parents[2]
DATA = ("hardware_specs", "model_configs", "scenarios")


def run_installed(site, *words, cwd):
    """Run capplan from the unpacked wheel only: -P keeps the working folder out of the import path."""
    entry = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from capplan.cli.main import main; sys.exit(main())"
    )
    return subprocess.run(
        [sys.executable, "-P", "-c", entry, str(site), *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), "PYTHONDONTWRITEBYTECODE": "1"},
    )


def test_nothing_but_capplan_lands_in_site_packages(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"capplan"}


def test_the_wheel_has_each_file_once_and_all_data(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    assert "capplan/py.typed" in names
    assert "capplan/calibrate/__init__.py" in names
    page = {p.name for p in (ROOT / "capplan/cli/api/page").iterdir()}
    assert {f"capplan/cli/api/page/{name}" for name in page} <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    for folder in DATA:
        here = {
            str(p.relative_to(ROOT))
            for p in (ROOT / folder).rglob("*")
            if p.is_file() and "__pycache__" not in p.parts
        }
        there = {name.removeprefix("capplan/") for name in names if name.startswith(f"capplan/{folder}/")}
        assert there == here


def test_the_wheel_states_licence_and_entry_point(wheel):
    with zipfile.ZipFile(wheel) as archive:
        info = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = archive.read(info).decode()
        entry = archive.read(info.replace("METADATA", "entry_points.txt")).decode()
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    assert "License-Expression: Apache-2.0" in metadata
    assert "capplan = capplan.__main__:main" in entry
    required = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", metadata, re.MULTILINE)
    assert set(required) == {"typer", "rich", "pydantic", "pyyaml", "numpy", "pandas", "huggingface-hub"}


def test_the_installed_program_runs_from_any_folder(installed, tmp_path):
    version = run_installed(installed, "--version", cwd=tmp_path)
    assert version.stdout.split(" (")[0] == f"capplan {__version__}", version.stderr
    size = run_installed(installed, "kv-size", "llama-3.1-8b", "--context", "8192", cwd=tmp_path)
    assert size.returncode == 0, size.stderr
    assert "8,192" in size.stdout
    listed = run_installed(installed, "hardware", "h100-sxm", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr


def test_the_version_is_stated_once(root):
    about = tomllib.loads((root / "pyproject.toml").read_text())
    assert about["project"]["dynamic"] == ["version"]
    assert about["tool"]["hatch"]["version"]["path"] == "capplan/__init__.py"


def test_the_changelog_has_a_release_of_this_version(root):
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(__version__)}\]", changes, re.MULTILINE)


def test_an_index_shows_where_the_project_is_and_what_it_is_for(wheel):
    with zipfile.ZipFile(wheel) as archive:
        info = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = archive.read(info).decode()
    for name in ("Homepage", "Documentation", "Changelog", "Issues"):
        assert f"Project-URL: {name}, https://" in metadata
    assert metadata.count("Classifier: ") >= 8
    assert "Description-Content-Type: text/markdown" in metadata


def test_torch_is_pinned_in_the_test_extra_and_optional_elsewhere(root):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert "torch==2.13.0" in project["optional-dependencies"]["test"]
    assert not [line for line in project["dependencies"] if line.startswith(("torch", "scipy"))]


PLAIN = """
import importlib, pkgutil, sys
for name in EXTRAS:
    sys.modules[name] = None
import capplan
for module in pkgutil.walk_packages(capplan.__path__, "capplan."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as missing:
        print(module.name, missing.name.split(".")[0])
"""


def test_a_plain_installation_imports_all_but_what_measures_a_device():
    extras = [
        "torch",
        "scipy",
        "distributed",
        "mcp",
        "mcp_types",
        "fastapi",
        "uvicorn",
    ]
    probe = PLAIN.replace("EXTRAS", repr(extras))
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    missing = dict(line.split() for line in done.stdout.splitlines())
    assert set(missing.values()) == {"torch", "scipy", "fastapi", "uvicorn"}
    assert all(name.startswith(("capplan.calibrate.", "capplan.cli.api.")) for name in missing), missing
    assert not [name for name in missing if name.startswith("capplan.calibrate.endpoint")], missing


@pytest.mark.long
def test_an_installed_program_has_its_scenarios_by_name_and_the_schemas_that_it_names(installed, tmp_path):
    listed = json.loads(
        run_installed(installed, "list", "scenarios", "--format", "json", cwd=tmp_path).stdout
    )
    rows = {row["scenario"]: Path(row["file"]) for row in listed["result"]["rows"]}
    assert rows["support-chat"].is_relative_to(installed)
    refused = run_installed(installed, "fleet", "absent.yaml", cwd=tmp_path)
    assert refused.returncode == 2
    schema = Path(re.search(r"keys: (\S+)", refused.stderr)[1])
    assert schema.is_file()
    assert schema.is_relative_to(installed)
    assert (
        run_installed(installed, "init", "mine.yaml", "--from", "support-chat", cwd=tmp_path).returncode == 0
    )
    assert str(installed) not in (tmp_path / "mine.yaml").read_text()
