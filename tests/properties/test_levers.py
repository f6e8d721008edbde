"""A lever is a changed question: nothing saved where nothing changes, the same plan as `fleet --set`, and more levers never cost more."""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from capplan.errors import InputError
from capplan.fleet.over_time import RateLine, fleet_over_time
from capplan.fleet.search import cheapest
from capplan.fleet.search.search_cache import SearchCache
from capplan.money.order import Machine, Survival
from capplan.questions.fleet_answer import fleet_for
from capplan.questions.levers import answer as levers
from capplan.questions.levers.answer import (
    AUTOSCALING,
    LEVERS,
    PREFIX_HITS,
    REGIONS,
    Asking,
    asked_levers,
    asking_of,
    checked_names,
    levers_of,
)
from capplan.questions.levers.lever import Lever, lever_row, most_saved_first, scaled_plan, why_dearer
from capplan.scenario.scenario import scenario_document
from capplan.serving.steady_state import replicas_over_time
from tests.asked import asked_of, fleet_of
from tests.files import file_with

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")

SMALL = """name: small
model: llama-3.1-8b
weight_dtype: bf16
kv_dtype: bf16
traffic:
  - name: chat
    request_rate: 110 req/s
    input_tokens: {mean: 900, p95: 2500}
    output_tokens: {mean: 120, p95: 300}
    shared_prefix: {tokens: 300, hit_fraction: 0.8}
slo: {ttft_p95: 600 ms, tpot_p95: 30 ms}
fleet: {hardware: [h100-sxm, l40s], tensor_parallel: 1, pipeline_parallel: 1}
"""
NAMES = ("weight-dtype", "kv-dtype", "commitment", "max-num-seqs", "parallelism")


small = file_with(SMALL, "small.yaml")


@pytest.fixture(scope="module")
def whole(small):
    asking, base = asked_levers(small, None, offline=True)
    return asking, base, levers_of(asking, base, checked_names(None))


def fleet_with(path, settings):
    return fleet_of(path, *settings).chosen


@pytest.mark.long
def test_the_plan_as_it_is_is_the_one_that_fleet_recommends(small, whole):
    mine, other = whole[1].plan, fleet_with(small, ())
    assert replace(other, usd_per_month_low=None, usd_per_month_high=None) == mine


@pytest.mark.long
def test_a_lever_has_the_plan_of_fleet_with_its_settings(small, whole):
    rows = {row.lever.change: row for row in whole[2].rows if row.plan is not None and row.lever.settings}
    for change in ("weights in fp8", "KV cache in fp8", "ttft_p95 0.6 s -> 0.75 s", "prompts shorter by 10%"):
        row = rows[change]
        plan = fleet_with(small, row.lever.settings)
        assert (plan.gpus, plan.usd_per_month) == (row.plan.gpus, row.plan.usd_per_month)
        assert row.usd_per_month_saved == pytest.approx(whole[1].plan.usd_per_month - plan.usd_per_month)


@pytest.mark.long
def test_what_is_left_out_or_shared_changes_no_lever(small, whole, monkeypatch):
    """Every lever again, each by a search of its own that simulates all layouts to the end."""
    rows = [row for row in whole[2].rows if row.plan is not None and row.lever.settings]
    assert len(rows) > 10
    monkeypatch.setattr(cheapest, "_may_be_enough", lambda *_asked, **_how: True)
    for row in rows:
        alone = Asking(small, (), scenario_document(small, ()), offline=True)
        assert alone.plans(alone.changed(row.lever.settings))[0] == row.plan


def test_all_changes_share_the_runs_of_the_scenario_as_it_is(whole):
    """The search for a mix too, which is that of `fleet`."""
    asking = whole[0]
    assert asking.changed(("fleet.mix=any",)).cache is asking.changed(()).cache is asking.shared


def test_every_lever_has_a_plan_or_a_reason(whole):
    assert {row.lever.name for row in whole[2].rows} == {*LEVERS, AUTOSCALING, REGIONS} - {PREFIX_HITS}
    assert all(row.plan is not None or row.reason for row in whole[2].rows)


