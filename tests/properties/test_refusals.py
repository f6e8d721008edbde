"""What is turned down is counted and decided by a code; its words are for people alone."""

import ast
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engine.lookup import profile, unsupported_reason
from capplan.errors import Refusal
from capplan.fleet.search.candidates import Layout, Ranges, layout_reason, layouts
from capplan.fleet.search.layouts import search
from capplan.fleet.search.steady_plans import LOADS
from capplan.model.sharding import Sharding
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.models import read_model
from capplan.replica.plans import plans_of, plans_tables
from capplan.replica.spec import ReplicaSpec
from tests.asked import asked_of
from tests.files import written_to

pytestmark = pytest.mark.usefixtures("shared_runs")

ROOT = Path(__file__).resolve().parents[2]
MODEL = "Qwen/Qwen3-32B"
"""Dense, 64 layers, 64 query heads over 8 KV heads."""
TENSOR, PIPELINE = (1, 2, 3, 4, 5, 8, 16, 32), (1, 2, 64, 65, 100)

degrees = st.lists(st.sampled_from(TENSOR), min_size=1, max_size=4, unique=True)
stages = st.lists(st.sampled_from(PIPELINE), min_size=1, max_size=3, unique=True)
most = st.none() | st.sampled_from([1, 2, 8, 64])


@given(degrees, stages, most)
@settings(deadline=None)
def test_layouts_that_cannot_be_are_counted_by_code(tensor, pipeline, limit):
    """By hand: 8 devices are joined and servers are not, 64 layers make 64 stages at most, 64 heads divide over powers of two."""
    expected: Counter[Refusal] = Counter()
    for ranks in tensor:
        for depth in pipeline:
            if limit is not None and ranks * depth > limit:
                expected[Refusal.REPLICA_SIZE] += 1
            elif ranks > 8:
                expected[Refusal.LINK_DOMAIN] += 1
            elif depth > 64:
                expected[Refusal.LAYERS] += 1
            elif ranks in {3, 5}:
                expected[Refusal.HEADS] += 1
    ranges = Ranges(tensor, pipeline, kv_formats=("bf16",), max_devices_per_replica=limit)
    gpu = replace(device("h100-sxm"), network_bytes_per_s=None)
    legal, rejected = layouts(read_model(MODEL, offline=True), [gpu], ranges, profile("vllm"))
    found: Counter[Refusal] = Counter()
    for (_, reason), count in rejected.items():
        found[reason.code] += count
    assert found == expected
    assert len(legal) + found.total() == len(tensor) * len(pipeline)


@pytest.mark.parametrize(
    ("engine", "place", "weights", "cache", "code"),
    [
        ("trtllm", "a100-sxm-80gb", "fp8", "bf16", Refusal.WEIGHT_DTYPE),
        ("vllm", "a100-sxm-80gb", "auto", "nvfp4", Refusal.KV_DTYPE),
        ("vllm", "h100-sxm", "fp8", "fp8", None),
    ],
)
def test_the_dtype_at_fault_is_told_by_its_code(engine, place, weights, cache, code):
    network, rules, gpu = read_model(MODEL, offline=True), profile(engine), device(place)
    reason = layout_reason(network, Layout(gpu, Sharding(1.0, 1.0), weights, cache), rules)
    assert (reason and reason.code) == code
    named = None if weights == "auto" else weights
    assert unsupported_reason(rules, gpu.architecture, named, cache) == reason


@pytest.fixture(scope="module")
def question():
    return asked_of(ROOT / "scenarios" / "small-team.yaml").question


def test_every_code_of_a_search_is_the_one_that_its_cause_has(question):
    """Weights that do not fit; a target that no layout meets; loads above the largest; and one for each candidate."""
    network = read_model(MODEL, offline=True)
    places = [device(name) for name in ("l4", "h200-sxm")]
    one = replace(
        question,
        networks={"auto": network},
        efficiencies={place.name: efficiency_for(place) for place in places},
        ranges=Ranges((1,), (1,)),
    )
    small, large = (replace(one, devices=(place,)) for place in places)
    only_memory = search(small).rejected
    assert {reason.code for _, reason in only_memory} == {Refusal.MEMORY}
    assert only_memory.total() == LOADS
    held = search(large)
    assert {reason.code for _, reason in held.rejected} <= {Refusal.LOAD}
    tight = replace(large.slo, targets=tuple(replace(t, limit_s=1e-6) for t in large.slo.targets))
    missed = search(replace(large, slo=tight))
    assert {reason.code for _, reason in missed.rejected} == {Refusal.TARGET}
    assert missed.rejected.total() == LOADS


def test_the_answer_of_a_fleet_carries_codes(capplan, tmp_path):
    text = (ROOT / "tests" / "golden" / "small.yaml").read_text(encoding="utf-8")
    path = written_to(tmp_path / "one.yaml", text.replace("fleet:\n", "fleet:\n  max_gpus: 1\n"))
    rejected = capplan.result("fleet", path, "--offline", code=4)["rejected"]
    assert {row["code"] for row in rejected} <= set(Refusal)
    assert Refusal.FLEET_SIZE in {row["code"] for row in rejected}
    shown = capplan("fleet", path, "--offline", "--format", "markdown").out
    assert "candidates" in shown
    assert "fleet_size" not in shown


