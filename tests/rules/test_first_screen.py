"""What a newcomer sees first: a decision that fits the screen, with everything else one flag away."""

import json
import re
from datetime import date
from types import SimpleNamespace

import pytest

from capplan.assumption import TO_DO
from capplan.fleet.answer import Certainty, Step
from capplan.library import planned
from capplan.report.answer import Answer, Table
from capplan.report.answers.fleet_words import rejected_text, surer_text
from capplan.report.show import RowProgress, drawable
from capplan.report.tables import fitted, grid_of, terminal_text
from tests.shipped import SCENARIOS
from tests.tables import table

pytestmark = pytest.mark.usefixtures("shared_runs")
SMALL = "tests/golden/small.yaml"
BUSY = (SMALL, "--offline", "--set", "traffic[0].request_rate=40", "--confidence=90%")
"""A load at which the required confidence takes a GPU more than the prediction."""


@pytest.mark.parametrize("columns", [60, 80, 100, 120])
def test_the_first_screen_is_a_screen(capplan, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = capplan("fleet", *BUSY).out.splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) <= 24
    text = " ".join(" ".join(lines).split())
    assert re.match(
        r"small: order 3 x l40s .* for \$2,190 per month; the chance to meet the SLO is (over )?\d+% ", text
    )
    assert "bottleneck: " in text
    assert re.search(r"confidence: .*capplan verify-plan on one replica may save \$730 per month", text)
    assert re.search(
        r"at the peak: TTFT p95 [\d.]+ ms \(limit 300 ms\), TPOT p95 [\d.]+ ms \(limit 13 ms\)", text
    )
    assert re.search(r"; \$0\.04 per million tokens, \$0\.21 for output", text)
    assert re.search(r"GPUs: 1 saturated \+ 1 (headroom|confidence) \+ 1 spare = 3 ", text)
    assert re.search(r"assumed: .*; replace with traffic\[0\]\.trace ", text)
    more = r"more: --full( \(\d plans?\))?, --assumptions \(\d+ more\), capplan report$"
    assert re.search(more, text)
    heading = next(line for line in lines if line.startswith("hardware"))
    assert "$/month" in heading
    assert "GPUs" in heading


def test_an_answer_with_many_assumptions_names_three_to_confirm(capplan):
    """One of each kind that a person can do something about; the others are one flag away, under what to do."""
    *_, heading, first, second, third = (
        capplan("fleet", SMALL, "--full", "--offline").out.rstrip().splitlines()
    )
    assert re.fullmatch(r"assumed.*, confirm these 3; --assumptions shows \d+ more:", heading)
    every = capplan("fleet", SMALL, "--assumptions", "--offline").out
    rest = every[every.index("assumed") :].splitlines()
    kinds = [re.fullmatch(r"assumed.*?, (to .*):", line)[1] for line in rest if not line.startswith(" ")]
    assert kinds == [do for do in TO_DO if do in kinds]
    assert {first, second, third} <= set(rest)
    number = len(json.loads(capplan("fleet", SMALL, "--offline", "--format", "json").out)["assumptions"])
    assert number == len(rest) - len(kinds)
    assert f"shows {number - 3} more" in heading


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_first_screen_of_a_shipped_scenario_is_a_screen_without_a_warning(path, monkeypatch):
    """At every width the decision is first, and no table is upright: a rule is under its heading. Only an order at an old price warns of it."""
    monkeypatch.setattr("capplan.keys.current_day", lambda: date(2026, 11, 20))
    answer, _ = planned(str(path), [], RowProgress("plans", lambda _: None), pictured=False, offline=True)
    for line in answer.warnings:
        old = re.fullmatch(
            r"the price of \S+ at .+ is of (\S+), (\d+) days old on 2026-11-20: check it there", line
        )
        assert old, line
        assert int(old[2]) == (date(2026, 11, 20) - date.fromisoformat(old[1])).days > 90
    assert answer.first_screen.headline == answer.headline
    for columns in (60, 80, 100, 120):
        lines = terminal_text(answer.first_screen, width=columns, colour=False).splitlines()
        assert max(map(len, lines)) <= columns
        assert lines[0].startswith(f"{path.stem}: ")
        assert any(set(line) == {"─"} for line in lines)
        assert len(lines) <= (24 if columns >= 80 or path.stem == "support-chat" else 33), columns


