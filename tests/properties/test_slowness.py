"""Laws of the slowness of a replica: a distribution, wider where less is known."""

from dataclasses import replace
from math import exp, inf, log, log1p, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.accuracy.slowness import latency_at_slowness, slowness_of, slowness_scale
from capplan.readers.catalogue.efficiency import shipped_slowness
from capplan.workload.request_class import METRICS, STATISTICS, Target

CHANCES = st.floats(0.001, 0.999)
STEPS = st.floats(1e-3, 1.0)
TARGETS = st.lists(
    st.builds(Target, st.sampled_from(METRICS), st.sampled_from(STATISTICS), st.floats(0.01, 10.0)), min_size=1, max_size=4
)  # fmt: skip


def of(targets, step_s=0.03, network_class="dense"):
    return slowness_of(shipped_slowness(), targets, network_class=network_class, step_s=step_s)


@given(TARGETS, STEPS, CHANCES)
def test_a_quantile_is_held_with_its_probability(targets, step_s, chance):
    usual = of(targets, step_s)
    assert usual.probability(usual.quantile(chance)) == pytest.approx(chance, abs=1e-6)


@given(
    target=st.builds(Target, st.sampled_from(METRICS), st.sampled_from(STATISTICS), st.floats(0.01, 10.0)),
    step_s=STEPS,
    chance=CHANCES,
    predicted=st.floats(1e-3, 10.0),
    part=st.sampled_from((0.1, 0.5, 0.8, 0.9)),
)
def test_a_latency_is_within_its_limit_as_often_as_its_probability_says(
    target, step_s, chance, predicted, part
):
    """The interval of a target and its probability are of one distribution: a quantile of the latency is within the limit if the probability is as high."""
    usual = of([target], step_s)
    slowest = usual.quantile(chance)
    if (target.limit_s > predicted) == (slowest > 1.0) and abs(log(slowest)) > 1e-6:
        latency = latency_at_slowness(predicted, usual.quantile(part), target.limit_s, slowest)
        if abs(part - chance) > 1e-6 and (usual.quantile(part) > 1.0) == (slowest > 1.0):
            assert (latency <= target.limit_s) == (part <= chance)


@given(TARGETS, STEPS, CHANCES, CHANCES)
def test_more_confidence_needs_room_for_more_slowness(targets, step_s, one, other):
    usual = of(targets, step_s)
    low, high = sorted((one, other))
    assert usual.quantile(low) <= usual.quantile(high)
    assert 0.0 == usual.probability(0.0) <= usual.probability(low) <= usual.probability(high) <= 1.0
    assert usual.probability(inf) == 1.0


@given(TARGETS)
def test_the_order_and_the_repetition_of_targets_count_for_nothing(targets):
    assert of(targets) == of(targets[::-1]) == of(targets * 2)


def test_the_bias_is_kept():
    """Half of the measured groups are slower than predicted, at steps of 50 ms by 2.5 % and more; a plan starts from there."""
    table, found = shipped_slowness(), of([Target("tpot", "p50", 0.05)], 0.05).quantile(0.5)
    regime = table.regimes["tpot/middle"]
    scale = sqrt(table.relative**2 + log1p(table.host_s / 0.05) ** 2)
    assert found == pytest.approx(exp(scale * regime.quantiles[2]), rel=1e-6)
    assert found == pytest.approx(1.025, abs=0.002)


@given(STEPS, st.floats(0.1, 0.9), st.sampled_from(STATISTICS))
def test_all_targets_are_no_likelier_than_one_of_them(step_s, chance, statistic):
    """To the widening for few groups, the joint distribution is the slower one."""
    first, later = Target("ttft", statistic, 1.0), Target("tpot", statistic, 1.0)
    both = of([first, later], step_s).quantile(chance)
    for target in (first, later):
        assert both >= 0.97 * of([target], step_s).quantile(chance)


def test_a_class_of_networks_that_nobody_measured_is_wider_and_thin():
    target = [Target("tpot", "p50", 0.05)]
    dense, mla, unknown = of(target), of(target, network_class="mla"), of(target, network_class="new")
    assert mla.quantile(0.9) / mla.quantile(0.1) > dense.quantile(0.9) / dense.quantile(0.1)
    assert mla.thin
    assert unknown.quantile(0.9) >= mla.quantile(0.9)


@given(TARGETS, STEPS, st.floats(0.51, 0.999))
def test_kernels_that_nobody_timed_make_a_plan_less_certain(targets, step_s, confidence):
    """The median stays, both ends move away from it, and two unknowns are more than one and less than their product."""

    def at(unmeasured, chance):
        found = slowness_of(
            shipped_slowness(), targets, network_class="dense", step_s=step_s, unmeasured_kernels=unmeasured
        )
        assert found.thin or not unmeasured
        return log(found.quantile(chance))

    middle = at(0, 0.5)
    own, kin, foreign = (at(unmeasured, confidence) - middle for unmeasured in (0, 1, 2))
    assert at(1, 0.5) == pytest.approx(middle)
    assert own <= kin <= foreign <= 1.6 * kin + 1e-9
    assert kin == pytest.approx(1.6 * own)
    assert at(2, 1.0 - confidence) <= at(0, 1.0 - confidence) + 1e-9


def test_few_groups_are_called_thin():
    table = shipped_slowness()
    few = {key: replace(regime, groups=3) for key, regime in table.regimes.items()}
    found = slowness_of(
        replace(table, regimes=few), [Target("ttft", "p99", 1.0)], network_class="dense", step_s=0.03
    )
    assert found.thin


def test_a_slow_host_doubles_a_short_step():
    assert exp(slowness_scale(0.008, 0.0, 0.008)) == pytest.approx(2.0)
