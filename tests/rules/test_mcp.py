"""The tools of the Model Context Protocol give the answers and the errors of the commands, and a client that goes, waits or talks nonsense does no harm."""

import asyncio
import json
import os
import queue
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import pytest

import capplan as capplan_library
from capplan.cli import mcp
from capplan.cli.api.jobs import Jobs, Limits
from capplan.errors import InputError
from tests.interrupts import started

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def answered():
    """Return the answer of a command line of a tool, which runs as the server runs it."""

    async def one(line):
        return await mcp.answer(Jobs(Limits(), offline=True, confined=False), line)

    return lambda line: asyncio.run(one(line))


@pytest.mark.long
def test_a_tool_returns_the_json_of_its_command(answered, capplan):
    found = answered(mcp.fit("llama-3.1-8b", "l4", kv_dtype="fp8", max_model_len=8192))
    ran = capplan("fit llama-3.1-8b --hardware l4 --kv-dtype fp8 --max-model-len 8192 --format json")
    assert found == {"exit_code": ran.code, **json.loads(ran.out)}


@pytest.mark.long
def test_what_does_not_fit_is_an_answer(answered):
    found = answered(mcp.fit("llama-3.1-70b-instruct", "l4", weight_dtype="bf16"))
    assert found["exit_code"] == 3
    assert found["result"]["fits"] is False


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: mcp.fit("llama-3.1-8b", "h109"), "did you mean"),
        (lambda: mcp.estimate("llama-3.1-8b", "l4"), "--concurrency"),
        (lambda: mcp.fleet("suport-chat"), "did you mean 'support-chat'?"),
        (lambda: mcp.explain("absent.json"), "absent.json"),
        (lambda: mcp.check("absent.json"), "absent.json"),
    ],
)
@pytest.mark.long
def test_a_mistake_has_the_message_of_the_command(call, says, answered):
    with pytest.raises(InputError) as caught:
        answered(call())
    assert says in str(caught.value)


def test_no_tool_takes_a_file_to_write():
    for tool in mcp.TOOLS.values():
        assert not {"output", "file"} & set(tool.keys)
        assert tool.says


SOUND = {
    "fit": {"model": "llama-3.1-8b", "hardware": "l4"},
    "estimate": {"model": "llama-3.1-8b", "hardware": "h100-sxm", "concurrency": 8},
    "fleet": {"scenario": "small-team"},
    "explain": {"plan": "plan.json"},
    "check": {"plan": "plan.json"},
}
WRONG = [
    *((tool, {name: value}, f"unknown key '{name}'") for tool in SOUND for name, value in
      (("tensor_parallell", 8), ("format", "csv"), ("output", "x.json"), ("file", "x"), ("help", True), ("", 1), ("Model", "x"))),
    *((tool, {name: value}, f"{tool}: {name}: ") for tool in ("fit", "estimate") for name, value in
      (("tensor_parallel", "8"), ("tensor_parallel", True), ("tensor_parallel", 8.0), ("tensor_parallel", None),
       ("tensor_parallel", [8]), ("model", 8), ("hardware", None), ("kv_dtype", True), ("weight_dtype", 8))),
    ("estimate", {"concurrency": "null"}, "estimate: concurrency: "),
    ("estimate", {"request_rate": 5}, "estimate: request_rate: "),
    ("fit", {"max_model_len": "4096"}, "fit: max_model_len: "),
    ("fleet", {"settings": "slo.ttft_p95=1 s"}, "fleet: settings: "),
    ("fleet", {"settings": '["slo.ttft_p95=1 s"]'}, "fleet: settings: "),
    ("check", {"settings": [1]}, "check: settings[0]: "),
    ("explain", {"quantity": 1}, "explain: quantity: "),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "given", "says"), WRONG)
def test_an_argument_that_a_tool_does_not_have_or_of_another_type_is_an_error(tool, given, says, monkeypatch):
    monkeypatch.setattr(mcp, "line", lambda *_: pytest.fail("there is a command line"))
    with pytest.raises(InputError) as caught:
        getattr(mcp, tool)(**{**SOUND[tool], **given})
    assert says in str(caught.value)