@pytest.mark.long
def test_the_best_combination_is_the_cheapest_plan_of_fleet_with_its_settings(small, whole):
    best = whole[2].best
    asked = asked_of(small, *best.settings)
    assert fleet_for(asked).choices.cheapest.usd_per_month == best.plan.usd_per_month
    assert best.plan.usd_per_month < whole[1].plan.usd_per_month


def test_the_best_combination_is_never_dearer_than_a_lever_that_it_may_take(whole):
    free = [row for row in whole[2].rows if row.plan and (row.lever.combines or row.lever.adds)]
    assert free
    assert whole[2].best.plan.usd_per_month <= min(row.plan.usd_per_month for row in free)
    assert all(lever.keeps and not lever.broken for lever in whole[2].best.levers)


@pytest.mark.long
def test_at_best_is_the_plan_of_the_row_of_the_same_change_at_the_same_dollars(tmp_path, monkeypatch):
    """Two layouts at one price: the search finds either, and the answer shows that of the row, which has the higher chance."""
    path = tmp_path / "tied.yaml"
    path.write_text(SMALL.replace("110 req/s", "150 req/s").replace("[h100-sxm, l40s]", "[h100-sxm]"))
    asking, base = asked_levers(path, None, offline=True)
    found = Asking.cheapest

    def with_a_lower_chance(self, asked, confidence, under):
        plan, question = found(self, asked, confidence, under)
        less = None if plan is None else replace(plan, slo_met_probability=plan.slo_met_probability - 0.01)
        return less, question

    monkeypatch.setattr(Asking, "cheapest", with_a_lower_chance)
    for name in ("weight-dtype", "kv-dtype"):
        answer = levers_of(asking, base, (name,))
        best = answer.best.plan
        rows = [row for row in answer.rows if row.plan and (row.lever.combines or row.lever.adds)]
        same = [row for row in rows if row.plan.usd_per_month == pytest.approx(best.usd_per_month)]
        assert all(row.plan == best for row in same if row.lever.settings == answer.best.settings)
        assert all(row.plan.slo_met_probability <= best.slo_met_probability for row in same)
        assert same
        assert answer.best.levers


def test_a_change_that_costs_more_is_not_sized_unless_it_is_named(small, whole):
    """Without prefix caching: all levers say that it saves nothing, and by its name what it costs."""
    asking, base, answer = whole
    (row,) = (row for row in answer.rows if row.lever.name == "prefix-caching")
    assert (row.plan, row.applicable, row.meets_targets) == (None, True, None)
    assert row.reason.endswith("--lever prefix-caching")
    (named,) = levers_of(asking, base, ["prefix-caching"]).rows
    assert named.plan.usd_per_hour > base.plan.usd_per_hour
    assert named.usd_per_month_saved < 0.0


@pytest.mark.long
def test_no_change_that_is_not_sized_saves_anything(whole):
    asking, base, answer = whole
    dear = [row.lever for row in answer.rows if row.applicable and row.meets_targets is None]
    assert dear
    for lever in dear:
        plan = asking.plans(asking.changed(lever.settings))[0]
        assert plan is None or plan.usd_per_hour > base.plan.usd_per_hour


