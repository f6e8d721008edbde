"""Every command and every page of one plan state one peak, and the arithmetic that they print is true."""

import json
import re
from math import ceil

import pytest

from capplan.cli.main import main
from tests.files import written_to
from tests.plan_files import fleet_plan

pytestmark = pytest.mark.usefixtures("shared_runs")

TRAFFIC = {
    "open": "- {name: search, request_rate: 40 req/s, mean_rate: 11 req/s, input_tokens: 700, output_tokens: 40}",
    "users": "- {name: chat, users: 700, think_time: 15 s, daily_curve: office, input_tokens: {mean: 900, p95: 2500}, output_tokens: {mean: 200, p95: 500}}",
    "sessions": "- {name: agent, request_rate: 8 req/s, turns: 6, think_time: 10 s, added_tokens: 200, input_tokens: 900, output_tokens: 100}",
    "pools": "- {name: chat, request_rate: 30 req/s, daily_curve: office, input_tokens: {mean: 1500, p95: 4000}, output_tokens: {mean: 150, p95: 400}}",
}
TRAFFIC["quick and slow users"] = (
    "- {name: chat, users: 300, think_time: 1 s, input_tokens: 800, output_tokens: 80}\n"
    "- {name: agent, users: 60, think_time: 4 s, input_tokens: 6000, output_tokens: 500}"
)
TRAFFIC["two classes"] = TRAFFIC["users"] + "\n" + TRAFFIC["open"].replace("chat", "two")
SCENARIO = """name: pages
model: llama-3.1-8b
traffic:
{traffic}
slo: {{ttft_p95: 1.5 s, tpot_p95: 40 ms}}
fleet: {{hardware: [h100-sxm], tensor_parallel: 1, spare_replicas: 1, headroom: 10 %{pools}}}
prices: {{per_gpu_hour: {{h100-sxm: 4 $/h}}}}
growth: {{months: 3, per_month: 30 %}}
"""
PHASES = ", disaggregation: only, kv_link: infiniband-ndr"


@pytest.fixture(scope="module", params=list(TRAFFIC))
def plan(request, tmp_path_factory, few_requests):
    """The path of a plan of some kind of traffic."""
    pools = PHASES if request.param == "pools" else ""
    text = SCENARIO.format(traffic=TRAFFIC[request.param], pools=pools)
    return fleet_plan(written_to(tmp_path_factory.mktemp("pages") / "pages.yaml", text))


def printed(capsys, *words):
    """Return what a command prints; it may say with its exit code that something does not hold."""
    capsys.readouterr()
    offline = () if words[0] == "export" else ("--offline",)
    assert main([*map(str, words), *offline]) in (0, 4)
    return capsys.readouterr().out


def said(text, pattern):
    """Return the numbers that a pattern finds in a page, of which there is one at least."""
    found = [float(number.replace(",", "")) for number in re.findall(pattern, text)]
    assert found, pattern
    return found


def test_every_page_states_the_peak_of_the_plan(plan, capsys):
    file = json.loads(plan.read_text())["result"]
    peak, mean = (file["demand"][f"{name}_requests_per_s"] for name in ("peak", "mean"))
    chosen = file["chosen"]
    pools = chosen["transfer"]
    assert file["plan_file"]["inputs"]["request_rate"] == pytest.approx(peak)
    for group in chosen["groups"]:
        busy = group["replicas"] - group["spare_replicas"]
        assert group["request_rate_per_replica"] * busy == pytest.approx(peak, rel=1e-6)
    assert file["growth"]["months"][0]["request_rate"] == pytest.approx(peak, rel=1e-6)
    page = printed(capsys, "report", "--plan", plan, "--format", "markdown")
    for pattern in (r"\| peak rate, all traffic +\| +([\d.,]+)", r"\n([\d.,]+) req/s / \("):
        if not pools:
            assert said(page, pattern) == pytest.approx([peak] * len(said(page, pattern)), rel=5e-3)
    classes = re.findall(r"^\| (?:chat|search|agent) .*", page, re.MULTILINE)
    assert classes
    export = printed(capsys, "export", "--plan", plan, "--target", "k8s")
    assert said(export, r"at a peak of ([\d.]+) req/s") == pytest.approx([peak], rel=1e-3)
    simulated = printed(capsys, "simulate", "--plan", plan)
    stated = re.findall(r"at its peak of ([\d.]+) req/s", simulated)
    assert [float(number) for number in stated] == pytest.approx([peak] * len(stated), rel=1e-3)
    compared = printed(capsys, "compare", "--plan", plan, "--api", "openai/gpt-5-mini", "--format", "json")
    assert json.loads(compared)["result"]["own"]["request_rate"] == pytest.approx(peak)
    billed = json.loads(printed(capsys, "bill", "--plan", plan, "--format", "json"))["result"]["classes"]
    assert sum(row["requests"] for row in billed) / (730 * 3600) == pytest.approx(mean, rel=1e-6)


