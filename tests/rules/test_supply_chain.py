"""What builds, publishes and checks takes others' code by commit, and has no more rights than it uses."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.installs import advisories

ROOT = Path(__file__).resolve().parents[2]
FLOWS = sorted((ROOT / ".github").rglob("*.yml"))
USES = re.compile(r"uses: (\S+)(?:  # (v[\d.]+))?$", re.MULTILINE)


@pytest.mark.parametrize("path", FLOWS, ids=lambda path: path.stem)
def test_an_action_is_taken_by_commit_with_its_version_next_to_it(path):
    for action, version in USES.findall(path.read_text(encoding="utf-8")):
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action
        assert version, action


def test_an_image_starts_from_a_digest():
    """Each stage starts from a digest or from a stage before it, and the page of the digest is named."""
    text, stages = (ROOT / "Dockerfile").read_text(encoding="utf-8"), set()
    for source, name in re.findall(r"^FROM (\S+)(?: AS (\w+))?$", text, re.MULTILINE):
        assert source in stages or re.fullmatch(r"python:[\w.-]+@sha256:[0-9a-f]{64}", source), source
        stages.add(name)
    assert len(re.findall("^FROM", text, re.MULTILINE)) == 3
    assert "docker-library/repo-info@" in text


def jobs():
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        flow = yaml.safe_load(path.read_text(encoding="utf-8"))
        for name, job in flow["jobs"].items():
            yield f"{path.stem}.{name}", job, {**flow["permissions"], **job.get("permissions", {})}


def test_what_runs_our_code_may_only_read():
    """Each right to write is in a job that checks nothing out and runs none of our commands."""
    writing = {name for name, _, rights in jobs() if "write" in rights.values()}
    assert writing == {"docs.deploy", "release.release", "release.publish"}
    for name, job, rights in jobs():
        run = [
            step
            for step in job["steps"]
            if "make" in step.get("run", "") or "checkout" in step.get("uses", "")
        ]
        assert not (run and name in writing), name
        if name == "release.publish":
            assert rights == {"contents": "read", "id-token": "write"}
        for step in job["steps"]:
            if "checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False


def test_wheels_are_built_with_what_is_pinned_by_hash():
    words = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert (
        'before-build = "pip install --require-hashes --requirement {project}/constraints/plan.txt"' in words
    )
    assert "--no-build-isolation" in words
    pins = (ROOT / "constraints" / "plan.txt").read_text(encoding="utf-8")
    assert all(f"{name}==" in pins for name in ("hatchling", "cython", "editables"))


def test_the_check_installs_the_version_of_its_tag_and_without_a_token():
    steps = yaml.safe_load((ROOT / ".github/actions/check/action.yml").read_text(encoding="utf-8"))["runs"][
        "steps"
    ]
    (install,) = (step for step in steps if "pip install" in step.get("run", ""))
    assert set(install["env"]) == {"VERSION"}
    said = re.search(r"sed -n '(.*?)'", install["run"])[1]
    if shutil.which("sed"):
        found = subprocess.run(
            ["sed", "-n", said, str(ROOT / "capplan" / "__init__.py")],
            capture_output=True,
            text=True,
            check=True,
        )
        assert re.fullmatch(r"\d+\.\d+\.\d+\n", found.stdout)


@pytest.mark.parametrize(
    ("affected", "says"),
    [
        ({"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "9999"}]}]}, True),
        ({"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "0.1"}]}]}, False),
        ({"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "9999"}]}]}, False),
        (
            {"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"last_affected": "9999"}]}]},
            True,
        ),
        ({"ranges": [{"type": "GIT", "events": [{"introduced": "0"}]}]}, False),
        ({"versions": ["1.2.3"]}, True),
        ({"versions": ["1.2.4"]}, False),
        ({"package": {"name": "NumPy", "ecosystem": "npm"}, "versions": ["1.2.3"]}, False),
    ],
)
def test_an_advisory_names_the_versions_that_it_affects(affected, says):
    advisory = {"id": "X-1", "affected": [{"package": {"name": "NumPy", "ecosystem": "PyPI"}, **affected}]}
    assert bool(list(advisories.findings([advisory], {"numpy": {"1.2.3"}}))) == says
    assert not list(advisories.findings([{**advisory, "withdrawn": "2026"}], {"numpy": {"1.2.3"}}))
    assert (
        advisories.records(json.dumps(advisory)) == advisories.records(json.dumps([advisory])) == [advisory]
    )
    assert len(advisories.records(f"{json.dumps(advisory)}\n" * 2)) == 2


def test_the_pins_are_read():
    assert {"numpy", "pydantic", "hatchling"} <= set(advisories.pinned())


def test_a_package_that_the_registry_does_not_know_is_not_free_of_vulnerabilities():
    known = [
        {"name": "a", "version": "1", "vulns": [{"id": "X-1"}]},
        {"name": "b", "version": "1", "vulns": []},
    ]
    unknown = [{"name": "c", "skip_reason": "not found"}]
    found, left_out = advisories.judged({"dependencies": known + unknown})
    assert (found, left_out) == (["a 1: X-1"], 1)
    packages = len(advisories.pinned())
    said = f"1 known vulnerabilities in the {packages - 1} of {packages} packages that its registry knows"
    assert advisories.summary(found, left_out) == said
