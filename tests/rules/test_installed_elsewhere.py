"""Where people install it: an ASCII stdout, a home folder that cannot be written, an archive without links, other locales."""

import json
import os
import subprocess

import pytest

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
    home = tmp_path / "home"
    home.write_text("")  # no folder, for root as well
    done = program("--install-completion", shell, env={"HOME": str(home)})
    assert done.code == 2
    assert done.err.startswith("--install-completion: cannot write ")
    assert "capplan --show-completion" in done.err
    assert "Traceback" not in done.err


def test_no_file_of_the_repository_is_a_link(root):
    """A link is lost in a zip download, and with it what it stands for."""
    if not (root / ".git").exists():
        pytest.skip("not a clone")
    listed = subprocess.run(
        ["git", "ls-files", "--stage"], cwd=root, capture_output=True, text=True, check=True, env=os.environ
    )
    assert not [line for line in listed.stdout.splitlines() if line.startswith("120000")]