def test_the_flag_of_a_draft_is_named_where_its_heads_do_not_divide(capplan):
    replica = ("llama-3.1-8b", "--hardware", "h100", "--offline")
    assert capplan("fit", *replica, "-tp", "3").err.startswith("--tensor-parallel 3: ")
    draft = ("--draft", "llama-3.2-1b", "--draft-tensor-parallel", "3", "--acceptance", "0.7")
    assert capplan("spec", *replica, "-tp", "4", *draft).err.startswith("--draft-tensor-parallel 3: ")


SPOKEN = {"reason", "words", "why", "error", "what", "note", "sentence"}
TESTS = {"startswith", "endswith", "removeprefix", "removesuffix", "replace", "find"}


def texts_tested(node):
    """Return the expressions that a node looks into for fixed words."""
    if (
        isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Constant)
        and isinstance(node.left.value, str)
    ):
        return node.comparators if isinstance(node.ops[0], ast.In | ast.NotIn) else []
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TESTS
    return [node.func.value] if called and node.args and isinstance(node.args[0], ast.Constant) else []


@pytest.mark.long
def test_nobody_looks_into_the_words_of_a_reason():
    """No test for a part, a start or an end of what is called reason, words or why, nor of the message of an error."""
    looking = set()
    for folder in ("capplan", "calibrate", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                parts = [part for text in texts_tested(node) for part in ast.walk(text)]
                if SPOKEN & {getattr(part, "id", getattr(part, "attr", "")) for part in parts}:
                    looking.add(path.relative_to(ROOT).as_posix())
    # torch says in words alone that a processor is out of memory; pydantic's words are made readable; a command line has words of its own.
    of_commands = {"capplan/deploy/shell.py", "capplan/deploy/launch_words.py"}
    assert looking - of_commands == {"capplan/readers/record.py"}


def test_replicas_span_servers_where_a_network_joins_them():
    """8 devices of an HGX server, 72 of a rack: attention on every rank or split over servers, experts whole or in parts."""
    sparse, rules = read_model("Qwen/Qwen3-30B-A3B", offline=True), profile("vllm")

    def reason(name, tensor, data, expert, network=sparse):
        layout = Layout(
            device(name), Sharding(float(tensor), 1.0, float(expert), float(data)), "auto", "bf16"
        )
        return layout_reason(network, layout, rules)

    assert reason("h200-sxm", 1, 16, 16) is None
    assert reason("gb200", 1, 64, 64) is None
    for tensor, data, expert in ((1, 16, 1), (2, 8, 16), (16, 1, 16), (2, 8, 8)):
        assert reason("h200-sxm", tensor, data, expert) is None
        assert reason("l4", tensor, data, expert).code == Refusal.LINK_DOMAIN
    dense = read_model(MODEL, offline=True)
    assert reason("h200-sxm", 16, 1, 1, dense) is None


def test_redundant_experts_fill_the_ranks_of_several_servers_only():
    """128 experts on 72 ranks are two on each; on six of one server they do not divide."""
    sparse, rules = read_model("Qwen/Qwen3-30B-A3B", offline=True), profile("vllm")

    def reason(engine, ranks):
        sharding = Sharding(1.0, 1.0, float(ranks), float(ranks))
        return layout_reason(sparse, Layout(device("h200-sxm"), sharding, "auto", "bf16"), engine)

    assert reason(rules, 72) is None
    assert reason(rules, 6).code == Refusal.EXPERTS
    assert reason(replace(rules, servers_exchange=None), 72).code == Refusal.EXPERTS


def test_the_search_splits_attention_over_servers_only_where_the_degrees_are_listed():
    network, rules, gpu = read_model("Qwen/Qwen3-30B-A3B", offline=True), profile("vllm"), device("h200-sxm")
    usual, rejected = layouts(network, [gpu], Ranges(kv_formats=("bf16",), data_parallel=(16,)), rules)
    assert {(item.sharding.tensor, item.sharding.data) for item in usual} == {(1.0, 16.0)}
    assert {reason.code for _, reason in rejected} == {Refusal.LINK_DOMAIN}
    listed, _ = layouts(network, [gpu], Ranges((16,), (1,), kv_formats=("bf16",)), rules)
    assert {item.sharding.tensor for item in listed} >= {16.0}


@pytest.mark.parametrize(("name", "within", "beyond"), [("h200-sxm", 8, 16), ("gb200", 64, 128)])
def test_the_exchange_of_experts_goes_over_the_network_beyond_a_link_domain(name, within, beyond):
    """A network ten times as fast changes the step beyond the domain alone, and never for the worse."""
    network, rules = read_model("Qwen/Qwen3-30B-A3B", offline=True), profile("vllm")

    def step_s(ranks, faster):
        gpu = device(name)
        gpu = replace(gpu, network_bytes_per_s=gpu.network_bytes_per_s * faster)
        sharding = Sharding(1.0, 1.0, float(ranks), float(ranks))
        spec = ReplicaSpec(
            network, gpu, efficiency_for(gpu), rules, sharding, "bf16", max_model_len=4096, max_num_seqs=64
        )
        return float(plans_tables(plans_of([spec])).table.mixed_s.max())

    assert step_s(within, 10.0) == step_s(within, 1.0)
    assert step_s(beyond, 10.0) < step_s(beyond, 1.0)
