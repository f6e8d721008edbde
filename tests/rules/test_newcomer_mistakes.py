"""Mistakes that a newcomer makes: one clear line with the place, what is allowed, and what was probably meant."""

import pytest

import capplan as cp
from capplan.errors import InputError, nearest
from capplan.readers.text_file import data_folder
from capplan.scenario.scenario import read_scenario

pytestmark = pytest.mark.usefixtures("shared_runs")

CHAT = """name: chat
model: Qwen/Qwen3-32B
traffic:
  - name: chat
    request_rate: 8 req/s
    input_tokens: {mean: 1500, p95: 5000}
    output_tokens: {mean: 300, p95: 800}
slo: {ttft_p95: 1 s, tpot_p95: 40 ms}
fleet: {hardware: [h100-sxm]}
"""
YAML = {
    "no unit": (("40 ms", "40"), "line 8: slo.tpot_p95: '40' is not in s (the unit is missing)", "e.g. '40 ms'"),
    "unit in words": (("40 ms", "40 milliseconds"), "slo.tpot_p95: '40 milliseconds' is not in s (write ms)"),
    "percent without its sign": (("slo: {", "slo: {confidence: 90, "), "slo.confidence: '90' is over 1", "e.g. '90 %'"),
    "price without unit": (("fleet:", "prices: {per_gpu_hour: {h100-sxm: 2.5}}\nfleet:"), "'2.5' is not in $/h", "e.g. '2.5 $/h'"),
    "price of no GPU": (("fleet:", "prices: {per_gpu_hour: 2.5}\nfleet:"), "must be 'key: value' lines, e.g. per_gpu_hour: {NAME: ...}"),
    "budget of one number": (("fleet:", "budget: 5000\nfleet:"), "line 9: budget: 5000 must be", "known: includes, usd_per_month"),
    "gpu": (("hardware:", "gpu:"), "line 9: fleet.gpu: unknown key 'gpu': did you mean 'hardware'?"),
    "prompt tokens": (("input_tokens:", "prompt_tokens:"), "unknown key 'prompt_tokens': did you mean 'input_tokens'?"),
    "completion tokens": (("output_tokens:", "completion_tokens:"), "did you mean 'output_tokens'?"),
    "average": (("mean: 1500", "avg: 1500"), "traffic[0].input_tokens.avg: unknown key 'avg': did you mean 'mean'?"),
    "rps": (("request_rate:", "rps:"), "unknown key 'rps': did you mean 'request_rate'?"),
    "traffic without a dash": (("  - name: chat", "    name: chat"), "line 3: traffic: must be a list", "entries begin with '- '"),
    "list for a number": (("8 req/s", "[8]"), "line 5: traffic[0].request_rate: '[8]' is not a quantity in req/s"),
    "tab": (("    request_rate", "\trequest_rate"), "line 5, column 1: is not YAML", "indent with spaces"),
    "indentation": (("  - name", "- name"), "line 5, column 17: is not YAML", "indent this line like its neighbours"),
    "colon in a text": (("name: chat\nmodel", "name: chat: new\nmodel"), "line 1, column 11: is not YAML", "in quotes"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", YAML)
def test_a_mistake_in_a_scenario_is_one_clear_line(mistake, tmp_path):
    (old, new), *says = YAML[mistake]
    assert old in CHAT
    path = tmp_path / "chat.yaml"
    path.write_text(CHAT.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        read_scenario(path)
    for words in says:
        assert words in str(caught.value)


def test_a_key_of_the_file_keeps_its_line_beside_an_overridden_one(tmp_path):
    path = tmp_path / "chat.yaml"
    path.write_text(CHAT.replace("40 ms", "40"))
    with pytest.raises(InputError) as caught:
        read_scenario(path, ("slo.ttft_p95=1",))
    first, second = str(caught.value).splitlines()
    assert "overridden: slo.ttft_p95" in first
    assert "line 8: slo.tpot_p95" in second


def test_no_word_of_other_tools_is_taken_for_its_opposite():
    assert "headroom" not in nearest("utilization", ["headroom", "hardware"])


def test_the_library_says_what_to_write():
    with pytest.raises(InputError, match=r"'openai/gpt-5-mini' is not a list; write \['openai/gpt-5-mini'\]"):
        cp.compare("small-team", "openai/gpt-5-mini")
    with pytest.raises(InputError, match="a value of type int is not a scenario"):
        cp.plan_fleet(5)
    for call in (cp.plan_fleet, cp.simulate, cp.compare):
        with pytest.raises(InputError, match="unknown option 'ofline': did you mean 'offline'"):
            call("small-team", ofline=True)


@pytest.mark.long
def test_a_gpu_of_a_file_is_found_from_here_and_has_its_own_price(capplan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (data_folder("hardware_specs") / "l40s.yaml").read_text(encoding="utf-8")
    (tmp_path / "our-gpu.yaml").write_text(text.replace("name: l40s", "name: our-gpu", 1))
    words = ("--hardware", "our-gpu.yaml", "--set", "prices.per_gpu_hour={our-gpu: 0.50 $/h}")
    ran = capplan("fleet", "small-team", "--offline", *words)
    assert ran.code == 0, ran.err
    assert "2 x our-gpu" in ran.out
    assert "$730 per month" in ran.out