def test_sound_arguments_reach_the_command(monkeypatch):
    monkeypatch.setattr(mcp, "line", lambda command, words, given: (command, words, given))
    for tool, given in SOUND.items():
        command, words, named = getattr(mcp, tool)(**given)
        said = [*words, *(value for value in named.values() if value is not None)]
        assert command == tool
        assert all(value in said for value in given.values())


@pytest.mark.parametrize("tool", mcp.TOOLS.values())
def test_the_schema_of_a_tool_has_its_arguments_and_no_others(tool):
    schema = tool.record.model_json_schema()
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(tool.keys)


WRITE = "--output={}"


@pytest.mark.parametrize(
    "call",
    [
        lambda option: mcp.explain("support-chat", option),
        lambda option: mcp.explain(option, "gpus"),
        lambda option: mcp.check("plan.json", scenario=option),
        lambda option: mcp.check(option),
        lambda option: mcp.fleet("small-team", [option]),
        lambda option: mcp.fleet(option),
        lambda option: mcp.fit(option, "l4"),
        lambda option: mcp.fit("llama-3.1-8b", option),
        lambda option: mcp.fit("llama-3.1-8b", "l4", kv_dtype=option),
        lambda option: mcp.estimate("llama-3.1-8b", "l4", request_rate=option),
    ],
)
@pytest.mark.parametrize("option", [WRITE, "-o{}", "--help", "--version"])
def test_no_text_that_a_tool_is_given_is_an_option(call, option, tmp_path, monkeypatch, capplan):
    monkeypatch.chdir(tmp_path)
    ran = capplan(*call(option.format(tmp_path / "written.json")))
    assert (ran.code, ran.out) == (2, "")
    assert list(tmp_path.iterdir()) == []


def test_without_the_sdk_the_command_says_what_to_install(capplan, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    assert "pip install 'capplan[mcp]'" in capplan.refused("mcp")


def test_a_client_of_the_sdk_lists_and_calls_the_tools():
    pytest.importorskip("mcp", reason="the extra mcp is not installed")
    import anyio
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def asked():
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "capplan", "mcp"], env=paths(), cwd=ROOT
        )
        async with stdio_client(server) as streams, ClientSession(*streams) as session:
            await session.initialize()
            listed = (await session.list_tools()).tools
            fits = await session.call_tool("fit", {"model": "llama-3.1-8b", "hardware": "h100-sxm"})
            wrong = await session.call_tool("fit", {"model": "llama-3.1-8b", "hardware": "h109"})
            refused = [
                (await session.call_tool(tool, {**SOUND[tool], **given}), says) for tool, given, says in WRONG
            ]
        return listed, fits, wrong, refused

    listed, fits, wrong, refused = anyio.run(asked)
    for answer, says in refused:
        assert answer.is_error
        assert says in answer.content[0].text
    assert all(tool.input_schema["additionalProperties"] is False for tool in listed)
    assert {tool.name for tool in listed} == {"fit", "estimate", "fleet", "explain", "check"}
    assert all(tool.annotations.read_only_hint for tool in listed)
    assert json.loads(fits.content[0].text)["result"]["fits"] is True
    assert wrong.is_error
    assert "unknown hardware 'h109'" in wrong.content[0].text


def paths():
    """Return the variable with which a server finds the SDK that these tests found."""
    found = pytest.importorskip("mcp", reason="the extra mcp is not installed")
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(found.__file__).parents[1])])}


class Client:
    """A client that writes lines to a server and reads its answers, by their id."""

    def __init__(self, *flags):
        self.process = started(
            [sys.executable, "-m", "capplan", "mcp", *flags],
            stdin=PIPE, stdout=PIPE, stderr=PIPE, env={**os.environ, **paths()},
        )  # fmt: skip
        self.heard = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        about = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        self.ask(0, "initialize", about)
        self.server = self.next()["result"]
        self.send(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))

    def _listen(self):
        for line in self.process.stdout:
            self.heard.put(json.loads(line))

    def send(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, number, method, params):
        self.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))

    def call(self, number, tool, **given):
        self.ask(number, "tools/call", {"name": tool, "arguments": given})

    def next(self):
        return self.heard.get(timeout=100)

    def ended(self):
        """Return the exit code and what was said on stderr."""
        said = self.process.stderr.read().decode()
        return self.process.wait(60), said


