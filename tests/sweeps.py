"""How many questions a law is asked: some at every run, all in `make fuzz`."""

from hypothesis import settings


def examples(brief: int, long: int) -> int:
    """Return how many examples a law takes: `long` under the profile of new questions.

    A law that has found something at its full length keeps that question as an `@example`.
    """
    return brief if settings().derandomize else long
