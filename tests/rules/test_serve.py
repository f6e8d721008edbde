"""`capplan serve` on loopback: each command as an address that returns its JSON, and nothing of this machine."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from capplan.cli.api.declared import NOT_OFFERED, offered
from capplan.cli.commands import COMMANDS
from capplan.cli.options import OUTPUTS
from tests.served import ROOT, server
from tests.tables import rows, table

REQUESTS = rows("requests")
FIT = REQUESTS["fit"]
SCENARIO = {
    "name": "small",
    "model": "Qwen/Qwen3-8B",
    "traffic": [{"name": "chat", "request_rate": "4 req/s", "input_tokens": 1500, "output_tokens": 200}],
    "slo": {"ttft_p95": "1 s", "tpot_p95": "50 ms"},
    "fleet": {"hardware": ["l40s"]},
}
TRACE = "arrival_s,input_tokens,output_tokens\n" + "".join(
    f"{i / 2},{500 + i},{100 + i}\n" for i in range(200)
)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with server(tmp_path_factory.mktemp("served"), "--jobs", "2") as running:
        running.post("fit", FIT)  # workers are warm
        yield running


@pytest.fixture(scope="module")
def plan(served):
    answer = served.post("fleet", {"scenario": SCENARIO})
    assert answer.status == 200, answer.text
    return answer.text


@pytest.mark.parametrize(("command", "body", "line"), REQUESTS["answered"])
def test_an_answer_is_exactly_the_json_of_the_command(served, capplan, command, body, line):
    ran = capplan(command, *shlex.split(line), "--format", "json")
    answer = served.post(command, body)
    assert (answer.status, answer.headers["capplan-exit-code"]) == (200, str(ran.code))
    assert answer.text == ran.out


def test_a_scenario_is_an_object_and_its_plan_is_that_of_a_file(plan, capplan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenario.yaml").write_text(json.dumps(SCENARIO))
    ran = capplan("fleet", "scenario.yaml", "--offline", "--format", "json")
    assert json.loads(plan) == json.loads(ran.out)
    assert str(tmp_path.parent) not in plan


def test_a_plan_goes_back_in_and_comes_out_as_commands_and_pages(served, plan):
    sent = {"contents": {"plan.json": plan}, "plan": "plan.json"}
    export = served.post("export", {**sent, "target": "vllm"})
    assert export.headers["Content-Type"].startswith("text/plain")
    assert "vllm serve Qwen/Qwen3-8B" in export.text
    page = served.post("report", sent, headers={"Accept": "text/html"})
    assert page.headers["Content-Type"].startswith("text/html")
    assert page.text.startswith("<!DOCTYPE html>")
    checked = served.post("check", sent)
    assert json.loads(checked.text)["command"] == "check"
    explained = served.post("explain", {**sent, "quantity": "gpus"})
    assert json.loads(explained.text)["result"]["quantity"] == "gpus"


def test_a_trace_and_a_config_come_in_the_request(served):
    traffic = [{"name": "chat", "trace": "traces/day.csv"}]
    body = {"scenario": {**SCENARIO, "traffic": traffic}, "contents": {"traces/day.csv": TRACE}}
    answer = served.post("simulate", body)
    assert json.loads(answer.text)["result"]["requests"] == 200
    config = {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
              "intermediate_size": 8192, "vocab_size": 32000, "architectures": ["LlamaForCausalLM"]}  # fmt: skip
    answer = served.post("model", {"model": config})
    assert json.loads(answer.text)["result"]["layers"] == 4


def test_what_does_not_fit_is_an_answer(served):
    answer = served.post("fit", {"model": "llama-3.1-70b-instruct", "hardware": "l4", "weight_dtype": "bf16"})
    assert (answer.status, answer.headers["capplan-exit-code"]) == (200, "3")
    assert json.loads(answer.text)["result"]["fits"] is False


@pytest.mark.parametrize("kind", ["models", "hardware", "machines", "prices", "scenarios", "engines", "apis"])
def test_what_ships_is_listed(served, capplan, kind):
    answer = served.ask("GET", f"/v1/{kind}")
    assert answer.text == capplan("list", kind, "--format", "json").out


def test_openapi_has_what_the_commands_declare(served):
    api = json.loads(served.ask("GET", "/openapi.json").text)
    posts = {path.removeprefix("/v1/"): item["post"] for path, item in api["paths"].items() if "post" in item}
    assert set(posts) == set(COMMANDS) - set(NOT_OFFERED)
    for name, item in posts.items():
        assert item["summary"] == COMMANDS[name]
        properties = item["requestBody"]["content"]["application/json"]["schema"]["properties"]
        assert all(one["description"] for one in properties.values()), name
        assert not {"output", "format", "plot", "endpoint", "dask", "workers"} & set(properties)
    fit = posts["fit"]["requestBody"]["content"]["application/json"]["schema"]
    assert fit["required"] == ["model", "hardware"]
    assert fit["properties"]["engine"]["enum"] == ["vllm", "sglang", "trtllm", "llamacpp"]


def test_no_offered_command_writes_a_file_or_connects_elsewhere():
    for command in offered().values():
        assert not {flag.option for flag in command.flags} & set(OUTPUTS.values())
    assert not {"endpoint", "minutes_of"} & {flag.key for flag in offered()["verify-plan"].flags}


LONG = [
    ["fit", "[" * 100_000, 400, "is not JSON", None],
    ["fit", {**FIT, "contents": {f"{i}.csv": "" for i in range(50)}}, 422, "more than 40 files", "contents"],
]


@pytest.mark.parametrize(("command", "body", "status", "says", "place"), REQUESTS["mistakes"] + LONG)
def test_a_mistake_is_a_problem_with_its_place(served, command, body, status, says, place):
    found = served.problem(command, body)
    assert found["status"] == status
    assert says in found["detail"]
    assert found.get("place") == place


def test_an_unknown_address_is_a_problem(served):
    for method, path, status in (("GET", "/v1/absent", 404), ("GET", "/v1/fit", 405), ("POST", "/v1/init", 404), ("GET", "/page/../app.py", 404),
                                 ("GET", "/v1/scenarios/..%2f..%2fpyproject", 404), ("GET", "/docs", 404)):  # fmt: skip
        answer = served.ask(method, path, {} if method == "POST" else None)
        assert answer.status == status, path
        assert answer.headers["Content-Type"] == "application/problem+json"


def test_progress_comes_as_events_and_ends_with_the_result(served, plan):
    answer = served.post("fleet", {"scenario": SCENARIO}, headers={"Accept": "text/event-stream"})
    events = [event.splitlines() for event in answer.text.strip().split("\n\n")]
    kinds = [lines[0] for lines in events]
    assert kinds[-1] == "event: result"
    assert set(kinds[:-1]) <= {"event: progress", "event: found"}
    rows = [json.loads(lines[1].removeprefix("data: ")) for lines in events if lines[0] == "event: found"]
    found = [one for row in rows for one in row["plans"]]
    assert [one["hardware"] for one in found] == ["l40s"]
    best = json.loads(plan)["result"]["plans"][0]
    assert {key for key in best if best[key] != found[0][key] is not None} == set()
    assert "\n".join(line.removeprefix("data: ") for line in events[-1][1:]) == plan.strip()
    wrong = served.post("fleet", {"scenario": "suport-chat"}, headers={"Accept": "text/event-stream"})
    assert wrong.text.startswith("event: problem\n")


# files


@pytest.fixture
def secret(tmp_path):
    file = tmp_path / "Z.yaml"  # one letter: a message shortens a long path in any place
    file.write_text("arrival_s,input_tokens,output_tokens\npassword: hunter2-in-a-file\n")
    return str(file)


def _naming(path):
    traffic = [{"name": "chat", "trace": path}]
    yield "fit", {**FIT, "model": path}
    yield "fit", {**FIT, "hardware": path}
    yield "estimate", {**FIT, "concurrency": 4, "calibration": path}
    yield "estimate", {"hardware": "h100", "concurrency": 4, "launch": f"vllm serve {path}"}
    yield "fleet", {"scenario": path}
    yield "fleet", {"scenario": {**SCENARIO, "model": path}}
    yield "fleet", {"scenario": {**SCENARIO, "traffic": traffic}}
    yield "fleet", {"scenario": {**SCENARIO, "fleet": {"hardware": [path]}}}
    yield "fleet", {"scenario": {**SCENARIO, "calibration": path}}
    yield "fleet", {"scenario": SCENARIO, "set": [f"traffic=[{{name: a, trace: {path}}}]"]}
    yield (
        "fleet",
        {"scenario": "s.yaml", "contents": {"s.yaml": json.dumps({**SCENARIO, "traffic": traffic})}},
    )
    yield "simulate", {"scenario": SCENARIO, "trace": path}
    yield "workload", {"files": [path]}
    yield "validate", {"files": path}
    yield "explain", {"plan": path}
    yield "list", {"kind": "prices", "word": "h100", "check": True, "prices": path}


@pytest.mark.parametrize("at", range(16))
def test_no_request_reads_a_file_of_the_server(served, secret, at):
    command, body = list(_naming(secret))[at]
    found = served.problem(command, body)
    assert found["status"] == 422
    assert "hunter2" not in json.dumps(found)
    assert "no such file" not in found["detail"]
    command, absent = list(_naming(secret.replace("Z.yaml", "Q.yaml")))[at]
    other = served.problem(command, absent)
    assert other["detail"].replace("Q", "Z") == found["detail"], "says whether the file exists"


@pytest.mark.long
@table
def test_no_other_way_to_write_a_path_leads_out(served, secret, form):
    for at, (command, body) in enumerate(_naming(form.format(secret))):
        answer = served.post(command, body)
        _, absent = list(_naming(form.format(secret.replace("Z.yaml", "Q.yaml"))))[at]
        assert answer.status == 422, answer.text
        assert served.post(command, absent).text.replace("Q", "Z") == answer.text
        assert str(served.folder) not in answer.text


def test_a_plan_with_a_trace_names_it_as_the_request_did(served):
    traffic = [{"name": "chat", "trace": "traces/day.csv"}]
    contents = {"traces/day.csv": TRACE}
    answer = served.post("fleet", {"scenario": {**SCENARIO, "traffic": traffic}, "contents": contents})
    assert answer.status == 200, answer.text
    assert str(served.folder) not in answer.text
    sent = {"plan": "plan.json", "contents": {**contents, "plan.json": answer.text}}
    again = served.post("simulate", sent)
    assert json.loads(again.text)["result"]["requests"] == 200
    assert not [line for line in json.loads(again.text)["warnings"] if "edited" in line]


@pytest.mark.long
def test_a_plan_file_that_names_a_file_of_the_server_does_not_show_it(served, plan, secret):
    changed = json.loads(plan)
    changed["result"]["plan_file"]["scenario"] = secret
    changed["result"]["plan_file"]["inputs"]["content"]["model"] = secret
    for command in ("check", "levers", "report", "explain", "simulate"):
        answer = served.post(command, {"plan": changed})
        assert "hunter2" not in answer.text
        assert answer.status in (200, 422), answer.text


def test_a_request_leaves_nothing_behind(served):
    served.post("fit", {**FIT, "contents": {"a.csv": TRACE}})
    assert [item.name for item in served.folder.iterdir() if item.name.startswith("capplan-")] == []


# who may ask


@pytest.mark.parametrize(("headers", "status"), REQUESTS["headers"])
def test_another_site_is_refused(served, headers, status):
    said = {name: value.replace("{port}", str(served.port)) for name, value in headers.items()}
    assert served.post("fit", FIT, headers=said).status == status


def test_a_refused_request_hears_why_while_its_body_is_on_its_way(served):
    """A connection that closed on unread bytes was reset, and the answer with it."""
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
            client.sendall(
                f"POST /v1/fit HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nContent-Type: text/plain\r\nContent-Length: 4000\r\n\r\n".encode()
            )
            client.sendall(b"x" * 2000)
            time.sleep(0.01)
            client.sendall(b"x" * 2000)
            said = b"".join(iter(lambda client=client: client.recv(65536), b""))
        assert said.startswith(b"HTTP/1.1 415")


def test_every_answer_keeps_pages_apart(served):
    for answer in (served.ask("GET", "/"), served.post("fit", FIT), served.ask("GET", "/v1/absent")):
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert "Server" not in answer.headers


@pytest.mark.long
def test_others_are_served_with_a_token_only(capplan, tmp_path):
    assert "give --token-file" in capplan("serve", "--host", "0.0.0.0").err
    short, good = tmp_path / "short", tmp_path / "token"
    short.write_text("secret")
    assert "16 or more" in capplan("serve", "--host", "0.0.0.0", "--token-file", str(short)).err
    good.write_text("a-long-enough-token\n")
    with server(
        tmp_path, "--host", "127.0.0.1", "--token-file", str(good), token="a-long-enough-token"
    ) as it:
        assert it.post("fit", FIT, headers={"Host": "plans.example"}).status == 200
        assert it.ask("GET", "/").status == 200
        for wrong in (
            "",
            "Bearer x",
            "Bearer a-long-enough-tokeN",
            "Basic a-long-enough-token",
            "Bearer \xff",
        ):
            answer = it.post("fit", FIT, headers={"Authorization": wrong})
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"


# limits


def test_a_large_body_is_refused(served):
    assert served.post("fit", "x" * 17_000_000).status == 413
    lying = {"Content-Length": "99999999999"}
    assert served.post("fit", "{}", headers=lying).status == 413


@pytest.mark.long
def test_two_hundred_requests_at_a_time_are_all_answered(served):
    with ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(lambda _: served.post("fit", FIT), range(200)))
    assert {answer.status for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("slow", "count", "quick", "body"),
    [("fleet", 3, "fit", FIT), ("what-if", 2, "fleet", {"scenario": SCENARIO})],
)
def test_searches_and_points_of_a_page_do_not_keep_another_question_waiting(served, slow, count, quick, body):
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(served.post, slow, {"scenario": "support-chat"}) for _ in range(count)]
        time.sleep(0.5)
        assert served.post(quick, body).status == 200
        assert [one.done() for one in asked] == [False] * count
        assert {one.result().status for one in asked} == {200}


def _until(holds):
    """Wait until something holds; it fails if that takes 20 s."""
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def _working(served):
    """Return the folders of requests that are being answered."""
    return [item.name for item in served.folder.iterdir() if item.name.startswith("capplan-")]


def test_a_request_whose_client_is_gone_stops(served):
    psutil = pytest.importorskip("psutil")
    parent = psutil.Process(served.process.pid)
    idle = len(parent.children(recursive=True))
    body = json.dumps({"scenario": "agent"}).encode()  # levers of it take longer than is waited for here
    for accept in ("application/json", "text/event-stream"):
        head = (
            f"POST /v1/levers HTTP/1.1\r\nHost: localhost:{served.port}\r\nContent-Type: application/json\r\n"
            f"Accept: {accept}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", served.port)) as client:
            client.sendall(head.encode() + body)
            _until(lambda: len(_working(served)) == 1 and len(parent.children(recursive=True)) > idle)
        _until(lambda: _working(served) == [] and len(parent.children(recursive=True)) == idle)


@pytest.mark.long
def test_a_server_that_ends_leaves_no_process(tmp_path):
    psutil = pytest.importorskip("psutil")
    with server(tmp_path) as it, ThreadPoolExecutor(1) as pool:
        it.post("fit", FIT)
        asked = pool.submit(it.post, "fleet", {"scenario": "small-team"})
        time.sleep(1.5)
        processes = psutil.Process(it.process.pid).children(recursive=True)
        assert processes
        it.process.terminate()
        it.process.wait(20)
        _, alive = psutil.wait_procs(processes, 10)
        assert alive == []
        assert asked.exception() is not None or asked.result().status != 200
        assert [item.name for item in tmp_path.iterdir()] == ["log"]
        assert (tmp_path / "log").read_text().splitlines()[-1] == "interrupted"


@pytest.mark.long
def test_many_large_bodies_do_not_fill_the_memory(tmp_path):
    big = {**FIT, "contents": {"a.txt": "x" * 15_000_000}}
    with server(tmp_path, "--jobs", "1") as it, ThreadPoolExecutor(30) as pool:
        it.post("fit", FIT)
        statuses = {answer.status for answer in pool.map(lambda _: it.post("fit", big), range(30))}
        assert statuses <= {200, 503}
        assert it.post("fit", FIT).status == 200


@pytest.mark.long
def test_a_request_that_takes_too_long_stops(tmp_path):
    with server(tmp_path, "--time-limit", "1 s") as it:
        it.post("fit", FIT)
        it.post("fit", FIT)
        found = it.problem("fleet", {"scenario": "small-team"})
        assert found["status"] == 504
        assert _working(it) == []


@pytest.mark.long
def test_more_requests_than_are_taken_are_told_to_come_back(tmp_path):
    with server(tmp_path, "--jobs", "1") as it:
        it.post("fit", FIT)
        with ThreadPoolExecutor(300) as pool:
            statuses = list(pool.map(lambda _: it.post("fit", FIT).status, range(300)))
        assert set(statuses) <= {200, 503}
        assert statuses.count(200) >= 256


@pytest.mark.long
def test_slow_and_silent_clients_are_cut_off_and_keep_nobody_waiting(served):
    ended = []

    def dawdle(first):
        with socket.create_connection(("127.0.0.1", served.port)) as client:
            client.settimeout(60)
            client.sendall(first)
            try:
                while True:
                    client.sendall(b"x" if b"Length" in first else b"X-A: b\r\n")
                    client.settimeout(1)
                    try:
                        if not client.recv(4096):
                            break
                    except TimeoutError:
                        continue
            except OSError:
                pass
        ended.append(first)

    head = f"POST /v1/fit HTTP/1.1\r\nHost: localhost:{served.port}\r\n".encode()
    slow_body = head + b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    threads = [threading.Thread(target=dawdle, args=(first,)) for first in (head, slow_body) * 30]
    for thread in threads:
        thread.start()
    assert served.post("fit", FIT).status == 200
    assert ended == []
    for thread in threads:
        thread.join(45)
    assert len(ended) == 60


LINES = re.findall(
    r"^ *curl (?:.*\\\n)*.*(?:\n +\"traffic\".*)?", (ROOT / "docs/how-to/serve.md").read_text(), re.MULTILINE
)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl is installed")
@pytest.mark.parametrize("line", LINES)
def test_the_lines_of_the_how_to_run(served, line):
    ran = subprocess.run(
        ["bash", "-c", line.replace("127.0.0.1:8080", f"127.0.0.1:{served.port}").replace("curl", "curl --fail")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    answer = ran.stdout.partition("event: result\n")[2].replace("data: ", "") or ran.stdout
    assert {"result", "paths"} & set(json.loads(answer))


def test_the_how_to_has_lines():
    assert len(LINES) == 5


def test_a_port_in_use_is_said(served, capplan):
    assert "Address already in use" in capplan.refused("serve", "--port", str(served.port))


def test_the_environment_has_no_secret_in_an_answer(served):
    assert os.environ.get("PATH", "no path") not in served.ask("GET", "/openapi.json").text
