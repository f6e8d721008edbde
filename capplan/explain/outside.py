"""What is spent outside the GPUs, explained."""

from capplan.explain.record import Explained, Input, explained, formula_of, input_of
from capplan.explain.subject import WORKLOADS
from capplan.fleet.plan import AnyPlan
from capplan.workload.outside import requests_paid

_FORMULAS = {
    "longest_wait_s": "max w_k",
    "mean_wait_s": "sum n_k w_k / sum n_k",
    "usd_per_month": "sum n_k u_k",
    "usd_per_job": "sum n_k u_k",
}
_SEEN = {"mean": "mean_wait_s", "p95": "longest_wait_s"}


def explained_outside(plan: AnyPlan, quantity: str, value: float, label: str) -> Explained:
    """Explain a quantity of what users wait for and pay for outside the GPUs; the label is that of the plan's latencies."""
    _, key, *part = quantity.split(".")
    inputs = _of_scenario(plan)
    if part:
        metric = key.removeprefix("seen_")
        engine = float(getattr(getattr(plan, metric), part[0]))
        waited = "sum n_k w_k / sum n_k" if _SEEN[part[0]] == "mean_wait_s" else "max w_k"
        inputs = (
            input_of("t", f"{metric}.{part[0]}", engine, label, f"explain {metric}.{part[0]}"), *inputs
        )  # fmt: skip
        return explained(quantity, value, f"t + {waited}", inputs, WORKLOADS)
    return explained(quantity, value, _FORMULAS[key], inputs, WORKLOADS)


def _of_scenario(plan: AnyPlan) -> tuple[Input, ...]:
    """Return requests, wait and price of every class."""
    assert plan.outside is not None
    paid = f"scenario: traffic, {formula_of(requests_paid)}"
    return tuple(
        item
        for index, share in enumerate(plan.outside.classes)
        for item in (
            input_of("n_k", f"{share.name} requests", share.requests, "config", paid),
            input_of("w_k", f"{share.name} wait_s", share.wait_s, "config", f"scenario: traffic[{index}].outside"),
            input_of("u_k", f"{share.name} usd_per_request", share.usd_per_request, "config", f"scenario: traffic[{index}].outside"),
        )
    )  # fmt: skip
