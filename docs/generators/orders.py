"""Write the table of docs/evidence/orders.md that has the order of every shipped scenario: `python -m docs.generators.orders` (`make docs`).

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

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "evidence" / "orders.md"
BEGIN, END = "<!-- orders written by `make docs` -->", "<!-- end of the orders -->"
_HEAD = "| scenario | GPUs of the plan | order | $ |\n| --- | --- | --- | ---: |\n"


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
    used = " + ".join(f"{gpus} {device}" for row in bought for device, gpus in row["gpus"])
    lines = [line for row in bought for line in row["order"]["machines"]]
    words = ", ".join(f"{line['count']} x {line['sku'] or line['hardware']}" for line in lines)
    sellers = ", ".join(dict.fromkeys(line["provider"] for line in lines))
    job = bought[0]["usd_per_job"]
    usd = sum(row["order"]["usd_per_month"] for row in bought)
    paid = f"{usd:,.0f} a month" if job is None else f"{job:,.0f} a job"
    return f"| {name} | {used} | {words} ({sellers}) | {paid} |"


def _bought(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what is bought for a service: the GPUs in use, the order, and the price of a job if it is one."""
    if "sharing" in result:
        pool = result["sharing"]
        yield {"gpus": [(pool["hardware"], pool["gpus"])], "order": pool["order"], "usd_per_job": None}
        return
    plans = [row["plan"] for row in result["fleets"][:-1]] if "cascade" in result else [result["chosen"]]
    for plan in plans:
        gpus = [(group["hardware"], group["gpus"]) for group in plan["groups"]]
        yield {"gpus": gpus, "order": plan["order"], "usd_per_job": plan["usd_per_job"]}


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
