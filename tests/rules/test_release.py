"""A release: what workflows run, what a tag builds, what a container holds."""

import re
from pathlib import Path

import pytest
import yaml

from capplan import __version__
from tests.installs.built import faults_of_release

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CHANGES = "## [1.2.3] - 2026-12-01\n\n- a change\n"


def steps(path):
    for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values():
        yield from job["steps"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_targets_that_exist(path):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for step in steps(path):
        assert ("run" in step) != ("uses" in step)
        for target in re.findall(r"^make (\w+)", step.get("run", ""), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE)
        for script in re.findall(r"^\.\S+", step.get("run", ""), re.MULTILINE):
            assert (ROOT / script).is_file()


def test_the_workflow_of_tests_runs_what_everybody_runs():
    assert [step["run"] for step in steps(ROOT / ".github/workflows/tests.yml") if "run" in step] == [
        ".ci/run"
    ]


def test_a_release_is_a_dated_version_and_its_own_tag():
    assert faults_of_release("1.2.3", CHANGES, []) == []
    assert faults_of_release("1.2.3", CHANGES, ["v1.2.3", "internal"]) == []
    assert faults_of_release("1.2.3", CHANGES, ["v1.2.4"]) == ["the tag v1.2.4 is not v1.2.3"]
    assert faults_of_release("1.2.4", CHANGES, []) == ["CHANGELOG.md has no release 1.2.4 with its date"]


def test_this_version_could_be_released():
    assert faults_of_release(__version__, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), []) == []


def test_releases_of_the_changelog_are_in_order():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## \[(\d+)\.(\d+)\.(\d+)\]", text, re.MULTILINE)
    assert len(releases) >= 2
    assert releases == sorted(releases, key=lambda release: tuple(map(int, release)), reverse=True)


def test_the_changelog_is_short_and_has_one_table_of_moved_numbers_a_version():
    text = re.sub(r"\]\([^)]*\)|\|", "", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    for version in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        headings = re.findall(r"^### .*", version, re.MULTILINE)
        assert len(headings) == len(set(headings))
        assert headings[-1] == "### Numbers that moved"
    assert not [line for line in text.splitlines() if line.startswith("- ") and len(line.split()) > 26]
    assert len(text.split()) < 8000


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "scenarios").glob("*.yaml")))
def test_dollars_of_shipped_scenarios_in_the_table_are_those_of_today(capplan, name):
    newest = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1]
    for now in re.findall(rf"^\| {name}(?:, first month)? \| [^|]+ \| ([^|]+) \|", newest, re.MULTILINE):
        numbers = re.findall(r"\d+\.?\d*", capplan("fleet", name, "--offline", "--format", "json").out)
        assert set(re.findall(r"\$[\d,]+", now)) <= {f"${float(number):,.0f}" for number in numbers}


def test_the_steps_of_the_container_name_files_that_are_there():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for name in re.findall(r"--requirement (\S+)", text):
        for which in ("plan", "serve"):
            assert (ROOT / name.replace("${CONSTRAINTS:-plan}", which)).is_file()
    assert 'ENTRYPOINT ["capplan"]' in text
    assert "USER capplan" in text


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda path: path.stem
)
def test_a_template_asks_for_what_a_reader_needs(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    assert any(item.get("validations", {}).get("required") for item in form["body"])
