"""The hub is asked last, never under --offline, and every refusal is one clear line.

The hub here is a real HTTP server on loopback that speaks the few answers of the protocol; the
client is the real huggingface-hub.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from subprocess import PIPE
from types import SimpleNamespace

import pytest

import capplan as capplan_library
from capplan.cli import mcp
from capplan.errors import InputError
from capplan.ranges import is_revision
from capplan.readers.catalogue import models as hub_reader
from tests.hub import ANSWERS, CONFIG, HTML, Hub, leads, on_get, sends
from tests.interrupts import started


@pytest.fixture
def hub():
    server = Hub()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def variables(hub, tmp_path):
    """Return the variables of a client that asks the hub on loopback, with a cache of its own."""
    return {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "cache")}


@pytest.fixture
def asks(program, variables):
    """Run `capplan model` in a process of its own."""

    def run(*words, **env):
        return program("model", *words, env={**variables, **env})

    return run


def client_modules():
    return [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]


@pytest.fixture
def asks_here(capplan, variables):
    """Run `capplan model` in this process, with a client that is imported anew where its variables change: it reads them once."""
    before = {name: sys.modules.pop(name) for name in client_modules()}
    read = {}

    def run(*words, **env):
        given = {**variables, **env}
        if given != read:
            for name in client_modules():
                del sys.modules[name]
        read.clear()
        read.update(given)
        hub_reader._warn.cache_clear()
        with pytest.MonkeyPatch.context() as patch:
            for key in [key for key in os.environ if key.startswith("HF_")]:
                patch.delenv(key)
            for key, value in given.items():
                patch.setenv(key, value)
            return capplan("model", *words)

    yield run
    for name in client_modules():
        del sys.modules[name]
    sys.modules.update(before)


def one_line_error(ran, *expected):
    assert ran.code == 2
    assert ran.out == ""
    assert "Traceback" not in ran.err
    first = ran.err.splitlines()[0]
    for text in expected:
        assert text in first, ran.err
    return ran.err


@pytest.mark.long
def test_a_model_on_the_hub_is_read_and_then_kept_in_the_local_cache(asks, hub):
    first = asks("tiny/open", "--format", "json")
    assert first.code == 0, first.err
    assert json.loads(first.out)["result"]["layers"] == 2
    assert any("/tiny/open/resolve/main/config.json" in path for _, path, _ in hub.asked)

    hub.asked.clear()
    again = asks("tiny/open", "--format", "json")
    assert json.loads(again.out)["result"] == json.loads(first.out)["result"]
    assert [path for _, path, _ in hub.asked if path.endswith("/config.json")] == []

    hub.asked.clear()
    assert asks("tiny/open", "--offline").code == 0
    assert hub.asked == []


def without_the_answer_on_optional_files(folder):
    """Take from a cache what the hub said of files that it does not have, as if the program had never asked."""
    for found in [*folder.rglob(".no_exist")]:
        shutil.rmtree(found)


@pytest.mark.parametrize("gone", ["out of reach", "out of order", "gated by now"])
def test_a_cached_model_is_read_where_the_hub_does_not_answer_any_more(gone, request, hub, tmp_path):
    asks = request.getfixturevalue("asks" if gone == "out of reach" else "asks_here")
    first = asks("tiny/open", "--format", "json")
    without_the_answer_on_optional_files(tmp_path / "cache")
    if gone == "out of reach":
        hub.shutdown()
        hub.server_close()
    else:
        hub.refused["tiny/open"] = {"out of order": (503, "ServerError"), "gated by now": (401, "GatedRepo")}[
            gone
        ]
    again = asks("tiny/open", "--format", "json")
    assert again.code == 0, again.err
    assert json.loads(again.out)["result"] == json.loads(first.out)["result"]
    (line,) = again.err.splitlines()
    assert line.startswith("warning: model 'tiny/open'")
    assert "read without a hf_quant_config.json, as under --offline" in line
    for quiet in (asks("tiny/open", "--offline"), asks("tiny/open", HF_HUB_OFFLINE="1")):
        assert (quiet.code, quiet.err) == (0, "")


def test_a_model_that_was_never_cached_still_needs_the_hub(asks_here, hub):
    hub.refused["tiny/open"] = (503, "ServerError")
    one_line_error(asks_here("tiny/open"), "tiny/open", "503")


def test_the_quantisation_file_beside_the_config_counts(asks_here, hub):
    plain = json.loads(asks_here("tiny/open", "--format", "json").out)["result"]
    hub.files["tiny/fp8", "main", "config.json"] = CONFIG
    hub.files["tiny/fp8", "main", "hf_quant_config.json"] = {
        "producer": {"name": "modelopt", "version": "0.23.0"},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    }
    quantised = json.loads(asks_here("tiny/fp8", "--format", "json").out)["result"]
    assert quantised["parameters"] == plain["parameters"]
    # all matrices of the layers take half; embedding and head stay in 16 bit
    assert 0.5 < quantised["weight_bytes"] / plain["weight_bytes"] < 0.7


def test_a_revision_is_asked_for_by_name(asks_here, hub):
    hub.files["tiny/open", "v2", "config.json"] = {**CONFIG, "num_hidden_layers": 3}
    ran = asks_here("tiny/open", "--revision", "v2", "--format", "json")
    assert json.loads(ran.out)["result"]["layers"] == 3
    one_line_error(asks_here("tiny/open", "--revision", "v9"), "tiny/open", "no revision 'v9'")


def test_offline_never_opens_a_connection(asks_here, hub):
    for name in ("tiny/open", "tiny/gated", "tiny/missing"):
        err = one_line_error(asks_here(name, "--offline"), name)
        assert "--offline" in err
    assert hub.asked == []


def test_the_token_of_the_environment_is_sent(asks, hub):
    asks("tiny/open", HF_TOKEN="hf_testtoken")
    assert {token for _, path, token in hub.asked if "config.json" in path} == {"Bearer hf_testtoken"}


@pytest.mark.parametrize("name", ["tiny/gated", "tiny/locked"])
def test_a_gated_model_says_so_and_what_to_do(asks_here, name):
    err = one_line_error(asks_here(name), name, "gated")
    assert "accept its terms" in err
    assert "HF_TOKEN" in err


@pytest.mark.parametrize(
    ("name", "says"),
    [("tiny/missing", "no model of that name"), ("tiny/adapter", "no config.json"), ("tiny/broken", "500")],
)
def test_what_a_hub_lacks_or_fails_with_is_said(asks_here, name, says):
    one_line_error(asks_here(name), name, says)


@pytest.mark.long
def test_a_slow_hub_times_out(asks):
    one_line_error(asks("tiny/slow", HF_HUB_ETAG_TIMEOUT="1"), "tiny/slow", "did not answer in time")


def test_a_hub_that_never_ends_its_answer_is_given_up(asks_here, hub, monkeypatch):
    monkeypatch.setattr(hub_reader, "LONGEST_S", 1.0)
    one_line_error(asks_here("tiny/drops"), "tiny/drops", f"{hub.url} did not send the whole file within 1 s")


def test_a_mistake_of_ours_is_not_taken_for_an_answer_of_the_hub(asks_here, monkeypatch):
    def mistaken(*_):
        raise KeyError("ours")

    monkeypatch.setattr(hub_reader, "_kept", mistaken)
    with pytest.raises(KeyError, match="ours"):
        asks_here("tiny/open")


def test_ctrl_c_ends_the_wait_for_a_slow_hub(root, hub, variables):
    env = {**{k: v for k, v in os.environ.items() if not k.startswith("HF_")}, **variables}
    words = [sys.executable, "-m", "capplan", "model", "tiny/drops"]
    running = started(words, cwd=root, env=env, stdout=PIPE, stderr=PIPE, text=True)
    assert hub.dropped.wait(60)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=50)  # the hub would go on for 60 s
    assert (running.returncode, out, err) == (130, "", "interrupted\n")


def test_a_home_folder_on_a_read_only_disk_is_named(root, hub, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_"))}
    env |= {"HF_ENDPOINT": hub.url, "HOME": str(home)}

    def asked(model):
        words = read_only(home, sys.executable, "-m", "capplan", "model", model, "--format", "json")
        done = subprocess.run(
            words, cwd=root, env=env, capture_output=True, text=True, check=False, timeout=60
        )
        return SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr)

    err = one_line_error(
        asked("tiny/open"), "tiny/open", "the local Hugging Face cache cannot be written", str(home)
    )
    assert "set HF_HOME to a folder that can" in err
    shipped = asked("llama-3.2-1b")
    assert (shipped.code, shipped.err) == (0, "")
    assert list(home.iterdir()) == []


def read_only(folder, *words):
    """Return the command that runs a program for which a folder is on a disk that cannot be written, for root as well."""
    if os.geteuid():
        folder.chmod(0o555)
        return list(words)
    mounted = f"mount -t tmpfs -o ro none {shlex.quote(str(folder))} && exec {shlex.join(words)}"
    return ["unshare", "--mount", "sh", "-c", mounted]


def test_a_hub_that_is_not_there_is_named(program, tmp_path):
    env = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    one_line_error(program("model", "tiny/open", env=env), "127.0.0.1:9", "cannot be reached")


def test_the_offline_variable_of_the_client_is_honoured(asks, hub):
    one_line_error(asks("tiny/open", HF_HUB_OFFLINE="1"), "tiny/open", "HF_HUB_OFFLINE")
    assert hub.asked == []


NO_REVISIONS = ["/tmp/file", "../../x", "..", "a/../../x", "-x", "~/x", "a b", "a\\b", "C:x", "x.lock", "@{1}", "a//b", "refs/", ""]  # fmt: skip


@pytest.mark.parametrize("revision", NO_REVISIONS)
def test_a_revision_that_is_a_path_writes_nothing_though_a_mirror_answers(
    asks_here, capplan, hub, tmp_path, revision
):
    """The client writes the commit of a revision to a file of its name, so a path would be written outside its cache."""
    scenario = tmp_path / "scenario.yaml"
    traffic = "traffic: [{name: all, request_rate: 1 req/s, input_tokens: 100, output_tokens: 100}]"
    lines = ["name: small", "model: tiny/open", traffic, "fleet: {hardware: [l4]}", "slo: {ttft_p95: 2 s}"]
    scenario.write_text("\n".join(lines))
    before = sorted(tmp_path.rglob("*"))
    second = ["--set", "cascade.model=tiny/open", "--set", "cascade.escalated=0.2"]
    asked = {
        "the flag": lambda: asks_here("tiny/open", f"--revision={revision}"),
        "a key of the scenario": lambda: capplan("fleet", scenario, "--set", f"revision={json.dumps(revision)}"),
        "the second model": lambda: capplan(
            "fleet", scenario, *second, "--set", f"cascade.revision={json.dumps(revision)}"
        ),
        "a model that shares": lambda: capplan(
            "fleet", scenario, "--set", f"sharing={{by: device, models: [{{name: b, model: tiny/open, revision: {json.dumps(revision)}}}]}}"
        ),
    }  # fmt: skip
    for entry, ask in asked.items():
        ran = ask()
        assert (ran.code, "revision" in ran.err) == (2, True), (entry, ran.err)
        assert "is not the name of a branch, tag or commit" in ran.err, (entry, ran.err)
    with pytest.raises(InputError, match="is not the name of a branch, tag or commit"):
        capplan_library.estimate("tiny/open", "l4", concurrency=1, revision=revision)
    ran = capplan(*mcp.fleet(str(scenario), [f"revision={json.dumps(revision)}"]))
    assert (ran.code, "is not the name of a branch, tag or commit" in ran.err) == (2, True)
    with pytest.raises(InputError, match="is not the name of a branch, tag or commit"):
        hub_reader.read_model("tiny/open", revision=revision)
    assert hub.asked == []
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_revisions_are_those_that_git_accepts():
    names = ["main", "v1.0", "refs/pr/3", "a.b-c_d", "0" * 40, "feature/x", "a@b", "é", *NO_REVISIONS]
    names += [f"a{mark}b" for mark in map(chr, range(1, 128))]
    for name in names:
        accepted = subprocess.run(
            ["git", "check-ref-format", "--allow-onelevel", name], check=False, capture_output=True
        )
        assert is_revision(name) == (accepted.returncode == 0 and not name.startswith("-")), name


@pytest.mark.parametrize(
    "model", ["tiny/../open", "tiny/..", "../tiny/open", "tiny/open/../../x", "..", "tiny/..open"]
)
def test_a_model_whose_name_leaves_its_folder_is_not_asked_for(asks_here, hub, tmp_path, model):
    before = sorted(tmp_path.rglob("*"))
    assert asks_here(model).code == 2
    with pytest.raises(InputError):
        hub_reader.hub_file(model, "config.json", revision=None, offline=False)
    assert hub.asked == []
    assert sorted(tmp_path.rglob("*")) == before


def test_whatever_a_hub_answers_is_read_or_refused_in_a_line_and_only_a_config_is_kept(
    asks_here, hub, tmp_path, monkeypatch, recwarn
):
    around = {path for path in tmp_path.rglob("*") if "cache" not in path.parts}
    for number, (answer, (give, says)) in enumerate(ANSWERS.items()):
        name = f"tiny/odd-{number}"
        hub.answering[name] = give
        monkeypatch.setattr(hub_reader, "LONGEST_S", 0.7 if says == "" else 60.0)
        ran = asks_here(name, "--format", "json")
        folder = tmp_path / "cache" / "hub" / f"models--{name.replace('/', '--')}"
        kept = {path.name for path in folder.rglob("*") if path.is_file()}
        if says is None:
            assert (ran.code, ran.err) == (0, ""), (answer, ran.err)
            assert json.loads(ran.out)["result"]["layers"] == 2
            assert asks_here(name, "--offline").code == 0
            assert kept == {"config.json", "main"}, answer
        else:
            err = one_line_error(ran, name, says)
            assert len(err.splitlines()) == 2, (answer, err)
            assert kept == set(), answer
            del hub.answering[name]
            hub.files[name, "main", "config.json"] = CONFIG
            monkeypatch.setattr(hub_reader, "LONGEST_S", 60.0)
            assert asks_here(name).code == 0, f"after {answer}"
        assert {path for path in tmp_path.rglob("*") if "cache" not in path.parts} == around, answer
    assert not recwarn.list


def test_no_more_than_a_config_may_have_is_downloaded(asks_here, hub):
    hub.answering["tiny/odd"], says = ANSWERS["50 MB"]
    one_line_error(asks_here("tiny/odd"), says)
    assert hub.sent_bytes < 30_000_000


def test_another_host_that_the_hub_names_does_not_get_the_token(asks_here, hub):
    other = Hub()
    threading.Thread(target=other.serve_forever, args=(0.01,), daemon=True).start()
    hub.answering["tiny/odd"] = on_get(
        leads(f"http://localhost:{other.server_address[1]}/tiny/open/resolve/main/config.json")
    )
    assert asks_here("tiny/odd", HF_TOKEN="hf_testtoken").code == 0
    assert {token for _, _, token in other.asked} == {None}
    assert {token for _, path, token in hub.asked if "config.json" in path} == {"Bearer hf_testtoken"}, (
        hub.asked
    )
    other.shutdown()
    other.server_close()


@pytest.mark.parametrize("content", [HTML, b"", b"[]", b"{", b"\xff\xfe"])
def test_a_cached_file_that_is_no_config_names_the_file_to_delete(asks_here, hub, tmp_path, content):
    assert asks_here("tiny/open").code == 0
    (kept,) = (tmp_path / "cache").rglob("config.json")
    kept.write_bytes(content)
    for words in ((), ("--offline",)):
        err = one_line_error(asks_here("tiny/open", *words), str(kept))
        assert f"rm {kept}" in err
    kept.unlink()
    assert asks_here("tiny/open").code == 0


@pytest.mark.parametrize("ends", ["answers", "refuses", "is not there", "sends a page"])
def test_a_password_in_the_address_of_the_hub_is_not_printed(asks_here, hub, ends):
    address = hub.url.replace("//", "//somebody:hush-hush@")
    if ends == "is not there":
        address = "http://somebody:hush-hush@127.0.0.1:9"
    if ends in ("refuses", "sends a page"):
        hub.answering["tiny/open"] = {"refuses": sends(b"", 500), "sends a page": sends(HTML)}[ends]
    ran = asks_here("tiny/open", HF_ENDPOINT=address)
    assert ran.code == (0 if ends == "answers" else 2)
    assert "hush-hush" not in ran.out + ran.err


NO_ADDRESSES = ["hub", "http://", "://x", "http://[::1", "http://h:port", "http://h:99999", "ftp://h", "http://a b", "file:///etc", "http://\u2603\x7f/"]  # fmt: skip


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_an_address_of_a_hub_that_is_none_is_named(asks_here, address):
    one_line_error(asks_here("tiny/open", HF_ENDPOINT=address), "HF_ENDPOINT")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *(("HF_HUB_ETAG_TIMEOUT", value) for value in ("soon", "1.5", "-3", "9" * 400)),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "soon"),
        *((name, "socks5://127.0.0.1:9") for name in ("ALL_PROXY", "http_proxy")),
        *(("all_proxy", value) for value in ("gopher://x", "http://[::1", "http://h:port")),
    ],
)  # fmt: skip
def test_a_variable_that_the_client_cannot_use_is_one_line(asks_here, monkeypatch, variable, value):
    monkeypatch.setattr(hub_reader, "find_spec", lambda _: None)  # no package for SOCKS is installed
    one_line_error(asks_here("tiny/open", **{variable: value}), variable)
