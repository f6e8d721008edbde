"""Some hundred files of every kind with small faults: `make fuzz` reads as many as there is time for."""

import json

import pytest

from capplan.errors import InputError
from capplan.recorded.results.read import read_results
from tests.files import written_to
from tests.fuzz import grammars
from tests.fuzz.readers import KINDS, check, fuzz
from tests.fuzz.same_answers import compare

EXAMPLES = 25


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_file_with_small_faults_is_used_or_refused_in_one_line(kind, tmp_path):
    fuzz(kind, tmp_path, number=7, examples=EXAMPLES)


@pytest.mark.parametrize("text", ["[" * 100_000, "{}", "\n", "\x00", "a: &a [*a]", '"' * 9, "9" * 5000, ""])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_file_that_is_something_else_is_used_or_refused_in_one_line(kind, text, tmp_path):
    check(kind, text.encode(), tmp_path)


@pytest.mark.parametrize("kind", grammars.KINDS)
def test_what_a_grammar_writes_is_used_or_refused_in_one_line(kind, tmp_path):
    assert grammars.some(kind, tmp_path, number=7, cases=40) > 0


def test_a_rate_that_follows_from_numbers_and_is_endless_is_refused(tmp_path):
    """Found by make fuzz: tokens of 1e308 a request make a rate that no number holds."""
    (kind,) = (kind for kind in KINDS if kind.name == "results.json")
    (sound,) = (value for value in kind.sound() if "usage_completion_tokens" in value)
    path = written_to(tmp_path / kind.name, {**sound, "usage_completion_tokens": {"avg": 1e308}})
    with pytest.raises(InputError, match=r"usage_completion_tokens\.avg: 1e\+308 is out of range"):
        kind.read(path)


def test_a_rate_next_to_nothing_contradicts_the_mean_length(tmp_path):
    """Found by make fuzz: 5e-324 tokens a second over 81 requests a second are no tokens a request."""
    (kind,) = (kind for kind in KINDS if kind.name == "results.json")
    (sound,) = (value for value in kind.sound() if "successes" in value and "rate" in value["successes"])
    path = tmp_path / kind.name
    spoilt = {**sound["successes"], "prompt_len": {**sound["successes"]["prompt_len"], "rate": 5e-324}}
    path.write_text(json.dumps({**sound, "successes": spoilt}))
    (result,) = read_results(path)
    assert result.contradiction.startswith(
        "prompt_len.mean is 7,942 tokens, but prompt_len.rate / rate is about 0:"
    )


def test_answers_of_two_trees_are_compared_number_by_number(tmp_path, capsys):
    answers = {"before": {"gpus": 4, "usd": [1.5, 2.0]}, "after": {"gpus": 4, "usd": [1.5, 2.1]}}
    for name, said in answers.items():
        (tmp_path / name / "alone").mkdir(parents=True)
        written_to(tmp_path / name / "alone" / "fleet_small.txt", f"{json.dumps(said)}\nexit 0\n")
    before, after = (tmp_path / name for name in answers)
    assert compare(before, before) == 0
    assert json.loads(capsys.readouterr().out) == {"answers": 1, "leaves": 3, "kinds_of_differences": 0}
    assert compare(before, after) == 1
    assert ".usd[1]: 2.0 -> 2.1" in capsys.readouterr().out
    (after / "alone" / "fleet_small.txt").unlink()
    assert compare(before, after) == 1
