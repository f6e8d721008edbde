"""What `diff` says of two scenarios or plans is what `fleet` says of each, and names every input that changed."""

import json
from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.cli.main import main
from capplan.questions.plans.plan_check import both_sides, changes, side_of
from capplan.report.answers.plan_files import diff_answer
from capplan.scenario.scenario import scenario_document
from tests.asked import asked_of
from tests.files import written_to
from tests.plan_files import fleet_plan

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
BASE = """name: small
model: llama-3.1-8b
traffic:
  - {name: chat, request_rate: 30 req/s, input_tokens: {mean: 900, p95: 2500}, output_tokens: {mean: 120, p95: 300}}
slo: {ttft_p95: 600 ms, tpot_p95: 30 ms}
fleet: {hardware: [h100-sxm, l40s], tensor_parallel: 1, pipeline_parallel: 1}
prices: {per_gpu_hour: {h100-sxm: 4 $/h, l40s: 2 $/h}}
"""
TWICE = BASE.replace("30 req/s", "60 req/s")
IMPOSSIBLE = BASE.replace("600 ms", "1 ms")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, few_requests):
    here = tmp_path_factory.mktemp("diff")
    written_to(here / "impossible.yaml", IMPOSSIBLE)
    for name, text in (("base", BASE), ("twice", TWICE)):
        fleet_plan(written_to(here / f"{name}.yaml", text), at=here / f"{name}.json")
    return here


def difference(capsys, before, after, code=0):
    assert main(["diff", str(before), str(after), "--offline", "--format", "json"]) == code
    return json.loads(capsys.readouterr().out)["result"]


@pytest.mark.parametrize(
    "ends", [(".yaml", ".yaml"), (".json", ".json"), (".yaml", ".json"), (".json", ".yaml")]
)
def test_both_sides_are_what_fleet_says_of_each(folder, capsys, ends):
    plans = [
        json.loads((folder / f"{name}.json").read_text())["result"]["chosen"] for name in ("base", "twice")
    ]
    found = difference(capsys, folder / f"base{ends[0]}", folder / f"twice{ends[1]}")
    for name, of in (
        ("gpus", lambda plan: plan["gpus"]),
        ("usd_per_month", lambda plan: plan["usd_per_month"]),
        ("ttft_p95_s", lambda plan: plan["ttft_s"]["p95"]),
        ("tpot_p95_s", lambda plan: plan["tpot_s"]["p95"]),
        ("confidence", lambda plan: plan["slo_met_probability"]),
    ):
        assert found[name] == {"before": of(plans[0]), "after": of(plans[1])}
    assert found["gpus"]["after"] > found["gpus"]["before"]
    assert [change for change in found["changes"] if not change["path"].startswith("plan.")] == [
        {"path": "traffic[0].request_rate", "before": "30 req/s", "after": "60 req/s"}
    ]
    replicas = [{"before": plans[0]["replicas"], "after": plans[1]["replicas"]}]
    assert [
        {side: change[side] for side in ("before", "after")}
        for change in found["changes"]
        if change["path"] == "plan.groups[0].replicas"
    ] == replicas


def test_a_scenario_does_not_differ_from_itself_or_from_its_plan(folder, capsys):
    for after in ("base.yaml", "base.json"):
        found = difference(capsys, folder / "base.yaml", folder / after)
        assert found["changes"] == []
        assert found["gpus"]["before"] == found["gpus"]["after"]
    assert main(["diff", str(folder / "base.json"), str(folder / "base.json")]) == 0
    assert "the plan stays" in capsys.readouterr().out


