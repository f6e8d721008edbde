"""Imported by the process that workers are forked from: it asks one question of each kind, so that a worker finds libraries and catalogues loaded."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout

QUESTIONS = (
    ("fit", "llama-3.1-8b", "--hardware", "h100-sxm", "--offline", "--format", "json"),
    ("fleet", "support-chat", "--set", "slo.tpot_p95=1us", "--offline", "--format", "json"),
)
"""The second has no plan, and needs no simulation to say so."""


def ask_each() -> None:
    """Ask the questions, and forget the answers."""
    from capplan.cli.main import main

    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        for question in QUESTIONS:
            main(question)


if "multiprocessing.forkserver" in sys.modules:
    ask_each()
