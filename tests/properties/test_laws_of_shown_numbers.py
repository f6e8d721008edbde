"""No two numbers of an answer contradict each other: random questions to every command that prints numbers."""

import pytest

from tests.fuzz.shown import QUESTIONS, asked, broken_by, disagreements
from tests.sweeps import long_but

"""Kind of question and its number."""
SAMPLE = [(kind, number) for kind, (_, weight) in QUESTIONS.items() for number in range(max(weight // 3, 1))]
ALL = [(kind, number) for kind, (_, weight) in QUESTIONS.items() for number in range(8 * weight)]


@pytest.mark.usefixtures("few_requests", "shared_runs")
@pytest.mark.parametrize("question", long_but(SAMPLE, ALL), ids=lambda question: "-".join(map(str, question)))
def test_no_two_numbers_of_an_answer_contradict_each_other(question):
    assert asked(*question) == []


@pytest.mark.parametrize(
    ("law", "result"),
    [
        ("little", {"requests_per_s": 7.45, "e2e_s": {"mean": 10.64}, "concurrency": 64}),
        ("served", {"requests_per_s": 13.6, "request_rate": 10.0}),
        ("parts", {"ttft_s": {"mean": 40.0, "high": 406.9}, "tpot_s": {"mean": 0.1}, "e2e_s": {"mean": 90.0, "high": 116.9}}),
        ("widths", {"mean": 1.13, "low": 0.5, "high": 29.7}),
        ("percentiles", {"p50": 0.2, "p95": 0.1}),
        ("intervals", {"mean": 0.3, "low": 0.1, "high": 0.2}),
        ("month", {"usd_per_hour": 2.0, "usd_per_month": 1000.0}),
        ("products", {"gpus_per_replica": 2, "replicas": 3, "gpus": 7}),
        ("shares", {"classes": [{"gpu_time_fraction": 0.4}, {"gpu_time_fraction": 0.4}]}),
        ("order", {"machines": [{"count": 2, "gpus": 8, "usd_per_hour": 3.0}], "gpus": 16, "usd_per_hour": 5.0}),
        ("allocated", {"kv_bytes_total": 11.3e9, "engine_reserved_bytes_per_sequence": 10.3e9}),
        ("fractions", {"busy_fraction": 1.2}),
        ("finite", {"mean": float("nan")}),
    ],
)  # fmt: skip
def test_the_laws_find_what_was_once_printed(law, result):
    assert law in {broken.law for broken in broken_by(result)}


@pytest.mark.parametrize("number", long_but(range(6), range(60)))
def test_commands_agree_on_the_questions_that_they_share(number):
    assert disagreements(number) == []
