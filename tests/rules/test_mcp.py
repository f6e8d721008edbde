"""The tools of the Model Context Protocol give the answers and the errors of the commands."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from capplan.cli import mcp

ROOT = Path(__file__).resolve().parents[2]


def test_a_tool_returns_the_json_of_its_command(capplan):
    found = mcp.fit("llama-3.1-8b", "l4", kv_dtype="fp8", max_model_len=8192)
    ran = capplan(
        "fit",
        "llama-3.1-8b",
        "--hardware",
        "l4",
        "--kv-dtype",
        "fp8",
        "--max-model-len",
        "8192",
        "--format",
        "json",
    )
    assert found == {"exit_code": ran.code, **json.loads(ran.out)}


def test_what_does_not_fit_is_an_answer():
    found = mcp.fit("llama-3.1-70b-instruct", "l4", weight_dtype="bf16")
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
def test_a_mistake_has_the_message_of_the_command(call, says):
    with pytest.raises(ValueError, match=r"(?s).") as caught:
        call()
    assert says in str(caught.value)


def test_no_tool_takes_a_file_to_write():
    for tool in mcp.TOOLS:
        assert not {"output", "file"} & set(tool.__annotations__)
        assert tool.__doc__


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
    monkeypatch.setattr(mcp, "run", lambda *_: pytest.fail("the command ran"))
    with pytest.raises(ValueError, match=r"(?s).") as caught:
        getattr(mcp, tool)(**{**SOUND[tool], **given})
    assert says in str(caught.value)


def test_sound_arguments_reach_the_command(monkeypatch):
    monkeypatch.setattr(mcp, "run", lambda command, words, given: (command, words, given))
    for tool, given in SOUND.items():
        command, words, named = getattr(mcp, tool)(**given)
        said = [*words, *(value for value in named.values() if value is not None)]
        assert command == tool
        assert all(value in said for value in given.values())


@pytest.mark.parametrize("tool", mcp.TOOLS)
def test_the_schema_of_a_tool_has_its_arguments_and_no_others(tool):
    schema = mcp.arguments_of(tool).model_json_schema()
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(tool.__annotations__) - {"return"}


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
def test_no_text_that_a_tool_is_given_is_an_option(call, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"(?s).") as caught:
        call(option.format(tmp_path / "written.json"))
    assert "Traceback" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_tools_that_are_called_at_once_answer_as_one_by_one():
    calls = [
        (model, hardware)
        for model in ("llama-3.1-8b", "qwen3-0.6b")
        for hardware in ("l4", "h100-sxm", "none")
    ] * 4

    def answer(words):
        try:
            return mcp.fit(*words)
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(max_workers=8) as pool:
        found = list(pool.map(answer, calls))
    assert found == [answer(words) for words in calls]


def test_without_the_sdk_the_command_says_what_to_install(capplan, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    ran = capplan("mcp")
    assert ran.code == 2
    assert "pip install 'capplan[mcp]'" in ran.err


def test_a_client_of_the_sdk_lists_and_calls_the_tools():
    pytest.importorskip("mcp", reason="the extra mcp is not installed")
    import anyio
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def asked():
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "capplan", "mcp"], env={"PYTHONPATH": str(ROOT)}, cwd=ROOT
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