def test_ctrl_c_shows_the_levers_that_were_found(whole, capplan, small, monkeypatch):
    asking, base, _ = whole
    rows = []

    def found(row):
        rows.append(row)
        if len(rows) == 2:
            raise KeyboardInterrupt

    answer = levers_of(asking, base, ["weight-dtype", "kv-dtype"], found=found)
    assert answer.interrupted
    assert answer.best is None
    assert list(answer.rows) == list(most_saved_first(rows))
    monkeypatch.setattr(levers, "_best", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    ran = capplan("levers", small, "--lever", "weight-dtype", "--offline", "--format", "json")
    shown = json.loads(ran.out)["result"]
    assert (ran.code, shown["interrupted"], shown["best"]) == (130, True, None)
    assert shown["levers"]
    text = capplan("levers", small, "--lever", "weight-dtype", "--offline").out
    assert "; interrupted; separately, weight-dtype saves $" in text.splitlines()[0]


def test_settings_that_say_what_is_so_change_nothing(whole):
    asking, base, _ = whole
    same = Lever(
        "weight-dtype", "the same", ("weight_dtype=bf16", "fleet.headroom=20 %", "prefix_caching=true")
    )
    row = levers._row(asking, base, same)
    assert row.plan == base.plan
    assert row.usd_per_month_saved == 0.0
    assert row.meets_targets


@pytest.mark.long
def test_one_more_lever_never_makes_the_best_combination_dearer(whole):
    asking, base, _ = whole
    costs = {
        names: levers_of(asking, base, names).best.plan.usd_per_month
        for count in range(len(NAMES) + 1)
        for names in combinations(NAMES, count)
        if count in {0, 1, 2, len(NAMES)}
    }
    assert costs[()] == base.plan.usd_per_month
    for few, dear in costs.items():
        assert all(cheap <= dear for many, cheap in costs.items() if set(few) <= set(many))


def test_rows_come_by_what_they_save_and_a_looser_promise_is_not_kept(whole):
    rows = whole[2].rows
    saved = [row.usd_per_month_saved for row in rows if row.plan]
    assert saved == sorted(saved, reverse=True)
    for row in rows:
        assert (row.plan is None) == (row.usd_per_month_saved is None)
        assert row.applicable or row.reason
        if row.lever.name in {"target", "admission-control"} and row.plan and row.usd_per_month_saved:
            assert not row.meets_targets
            assert row.reason
    assert most_saved_first(rows) == rows


def test_a_lever_without_a_plan_beats_none_and_says_why(whole):
    lever = Lever("target", "impossible", ("slo.ttft_p95=1 us",))
    row = levers._row(*whole[:2], lever)
    said = "no plan meets the targets: ttft_p95 over 1e-06 s even at the lightest load"
    assert (row.plan, row.meets_targets, row.reason) == (None, False, said)
    assert lever_row(Lever("x", "y", reason="no"), None, None).meets_targets is None


def test_what_cannot_be_read_is_not_applicable(whole):
    row = levers._row(*whole[:2], Lever("prompts", "too short", ("traffic[0].input_tokens=200",)))
    assert not row.applicable
    assert "shared_prefix" in row.reason


def by_the_rate(carried):
    """Replicas that all carry as much, whatever their number."""
    return lambda rate_per_s: int(replicas_over_time(np.array([rate_per_s]), carried)[0])


def test_replicas_over_time_cost_what_runs_and_the_spares_at_all_hours(whole):
    plan = whole[1].plan
    carried = plan.single.planned_request_rate_limit_per_replica
    flat = RateLine(np.full(24, carried * plan.single.busy_replicas * 0.999), 3600.0)
    terms = {"start_up_s": 0.0, "burst_ratio": 1.0}
    for ahead in (False, True):
        same = scaled_plan(
            plan, [fleet_over_time(plan.single, flat, by_the_rate(carried), **terms)], foreseen=ahead
        )
        assert same.usd_per_month == pytest.approx(plan.usd_per_month)
    half = RateLine(np.repeat([0.0, carried * 3 * 0.999], 12), 3600.0)
    over = scaled_plan(
        plan, [fleet_over_time(plan.single, half, by_the_rate(carried), **terms)], foreseen=True
    )
    orders = [plan.single.usd_per_hour_of(busy) for busy in (1, 3)]
    assert over.usd_per_hour == pytest.approx(sum(orders) / 2)


def test_an_autoscaler_pays_for_whole_machines(whole):
    """In machines of as many GPUs as the whole fleet has, fewer replicas cost as much as all of them."""
    plan = whole[1].plan
    group = replace(plan.single, survive=Survival("replica", 0), replicas=4, spare_replicas=0)
    gpus = group.gpus
    price = replace(group.price, machines=(Machine("cloud", "large", "gpu", gpus, 10.0 * gpus),))
    node = replace(group.layout.device, node_devices=gpus)
    group = replace(group, price=price, layout=replace(group.layout, device=node))
    carried = group.planned_request_rate_limit_per_replica
    half = RateLine(np.repeat([0.0, carried * 3.9], 12), 3600.0)
    over_time = fleet_over_time(group, half, by_the_rate(carried), start_up_s=0.0, burst_ratio=1.0)
    scaled = scaled_plan(replace(plan, groups=(group,)), [over_time], foreseen=True)
    assert scaled.usd_per_hour == pytest.approx(10.0 * gpus)


def test_a_change_without_the_device_of_the_plan_says_nothing_of_the_plan(whole):
    """A lever that names other devices has no efficiencies of this one: nothing can be said of the plan under it."""
    base = whole[1]
    elsewhere = replace(base.asked, question=replace(base.asked.question, devices=(), efficiencies={}))
    assert why_dearer(base.asked, elsewhere, base.plan, SearchCache()) == ""


def test_an_unknown_lever_names_the_nearest():
    with pytest.raises(InputError, match="weight-dtype"):
        checked_names(["weight-dtypes"])
    assert checked_names(["target", "device"]) == ("device", "target")


BAD_INPUT = {
    "an acceptance over one": ("speculation={method: eagle, acceptance: 1.2}", "speculation.acceptance: '1.2' is over 1"),
    "an acceptance below zero": ("speculation.acceptance=-0.1", "speculation.acceptance: '-0.1'"),
    "no drafts": ("speculation={method: eagle, draft_tokens: 0}", "speculation.draft_tokens: 0"),
    "ten thousand drafts": ("speculation={method: eagle, draft_tokens: 10000}", "speculation.draft_tokens: 10000"),
    "another vocabulary": ("speculation={draft: qwen2.5-0.5b, acceptance: 0.7}", "speculation.draft: Qwen/Qwen2.5-0.5B has 151,936 tokens"),
    "no such dtype": ("weight_dtype=fp9", "weight_dtype: unknown weight dtype 'fp9': did you mean 'fp8'"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_refused_in_a_clear_line(small, capplan, case):
    setting, words = BAD_INPUT[case]
    ran = capplan("levers", str(small), "--offline", "--lever", "speculation", "--set", setting)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err.partition("\n")[0]


@pytest.mark.long
def test_a_dtype_that_no_device_has_is_named_and_is_no_lever(small, capplan):
    """As the scenario is, there is no plan, and the first line says why; as a lever, it is not applicable."""
    ran = capplan("levers", str(small), "--offline", "--lever", "kv-dtype", "--set", "kv_dtype=int4")
    assert ran.code == 4
    assert "vllm does not run int4 KV cache on" in ran.out.partition("\n")[0]
    asking, base = asked_levers(small, None, ("fleet.hardware=[a100-sxm-80gb]",), offline=True)
    rows = {row.lever.change: row for row in levers_of(asking, base, ("weight-dtype", "kv-dtype")).rows}
    assert not rows["KV cache in int4"].applicable
    assert "vllm does not run int4 KV cache on ampere" in rows["KV cache in int4"].reason


def test_keys_beside_a_plan_file_are_refused(tmp_path):
    with pytest.raises(InputError, match="--set"):
        asked_levers(None, tmp_path / "plan.json", ("slo.ttft_p95=1 s",))
    with pytest.raises(InputError, match="no scenario"):
        asked_levers(None, None)


@pytest.mark.long
def test_a_router_by_prefix_finds_what_all_caches_hold(tmp_path):
    """Prompts of 60 prefixes of 6,400 tokens in a trace: one cache holds few of them, those of all replicas more."""
    random = np.random.default_rng(3)
    lines = []
    for at in np.cumsum(random.exponential(180.0, 900)).tolist():
        prefix = int(random.integers(60))
        ids = [1000 * prefix + place for place in range(50)] + [10**7 + len(lines)]
        lines.append(
            f'{{"timestamp": {at:.0f}, "input_length": {512 * 13}, "output_length": 40, "hash_ids": {ids[:13]}}}'
        )
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    path = tmp_path / "routed.yaml"
    path.write_text("""name: routed
model: llama-3.1-8b
max_model_len: 8192
gpu_memory_utilization: 0.6
traffic: [{name: chat, trace: trace.jsonl}]
slo: {ttft_p95: 4 s, tpot_p95: 80 ms}
fleet: {hardware: [l40s], tensor_parallel: 1, pipeline_parallel: 1}
""")
    asking, base = asked_levers(path, None, offline=True)
    (row,) = levers_of(asking, base, ("prefix-routing",)).rows
    reuse = base.asked.scenario.classes[0].reuse
    one, all_of_them = (
        float(reuse.hit_fraction(0.5 * base.plan.single.kv_cache_tokens * caches))
        for caches in (1, base.plan.single.busy_replicas)
    )
    assert base.plan.single.busy_replicas > 1
    assert all_of_them > one + 0.1
    assert row.plan.gpus <= base.plan.gpus
    assert (row.plan.gpus, row.plan.ttft_s.mean) < (base.plan.gpus, base.plan.ttft_s.mean)
    assert row.plan.single.layout == base.plan.single.layout
    offloading = ("kv_offload=[{name: host, capacity: 1 GB}]", "prices.host_memory_per_gb=40 $/month")
    asking, base = asked_levers(path, None, offloading, offline=True)
    for row in levers_of(asking, base, ("prefix-routing", "autoscaling")).rows:
        if row.plan is not None:  # every replica has its memory, with the lever as without it
            assert row.memory_usd_per_month == pytest.approx(40.0 * row.plan.replicas)
            paid = row.plan.usd_per_month + row.memory_usd_per_month
            assert row.usd_per_month_saved == pytest.approx(
                base.plan.usd_per_month + 40.0 * base.plan.replicas - paid
            )


@pytest.mark.parametrize(
    ("quality", "term"), [("estimate", "reserved-1y"), ("list", "reserved-1y"), ("list", "reserved")]
)
def test_an_estimate_and_an_offer_without_a_term_are_in_no_headline(capplan, tmp_path, quality, term):
    """A reservation at a tenth of the price: taken if somebody lists it with its term; an estimate, or an offer without a term, is named so and left out of the best."""
    page = {"page": {"title": "page", "url": "https://example.org"}}
    offers = [
        {"device": "h100-sxm", "provider": "A", "commitment": name, "price": f"{usd} $/h", "date": "2026-11", "source": "page", **more}
        for name, usd, more in (("on-demand", 3.0, {}), (term, 0.3, {"quality": quality}))
    ]  # fmt: skip
    offers.append(
        offers[0]
        | {"device": "l40s", "price": "0.01 $/h", "quality": quality if term == "reserved-1y" else "estimate"}
    )
    (tmp_path / "own.yaml").write_text(json.dumps({"sources": page, "prices": offers}))
    path = tmp_path / "small.yaml"
    path.write_text(SMALL.replace("[h100-sxm, l40s]", "[h100-sxm]") + "prices: {file: own.yaml}\n")
    words = ("levers", path, "--offline", "--lever", "commitment", "--lever", "device")
    result = json.loads(capplan(*words, "--format", "json").out)["result"]
    (row,) = (row for row in result["levers"] if row["change"] == f"on-demand -> {term}")
    assert row["usd_per_month_saved"] == pytest.approx(0.9 * result["base_usd_per_month"])
    shown = capplan(*words).out
    headline = " ".join(shown[: shown.index("As it is")].split())
    devices = [row["applicable"] for row in result["levers"] if row["lever"] == "device"]
    if (quality, term) == ("list", "reserved-1y"):
        assert result["best_usd_per_month"] <= 0.1 * result["base_usd_per_month"] * (1 + 1e-9)
        assert "% less)" in headline
        assert devices == [True]
    else:
        assert (result["best_levers"], devices) == ([], [False])
        assert result["best_usd_per_month"] == result["base_usd_per_month"]
        assert "less)" not in headline
        said = (
            "the price of h100-sxm is an estimate, nobody lists one"
            if quality == "estimate"
            else "the offers of h100-sxm state no term"
        )
        assert row["risk"].startswith(said)


@pytest.mark.parametrize(("under", "devices"), [(100.0, ["h100-sxm"]), (np.inf, ["h100-sxm", "l40s"])])
def test_no_pool_without_a_price_is_under_a_cost_in_dollars(small, monkeypatch, under, devices):
    asking = asking_of(small, None, (), offline=True)
    asked = asking.changed(("fleet.disaggregation=only",))
    unpriced = replace(asked, prices={**asked.prices, "l40s": None})
    seen = []
    monkeypatch.setattr(levers, "pools_decision", lambda _, limits, *__, **___: (seen.append(limits), ()))
    asking.pools(unpriced, under)
    assert [device.name for device in seen[0].prefill_devices] == devices
    assert [device.name for device in seen[0].decode_devices] == devices
