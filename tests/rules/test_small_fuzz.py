"""Some hundred files of every kind with small faults: `make fuzz` reads as many as there is time for."""

import pytest

from tests.fuzz.readers import KINDS, check, fuzz

EXAMPLES = 25


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_file_with_small_faults_is_used_or_refused_in_one_line(kind, tmp_path):
    fuzz(kind, tmp_path, number=7, examples=EXAMPLES)


@pytest.mark.parametrize("text", ["[" * 100_000, "{}", "\n", "\x00", "a: &a [*a]", '"' * 9, "9" * 5000, ""])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_file_that_is_something_else_is_used_or_refused_in_one_line(kind, text, tmp_path):
    check(kind, text.encode(), tmp_path)
