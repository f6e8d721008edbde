"""`capplan list`: what names there are."""

from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.groups import grouped
from capplan.errors import unknown

_KINDS = ("scenarios", "models", "hardware", "machines", "engines", "prices", "apis")
Kind = Annotated[
    str,
    typer.Argument(
        metavar="KIND", help=f"{', '.join(_KINDS[:-1])} or {_KINDS[-1]}.", autocompletion=lambda: list(_KINDS)
    ),
]
Word = Annotated[
    str | None, typer.Argument(metavar="[WORD]", help="Only those with this in one of their texts.")
]


@grouped
def command(*, kind: Kind, word: Word = None, to: o.Output) -> int:
    """List shipped scenarios, models, hardware, machines, engines, prices or hosted APIs, all or those of a word."""
    from capplan.questions.listing import listed
    from capplan.report.answers.listing import listing_answer
    from capplan.report.show import show

    if kind not in _KINDS:
        raise unknown("list", kind, _KINDS)
    return show(listing_answer(kind, listed(kind, word)), to)