def test_the_replicas_that_a_page_works_out_are_those_of_the_plan(plan, capsys):
    file = json.loads(plan.read_text())["result"]
    if file["chosen"]["transfer"]:
        pytest.skip("separate pools are sized by pairs, not by a quotient")
    page = printed(capsys, "report", "--plan", plan, "--format", "markdown")
    number = r"([\d.,]+)"
    sentence = re.search(
        rf"{number} req/s / \({number} req/s x {number}%\) = {number} replicas as predicted", page
    )
    peak, limit, kept, quotient = (float(part.replace(",", "")) for part in sentence.groups())
    assert peak / (limit * kept / 100.0) == pytest.approx(quotient, rel=1.5e-2)
    sure = re.search(rf"{number} req/s / {number} req/s = {number} for", page)
    peak, limit, wanted = (float(part.replace(",", "")) for part in sure.groups())
    assert peak / limit == pytest.approx(wanted, rel=1.5e-2)
    busy, spares, devices, gpus = (
        int(part) for part in re.search(r"So \((\d+) \+ (\d+) spare\) x (\d+) = (\d+)", page).groups()
    )
    assert (busy + spares) * devices == gpus == file["chosen"]["gpus"]
    assert busy >= ceil(max(quotient, wanted) - 0.02)


def test_the_bill_and_the_page_load_the_replicas_alike(plan, capsys):
    """The load of a replica at the peak, times mean over peak, times the part of the replicas that is no spare, is what the bill says is used."""
    file = json.loads(plan.read_text())["result"]
    chosen, demand = file["chosen"], file["demand"]
    page = printed(capsys, "report", "--plan", plan, "--format", "markdown")
    bill = json.loads(printed(capsys, "bill", "--plan", plan, "--format", "json"))["result"]
    mean = demand["mean_requests_per_s"] / demand["peak_requests_per_s"]
    if chosen["transfer"]:
        used = [
            group["busy_fraction"] * (group["replicas"] - group["spare_replicas"])
            for group in chosen["groups"]
        ]
        load = sum(used) / chosen["replicas"]
    else:
        (at_peak,) = said(page, r"\| load of one replica at peak, spares idle +\| +([\d.]+) +\| % ")
        load = at_peak / 100.0 * (chosen["replicas"] - chosen["spare_replicas"]) / chosen["replicas"]
    assert bill["busy_fraction"] == pytest.approx(load * mean, rel=5e-3)


def test_captured_graphs_take_the_same_memory_everywhere(plan, capsys):
    page = printed(capsys, "report", "--plan", plan, "--format", "markdown")
    for name in ("", "groups[0].", "groups[1]."):
        asked = (plan, f"{name}cuda_graph_bytes_per_gpu", "--offline", "--format", "json")
        capsys.readouterr()
        if main(["explain", *map(str, asked)]) == 0:
            value = json.loads(capsys.readouterr().out)["result"]["value"]
            on_page = said(page, r"\| CUDA graphs +\| +-([\d.]+) ")
            assert any(each == pytest.approx(value / 1e9, rel=5e-3) for each in on_page)


def cells(page, *headings):
    """Return the numbers in some columns of the table of a page that has them all, row by row."""
    tables = re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)
    for table in tables:
        rows = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in table.splitlines()]
        if all(any(heading in cell for cell in rows[0]) for heading in headings):
            at = [next(n for n, cell in enumerate(rows[0]) if heading in cell) for heading in headings]
            return [[float(row[n].replace(",", "")) for n in at] for row in rows[2:]]
    raise AssertionError(headings)


