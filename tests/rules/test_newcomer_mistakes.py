"""Mistakes that a newcomer makes: one clear line with the place, what is allowed, and what was probably meant."""

import pytest

import capplan as cp
from capplan.errors import InputError, nearest
from capplan.readers.text_file import data_folder
from capplan.scenario.scenario import read_scenario
from tests.files import written_to

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


def test_a_key_of_the_file_keeps_its_line_beside_an_overridden_one(tmp_path):
    path = written_to(tmp_path / "chat.yaml", CHAT.replace("40 ms", "40"))
    with pytest.raises(InputError) as caught:
        read_scenario(path, ("slo.ttft_p95=1",))
    first, second = str(caught.value).splitlines()
    assert "overridden: slo.ttft_p95" in first
    assert "line 8: slo.tpot_p95" in second


def test_no_word_of_other_tools_is_taken_for_its_opposite():
    assert "headroom" not in nearest("utilization", ["headroom", "hardware"])


def test_words_of_the_screen_find_their_quantity():
    known = ["gpus", "slo_met_probability", "usd_per_hour", "usd_per_month"]
    assert nearest("cost", known) == ["usd_per_month"]
    assert nearest("chance", known) == ["slo_met_probability"]


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
