"""The tutorial on reviews in a pull request runs as it is written: the shell steps of both build systems, in a real repository."""

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.files import written_to
from tests.sweeps import long_but

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorials" / "review-in-a-pull-request.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```\w+\n# file: (\S+)\n(.*?)```", PAGE, re.DOTALL))


ACTION = yaml.safe_load((ROOT / ".github" / "actions" / "check" / "action.yml").read_text(encoding="utf-8"))
USED = "OWNER/capplan/.github/actions/check@v1"


def github_steps():
    """Return the steps of the action, with the inputs that the tutorial gives it."""
    (job,) = yaml.safe_load(FILES[".github/workflows/capacity.yml"])["jobs"].values()
    (given,) = (step["with"] for step in job["steps"] if step["uses"] == USED)
    inputs = {name: spec.get("default") for name, spec in ACTION["inputs"].items()} | given
    steps = [step for step in ACTION["runs"]["steps"] if "run" in step]
    return ["\n".join([*_set(step["env"], inputs), step["run"]]) for step in steps]


def _set(env, inputs):
    for name, value in env.items():
        found = re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", value)
        if found:
            yield f"{name}='{inputs[found[1]]}'"


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
        self.stand_in("pip", 'test "${*#install }" = "capplan" || test "${*#install --quiet }" = "capplan"')
        self.stand_in("gh", f'echo "$*" > {folder}/said && cat "$5" >> {folder}/said')
        self.said = folder / "said"
        self.run(
            f"git init -q --bare -b main {folder}/origin && git clone -q {folder}/origin {self.work}",
            at=folder,
        )
        (self.work / "readme").write_text("a service")
        self.commit("main")
        for name in ("capacity/chat.yaml", "capacity/plan"):
            path = self.work / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(FILES[name])
        assert self.run("bash capacity/plan") == 0, self.error

    def stand_in(self, name, line):
        path = written_to(self.commands / name, f"#!/bin/sh\n{line}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run(self, script, at=None):
        environment = {
            "PATH": f"{self.commands}:/usr/bin:/bin", "HOME": str(self.commands), "PYTHONPATH": str(ROOT), "PULL_REQUEST": "7",
            "RUNNER_TEMP": str(self.commands), "GITHUB_BASE_REF": "main", "CI_DEFAULT_BRANCH": "main", "GIT_CONFIG_GLOBAL": "/dev/null",
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


@pytest.mark.long
@pytest.mark.parametrize("system", long_but({"github"}, SYSTEMS))
def test_a_reviewed_change_passes_and_one_without_its_plan_fails(repository, system):
    repository.commit("main")
    scenario = repository.work / "capacity" / "chat.yaml"
    scenario.write_text(scenario.read_text().replace("20 req/s", "60 req/s"))
    assert repository.build(system) == 4, "the plan of 20 req/s does not hold for 60"
    if system == "github":
        said = repository.said.read_text()
        assert "the plan stays 3 x l40s" in said
        assert "no longer meets slo.confidence" in said, (
            "a plan that did not change names the check that fails"
        )
    assert repository.run("bash capacity/plan") == 0
    assert repository.build(system) == 0, repository.error
    comment = (repository.said if system == "github" else repository.work / "comment.md").read_text()
    assert "20 req/s" in comment
    assert "60 req/s" in comment
    assert "### The plan" in comment
    if system == "github":
        assert comment.startswith("pr comment 7 --body-file ")


@pytest.mark.long
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_first_pull_request_has_no_plan_to_compare_with_and_passes(repository, system):
    assert repository.build(system) == 0, repository.error
    if system == "github":
        assert "slo" in repository.said.read_text().lower() or "target" in repository.said.read_text()


def test_the_hooks_of_pre_commit_run_the_commands():
    (used,) = yaml.safe_load(FILES[".pre-commit-config.yaml"])["repos"]
    hooks = {
        hook["id"]: hook
        for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    }
    assert set(hooks) == {"capplan-check", "capplan-diff"}
    for hook in used["hooks"]:
        assert hooks[hook["id"]]["entry"].split()[0] == "capplan"


def test_the_tutorial_has_a_file_for_each_system():
    assert set(FILES) == {
        "capacity/chat.yaml",
        "capacity/plan",
        ".github/workflows/capacity.yml",
        ".gitlab-ci.yml",
        ".pre-commit-config.yaml",
    }
