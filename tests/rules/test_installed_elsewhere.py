"""Where people install it: an ASCII stdout, a home folder that cannot be written, an archive without links, other locales."""

import json
import shutil
import subprocess

import pytest
import shellingham

from tests.files import written_to

NAME = "tïny😀"


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        f"name: {NAME}\nmodel: llama-3.2-1b\ntraffic: [{{name: chat, request_rate: 1 req/s, input_tokens: 50, output_tokens: 8}}]\n"
        "slo: {ttft_p95: 2 s}\nfleet: {hardware: [l4]}\n",
        encoding="utf-8",
    )
    return path


def simulated(program, scenario, *words, **env):
    return program(
        "simulate",
        scenario,
        *("--hardware", "l4", "-tp", 1, "--replicas", 1, "--until", "5 s", "--offline", *words),
        env=env,
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_loses_no_letter_whatever_stdout_can_show(encoding, program, scenario):
    done = simulated(program, scenario, "--format", "json", PYTHONIOENCODING=f"{encoding}:strict")
    assert done.code == 0, done.err
    assert json.loads(done.out)["result"]["scenario"] == NAME


def test_a_table_on_an_ascii_terminal_is_no_traceback(program, scenario):
    done = simulated(program, scenario, PYTHONIOENCODING="ascii", LC_ALL="POSIX")
    assert done.code == 0
    assert "t?ny?" in done.out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_home_folder_that_cannot_be_written_is_one_line(shell, program, tmp_path):
    home = written_to(tmp_path / "home", "")
    done = program("--install-completion", shell, env={"HOME": str(home)})
    assert done.code == 2
    assert done.err.startswith("--install-completion: cannot write ")
    assert f"capplan --show-completion {shell}" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
def test_where_no_shell_is_found_one_is_asked_for(option, capplan, monkeypatch, tmp_path):
    def no_shell():
        raise shellingham.ShellDetectionFailure

    monkeypatch.setattr(shellingham, "detect_shell", no_shell)
    monkeypatch.setenv("HOME", str(tmp_path))
    done = capplan(option)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines() == [
        f"{option}: no shell is found that this runs in",
        f"  name one: capplan {option} bash|zsh|fish|powershell|pwsh",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion_is_shown_for_the_shell_that_is_named(shell, capplan):
    for words in (("--show-completion", shell), (f"--show-completion={shell.upper()}",)):
        done = capplan(*words)
        assert (done.code, done.err) == (0, "")
        assert f"complete_{shell}" in done.out


def test_completion_is_installed_for_the_shell_that_is_named(capplan, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    done = capplan("--install-completion", "fish")
    path = tmp_path / ".config" / "fish" / "completions" / "capplan.fish"
    assert (done.code, done.out) == (
        0,
        f"fish completion is installed in {path}; it takes effect in the next terminal\n",
    )
    assert "complete_fish" in path.read_text()


def test_a_shell_that_is_not_known_is_refused_with_the_nearest(capplan):
    done = capplan("--show-completion", "tcsh")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("--show-completion: unknown shell 'tcsh': did you mean 'zsh'?")


def links_among_the_files_of(clone):
    """Return the files that git keeps as links."""
    words = ["git", "ls-files", "--stage"]
    listed = subprocess.run(words, cwd=clone, capture_output=True, text=True, check=True).stdout
    return [line.partition("\t")[2] for line in listed.splitlines() if line.startswith("120000")]


@pytest.fixture
def clone(root, tmp_path):
    """This repository where it is a clone; else one that is made of the same files, as from an archive."""
    if (root / ".git").exists():
        return root
    made = tmp_path / "clone"
    left_out = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.so")
    shutil.copytree(root, made, symlinks=True, ignore=left_out)
    for words in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *words], cwd=made, check=True)
    return made


def test_no_file_of_the_repository_is_a_link(clone):
    """A link is lost in a zip download, and with it what it stands for."""
    assert links_among_the_files_of(clone) == []


def test_a_link_would_be_found(tmp_path):
    (tmp_path / "here").symlink_to("there")
    for words in (["init", "--quiet"], ["add", "here"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert links_among_the_files_of(tmp_path) == ["here"]
