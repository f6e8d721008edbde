"""Laws of load over plan files: a harder question never has a cheaper plan, and the plan of the harder question holds for the easier one."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.cli.main import main
from tests.plan_files import SCENARIO, choice
from tests.sweeps import examples, size_on_few_requests

pytestmark = pytest.mark.long

KINDS = {
    "requests": ("request_rate: 30 req/s", ()),
    "users": ("users: 100, think_time: 20 s", ()),
    "pools": (
        "request_rate: 30 req/s",
        ("--set", "fleet.disaggregation=only", "--set", "fleet.kv_link=infiniband-ndr"),
    ),
}
"""Kind of fleet -> its load, and further flags."""
WRITTEN = {
    "traffic[0].users": (20, 1500, "{:.0f}"),
    "traffic[0].request_rate": (2.0, 120.0, "{:.6g} req/s"),
    "traffic[0].input_tokens": (300.0, 1200.0, "{{mean: {0:.6g}, p95: {1:.6g}}}"),
    "traffic[0].output_tokens": (40.0, 140.0, "{{mean: {0:.6g}, p95: {1:.6g}}}"),
    "slo.ttft_p95": (800.0, 2000.0, "{:.6g} ms"),
    "slo.tpot_p95": (25.0, 60.0, "{:.6g} ms"),
    "slo.confidence": (0.5, 0.9, "{:.6g}"),
}
"""Key -> smallest and largest value, and how a value and 2.5 times as much are written."""
FALLING = ("slo.ttft_p95", "slo.tpot_p95")
"""Keys whose smaller values are harder to meet."""


def harder(key, value, by):
    """Return a value that is harder to meet by a share of it."""
    if key == "slo.confidence":
        return min(0.99, value * (1.0 + by / 2.0))
    return value / (1.0 + by) if key in FALLING else value * (1.0 + by)


@st.composite
def questions(draw):
    """Return a kind of fleet, values of its keys, and one key with a harder value."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    other = "traffic[0].request_rate" if kind == "users" else "traffic[0].users"
    values = {key: draw(st.floats(low, high)) for key, (low, high, _) in WRITTEN.items() if key != other}
    key = draw(st.sampled_from(sorted(values)))
    return kind, values, key, harder(key, values[key], draw(st.sampled_from([0.001, 0.02, 0.3, 1.0])))


def settings_of(values):
    """Return the flags that state some values."""
    written = (f"{key}={WRITTEN[key][2].format(value, 2.5 * value)}" for key, value in values.items())
    return [word for setting in written for word in ("--set", setting)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a scenario of each kind; its fleets are sized on few requests."""
    made = tmp_path_factory.mktemp("loads")
    for kind, (load, _) in KINDS.items():
        (made / f"{kind}.yaml").write_text(SCENARIO.replace(KINDS["requests"][0], load))
    with pytest.MonkeyPatch.context() as patch:
        size_on_few_requests(patch)
        yield made


@settings(max_examples=examples(8, 20))
@given(question=questions())
def test_a_harder_question_is_never_cheaper_and_its_plan_holds_for_the_easier_one(folder, question):
    kind, easy, key, value = question
    hard, plan = easy | {key: value}, folder / "plan.json"

    def run(command, values, *words):
        flags = [*words, *settings_of(values), *KINDS[kind][1], "--offline"]
        return main([command, str(folder / f"{kind}.yaml"), *flags])

    def cheapest(values):
        plan.unlink(missing_ok=True)
        code = run("fleet", values, "-o", str(plan))
        return choice(json.loads(plan.read_text())["result"], "cheapest") if code == 0 else None

    before, after = cheapest(easy), cheapest(hard)
    if after is None:
        return
    assert before is not None
    assert after["usd_per_hour"] >= before["usd_per_hour"]
    assert after["gpus"] >= before["gpus"]
    assert run("check", hard, "--plan", str(plan)) == 0
    assert run("check", easy, "--plan", str(plan)) == 0
