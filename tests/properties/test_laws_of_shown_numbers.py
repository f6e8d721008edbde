"""No two numbers of an answer contradict each other: random questions to every command that prints numbers."""

import pytest

from tests.fuzz.shown import QUESTIONS, asked, broken_by, disagreements
from tests.sweeps import long_but, size_on_few_requests
from tests.tables import table

"""Kind of question and its number."""
SAMPLE = [(kind, number) for kind, (_, weight) in QUESTIONS.items() for number in range(max(weight // 3, 1))]
ALL = [(kind, number) for kind, (_, weight) in QUESTIONS.items() for number in range(8 * weight)]


@pytest.mark.usefixtures("shared_runs")
@pytest.mark.parametrize("question", long_but(SAMPLE, ALL), ids=lambda question: "-".join(map(str, question)))
def test_no_two_numbers_of_an_answer_contradict_each_other(question, monkeypatch):
    size_on_few_requests(monkeypatch)
    assert asked(*question) == []


@table
def test_the_laws_find_what_was_once_printed(law, result):
    assert law in {broken.law for broken in broken_by(result)}


@pytest.mark.parametrize("number", long_but(range(6), range(60)))
def test_commands_agree_on_the_questions_that_they_share(number):
    assert disagreements(number) == []
