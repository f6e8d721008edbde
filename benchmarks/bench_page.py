"""How long the page of `capplan serve` takes in a real Chromium: to its first paint, until it can be used, and to a whole plan of a scenario.

python -m benchmarks.bench_page [--scenario scenarios/support-chat.yaml] [--runs 3]

Allowed are one second to the first paint and six to the plan.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from tests.browser import Page, browser
from tests.served import ROOT, server

PAINTED = "(performance.getEntriesByName('first-contentful-paint')[0] || {startTime: 0}).startTime"


def waited_s(page: Page, condition: str) -> float:
    """Return how long it takes until a condition holds in a page [s]."""
    begin = time.monotonic()
    while not page.run(condition):
        time.sleep(0.01)
    return time.monotonic() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scenario", type=Path, default=ROOT / "scenarios" / "support-chat.yaml")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    text = json.dumps(options.scenario.read_text(encoding="utf-8"))
    for number in range(options.runs):
        with (
            tempfile.TemporaryDirectory() as folder,
            server(Path(folder)) as served,
            browser(Path(folder) / "profile") as page,
        ):
            page.open(f"{served.address}/")
            waited_s(page, f"{PAINTED} > 0")
            ready_s = waited_s(page, "!document.getElementById('find').disabled")
            page.run(
                f"(e => {{ e.value = {text}; e.dispatchEvent(new Event('input', {{bubbles: true}})); }})(document.querySelector('#yaml'))"
            )
            waited_s(page, "!document.getElementById('find').disabled")
            begin = time.monotonic()
            page.run("document.getElementById('find').click()")
            waited_s(page, "!!window.capplan.fleet")
            first_s = time.monotonic() - begin
            waited_s(page, "!window.capplan.fleet.partial")
            plan_s = time.monotonic() - begin
            waited_s(page, "document.getElementById('stop').hidden")
            whole_s, painted_s = time.monotonic() - begin, page.run(PAINTED) / 1e3
        print(
            f"run {number + 1}: first paint {painted_s:.2f} s, ready {ready_s:.2f} s later; first plan {first_s:.2f} s, whole answer {plan_s:.2f} s, "
            f"with what-ifs and report {whole_s:.2f} s"
        )


if __name__ == "__main__":
    main()