@pytest.fixture
def client():
    made = []

    def start(*flags):
        made.append(Client(*flags))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.wait(30)
        for stream in (one.process.stdin, one.process.stdout, one.process.stderr):
            stream.close()


@pytest.fixture
def endless(tmp_path):
    """A file that never ends: `wait(True)` waits for its reader, `wait(False)` until that has gone."""
    path, held = tmp_path / "endless.yaml", []
    os.mkfifo(path)

    def wait(there):
        while there and not held:
            with suppress(OSError):  # nobody reads it yet
                held.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            time.sleep(0.01)
        if not there:
            gone = select.poll()
            gone.register(held[0], 0)
            assert gone.poll(60_000)

    yield str(path), wait
    for descriptor in held:
        os.close(descriptor)


@pytest.mark.long
def test_a_slow_call_blocks_no_other_and_one_that_is_cancelled_ends(client, endless):
    scenario, wait = endless
    asks = client("--offline")
    asks.call(1, "check", plan=scenario)
    wait(True)
    asks.call(2, "fit", model="llama-3.1-8b", hardware="l4")
    assert asks.next()["id"] == 2
    asks.send(json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}))
    wait(False)
    asks.process.stdin.close()
    assert asks.ended() == (0, "")


@pytest.mark.long
@pytest.mark.parametrize("how", ["ctrl-c", "sigterm", "killed", "stdin is closed", "stdout is closed"])
def test_however_the_server_ends_a_running_call_ends_with_it(how, client, endless):
    scenario, wait = endless
    asks = client("--offline")
    asks.call(1, "check", plan=scenario)
    wait(True)
    number = {"ctrl-c": signal.SIGINT, "sigterm": signal.SIGTERM, "killed": signal.SIGKILL}.get(how)
    if number:
        asks.process.send_signal(number)
    elif how == "stdin is closed":
        asks.process.stdin.close()
    else:
        os.dup2(os.open(os.devnull, os.O_RDONLY), asks.process.stdout.fileno())  # nobody reads any more
        asks.ask(2, "ping", {})
        asks.ask(3, "ping", {})
    code, said = {
        "ctrl-c": (130, "interrupted\n"), "sigterm": (143, ""), "killed": (-9, "")
    }.get(how, (0, ""))  # fmt: skip
    assert asks.ended() == (code, said)
    wait(False)


@pytest.mark.long
def test_a_call_has_a_limit_of_time(client, endless):
    scenario, _ = endless
    asks = client("--offline", "--time-limit", "0.5 s")
    asks.call(1, "check", plan=scenario)
    answer = asks.next()["result"]
    assert answer["isError"]
    assert "took longer than 0.5 s" in answer["content"][0]["text"]


@pytest.mark.long
def test_what_is_no_message_gets_an_error_and_the_next_one_its_answer(client):
    asks = client("--offline")
    nonsense = {
        "garbage": (None, -32700), "[1]": (None, -32600), '{"id": 7}': (7, -32600), "5": (None, -32600), "{": (None, -32700), "\ud800": (None, -32700),
        '{"jsonrpc": "2.0", "id": 8, "method": "tools/call", "params": 5}': (8, -32600),
        '{"jsonrpc": "2.0", "id": 9, "method": "no/such"}': (9, -32601), "[" * 100_000: (None, -32700), "x" * 17_000_000: (None, -32700),
    }  # fmt: skip
    for line, (number, code) in nonsense.items():
        asks.process.stdin.write(line.encode("utf-8", "surrogatepass") + b"\n\n")
        asks.process.stdin.flush()
        answer = asks.next()
        assert (answer["id"], answer["error"]["code"]) == (number, code), line[:80]
    asks.call(1, "fti")
    said = asks.next()["result"]
    assert (said["isError"], said["content"][0]["text"].splitlines()[0]) == (
        True,
        "unknown tool 'fti': did you mean 'fit'?",
    )


@pytest.mark.long
@pytest.mark.parametrize("offline", [True, False])
def test_the_server_says_its_version_and_whether_it_may_ask_the_hub(client, offline):
    asks = client(*["--offline"] * offline)
    assert asks.server["serverInfo"] == {"name": "capplan", "version": capplan_library.__version__}
    asks.ask(1, "tools/list", {})
    assert {tool["annotations"]["openWorldHint"] for tool in asks.next()["result"]["tools"]} == {not offline}
