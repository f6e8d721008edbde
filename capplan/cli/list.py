"""`capplan list`: what names there are."""

from pathlib import Path
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.options import grouped
from capplan.errors import InputError, unknown

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
Check = Annotated[
    bool,
    typer.Option("--check", help="Of prices and apis: what is old, retired or contradicted."),
]
Prices = Annotated[
    Path | None,
    typer.Option(
        "--prices",
        metavar="FILE",
        help="Newer list to check apis against: a token-price YAML, or the price file of LiteLLM or genai-prices.",
    ),
]
Day = Annotated[
    str | None,
    typer.Option(
        "--date",
        metavar="DAY",
        help="Date of a list that states none, such as the files of LiteLLM and genai-prices.",
    ),
]


@grouped
def command(
    *,
    kind: Kind,
    word: Word = None,
    check: Check = False,
    prices: Prices = None,
    date: Day = None,
    to: o.Output,
) -> int:
    """List shipped scenarios, models, hardware, machines, engines, prices or hosted APIs, all or those of a word."""
    from capplan.questions.listing import checked, having, listed
    from capplan.questions.plans.plan_check import current_day
    from capplan.report.answers.replica import listing_answer
    from capplan.report.show import show

    if kind not in _KINDS:
        raise unknown("list", kind, _KINDS)
    if check and kind not in ("prices", "apis"):
        raise InputError(
            f"--check: {kind} have no prices; capplan list prices --check, capplan list apis --check"
        )
    if prices is not None and not (check and kind == "apis"):
        raise InputError(
            "--prices: is what hosted prices are checked against; capplan list apis --check --prices FILE"
        )
    if date is not None and prices is None:
        raise InputError("--date: is the day of a price file, and none is given; --prices FILE")
    if check:
        rows = having(kind, checked(kind, str(prices) if prices else None, date, current_day()), word)
        return show(listing_answer(f"{kind} --check", rows), to)
    return show(listing_answer(kind, listed(kind, word)), to)
