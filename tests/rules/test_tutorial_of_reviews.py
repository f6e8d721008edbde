"""The tutorial on reviews in a pull request runs as it is written: the shell steps of both build systems, in a real repository."""

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.sweeps import long_but

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorials" / "review-in-a-pull-request.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```\w+\n# file: (\S+)\n(.*?)```", PAGE, re.DOTALL))


def github_steps():
    (job,) = yaml.safe_load(FILES[".github/workflows/capacity.yml"])["jobs"].values()
    return [step["run"] for step in job["steps"] if "run" in step]


def gitlab_steps():
    (job,) = yaml.safe_load(FILES[".gitlab-ci.yml"]).values()
    return job["script"]


SYSTEMS = {"github": github_steps, "gitlab": gitlab_steps}


class Repository:
    """A clone with a main branch on its origin, and stand-ins for what reaches out: pip and gh."""

    def __init__(self, folder):
        self.work = folder / "work"
        self.commands = folder / "bin"
        self.commands.mkdir(parents=True)
        self.stand_in("capplan", f'exec {sys.executable} -m capplan "$@"')
        self.stand_in("pip", 'test "$*" = "install capplan"')
        self.stand_in("gh", f'echo "$*" > {folder}/said && cat comment.md >> {folder}/said')
        self.said = folder / "said"
        self.run(
            f"git init -q --bare -b main {folder}/origin && git clone -q {folder}/origin {self.work}",
            at=folder,
        )
        for name in ("capacity/chat.yaml", "capacity/plan"):
            path = self.work / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(FILES[name])
        self.run("bash capacity/plan")
        self.commit("main")

    def stand_in(self, name, line):
        path = self.commands / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run(self, script, at=None):
        environment = {
            "PATH": f"{self.commands}:/usr/bin:/bin", "HOME": str(self.commands), "PYTHONPATH": str(ROOT), "PULL_REQUEST": "7",
            "GITHUB_BASE_REF": "main", "CI_DEFAULT_BRANCH": "main", "GIT_CONFIG_GLOBAL": "/dev/null",
        }  # fmt: skip
        ran = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script],
            cwd=at or self.work,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        self.error = ran.stderr
        return ran.returncode

    def commit(self, branch):
        who = "-c user.name=a -c user.email=a@example.org"
        assert (
            self.run(f"git add -A && git {who} commit -qm plan && git push -q origin HEAD:{branch}") == 0
        ), self.error

    def build(self, system):
        """Return the exit code of the first step that fails, else 0."""
        return next((code for step in SYSTEMS[system]() if (code := self.run(step))), 0)


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path)


@pytest.mark.parametrize("system", long_but({"github"}, SYSTEMS))
def test_a_reviewed_change_passes_and_one_without_its_plan_fails(repository, system):
    scenario = repository.work / "capacity" / "chat.yaml"
    scenario.write_text(scenario.read_text().replace("20 req/s", "90 req/s"))
    assert repository.build(system) == 4, "the plan of 20 req/s does not hold for 90"
    assert repository.run("bash capacity/plan") == 0
    assert repository.build(system) == 0, repository.error
    comment = (repository.work / "comment.md").read_text()
    assert "20 req/s" in comment
    assert "90 req/s" in comment
    assert "### The plan" in comment
    if system == "github":
        assert repository.said.read_text().startswith("pr comment 7 --body-file comment.md")


def test_the_tutorial_has_a_file_for_each_system():
    assert set(FILES) == {
        "capacity/chat.yaml",
        "capacity/plan",
        ".github/workflows/capacity.yml",
        ".gitlab-ci.yml",
    }
