"""Write the table of docs/money.md that has the order of every shipped scenario: `python -m docs.generators.orders` (`make docs`).

Each scenario is searched once; a test repeats some of them.
"""

import io
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from capplan.cli.main import main
from capplan.fleet.price import HOURS_PER_MONTH

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "money.md"
BEGIN, END = "<!-- orders written by `make docs` -->", "<!-- end of the orders -->"
_HEAD = (
    "| scenario | GPUs by the piece | $ per month | order to place today | $ per month |\n"
    "| --- | --- | ---: | --- | ---: |\n"
)


def scenario_names() -> list[str]:
    """Return the names of the shipped scenarios."""
    return sorted(path.stem for path in (ROOT / "scenarios").glob("*.yaml"))


def line_of(name: str) -> str:
    """Return the line of a scenario."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        code = main(["fleet", name, "--offline", "--format", "json"])
    assert code == 0, name
    return line_in(name, json.loads(out.getvalue())["result"])


def line_in(name: str, result: dict[str, Any]) -> str:
    """Return the line of a scenario whose answer is known."""
    bought = list(_bought(result))
    pieces = " + ".join(
        f"{gpus} {device}" for device, gpus, _ in (piece for row in bought for piece in row["pieces"])
    )
    by_the_piece = HOURS_PER_MONTH * sum(
        row["electricity"] + sum(gpus * usd for _, gpus, usd in row["pieces"]) for row in bought
    )
    parts = bought[0]["hours"] / HOURS_PER_MONTH
    placed = [row["stated_order"] or row["order"] for row in bought]
    cells = [pieces, _usd(by_the_piece, parts), *_cells(placed, parts)]
    return f"| {name} | {' | '.join(cells)} |"


def _cells(orders: Sequence[dict[str, Any]], parts: float) -> list[str]:
    """Return the machines and the cost of the orders of a service."""
    lines = [line for order in orders for line in order["machines"]]
    words = ", ".join(f"{line['count']} x {line['sku'] or line['hardware']}" for line in lines)
    sellers = ", ".join(dict.fromkeys(line["provider"] for line in lines))
    return [f"{words} ({sellers})", _usd(sum(order["usd_per_month"] for order in orders), parts)]


def _usd(usd_per_month: float, parts: float) -> str:
    return f"{usd_per_month:,.0f}" if parts == 1.0 else f"{usd_per_month * parts:,.0f} a job"


def _bought(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what the fleets of an answer are bought as: GPUs by the piece, the order, the order to place today, and the hours paid."""
    if "sharing" in result:
        pool = result["sharing"]
        pieces = [(pool["hardware"], pool["gpus"], pool["usd_per_gpu_hour"])]
        yield {
            "pieces": pieces,
            "hours": HOURS_PER_MONTH,
            "electricity": 0.0,
            **{key: pool[key] for key in ("order", "stated_order")},
        }
        return
    fleets = (
        [(row["plan"], row["stated_order"]) for row in result["fleets"][:-1]]
        if "cascade" in result
        else [(result["chosen"], result["cheapest_stated_order"] or result["stated_order"])]
    )
    for plan, stated in fleets:
        pieces = [(group["hardware"], group["gpus"], group["usd_per_gpu_hour"]) for group in plan["groups"]]
        job = plan["usd_per_job"]
        hours = HOURS_PER_MONTH if job is None else HOURS_PER_MONTH * job / plan["usd_per_month"]
        yield {
            "pieces": pieces,
            "hours": hours,
            "electricity": plan["energy_usd_per_hour"] or 0.0,
            "order": plan["order"],
            "stated_order": stated,
        }


def table(names: Sequence[str]) -> str:
    """Return the table of some scenarios."""
    return _HEAD + "".join(f"{line_of(name)}\n" for name in names)


def lines_on(page: str) -> dict[str, str]:
    """Return the lines that a page has, by the name of the scenario."""
    rows = page[page.index(BEGIN) : page.index(END)].splitlines()[3:]
    return {row.split("|")[1].strip(): row for row in rows}


def run() -> None:
    """Write the table."""
    page = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(rf"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    PAGE.write_text(
        pattern.sub(lambda _: f"{BEGIN}\n{table(sys.argv[1:] or scenario_names())}{END}", page),
        encoding="utf-8",
    )


if __name__ == "__main__":
    run()
