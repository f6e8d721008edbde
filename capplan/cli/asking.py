"""Questions to people at a terminal, for what a command line did not say."""

import sys
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import typer

from capplan.errors import InputError
from capplan.report.show import say
from capplan.scenario.command_flags import FirstScenario
from capplan.scenario.first_scenario import Known, Prompt, answers_of, open_questions


def answered_by_people(
    first: FirstScenario, known: Known, check: Callable[[FirstScenario], object]
) -> FirstScenario:
    """Return what is said of a scenario, with what people answer at a terminal; what is said already is not asked.

    Parameters
    ----------
    first : what is said
    known : what was read
    check : raises InputError for answers that no scenario can be made of; the question is then asked again

    Raises
    ------
    InputError
        nothing is said or known, and there is no terminal to ask in; or what is said does not hold
    """
    open_ones = open_questions(first, known)
    if sys.stdin is None or not sys.stdin.isatty():
        if known == Known() and all(getattr(first, field.name) is None for field in fields(first)):
            raise InputError(
                "there is no terminal to ask in\n"
                "  say what is known, e.g. --model llama-3.1-8b-instruct --request-rate '5 req/s', or --from support-chat"
            )
        return first
    check(first)
    for asked in open_ones:
        first = _with_answer(first, asked, known, check)
    return first


def _with_answer(
    first: FirstScenario, asked: Prompt, known: Known, check: Callable[[FirstScenario], object]
) -> FirstScenario:
    """Ask until an answer holds; parts that were said or are known stay."""
    while True:
        text = typer.prompt(asked.text, default=asked.default, err=True)
        try:
            parts: dict[str, Any] = answers_of(asked, text)
            new = {k: v for k, v in parts.items() if getattr(first, k) is None and k not in known.fields}
            answered = replace(first, **new)
            check(answered)
        except InputError as error:
            say(str(error))
            continue
        return answered