def places(value, path=()):
    """Yield the keys that lead to each value of a plan that holds no others."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))
    if not isinstance(value, (dict, list)):
        yield path


@pytest.fixture(scope="module")
def pools(tmp_path_factory, few_requests):
    path = tmp_path_factory.mktemp("pools") / "pools.yaml"
    fleet = "fleet: {hardware: [h100-sxm], tensor_parallel: 1, pipeline_parallel: 1, disaggregation: only, kv_link: ethernet-100g}"
    path.write_text("\n".join(fleet if line.startswith("fleet") else line for line in BASE.splitlines()))
    assert main(["fleet", str(path), "--offline", "-o", str(path.with_suffix(".json"))]) == 0
    return both_sides(path.with_suffix(".json"), path.with_suffix(".json"))[0]


@given(data=st.data())
def test_every_figure_of_a_plan_that_changes_is_named(pools, data):
    """Other replicas, another layout of one pool, another machine: whatever changes in a plan appears with both values."""
    chosen = deepcopy(pools.chosen)
    changed = data.draw(st.lists(st.sampled_from(list(places(chosen))), min_size=1, max_size=4, unique=True))
    for path in changed:
        inner = chosen
        for key in path[:-1]:
            inner = inner[key]
        kind = st.text(min_size=30) if isinstance(inner[path[-1]], str) else st.integers(10**6, 10**9)
        inner[path[-1]] = data.draw(kind)
    found = diff_answer(pools, replace(pools, chosen=chosen)).result["changes"]
    named = {item["path"] for item in found}
    for path in changed:
        keys = path[:-1] if isinstance(path[-1], int) else path  # a list of names or numbers is one figure
        assert "plan" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys) in named
    assert len(named) <= len(changed)


def test_pools_of_other_sizes_are_shown_pool_by_pool(pools, capsys):
    decode = {**pools.chosen["groups"][1], "replicas": 5, "tensor_parallel": 4}
    after = replace(pools, chosen={**pools.chosen, "groups": [pools.chosen["groups"][0], decode]})
    shown = next(table for table in diff_answer(pools, after).tables if table.title == "The plan")
    rows = {row["quantity"]: (row["before"], row["after"]) for row in shown.rows}
    assert rows["groups[1].tensor_parallel"] == ("1", "4")
    assert rows["groups[1].replicas"] == (str(pools.chosen["groups"][1]["replicas"]), "5")


def test_a_plan_that_is_no_longer_reachable_exits_4(folder, capsys):
    found = difference(capsys, folder / "base.json", folder / "impossible.yaml", code=4)
    assert found["gpus"]["after"] is None
    assert found["confidence"]["after"] is None
    assert difference(capsys, folder / "impossible.yaml", folder / "base.json")["gpus"]["before"] is None


def test_another_unit_is_no_change_and_every_other_key_is(folder, tmp_path):
    same = BASE.replace("600 ms", "0.6 s").replace("30 req/s", "30").replace("4 $/h", "4.00 $/h")
    (tmp_path / "base.yaml").write_text(same.replace("fleet: {", "fleet: {headroom: 25 %, "))
    found = changes(*both_sides(folder / "base.json", tmp_path / "base.yaml", offline=True))
    assert [(change["path"], change["before"], change["after"]) for change in found] == [
        ("fleet.headroom", None, "25 %")
    ]


@pytest.mark.long
@given(rate=st.integers(20, 60), usd=st.integers(1, 9), tpot_ms=st.integers(20, 90))
def test_the_changes_lead_from_one_scenario_to_the_other(folder, tmp_path_factory, rate, usd, tpot_ms):
    """Put into the scenario before with --set, they make the scenario after."""
    path = tmp_path_factory.mktemp("after") / "after.yaml"
    path.write_text(
        BASE.replace("30 req/s", f"{rate} req/s")
        .replace("4 $/h", f"{usd} $/h")
        .replace("30 ms", f"{tpot_ms} ms")
    )
    before, after = (side_of(file, asked_of(file), None) for file in (folder / "base.yaml", path))
    keys = [change for change in changes(before, after) if not change["path"].startswith("inputs.")]
    changed = scenario_document(folder / "base.yaml", [f"{key['path']}={key['after']}" for key in keys])
    assert changed.value == after.inputs["content"]


def test_a_price_that_changed_since_is_an_input(folder, tmp_path):
    """The offers of a price file stand for a catalogue that was updated between two plans."""
    offer = {
        "device": "h100-sxm",
        "provider": "Own",
        "commitment": "on-demand",
        "price": "2 $/h",
        "date": "2026-01-05",
        "source": "page",
    }
    text = BASE.replace(
        "prices: {per_gpu_hour: {h100-sxm: 4 $/h, l40s: 2 $/h}}", "prices: {file: prices.yaml}"
    )
    (tmp_path / "s.yaml").write_text(text.replace("[h100-sxm, l40s]", "[h100-sxm]"))
    sides = []
    for price, day in (("2 $/h", "2026-01-05"), ("3 $/h", "2026-02-05")):
        listed = {
            "sources": {"page": {"title": "page", "url": "https://example.org"}},
            "prices": [offer | {"price": price, "date": day}],
        }
        (tmp_path / "prices.yaml").write_text(json.dumps(listed))
        assert (
            main(["fleet", str(tmp_path / "s.yaml"), "--offline", "-o", str(tmp_path / f"{day}.json")]) == 0
        )
        sides.append(tmp_path / f"{day}.json")
    found = {change["path"]: (change["before"], change["after"]) for change in changes(*both_sides(*sides))}
    assert found["inputs.prices.h100-sxm.usd_per_gpu_hour"] == (2.0, 3.0)
    assert found["inputs.prices.h100-sxm.dates"] == (["2026-01-05"], ["2026-02-05"])
    assert set(found) == {
        "inputs.prices.h100-sxm.usd_per_gpu_hour",
        "inputs.prices.h100-sxm.dates",
        "inputs.files.prices.file",
    }


def test_markdown_for_a_pull_request_escapes_what_files_say(folder, tmp_path, capsys):
    (tmp_path / "evil.yaml").write_text(TWICE.replace("name: small", "name: '<img src=x> | # *now*'"))
    assert (
        main(
            [
                "diff",
                str(folder / "base.json"),
                str(tmp_path / "evil.yaml"),
                "--offline",
                "--format",
                "markdown",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "<img" not in shown
    assert "### The plan" in shown
    assert all(
        line.count("|") - line.count(r"\|") in (0, 4, 6)
        for line in shown.splitlines()
        if line.startswith("|")
    )
