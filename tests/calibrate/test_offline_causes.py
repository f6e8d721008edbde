"""Experiments on offline maxima change what they name, and nothing else."""

from pathlib import Path

import pytest

from calibrate.host_rows import items_of
from calibrate.offline_causes import COOL, EVENLY, NO_SEQUENCE_TIME, PCIE, SETS, TRTLLM_GEN, changed, ratio_of
from capplan.engine.lookup import profile, version_key
from capplan.engine.versions import RELEASES
from capplan.questions.validation import BUILT_IN_POINTS
from capplan.recorded.measured import measured_table


@pytest.fixture(scope="module")
def runs():
    rows = [row for row in measured_table(BUILT_IN_POINTS)[1] if row["kind"] == "offline_max"]
    return items_of(rows)


def run_named(runs, name):
    return next(run for run in runs if run.row["id"] == name)


def test_a_run_on_an_unchanged_replica_is_predicted_as_before(runs):
    assert ratio_of(changed(runs[0], lambda spec: spec)) == ratio_of(runs[0])


def test_links_matter_to_cards_on_pcie_in_the_order_of_their_sharing(runs):
    run = next(r for r in runs if r.parts["device"] == "l40s" and float(r.replica.spec.sharding.tensor) > 1.0)
    ratios = {name.split(" ")[0]: ratio_of(changed(run, change)) for name, change in PCIE}
    assert ratios["all"] < ratio_of(run) < ratios["no"]
    assert ratios["half"] < ratio_of(run)


def test_kernels_and_host_times_change_what_they_name(runs):
    mixture = run_named(runs, "trtllm-perf-overview-v1-1--0002")
    assert ratio_of(changed(mixture, TRTLLM_GEN[1])) > 1.05 * ratio_of(mixture)
    assert ratio_of(changed(mixture, NO_SEQUENCE_TIME[1])) > ratio_of(mixture)
    card = next(r for r in runs if r.parts["device"] == "l40s")
    assert ratio_of(changed(card, COOL[1])) > ratio_of(card)
    assert (
        EVENLY[1](mixture.replica.spec).efficiency.fits.keys() == mixture.replica.spec.efficiency.fits.keys()
    )


def test_sets_of_runs_do_not_overlap(runs):
    for run in runs:
        assert sum(own.holds(run) for own in SETS) <= 1, run.row["id"]


def states(engine, since, told):
    """Return the different states of a profile over the releases from a version on, and the count of these."""
    found = [profile(engine, version) for _, version in RELEASES[engine] if version_key(version) >= since]
    return len({told(own) for own in found}), len(found)


def test_the_page_counts_what_is_data_by_version():
    page = (Path(__file__).parents[2] / "docs" / "evidence" / "what-was-tried.md").read_text(encoding="utf-8")
    table = page[page.index("## Kernels and graphs by version") :]
    for name, told in (
        ("kernel of routed experts", lambda own: own.expert_kernels),
        ("largest decode batch in a CUDA graph", lambda own: frozenset((t.graph_max_sequences, t.wide_graph_max_sequences) for t in own.tiers if not t.only)),
        ("steps with prompts in CUDA graphs: time", lambda own: (own.host.graph_tokens, own.graph_tokens_of)),
        ("steps with prompts in CUDA graphs: memory", lambda own: own.memory.prefill_capture),
        ("step planned while the last one runs", lambda own: own.asynchronous),
        ("default cache dtype by model", lambda own: own.cache_rules),
    ):  # fmt: skip
        line = next(line for line in table.splitlines() if line.startswith(f"| {name} |"))
        for engine, since in (("vllm", (0, 11, 0)), ("sglang", (0, 5, 6))):
            count, releases = states(engine, since, told)
            assert f"{count} in {releases}" in line, (name, engine, count, releases)
