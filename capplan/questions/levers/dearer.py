"""Why a change costs more: the SLO target that the plan as it is would miss with it, and by how much."""

from dataclasses import dataclass, replace

from capplan.errors import Reason
from capplan.fleet.plan import AnyPlan, FleetPlan
from capplan.fleet.search.one_layout import trial_of
from capplan.fleet.search.search_cache import SearchCache
from capplan.questions.fleet import AskedFleet, terms_of
from capplan.workload.slo import Target


@dataclass(frozen=True, slots=True)
class _Held:
    """The targets of a plan with the required confidence, for one change or none."""

    values_s: dict[Target, float]
    """Latency by target, with steps as slow as the required confidence allows for."""
    slowness: float
    """That factor."""


def why_dearer(base: AskedFleet, changed: AskedFleet, plan: AnyPlan, cache: SearchCache) -> str:
    """Return what a change does to the plan as it is, with the number that decides; empty if all its targets are still met.

    Parameters
    ----------
    base : the scenario as it is
    changed : the scenario with the change
    plan : as it is
    cache : runs of both

    Returns
    -------
    a sentence without a full stop
    """
    if not isinstance(plan, FleetPlan) or not base.question.slo.targets:
        return ""
    now, then = _held(base, plan, cache), _held(changed, plan, cache)
    same = f"{plan.gpus} x {plan.hardware} in replicas of {plan.layout.devices}"
    if isinstance(then, Reason):
        return f"{same} cannot serve it: {then.words}"
    if isinstance(now, Reason):
        return ""
    target = max(then.values_s, key=lambda item: then.values_s[item] / item.limit_s)
    value, before = then.values_s[target], now.values_s.get(target, 0.0)
    if value <= target.limit_s:
        return ""
    steps = ""
    if abs(then.slowness / now.slowness - 1.0) > 0.01:
        steps = f"; steps may be {then.slowness:.2f} times as long as predicted, instead of {now.slowness:.2f} times"
    return (
        f"{target.key} of {same} may be {1e3 * value:,.0f} ms with the required confidence, instead of {1e3 * before:,.0f} ms; "
        f"the limit is {1e3 * target.limit_s:,.0f} ms{steps}"
    )


def _held(asked: AskedFleet, plan: FleetPlan, cache: SearchCache) -> _Held | Reason:
    question = asked.question
    dtype = plan.weight_dtype if plan.weight_dtype in question.networks else next(iter(question.networks))
    layout = plan.layout
    if layout.kv_format not in question.kv_formats:
        layout = replace(layout, kv_format=question.kv_formats[0])
    device = next((item for item in question.devices if item.name == layout.device.name), layout.device)
    layout = replace(layout, device=device)
    trial = trial_of(question, layout, dtype, terms_of(asked), cache, busy=plan.busy_replicas)
    if isinstance(trial, Reason):
        return trial
    slower = trial.candidate.slowness.quantile(question.slo.confidence)
    seen = trial.fleet(plan.busy_replicas, slower)
    return _Held({target: seen.value(target) * slower for target in trial.limits}, slower)
