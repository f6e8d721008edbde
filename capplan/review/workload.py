"""The traffic of a review: its classes, its load over time, and the replicas that it asks for."""

from typing import Any

from capplan.report.answer import Table
from capplan.report.answers.fleet_outlook import over_time_parts, over_time_tables
from capplan.report.charts.of_answers import load_chart
from capplan.review.findings import Findings, Section
from capplan.workload.request_class import RequestClass, responses_of_classes


def workload_section(given: Findings) -> Section:
    """Return the traffic: every row multiplies across to tokens per second."""
    scenario = given.asked.scenario
    responses_s = responses_of_classes(
        given.chosen.responses_s if given.chosen else 0.0, len(scenario.classes)
    )
    rows = [_class_row(item, s) for item, s in zip(scenario.classes, responses_s, strict=True)]
    text = [scenario.file.description] if scenario.file.description else []
    text.append(
        f"Model {scenario.model}, served by {given.asked.question.profile.engine} "
        f"{given.asked.question.profile.asked_version or given.asked.question.profile.version}, longest context "
        f"{given.asked.question.max_model_len:,} tokens. Tokens per second are those of the peak."
    )
    if any(item.users for item in scenario.classes):
        text.append(
            "Users wait for a response before they send the next request, so their rate follows from the response time."
        )
    titles = {
        "request_rate": "peak rate",
    }
    return Section("Workload", text=tuple(text), tables=(Table(rows, titles=titles),))


def _class_row(item: RequestClass, response_s: float) -> dict[str, Any]:
    rate = item.request_rate_at(response_s)
    inputs, outputs = item.input_tokens.mean_tokens, item.output_tokens.mean_tokens
    return {
        "class": item.name,
        "users": item.users,
        "think_time_s": item.think_time_s,
        "mean_request_rate": rate * item.mean_rate_fraction,
        "request_rate": rate,
        "input_tokens.mean": inputs,
        "input_tokens_per_s": rate * inputs,
        "output_tokens.mean": outputs,
        "output_tokens_per_s": rate * outputs,
        "input_tokens.p95": float(item.input_tokens.quantile(0.95)),
        "output_tokens.p95": float(item.output_tokens.quantile(0.95)),
        "cached_tokens": item.cached_input_tokens,
        "arrival_cv": item.arrival_cv,
    }


def over_time_section(given: Findings) -> Section:
    """Return the load curve, how the plan follows it with and without autoscaling, and N + k replicas, where the load has a curve."""
    over_time = over_time_parts(given.outlook)
    if not over_time or given.chosen is None:
        return Section("Load over time")
    return Section(
        "Load over time",
        text=(
            "Static pays for the busiest minute at all hours. An autoscaler that follows the observed load is late by the start-up of a "
            "replica, and requests that come meanwhile are over capacity; a perfect forecast is the bound of what scaling can save.",
        ),
        tables=tuple(table for pool, part in over_time.items() for table in over_time_tables(part, pool)),
        pictures=tuple(load_chart(part, pool) for pool, part in over_time.items()),
    )