WIDE = {
    ("bill", SMALL): ("By class of requests",),
    ("levers", SMALL, "--lever", "target", "--lever", "kv-dtype"): ("Each lever separately", "As it is, and at best"),
    ("explain", SMALL, "usd_per_hour"): ("Steps before it", "Inputs of these steps"),
}  # fmt: skip
"""Command -> titles of its widest tables."""


@pytest.mark.parametrize("words", WIDE, ids=lambda words: words[0])
def test_a_wide_table_leaves_out_columns_before_it_turns_upright(words, capplan, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = capplan(*words, "--offline").out
    assert max(map(len, shown.splitlines())) <= 80
    for title in WIDE[words]:
        table = next(part for part in shown.split("\n\n") if re.match(rf"{title}\b(?! of)", part))
        assert "───" in table, f"{title} is upright"


def test_everything_else_is_behind_a_flag(capplan):
    first, full = (capplan("fleet", *BUSY, *words).out for words in ((), ("--full",)))
    assert re.search(r"^Why 3 GPUs .*\n[^+]*(\+.*\n)*\+ spares +3 +2,190 +fleet\.", full, re.MULTILINE)
    for title in ("Order", "Choices", "Cost of confidence", "Rejected", "assumed"):
        assert re.search(f"^{title}", full, re.MULTILINE)
    assert "Rejected" not in first
    assert full.splitlines()[0] == first.splitlines()[0]


@pytest.mark.parametrize("form", ["json", "csv", "markdown"])
def test_files_and_pages_have_everything(capplan, form):
    words = ("fleet", SMALL, "--offline", "--format", form)
    assert capplan(*words).out == capplan(*words, "--full").out


def test_an_answer_without_a_plan_says_why(capplan):
    ran = capplan("fleet", SMALL, "--offline", "--set", "slo.ttft_p95=1 ms")
    assert ran.code == 4
    assert "Rejected" in ran.out


def test_candidates_of_an_answer_without_a_plan_are_not_said_to_meet_the_targets():
    answer = SimpleNamespace(rejected=[SimpleNamespace(count=559)], evaluated=896, chosen=None)
    assert rejected_text(answer).endswith(
        "the other 337 meet the targets by a first estimate, but no plan came of them"
    )
    answer.chosen = object()
    assert rejected_text(answer).endswith("the other 337 meet the targets, at a lower load or a higher cost")


def test_a_fleet_without_targets_is_not_called_sure(capplan):
    shown = capplan("fleet", SMALL, "--offline", "--set", "slo={}").out
    assert "sized for throughput only" in shown
    assert "(no limit), TPOT p95 " in shown
    assert "chance" not in shown
    assert "confidence: " not in shown


def test_users_without_a_target_are_said_to_wait(capplan):
    asked = ("fleet", "llama-3.1-8b", "--users", "500", "--hardware", "l4", "--offline")
    assert "no latency target: users wait as long as it takes" in capplan(*asked).err
    assert "users wait" not in capplan(*asked, "--tpot-p95", "80 ms").err


def test_a_cheaper_gpu_that_cannot_be_ordered_is_named(capplan):
    asked = ("fleet", "llama-3.3-70b", "--request-rate", "0.5 req/s", "--offline")
    both = (*asked, "--hardware", "rtx-3090", "--hardware", "mi300x")
    said = "cheaper, but in no machine that a list states: rtx-3090 ($"
    assert said in capplan(*both).out
    assert said in capplan(*both, "--full").out
    assert said not in capplan(*asked, "--hardware", "rtx-3090").out


@pytest.mark.parametrize(
    ("model", "said"), [("deepseek-r1", True), ("gpt-oss-20b", False), ("qwen3-32b", False)]
)
def test_a_large_mixture_says_how_many_published_runs_kept_a_claim(capplan, model, said):
    asked = (
        "fleet",
        model,
        "--request-rate",
        "1 req/s",
        "--tpot-p95",
        "80 ms",
        "--hardware",
        "h200-sxm",
        "--offline",
    )
    assert ("published runs: " in capplan(*asked).out) is said
    assert ("published runs: " in capplan(*asked, "--full").out) is said
    assert "published runs: " not in capplan(*asked, "--set", "slo={}").out


ONE_LAYOUT = (
    "fleet", "llama-3.1-8b", "--request-rate", "30 req/s", "--tpot-p95", "15 ms", "--hardware", "h100-sxm", "--set", "fleet.tensor_parallel=1",
    "--set", "fleet.pipeline_parallel=1", "--offline",
)  # fmt: skip


@pytest.mark.long
def test_the_lever_on_the_first_screen_is_the_plan_of_fleet_with_it(capplan):
    result = json.loads(capplan(*ONE_LAYOUT, "--format", "json").out)["result"]
    lever, before = result["narrower_weights"], result["chosen"]["usd_per_month"]
    assert lever["usd_per_month"] < before
    shown = capplan(*ONE_LAYOUT).out
    assert f"; fp8 with this layout: ${before:,.0f} to ${lever['usd_per_month']:,.0f}" in " ".join(
        shown.split()
    )
    narrow = json.loads(capplan(*ONE_LAYOUT, "--set", "weight_dtype=fp8", "--format", "json").out)["result"]
    cheapest = narrow["plans"][narrow["choices"]["cheapest"]]
    assert cheapest["usd_per_month"] == pytest.approx(lever["usd_per_month"])
    assert cheapest["gpus"] == lever["gpus"]
    assert narrow["narrower_weights"] is None


ROWS = [
    {"hardware": "h100-sxm", "plan": "TP2, fp8", "gpus": 12, "usd_per_month": 8760.0, "usd_per_hour": 12.0}
]


@pytest.mark.parametrize(("width", "left_out"), [(60, ()), (40, ("$/h",)), (30, ("layout", "$/h")), (20, ())])
def test_columns_make_way_by_priority_before_a_table_turns_upright(width, left_out):
    table = Table(ROWS, spare=("usd_per_hour", "plan"))
    fit = fitted(grid_of(table), width)
    assert fit.left_out == left_out
    assert fit.upright == (width == 20)


def test_what_had_no_room_is_named():
    shown = terminal_text(Answer("x", None, (Table(ROWS, spare=("usd_per_hour",)),)), width=40, colour=False)
    assert "no room for: $/h" in shown


BARS = [
    {"hardware": "b200", "usd_per_month": 50.0, "slo_met_probability": 0.5},
    {"hardware": "l4", "usd_per_month": 100.0, "slo_met_probability": None},
]


def test_plans_are_bars_of_cost_and_chance_where_the_screen_has_room():
    """The dearest plan is a whole bar, and so is certainty; in ASCII where an encoding has no blocks."""
    answer = Answer("x", None, (Table(BARS, drawn=("usd_per_month", "slo_met_probability")),))
    wide, narrow = (terminal_text(answer, width=width, colour=False) for width in (90, 60))
    first, second = wide.splitlines()[-2:]
    assert first.endswith("████       ████")
    assert second.endswith("████████")
    assert "█" not in narrow
    assert drawable(wide, "latin-1").splitlines()[-1].endswith("########")
    assert drawable(wide, "utf-8") == wide
    drawable(wide, "ascii").encode("ascii")


def test_progress_never_stands_at_a_count(monkeypatch):
    from capplan.report.show import row_progress

    shown = []
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("rich.progress.Progress.update", lambda _, __, **words: shown.append(words))
    monkeypatch.setattr("rich.progress.Progress.reset", lambda _, __, **words: shown.append(words))
    with row_progress("plans") as progress:
        progress(0, 7)
        progress(7, 7)
    assert [words["description"] for words in shown] == ["plans: 0 of 7", "plans: 7 of 7, comparing"]
    assert shown[-1]["total"] is None


@table
def test_a_higher_confidence_costs_what_the_cheapest_plan_that_has_it_costs(hardware, other_usd, said):
    """As `--full` and `what-if` say of the same question, also where more of the same layout is dearer."""
    plan = SimpleNamespace(slo_met_probability=0.82, hardware="h100-sxm", money=None)
    surer = SimpleNamespace(surer=(Step(0.9, 27, 84_556.0),))
    rows = (Certainty(0.9, hardware, 16, other_usd),)
    answer = SimpleNamespace(certainty=rows, next_steps=surer, chosen=plan, by_commitments=False)
    assert surer_text(plan, answer) == said


@pytest.mark.long
def test_users_who_may_think_as_long_as_they_like_leave_no_part_of_the_gpus_idle(capplan):
    """A replica without targets holds any number of them: that is no throughput of which the plan uses a part."""
    asked = ("qwen3-0.6b", "--users", "2000", "--hardware", "l4", "--ttft-p95", "1 s", "--offline")
    assert capplan.result("fleet", *asked)["tight_target"] is None