def test_the_mean_request_of_every_page_is_that_of_the_rates_of_the_page(plan, capsys):
    """Tokens over requests, summed over the classes of the page: what plan file and the printed estimate say of one request."""
    file = json.loads(plan.read_text())["result"]
    inputs, chosen = file["plan_file"]["inputs"], file["chosen"]
    page = printed(capsys, "report", "--plan", plan, "--format", "markdown")
    rows = cells(page, "peak rate", "input, mean", "cached, mean")
    rates = [row[0] for row in rows]
    prompts = sum(rate * row[1] for rate, row in zip(rates, rows, strict=True)) / sum(rates)
    cached = sum(rate * row[2] for rate, row in zip(rates, rows, strict=True)) / sum(rates)
    assert inputs["input_tokens"] == pytest.approx(prompts, rel=5e-3)
    assert inputs["cached_tokens"] == pytest.approx(cached, rel=1e-2, abs=0.5)
    assert chosen["prefix_hit_fraction"] == pytest.approx(cached / prompts, rel=1e-2, abs=1e-3)
    asked = said(page, r"capplan estimate .*--input-tokens (\d+)")
    assert asked == pytest.approx([inputs["input_tokens"]] * len(asked), abs=0.51)
    asked = said(page, r"capplan estimate .*--output-tokens (\d+)")
    assert asked == pytest.approx([inputs["output_tokens"]] * len(asked), abs=0.51)
    explained = printed(capsys, "explain", plan, "prefix_hit_fraction", "--format", "json")
    assert json.loads(explained)["result"]["value"] == chosen["prefix_hit_fraction"]
    for hit, row in zip(chosen["class_prefix_hit_fractions"], rows, strict=True):
        assert hit == pytest.approx(row[2] / row[1], rel=1e-2, abs=1e-3)
    if inputs["cached_tokens"]:
        shown = printed(capsys, "fleet", file["plan_file"]["scenario"])
        assert f"{chosen['prefix_hit_fraction']:.0%} of the prompt tokens in prefix caches" in shown


def leaves(value, path=()):
    """Yield the numbers and words of a result with their paths."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from leaves(each, (*path, key))
    if not isinstance(value, (dict, list)):
        yield path, value


def test_a_quantity_is_the_same_wherever_it_is_printed(plan, capsys):
    """Each figure of a plan that another command prints under the same path is the figure of the plan."""
    chosen = json.loads(plan.read_text())["result"]["chosen"]
    held = dict(leaves(chosen))

    def result(*words):
        return json.loads(printed(capsys, *words, "--format", "json"))["result"]

    compared = result("compare", "--plan", plan, "--api", "openai/gpt-5-mini")["own"]
    for other in (result("bill", "--plan", plan), compared, result("report", "--plan", plan)["chosen"]):
        common = {path: value for path, value in leaves(other) if path in held}
        assert {("gpus",), ("usd_per_month",)} <= common.keys()
        for path, value in common.items():
            assert value == (pytest.approx(held[path]) if isinstance(held[path], float) else held[path]), path
    explained = {row["quantity"]: row["value"] for row in result("explain", plan)["quantities"]}
    of_plan = {
        "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)[1:]: value
        for path, value in held.items()
    }
    common = explained.keys() & of_plan.keys()
    assert {"gpus", "usd_per_month", "ttft_s.p95", "slo_met_probability"} <= common
    assert {name: explained[name] for name in common} == {name: of_plan[name] for name in common}
    same = result("diff", plan, plan)
    assert same["changes"] == []
    assert same["ttft_p95_s"] == dict.fromkeys(("before", "after"), chosen["ttft_s"]["p95"])
    checks = {row["what"]: row["value"] for row in result("check", "--plan", plan)["checks"]}
    assert checks["slo.confidence"] == pytest.approx(chosen["slo_met_probability"], rel=1e-6)
    assert checks["slo.ttft_p95"] == pytest.approx(chosen["ttft_s"]["p95"], rel=1e-6)
    assert checks["slo.tpot_p95"] == pytest.approx(chosen["tpot_s"]["p95"], rel=1e-6)
    margins = {row["target"]: row for row in result("report", "--plan", plan)["margins"][0]}
    for target, row in margins.items():
        assert row["met_probability"] == chosen["target_probabilities"][target]
        assert row["predicted_s"] == chosen[f"{target.split('_')[0]}_s"]["p95"]
        assert (row["high_s"] <= row["limit_s"]) == (row["met_probability"] >= 0.9)
    export = printed(capsys, "export", "--plan", plan, "--target", "k8s")
    replicas = [group["replicas"] for group in chosen["groups"]]
    assert [int(number) for number in re.findall(r"^  replicas: (\d+)", export, re.MULTILINE)] == replicas
